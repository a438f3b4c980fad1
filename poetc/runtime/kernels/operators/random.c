/* Counter-based random numbers, and dropout by them (poetc/ops/random.py).
 *
 * Layout: dense arrays; an element's random word depends on its number, the step and the seed only.
 * Order of sums: nothing is added here. */
#include "operators/poetc_philox.h"

/* ints: elements, seed, threshold, the number of the first element, which is even; p = 1 / (1 - ratio). The gradient is
 * the same function of the gradient. */
int poetc_op_dropout(const poetc_call *call);
int poetc_op_dropout(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    const int32_t *step = poetc_in(call, 1);
    float *y = poetc_out(call, 2), scale = call->floats[0];
    int32_t count = call->ints[0], i;
    uint32_t seed = (uint32_t)call->ints[1], threshold = (uint32_t)call->ints[2], begin = (uint32_t)call->ints[3];
    for (i = 0; i < count; i += 2) {
        uint32_t left = (begin + (uint32_t)i) / 2u, right = (uint32_t)*step;
        poetc_philox(&left, &right, seed);
        y[i] = left >= threshold ? x[i] * scale : 0.0f;
        if (i + 1 < count)
            y[i + 1] = right >= threshold ? x[i + 1] * scale : 0.0f;
    }
    return POETC_OK;
}

/* ints: elements, seed. The upper 23 bits of a word and a half: never 0 or 1. */
int poetc_op_random_uniform(const poetc_call *call);
int poetc_op_random_uniform(const poetc_call *call)
{
    const int32_t *step = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t count = call->ints[0], i;
    uint32_t seed = (uint32_t)call->ints[1];
    for (i = 0; i < count; i += 2) {
        uint32_t left = (uint32_t)i / 2u, right = (uint32_t)*step;
        poetc_philox(&left, &right, seed);
        y[i] = ((float)(left >> 9) + 0.5f) * 0x1p-23f;
        if (i + 1 < count)
            y[i + 1] = ((float)(right >> 9) + 0.5f) * 0x1p-23f;
    }
    return POETC_OK;
}
