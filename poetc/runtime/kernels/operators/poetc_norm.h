/* The batch norm and the activation before a convolution, made again where the gradient of its weight reads pixels
 * (ConvGradWeight in poetc/ops/convolution.py).
 *
 * Layout: one pixel or one vector of pixels of a channel at a time, with the channel's centre, factor and shift.
 * Order of sums: the operations of batch_norm.c and batch_norm_activation.c in their order, so the bits are those of
 * the forward pass. */
#ifndef POETC_NORM_H
#define POETC_NORM_H

#include "operators/poetc_activation.h"
#include "poetc_kernel.h"

#if POETC_LANES == 16
#include <immintrin.h>
#endif

typedef struct {
    const float *mean, *var, *scale, *bias;
    const float *floats; /* epsilon, then those of the activation */
    int32_t activation;  /* 1 + its number among NORM_ACTIVATIONS */
} poetc_norm;

/* The numbers that a channel's elements have in common: y = (x - centre) * factor + shift. */
typedef struct {
    float centre, factor, shift, rstd;
} poetc_channel;

/* Its tensors are the operands from number `first` on. */
static inline poetc_norm poetc_norm_of(const poetc_call *call, unsigned first)
{
    poetc_norm n;
    n.mean = poetc_in(call, first), n.var = poetc_in(call, first + 1);
    n.scale = poetc_in(call, first + 2), n.bias = poetc_in(call, first + 3);
    n.floats = call->floats, n.activation = call->ints[16];
    return n;
}

static inline poetc_channel poetc_channel_of(const poetc_norm *n, int32_t c)
{
    poetc_channel t;
    t.centre = n->mean[c], t.shift = n->bias[c];
    t.rstd = 1.0f / poetc_sqrtf(n->var[c] + n->floats[0]);
    t.factor = n->scale[c] * t.rstd;
    return t;
}

/* A plane, element by element, in vectors and the rest in floats: `normal` is the element i of the batch norm, to be
 * used. */
#define POETC_ROW(result_of_vector, result_of_float)                                                                   \
    do {                                                                                                               \
        int32_t four = 0, i;                                                                                           \
        POETC_FOURS_OF_ROW(result_of_float)                                                                            \
        i = four;                                                                                                      \
        POETC_WIDE_ROW(result_of_vector)                                                                               \
        for (; i < pixels; i++) {                                                                                      \
            const float normal = POETC_FMA(x[i] - t.centre, t.factor, t.shift);                                               \
            result_of_float;                                                                                           \
        }                                                                                                              \
    } while (0)

#if POETC_LANES > 1
#define POETC_WIDE_ROW(result_of_vector)                                                                               \
    for (; i + POETC_LANES <= pixels; i += POETC_LANES) {                                                              \
        const poetc_vector normal =                                                                                    \
            POETC_FMAV(poetc_vector_load(x + i) - t.centre, t.factor, t.shift);                        \
        result_of_vector;                                                                                              \
    }
#else
#define POETC_WIDE_ROW(result_of_vector)
#endif
#if POETC_FPU_M
#define POETC_FOURS_OF_ROW(result_of_float)                                                                            \
    for (; four + 4 <= pixels; four += 4) {                                                                            \
        int32_t lane;                                                                                                  \
        POETC_UNROLL_4                                                                                                 \
        for (lane = 0; lane < 4; lane++) {                                                                             \
            const int32_t i = four + lane;                                                                             \
            const float normal = POETC_FMA(x[i] - t.centre, t.factor, t.shift);                                               \
            result_of_float;                                                                                           \
        }                                                                                                              \
    }
#else
#define POETC_FOURS_OF_ROW(result_of_float)
#endif

/* EACH(F) for the activation F; `number`: as in call->ints[16], not 0. */
#define POETC_FOR_ACTIVATION(number, EACH)                                                                             \
    switch (number) {                                                                                                  \
    case 2: EACH(POETC_RELU); break;                                                                                   \
    case 3: EACH(POETC_LEAKY_RELU); break;                                                                             \
    case 4: EACH(POETC_CLIP); break;                                                                                   \
    case 5: EACH(POETC_HARD_SWISH); break;                                                                             \
    default: EACH(POETC_SAME); break;                                                                                  \
    }

/* Rows of `pixels` pixels of a channel, into rows `step` floats apart. `p`: the activation's floats. */
static inline void poetc_normalize_rows(poetc_channel t, int32_t activation, const float *p, const float *x,
                                        int32_t x_step, float *to, int32_t step, int32_t rows, int32_t pixels)
{
    (void)p;
#if POETC_LANES == 16
#define EACH(F)                                                                                                        \
    for (; rows > 0; rows--, x += x_step, to += step) {                                                                \
        int32_t i;                                                                                                     \
        for (i = 0; i < pixels; i += 16) {                                                                             \
            const __mmask16 lanes = (__mmask16)(pixels - i < 16 ? (1u << (pixels - i)) - 1u : 0xffffu);                \
            const poetc_vector from = (poetc_vector)_mm512_maskz_loadu_ps(lanes, x + i);                               \
            const poetc_vector normal =                                                                                \
                POETC_FMAV(from - t.centre, t.factor, t.shift);                                        \
            _mm512_mask_storeu_ps(to + i, lanes, (__m512)F##_V(normal, p));                                            \
        }                                                                                                              \
    }
#else
#define EACH(F)                                                                                                        \
    {                                                                                                                  \
        const float q[] = POETC_FLOATS(F, p);                                                                          \
        (void)q;                                                                                                       \
        for (; rows > 0; rows--, x += x_step, to += step)                                                              \
            POETC_ROW(poetc_vector_store(to + i, F##_V(normal, q)), to[i] = F(normal, q));                             \
    }
#endif
    POETC_FOR_ACTIVATION(activation, EACH)
#undef EACH
}

/* The same, for a pointer. */
typedef void (*poetc_row_function)(poetc_channel t, int32_t activation, const float *p, const float *x, int32_t x_step,
                                   float *to, int32_t step, int32_t rows, int32_t pixels);

#endif
