/* Products whose operands are stored in 16 bits: y = a b, packed as floats, with sums in 32 bits.
 *
 * Layout: a caller gathers rows of a and columns of b from its own operands, and stores the sums.
 * Order of sums: blocks of POETC_NARROW_TERMS terms in sequence, and the blocks in sequence (poetc_gemm.h). A product
 * of two numbers of 16 bits is exact, so fused multiply-adds give the same bits. That of two bf16 is exact within the
 * normal range of floats. */
#ifndef POETC_NARROW_PRODUCT_H
#define POETC_NARROW_PRODUCT_H

#include "gemm/poetc_gemm.h"
#include "narrow/poetc_narrow.h"

/* poetc/ops/_narrow_kernels.py computes the workspace: keep them in step. */
#define POETC_NARROW_TERMS 32
#define POETC_NARROW_COLUMNS 32 /* at once */
#define POETC_NARROW_ROWS 32
#define POETC_NARROW_STRIP 12 /* rows of a at once: whole register blocks */

/* The results: floats or 16 bits, or weights that move by -rate times them. `sums` are POETC_NARROW_COLUMNS apart. */
typedef struct {
    void *y;
    poetc_stored stored;
    const float *rate; /* or NULL */
    const float *bias; /* added to each sum of column i (bias[i]), or NULL */
    int is_checked;    /* an operand is rounded to f16, which may have made it infinite */
} poetc_narrow_result;

/* Results first .. first + count - 1, which lie together, from as many sums. POETC_EEXPONENT: as poetc_narrow, and
 * where a checked sum is not finite. No weight of these has moved then. */
int poetc_narrow_put(const poetc_narrow_result *result, ptrdiff_t first, float *sums, int32_t count);

/* A walk over strips of rows, within blocks of terms, within blocks of columns, within blocks of rows. A caller packs,
 * multiplies and stores by functions of its own, without pointers to them: the stack of a program is bounded. */
typedef struct {
    int32_t rows, columns, depth; /* of the product */
    poetc_gemm_space space;
    float *strip; /* for the caller: strip[i * terms + k] = a[strip_row + i, term + k] */
    float *sums;  /* of the block of rows, POETC_NARROW_COLUMNS apart */
    int32_t row, row_count, column, column_count, term, terms, strip_row, strip_rows;
    int begins; /* the columns are to be packed for this block of terms */
    int ends;   /* the sums are whole after this strip */
} poetc_narrow_product;

void poetc_narrow_begin(poetc_narrow_product *p, int32_t rows, int32_t columns, int32_t depth, float *workspace,
                        int32_t workspace_floats);

/* The next strip; 0 if there is none. */
int poetc_narrow_next(poetc_narrow_product *p);

/* Add the strip times the columns to the sums. */
void poetc_narrow_multiply(const poetc_narrow_product *p);

/* One term of the columns: `line` has POETC_NARROW_COLUMNS floats. */
static inline void poetc_narrow_put_line(const poetc_gemm_space *space, int32_t terms, int32_t k, const float *line)
{
    poetc_gemm_put(space, terms, k, 0, line, 1, POETC_NARROW_COLUMNS);
}

#endif
