/* Register blocks of packed products: each computes a few rows by one or more panels of columns. poetc_gemm.c chooses
 * among them.
 *
 * Layout: SIMD lanes lie along the columns. b is a panel [depth][POETC_GEMM_COLUMNS]; a is read in place or packed as
 * [depth][rows]. Fewer than four rows of scalars are packed as [rows][depth], so that one body reads them in both ways.
 * Order of sums: the terms of a block in sequence, then blocks of terms in sequence; a bias is the first term. Every
 * shape of block keeps this order, so the choice of blocks changes no bit.
 *
 * The file belongs to poetc_gemm.c: its functions are compiled there. */
#ifndef POETC_GEMM_BLOCK_H
#define POETC_GEMM_BLOCK_H

#include "gemm/poetc_gemm.h"

#if POETC_LANES >= 8
#include <immintrin.h>
#endif

#define LANES POETC_LANES
#define COLUMNS POETC_GEMM_COLUMNS
#define HALF (LANES > 1 ? POETC_GEMM_VECTORS / 2 * LANES : 0) /* a narrow block, where there is one */

/* Blocks in assembly: all 32 registers of the FPU of Cortex-M. */
#if LANES == 1 && POETC_FPU_M
#define IN_ASSEMBLY 1
#else
#define IN_ASSEMBLY 0
#endif

/* Columns from which four rows are packed even where they could be read in place: their loads take fewer cycles. */
#if IN_ASSEMBLY
#define PACKING_PAYS 32
#else
#define PACKING_PAYS INT32_MAX
#endif

/* Few registers for addresses: rows of a are packed even where they could be read in place. */
#if defined(POETC_HELIUM)
#define ALWAYS_PACKED 1
#else
#define ALWAYS_PACKED 0
#endif

/* Several blocks of terms while their results lie in the innermost cache. */
#if LANES > 1 && !defined(POETC_HELIUM)
#define MANY_BLOCKS 1
#else
#define MANY_BLOCKS 0
#endif

#if LANES == 16
#define UNROLL_TERMS POETC_UNROLL_2
#else
#define UNROLL_TERMS
#endif

#define BRING_TERMS 64 /* between lines that are brought: many at once would be waited for */

#if defined(__GNUC__) && LANES > 1
#define PREFETCH(address) __builtin_prefetch(address)
#define PREFETCH_OUTER(address) __builtin_prefetch(address, 0, 2)
#define PREFETCH_RESULT(address) __builtin_prefetch(address, 1)
#else
#define PREFETCH(address) ((void)(address))
#endif

#ifdef POETC_AHEAD
#define LINE 16 /* floats */

/* The lines that are still to be brought, a few before each panel. */
typedef struct {
    const float *at;
    ptrdiff_t jump;            /* from the end of a row to the next one */
    int32_t width, left, rows; /* lines of a row, of this one, rows */
    int32_t each;
} lines_ahead;

POETC_INLINE void bring(lines_ahead *l)
{
    int32_t i;
    for (i = l->each; i > 0 && l->rows > 0; i--, l->at += LINE) {
        PREFETCH_OUTER(l->at);
        if (--l->left == 0)
            l->left = l->width, l->at += l->jump, l->rows--;
    }
}

/* Rows of results from number `row` on, before they are read or written: the next `each` of `rows`. */
POETC_INLINE int32_t bring_results(const float *y, ptrdiff_t y_row, int32_t row, int32_t each, const int rows,
                                   const int vectors)
{
    const int32_t end = poetc_min(row + each, rows);
    for (; row < end; row++) {
        PREFETCH_RESULT(y + row * y_row);
        PREFETCH_RESULT(y + row * y_row + (vectors - 1) * LANES);
    }
    return row;
}
#else
#define bring(lines) ((void)0)
#endif

typedef struct {
    const float *a;
    ptrdiff_t a_row;
    int packed; /* a is a block [depth][rows]; of fewer than four scalars [rows][depth] */
#if POETC_LANES == 1
    ptrdiff_t a_k;
#endif
    const float *b;
    float *y;
    ptrdiff_t y_row;
    int32_t depth, panels; /* panels of b that follow each other, and their results likewise */
#if MANY_BLOCKS
    int32_t terms;
    ptrdiff_t a_block;
#endif
#ifdef POETC_AHEAD
    lines_ahead *ahead;
    const float *scale; /* or NULL */
#endif
#ifdef POETC_AT_ONCE
    const float *rate; /* or NULL */
#endif
    int narrow; /* half of the columns are enough */
    int accumulate;
    const float *row_bias, *column_bias;
} block_task;

