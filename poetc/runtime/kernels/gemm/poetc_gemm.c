/* The product of packed operands: y[rows, columns] += a[rows, depth] b[depth, columns], driven block by block.
 *
 * Layout: poetc_gemm.h describes the operands, poetc_gemm_pack.h the panels, poetc_gemm_block.h the register blocks.
 * Order of sums: each result adds its terms in sequence within a block of terms, and the blocks in sequence. Results at
 * an edge go through a tile, by the same register blocks. */
#include "gemm/poetc_gemm_block.h"
#include "gemm/poetc_gemm_panels.h"

#define MOST_DEPTH 256 /* rows of a block of a, so long, lie in the innermost cache */
#define DEEP_PANELS 2  /* rows of a that so few columns share are read once or twice: in long pieces, which the
                        * processor sees coming */
#define SHORT_ROW 1024 /* floats: such rows are fetched ahead by hand */

/* Copy `width` columns of y from number `column` on into the tile, or back. */
POETC_APART void exchange(const poetc_gemm *g, float *y, int32_t rows, int32_t column, int32_t width, float *tile,
                          int back)
{
    while (width > 0) {
        const int32_t image = column < g->segment ? 0 : column / g->segment, within = column - image * g->segment;
        const int32_t count = poetc_min(width, g->segment - within);
        float *at = y + image * g->segment_step + within;
        int32_t i;
        for (i = 0; i < rows; i++, at += g->y_row) {
            if (back)
                poetc_put_piece(at, tile + i * COLUMNS, 1, count);
            else
                poetc_put_piece(tile + i * COLUMNS, at, 1, count);
        }
        column += count, tile += count, width -= count;
    }
}

/* rows, a multiple of 4 and a constant wherever this is inlined, contiguous in a. */
POETC_INLINE void pack_contiguous(float *to, const float *from, ptrdiff_t step, int32_t depth, const int rows)
{
    int32_t k;
    int i;
#if LANES == 1
    (void)i, (void)rows;
    for (k = depth; k > 0; k--, from += step - 4)
        POETC_COPY_QUAD(to, from);
#else
    for (k = 0; k < depth; k++, from += step, to += rows) {
        PREFETCH(from + rows + 16); /* for the next block: caches do not foresee steps of many lines */
#if LANES == 16
        if (rows == 12) {
            const __mmask16 twelve = 0xfff;
            _mm512_mask_storeu_ps(to, twelve, _mm512_maskz_loadu_ps(twelve, from));
            continue;
        }
#endif
        POETC_UNROLL
        for (i = 0; i < rows; i += 4)
            poetc_f4_store(to + i, poetc_f4_load(from + i));
    }
#endif
}

POETC_APART void pack_rows(float *to, const poetc_gemm *g, int32_t row, int32_t rows)
{
    const float *from = g->a + row * g->a_row;
    int32_t k, i;
#if POETC_GEMM_ROWS >= 12
    if (g->a_row == 1 && rows == 12) {
        pack_contiguous(to, from, g->a_k, g->depth, 12);
        return;
    }
    if (g->a_row == 1 && rows == 8) {
        pack_contiguous(to, from, g->a_k, g->depth, 8);
        return;
    }
#endif
    if (g->a_row == 1 && rows == 4) {
        pack_contiguous(to, from, g->a_k, g->depth, 4);
#if defined(POETC_HELIUM)
    } else if (g->a_row == 1 && rows == 6) {
        if (g->depth > 0)
            /* clang-format off */
            __asm__ volatile("dls lr, %[n]\n1:\tvldrw.u32 q0, [%[from]]\n\tldrd r4, r5, [%[from], #16]\n\tadd %[from], %[from], %[step]\n\t"
                             "vstrw.32 q0, [%[to]], #16\n\tstrd r4, r5, [%[to]], #8\n\tle lr, 1b"
                             : [from] "+r"(from), [to] "+r"(to)
                             : [n] "r"(g->depth), [step] "r"(4 * g->a_k)
                             : "lr", "r4", "r5", "q0", "memory");
        /* clang-format on */
    } else if (g->a_k == 1) {
        poetc_pack_apart(to, from, g->a_row, rows, g->depth);
#endif
#if LANES == 1
    } else if (rows < 4) {
        for (i = 0; i < rows; i++)
            for (k = 0; k < g->depth; k++)
                *to++ = from[i * g->a_row + k * g->a_k];
    } else if (g->a_k == 1) {
        poetc_gather_runs(to, from, from + g->a_row, from + 2 * g->a_row, from + 3 * g->a_row, g->depth);
#endif
    } else {
        for (k = 0; k < g->depth; k++, from += g->a_k)
            for (i = 0; i < rows; i++)
                *to++ = from[i * g->a_row];
    }
}

#ifdef POETC_AHEAD
/* In as many parts, at least. */
static lines_ahead look_ahead(const poetc_ahead *ahead, int32_t parts)
{
    lines_ahead l = {ahead->from, 0, (ahead->floats + LINE - 1) / LINE, 0, ahead->rows, 0};
    l.left = l.width, l.jump = ahead->step - l.width * LINE;
    if (ahead->rows > 0 && parts > 0)
        l.each = (l.width * l.rows + parts - 1) / parts;
    return l;
}

/* The data that the block of rows from number `row` on will read. It is weights that descend, or rows of a if they are
 * short. Pieces of long ones cost more than they give. */
