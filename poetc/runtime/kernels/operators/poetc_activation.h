/* Activation functions that other kernels take in (poetc/ops/_activations.py): y = f(x), and f' g from x or y,
 * whichever the gradient reads.
 *
 * Layout: one float, or one vector in the functions whose names end in `v`. `p` points to the activation's floats.
 * Order of sums: nothing is added here. */
#ifndef POETC_ACTIVATION_H
#define POETC_ACTIVATION_H

#include "poetc_math.h"
#include "simd/poetc_vector.h"
#include "simd/poetc_vector_math.h"

static inline float poetc_clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

#if defined(POETC_WIDE_MATH)
POETC_INLINE poetc_vector poetc_clampv(poetc_vector x, float low, float high)
{
    const poetc_vector l = POETC_SPLAT(low), h = POETC_SPLAT(high);
    return poetc_choose(x < l, l, poetc_choose(x > h, h, x));
}
#endif

/* The floats of activation F, copied from p: as far as a compiler knows, a kernel might store to those in memory. */
#define POETC_FLOATS(F, p) {F##_FLOATS > 0 ? (p)[0] : 0.0f, F##_FLOATS > 1 ? (p)[1] : 0.0f}
#define POETC_SAME_FLOATS 0
#define POETC_RELU_FLOATS 0
#define POETC_LEAKY_RELU_FLOATS 1
#define POETC_CLIP_FLOATS 2
#define POETC_HARD_SWISH_FLOATS 0
#define POETC_SILU_FLOATS 0

#define POETC_SAME(x, p) (x)
#define POETC_SAME_V(x, p) (x)

#define POETC_RELU(x, p) ((x) <= 0.0f ? 0.0f : (x)) /* a NaN stays visible */
#define POETC_RELU_GRAD(s, g, p) ((s) > 0.0f ? (g) : 0.0f)

/* p = alpha */
#define POETC_LEAKY_RELU(x, p) ((x) > 0.0f ? (x) : (x) * (p)[0])
#define POETC_LEAKY_RELU_GRAD(s, g, p) ((s) > 0.0f ? (g) : (p)[0] * (g))

/* p = min, max */
#define POETC_CLIP(x, p) poetc_clamp(x, (p)[0], (p)[1])
#define POETC_CLIP_GRAD(s, g, p) ((((s) > (p)[0]) & ((s) < (p)[1])) ? (g) : 0.0f)

#define POETC_HARD_SWISH(x, p) ((x) * poetc_clamp((x) / 6.0f + 0.5f, 0.0f, 1.0f))
#define POETC_HARD_SWISH_GRAD(s, g, p) \
    ((s) <= -3.0f ? 0.0f * (g) : (s) >= 3.0f ? (g) : ((s) / 3.0f + 0.5f) * (g))

#define POETC_SILU_SLOPE(F, x, s) ((s) * F(x, 1.0f - (s), 1.0f))

static inline float poetc_silu_slope(float x)
{
    const float s = poetc_sigmoidf(x);
    return POETC_SILU_SLOPE(POETC_FMA, x, s);
}

#if defined(POETC_WIDE_MATH)
POETC_INLINE poetc_vector poetc_silu_slopev(poetc_vector x)
{
    const poetc_vector s = poetc_sigmoidv(x);
    return POETC_SILU_SLOPE(POETC_FMAV, x, s);
}
#endif

#define POETC_SILU(x, p) ((x) * poetc_sigmoidf(x))
#define POETC_SILU_GRAD(s, g, p) (poetc_silu_slope(s) * (g))

#if defined(POETC_HELIUM)
/* A vector's functions: lanes are chosen by predicates; a division or an exponential goes lane by lane. Of a NaN "less"
 * and "less or equal" are true here, unlike "greater". */
