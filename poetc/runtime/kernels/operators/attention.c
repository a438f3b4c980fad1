/* Attention and its gradient: the scores of some queries at a time, over the keys that one of them sees.
 *
 * Layout: queries, keys, values and results lie by steps along samples, heads and rows. The numbers of a row lie
 * together. The workspace has a strip of scores [rows, keys], two or three of them in the backward pass. Then it has
 * the sums of one head, where heads of queries share keys, and the room of the products. Order of sums: that of
 * poetc_gemm.h, poetc_softmax.h and softmax.c, as of the operators apart. A strip has whole blocks of terms of the sums
 * over queries. Keys that no query of a strip sees are left out: they would add zeros. */
#include <string.h>

#include "gemm/poetc_gemm.h"
#include "operators/poetc_softmax.h"

int poetc_op_attention(const poetc_call *call);
int poetc_op_attention_grad(const poetc_call *call);

/* As of AttentionRows in poetc/kernels/operators/attention.py. */
enum { BATCH, GROUPS, TIMES, QUERIES, KEYS, SIZE, WIDTH, ROWS, PART, ALIGN, LOW, HIGH, MASK, CAPPED, MASK_STEPS };
enum { Q = MASK_STEPS + 5, K = Q + 4, V = K + 3, Y = V + 3, TERMS = Y + 4 };
enum { OF_SCORES, OF_RESULT, OF_SHARES, OF_QUERIES, OF_VALUES, OF_KEYS };
enum { ADDED = 1, HIDING };

typedef struct {
    const int32_t *n;
    const float *alpha; /* then before and after the cap, and the score of a hidden key */
    float *space;
    int32_t floats;
} task;

typedef struct {
    const float *from;
    ptrdiff_t row, term; /* steps */
} matrix;

POETC_APART void scale(float *y, ptrdiff_t y_row, int32_t rows, int32_t columns, float factor)
{
    int32_t i, j;
    for (i = 0; factor != 1.0f && i < rows; i++, y += y_row)
        for (j = 0; j < columns; j++)
            y[j] *= factor;
}

/* y[rows, columns] = alpha a b; or y += a b with `accumulate`. Numbers of a row of y lie together. */
static void multiply(const task *t, int32_t terms, int32_t rows, int32_t columns, int32_t depth, matrix a, matrix b,
                     float *y, ptrdiff_t y_row, float alpha, int accumulate)
{
    const poetc_gemm_space space =
        poetc_gemm_carve(t->space, t->floats, terms, (depth + terms - 1) / terms, columns, a.term != 1);
    poetc_gemm g;
    int32_t first;
    g.rows = rows, g.a_row = a.row, g.a_k = a.term;
    g.terms = terms, g.a_block = terms * a.term;
    g.row_bias = NULL, g.column_bias = NULL;
    g.y = y, g.y_row = y_row, g.segment_step = 0, g.segment = columns;
    POETC_NOTHING_AHEAD(g);
    POETC_ALL_ROWS(g);
    for (g.column = 0; g.column < columns; g.column += space.columns) {
        g.columns = poetc_min(space.columns, columns - g.column);
        for (first = 0; first < depth; first += space.depth) {
            const float *part = b.from + first * b.row + g.column * b.term;
            g.depth = poetc_min(space.depth, depth - first);
            if (b.term != 1)
                poetc_gemm_pack_transposed(&space, part, b.term, 0, g.depth, g.depth, g.columns);
            else
                poetc_gemm_pack(&space, part, b.row, g.depth, g.columns);
            g.a = a.from + first * a.term, g.accumulate = accumulate || first > 0;
            POETC_SET_SCALE(g, alpha != 1.0f && first + g.depth == depth ? &alpha : NULL);
            poetc_gemm_run(&g, &space);
        }
    }
#if !defined(POETC_AHEAD)
    scale(y, y_row, rows, columns, alpha);
#endif
}

static matrix of(const float *from, ptrdiff_t row)
{
    const matrix m = {from, row, 1};
    return m;
}

static matrix turned(matrix m)
{
    const matrix found = {m.from, m.term, m.row};
    return found;
}

/* The keys begin .. end - 1 that one of the queries sees; a multiple of ALIGN comes first. */
static int32_t keys_of(const int32_t *n, int32_t row, int32_t rows, int32_t *begin)
{
    const int32_t last = poetc_min(n[KEYS], row + rows + n[HIGH]), first = row + n[LOW];
    *begin = first > 0 ? first / n[ALIGN] * n[ALIGN] : 0;
    return last;
}

/* Products of a query and `count` keys become the numbers whose exponentials are the shares. `turns` gets the
 * hyperbolic tangent of each, if there is room for it. */
