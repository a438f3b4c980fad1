/* y = alpha * op(a) op(b) + bias on packed operands: the product of matmul.c, faster, with workspace.
 *
 * Layout: each operand has its own steps along rows, terms and columns, so transposed and sliced tensors are read where
 * they lie. `b` is packed into panels (poetc_gemm.h). Order of sums: that of poetc_gemm.h; alpha and the column's bias
 * are applied to the finished sum. */
#include "gemm/poetc_gemm.h"

/* y = alpha * y + bias[column] */
static void finish(float *y, ptrdiff_t y_row, int32_t rows, int32_t columns, float alpha, const float *bias)
{
    int32_t i, j;
    for (i = 0; i < rows; i++, y += y_row) {
        if (bias)
            for (j = 0; j < columns; j++)
                y[j] = POETC_FMA(alpha, y[j], bias[j]);
        else
            for (j = 0; j < columns; j++)
                y[j] *= alpha;
    }
}

#if defined(POETC_AHEAD)
/* The part of b that is packed next: after terms [first, first + g->depth) of columns [g->column, g->column +
 * g->columns). */
static void set_ahead(poetc_gemm *g, const poetc_gemm_space *space, const float *b, int32_t first, const int32_t *ints)
{
    const int32_t n = ints[1], k = ints[2], b_k = ints[6], b_column = ints[7], more = first + g->depth < k;
    const int32_t next = more ? first + g->depth : 0, column = more ? g->column : g->column + g->columns;
    const int32_t depth = poetc_min(space->depth, k - next),
                  columns = column < n ? poetc_min(space->columns, n - column) : 0;
    b += (ptrdiff_t)column * b_column + (ptrdiff_t)next * b_k;
    if (b_column != 1)
        POETC_SET_AHEAD(*g, b, b_column, columns, depth);
    else
        POETC_SET_AHEAD(*g, b, b_k, columns > 0 ? depth : 0, columns);
}
#else
#define set_ahead(g, space, b, first, ints) ((void)0)
#endif

/* a, b, bias[N]? -> y, where a[row * a_row + term * a_k], b[term * b_k + column * b_column] and y[row * y_row + column]
 * are elements. Those of each of a batch begin at a start and so many steps of each batch axis. Either b_k or b_column
 * is 1. The ints are M, N, K, has_bias, a_row, a_k, b_k, b_column, y_row, start of a, start of b, batch axes. Then for
 * each of these come extent, step in a, step in b, step in y (floats). The last are the size of the workspace (floats)
 * and the terms of a block. */
int poetc_op_matmul_packed(const poetc_call *call)
{
    const int32_t *ints = call->ints, m = ints[0], n = ints[1], k = ints[2], has_bias = ints[3], axes = ints[11];
    const int32_t *loops = ints + 12, floats = loops[4 * axes], terms = loops[4 * axes + 1];
    const ptrdiff_t b_k = ints[6], b_column = ints[7];
    const float *a = (const float *)poetc_in(call, 0) + ints[9], *b = (const float *)poetc_in(call, 1) + ints[10];
    const float *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *out = poetc_out(call, has_bias ? 3 : 2);
    const poetc_gemm_space space = poetc_gemm_carve(POETC_WORKSPACE(call, has_bias ? 4 : 3), floats, terms,
                                                    (k + terms - 1) / terms, n, ints[5] != 1);
#if defined(POETC_AHEAD)
    const int is_scaled = call->floats[0] != 1.0f && !bias; /* by the product itself */
#else
    const int is_scaled = 0;
#endif
    int32_t batches = 1, batch, axis, column, first;
    for (axis = 0; axis < axes; axis++)
        batches *= loops[4 * axis];
    POETC_THREADED(poetc_op_matmul_packed, call, (int64_t)batches * m * n * k, floats);
    POETC_SPLIT(split, call->share, batches, call->floats[0] == 1.0f ? m : 0, n)
    for (batch = POETC_BEGIN(split.batches, batches, 1); batch < POETC_END(split.batches, batches, 1); batch++) {
        const float *p = a, *q = b;
        float *y = out;
        int32_t rest = batch;
        poetc_gemm g;
        for (axis = axes - 1; axis >= 0; axis--) {
            const int32_t *loop = loops + 4 * axis, at = rest % loop[0];
            p += (ptrdiff_t)at * loop[1];
            q += (ptrdiff_t)at * loop[2];
            y += (ptrdiff_t)at * loop[3];
            rest /= loop[0];
        }
        g.rows = m, g.a_row = ints[4], g.a_k = ints[5];
        g.terms = terms, g.a_block = terms * g.a_k;
        g.row_bias = NULL, g.column_bias = call->floats[0] == 1.0f ? bias : NULL;
        g.y = y, g.y_row = ints[8], g.segment_step = 0, g.segment = n;
        POETC_NOTHING_AHEAD(g);
        POETC_SPLIT_ROWS(g, split);
        for (column = POETC_BEGIN(split.columns, n, POETC_GEMM_COLUMNS);
             column < POETC_END(split.columns, n, POETC_GEMM_COLUMNS); column += space.columns) {
            g.column = column;
            g.columns = poetc_min(space.columns, POETC_END(split.columns, n, POETC_GEMM_COLUMNS) - column);
            for (first = 0; first < k; first += space.depth) {
                const float *part = q + first * b_k + column * b_column;
                g.depth = poetc_min(space.depth, k - first);
                if (b_column != 1)
                    poetc_gemm_pack_transposed(&space, part, b_column, 0, g.depth, g.depth, g.columns);
                else
                    poetc_gemm_pack(&space, part, b_k, g.depth, g.columns);
                g.a = p + first * g.a_k, g.accumulate = first > 0;
                set_ahead(&g, &space, q, first, ints);
                POETC_SET_SCALE(g, is_scaled && first + g.depth == k ? call->floats : NULL);
                poetc_gemm_run(&g, &space);
            }
            if (call->floats[0] != 1.0f && !is_scaled)
                finish(y + column, g.y_row, m, g.columns, call->floats[0], bias ? bias + column : NULL);
        }
    }
    return POETC_OK;
}