#if !IN_ASSEMBLY
/* The start values of the sums of a row. */
POETC_INLINE void start(poetc_vector *sum, const int vectors, const float *row_bias, const float *column_bias)
{
    int j;
    POETC_UNROLL
    for (j = 0; j < vectors; j++)
        sum[j] = (poetc_vector){0};
    if (row_bias) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            sum[j] += *row_bias;
    } else if (column_bias) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            sum[j] = poetc_vector_load(column_bias + j * LANES);
    }
}

POETC_INLINE void finish(const poetc_vector *sum, const int vectors, float *y, int accumulate, const float *rate,
                         const float *scale)
{
    int j;
    if (rate) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++) {
            poetc_vector v = poetc_vector_load(y + j * LANES);
            POETC_SUBTRACT_SCALED(v, sum[j], *rate);
            poetc_vector_store(y + j * LANES, v);
        }
    } else if (scale) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES,
                               (accumulate ? poetc_vector_load(y + j * LANES) + sum[j] : sum[j]) * *scale);
    } else if (accumulate) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES, poetc_vector_load(y + j * LANES) + sum[j]);
    } else {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES, sum[j]);
    }
}
#endif

#if IN_ASSEMBLY
#include "gemm/poetc_gemm_fpu.h"
#else
#define single_column(t) ((void)0)
#endif

#if defined(POETC_HELIUM)

/* `rows` x 4 results in registers, a packed: the factors of a step come to core registers in one
 * instruction. */
POETC_INLINE void block(const int rows, const int vectors, const block_task *t, const ptrdiff_t a_row,
                        const ptrdiff_t a_k)
{
    poetc_vector sum[POETC_GEMM_ROWS];
    const float *const first = t->a, *const row_bias = t->row_bias, *column_bias = t->column_bias, *b = t->b;
    const int32_t depth = t->depth;
    const ptrdiff_t y_row = t->y_row;
    const int accumulate = t->accumulate;
    float *y = t->y;
    int32_t k, column;
    int i;
    (void)a_row, (void)a_k;
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *a = first;
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            start(sum + i, vectors, row_bias ? row_bias + i : NULL, column_bias);
        if (column_bias)
            column_bias += COLUMNS;
#define STEP_OF_4                                                                                                      \
    "vldrw.u32 %q[v], [%[b]], #16\n\tldmia %[a]!, {r4, r5, r6, r8}\n\t"                                                \
    "vfma.f32 %q[s0], %q[v], r4\n\tvfma.f32 %q[s1], %q[v], r5\n\tvfma.f32 %q[s2], %q[v], r6\n\tvfma.f32 %q[s3], %q[v], r8\n\t"
#define STEP_OF_6                                                                                                      \
    "vldrw.u32 %q[v], [%[b]], #16\n\tldmia %[a]!, {r4, r5, r6, r8, r9, r10}\n\t"                                       \
    "vfma.f32 %q[s0], %q[v], r4\n\tvfma.f32 %q[s1], %q[v], r5\n\tvfma.f32 %q[s2], %q[v], r6\n\tvfma.f32 %q[s3], %q[v], r8\n\t" \
    "vfma.f32 %q[s4], %q[v], r9\n\tvfma.f32 %q[s5], %q[v], r10\n\t"
#define STEPS(step) /* by fours, then the rest */                                                                      \
    "wls lr, %[fours], 2f\n1:\t" step step step step "le lr, 1b\n2:\twls lr, %[rest], 4f\n3:\t" step "le lr, 3b\n4:"
        if (rows == 6) {
            poetc_vector v;
            /* clang-format off */
            __asm__(STEPS(STEP_OF_6)
                    : [s0] "+w"(sum[0]), [s1] "+w"(sum[1]), [s2] "+w"(sum[2]), [s3] "+w"(sum[3]), [s4] "+w"(sum[4]),
                      [s5] "+w"(sum[5]), [v] "=&w"(v), [a] "+r"(a), [b] "+r"(b)
                    : [fours] "r"(depth / 4), [rest] "r"(depth % 4)
                    : "r4", "r5", "r6", "r8", "r9", "r10", "lr", "memory");
        } else if (rows == 4) {
            poetc_vector v;
            __asm__(STEPS(STEP_OF_4)
                    : [s0] "+w"(sum[0]), [s1] "+w"(sum[1]), [s2] "+w"(sum[2]), [s3] "+w"(sum[3]), [v] "=&w"(v), [a] "+r"(a),
                      [b] "+r"(b)
                    : [fours] "r"(depth / 4), [rest] "r"(depth % 4)
                    : "r4", "r5", "r6", "r8", "lr", "memory");
            /* clang-format on */
        } else {
            POETC_UNROLL_PAIR
            for (k = depth; k > 0; k--, b += COLUMNS, a += rows) {
                const poetc_vector v = poetc_vector_load(b);
                POETC_UNROLL
                for (i = 0; i < rows; i++)
                    POETC_ADD_SCALED(sum[i], v, a[i]);
            }
        }
#undef STEPS
#undef STEP_OF_6
#undef STEP_OF_4
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            finish(sum + i, vectors, y + i * y_row, accumulate, NULL, NULL);
    }
}

