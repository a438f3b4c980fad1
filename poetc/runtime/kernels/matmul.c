/* y = alpha * op(a) op(b) + bias, batch axes broadcast.
 *
 * Two loops cover the four combinations of transposition: `outer` when one factor is contiguous along a side of the result
 * (4 x 4 results in registers, one vector of that factor a step), `inner` when both are contiguous along the sum (2 x 2
 * results, four lanes along the sum). Sums are made of partial sums of BLOCK terms a lane.
 */
#include "poetc_f4.h"

#define BLOCK 64

typedef struct {
    int32_t rows, columns, depth;           /* of the result as this loop sees it, and terms of a sum */
    const float *p;                         /* p[row * p_row + k * p_k] */
    const float *q;                         /* outer: q[k * q_step + column]; inner: q[column * q_step + k] */
    ptrdiff_t p_row, p_k, q_step;
    const float *bias;                      /* bias[row * bias_row + column * bias_column], or NULL */
    ptrdiff_t bias_row, bias_column;
    float *y;
    ptrdiff_t y_row, y_column;
    float alpha;
} product;

static void put(const product *t, int32_t row, int32_t column, float sum)
{
    float bias = t->bias ? t->bias[row * t->bias_row + column * t->bias_column] : 0.0f;
    t->y[row * t->y_row + column * t->y_column] = t->alpha * sum + bias;
}

static void put_four(const product *t, int32_t row, int32_t column, poetc_f4 sums)
{
    float lanes[4];
    int32_t j;
    poetc_f4_store(lanes, sums);
    for (j = 0; j < 4; j++)
        put(t, row, column + j, lanes[j]);
}

static void outer_4x4(const product *t, int32_t row, int32_t column)
{
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    poetc_f4 y0 = POETC_F4_ZERO, y1 = POETC_F4_ZERO, y2 = POETC_F4_ZERO, y3 = POETC_F4_ZERO;
    int32_t k = 0;
    while (k < t->depth) {
        int32_t end = t->depth - k > BLOCK ? k + BLOCK : t->depth;
        poetc_f4 s0 = POETC_F4_ZERO, s1 = POETC_F4_ZERO, s2 = POETC_F4_ZERO, s3 = POETC_F4_ZERO;
        for (; k < end; k++, p += t->p_k, q += t->q_step) {
            poetc_f4 v = poetc_f4_load(q);
            s0 = poetc_f4_add_scaled(s0, v, p[0]);
            s1 = poetc_f4_add_scaled(s1, v, p[t->p_row]);
            s2 = poetc_f4_add_scaled(s2, v, p[2 * t->p_row]);
            s3 = poetc_f4_add_scaled(s3, v, p[3 * t->p_row]);
        }
        y0 = poetc_f4_add(y0, s0);
        y1 = poetc_f4_add(y1, s1);
        y2 = poetc_f4_add(y2, s2);
        y3 = poetc_f4_add(y3, s3);
    }
    put_four(t, row, column, y0);
    put_four(t, row + 1, column, y1);
    put_four(t, row + 2, column, y2);
    put_four(t, row + 3, column, y3);
}

static void outer_1x4(const product *t, int32_t row, int32_t column)
{
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    poetc_f4 y = POETC_F4_ZERO;
    int32_t k = 0;
    while (k < t->depth) {
        int32_t end = t->depth - k > BLOCK ? k + BLOCK : t->depth;
        poetc_f4 sum = POETC_F4_ZERO;
        for (; k < end; k++, p += t->p_k, q += t->q_step)
            sum = poetc_f4_add_scaled(sum, poetc_f4_load(q), p[0]);
        y = poetc_f4_add(y, sum);
    }
    put_four(t, row, column, y);
}

static void outer_1x1(const product *t, int32_t row, int32_t column)
{
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    float y = 0.0f;
    int32_t k = 0;
    while (k < t->depth) {
        int32_t end = t->depth - k > BLOCK ? k + BLOCK : t->depth;
        float sum = 0.0f;
        for (; k < end; k++, p += t->p_k, q += t->q_step)
            sum += q[0] * p[0];
        y += sum;
    }
    put(t, row, column, y);
}

/* The last block of rows or columns overlaps the one before: it writes the same values again. */
static void outer(const product *t)
{
    int32_t row, column, height = t->rows < 4 ? 1 : 4, width = t->columns < 4 ? 1 : 4;
    for (row = 0; row < t->rows; row += height) {
        int32_t r = row + height > t->rows ? t->rows - height : row;
        for (column = 0; column < t->columns; column += width) {
            int32_t c = column + width > t->columns ? t->columns - width : column;
            if (width == 1) {
                int32_t i;
                for (i = 0; i < height; i++)
                    outer_1x1(t, r + i, c);
            } else if (height == 1) {
                outer_1x4(t, r, c);
            } else {
                outer_4x4(t, r, c);
            }
        }
    }
}