static void mask_row(const task *t, float *x, float *turns, int32_t count, const void *mask, ptrdiff_t at)
{
    const int32_t *n = t->n;
    const ptrdiff_t step = n[MASK_STEPS + 4];
    int32_t j;
    for (j = 0; n[CAPPED] && j < count; j++) {
        const float turn = poetc_tanhf(x[j] * t->alpha[1]);
        if (turns)
            turns[j] = turn;
        x[j] = turn * t->alpha[2];
    }
    if (n[MASK] == ADDED) {
        const float *more = (const float *)mask + at;
        for (j = 0; j < count; j++)
            x[j] += more[j * step];
    } else if (n[MASK] == HIDING) {
        const uint8_t *seen = (const uint8_t *)mask + at;
        for (j = 0; j < count; j++)
            x[j] = seen[j * step] ? x[j] : t->alpha[3];
    }
}

/* The shares of `rows` queries from number `row` on: over `count` keys from number `begin` on. Rows are `step` apart.
 */
static void share(const task *t, float *x, float *turns, ptrdiff_t step, int32_t row, int32_t rows, int32_t begin,
                  int32_t count, const void *mask, ptrdiff_t at)
{
    const int32_t *n = t->n;
    int32_t i, j;
    at += (ptrdiff_t)row * n[MASK_STEPS + 3] + (ptrdiff_t)begin * n[MASK_STEPS + 4];
    for (i = row; i < row + rows; i++, x += step, at += n[MASK_STEPS + 3]) {
        const int32_t from = i + n[LOW] - begin, end = i + n[HIGH] + 1 - begin,
                      seen = end < 0 ? 0 : poetc_min(end, count);
        mask_row(t, x, turns, seen, mask, at);
        for (j = 0; j < from && j < seen; j++)
            x[j] = -POETC_INFINITY;
        if (seen > 0)
            poetc_softmax_row(x, x, seen);
        for (j = seen; j < count; j++)
            x[j] = 0.0f;
        if (turns) {
            for (j = seen; j < count; j++)
                turns[j] = 0.0f;
            turns += step;
        }
    }
}

static ptrdiff_t place(const int32_t *steps, int32_t b, int32_t g)
{
    return (ptrdiff_t)b * steps[0] + (ptrdiff_t)g * steps[1];
}

/* q, k, v, mask? -> y */
int poetc_op_attention(const poetc_call *call)
{
    const int32_t *n = call->ints, groups = n[GROUPS], times = n[TIMES], heads = n[BATCH] * groups * times;
    const int32_t *terms = n + TERMS, floats = terms[2];
    const float *q = poetc_in(call, 0), *k = poetc_in(call, 1), *v = poetc_in(call, 2);
    const void *mask = n[MASK] ? poetc_in(call, 3) : NULL;
    float *y = poetc_out(call, n[MASK] ? 4 : 3), *strip = POETC_WORKSPACE(call, n[MASK] ? 5 : 4);
    const int32_t held = (n[ROWS] * n[KEYS] + 3) / 4 * 4;
    const task t = {n, call->floats, strip + held, floats};
    int32_t head, row, rows, i;
    POETC_THREADED(poetc_op_attention, call, (int64_t)heads * n[QUERIES] * n[KEYS] * (n[SIZE] + n[WIDTH]),
                   held + floats);
    for (head = 0; head < heads; head++) {
        const int32_t h = head % times, g = head / times % groups, b = head / times / groups;
        const float *query = q + place(n + Q, b, g) + (ptrdiff_t)h * n[Q + 2];
        const float *key = k + place(n + K, b, g), *value = v + place(n + V, b, g);
        const ptrdiff_t at = place(n + MASK_STEPS, b, g) + (ptrdiff_t)h * n[MASK_STEPS + 2];
        float *result = y + place(n + Y, b, g) + (ptrdiff_t)h * n[Y + 2];
        POETC_SKIP(call->share, head, heads, )
        for (row = 0; row < n[QUERIES]; row += rows) {
            int32_t begin, count;
            rows = poetc_min(n[ROWS], n[QUERIES] - row);
            count = keys_of(n, row, rows, &begin) - begin;
            if (count <= 0) {
                for (i = row; i < row + rows; i++)
                    memset(result + (ptrdiff_t)i * n[Y + 3], 0, (size_t)n[WIDTH] * sizeof *result);
                continue;
            }
            multiply(&t, terms[OF_SCORES], rows, count, n[SIZE], of(query + (ptrdiff_t)row * n[Q + 3], n[Q + 3]),
                     turned(of(key + (ptrdiff_t)begin * n[K + 2], n[K + 2])), strip, count, *t.alpha, 0);
            share(&t, strip, NULL, count, row, rows, begin, count, mask, at);
            multiply(&t, terms[OF_RESULT], rows, n[WIDTH], count, of(strip, count),
                     of(value + (ptrdiff_t)begin * n[V + 2], n[V + 2]), result + (ptrdiff_t)row * n[Y + 3], n[Y + 3],
                     1.0f, 0);
        }
    }
    return POETC_OK;
}

