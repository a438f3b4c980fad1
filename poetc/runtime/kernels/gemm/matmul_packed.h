/* The product that packs, for kernels that are made of products.
 *
 * Layout: that of matmul_packed.c.
 * Order of sums: that of matmul_packed.c. */
#ifndef POETC_MATMUL_PACKED_H
#define POETC_MATMUL_PACKED_H

#include "poetc_kernel.h"

int poetc_op_matmul_packed(const poetc_call *call);

#endif
