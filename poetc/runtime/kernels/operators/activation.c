/* Activation functions and their gradients (poetc/ops/activation.py): y = f(x), gx = f'(x or y) gy.
 *
 * Layout: dense arrays, element by element; an output may be the input of the same size.
 * Order of sums: no sum goes over elements; a polynomial is evaluated by Horner's rule. */
#include "operators/poetc_activation.h"
#include "operators/poetc_elementwise.h"

POETC_UNARY_WIDE(relu, POETC_CHOICE, POETC_RELU(x, p), POETC_RELU_V(x, p))
POETC_UNARY_GRAD_WIDE(relu, POETC_CHOICE, POETC_RELU_GRAD(s, g, p), POETC_RELU_GRAD_V(s, g, p))

POETC_UNARY_WIDE(leaky_relu, POETC_CHOICE, POETC_LEAKY_RELU(x, p), POETC_LEAKY_RELU_V(x, p))
POETC_UNARY_GRAD_WIDE(leaky_relu, POETC_CHOICE, POETC_LEAKY_RELU_GRAD(s, g, p), POETC_LEAKY_RELU_GRAD_V(s, g, p))

/* p = alpha */
POETC_UNARY(elu, x > 0.0f ? x : p[0] * poetc_expm1f(x))
POETC_UNARY_GRAD(elu, s > 0.0f ? g : (s + p[0]) * g)

/* p = alpha, gamma */
POETC_UNARY(selu, p[1] * (x > 0.0f ? x : p[0] * poetc_expm1f(x)))
POETC_UNARY_GRAD(selu, (s > 0.0f ? p[1] : POETC_FMA(p[1], p[0], s)) * g)

/* p = alpha */
POETC_UNARY(celu, x > 0.0f ? x : p[0] * poetc_expm1f(x / p[0]))
POETC_UNARY_GRAD(celu, s > 0.0f ? g : (s + p[0]) / p[0] * g)

POETC_UNARY_WIDE(clip, POETC_CHOICE, POETC_CLIP(x, p), POETC_CLIP_V(x, p))
POETC_UNARY_GRAD_WIDE(clip, POETC_CHOICE, POETC_CLIP_GRAD(s, g, p), POETC_CLIP_GRAD_V(s, g, p))

/* p = alpha, beta */
POETC_UNARY(hard_sigmoid, poetc_clamp(POETC_FMA(x, p[0], p[1]), 0.0f, 1.0f))
POETC_UNARY_GRAD(hard_sigmoid, s > 0.0f && s < 1.0f ? p[0] * g : 0.0f)

POETC_UNARY_WIDE(sigmoid, POETC_WIDE, poetc_sigmoidf(x), poetc_sigmoidv(x))
POETC_UNARY_GRAD(sigmoid, s * (1.0f - s) * g)

POETC_UNARY_WIDE(tanh, POETC_WIDE, poetc_tanhf(x), poetc_tanhv(x))
POETC_UNARY_GRAD(tanh, (1.0f - s) * (1.0f + s) * g)

static float softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + poetc_log1pf(poetc_expf(-poetc_fabsf(x)));
}

POETC_UNARY(softplus, softplus(x))
POETC_UNARY_GRAD(softplus, -poetc_expm1f(-s) * g)

POETC_UNARY(softsign, x / (1.0f + poetc_fabsf(x)))
POETC_UNARY_GRAD(softsign, (1.0f - poetc_fabsf(s)) * (1.0f - poetc_fabsf(s)) * g)

POETC_UNARY_WIDE(silu, POETC_WIDE, POETC_SILU(x, p), POETC_SILU_V(x, p))
POETC_UNARY_GRAD_WIDE(silu, POETC_WIDE, POETC_SILU_GRAD(s, g, p), POETC_SILU_GRAD_V(s, g, p))

POETC_UNARY_WIDE(hard_swish, POETC_WIDE, POETC_HARD_SWISH(x, p), POETC_HARD_SWISH_V(x, p))
POETC_UNARY_GRAD_WIDE(hard_swish, POETC_WIDE, POETC_HARD_SWISH_GRAD(s, g, p), POETC_HARD_SWISH_GRAD_V(s, g, p))

static float mish_slope(float x)
{
    float t = poetc_tanhf(softplus(x));
    return POETC_FMA(x * (1.0f - t) * (1.0f + t), poetc_sigmoidf(x), t);
}

POETC_UNARY(mish, x *poetc_tanhf(softplus(x)))
POETC_UNARY_GRAD(mish, mish_slope(s) * g)

#define SQRT_2_OVER_PI 0.79788456f
#define SQRT_1_OVER_2_PI 0.39894228f
#define CUBIC 0.044715f

/* erfcx(a / sqrt 2) / 2, of floats or vectors: the share of the normal distribution beyond a is this times exp(-a * a /
 * 2). Degree 11 by weighted least squares (Lawson) for the least error of the product, 1.7e-8. Beyond 5, exp makes the
 * error small. */
