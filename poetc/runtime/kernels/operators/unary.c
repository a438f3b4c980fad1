/* Element-wise mathematics of one operand and its gradients (poetc/ops/unary.py).
 *
 * Layout: dense arrays, element by element; an output may be the input of the same size.
 * Order of sums: nothing is added here. */
#include "operators/poetc_elementwise.h"

POETC_UNARY_WIDE(exp, POETC_WIDE, poetc_expf(x), poetc_expv(x))
POETC_UNARY_GRAD(exp, s *g)

POETC_UNARY(sqrt, poetc_sqrtf(x))
POETC_UNARY_GRAD(sqrt, s == 0.0f ? 0.0f : 0.5f / s * g)

POETC_UNARY(reciprocal, 1.0f / x)
POETC_UNARY_GRAD(reciprocal, -s * s * g)

POETC_UNARY(log, poetc_logf(x))
POETC_UNARY_GRAD(log, 1.0f / s * g)

static float sign(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}

POETC_UNARY(abs, poetc_fabsf(x))
POETC_UNARY_GRAD(abs, sign(s) * g)

#define TWO_OVER_SQRT_PI 1.1283792f

POETC_UNARY_WIDE(erf, POETC_WIDE, poetc_erff(x), poetc_erfv(x))
POETC_UNARY_GRAD_WIDE(erf, POETC_WIDE, TWO_OVER_SQRT_PI *poetc_expf(-s *s) * g, TWO_OVER_SQRT_PI *poetc_expv(-s *s) * g)

POETC_UNARY(sin, poetc_sinf(x))
POETC_UNARY_GRAD(sin, poetc_cosf(s) * g)

POETC_UNARY(cos, poetc_cosf(x))
POETC_UNARY_GRAD(cos, -poetc_sinf(s) * g)

POETC_UNARY(atan, poetc_atanf(x))
POETC_UNARY_GRAD(atan, 1.0f / POETC_FMA(s, s, 1.0f) * g)

/* The exponents that models are full of need no logarithm. */
static float power(float x, float exponent)
{
    if (exponent == 2.0f)
        return x * x;
    if (exponent == 1.0f)
        return x;
    if (exponent == 3.0f)
        return x * x * x;
    if (exponent == 0.5f)
        return poetc_sqrtf(x);
    if (exponent == -0.5f)
        return 1.0f / poetc_sqrtf(x);
    if (exponent == -1.0f)
        return 1.0f / x;
    if (exponent == -2.0f)
        return 1.0f / (x * x);
    return poetc_powf(x, exponent);
}

/* p = exponent */
POETC_UNARY(power, power(x, p[0]))
POETC_UNARY_GRAD(power, p[0] * power(s, p[0] - 1.0f) * g)

/* p = alpha, beta */
POETC_UNARY(affine, POETC_FMA(x, p[0], p[1]))

POETC_UNARY(neg, -x)
POETC_UNARY(sign, sign(x))
POETC_UNARY(floor, poetc_floorf(x))
POETC_UNARY(ceil, poetc_ceilf(x))
POETC_UNARY(round, poetc_roundf(x))

int poetc_op_not(const poetc_call *call);
int poetc_op_not(const poetc_call *call)
{
    const uint8_t *x = poetc_in(call, 0);
    uint8_t *y = poetc_out(call, 1);
    int32_t i;
    for (i = 0; i < call->ints[0]; i++)
        y[i] = x[i] == 0;
    return POETC_OK;
}