#elif LANES > 1

/* Whether a multiply-add takes one factor from a lane of a register. With separate numerics products need registers. */
#if defined(__aarch64__) && defined(POETC_FUSED)
#define POETC_BY_LANE 1
#else
#define POETC_BY_LANE 0
#endif

/* `rows` x `vectors` results in registers: both are constants wherever this is inlined. */
POETC_INLINE void block(const int rows, const int vectors, const block_task *t, const ptrdiff_t a_row,
                        const ptrdiff_t a_k)
{
    poetc_vector sum[POETC_GEMM_ROWS][POETC_GEMM_VECTORS];
    const float *const first = t->a, *column_bias = t->column_bias, *b = t->b;
    const int32_t depth = t->depth, terms = t->terms;
    const ptrdiff_t y_row = t->y_row, jump = t->a_block - terms * a_k;
#ifdef POETC_AHEAD
    const float *const rate = t->rate, *const scale = t->scale;
    const int32_t shortest = poetc_min(depth, terms),
                  each = shortest > BRING_TERMS ? rows * BRING_TERMS / shortest + 1 : rows;
#else
    const float *const rate = NULL, *const scale = NULL;
#endif
    float *y = t->y;
    int32_t k, column, left;
    int i, j;
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *a = first, *row_bias = t->row_bias, *column_bias_here = column_bias;
        int accumulate = t->accumulate;
#ifdef POETC_AHEAD
        int32_t brought = 0;
#endif
        for (left = depth; left > 0; left -= terms, a += jump) {
            int32_t more = left < terms ? left : terms;
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                start(sum[i], vectors, row_bias ? row_bias + i : NULL, column_bias_here);
            for (; more > 0; more -= BRING_TERMS) {
                bring(t->ahead);
#ifdef POETC_AHEAD
                brought = bring_results(y, y_row, brought, each, rows, vectors);
#endif
                UNROLL_TERMS
                for (k = more < BRING_TERMS ? more : BRING_TERMS; k > 0; k--, a += a_k, b += COLUMNS) {
#if POETC_BY_LANE
                    if (a_row == 1 && rows % 4 == 0) { /* four factors in a register: no sum is left without one */
                        POETC_UNROLL
                        for (i = 0; i < rows; i++) {
                            const poetc_vector factors = poetc_vector_load(a + i / 4 * 4);
                            POETC_UNROLL
                            for (j = 0; j < vectors; j++)
                                POETC_ADD_SCALED(sum[i][j], poetc_vector_load(b + j * LANES), factors[i % 4]);
                        }
                        continue;
                    }
#endif
                    POETC_UNROLL
                    for (i = 0; i < rows; i++) {
                        POETC_UNROLL
                        for (j = 0; j < vectors; j++)
                            POETC_ADD_SCALED(sum[i][j], poetc_vector_load(b + j * LANES), a[i * a_row]);
                    }
                }
            }
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                finish(sum[i], vectors, y + i * y_row, accumulate, rate, left <= terms ? scale : NULL);
            row_bias = column_bias_here = NULL, accumulate = 1;
        }
        if (column_bias)
            column_bias += COLUMNS;
    }
}

