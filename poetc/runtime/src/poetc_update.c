/* Quantised updates. See poetc_update.h. */
#include "poetc_update.h"

#include "operators/poetc_philox.h"
#include "poetc_data.h"

/* The random numbers have 24 bits, as many as a float holds. */
#define UNIT 16777216.0f

static uint32_t random_word(const poetc_update *update, uint32_t index)
{
    uint32_t left = index / 2u, right = update->round;

    poetc_philox(&left, &right, update->seed);
    return index % 2u == 0u ? left : right;
}

int poetc_update_quantize(const poetc_update *update, const float *after, const float *before, uint32_t first,
                          uint32_t count, uint32_t *words)
{
    const float clip = update->clip, scale = (float)update->range / (2.0f * clip);
    const int32_t half = (int32_t)(update->range / 2u);
    uint32_t i;

    if (!(clip > 0.0f) || !poetc_is_finite(scale) || !poetc_is_finite(update->factor) || update->range < 2u ||
        update->range % 2u != 0u || update->range > POETC_UPDATE_RANGE)
        return POETC_EINVAL;
    for (i = 0; i < count; i++) {
        float x = before != NULL ? after[i] - before[i] : after[i], part;
        int32_t whole;
        int is_up;

        x *= update->factor;
        if (!poetc_is_finite(x))
            return POETC_ENUMBER;
        x = x < -clip ? -clip : x > clip ? clip : x;
        x *= scale;
        whole = (int32_t)x;
        if ((float)whole > x)
            whole--;
        part = x - (float)whole; /* exact: 0 to 1 */
        is_up = update->is_stochastic ? (float)(random_word(update, first + i) >> 8) < part * UNIT : part >= 0.5f;
        whole += is_up;
        whole = whole < -half ? -half : whole > half ? half : whole;
        words[i] = (uint32_t)(whole + half);
    }
    return POETC_OK;
}

void poetc_update_add(uint32_t *words, const uint32_t *terms, uint32_t count, uint32_t mask)
{
    uint32_t i;

    for (i = 0; i < count; i++)
        words[i] = (words[i] + terms[i]) & mask;
}
