#include "poetc_gemm.h"

#define LANES POETC_LANES
#define COLUMNS POETC_GEMM_COLUMNS

#if LANES == 1
#define MULTIPLY_ADD(sum, b, a) POETC_MULTIPLY_ADD(sum, b, a)
#else
#define MULTIPLY_ADD(sum, b, a) ((sum) += (b) * (a))
#endif

#if defined(__GNUC__) && LANES > 1
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* `rows` x `vectors` results in registers: both are constants wherever this is inlined. */
POETC_INLINE void block(const int rows, const int vectors, const int32_t depth, const float *a, const ptrdiff_t a_row,
                  const ptrdiff_t a_k, const float *b, float *y, const ptrdiff_t y_row, const int accumulate)
{
    poetc_vector sum[POETC_GEMM_ROWS][POETC_GEMM_VECTORS];
    int32_t k;
    int i, j;
    POETC_UNROLL
    for (i = 0; i < rows; i++) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            sum[i][j] = (poetc_vector){0};
    }
    for (k = 0; k < depth; k++, a += a_k, b += COLUMNS) {
        POETC_UNROLL
        for (i = 0; i < rows; i++) {
            POETC_UNROLL
            for (j = 0; j < vectors; j++)
                MULTIPLY_ADD(sum[i][j], *(const poetc_vector_unaligned *)(b + j * LANES), a[i * a_row]);
        }
    }
    POETC_UNROLL
    for (i = 0; i < rows; i++) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++) {
            poetc_vector_unaligned *at = (poetc_vector_unaligned *)(y + i * y_row + j * LANES);
            poetc_vector total = sum[i][j];
            if (accumulate)
                total = *at + total;
            *at = total;
        }
    }
}

typedef struct {
    const float *a;
    ptrdiff_t a_row;
    int packed; /* a is a block [depth][rows] */
    const float *b;
    float *y;
    ptrdiff_t y_row;
    int32_t depth;
    int narrow; /* half of the columns are enough */
    int accumulate;
} block_task;

#define DEFINE_BLOCK(ROWS)                                                                                             \
    static void block_##ROWS(const block_task *t)                                                                      \
    {                                                                                                                  \
        const int half = POETC_GEMM_VECTORS / 2;                                                                       \
        if (t->packed && !t->narrow)                                                                                   \
            block(ROWS, POETC_GEMM_VECTORS, t->depth, t->a, 1, ROWS, t->b, t->y, t->y_row, t->accumulate);             \
        else if (!t->narrow)                                                                                           \
            block(ROWS, POETC_GEMM_VECTORS, t->depth, t->a, t->a_row, 1, t->b, t->y, t->y_row, t->accumulate);         \
        else if (t->packed)                                                                                            \
            block(ROWS, half, t->depth, t->a, 1, ROWS, t->b, t->y, t->y_row, t->accumulate);                           \
        else                                                                                                           \
            block(ROWS, half, t->depth, t->a, t->a_row, 1, t->b, t->y, t->y_row, t->accumulate);                       \
    }

#if POETC_GEMM_ROWS >= 12
DEFINE_BLOCK(12)
DEFINE_BLOCK(8)
#elif POETC_GEMM_ROWS >= 6
DEFINE_BLOCK(6)
#endif
DEFINE_BLOCK(4)
DEFINE_BLOCK(2)
DEFINE_BLOCK(1)

/* The largest block that fits. */
static int32_t block_rows(int32_t left)
{
#if POETC_GEMM_ROWS >= 12
    return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
#elif POETC_GEMM_ROWS >= 6
    return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
#else
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
#endif
}

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
    case 2: block_2(t); break;
    default: block_1(t); break;
    }
}

/* to[0 .. count) = from[0 .. count), for a few floats. */
static inline void copy(float *to, const float *from, int32_t count)
{
    int32_t i = 0;
    for (; i + 4 <= count; i += 4)
        poetc_f4_store(to + i, poetc_f4_load(from + i));
    for (; i < count; i++)
        to[i] = from[i];
}

/* Copy `width` columns of y from number `column` on into the tile, or back. */
static void exchange(const poetc_gemm *g, float *y, int32_t rows, int32_t column, int32_t width, float *tile, int back)
{
    while (width > 0) {
        const int32_t image = column / g->segment, within = column - image * g->segment;
        const int32_t count = poetc_min(width, g->segment - within);
        float *at = y + image * g->segment_step + within;
        int32_t i;
        for (i = 0; i < rows; i++, at += g->y_row) {
            if (back)
                copy(at, tile + i * COLUMNS, count);
            else
                copy(tile + i * COLUMNS, at, count);
        }
        column += count, tile += count, width -= count;
    }
}

/* rows, a multiple of 4 and a constant wherever this is inlined, contiguous in a. */
POETC_INLINE void pack_contiguous(float *to, const float *from, ptrdiff_t step, int32_t depth, const int rows)
{
    int32_t k;
    int i;
    for (k = 0; k < depth; k++, from += step, to += rows) {
        PREFETCH(from + rows + 16); /* for the next block: steps of many lines are beyond what caches foresee */
        POETC_UNROLL
        for (i = 0; i < rows; i += 4)
            poetc_f4_store(to + i, poetc_f4_load(from + i));
    }
}

