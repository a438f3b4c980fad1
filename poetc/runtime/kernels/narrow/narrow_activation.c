/* Activation functions and their gradients on tensors stored in 16 bits.
 *
 * Layout: poetc_narrow_slices.h.
 * Order of sums: that of operators/activation.c. */
#include "narrow/poetc_narrow_slices.h"
#include "operators/activation.h"

POETC_SLICED(relu)
POETC_SLICED(relu_grad)
POETC_SLICED(leaky_relu)
POETC_SLICED(leaky_relu_grad)
POETC_SLICED(elu)
POETC_SLICED(elu_grad)
POETC_SLICED(clip)
POETC_SLICED(clip_grad)
POETC_SLICED(hard_sigmoid)
POETC_SLICED(hard_sigmoid_grad)
POETC_SLICED(sigmoid)
POETC_SLICED(sigmoid_grad)
POETC_SLICED(tanh)
POETC_SLICED(tanh_grad)
POETC_SLICED(silu)
POETC_SLICED(silu_grad)
POETC_SLICED(hard_swish)
POETC_SLICED(hard_swish_grad)
