/* Walks over strided operands, described in ints as { rank, sizes[rank], strides of operand 0 [rank], of operand 1, ...
 * }.
 *
 * Layout: strides are in elements, and 0 where an operand is broadcast. The last dimension is the kernel's inner loop;
 * poetc_next_row moves on over the others. The output is always contiguous and written in order.
 * Order of sums: nothing is added here. */
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

/* A walk in several threads: its rows are shared, or a single row is. POETC_WALK_SHARE moves the operands' offsets, and
 * `y` in rows, to where the share begins. POETC_ROW_SHARE gives the shared part of a row (from POETC_ROW_BEGIN on,
 * POETC_ROW_COUNT), and POETC_NEXT_ROW ends with the share. */
#ifdef POETC_THREADS
static inline int32_t poetc_walk_rows(const poetc_walk *walk)
{
    int32_t rows = 1, d;
    for (d = 0; d < walk->rank - 1; d++)
        rows *= walk->sizes[d];
    return rows;
}

static inline void poetc_walk_move(poetc_walk *walk, int32_t row, int32_t *offsets, int32_t operands)
{
    int32_t d, o;
    for (d = walk->rank - 2; d >= 0; d--) {
        walk->index[d] = row % walk->sizes[d];
        row /= walk->sizes[d];
        for (o = 0; o < operands; o++)
            offsets[o] += walk->index[d] * walk->strides[o * walk->rank + d];
    }
}

#define POETC_WALK_SHARE(call, walk, offsets, operands, y)                                                             \
    const poetc_share alone = {0, 0}, row_share = (walk).rank == 1 ? (call)->share : alone;                            \
    const poetc_share rows_share = (walk).rank == 1 ? alone : (call)->share;                                           \
    const int32_t first_row = poetc_share_begin(rows_share, poetc_walk_rows(&(walk)), 1);                              \
    int32_t rows_left = poetc_share_end(rows_share, poetc_walk_rows(&(walk)), 1) - first_row;                          \
    if (rows_left <= 0)                                                                                                \
        return POETC_OK;                                                                                               \
    poetc_walk_move(&(walk), first_row, offsets, operands);                                                            \
    (y) += (ptrdiff_t)first_row * (walk).inner;
#define POETC_ROW_SHARE row_share
#define POETC_ROW(inner, y)                                                                                            \
    const int32_t row_begin = poetc_share_begin(row_share, inner, 16);                                                 \
    const int32_t row_count = poetc_share_end(row_share, inner, 16) - row_begin;                                       \
    (y) += row_begin;
#define POETC_ROW_BEGIN row_begin
#define POETC_ROW_COUNT(inner) row_count
#define POETC_NEXT_ROW(walk, offsets, operands) (--rows_left > 0 && poetc_next_row(walk, offsets, operands))
#else
#define POETC_WALK_SHARE(call, walk, offsets, operands, y)
#define POETC_ROW(inner, y)
#define POETC_ROW_BEGIN 0
#define POETC_ROW_COUNT(inner) (inner)
#define POETC_NEXT_ROW(walk, offsets, operands) poetc_next_row(walk, offsets, operands)
#endif

#endif
