/* Reductions and their gradients (poetc/ops/reduce.py): sums, means, norms, products, extrema.
 *
 * Layout: ints hold a walk over the kept dimensions and one over the reduced dimensions (poetc_walk.h).
 * Order of sums: the reduced elements in memory order, in partial sums of at most POETC_SUM_BLOCK terms that are added
 * with compensation. A row in one piece is added over sixteen lanes (poetc_row_sum). */
#include "operators/poetc_walk.h"
#include "poetc_math.h"
#include "simd/poetc_f4.h"

typedef struct {
    poetc_walk kept, reduced;
    int32_t step; /* of the innermost reduced dimension */
} reduction;

static void reduction_init(reduction *r, const int32_t *ints)
{
    poetc_walk_init(&r->kept, ints);
    poetc_walk_init(&r->reduced, ints + 1 + 2 * ints[0]);
    r->step = poetc_step_of(&r->reduced, 0);
}

/* Rows of the reduced dimensions that start at x: offset is the current one, from 0; the last call resets it and
 * returns 0. */
static int next_row(reduction *r, int32_t *offset)
{
    return poetc_next_row(&r->reduced, offset, 1);
}

/* Output elements: offset of the next one's first x, or 0 after the last. `i` counts along the innermost kept
 * dimension. */
static int next_output(reduction *r, int32_t *row, int32_t *i, int32_t *offset)
{
    if (++*i == r->kept.inner) {
        *i = 0;
        if (!poetc_next_row(&r->kept, row, 1))
            return 0;
    }
    *offset = *row + *i * poetc_step_of(&r->kept, 0);
    return 1;
}

/* Columns of a kept row whose elements lie side by side, all at once: each in the reference order. Of wide vectors
 * several, for a row is far from the next one. */
#define TOGETHER (POETC_LANES >= 8 ? 4 * POETC_LANES : 16)

POETC_INLINE void sum_columns(reduction *r, const float *x, const int32_t width, float *y)
{
    float total[TOGETHER], lost[TOGETHER];
    int32_t inner = 0, c;
    for (c = 0; c < width; c++)
        total[c] = lost[c] = 0.0f;
    do {
        const float *p = x + inner;
        int32_t i = 0;
        while (i < r->reduced.inner) {
            const int32_t end = r->reduced.inner - i > POETC_SUM_BLOCK ? i + POETC_SUM_BLOCK : r->reduced.inner;
            float part[TOGETHER];
            for (c = 0; c < width; c++)
                part[c] = 0.0f;
            for (; i < end; i++, p += r->step)
                for (c = 0; c < width; c++)
                    part[c] += p[c];
            for (c = 0; c < width; c++) {
                const float term = part[c] - lost[c], next = total[c] + term;
                lost[c] = (next - total[c]) - term;
                total[c] = next;
            }
        }
    } while (next_row(r, &inner));
    for (c = 0; c < width; c++)
        y[c] = total[c];
}

static void sum_rows(const poetc_call *call, reduction *r, const float *x, float *y)
{
    int32_t row = 0, c;
    (void)call;
    do {
        c = POETC_BEGIN(call->share, r->kept.inner, TOGETHER);
        for (y += c; c + TOGETHER <= POETC_END(call->share, r->kept.inner, TOGETHER); c += TOGETHER, y += TOGETHER)
            sum_columns(r, x + row + c, TOGETHER, y);
        if (c < POETC_END(call->share, r->kept.inner, TOGETHER))
            sum_columns(r, x + row + c, POETC_END(call->share, r->kept.inner, TOGETHER) - c, y);
        y += r->kept.inner - c;
    } while (poetc_next_row(&r->kept, &row, 1));
}

int poetc_op_reduce_sum_columns(const poetc_call *call);
int poetc_op_reduce_sum_columns(const poetc_call *call)
{
    reduction r;
    reduction_init(&r, call->ints);
    POETC_THREADED_OVER(poetc_op_reduce_sum_columns, call,
                        (int64_t)poetc_walk_rows(&r.kept) * r.kept.inner * poetc_walk_rows(&r.reduced) *
                            r.reduced.inner);
    sum_rows(call, &r, poetc_in(call, 0), poetc_out(call, 1));
    return POETC_OK;
}

