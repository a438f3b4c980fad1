/* Kernels of binary.c, for kernels that run them on a part of their operands.
 *
 * Layout: that of binary.c.
 * Order of sums: that of binary.c. */
#ifndef POETC_BINARY_KERNELS_H
#define POETC_BINARY_KERNELS_H

#include "poetc_kernel.h"

typedef int poetc_kernel_of_binary(const poetc_call *call);

extern poetc_kernel_of_binary poetc_op_add;

#endif
