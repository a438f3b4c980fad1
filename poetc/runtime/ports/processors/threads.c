/* Processors of a POSIX system: a thread each. Between two runs they sleep. */
#define _POSIX_C_SOURCE 200809L
#include "poetc_processors.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#define LOOKS 400 /* for the next run, before a thread sleeps */

const uint32_t poetc_processors_bytes = sizeof(poetc_processors);

static uint32_t runs_of(const poetc_processors *processors)
{
    return __atomic_load_n(&processors->runs, __ATOMIC_SEQ_CST);
}

/* Until there is another run than the first `generation` ones. 0: there will be none. */
static int wait_for_run(poetc_processors *processors, uint32_t generation)
{
    int i;

    for (i = 0; i < LOOKS && runs_of(processors) == generation; i++)
        sched_yield();
    if (runs_of(processors) == generation) {
        pthread_mutex_lock(&processors->mutex);
        __atomic_add_fetch(&processors->sleeping, 1, __ATOMIC_SEQ_CST);
        while (runs_of(processors) == generation)
            pthread_cond_wait(&processors->awake, &processors->mutex);
        __atomic_sub_fetch(&processors->sleeping, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&processors->mutex);
    }
    return !__atomic_load_n(&processors->ends, __ATOMIC_ACQUIRE);
}

static void *serve(void *argument)
{
    const poetc_processor *own = argument;
    uint32_t generation = 0;

    while (wait_for_run(own->all, generation))
        generation = poetc_queues_serve(&own->all->team, own->number, generation);
    return NULL;
}

static void ask_for_run(poetc_processors *processors)
{
    __atomic_add_fetch(&processors->runs, 1u, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&processors->sleeping, __ATOMIC_SEQ_CST) > 0) {
        pthread_mutex_lock(&processors->mutex);
        pthread_cond_broadcast(&processors->awake);
        pthread_mutex_unlock(&processors->mutex);
    }
}

int poetc_processors_begin(poetc_processors *processors, poetc_runtime *runtime, const poetc_queues *queues)
{
    int err;

    memset(processors, 0, sizeof *processors);
    err = poetc_queues_init(&processors->team, runtime, queues);
    if (err)
        return err;
    if (pthread_mutex_init(&processors->mutex, NULL) || pthread_cond_init(&processors->awake, NULL))
        return POETC_EIO;
    processors->process = (long)getpid();
    while (processors->started + 1u < queues->processor_count) {
        poetc_processor *other = &processors->others[processors->started];

        other->all = processors;
        other->number = processors->started + 1u;
        if (pthread_create(&other->thread, NULL, serve, other)) {
            poetc_processors_end(processors);
            return POETC_EIO;
        }
        processors->started++;
    }
    return POETC_OK;
}

/* Threads do not survive a fork: the child works with one processor, which gives the same bits. */
int poetc_processors_run(void *context, poetc_runtime *runtime)
{
    poetc_processors *processors = context;

    if (processors->started == 0 || runtime->program != processors->team.queues->program ||
        processors->process != (long)getpid())
        return poetc_run(runtime);
    ask_for_run(processors);
    return poetc_queues_run(&processors->team);
}

void poetc_processors_end(poetc_processors *processors)
{
    if (processors->process != (long)getpid())
        return;
    __atomic_store_n(&processors->ends, 1, __ATOMIC_RELEASE);
    ask_for_run(processors);
    while (processors->started > 0)
        pthread_join(processors->others[--processors->started].thread, NULL);
    processors->process = 0;
}
