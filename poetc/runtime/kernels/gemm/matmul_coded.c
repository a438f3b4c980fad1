/* y = alpha * x op(w) + bias, w a coded matrix that is decoded a tile at a time.
 *
 * Layout: the workspace has a tile of decoded numbers, then packed panels (poetc_gemm.h). w is [columns, depth] if it
 * is turned, else [depth, columns].
 * Order of sums: that of matmul_packed.c, so that the bits are those of the decoded matrix. */
#include "gemm/poetc_coded.h"
#include "gemm/poetc_gemm.h"

/* x, codes, scales?, zeros?, bias? -> y. The ints are rows, columns, depth, has_bias, whether w is turned, bits, block
 * and has_zeros. Then come the floats of a tile, the floats of the panels, and the terms of a block. */
int poetc_op_matmul_coded(const poetc_call *call)
{
    const int32_t *n = call->ints, rows = n[0], columns = n[1], depth = n[2], tile = n[8], terms = n[10];
    const int has_bias = n[3], turned = n[4], has_zeros = n[7];
    const unsigned inputs = 2u + (n[5] <= 8) + (unsigned)(!!has_zeros + has_bias);
    const poetc_coded w = poetc_coded_of(call, 1, turned ? depth : columns, n[5], n[6], has_zeros);
    const float *x = poetc_in(call, 0), *bias = has_bias ? poetc_in(call, inputs - 1) : NULL;
    const float alpha = call->floats[0];
    float *y = poetc_out(call, inputs), *strip = POETC_WORKSPACE(call, inputs + 1);
    const poetc_gemm_space space = poetc_gemm_carve(strip + tile, n[9], terms, (depth + terms - 1) / terms, columns, 0);
    int32_t column, first, i, j;
    POETC_THREADED(poetc_op_matmul_coded, call, (int64_t)rows * columns * depth, tile + n[9]);
    {
        POETC_SPLIT(split, call->share, 1, 0, columns)
        poetc_gemm g;
        g.rows = rows, g.a_row = depth, g.a_k = 1;
        g.terms = terms, g.a_block = terms;
        g.row_bias = NULL, g.column_bias = alpha == 1.0f ? bias : NULL;
        g.y = y, g.y_row = columns, g.segment_step = 0, g.segment = columns;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        for (column = POETC_BEGIN(split.columns, columns, POETC_GEMM_COLUMNS);
             column < POETC_END(split.columns, columns, POETC_GEMM_COLUMNS); column += space.columns) {
            g.column = column;
            g.columns = poetc_min(space.columns, POETC_END(split.columns, columns, POETC_GEMM_COLUMNS) - column);
            for (first = 0; first < depth; first += space.depth) {
                g.depth = poetc_min(space.depth, depth - first);
                if (turned) {
                    for (j = 0; j < g.columns; j++)
                        poetc_decode(&w, column + j, first, g.depth, strip + (ptrdiff_t)j * g.depth);
                    poetc_gemm_pack_transposed(&space, strip, g.depth, 0, g.depth, g.depth, g.columns);
                } else {
                    for (j = 0; j < g.depth; j++)
                        poetc_decode(&w, first + j, column, g.columns, strip + (ptrdiff_t)j * g.columns);
                    poetc_gemm_pack(&space, strip, g.columns, g.depth, g.columns);
                }
                g.a = x + first, g.accumulate = first > 0;
                poetc_gemm_run(&g, &space);
            }
            if (alpha != 1.0f)
                for (i = 0; i < rows; i++) {
                    float *at = y + (ptrdiff_t)i * columns + column;
                    for (j = 0; j < g.columns; j++)
                        at[j] = bias ? alpha * at[j] + bias[column + j] : alpha * at[j];
                }
        }
    }
    return POETC_OK;
}
