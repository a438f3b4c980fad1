/* The product that a linear cross-entropy is made of.
 *
 * Layout: that of linear_loss.c.
 * Order of sums: that of the product that runs. */
#include "operators/poetc_linear_loss.h"

#include <string.h>

#include "gemm/matmul.h"
#include "gemm/matmul_coded.h"
#include "gemm/matmul_packed.h"

#define MOST_INTS 24

int poetc_multiply(const poetc_call *call, const float *floats, const int32_t *head, const int32_t *ints,
                   const poetc_ref *refs, int32_t rows, int32_t depth)
{
    poetc_call part = *call;
    int32_t own[MOST_INTS];
    memcpy(own, ints, (size_t)head[1] * sizeof *own);
    own[0] = rows;
    if (depth > 0) {
        own[2] = depth;
        if (head[0] == POETC_PACKS)
            own[4] = depth;
    }
    part.refs = refs, part.ints = own, part.floats = floats;
    if (head[0] == POETC_DECODES)
        return poetc_op_matmul_coded(&part);
    return head[0] == POETC_PACKS ? poetc_op_matmul_packed(&part) : poetc_op_matmul(&part);
}