/* Gradients of shares in `by` become those of scores: y (gy - sum of gy y), of which the cap takes its part. Rows are
 * `step` apart. */
POETC_APART void slope(const task *t, float *by, const float *shares, const float *turns, ptrdiff_t step, int32_t rows,
                       int32_t count)
{
    int32_t i, j;
    for (i = 0; i < rows; i++, by += step, shares += step) {
        float sum;
        POETC_LANE_DOT(sum, count, by[at], shares[at], poetc_vector_load(by + at), poetc_vector_load(shares + at));
        for (j = 0; j < count; j++)
            by[j] = shares[j] * (by[j] - sum);
        if (!turns)
            continue;
        for (j = 0; j < count; j++)
            by[j] = (1.0f - turns[j]) * (1.0f + turns[j]) * (by[j] * t->alpha[2]) * t->alpha[1];
        turns += step;
    }
}

/* y[keys, columns] += x' b, where x is a strip [rows, count] from query `row` and key `begin` on. Keys that later
 * queries alone see go by themselves, without the rows of those before. */
static void add_turned(const task *t, int32_t terms, const float *x, int32_t row, int32_t rows, int32_t begin,
                       int32_t count, matrix b, int32_t columns, float *y, ptrdiff_t y_row)
{
    const int32_t all = row + t->n[HIGH] + 1 - begin;
    int32_t first, width;
    for (first = 0; first < count; first += width) {
        int32_t from = first + begin - t->n[HIGH] - row;
        width = poetc_min(count - first, first < all ? all - first : t->n[PART]);
        from = from <= 0 ? 0 : rows > terms ? from / terms * terms : from;
        multiply(t, terms, width, columns, rows - from, turned(of(x + (ptrdiff_t)from * count + first, count)),
                 of(b.from + from * b.row, b.row), y + first * y_row, y_row, 1.0f, 1);
    }
}

/* Rows of `count` floats, `step` apart. */
POETC_APART void clear(float *y, ptrdiff_t step, int32_t rows, int32_t count)
{
    int32_t i;
    for (i = 0; i < rows; i++, y += step)
        memset(y, 0, (size_t)count * sizeof *y);
}

/* The sum of one head of queries joins those before it: y = x, or y += x. */
static void join(float *y, ptrdiff_t step, const float *x, int32_t rows, int32_t count, int is_first)
{
    int32_t i, j;
    for (i = 0; i < rows; i++, y += step, x += count)
        for (j = 0; j < count; j++)
            y[j] = is_first ? x[j] : y[j] + x[j];
}

