/* Activation functions and their gradients (poetc/ops/activation.py). */
#include "poetc_elementwise.h"

POETC_UNARY(relu, x <= 0.0f ? 0.0f : x) /* a NaN stays visible */
POETC_UNARY_GRAD(relu, s > 0.0f ? g : 0.0f)

/* p = alpha */
POETC_UNARY(leaky_relu, x > 0.0f ? x : x * p[0])
POETC_UNARY_GRAD(leaky_relu, s > 0.0f ? g : p[0] * g)

/* p = alpha */
POETC_UNARY(elu, x > 0.0f ? x : p[0] * poetc_expm1f(x))
POETC_UNARY_GRAD(elu, s > 0.0f ? g : (s + p[0]) * g)

/* p = alpha, gamma */
POETC_UNARY(selu, p[1] * (x > 0.0f ? x : p[0] * poetc_expm1f(x)))
POETC_UNARY_GRAD(selu, (s > 0.0f ? p[1] : s + p[1] * p[0]) * g)

/* p = alpha */
POETC_UNARY(celu, x > 0.0f ? x : p[0] * poetc_expm1f(x / p[0]))
POETC_UNARY_GRAD(celu, s > 0.0f ? g : (s + p[0]) / p[0] * g)

/* p = min, max */
POETC_UNARY(clip, poetc_clamp(x, p[0], p[1]))
POETC_UNARY_GRAD(clip, (s > p[0]) & (s < p[1]) ? g : 0.0f)

/* p = alpha, beta */
POETC_UNARY(hard_sigmoid, poetc_clamp(x * p[0] + p[1], 0.0f, 1.0f))
POETC_UNARY_GRAD(hard_sigmoid, s > 0.0f && s < 1.0f ? p[0] * g : 0.0f)

POETC_UNARY(sigmoid, poetc_sigmoidf(x))
POETC_UNARY_GRAD(sigmoid, s * (1.0f - s) * g)

POETC_UNARY(tanh, poetc_tanhf(x))
POETC_UNARY_GRAD(tanh, (1.0f - s) * (1.0f + s) * g)

static float softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + poetc_log1pf(poetc_expf(-poetc_fabsf(x)));
}

POETC_UNARY(softplus, softplus(x))
POETC_UNARY_GRAD(softplus, -poetc_expm1f(-s) * g)

POETC_UNARY(softsign, x / (1.0f + poetc_fabsf(x)))
POETC_UNARY_GRAD(softsign, (1.0f - poetc_fabsf(s)) * (1.0f - poetc_fabsf(s)) * g)

static float silu_slope(float x)
{
    float s = poetc_sigmoidf(x);
    return s * (1.0f + x * (1.0f - s));
}

POETC_UNARY(silu, x * poetc_sigmoidf(x))
POETC_UNARY_GRAD(silu, silu_slope(s) * g)

POETC_UNARY(hard_swish, x * poetc_clamp(x / 6.0f + 0.5f, 0.0f, 1.0f))
POETC_UNARY_GRAD(hard_swish, s <= -3.0f ? 0.0f * g : s >= 3.0f ? g : (s / 3.0f + 0.5f) * g)

static float mish_slope(float x)
{
    float t = poetc_tanhf(softplus(x));
    return t + x * (1.0f - t) * (1.0f + t) * poetc_sigmoidf(x);
}

POETC_UNARY(mish, x * poetc_tanhf(softplus(x)))
POETC_UNARY_GRAD(mish, mish_slope(s) * g)

#define SQRT_HALF 0.70710678f
#define SQRT_2_OVER_PI 0.79788456f
#define SQRT_1_OVER_2_PI 0.39894228f
#define CUBIC 0.044715f

static float gelu_slope(float x)
{
    return 0.5f * (1.0f + poetc_erff(x * SQRT_HALF)) + x * poetc_expf(-0.5f * x * x) * SQRT_1_OVER_2_PI;
}

POETC_UNARY(gelu, 0.5f * x * (1.0f + poetc_erff(x * SQRT_HALF)))
POETC_UNARY_GRAD(gelu, gelu_slope(s) * g)

static float gelu_tanh(float x)
{
    return poetc_tanhf(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
}

static float gelu_tanh_slope(float x)
{
    float t = gelu_tanh(x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t) * (1.0f + t) * SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
}

POETC_UNARY(gelu_tanh, 0.5f * x * (1.0f + gelu_tanh(x)))
POETC_UNARY_GRAD(gelu_tanh, gelu_tanh_slope(s) * g)
