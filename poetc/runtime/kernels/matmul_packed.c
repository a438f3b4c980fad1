/* y = alpha * op(a) op(b) + bias on packed operands: the product of matmul.c, faster, with workspace. */
#include "poetc_gemm.h"

/* y = alpha * y + bias[column] */
static void finish(float *y, ptrdiff_t y_row, int32_t rows, int32_t columns, float alpha, const float *bias)
{
    int32_t i, j;
    for (i = 0; i < rows; i++, y += y_row) {
        if (bias)
            for (j = 0; j < columns; j++)
                y[j] = alpha * y[j] + bias[j];
        else
            for (j = 0; j < columns; j++)
                y[j] *= alpha;
    }
}

#if defined(POETC_AHEAD)
/* The part of b that is packed next: after terms [first, first + g->depth) of columns [g->column, g->column + g->columns). */
static void set_ahead(poetc_gemm *g, const poetc_gemm_space *space, const float *b, int transposed, int32_t first, int32_t n,
                      int32_t k)
{
    const int more = first + g->depth < k;
    const int32_t next = more ? first + g->depth : 0, column = more ? g->column : g->column + g->columns;
    const int32_t depth = poetc_min(space->depth, k - next), columns = column < n ? poetc_min(space->columns, n - column) : 0;
    if (transposed)
        POETC_SET_AHEAD(*g, b + (ptrdiff_t)column * k + next, k, columns, depth);
    else
        POETC_SET_AHEAD(*g, b + (ptrdiff_t)next * n + column, n, columns > 0 ? depth : 0, columns);
}
#else
#define set_ahead(g, space, b, transposed, first, n, k) ((void)0)
#endif

/* As poetc_op_matmul; the last ints are the size of the workspace (floats) and the terms of a block. */
int poetc_op_matmul_packed(const poetc_call *call)
{
    const int32_t *ints = call->ints, m = ints[0], n = ints[1], k = ints[2], axes = ints[6];
    const int trans_a = ints[3], trans_b = ints[4], has_bias = ints[5];
    const float *a = poetc_in(call, 0), *b = poetc_in(call, 1), *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, has_bias ? 3 : 2);
    const int32_t terms = ints[8 + 3 * axes];
    const poetc_gemm_space space = poetc_gemm_carve(POETC_WORKSPACE(call, has_bias ? 4 : 3), ints[7 + 3 * axes], terms,
                                                    (k + terms - 1) / terms, n, trans_a);
    int32_t batches = 1, batch, axis, column, first;
    for (axis = 0; axis < axes; axis++)
        batches *= ints[7 + 3 * axis];
    POETC_THREADED(poetc_op_matmul_packed, call, (int64_t)batches * m * n * k, ints[7 + 3 * axes]);
    POETC_SPLIT(split, call->share, batches, call->floats[0] == 1.0f ? m : 0, n)
    y += (ptrdiff_t)POETC_BEGIN(split.batches, batches, 1) * m * n;
    for (batch = POETC_BEGIN(split.batches, batches, 1); batch < POETC_END(split.batches, batches, 1);
         batch++, y += (ptrdiff_t)m * n) {
        const float *p = a, *q = b;
        int32_t rest = batch;
        poetc_gemm g;
        for (axis = axes - 1; axis >= 0; axis--) {
            const int32_t *loop = ints + 7 + 3 * axis;
            p += (ptrdiff_t)(rest % loop[0]) * loop[1];
            q += (ptrdiff_t)(rest % loop[0]) * loop[2];
            rest /= loop[0];
        }
        g.rows = m, g.a_row = trans_a ? 1 : k, g.a_k = trans_a ? m : 1;
        g.terms = terms, g.a_block = terms * g.a_k;
        g.row_bias = NULL, g.column_bias = call->floats[0] == 1.0f ? bias : NULL;
        g.y = y, g.y_row = n, g.segment_step = 0, g.segment = n;
        POETC_NOTHING_AHEAD(g);
        POETC_SPLIT_ROWS(g, split);
        for (column = POETC_BEGIN(split.columns, n, POETC_GEMM_COLUMNS);
             column < POETC_END(split.columns, n, POETC_GEMM_COLUMNS); column += space.columns) {
            g.column = column;
            g.columns = poetc_min(space.columns, POETC_END(split.columns, n, POETC_GEMM_COLUMNS) - column);
            for (first = 0; first < k; first += space.depth) {
                g.depth = poetc_min(space.depth, k - first);
                if (trans_b)
                    poetc_gemm_pack_transposed(&space, q + (ptrdiff_t)column * k + first, k, 0, g.depth, g.depth,
                                               g.columns);
                else
                    poetc_gemm_pack(&space, q + (ptrdiff_t)first * n + column, n, g.depth, g.columns);
                g.a = p + first * g.a_k, g.accumulate = first > 0;
                set_ahead(&g, &space, q, trans_b, first, n, k);
                poetc_gemm_run(&g, &space);
            }
            if (call->floats[0] != 1.0f)
                finish(y + column, n, m, g.columns, call->floats[0], bias ? bias + column : NULL);
        }
    }
    return POETC_OK;
}
