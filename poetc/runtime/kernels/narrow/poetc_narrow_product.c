/* The loop over blocks of rows, columns and terms.
 *
 * Layout: poetc_narrow_product.h.
 * Order of sums: poetc_narrow_product.h. */
#include "narrow/poetc_narrow_product.h"
#include "simd/poetc_half.h"

int poetc_narrow_put(const poetc_narrow_result *result, ptrdiff_t first, float *sums, int32_t count)
{
    int32_t i = 0;
    if (result->is_checked) {
        uint32_t largest = 0u;
#if defined(POETC_HELIUM)
        for (; i < count; i += 4) {
            const mve_pred16_t some = vctp32q((uint32_t)(count - i));
            const uint32x4_t words = vreinterpretq_u32_f32(vldrwq_z_f32(sums + i, some));
            largest = vmaxvq_p_u32(largest, vandq_u32(words, vdupq_n_u32(0x7fffffffu)), some);
        }
#endif
        for (; i < count; i++) {
            const uint32_t size = poetc_bits(sums[i]) & 0x7fffffffu;
            largest = size > largest ? size : largest;
        }
        if (largest >= 0x7f800000u)
            return POETC_EEXPONENT;
    }
    if (result->rate) {
        float *w = (float *)result->y + first;
        const float rate = *result->rate;
        i = 0;
#if POETC_LANES > 1
        for (; i + POETC_LANES <= count; i += POETC_LANES) {
            poetc_vector v = poetc_vector_load(w + i);
            POETC_SUBTRACT_SCALED(v, poetc_vector_load(sums + i), rate);
            poetc_vector_store(w + i, v);
        }
#endif
        for (; i < count; i++)
            w[i] = POETC_FMS(sums[i], rate, w[i]);
        return POETC_OK;
    }
    return poetc_narrow(result->y, result->stored, first, sums, count);
}

void poetc_narrow_begin(poetc_narrow_product *p, int32_t rows, int32_t columns, int32_t depth, float *workspace,
                        int32_t workspace_floats)
{
    const int32_t most_terms = poetc_min(depth, POETC_NARROW_TERMS);
    const int32_t space_floats =
        16 + (12 + POETC_NARROW_COLUMNS) * most_terms; /* 12: rows of a register block, at most */
    p->rows = rows, p->columns = columns, p->depth = depth;
    p->space = poetc_gemm_carve(workspace, space_floats, most_terms, 1, POETC_NARROW_COLUMNS, 0);
    p->strip = workspace + space_floats;
    p->sums = p->strip + poetc_min(rows, POETC_NARROW_STRIP) * most_terms;
    workspace[workspace_floats - 1] = 0.0f; /* so that all of it is touched, whatever the target */
    p->row = p->column = p->term = p->strip_row = 0;
    p->strip_rows = 0; /* nothing yet */
}

int poetc_narrow_next(poetc_narrow_product *p)
{
    p->strip_row += p->strip_rows;
    if (p->strip_rows > 0 && p->strip_row == p->row + p->row_count) {
        p->strip_row = p->row;
        p->term += p->terms;
        if (p->term == p->depth) {
            p->term = 0;
            p->column += p->column_count;
            if (p->column == p->columns) {
                p->column = 0;
                p->strip_row = p->row += p->row_count;
            }
        }
    }
    if (p->row >= p->rows || p->columns == 0 || p->depth == 0)
        return 0;
    p->row_count = poetc_min(p->rows - p->row, POETC_NARROW_ROWS);
    p->column_count = poetc_min(p->columns - p->column, POETC_NARROW_COLUMNS);
    p->terms = poetc_min(p->depth - p->term, POETC_NARROW_TERMS);
    p->strip_rows = poetc_min(p->row + p->row_count - p->strip_row, POETC_NARROW_STRIP);
    p->begins = p->strip_row == p->row;
    p->ends = p->term + p->terms == p->depth && p->strip_row + p->strip_rows == p->row + p->row_count;
    return 1;
}

void poetc_narrow_multiply(const poetc_narrow_product *p)
{
    poetc_gemm g;
    g.rows = p->strip_rows, g.columns = p->column_count, g.depth = g.terms = p->terms;
    g.a = p->strip, g.a_row = p->terms, g.a_k = 1, g.a_block = p->terms;
    g.y = p->sums + (p->strip_row - p->row) * POETC_NARROW_COLUMNS, g.y_row = POETC_NARROW_COLUMNS;
    g.segment = 1 << 30, g.segment_step = 1 << 30, g.column = 0;
    g.accumulate = p->term > 0, g.row_bias = g.column_bias = NULL;
    POETC_NOTHING_AHEAD(g);
    POETC_ALL_ROWS(g);
    poetc_gemm_run(&g, &p->space);
}
