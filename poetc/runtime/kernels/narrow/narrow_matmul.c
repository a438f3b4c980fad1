/* Products of matrices stored in 16 bits: y = op(a) op(b) + bias.
 *
 * Layout: row-major matrices, each of which may be read transposed. Operands in 32 bits are rounded when they are
 * packed. Order of sums: poetc_narrow_product.h; the bias comes last. */
#include "narrow/poetc_narrow_lanes.h"
#include "narrow/poetc_narrow_product.h"

typedef struct {
    int32_t columns, a_row, a_term, b_term, b_column; /* steps */
    const void *a, *b;
    poetc_stored a_stored, b_stored;
    poetc_narrow_result result;
} matrices;

static void rows_of_a(const matrices *m, const poetc_narrow_product *p)
{
    int32_t i;
    for (i = 0; i < p->strip_rows; i++)
        poetc_widen(p->strip + i * p->terms, m->a, m->a_stored,
                    (ptrdiff_t)(p->strip_row + i) * m->a_row + (ptrdiff_t)p->term * m->a_term, m->a_term, p->terms);
}

POETC_APART void columns_of_b(const matrices *m, const poetc_narrow_product *p)
{
    float line[POETC_NARROW_COLUMNS];
    int32_t k;
    for (k = 0; k < POETC_NARROW_COLUMNS; k++)
        line[k] = 0.0f;
    for (k = 0; k < p->terms; k++) {
        poetc_widen(line, m->b, m->b_stored, (ptrdiff_t)(p->term + k) * m->b_term + (ptrdiff_t)p->column * m->b_column,
                    m->b_column, p->column_count);
        poetc_narrow_put_line(&p->space, p->terms, k, line);
    }
}

static int store(const matrices *m, const poetc_narrow_product *p)
{
    float *sums = p->sums;
    int32_t i, k;
    for (i = 0; i < p->row_count; i++, sums += POETC_NARROW_COLUMNS) {
        int err;
        for (k = 0; m->result.bias && k < p->column_count; k++)
            sums[k] += m->result.bias[p->column + k];
        err = poetc_narrow_put(&m->result, (ptrdiff_t)(p->row + i) * m->columns + p->column, sums, p->column_count);
        if (err)
            return err;
    }
    return POETC_OK;
}

/* --- few rows, or few terms: without a workspace; packed operands are on the stack --- */

#define FEW 4 /* terms; poetc/ops/_narrow_kernels.py has the same number */
#define ROWS_AT_ONCE 8

/* to += from * factor, or to = 0 + from * factor, for `count` floats or up to a whole vector; products are exact. */
POETC_INLINE void add_scaled(const int is_first, float *to, const float *from, float factor, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i += POETC_LANES) {
        poetc_vector sum = is_first ? (poetc_vector){0} : poetc_vector_load(to + i);
        POETC_ADD_EXACT(sum, poetc_vector_load(from + i), factor);
        poetc_vector_store(to + i, sum);
    }
}

static void clear(float *to, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = 0.0f;
}

#if POETC_FOUR
/* A block of terms of 4 * `vectors` sums, whose weights are rounded on their way to the registers. */
POETC_INLINE void add_vectors(const int form, const int is_dense, const int vectors, const matrices *m, const float *a,
                              int32_t terms, const float *b, float *sums)
{
    const poetc_powers powers = poetc_powers_of(m->b_stored);
    const ptrdiff_t apart = is_dense ? 4 : 4 * (ptrdiff_t)m->b_column;
    float32x4_t part[4];
    int i;
    POETC_UNROLL
    for (i = 0; i < vectors; i++)
        part[i] = vdupq_n_f32(0.0f);
    for (; terms > 0; terms--, a++, b += m->b_term) {
        POETC_UNROLL
        for (i = 0; i < vectors; i++)
            part[i] = vfmaq_n_f32(part[i], poetc_four(form, is_dense, b + i * apart, m->b_column, powers, 4), *a);
    }
    POETC_UNROLL
    for (i = 0; i < vectors; i++)
        vst1q_f32(sums + 4 * i, vaddq_f32(vld1q_f32(sums + 4 * i), part[i]));
}

/* How many columns were done. */
POETC_INLINE int32_t add_weights(const int form, const int is_dense, const matrices *m, const float *a, int32_t terms,
                                 const float *b, float *sums, int32_t columns)
{
    int32_t j = 0;
    for (; j + 16 <= columns; j += 16)
        add_vectors(form, is_dense, 4, m, a, terms, b + (ptrdiff_t)j * m->b_column, sums + j);
    for (; j + 4 <= columns; j += 4)
        add_vectors(form, is_dense, 1, m, a, terms, b + (ptrdiff_t)j * m->b_column, sums + j);
    return j;
}
#endif

/* A block of terms of some columns' sums in one row. */
static void add_terms(const matrices *m, const float *a, int32_t term, int32_t terms, int32_t column, int32_t columns,
                      float *sums)
{
    float b[POETC_NARROW_COLUMNS], parts[POETC_NARROW_COLUMNS];
    int32_t k;
    ptrdiff_t at = (ptrdiff_t)term * m->b_term + (ptrdiff_t)column * m->b_column;
#if POETC_FOUR
    const int form = m->b_stored.form, is_dense = m->b_column == 1;
    const float *w = (const float *)m->b + at;
    int32_t done = 0;
    if (form == POETC_FORM_TO_F16)
        done = is_dense ? add_weights(POETC_FORM_TO_F16, 1, m, a, terms, w, sums, columns)
                        : add_weights(POETC_FORM_TO_F16, 0, m, a, terms, w, sums, columns);
    else if (form == POETC_FORM_TO_BF16)
        done = is_dense ? add_weights(POETC_FORM_TO_BF16, 1, m, a, terms, w, sums, columns)
                        : add_weights(POETC_FORM_TO_BF16, 0, m, a, terms, w, sums, columns);
    at += (ptrdiff_t)done * m->b_column, columns -= done, sums += done;
    if (columns == 0)
        return;
#endif
    clear(b, POETC_NARROW_COLUMNS);
    clear(parts, POETC_NARROW_COLUMNS);
    for (k = 0; k < terms; k++, at += m->b_term) {
        poetc_widen(b, m->b, m->b_stored, at, m->b_column, columns);
        add_scaled(0, parts, b, a[k], columns);
    }
    for (k = 0; k < columns; k++)
        sums[k] += parts[k];
}

