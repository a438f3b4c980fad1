/* A bundle's budget follows the memory that Linux leaves to a process.
 *
 * Between two instructions of a plan the files of the process's control group (cgroup v2) are read, every
 * `interval_ms`: `memory.high`, `memory.current`, `memory.stat` and `memory.pressure`. The plan with the largest arena
 * is asked for that keeps the group below `memory.high`. Where processes stall for want of memory, it is the next
 * smaller one. After a switch the pages above the new arena go back to the system (madvise).
 *
 *     err = poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config);
 *     err = err ? err : poetc_pressure_begin(&pressure, &session, POETC_MODEL_BUNDLE, NULL);
 *     ... poetc_session_step(&session, inputs, &loss) ...
 */
#ifndef POETC_PRESSURE_H
#define POETC_PRESSURE_H

#include "poetc_bundle.h"
#include "poetc_session.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { POETC_CGROUP_BYTES = 1024 };

typedef struct poetc_pressure {
    poetc_elastic elastic; /* to be read */

    /* The caller may change these after poetc_pressure_begin. */
    uint32_t interval_ms;    /* Default 100. */
    uint32_t calm_ms;        /* so long without a stall before the arena grows. Default 1000. */
    poetc_switched switched; /* NULL: no call. Called after pages were given back. */
    void *context;           /* handed to `switched` */

    uint64_t given_back_bytes; /* in all, whole pages; to be read */

    /* Its own. */
    poetc_observer observer; /* the configuration's, called as before */
    void *observer_context;
    uint8_t *arena;
    uint32_t arena_bytes;
    uint64_t looked_us, stalled_us, calm_since_us;
    int is_own; /* the group of this process */
    char group[POETC_CGROUP_BYTES];
} poetc_pressure;

/* sizeof(poetc_pressure), for callers that cannot see the type. */
extern const uint32_t poetc_pressure_bytes;

/* Let the training steps of an initialised session follow the memory of a control group. To be called before state is
 * loaded: it starts from the initial one. `group` is a directory; NULL: that of this process. POETC_ENOENT: there is no
 * such group, or it tells nothing of memory. POETC_EINVAL: the path is too long, and see poetc_bundle_init. */
int poetc_pressure_begin(poetc_pressure *pressure, poetc_session *session, const poetc_bundle *bundle,
                         const char *group);

/* Look now, and ask for a plan. Returns 0, or POETC_ENOENT: the group tells nothing. */
int poetc_pressure_look(poetc_pressure *pressure);

#ifdef __cplusplus
}
#endif
#endif