#define MILLS(F, a)                                                                                                    \
    F(F(F(F(F(F(F(F(F(F(F(-0x1.591aa8p-22f, a, 0x1.063dd2p-17f), a, -0x1.6700e8p-14f), a, 0x1.295bb6p-11f),            \
    a, -0x1.54af98p-9f), a, 0x1.278732p-7f), a, -0x1.a1951cp-6f), a, 0x1.fb5c2ep-5f), a, -0x1.0ffe4cp-3f),             \
    a, 0x1.fff1f2p-3f), a, -0x1.9883e6p-2f), a, 0.5f)
#define LARGEST 13.27f /* where the power below is 0 */

/* exp(-a * a / 2) of 0 <= a <= LARGEST, as poetc_expf without its cases. It is 1 + r + r * r * EXP_TAIL(r) times a
 * power of two, or 0 instead of 2^-127. */
#define SHIFTED(F, z) F(z, 0x1.715476p+0f, 12582912.0f) /* its last bits are the exponent */
#define EXP_REST(F, z, whole) F(-(whole), 0x1.7f7d1cp-20f, F(-(whole), 0x1.62e4p-1f, z))
#define EXP_TAIL(F, r) F(F(F(F(0x1.6d649ap-10f, r, 0x1.1241d0p-7f), r, 0x1.5554d4p-5f), r, 0x1.555486p-3f), r, 0.5f)

POETC_INLINE float bell_of(float a)
{
    const float z = -0.5f * a * a, shifted = SHIFTED(POETC_FMA, z);
    const float r = EXP_REST(POETC_FMA, z, shifted - 12582912.0f);
    return (1.0f + POETC_FMA(r * r, EXP_TAIL(POETC_FMA, r), r)) *
           poetc_from_bits((poetc_bits(shifted) << 23) + 0x3f800000u);
}

/* The normal distribution up to x, of 1e-7 absolute, and *bell = exp(-x * x / 2). A factor of x needs no case for NaN.
 */
POETC_INLINE float normal(float x, float *bell)
{
    const float size = poetc_fabsf(x), a = size < LARGEST ? size : LARGEST;
    float beyond;
    *bell = bell_of(a);
    beyond = *bell * MILLS(POETC_FMA, a);
    return x < 0.0f ? beyond : 1.0f - beyond;
}

POETC_INLINE float gelu_slope(float x)
{
    float bell, share = normal(x, &bell);
    return POETC_FMA(x, bell * SQRT_1_OVER_2_PI, share);
}

POETC_INLINE float gelu(float x)
{
    float bell;
    return x * normal(x, &bell);
}

#if defined(POETC_WIDE_MATH)
POETC_INLINE poetc_vector normals(poetc_vector x, poetc_vector *bell)
{
    const poetc_vector size = poetc_absv(x), largest = POETC_SPLAT(LARGEST),
                       a = poetc_choose_less(size, largest, size, largest);
    const poetc_vector z = -0.5f * a * a, shifted = SHIFTED(POETC_FMAV, z);
    const poetc_vector r = EXP_REST(POETC_FMAV, z, shifted - 12582912.0f);
    poetc_vector beyond;
    *bell = (1.0f + POETC_FMAV(r * r, EXP_TAIL(POETC_FMAV, r), r)) *
            (poetc_vector)(((poetc_lanes)shifted << 23) + 0x3f800000);
    beyond = *bell * MILLS(POETC_FMAV, a);
    return poetc_choose_less(x, POETC_SPLAT(0.0f), beyond, 1.0f - beyond);
}

POETC_INLINE poetc_vector gelu_slopes(poetc_vector x)
{
    poetc_vector bell, share = normals(x, &bell);
    return POETC_FMAV(x, bell * SQRT_1_OVER_2_PI, share);
}

POETC_INLINE poetc_vector gelus(poetc_vector x)
{
    poetc_vector bell;
    return x * normals(x, &bell);
}
#endif

POETC_UNARY_WIDE(gelu, POETC_CONSTANTS, gelu(x), gelus(x))
POETC_UNARY_GRAD_WIDE(gelu, POETC_CONSTANTS, gelu_slope(s) * g, gelu_slopes(s) * g)

#define GELU_TANH(F, x, f) poetc_tanh##f(SQRT_2_OVER_PI * F(CUBIC * (x) * (x), x, x))
#define GELU_TANH_SLOPE(F, x, t)                                                                                       \
    F(0.5f * (x) * (1.0f - (t)) * (1.0f + (t)) * SQRT_2_OVER_PI, F(3.0f * CUBIC * (x), x, 1.0f), 0.5f * (1.0f + (t)))

static float gelu_tanh_slope(float x)
{
    const float t = GELU_TANH(POETC_FMA, x, f);
    return GELU_TANH_SLOPE(POETC_FMA, x, t);
}

#if defined(POETC_WIDE_MATH)
static inline poetc_vector gelu_tanh_slopes(poetc_vector x)
{
    const poetc_vector t = GELU_TANH(POETC_FMAV, x, v);
    return GELU_TANH_SLOPE(POETC_FMAV, x, t);
}
#endif

POETC_UNARY_WIDE(gelu_tanh, POETC_WIDE, 0.5f * x * (1.0f + GELU_TANH(POETC_FMA, x, f)),
                 0.5f * x * (1.0f + GELU_TANH(POETC_FMAV, x, v)))
POETC_UNARY_GRAD_WIDE(gelu_tanh, POETC_WIDE, gelu_tanh_slope(s) * g, gelu_tanh_slopes(s) * g)