static lines_ahead look_ahead_of_rows(const poetc_gemm *g, int32_t row, int32_t parts)
{
    const int32_t rows = poetc_min(POETC_GEMM_ROWS, g->rows - row);
    poetc_ahead next = {NULL, 0, 0, 0};
    if (rows > 0 && g->rate && g->columns <= SHORT_ROW)
        next = (poetc_ahead){g->y + row * g->y_row, g->y_row, rows, g->columns};
    else if (rows > 0 && g->a_k == 1 && ((g->a_row <= g->depth && g->a_row <= SHORT_ROW) || g->depth <= g->terms))
        next = (poetc_ahead){g->a + row * g->a_row, g->a_row, rows, g->depth};
    return look_ahead(&next, parts);
}
#endif

void poetc_gemm_run(const poetc_gemm *g, const poetc_gemm_space *space)
{
    float tile[POETC_GEMM_ROWS * COLUMNS], bias[COLUMNS]; /* a block at an edge */
    int32_t row, column, rows, i;
#ifdef POETC_AHEAD
    const int32_t pieces = (poetc_min(g->depth, g->terms) + BRING_TERMS - 1) / BRING_TERMS; /* of a block of terms */
    const int32_t times = (g->columns + COLUMNS - 1) / COLUMNS * ((g->depth + g->terms - 1) / g->terms) * pieces;
    lines_ahead lines = look_ahead(&g->ahead, times * ((g->rows + POETC_GEMM_ROWS - 1) / POETC_GEMM_ROWS));
#endif
    for (row = POETC_BEGIN(g->share, g->rows, POETC_GEMM_PART); row < POETC_END(g->share, g->rows, POETC_GEMM_PART);
         row += rows) {
        float *y = g->y + row * g->y_row;
        block_task t;
        rows = block_rows(POETC_END(g->share, g->rows, POETC_GEMM_PART) - row);
        t.a = g->a + row * g->a_row, t.a_row = g->a_row;
        t.packed = ALWAYS_PACKED || g->a_k != 1 || (rows == 4 && g->columns >= PACKING_PAYS);
        t.depth = g->depth, t.accumulate = g->accumulate;
#ifdef POETC_AHEAD
        if (g->ahead.rows == 0)
            lines = look_ahead_of_rows(g, row + rows, times);
        t.ahead = &lines, t.scale = g->scale;
#endif
#ifdef POETC_AT_ONCE
        t.rate = g->rate;
#endif
#if MANY_BLOCKS
        t.terms = g->terms, t.a_block = t.packed ? g->terms * rows : g->a_block;
#endif
        t.row_bias = g->row_bias && !g->accumulate ? g->row_bias + row : NULL;
        t.column_bias = NULL;
        if (t.packed) {
            pack_rows(space->rows, g, row, rows);
            t.a = space->rows;
#if LANES == 1
            t.a_row = rows < 4 ? g->depth : 1;
#endif
        }
#if LANES == 1
        t.a_k = t.packed && rows == 4 ? 4 : 1;
#endif
        for (column = 0; column < g->columns; column += t.panels * COLUMNS) {
            const int32_t left = g->columns - column, width = poetc_min(COLUMNS, left), at = g->column + column;
            const int32_t image = at < g->segment ? 0 : at / g->segment, within = at - image * g->segment;
            const int32_t room = poetc_min(left, g->segment - within);
            t.b = poetc_gemm_panel(space, column, g->depth);
            t.narrow = HALF && width <= HALF;
            t.panels = 1;
            if (g->column_bias && !g->accumulate)
                t.column_bias = g->column_bias + at;
            if (room >= COLUMNS || (t.narrow && room == HALF)) {
                if (room >= COLUMNS)
                    t.panels = room / COLUMNS;
                t.y = y + image * g->segment_step + within, t.y_row = g->y_row;
                run_block(rows, &t);
            } else if (IN_ASSEMBLY && width == 1 && rows == 4) {
                t.y = y + image * g->segment_step + within, t.y_row = g->y_row;
                single_column(&t);
            } else {
                if (t.column_bias) {
                    for (i = 0; i < COLUMNS; i++)
                        bias[i] = i < width ? t.column_bias[i] : 0.0f;
                    t.column_bias = bias;
                }
                t.y = tile, t.y_row = COLUMNS;
                if (g->accumulate || POETC_RATE(*g))
                    exchange(g, y, rows, at, width, tile, 0);
                run_block(rows, &t);
                exchange(g, y, rows, at, width, tile, 1);
            }
        }
    }
}

poetc_gemm_space poetc_gemm_carve(float *workspace, int32_t size, int32_t terms, int32_t blocks, int32_t columns,
                                  int pack_rows)
{
    poetc_gemm_space space;
    /* Panels on a cache line: a vector that crosses two costs twice. */
    ptrdiff_t skip = (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
    const int32_t rows = pack_rows || ALWAYS_PACKED || IN_ASSEMBLY ? POETC_GEMM_ROWS : 0;
#if IN_ASSEMBLY
    skip = poetc_min((int32_t)skip, 12); /* the four floats behind the last panel are read */
#endif
    space.panels = workspace + skip;
    workspace[size - 1] = 0.0f; /* so that the memory that is touched does not depend on the address */
    size -= 16;
    space.depth = terms;
#if MANY_BLOCKS
    {
        const int32_t most = COLUMNS > 128 ? 1 : 128 / COLUMNS, needed = (columns + COLUMNS - 1) / COLUMNS;
        const int32_t fit = size / (terms * (poetc_min(most, needed) * COLUMNS + rows));
        if (fit > 1 && !rows) /* rows of few floats that lie far apart are best packed few at a time */
            space.depth =
                terms * poetc_min(poetc_min(fit, blocks), needed <= DEEP_PANELS ? blocks : MOST_DEPTH / terms);
    }
#else
    (void)blocks, (void)columns;
#endif
    size -= rows * space.depth;
    space.columns = size / (space.depth * COLUMNS) * COLUMNS;
    space.rows = space.panels + (ptrdiff_t)space.columns * space.depth;
    return space;
}