#define POETC_RELU_V(x, p) vpselq_f32(vdupq_n_f32(0.0f), x, vcmpgeq_f32(vdupq_n_f32(0.0f), x))
#define POETC_RELU_GRAD_V(s, g, p) vpselq_f32(g, vdupq_n_f32(0.0f), vcmpgtq_n_f32(s, 0.0f))
#define POETC_LEAKY_RELU_V(x, p) vpselq_f32(x, vmulq_n_f32(x, (p)[0]), vcmpgtq_n_f32(x, 0.0f))
#define POETC_LEAKY_RELU_GRAD_V(s, g, p) vpselq_f32(g, vmulq_n_f32(g, (p)[0]), vcmpgtq_n_f32(s, 0.0f))
#define POETC_CLIP_V(x, p)                                                                                             \
    vpselq_f32(vdupq_n_f32((p)[0]), vpselq_f32(vdupq_n_f32((p)[1]), x, vcmpgtq_n_f32(x, (p)[1])),         \
               vcmpgtq_f32(vdupq_n_f32((p)[0]), x))
#define POETC_CLIP_GRAD_V(s, g, p)                                                                                     \
    vpselq_f32(g, vdupq_n_f32(0.0f), (mve_pred16_t)(vcmpgtq_n_f32(s, (p)[0]) & vcmpltq_n_f32(s, (p)[1])))

#define POETC_BY_LANE(name, parameters, value)                                                                         \
    static inline poetc_vector poetc_##name##_v parameters                                                             \
    {                                                                                                                  \
        float lanes[4];                                                                                                \
        int i;                                                                                                         \
        for (i = 0; i < 4; i++)                                                                                        \
            lanes[i] = value;                                                                                          \
        return poetc_vector_load(lanes);                                                                               \
    }
POETC_BY_LANE(hard_swish, (poetc_vector x), POETC_HARD_SWISH(x[i], NULL))
POETC_BY_LANE(hard_swish_grad, (poetc_vector s, poetc_vector g), POETC_HARD_SWISH_GRAD(s[i], g[i], NULL))
POETC_BY_LANE(silu, (poetc_vector x), POETC_SILU(x[i], NULL))
POETC_BY_LANE(silu_grad, (poetc_vector s, poetc_vector g), POETC_SILU_GRAD(s[i], g[i], NULL))
#define POETC_HARD_SWISH_V(x, p) poetc_hard_swish_v(x)
#define POETC_HARD_SWISH_GRAD_V(s, g, p) poetc_hard_swish_grad_v(s, g)
#define POETC_SILU_V(x, p) poetc_silu_v(x)
#define POETC_SILU_GRAD_V(s, g, p) poetc_silu_grad_v(s, g)
#else
#define POETC_ZEROS ((poetc_vector){0})
#define POETC_RELU_V(x, p) poetc_choose((x) <= 0.0f, POETC_ZEROS, x)
#define POETC_RELU_GRAD_V(s, g, p) poetc_choose((s) > 0.0f, g, POETC_ZEROS)
#define POETC_LEAKY_RELU_V(x, p) poetc_choose((x) > 0.0f, x, (x) * (p)[0])
#define POETC_LEAKY_RELU_GRAD_V(s, g, p) poetc_choose((s) > 0.0f, g, (p)[0] * (g))
#define POETC_CLIP_V(x, p) poetc_clampv(x, (p)[0], (p)[1])
#define POETC_CLIP_GRAD_V(s, g, p) poetc_choose(((s) > (p)[0]) & ((s) < (p)[1]), g, POETC_ZEROS)
#define POETC_HARD_SWISH_V(x, p) ((x) * poetc_clampv((x) / 6.0f + 0.5f, 0.0f, 1.0f))
#define POETC_HARD_SWISH_GRAD_V(s, g, p)                                                                               \
    poetc_choose((s) <= -3.0f, 0.0f * (g), poetc_choose((s) >= 3.0f, g, ((s) / 3.0f + 0.5f) * (g)))
#define POETC_SILU_V(x, p) ((x) * poetc_sigmoidv(x))
#define POETC_SILU_GRAD_V(s, g, p) (poetc_silu_slopev(s) * (g))
#endif

#endif
