/* The products of a linear cross-entropy, whole or in blocks of classes.
 *
 * Layout: that of linear_loss.c.
 * Order of sums: that of the product that runs. */
#ifndef POETC_LINEAR_LOSS_H
#define POETC_LINEAR_LOSS_H

#include "poetc_kernel.h"

#define POETC_LINEAR_OPERANDS 8

enum { POETC_PLAIN, POETC_PACKS, POETC_DECODES }; /* as a product's first number says */

/* The operand, `floats` floats (a multiple of 4) further on. */
static inline poetc_ref poetc_further(poetc_ref ref, ptrdiff_t floats)
{
    return ref + (poetc_ref)(floats / 4) * 2;
}

/* A product of `rows` rows, and of `depth` terms if that is not 0. `ints` are its parameters. Rows and terms are among
 * them, and so is the distance of rows, which is the number of terms. */
int poetc_multiply(const poetc_call *call, const float *floats, const int32_t *head, const int32_t *ints,
                   const poetc_ref *refs, int32_t rows, int32_t depth);

#endif
