/* The product with a coded weight, for kernels that are made of products.
 *
 * Layout: that of matmul_coded.c.
 * Order of sums: that of matmul_coded.c. */
#ifndef POETC_MATMUL_CODED_H
#define POETC_MATMUL_CODED_H

#include "poetc_kernel.h"

int poetc_op_matmul_coded(const poetc_call *call);

#endif
