/* Training within a budget that changes: several plans of one training step, and switches between them in mid-step.
 *
 * All plans of a bundle share state, inputs, constants and store. A run gives the same bits whichever plans it goes
 * through. A request for another budget takes effect at the next safe point. That is an instruction with a switch to
 * the plan that was asked for.
 */
#ifndef POETC_BUNDLE_H
#define POETC_BUNDLE_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A switch from one plan to another. Before instruction `at` of the one come `count` instructions of the bundle, from
 * `first` on. Then comes instruction `join` of the other. */
typedef struct poetc_switch {
    uint32_t first;
    uint16_t count;
    uint16_t at;
    uint16_t join;
    uint16_t absence_first; /* in the bundle's absences, whose instructions count from the transition's first */
    uint16_t absence_count;
} poetc_switch;

/* An emitted bundle: const, lives in flash. */
typedef struct poetc_bundle {
    const poetc_program *const *plans; /* the largest arena first */
    uint32_t plan_count;
    const poetc_switch *switches; /* sorted by plan, by the plan that they lead to, and by `at` */
    const uint32_t *ranges;       /* those from plan i to plan j are [i * plan_count + j] to the next, exclusive */
    const poetc_instruction *instructions; /* of all transitions */
    const poetc_absence *absences;
} poetc_bundle;

/* Called when a switch is done. `arena_bytes`: the part of the arena that is in use from now on. The rest of it belongs
 * to the caller until the next request for more is made. */
typedef void (*poetc_switched)(void *context, uint32_t arena_bytes);

/* A runtime whose budget may change. Set it up with poetc_bundle_init. */
typedef struct poetc_elastic {
    poetc_runtime runtime;
    const poetc_bundle *bundle;
    poetc_switched switched;  /* NULL: no call. Default NULL. */
    void *context;            /* handed to `switched` */
    volatile uint32_t wanted; /* the plan that was asked for last */
    uint32_t plan;            /* the plan that runs */
    uint32_t switch_count;    /* switches so far, those between two runs included */
} poetc_elastic;

/* Check the configuration, and set up the plan with the largest arena that fits in `arena_bytes`. The arena of
 * `config` must be as large as the largest plan that is ever asked for. POETC_EINVAL: `arena_bytes` is below the
 * smallest plan, and see poetc_init. */
int poetc_bundle_init(poetc_elastic *elastic, const poetc_bundle *bundle, const poetc_config *config,
                      const void *state_image, uint32_t arena_bytes);

/* Ask for the plan with the largest arena that fits in `arena_bytes`. May be called from an interrupt, a signal handler
 * or another thread; of several requests the last one counts. POETC_EINVAL: the smallest plan does not fit, and nothing
 * changes. Memory above `arena_bytes` is in use until poetc_arena_in_use says otherwise. */
int poetc_request_budget(poetc_elastic *elastic, uint32_t arena_bytes);

/* The part of the arena that is in use now, in bytes. */
uint32_t poetc_arena_in_use(const poetc_elastic *elastic);

/* Go over to the plan that was asked for, between two runs. poetc_bundle_run does so when it begins. */
void poetc_bundle_settle(poetc_elastic *elastic);

/* Run one training step, through as many plans as requests ask for. Errors are those of poetc_run, and leave state as a
 * failed step of one plan does. */
int poetc_bundle_run(poetc_elastic *elastic);

/* The smallest arena that a request may ask for, in bytes. */
uint32_t poetc_bundle_least(const poetc_bundle *bundle);

#ifdef __cplusplus
}
#endif
#endif
