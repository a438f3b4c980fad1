/* Products whose workspace ends before `behind`, at every distance from a line of 64 bytes, for test_panels.py. Takes
 * the place of port/train.c. */
#include "gemm/poetc_gemm.h"
#include "poetc_port.h"

enum { ROWS = 4, MOST = 72, BEGIN = 1024 + 1 }; /* floats: `behind` is no multiple of 16 bytes */

float before[BEGIN + 63] __attribute__((aligned(64), section(".bss.poetc_arena"))); /* not cleared */
#define behind (before + BEGIN)
static float a[ROWS * MOST], b[MOST * MOST], y[ROWS * MOST];

/* Whether the product of ones is the number of its terms. */
static int is_right(int32_t size, int32_t depth, int32_t columns)
{
    const poetc_gemm_space space = poetc_gemm_carve(behind - size, size, depth, 1, columns, 0);
    poetc_gemm g;
    int32_t i;
    if (space.columns < columns)
        return 1;
    g.rows = ROWS, g.a = a, g.a_row = depth, g.a_k = 1, g.terms = depth, g.a_block = depth, g.depth = depth;
    g.row_bias = g.column_bias = NULL, g.accumulate = 0;
    g.y = y, g.y_row = columns, g.segment_step = 0, g.segment = columns, g.column = 0, g.columns = columns;
    POETC_NOTHING_AHEAD(g);
    POETC_ALL_ROWS(g);
    poetc_gemm_pack(&space, b, columns, depth, columns);
    poetc_gemm_run(&g, &space);
    for (i = 0; i < ROWS * columns; i++)
        if (y[i] != (float)depth)
            return 0;
    return 1;
}

int main(void)
{
    int32_t depth, panels, i;
    for (i = 0; i < ROWS * MOST; i++)
        a[i] = 1.0f;
    for (i = 0; i < MOST * MOST; i++)
        b[i] = 1.0f;
    for (depth = 1; depth <= 8; depth++)
        for (panels = 1; panels <= 16; panels++)
            for (i = 0; i < 16; i++) /* in place and packed, with and without room for more */
                if (!is_right(16 + 4 * depth * panels + 12 * depth + i, depth, 4 * panels) ||
                    !is_right(16 + 4 * depth * panels + i, depth, 4 * panels))
                    return 1;
    return 0;
}
