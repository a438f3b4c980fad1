/* Walks over strided operands, described in ints as { rank, sizes[rank], strides of operand 0 [rank], of operand 1, ... }.
 *
 * Strides are in elements, 0 where an operand is broadcast. The last dimension is the kernel's inner loop; poetc_next_row
 * moves on over the others. The output is always contiguous and written in order.
 */
#ifndef POETC_WALK_H
#define POETC_WALK_H

#include "poetc_kernel.h"

typedef struct poetc_walk {
    int32_t rank, inner; /* inner: size of the last dimension */
    const int32_t *sizes, *strides;
    int32_t index[POETC_MAX_RANK];
} poetc_walk;

static inline void poetc_walk_init(poetc_walk *walk, const int32_t *ints)
{
    int32_t d;
    walk->rank = ints[0];
    walk->sizes = ints + 1;
    walk->strides = ints + 1 + walk->rank;
    walk->inner = walk->sizes[walk->rank - 1];
    for (d = 0; d < walk->rank; d++)
        walk->index[d] = 0;
}

/* The stride of an operand in the inner loop. */
static inline int32_t poetc_step_of(const poetc_walk *walk, int32_t operand)
{
    return walk->strides[(operand + 1) * walk->rank - 1];
}

/* Move the operands' offsets to the next row; 0 after the last. */
static inline int poetc_next_row(poetc_walk *walk, int32_t *offsets, int32_t operands)
{
    int32_t d, o, rank = walk->rank;
    for (d = rank - 2; d >= 0; d--) {
        if (++walk->index[d] < walk->sizes[d]) {
            for (o = 0; o < operands; o++)
                offsets[o] += walk->strides[o * rank + d];
            return 1;
        }
        walk->index[d] = 0;
        for (o = 0; o < operands; o++)
            offsets[o] -= (walk->sizes[d] - 1) * walk->strides[o * rank + d];
    }
    return 0;
}

#endif