/* Sums of rows that lie in one piece: lanes along the row (poetc_row_sum). */
int poetc_op_reduce_sum_rows(const poetc_call *call);
int poetc_op_reduce_sum_rows(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t row = 0, column = 0, offset = 0, inner = 0;
    reduction r;
    reduction_init(&r, call->ints);
    do {
        poetc_compensated sum = {0.0f, 0.0f};
        do {
            poetc_compensated_add(&sum, poetc_row_sum(x + offset + inner, r.reduced.inner));
        } while (next_row(&r, &inner));
        *y++ = sum.total;
    } while (next_output(&r, &row, &column, &offset));
    return POETC_OK;
}

/* `added` is a sum in part, with the element v; `result` is in total and count, the number of elements reduced. */
#define POETC_REDUCE_SUM(name, added, result)                                                                          \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const float *x = poetc_in(call, 0);                                                                            \
        float *y = poetc_out(call, 1);                                                                                 \
        int32_t row = 0, column = 0, offset = 0, inner = 0;                                                            \
        reduction r;                                                                                                   \
        reduction_init(&r, call->ints);                                                                                \
        do {                                                                                                           \
            float total = 0.0f, lost = 0.0f;                                                                           \
            int32_t count = 0;                                                                                         \
            do {                                                                                                       \
                const float *p = x + offset + inner;                                                                   \
                int32_t i = 0;                                                                                         \
                while (i < r.reduced.inner) {                                                                          \
                    int32_t end = r.reduced.inner - i > POETC_SUM_BLOCK ? i + POETC_SUM_BLOCK : r.reduced.inner;       \
                    float part = 0.0f, next;                                                                           \
                    for (; i < end; i++) {                                                                             \
                        float v = p[i * r.step];                                                                       \
                        part = (added);                                                                                 \
                    }                                                                                                  \
                    part -= lost;                                                                                      \
                    next = total + part;                                                                               \
                    lost = (next - total) - part;                                                                      \
                    total = next;                                                                                      \
                }                                                                                                      \
                count += r.reduced.inner;                                                                              \
            } while (next_row(&r, &inner));                                                                            \
            (void)count;                                                                                               \
            *y++ = (result);                                                                                           \
        } while (next_output(&r, &row, &column, &offset));                                                             \
        return POETC_OK;                                                                                               \
    }

POETC_REDUCE_SUM(reduce_sum, part + v, total)
POETC_REDUCE_SUM(reduce_mean, part + v, total / (float)count)
POETC_REDUCE_SUM(reduce_l1, part + poetc_fabsf(v), total)
POETC_REDUCE_SUM(reduce_l2, POETC_FMA(v, v, part), poetc_sqrtf(total))

/* `first` starts `a`; `next` makes the next one from a and v; `position` counts the elements. */
#define POETC_REDUCE(name, Y, first, next, result)                                                                     \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const float *x = poetc_in(call, 0);                                                                            \
        Y *y = poetc_out(call, 1);                                                                                     \
        int32_t row = 0, column = 0, offset = 0, inner = 0, i;                                                         \
        reduction r;                                                                                                   \
        reduction_init(&r, call->ints);                                                                                \
        do {                                                                                                           \
            float a = (first);                                                                                         \
            int32_t position = 0, best = 0;                                                                            \
            do {                                                                                                       \
                const float *p = x + offset + inner;                                                                   \
                for (i = 0; i < r.reduced.inner; i++, position++) {                                                    \
                    float v = p[i * r.step];                                                                           \
                    next;                                                                                              \
                }                                                                                                      \
            } while (next_row(&r, &inner));                                                                            \
            (void)best;                                                                                                \
            *y++ = (result);                                                                                           \
        } while (next_output(&r, &row, &column, &offset));                                                             \
        return POETC_OK;                                                                                               \
    }

POETC_REDUCE(reduce_max, float, x[offset], a = v > a || poetc_isnan(v) ? v : a, a)
POETC_REDUCE(reduce_min, float, x[offset], a = v < a || poetc_isnan(v) ? v : a, a)
POETC_REDUCE(reduce_prod, float, 1.0f, a *= v, a)
POETC_REDUCE(arg_max, int32_t, x[offset], best = v > a ? position : best; a = v > a ? v : a, best)
POETC_REDUCE(arg_min, int32_t, x[offset], best = v < a ? position : best; a = v < a ? v : a, best)

