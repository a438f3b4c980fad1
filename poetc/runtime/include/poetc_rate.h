/* Learning-rate schedules: the rate of every step, in the same bits as poetc.training.rates in Python. Optional.
 *
 * Formulas and names are those of that module, which follows PyTorch. Only + - * / of double precision are used, so
 * that every target and compiler gets the same bits.
 *
 *     rate = poetc_rate(POETC_MODEL_SCHEDULE, &plateau, base, session.runtime.run_count);
 *     err = poetc_session_set_learning_rate(&session, rate);          before each step
 *     poetc_rate_observe(POETC_MODEL_SCHEDULE, &plateau, validation_loss); after each epoch
 */
#ifndef POETC_RATE_H
#define POETC_RATE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum poetc_rate_kind { POETC_RATE_CONSTANT = 0, POETC_RATE_STEP = 1, POETC_RATE_COSINE = 2, POETC_RATE_PLATEAU = 3 };

typedef struct poetc_schedule {
    uint32_t kind;
    uint32_t warmup; /* steps, before the schedule proper */
    uint32_t
        steps; /* step: after how many the rate falls; cosine: the whole schedule, warm-up included, more than it */
    uint32_t patience, cooldown; /* plateau: validation losses */
    double start;                /* share of the rate at the first step of the warm-up */
    double factor;               /* step, plateau */
    double final_rate;           /* cosine: at its end; plateau: the least */
    double threshold;            /* plateau: share by which a loss must be lower to be better */
} poetc_schedule;

/* The losses that a schedule of kind plateau remembers: 16 bytes that a checkpoint may keep. */
typedef struct poetc_plateau {
    float best;
    uint32_t worse, cooling, reductions;
} poetc_plateau;

void poetc_plateau_begin(poetc_plateau *plateau);

/* One more validation loss. Nothing happens unless the kind is plateau; a NaN is no better. */
void poetc_rate_observe(const poetc_schedule *schedule, poetc_plateau *plateau, float loss);

/* The rate of step `step` (0: the first), where the optimizer's own rate is `base`. */
float poetc_rate(const poetc_schedule *schedule, const poetc_plateau *plateau, float base, uint32_t step);

#ifdef __cplusplus
}
#endif

#endif