/* q, k, v, gy, mask? -> those gradients of q, k and v that are wanted */
int poetc_op_attention_grad(const poetc_call *call)
{
    const int32_t *n = call->ints, groups = n[GROUPS], times = n[TIMES], all = n[BATCH] * groups, keys = n[KEYS];
    const int32_t *terms = n + TERMS, floats = terms[6], *wants = terms + 7, inputs = n[MASK] ? 5 : 4;
    const float *q = poetc_in(call, 0), *k = poetc_in(call, 1), *v = poetc_in(call, 2), *gy = poetc_in(call, 3);
    const void *mask = n[MASK] ? poetc_in(call, 4) : NULL;
    const int32_t results = wants[0] + wants[1] + wants[2], shared = times > 1;
    float *const gq = wants[0] ? poetc_out(call, (unsigned)inputs) : NULL;
    float *const gk = wants[1] ? poetc_out(call, (unsigned)(inputs + wants[0])) : NULL;
    float *const gv = wants[2] ? poetc_out(call, (unsigned)(inputs + wants[0] + wants[1])) : NULL;
    float *const shares = POETC_WORKSPACE(call, (unsigned)(inputs + results));
    const int32_t held = (n[ROWS] * keys + 3) / 4 * 4, of_keys = shared && gk ? (keys * n[SIZE] + 3) / 4 * 4 : 0;
    const int32_t of_values = shared && gv ? (keys * n[WIDTH] + 3) / 4 * 4 : 0;
    float *const by = shares + held, *const turns = n[CAPPED] ? by + held : NULL;
    float *const sums = by + (n[CAPPED] ? 2 : 1) * held;
    const task t = {n, call->floats, sums + of_keys + of_values, floats};
    int32_t group, h, row, rows;
    POETC_THREADED(poetc_op_attention_grad, call,
                   (int64_t)all * times * n[QUERIES] * keys * (3 * n[SIZE] + 2 * n[WIDTH]),
                   (2 + n[CAPPED]) * held + of_keys + of_values + floats);
    for (group = 0; group < all; group++) {
        const int32_t g = group % groups, b = group / groups;
        const float *key = k + place(n + K, b, g), *value = v + place(n + V, b, g);
        float *const by_key = gk ? gk + place(n + K, b, g) : NULL, *const by_value =
                                                                       gv ? gv + place(n + V, b, g) : NULL;
        float *const key_sum = shared ? sums : by_key, *const value_sum = shared ? sums + of_keys : by_value;
        const ptrdiff_t key_row = shared ? n[SIZE] : n[K + 2], value_row = shared ? n[WIDTH] : n[V + 2];
        POETC_SKIP(call->share, group, all, )
        for (h = 0; h < times; h++) {
            const ptrdiff_t from = place(n + Q, b, g) + (ptrdiff_t)h * n[Q + 2];
            const ptrdiff_t at = place(n + MASK_STEPS, b, g) + (ptrdiff_t)h * n[MASK_STEPS + 2];
            const float *given = gy + place(n + Y, b, g) + (ptrdiff_t)h * n[Y + 2];
            if (gk)
                clear(key_sum, key_row, keys, n[SIZE]);
            if (gv)
                clear(value_sum, value_row, keys, n[WIDTH]);
            for (row = 0; row < n[QUERIES]; row += rows) {
                const matrix query = of(q + from + (ptrdiff_t)row * n[Q + 3], n[Q + 3]);
                const matrix result = of(given + (ptrdiff_t)row * n[Y + 3], n[Y + 3]);
                int32_t begin, count, part, first;
                rows = poetc_min(n[ROWS], n[QUERIES] - row);
                count = keys_of(n, row, rows, &begin) - begin;
                if (count <= 0) {
                    if (gq)
                        clear(gq + from + (ptrdiff_t)row * n[Q + 3], n[Q + 3], rows, n[SIZE]);
                    continue;
                }
                for (first = 0; first < rows; first += part) { /* those that see the same keys, about */
                    float *const own = shares + (ptrdiff_t)first * count, *const own_by = by + (ptrdiff_t)first * count;
                    float *const bend = turns ? turns + (ptrdiff_t)first * count : NULL;
                    const float *own_keys = key + (ptrdiff_t)begin * n[K + 2];
                    int32_t ignored, seen;
                    part = poetc_min(n[PART], rows - first);
                    seen = poetc_min(count, keys_of(n, row + first, part, &ignored) - begin);
                    if (seen < count) {
                        clear(own + (seen > 0 ? seen : 0), count, part, count - (seen > 0 ? seen : 0));
                        clear(own_by + (seen > 0 ? seen : 0), count, part, count - (seen > 0 ? seen : 0));
                    }
                    if (seen <= 0) {
                        if (gq)
                            clear(gq + from + (ptrdiff_t)(row + first) * n[Q + 3], n[Q + 3], part, n[SIZE]);
                        continue;
                    }
                    multiply(&t, terms[OF_SCORES], part, seen, n[SIZE], of(query.from + first * query.row, query.row),
                             turned(of(own_keys, n[K + 2])), own, count, *t.alpha, 0);
                    share(&t, own, bend, count, row + first, part, begin, seen, mask, at);
                    if (!gq && !gk)
                        continue;
                    multiply(&t, terms[OF_SHARES], part, seen, n[WIDTH],
                             of(result.from + first * result.row, result.row),
                             turned(of(value + (ptrdiff_t)begin * n[V + 2], n[V + 2])), own_by, count, 1.0f, 0);
                    slope(&t, own_by, own, bend, count, part, seen);
                    if (gq)
                        multiply(&t, terms[OF_QUERIES], part, n[SIZE], seen, of(own_by, count), of(own_keys, n[K + 2]),
                                 gq + from + (ptrdiff_t)(row + first) * n[Q + 3], n[Q + 3], *t.alpha, 0);
                }
                if (gv)
                    add_turned(&t, terms[OF_VALUES], shares, row, rows, begin, count, result, n[WIDTH],
                               value_sum + (ptrdiff_t)begin * value_row, value_row);
                if (gk)
                    add_turned(&t, terms[OF_KEYS], by, row, rows, begin, count, query, n[SIZE],
                               key_sum + (ptrdiff_t)begin * key_row, key_row);
            }
            if (gk)
                scale(key_sum, key_row, keys, n[SIZE], *t.alpha);
            if (gk && shared)
                join(by_key, n[K + 2], key_sum, keys, n[SIZE], h == 0);
            if (gv && shared)
                join(by_value, n[V + 2], value_sum, keys, n[WIDTH], h == 0);
        }
    }
    return POETC_OK;
}