POETC_APART int run_few_rows(const matrices *m, poetc_narrow_product *p, int32_t rows, int32_t columns, int32_t depth)
{
    float a[POETC_NARROW_TERMS], sums[POETC_NARROW_COLUMNS];
    p->strip = a, p->sums = sums, p->strip_rows = p->row_count = 1;
    for (p->row = 0; p->row < rows; p->row++) {
        p->strip_row = p->row;
        for (p->column = 0; p->column < columns; p->column += POETC_NARROW_COLUMNS) {
            int err;
            p->column_count = poetc_min(columns - p->column, POETC_NARROW_COLUMNS);
            clear(sums, POETC_NARROW_COLUMNS);
            for (p->term = 0; p->term < depth; p->term += POETC_NARROW_TERMS) {
                p->terms = poetc_min(depth - p->term, POETC_NARROW_TERMS);
                rows_of_a(m, p);
                add_terms(m, a, p->term, p->terms, p->column, p->column_count, sums);
            }
            err = store(m, p);
            if (err)
                return err;
        }
    }
    return POETC_OK;
}

/* The columns of all terms are read once for many rows. */
POETC_APART int run_few_terms(const matrices *m, poetc_narrow_product *p, int32_t rows, int32_t columns, int32_t depth)
{
    float a[FEW * ROWS_AT_ONCE], b[FEW * POETC_NARROW_COLUMNS], sums[POETC_NARROW_COLUMNS];
    int32_t i, k;
    clear(b, FEW * POETC_NARROW_COLUMNS);
    p->sums = sums, p->row_count = 1;
    for (p->column = 0; p->column < columns; p->column += POETC_NARROW_COLUMNS) {
        p->column_count = poetc_min(columns - p->column, POETC_NARROW_COLUMNS);
        for (k = 0; k < depth; k++)
            poetc_widen(b + k * POETC_NARROW_COLUMNS, m->b, m->b_stored,
                        (ptrdiff_t)k * m->b_term + (ptrdiff_t)p->column * m->b_column, m->b_column, p->column_count);
        for (p->row = i = 0; p->row < rows; p->row++, i++) {
            int err;
            i = i == ROWS_AT_ONCE ? 0 : i;
            for (k = 0; i == 0 && k < depth; k++)
                poetc_widen(a + k * ROWS_AT_ONCE, m->a, m->a_stored,
                            (ptrdiff_t)p->row * m->a_row + (ptrdiff_t)k * m->a_term, m->a_row,
                            poetc_min(rows - p->row, ROWS_AT_ONCE));
            add_scaled(1, sums, b, a[i], p->column_count);
            for (k = 1; k < depth; k++)
                add_scaled(0, sums, b + k * POETC_NARROW_COLUMNS, a[k * ROWS_AT_ONCE + i], p->column_count);
            err = store(m, p);
            if (err)
                return err;
        }
    }
    return POETC_OK;
}

/* ints: rows, columns, depth, four steps, whether there is a bias, form and scale of a, b and y, floats of workspace.
 */
static int run(const poetc_call *call, unsigned a, const float *bias, unsigned y, const float *rate)
{
    const int32_t *i = call->ints;
    poetc_narrow_product p;
    matrices m;
    m.columns = i[1], m.a_row = i[3], m.a_term = i[4], m.b_term = i[5], m.b_column = i[6];
    m.a = poetc_in(call, a), m.b = poetc_in(call, a + 1);
    m.a_stored = poetc_stored_of(i + 8), m.b_stored = poetc_stored_of(i + 10);
    m.result.y = poetc_out(call, y), m.result.stored = poetc_stored_of(i + 12);
    m.result.rate = rate, m.result.bias = bias;
    m.result.is_checked = m.a_stored.form == POETC_FORM_TO_F16 || m.b_stored.form == POETC_FORM_TO_F16;
    if (i[14] == 0)
        return i[2] <= FEW ? run_few_terms(&m, &p, i[0], i[1], i[2]) : run_few_rows(&m, &p, i[0], i[1], i[2]);
    poetc_narrow_begin(&p, i[0], i[1], i[2], poetc_out(call, y + 1), i[14]);
    while (poetc_narrow_next(&p)) {
        int err;
        if (p.begins)
            columns_of_b(&m, &p);
        rows_of_a(&m, &p);
        poetc_narrow_multiply(&p);
        err = p.ends ? store(&m, &p) : POETC_OK;
        if (err)
            return err;
    }
    return POETC_OK;
}

/* a, b, bias[N]? -> y[M,N] */
int poetc_op_narrow_matmul(const poetc_call *call);
int poetc_op_narrow_matmul(const poetc_call *call)
{
    const int has_bias = call->ints[7] != 0;
    return run(call, 0, has_bias ? poetc_in(call, 2) : NULL, has_bias ? 3 : 2, NULL);
}

/* w, a, b, rate[1] -> w - rate op(a) op(b), in place */
int poetc_op_narrow_matmul_sgd(const poetc_call *call);
int poetc_op_narrow_matmul_sgd(const poetc_call *call)
{
    return run(call, 1, NULL, 4, poetc_in(call, 3));
}
