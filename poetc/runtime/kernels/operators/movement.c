/* Moving elements: strided copies, scatter, concatenation, splits, casts; and cumulative sums (poetc/ops/movement.py).
 *
 * Layout: strided walks (poetc_walk.h); elements are copied as bytes.
 * Order of sums: a cumulative sum adds along its axis in sequence, from the chosen end. */
#include <string.h>

#include "operators/poetc_walk.h"
#include "simd/poetc_f4.h"

#if POETC_LANES > 1 && !defined(POETC_HELIUM)

/* y[i * y_row + j] = x[j * x_row + i], squares of four by four. */
static void turn(float *y, ptrdiff_t y_row, const float *x, ptrdiff_t x_row, int32_t rows, int32_t columns)
{
    int32_t i, j;
    for (i = 0; i + 4 <= rows; i += 4, x += 4, y += 4 * y_row) {
        const float *from = x;
        float *to = y;
        for (j = 0; j + 4 <= columns; j += 4, from += 4 * x_row, to += 4) {
            poetc_f4 a = poetc_f4_load(from), b = poetc_f4_load(from + x_row);
            poetc_f4 c = poetc_f4_load(from + 2 * x_row), d = poetc_f4_load(from + 3 * x_row);
            poetc_f4_transpose(&a, &b, &c, &d);
            poetc_f4_store(to, a);
            poetc_f4_store(to + y_row, b);
            poetc_f4_store(to + 2 * y_row, c);
            poetc_f4_store(to + 3 * y_row, d);
        }
        for (; j < columns; j++, from += x_row, to++)
            to[0] = from[0], to[y_row] = from[1], to[2 * y_row] = from[2], to[3 * y_row] = from[3];
    }
    for (; i < rows; i++, x++, y += y_row)
        for (j = 0; j < columns; j++)
            y[j] = x[j * x_row];
}

/* copy4 where the rows of y are columns of x, and another dimension the rows; whether it is so. */
static int turned(const poetc_call *call)
{
    poetc_walk walk;
    int32_t turned_step = 1, size, d, outer, offset = call->ints[0], step, first, last;
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    poetc_walk_init(&walk, call->ints + 1);
    step = poetc_step_of(&walk, 0);
    for (outer = walk.rank - 2; outer >= 0 && walk.strides[outer] != 1; outer--)
        ;
    if (step < 2 || walk.inner < 4 || outer < 0 || walk.sizes[outer] < 4)
        return 0;
    for (d = outer + 1; d < walk.rank; d++)
        turned_step *= walk.sizes[d];
    size = walk.sizes[outer];
    first = POETC_BEGIN(call->share, size, 4), last = POETC_END(call->share, size, 4);
    for (;;) {
        turn(y + (ptrdiff_t)first * turned_step, turned_step, x + offset + first, step, last - first, walk.inner);
        y += walk.inner;
        for (d = walk.rank - 2; d >= 0; d--) {
            if (d == outer) {
                y += (ptrdiff_t)(size - 1) * turned_step;
                continue;
            }
            offset += walk.strides[d];
            if (++walk.index[d] < walk.sizes[d])
                break;
            offset -= walk.sizes[d] * walk.strides[d];
            walk.index[d] = 0;
        }
        if (d < 0)
            return 1;
    }
}

#else
#define turned(call) 0
#endif
#define never_turned(call) 0

/* ints: start, walk. Elements are copied as bytes of a size that the compiler knows: no conversion, no aliasing
 * trouble. */
#define POETC_COPY(name, T, done)                                                                                      \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const T *x = poetc_in(call, 0);                                                                                \
        T *y = poetc_out(call, 1);                                                                                     \
        int32_t offset = call->ints[0], step, i;                                                                       \
        poetc_walk walk;                                                                                               \
        poetc_walk_init(&walk, call->ints + 1);                                                                        \
        POETC_THREADED_OVER(poetc_op_##name, call, (int64_t)poetc_walk_rows(&walk) * walk.inner);                      \
        if (done(call))                                                                                                \
            return POETC_OK;                                                                                           \
        POETC_WALK_SHARE(call, walk, &offset, 1, y)                                                                    \
        step = poetc_step_of(&walk, 0);                                                                                \
        do {                                                                                                           \
            const T *p = x + offset;                                                                                   \
            if (step == 1) {                                                                                           \
                i = POETC_BEGIN(POETC_ROW_SHARE, walk.inner, 16);                                                      \
                memcpy(y + i, p + i, (size_t)(POETC_END(POETC_ROW_SHARE, walk.inner, 16) - i) * sizeof *y);            \
            } else {                                                                                                   \
                for (i = POETC_BEGIN(POETC_ROW_SHARE, walk.inner, 16); i < POETC_END(POETC_ROW_SHARE, walk.inner, 16); i++) \
                    memcpy(&y[i], &p[i * step], sizeof *y);                                                            \
            }                                                                                                          \
            y += walk.inner;                                                                                           \
        } while (POETC_NEXT_ROW(&walk, &offset, 1));                                                                   \
        return POETC_OK;                                                                                               \
    }