/* ints: outer, length, inner, k, whether the largest are wanted. Which k of an axis come first in order; of equals the
 * one that stands first. */
int poetc_op_top_k(const poetc_call *call);
int poetc_op_top_k(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    int32_t *y = poetc_out(call, 1);
    int32_t length = call->ints[1], inner = call->ints[2], k = call->ints[3], outer, i, j, at;
    float sign = call->ints[4] ? 1.0f : -1.0f;
    for (outer = 0; outer < call->ints[0]; outer++, x += length * inner, y += k * inner) {
        for (i = 0; i < inner; i++) {
            int32_t last = -1;
            for (j = 0; j < k; j++) {
                int32_t best = -1;
                for (at = 0; at < length; at++) {
                    float v = sign * x[at * inner + i];
                    float before = last < 0 ? v : sign * x[last * inner + i];
                    int behind = last < 0 || v < before || (v == before && at > last);
                    if (behind && (best < 0 || v > sign * x[best * inner + i]))
                        best = at;
                }
                last = best < 0 ? 0 : best; /* where there are NaNs */
                y[j * inner + i] = last;
            }
        }
    }
    return POETC_OK;
}

int poetc_op_reduce_log_sum_exp(const poetc_call *call);
int poetc_op_reduce_log_sum_exp(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t row = 0, column = 0, offset = 0, inner = 0, i;
    reduction r;
    reduction_init(&r, call->ints);
    do {
        float top = x[offset], total = 0.0f, lost = 0.0f;
        do {
            const float *p = x + offset + inner;
            for (i = 0; i < r.reduced.inner; i++)
                top = p[i * r.step] > top ? p[i * r.step] : top;
        } while (next_row(&r, &inner));
        do {
            const float *p = x + offset + inner;
            for (i = 0; i < r.reduced.inner; i++) {
                float term = poetc_expf(p[i * r.step] - top) - lost, next = total + term;
                lost = (next - total) - term;
                total = next;
            }
        } while (next_row(&r, &inner));
        *y++ = top + poetc_logf(total);
    } while (next_output(&r, &row, &column, &offset));
    return POETC_OK;
}

int poetc_op_reduce_max_grad(const poetc_call *call);
int poetc_op_reduce_max_grad(const poetc_call *call)
{
    const float *x = poetc_in(call, 0), *y = poetc_in(call, 1), *gy = poetc_in(call, 2);
    float *gx = poetc_out(call, 3);
    int32_t row = 0, column = 0, offset = 0, inner = 0, i;
    reduction r;
    reduction_init(&r, call->ints);
    do {
        int32_t hits = 0;
        float share;
        do {
            for (i = 0; i < r.reduced.inner; i++)
                hits += x[offset + inner + i * r.step] == *y;
        } while (next_row(&r, &inner));
        share = *gy++ / (float)(hits ? hits : 1);
        do {
            for (i = 0; i < r.reduced.inner; i++) {
                int32_t at = offset + inner + i * r.step;
                gx[at] = x[at] == *y ? share : 0.0f;
            }
        } while (next_row(&r, &inner));
        y++;
    } while (next_output(&r, &row, &column, &offset));
    return POETC_OK;
}

int poetc_op_reduce_prod_grad(const poetc_call *call);
int poetc_op_reduce_prod_grad(const poetc_call *call)
{
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t row = 0, column = 0, offset = 0, inner = 0, i;
    reduction r;
    reduction_init(&r, call->ints);
    do {
        int32_t zeros = 0;
        float product = 1.0f, g = *gy++;
        do {
            for (i = 0; i < r.reduced.inner; i++) {
                float v = x[offset + inner + i * r.step];
                zeros += v == 0.0f;
                product *= v == 0.0f ? 1.0f : v;
            }
        } while (next_row(&r, &inner));
        do {
            for (i = 0; i < r.reduced.inner; i++) {
                int32_t at = offset + inner + i * r.step;
                float v = x[at];
                gx[at] = zeros == 0 ? g * (product / v) : zeros == 1 && v == 0.0f ? g * product : 0.0f;
            }
        } while (next_row(&r, &inner));
    } while (next_output(&r, &row, &column, &offset));
    return POETC_OK;
}