/* Results (row, column), (row, column + right), (row + down, column), ...; down and right are 0 at the last odd ones. */
static void inner_2x2(const product *t, int32_t row, int32_t column, int32_t down, int32_t right)
{
    const float *p0 = t->p + row * t->p_row, *p1 = p0 + down * t->p_row;
    const float *q0 = t->q + column * t->q_step, *q1 = q0 + right * t->q_step;
    float y00 = 0.0f, y01 = 0.0f, y10 = 0.0f, y11 = 0.0f;
    int32_t k = 0, whole = t->depth - t->depth % 4;
    while (k < whole) {
        int32_t end = whole - k > 4 * BLOCK ? k + 4 * BLOCK : whole;
        poetc_f4 s00 = POETC_F4_ZERO, s01 = POETC_F4_ZERO, s10 = POETC_F4_ZERO, s11 = POETC_F4_ZERO;
        for (; k < end; k += 4) {
            poetc_f4 a0 = poetc_f4_load(p0 + k), a1 = poetc_f4_load(p1 + k);
            poetc_f4 b0 = poetc_f4_load(q0 + k), b1 = poetc_f4_load(q1 + k);
            s00 = poetc_f4_add(s00, poetc_f4_mul(a0, b0));
            s01 = poetc_f4_add(s01, poetc_f4_mul(a0, b1));
            s10 = poetc_f4_add(s10, poetc_f4_mul(a1, b0));
            s11 = poetc_f4_add(s11, poetc_f4_mul(a1, b1));
        }
        y00 += poetc_f4_total(s00);
        y01 += poetc_f4_total(s01);
        y10 += poetc_f4_total(s10);
        y11 += poetc_f4_total(s11);
    }
    for (; k < t->depth; k++) {
        y00 += p0[k] * q0[k];
        y01 += p0[k] * q1[k];
        y10 += p1[k] * q0[k];
        y11 += p1[k] * q1[k];
    }
    put(t, row, column, y00);
    if (right)
        put(t, row, column + 1, y01);
    if (down)
        put(t, row + 1, column, y10);
    if (right && down)
        put(t, row + 1, column + 1, y11);
}

static void inner(const product *t)
{
    int32_t row, column;
    for (row = 0; row < t->rows; row += 2)
        for (column = 0; column < t->columns; column += 2)
            inner_2x2(t, row, column, row + 1 < t->rows, column + 1 < t->columns);
}

/* a[..., M, K] or its transpose, b[..., K, N] or its transpose, bias[N]? -> y[..., M, N].
 * ints: M, N, K, trans_a, trans_b, has_bias, batch axes, then for each of them extent, step in a, step in b (floats). */
int poetc_op_matmul(const poetc_call *call)
{
    const int32_t *ints = call->ints, m = ints[0], n = ints[1], k = ints[2], axes = ints[6];
    const int trans_a = ints[3], trans_b = ints[4], has_bias = ints[5];
    const float *a = poetc_in(call, 0), *b = poetc_in(call, 1), *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, has_bias ? 3 : 2);
    int32_t batches = 1, batch, axis;
    for (axis = 0; axis < axes; axis++)
        batches *= ints[7 + 3 * axis];
    for (batch = 0; batch < batches; batch++) {
        const float *p = a, *q = b;
        int32_t rest = batch;
        product t;
        for (axis = axes - 1; axis >= 0; axis--) {
            const int32_t *loop = ints + 7 + 3 * axis;
            p += (ptrdiff_t)(rest % loop[0]) * loop[1];
            q += (ptrdiff_t)(rest % loop[0]) * loop[2];
            rest /= loop[0];
        }
        t.rows = m, t.columns = n, t.depth = k, t.alpha = call->floats[0];
        t.p = p, t.p_row = trans_a ? 1 : k, t.p_k = trans_a ? m : 1;
        t.q = q, t.q_step = trans_b ? k : n;
        t.bias = bias, t.bias_row = 0, t.bias_column = 1;
        t.y = y + (ptrdiff_t)batch * m * n, t.y_row = n, t.y_column = 1;
        if (!trans_b) {
            outer(&t);
        } else if (!trans_a) {
            inner(&t);
        } else { /* the transposed result: op(b)' op(a)', where a is the factor that is contiguous */
            t.rows = n, t.columns = m;
            t.p = q, t.p_row = k, t.p_k = 1;
            t.q = p, t.q_step = m;
            t.bias_row = 1, t.bias_column = 0;
            t.y_row = 1, t.y_column = n;
            outer(&t);
        }
    }
    return POETC_OK;
}