POETC_COPY(copy1, uint8_t, never_turned)
POETC_COPY(copy4, int32_t, turned)

#ifdef POETC_THREADS
/* Whether the slices of the first dimension lie in parts of y that follow each other, a stride each: these may be
 * shared. */
static int follow_each_other(const poetc_walk *walk, const int32_t *ints)
{
    int32_t last = ints[1], d;
    for (d = 1; d < walk->rank; d++) {
        if (walk->strides[d] < 0)
            return 0;
        last += (walk->sizes[d] - 1) * walk->strides[d];
    }
    return walk->rank > 1 && walk->sizes[0] > 0 && last < walk->strides[0];
}

/* Elements of y that come before slice number `slice`. */
static int32_t before_slice(const poetc_call *call, const poetc_walk *walk, int32_t slice)
{
    return slice == 0 ? 0 : slice == walk->sizes[0] ? call->ints[0] : slice * walk->strides[0];
}

static int32_t rows_before(const poetc_call *call, const poetc_walk *walk, int32_t slice)
{
    return call->share.parts <= 1 ? 0 : poetc_walk_rows(walk) / walk->sizes[0] * slice;
}

#define SLICE(end, call, walk) poetc_share_##end((call)->share, (walk)->sizes[0], 1)
#define FIRST_OF(call, walk) before_slice(call, walk, SLICE(begin, call, walk))
#define LAST_OF(call, walk)                                                                                            \
    ((call)->share.parts <= 1 ? (call)->ints[0] : before_slice(call, walk, SLICE(end, call, walk)))
#define POETC_SLICES(call, walk, offset, x)                                                                            \
    const int32_t rows = poetc_walk_rows(&(walk)), first_row = rows_before(call, &(walk), SLICE(begin, call, &(walk)));\
    int32_t rows_left = rows_before(call, &(walk), SLICE(end, call, &(walk))) - first_row;                             \
    if ((call)->share.parts <= 1)                                                                                      \
        rows_left = rows;                                                                                              \
    if (rows_left <= 0)                                                                                                \
        return POETC_OK;                                                                                               \
    poetc_walk_move(&(walk), first_row, offset, 1);                                                                    \
    (x) += (ptrdiff_t)first_row * (walk).inner;
#else
#define FIRST_OF(call, walk) 0
#define LAST_OF(call, walk) (call)->ints[0]
#define POETC_SLICES(call, walk, offset, x)
#endif

/* ints: elements of y, start, walk over x in y; p = the value elsewhere */
int poetc_op_scatter(const poetc_call *call);
int poetc_op_scatter(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1), value = call->floats[0];
    int32_t offset = call->ints[1], step, i, last;
    poetc_walk walk;
    poetc_walk_init(&walk, call->ints + 2);
    POETC_THREADED_OVER(poetc_op_scatter, call, follow_each_other(&walk, call->ints) ? call->ints[0] : 0);
    last = LAST_OF(call, &walk);
    for (i = FIRST_OF(call, &walk); i < last; i++)
        y[i] = value;
    POETC_SLICES(call, walk, &offset, x)
    step = poetc_step_of(&walk, 0);
    do {
        for (i = 0; i < walk.inner; i++)
            y[offset + i * step] = *x++;
    } while (POETC_NEXT_ROW(&walk, &offset, 1));
    return POETC_OK;
}

/* Bytes of all pieces that lie together. */
static size_t line_of(const int32_t *bytes, int32_t pieces)
{
    size_t line = 0;
    for (; pieces > 0; pieces--)
        line += (size_t)*bytes++;
    return line;
}

