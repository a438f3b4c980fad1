/* Products of matrices stored in 16 bits: y = op(a) op(b) + bias.
 *
 * Layout: row-major matrices, each of which may be read transposed. Operands in 32 bits are rounded when they are
 * packed. Order of sums: poetc_narrow_product.h; the bias comes last. */
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

static void columns_of_b(const matrices *m, const poetc_narrow_product *p)
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

#define FEW_COLUMNS 4 /* at once, without a workspace: they are on the stack */

/* A row at a time, from where the operands lie: its sums are on the stack. */
static int run_in_place(const matrices *m, int32_t rows, int32_t columns, int32_t depth)
{
    float a[POETC_NARROW_TERMS], b[FEW_COLUMNS], parts[FEW_COLUMNS], sums[FEW_COLUMNS];
    poetc_narrow_product p;
    int32_t j, k;
    p.strip = a, p.sums = sums, p.strip_rows = p.row_count = 1;
    for (p.row = 0; p.row < rows; p.row++) {
        p.strip_row = p.row;
        for (p.column = 0; p.column < columns; p.column += FEW_COLUMNS) {
            int err;
            p.column_count = poetc_min(columns - p.column, FEW_COLUMNS);
            for (j = 0; j < p.column_count; j++)
                sums[j] = 0.0f;
            for (p.term = 0; p.term < depth; p.term += POETC_NARROW_TERMS) {
                p.terms = poetc_min(depth - p.term, POETC_NARROW_TERMS);
                rows_of_a(m, &p);
                for (j = 0; j < p.column_count; j++)
                    parts[j] = 0.0f;
                for (k = 0; k < p.terms; k++) {
                    poetc_widen(b, m->b, m->b_stored,
                                (ptrdiff_t)(p.term + k) * m->b_term + (ptrdiff_t)p.column * m->b_column, m->b_column,
                                p.column_count);
                    for (j = 0; j < p.column_count; j++)
                        parts[j] += a[k] * b[j];
                }
                for (j = 0; j < p.column_count; j++)
                    sums[j] += parts[j];
            }
            err = store(m, &p);
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
        return run_in_place(&m, i[0], i[1], i[2]);
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
