/* Dropout by counter-based random numbers (poetc/ops/random.py).
 *
 * Layout: dense arrays; an element's random word depends on its number, the step and the seed only.
 * Order of sums: nothing is added here. */
#include "poetc_kernel.h"

#define ROUNDS 10

/* Philox2x32 (Salmon et al. 2011): two words from the counters and the key. */
static void philox(uint32_t *left, uint32_t *right, uint32_t key)
{
    int i;
    for (i = 0; i < ROUNDS; i++) {
        uint64_t product = (uint64_t)*left * 0xd256d193u;
        *left = (uint32_t)(product >> 32) ^ key ^ *right;
        *right = (uint32_t)product;
        key += 0x9e3779b9u;
    }
}

/* ints: elements, seed, threshold; p = 1 / (1 - ratio). The gradient is the same function of the gradient. */
int poetc_op_dropout(const poetc_call *call);
int poetc_op_dropout(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    const int32_t *step = poetc_in(call, 1);
    float *y = poetc_out(call, 2), scale = call->floats[0];
    int32_t count = call->ints[0], i;
    uint32_t seed = (uint32_t)call->ints[1], threshold = (uint32_t)call->ints[2];
    for (i = 0; i < count; i += 2) {
        uint32_t left = (uint32_t)i / 2u, right = (uint32_t)*step;
        philox(&left, &right, seed);
        y[i] = left >= threshold ? x[i] * scale : 0.0f;
        if (i + 1 < count)
            y[i + 1] = right >= threshold ? x[i + 1] * scale : 0.0f;
    }
    return POETC_OK;
}