#elif !IN_ASSEMBLY

/* `rows` x 4 results in registers, whether rows of a lie in place or side by side. */
POETC_INLINE void block(const int rows, const int vectors, const block_task *t)
{
    float sum[POETC_GEMM_ROWS][4];
    const float *const first = t->a, *const row_bias = t->row_bias, *column_bias = t->column_bias, *b = t->b;
    const int32_t depth = t->depth;
    const ptrdiff_t y_row = t->y_row, a_k = rows < 4 ? 1 : t->a_k;
    const int accumulate = t->accumulate;
    float *y = t->y;
    int32_t column, k;
    int i;
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *row[4];
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            row[i] = first + i * t->a_row;
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            start(sum[i], vectors, row_bias ? row_bias + i : NULL, column_bias);
        if (column_bias)
            column_bias += COLUMNS;
        for (k = depth; k > 0; k--, b += COLUMNS) {
            float kept[4]; /* three rows have room for them */
            POETC_UNROLL
            for (i = 0; i < 4; i++)
                kept[i] = b[i];
            POETC_UNROLL
            for (i = 0; i < rows; i++) {
                const float factor = *row[i], *const q = rows == 3 ? kept : b;
                POETC_MULTIPLY_ADD_4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], q[0], factor, q[1], factor, q[2],
                                     factor, q[3], factor);
                row[i] += a_k;
            }
        }
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            finish(sum[i], vectors, y + i * y_row, accumulate, NULL, NULL);
    }
}

#endif

#if !IN_ASSEMBLY
#if LANES == 1
#define DEFINE_BLOCK(ROWS)                                                                                             \
    static void block_##ROWS(const block_task *t)                                                                      \
    {                                                                                                                  \
        block(ROWS, POETC_GEMM_VECTORS, t);                                                                            \
    }
#else
#define DEFINE_BLOCK(ROWS)                                                                                             \
    static void block_##ROWS(const block_task *t)                                                                      \
    {                                                                                                                  \
        if (ALWAYS_PACKED)                                                                                             \
            block(ROWS, POETC_GEMM_VECTORS, t, 1, ROWS);                                                               \
        else if (HALF && t->narrow && t->packed)                                                                            \
            block(ROWS, HALF / LANES, t, 1, ROWS);                                                                     \
        else if (HALF && t->narrow)                                                                                    \
            block(ROWS, HALF / LANES, t, t->a_row, 1);                                                                 \
        else if (t->packed)                                                                                            \
            block(ROWS, POETC_GEMM_VECTORS, t, 1, ROWS);                                                               \
        else                                                                                                           \
            block(ROWS, POETC_GEMM_VECTORS, t, t->a_row, 1);                                                           \
    }
#endif

#if POETC_GEMM_ROWS >= 12
DEFINE_BLOCK(12)
DEFINE_BLOCK(8)
#elif POETC_GEMM_ROWS >= 6
DEFINE_BLOCK(6)
#endif
DEFINE_BLOCK(4)
#if POETC_GEMM_ROWS == 4
DEFINE_BLOCK(3)
#endif
DEFINE_BLOCK(2)
DEFINE_BLOCK(1)

static void run_block(int32_t rows, const block_task *t)
{
    switch (rows) {
#if POETC_GEMM_ROWS >= 12
    case 12: block_12(t); break;
    case 8: block_8(t); break;
#elif POETC_GEMM_ROWS >= 6
    case 6: block_6(t); break;
#endif
    case 4: block_4(t); break;
#if POETC_GEMM_ROWS == 4
    case 3: block_3(t); break;
#endif
    case 2: block_2(t); break;
    default: block_1(t); break;
    }
}
#endif

/* The largest block that fits. */
static int32_t block_rows(int32_t left)
{
#if POETC_GEMM_ROWS >= 12
    if (LANES == 16 && left == 16) /* two of eight: four rows wait for their loads */
        return 8;
    return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
#elif POETC_GEMM_ROWS >= 6
    return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
#else
    return left >= 4 && left != 6 ? 4 : left >= 3 ? 3 : left;
#endif
}

#endif