static void pack_rows(float *to, const poetc_gemm *g, int32_t row, int32_t rows)
{
    const float *from = g->a + row * g->a_row;
    int32_t k, i;
    if (g->a_row == 1 && rows == 12) {
        pack_contiguous(to, from, g->a_k, g->depth, 12);
    } else if (g->a_row == 1 && rows == 8) {
        pack_contiguous(to, from, g->a_k, g->depth, 8);
    } else if (g->a_row == 1 && rows == 4) {
        pack_contiguous(to, from, g->a_k, g->depth, 4);
    } else {
        for (k = 0; k < g->depth; k++, from += g->a_k)
            for (i = 0; i < rows; i++)
                *to++ = from[i * g->a_row];
    }
}

/* Bring the rows of the next block closer while this one is computed. */
static inline void prefetch_rows(const poetc_gemm *g, int32_t row, int32_t rows)
{
    int32_t i, k;
    for (i = row; i < row + rows && i < g->rows; i++)
        for (k = 0; k < g->depth; k += 16)
            PREFETCH(g->a + i * g->a_row + k);
}

void poetc_gemm_run(const poetc_gemm *g, const poetc_gemm_space *space)
{
    int32_t row, column, rows;
    for (row = 0; row < g->rows; row += rows) {
        float *y = g->y + row * g->y_row;
        block_task t;
        rows = block_rows(g->rows - row);
        t.a = g->a + row * g->a_row, t.a_row = g->a_row;
        t.packed = g->a_k != 1;
        t.depth = g->depth, t.accumulate = g->accumulate;
        if (t.packed) {
            pack_rows(space->rows, g, row, rows);
            t.a = space->rows;
        } else if (POETC_LANES > 1) {
            prefetch_rows(g, row + rows, rows);
        }
        for (column = 0; column < g->columns; column += COLUMNS) {
            const int32_t width = poetc_min(COLUMNS, g->columns - column), at = g->column + column;
            const int32_t image = at / g->segment, within = at - image * g->segment;
            t.b = poetc_gemm_panel(space, column, g->depth);
            t.narrow = width <= COLUMNS / 2;
            if (within + width <= g->segment && (width == COLUMNS || width == COLUMNS / 2)) {
                t.y = y + image * g->segment_step + within, t.y_row = g->y_row;
                run_block(rows, &t);
            } else {
                t.y = space->tile, t.y_row = COLUMNS;
                if (g->accumulate)
                    exchange(g, y, rows, at, width, space->tile, 0);
                run_block(rows, &t);
                exchange(g, y, rows, at, width, space->tile, 1);
            }
        }
    }
}

poetc_gemm_space poetc_gemm_carve(float *workspace, int32_t size, int32_t depth, int pack_rows)
{
    poetc_gemm_space space;
    /* Panels on a cache line: a vector that crosses two costs twice. */
    ptrdiff_t skip = (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
    space.panels = workspace + skip;
    size -= 16 + POETC_GEMM_ROWS * COLUMNS + (pack_rows ? POETC_GEMM_ROWS * depth : 0);
    space.columns = size / (depth * COLUMNS) * COLUMNS;
    space.tile = space.panels + (ptrdiff_t)space.columns * depth;
    space.rows = space.tile + POETC_GEMM_ROWS * COLUMNS;
    return space;
}

void poetc_gemm_pack(const poetc_gemm_space *space, const float *b, ptrdiff_t step, int32_t depth, int32_t columns)
{
    int32_t column, k, j;
    for (column = 0; column < columns; column += COLUMNS) {
        const int32_t width = poetc_min(COLUMNS, columns - column);
        float *to = poetc_gemm_panel(space, column, depth);
        const float *from = b + column;
        for (k = 0; k < depth; k++, from += step, to += COLUMNS) {
            if (width == COLUMNS) {
                POETC_UNROLL
                for (j = 0; j < COLUMNS; j += LANES)
                    *(poetc_vector_unaligned *)(to + j) = *(const poetc_vector_unaligned *)(from + j);
            } else {
                for (j = 0; j < width; j++)
                    to[j] = from[j];
                for (; j < COLUMNS; j++)
                    to[j] = 0.0f;
            }
        }
    }
}

void poetc_gemm_pack_transposed(const poetc_gemm_space *space, const float *b, ptrdiff_t step, int32_t depth,
                                int32_t columns)
{
    int32_t column, k, j, i;
    for (column = 0; column < columns; column += COLUMNS) {
        const int32_t width = poetc_min(COLUMNS, columns - column);
        float *to = poetc_gemm_panel(space, column, depth);
        for (j = 0; j + 4 <= width; j += 4) {
            const float *from = b + (column + j) * step;
            for (k = 0; k + 4 <= depth; k += 4) {
                poetc_f4 r0 = poetc_f4_load(from + k), r1 = poetc_f4_load(from + step + k);
                poetc_f4 r2 = poetc_f4_load(from + 2 * step + k), r3 = poetc_f4_load(from + 3 * step + k);
                poetc_f4_transpose(&r0, &r1, &r2, &r3);
                poetc_f4_store(to + (ptrdiff_t)k * COLUMNS + j, r0);
                poetc_f4_store(to + (ptrdiff_t)(k + 1) * COLUMNS + j, r1);
                poetc_f4_store(to + (ptrdiff_t)(k + 2) * COLUMNS + j, r2);
                poetc_f4_store(to + (ptrdiff_t)(k + 3) * COLUMNS + j, r3);
            }
            for (; k < depth; k++)
                for (i = 0; i < 4; i++)
                    to[(ptrdiff_t)k * COLUMNS + j + i] = from[i * step + k];
        }
        for (; j < COLUMNS; j++)
            for (k = 0; k < depth; k++)
                to[(ptrdiff_t)k * COLUMNS + j] = j < width ? b[(column + j) * step + k] : 0.0f;
    }
}
