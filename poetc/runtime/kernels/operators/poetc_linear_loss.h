/* The products of a linear cross-entropy, whole or in blocks of classes.
 *
 * Layout: that of linear_loss.c.
 * Order of sums: that of the product that runs. */
#ifndef POETC_LINEAR_LOSS_H
#define POETC_LINEAR_LOSS_H

#include <string.h>

#include "gemm/matmul.h"
#include "gemm/matmul_coded.h"
#include "gemm/matmul_packed.h"
#include "operators/poetc_loss.h"

#define POETC_LINEAR_INTS 24
#define POETC_LINEAR_OPERANDS 8

enum { POETC_PLAIN, POETC_PACKS, POETC_DECODES }; /* as a product's first number says */

/* The operand, `floats` floats (a multiple of 4) further on. */
static inline poetc_ref poetc_further(poetc_ref ref, ptrdiff_t floats)
{
    return ref + (poetc_ref)(floats / 4) * 2;
}

/* A product of `rows` rows, and of `depth` terms if that is not 0. `ints` are its parameters. Rows and terms are among
 * them, and so is the distance of rows, which is the number of terms. */
static inline int poetc_multiply(const poetc_call *call, const float *floats, const int32_t *head, const int32_t *ints,
                                 const poetc_ref *refs, int32_t rows, int32_t depth)
{
    poetc_call part = *call;
    int32_t own[POETC_LINEAR_INTS];
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

#endif
