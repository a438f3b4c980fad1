/* The core of matrix products and convolutions: y[rows, columns] += a[rows, depth] b[depth, columns] on packed
 * operands.
 *
 * Layout: a register block has POETC_GEMM_ROWS x POETC_GEMM_COLUMNS results, and SIMD lanes lie along the columns only.
 * The caller packs b into panels (poetc_gemm_pack.h). a is read in place where it is contiguous along the depth, else
 * packed block by block.
 * Order of sums: a result adds its terms in sequence within a block of terms, and the sums of blocks in sequence. So
 * its bits do not depend on the width of the vectors, the size of the workspace, or how rows and columns are cut. */
#ifndef POETC_GEMM_H
#define POETC_GEMM_H

#include "gemm/poetc_gemm_pack.h"

#define POETC_GEMM_PART (POETC_GEMM_ROWS % 4 ? POETC_GEMM_ROWS : 4) /* a thread's rows are whole ones of these: smaller blocks at the end */

/* `size` floats of workspace for blocks of at most `terms` terms, `blocks` of them a sum, of `columns` columns.
 * `pack_rows`: a is not contiguous along the depth. Where there are caches, room beyond some panels of one block is
 * given to more blocks: results are then read and written less often. */
poetc_gemm_space poetc_gemm_carve(float *workspace, int32_t size, int32_t terms, int32_t blocks, int32_t columns,
                                  int pack_rows);

/* The data that are read after a product: rows of `floats`, `step` apart. It is brought to the outer cache meanwhile,
 * where vectors are so fast that waiting for it would count. */
#if POETC_LANES >= 8
#define POETC_AHEAD 1
typedef struct {
    const float *from;
    ptrdiff_t step;
    int32_t rows, floats;
} poetc_ahead;
#define POETC_SET_AHEAD(g, address, distance, count, length)                                                           \
    ((g).ahead.from = (address), (g).ahead.step = (distance), (g).ahead.rows = (count), (g).ahead.floats = (length))
#define POETC_SET_SCALE(g, address) ((g).scale = (address))
#else
#define POETC_SET_AHEAD(g, address, distance, count, length) ((void)0)
#define POETC_SET_SCALE(g, address) ((void)0)
#endif
/* Sums that are whole may move weights at once. */
#if defined(POETC_AHEAD) || (POETC_FPU_M && POETC_LANES == 1)
#define POETC_AT_ONCE 1
#define POETC_NOTHING_AHEAD(g) (POETC_SET_AHEAD(g, NULL, 0, 0, 0), POETC_SET_SCALE(g, NULL), (g).rate = NULL)
#define POETC_SET_RATE(g, address) ((g).rate = (address))
#define POETC_RATE(g) ((g).rate)
#else
#define POETC_NOTHING_AHEAD(g) ((void)0)
#define POETC_SET_RATE(g, address) ((void)0)
#define POETC_RATE(g) NULL
#endif

/* Blocks of terms, where there are caches, else one (depth <= terms). A sum begins with its bias, if there is one and
 * nothing is accumulated. Added last it would meet a sum that has lost the bits which decide on which side of zero it
 * is. Columns of y come in segments (the pixels of an image) of `segment` columns, `segment_step` floats apart.
 * `column` is the first one's number, y the address of row 0 in column 0. */
typedef struct {
    int32_t rows, depth, columns;
    int32_t terms;  /* of a block */
    const float *a; /* a[row * a_row + k * a_k], k within a block */
    ptrdiff_t a_row, a_k;
    ptrdiff_t a_block; /* from block to block; terms * a_k if a is packed */
    float *y;
    ptrdiff_t y_row, segment_step;
    int32_t column, segment;
    int accumulate;           /* 0: y is overwritten */
    const float *row_bias;    /* of row 0, or NULL */
    const float *column_bias; /* of column 0, or NULL */
#ifdef POETC_AHEAD
    poetc_ahead ahead;
    const float *scale; /* of the results, when the last block of terms is added; or NULL */
#endif
#ifdef POETC_AT_ONCE
    const float *rate; /* y -= rate * sum, of one block of terms; or NULL */
#endif
#ifdef POETC_THREADS
    poetc_share share; /* of the rows */
#endif
} poetc_gemm;

void poetc_gemm_run(const poetc_gemm *g, const poetc_gemm_space *space);

#if defined(POETC_HELIUM)
/* For assembly: up to six sums of vectors, to which a vector v, which `load` brings, times as many factors is added. */
#define POETC_SUMS_1 [s0] "+w"(sum[0])
#define POETC_SUMS_2 POETC_SUMS_1, [s1] "+w"(sum[1])
#define POETC_SUMS_4 POETC_SUMS_2, [s2] "+w"(sum[2]), [s3] "+w"(sum[3])
#define POETC_SUMS_6 POETC_SUMS_4, [s4] "+w"(sum[4]), [s5] "+w"(sum[5])
#define POETC_TAKE_TWO "vfma.f32 %q[s0], %q[v], r4\n\tvfma.f32 %q[s1], %q[v], r5\n\t"
#define POETC_TAKE_FOUR POETC_TAKE_TWO "vfma.f32 %q[s2], %q[v], r6\n\tvfma.f32 %q[s3], %q[v], r8\n\t"
#define POETC_STEP_1(load, factors) load "ldr r4, [%[" factors "]], #4\n\tvfma.f32 %q[s0], %q[v], r4\n\t"
#define POETC_STEP_2(load, factors) load "ldmia %[" factors "]!, {r4, r5}\n\t" POETC_TAKE_TWO
#define POETC_STEP_4(load, factors) load "ldmia %[" factors "]!, {r4, r5, r6, r8}\n\t" POETC_TAKE_FOUR
#define POETC_STEP_6(load, factors)                                                                                    \
    load "ldmia %[" factors "]!, {r4, r5, r6, r8, r9, r10}\n\t" POETC_TAKE_FOUR                                        \
         "vfma.f32 %q[s4], %q[v], r9\n\tvfma.f32 %q[s5], %q[v], r10\n\t"
#define POETC_FACTORS "r4", "r5", "r6", "r8", "r9", "r10"

#endif

#endif
