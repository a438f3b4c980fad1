/* The product without workspace, for kernels that are made of products.
 *
 * Layout: that of matmul.c.
 * Order of sums: that of matmul.c. */
#ifndef POETC_MATMUL_H
#define POETC_MATMUL_H

#include "poetc_kernel.h"

int poetc_op_matmul(const poetc_call *call);

#endif
