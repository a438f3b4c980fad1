/* The processors of a system that execute the queues of a training step together. Each system has its own C file.
 *
 *     err = poetc_session_init(&session, model, &config);
 *     err = err ? err : poetc_processors_begin(&processors, &session.runtime, queues);
 *     session.run = poetc_processors_run;
 *     session.run_context = &processors;
 */
#ifndef POETC_PROCESSORS_H
#define POETC_PROCESSORS_H

#include "poetc_queues.h"

#if defined(__unix__) && __STDC_HOSTED__
#include <pthread.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__unix__) && __STDC_HOSTED__
struct poetc_processors;

/* One beside the main one. */
typedef struct poetc_processor {
    struct poetc_processors *all;
    uint32_t number;
    pthread_t thread;
} poetc_processor;
#endif

/* The caller's memory; its fields are the port's own. It must outlive the runs. */
typedef struct poetc_processors {
    poetc_team team;
#if defined(__unix__) && __STDC_HOSTED__
    poetc_processor others[POETC_PROCESSORS];
    pthread_mutex_t mutex; /* of a sleeping thread's look at `runs` and `ends` */
    pthread_cond_t awake;
    uint32_t started; /* threads */
    uint32_t runs;    /* asked for */
    int sleeping, ends;
    long process; /* that has the threads */
#endif
} poetc_processors;

/* sizeof(poetc_processors), for callers that cannot see the type. */
extern const uint32_t poetc_processors_bytes;

/* Set up a team for the program of `queues`, which must be that of `runtime`, and start the other processors. Returns
 * POETC_EINVAL as poetc_queues_init does, or POETC_EIO: one does not start. */
int poetc_processors_begin(poetc_processors *processors, poetc_runtime *runtime, const poetc_queues *queues);

/* One run, as poetc_run: on all processors where the runtime has the program of the queues, else on this one. */
int poetc_processors_run(void *processors, poetc_runtime *runtime);

/* The other processors stop, between two runs. */
void poetc_processors_end(poetc_processors *processors);

#ifdef __cplusplus
}
#endif
#endif
