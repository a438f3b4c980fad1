/* Activation functions and their gradients (poetc/ops/activation.py). */
#include "poetc_activation.h"
#include "poetc_elementwise.h"

POETC_UNARY_WIDE(relu, POETC_CHOICE, POETC_RELU(x, p), POETC_RELU_V(x, p))
POETC_UNARY_GRAD_WIDE(relu, POETC_CHOICE, POETC_RELU_GRAD(s, g, p), POETC_RELU_GRAD_V(s, g, p))

POETC_UNARY_WIDE(leaky_relu, POETC_CHOICE, POETC_LEAKY_RELU(x, p), POETC_LEAKY_RELU_V(x, p))
POETC_UNARY_GRAD_WIDE(leaky_relu, POETC_CHOICE, POETC_LEAKY_RELU_GRAD(s, g, p), POETC_LEAKY_RELU_GRAD_V(s, g, p))

/* p = alpha */
POETC_UNARY(elu, x > 0.0f ? x : p[0] * poetc_expm1f(x))
POETC_UNARY_GRAD(elu, s > 0.0f ? g : (s + p[0]) * g)

/* p = alpha, gamma */
POETC_UNARY(selu, p[1] * (x > 0.0f ? x : p[0] * poetc_expm1f(x)))
POETC_UNARY_GRAD(selu, (s > 0.0f ? p[1] : s + p[1] * p[0]) * g)

/* p = alpha */
POETC_UNARY(celu, x > 0.0f ? x : p[0] * poetc_expm1f(x / p[0]))
POETC_UNARY_GRAD(celu, s > 0.0f ? g : (s + p[0]) / p[0] * g)

POETC_UNARY_WIDE(clip, POETC_CHOICE, POETC_CLIP(x, p), POETC_CLIP_V(x, p))
POETC_UNARY_GRAD_WIDE(clip, POETC_CHOICE, POETC_CLIP_GRAD(s, g, p), POETC_CLIP_GRAD_V(s, g, p))

/* p = alpha, beta */
POETC_UNARY(hard_sigmoid, poetc_clamp(x * p[0] + p[1], 0.0f, 1.0f))
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
    return t + x * (1.0f - t) * (1.0f + t) * poetc_sigmoidf(x);
}

POETC_UNARY(mish, x * poetc_tanhf(softplus(x)))
POETC_UNARY_GRAD(mish, mish_slope(s) * g)

#define SQRT_HALF 0.70710678f
#define SQRT_2_OVER_PI 0.79788456f
#define SQRT_1_OVER_2_PI 0.39894228f
#define CUBIC 0.044715f

/* `f` or `v`: of a float or of vectors. */
#define GELU(x, f) (0.5f * (x) * (1.0f + poetc_erf##f((x) * SQRT_HALF)))
#define GELU_SLOPE(x, f)                                                                                               \
    (0.5f * (1.0f + poetc_erf##f((x) * SQRT_HALF)) + (x) * poetc_exp##f(-0.5f * (x) * (x)) * SQRT_1_OVER_2_PI)

POETC_UNARY_WIDE(gelu, POETC_WIDE, GELU(x, f), GELU(x, v))
POETC_UNARY_GRAD_WIDE(gelu, POETC_WIDE, GELU_SLOPE(s, f) * g, GELU_SLOPE(s, v) * g)

#define GELU_TANH(x, f) poetc_tanh##f(SQRT_2_OVER_PI * ((x) + CUBIC * (x) * (x) * (x)))
#define GELU_TANH_SLOPE(x, t)                                                                                          \
    (0.5f * (1.0f + (t)) +                                                                                             \
     0.5f * (x) * (1.0f - (t)) * (1.0f + (t)) * SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * (x) * (x)))

static float gelu_tanh_slope(float x)
{
    const float t = GELU_TANH(x, f);
    return GELU_TANH_SLOPE(x, t);
}

#if defined(POETC_WIDE_MATH)
static inline poetc_vector gelu_tanh_slopes(poetc_vector x)
{
    const poetc_vector t = GELU_TANH(x, v);
    return GELU_TANH_SLOPE(x, t);
}
#endif

POETC_UNARY_WIDE(gelu_tanh, POETC_WIDE, 0.5f * x * (1.0f + GELU_TANH(x, f)), 0.5f * x * (1.0f + GELU_TANH(x, v)))
POETC_UNARY_GRAD_WIDE(gelu_tanh, POETC_WIDE, gelu_tanh_slope(s) * g, gelu_tanh_slopes(s) * g)
