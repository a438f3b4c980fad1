/* Kernels of pool.c, for kernels that run them on a part of their operands.
 *
 * Layout: that of pool.c.
 * Order of sums: that of pool.c. */
#ifndef POETC_POOL_KERNELS_H
#define POETC_POOL_KERNELS_H

#include "poetc_kernel.h"

typedef int poetc_kernel_of_pool(const poetc_call *call);

extern poetc_kernel_of_pool poetc_op_max_pool;
extern poetc_kernel_of_pool poetc_op_max_pool_grad;
extern poetc_kernel_of_pool poetc_op_average_pool;
extern poetc_kernel_of_pool poetc_op_average_pool_grad;

#endif
