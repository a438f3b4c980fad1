/* Element-wise kernels: y = f(x) and gx = f'(saved) gy over ints[0] elements. Output may be an input. */
#ifndef POETC_ELEMENTWISE_H
#define POETC_ELEMENTWISE_H

#include "poetc_kernel.h"
#include "poetc_math.h"

/* `expression` is in x, the element, and p, the kernel's floats. */
#define POETC_UNARY(name, expression)                                                                                  \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const float *input = poetc_in(call, 0), *p = call->floats;                                                     \
        float *output = poetc_out(call, 1);                                                                            \
        int32_t i, count = call->ints[0];                                                                              \
        (void)p;                                                                                                       \
        for (i = 0; i < count; i++) {                                                                                  \
            float x = input[i];                                                                                        \
            output[i] = (expression);                                                                                  \
        }                                                                                                              \
        return POETC_OK;                                                                                               \
    }

/* `expression` is in s, the saved element, g, the gradient that arrives, and p. */
#define POETC_UNARY_GRAD(name, expression)                                                                             \
    int poetc_op_##name##_grad(const poetc_call *call);                                                                \
    int poetc_op_##name##_grad(const poetc_call *call)                                                                 \
    {                                                                                                                  \
        const float *saved = poetc_in(call, 0), *gradient = poetc_in(call, 1), *p = call->floats;                      \
        float *output = poetc_out(call, 2);                                                                            \
        int32_t i, count = call->ints[0];                                                                              \
        (void)p;                                                                                                       \
        for (i = 0; i < count; i++) {                                                                                  \
            float s = saved[i], g = gradient[i];                                                                       \
            output[i] = (expression);                                                                                  \
        }                                                                                                              \
        return POETC_OK;                                                                                               \
    }

static inline float poetc_clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

#endif
