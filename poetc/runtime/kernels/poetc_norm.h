/* The batch norm and the activation before a convolution, made again where the gradient of its weight reads pixels (ConvGradWeight
 * in poetc/ops/convolution.py): the operations of batch_norm.c and batch_norm_activation.c in their order, so that the bits are those
 * of what the forward pass made. */
#ifndef POETC_NORM_H
#define POETC_NORM_H

#include "poetc_activation.h"
#include "poetc_kernel.h"

typedef struct {
    const float *mean, *var, *scale, *bias;
    const float *floats; /* epsilon, then those of the activation */
    int32_t activation;  /* its number among NORM_ACTIVATIONS */
} poetc_norm;

/* What a channel's elements have in common: y = (x - centre) * factor + shift. */
typedef struct {
    float centre, factor, shift;
} poetc_channel;

/* Its tensors are the operands from number `first` on. */
static inline poetc_norm poetc_norm_of(const poetc_call *call, int32_t first)
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
    t.factor = n->scale[c] * (1.0f / poetc_sqrtf(n->var[c] + n->floats[0]));
    return t;
}

/* EACH(F) for the activation F. */
#define POETC_FOR_ACTIVATION(activation, EACH)                                                                         \
    switch (activation) {                                                                                              \
    case 1: EACH(POETC_RELU); break;                                                                                   \
    case 2: EACH(POETC_LEAKY_RELU); break;                                                                             \
    case 3: EACH(POETC_CLIP); break;                                                                                   \
    case 4: EACH(POETC_HARD_SWISH); break;                                                                             \
    default: EACH(POETC_SAME); break;                                                                                  \
    }

#endif