/* ints: how often, number of pieces, bytes of each piece that lie together */
int poetc_op_concat(const poetc_call *call);
int poetc_op_concat(const poetc_call *call)
{
    const int32_t outer = call->ints[0], pieces = call->ints[1];
    const int32_t first = POETC_BEGIN(call->share, outer, 1), last = POETC_END(call->share, outer, 1);
    int32_t o, i;
    const int32_t *bytes = call->ints + 2;
    uint8_t *y = poetc_out(call, (unsigned)pieces);
    POETC_THREADED_OVER(poetc_op_concat, call, (int64_t)outer * (int64_t)line_of(bytes, pieces) / 4);
    y += (size_t)first * line_of(bytes, pieces);
    for (o = first; o < last; o++) {
        for (i = 0; i < pieces; i++) {
            const uint8_t *x = poetc_in(call, (unsigned)i);
            memcpy(y, x + (size_t)o * (size_t)bytes[i], (size_t)bytes[i]);
            y += bytes[i];
        }
    }
    return POETC_OK;
}

int poetc_op_split(const poetc_call *call);
int poetc_op_split(const poetc_call *call)
{
    const int32_t outer = call->ints[0], pieces = call->ints[1];
    const int32_t first = POETC_BEGIN(call->share, outer, 1), last = POETC_END(call->share, outer, 1);
    int32_t o, i;
    const int32_t *bytes = call->ints + 2;
    const uint8_t *x = poetc_in(call, 0);
    POETC_THREADED_OVER(poetc_op_split, call, (int64_t)outer * (int64_t)line_of(bytes, pieces) / 4);
    x += (size_t)first * line_of(bytes, pieces);
    for (o = first; o < last; o++) {
        for (i = 0; i < pieces; i++) {
            uint8_t *y = poetc_out(call, (unsigned)i + 1u);
            memcpy(y + (size_t)o * (size_t)bytes[i], x, (size_t)bytes[i]);
            x += bytes[i];
        }
    }
    return POETC_OK;
}

static int32_t to_i32(float x)
{
    if (!(x > -2147483648.0f))
        return x == x ? INT32_MIN : 0;
    return x < 2147483648.0f ? (int32_t)x : INT32_MAX;
}

/* memcpy, because the output may lie over an input of another type */
#define POETC_CAST(name, X, Y, expression)                                                                             \
    int poetc_op_cast_##name(const poetc_call *call);                                                                  \
    int poetc_op_cast_##name(const poetc_call *call)                                                                   \
    {                                                                                                                  \
        const X *source = poetc_in(call, 0);                                                                           \
        Y *target = poetc_out(call, 1);                                                                                \
        int32_t i;                                                                                                     \
        for (i = 0; i < call->ints[0]; i++) {                                                                          \
            X x;                                                                                                       \
            Y y;                                                                                                       \
            memcpy(&x, &source[i], sizeof x);                                                                          \
            y = (expression);                                                                                          \
            memcpy(&target[i], &y, sizeof y);                                                                          \
        }                                                                                                              \
        return POETC_OK;                                                                                               \
    }

POETC_CAST(f32_f32, float, float, x)
POETC_CAST(f32_i32, float, int32_t, to_i32(x))
POETC_CAST(f32_u8, float, uint8_t, x != 0.0f)
POETC_CAST(i32_f32, int32_t, float, (float)x)
POETC_CAST(i32_i32, int32_t, int32_t, x)
POETC_CAST(i32_u8, int32_t, uint8_t, x != 0)
POETC_CAST(u8_f32, uint8_t, float, x)
POETC_CAST(u8_i32, uint8_t, int32_t, x)
POETC_CAST(u8_u8, uint8_t, uint8_t, x != 0)

/* ints: outer, length, inner, exclusive, reverse */
int poetc_op_cum_sum(const poetc_call *call);
int poetc_op_cum_sum(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t outer = call->ints[0], length = call->ints[1], inner = call->ints[2], o, i, k;
    int32_t first = call->ints[4] ? (length - 1) * inner : 0, step = call->ints[4] ? -inner : inner;
    for (o = 0; o < outer; o++) {
        for (i = 0; i < inner; i++) {
            int32_t at = o * length * inner + i + first;
            float total = 0.0f;
            for (k = 0; k < length; k++, at += step) {
                float before = total;
                total += x[at];
                y[at] = call->ints[3] ? before : total;
            }
        }
    }
    return POETC_OK;
}
