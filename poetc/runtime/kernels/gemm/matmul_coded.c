/* y = alpha * x op(w) + bias, w a coded matrix that is decoded a tile at a time. A few rows take the decoded numbers
 * from registers.
 *
 * Layout: the workspace has a tile of decoded numbers, then packed panels (poetc_gemm.h). w is [columns, depth] if it
 * is turned, else [depth, columns].
 * Order of sums: that of matmul_packed.c, so that the bits are those of the decoded matrix. */
#include "gemm/poetc_coded_block.h"

#ifdef POETC_CODE_LANES

/* The product of the few rows with the columns that vectors decode, from the first one on; returns their number. */
POETC_APART int32_t take_codes(const poetc_coded *w, int turned, int32_t first, const poetc_gemm *g, float *strip)
{
    coded_task t = {.column = g->column,
                    .columns = g->columns - g->columns % PAIR,
                    .x_row = g->a_row,
                    .y_row = g->y_row};
    int32_t row, at, rows, i, k;
    if (t.columns == 0 || !coded_fits(w, turned, first, g->depth) || !coded_fits(w, turned, first, g->terms))
        return 0;
    for (at = 0; at < g->depth; at += g->terms) {
        t.first = first + at, t.depth = poetc_min(g->terms, g->depth - at);
        t.accumulate = g->accumulate || at > 0;
        t.bias = g->column_bias;
        for (row = 0; row < g->rows; row += rows) {
            const int32_t more = g->rows - row;
            rows = more >= MOST_ROWS ? MOST_ROWS : more >= 4 ? 4 : more >= 2 ? 2 : 1;
            t.x = g->a + at + row * g->a_row, t.y = g->y + row * g->y_row;
            if (rows >= 4) {
                for (i = 0; i < rows; i++)
                    for (k = 0; k < t.depth; k++)
                        strip[k * rows + i] = t.x[i * g->a_row + k];
                t.x = strip;
            }
#if MOST_ROWS == 8
            if (rows == 8)
                coded_8(w, turned, &t);
            else
#endif
                if (rows == 4)
                coded_4(w, turned, &t);
            else if (rows == 2)
                coded_2(w, turned, &t);
            else
                coded_1(w, turned, &t);
        }
    }
    return t.columns;
}

/* Panels of the columns that vectors decode, likewise. */
POETC_APART int32_t pack_codes(const poetc_coded *w, int turned, int32_t first, const poetc_gemm *g, float *panels)
{
    coded_task t = {.first = first, .depth = g->depth, .column = g->column, .columns = g->columns - g->columns % PAIR};
    if (t.columns == 0 || !coded_fits(w, turned, first, g->depth))
        return 0;
    t.panels = panels;
    coded_0(w, turned, &t);
    return t.columns;
}

#else
#define FEW_ROWS 0
#define take_codes(w, turned, first, g, strip) 0
#define pack_codes(w, turned, first, g, panels) 0
#endif

/* Panels of the columns from number `done` on. */
static void pack_decoded(const poetc_coded *w, int turned, int32_t first, const poetc_gemm *g,
                         const poetc_gemm_space *space, int32_t done, float *strip)
{
    const int32_t columns = g->columns - done, column = g->column + done;
    poetc_gemm_space rest = *space;
    int32_t j;
    if (columns == 0)
        return;
    rest.panels = poetc_gemm_panel(space, done, g->depth);
    if (turned) {
        for (j = 0; j < columns; j++)
            poetc_decode(w, column + j, first, g->depth, strip + (ptrdiff_t)j * g->depth);
        poetc_gemm_pack_transposed(&rest, strip, g->depth, 0, g->depth, g->depth, columns);
    } else {
        for (j = 0; j < g->depth; j++)
            poetc_decode(w, first + j, column, columns, strip + (ptrdiff_t)j * columns);
        poetc_gemm_pack(&rest, strip, columns, g->depth, columns);
    }
}

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
    int32_t column, first, i, j, done, decoded, width;
    POETC_THREADED(poetc_op_matmul_coded, call, (int64_t)rows * columns * depth, tile + n[9]);
    {
        POETC_SPLIT(split, call->share, 1, 0, columns)
        const int32_t begin = POETC_BEGIN(split.columns, columns, POETC_GEMM_COLUMNS);
        const int32_t end = POETC_END(split.columns, columns, POETC_GEMM_COLUMNS);
        poetc_gemm g;
        g.rows = rows, g.a_row = depth, g.a_k = 1;
        g.terms = terms, g.a_block = terms;
        g.row_bias = NULL, g.column_bias = alpha == 1.0f ? bias : NULL;
        g.y = y, g.y_row = columns, g.segment_step = 0, g.segment = columns;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        for (column = begin; column < end; column += width) {
            width = poetc_min(rows <= FEW_ROWS ? columns : space.columns, end - column);
            for (first = 0; first < depth; first += space.depth) {
                g.depth = poetc_min(space.depth, depth - first), g.column = column, g.columns = width;
                g.a = x + first, g.accumulate = first > 0;
                done = rows <= FEW_ROWS ? take_codes(&w, turned, first, &g, strip) : 0;
                for (; done < width; done += g.columns) {
                    g.column = column + done, g.columns = poetc_min(space.columns, width - done);
                    decoded = pack_codes(&w, turned, first, &g, space.panels);
                    pack_decoded(&w, turned, first, &g, &space, decoded, strip);
                    poetc_gemm_run(&g, &space);
                }
            }
            if (alpha != 1.0f)
                for (i = 0; i < rows; i++) {
                    float *at = y + (ptrdiff_t)i * columns + column;
                    for (j = 0; j < width; j++)
                        at[j] = bias ? alpha * at[j] + bias[column + j] : alpha * at[j];
                }
        }
    }
    return POETC_OK;
}
