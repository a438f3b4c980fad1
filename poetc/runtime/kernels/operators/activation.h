/* Kernels of activation.c, for kernels that run them on a part of their operands.
 *
 * Layout: that of activation.c.
 * Order of sums: that of activation.c. */
#ifndef POETC_ACTIVATION_KERNELS_H
#define POETC_ACTIVATION_KERNELS_H

#include "poetc_kernel.h"

typedef int poetc_kernel_of_activation(const poetc_call *call);

extern poetc_kernel_of_activation poetc_op_relu;
extern poetc_kernel_of_activation poetc_op_relu_grad;
extern poetc_kernel_of_activation poetc_op_leaky_relu;
extern poetc_kernel_of_activation poetc_op_leaky_relu_grad;
extern poetc_kernel_of_activation poetc_op_elu;
extern poetc_kernel_of_activation poetc_op_elu_grad;
extern poetc_kernel_of_activation poetc_op_clip;
extern poetc_kernel_of_activation poetc_op_clip_grad;
extern poetc_kernel_of_activation poetc_op_hard_sigmoid;
extern poetc_kernel_of_activation poetc_op_hard_sigmoid_grad;
extern poetc_kernel_of_activation poetc_op_sigmoid;
extern poetc_kernel_of_activation poetc_op_sigmoid_grad;
extern poetc_kernel_of_activation poetc_op_tanh;
extern poetc_kernel_of_activation poetc_op_tanh_grad;
extern poetc_kernel_of_activation poetc_op_silu;
extern poetc_kernel_of_activation poetc_op_silu_grad;
extern poetc_kernel_of_activation poetc_op_hard_swish;
extern poetc_kernel_of_activation poetc_op_hard_swish_grad;

#endif
