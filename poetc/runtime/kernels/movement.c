/* Moving elements (poetc/ops/movement.py). */
#include <string.h>

#include "poetc_f4.h"
#include "poetc_walk.h"

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
    int32_t turned_step = 1, size, d, outer, offset = call->ints[0], step;
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
    for (;;) {
        turn(y, turned_step, x + offset, step, size, walk.inner);
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

/* ints: start, walk. Elements are copied as bytes of a size that the compiler knows: no conversion, no aliasing trouble. */
#define POETC_COPY(name, T, done)                                                                                      \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const T *x = poetc_in(call, 0);                                                                                \
        T *y = poetc_out(call, 1);                                                                                     \
        int32_t offset = call->ints[0], step, i;                                                                       \
        poetc_walk walk;                                                                                               \
        if (done(call))                                                                                                \
            return POETC_OK;                                                                                           \
        poetc_walk_init(&walk, call->ints + 1);                                                                        \
        step = poetc_step_of(&walk, 0);                                                                                \
        do {                                                                                                           \
            const T *p = x + offset;                                                                                   \
            if (step == 1) {                                                                                           \
                memcpy(y, p, (size_t)walk.inner * sizeof *y);                                                          \
            } else {                                                                                                   \
                for (i = 0; i < walk.inner; i++)                                                                       \
                    memcpy(&y[i], &p[i * step], sizeof *y);                                                            \
            }                                                                                                          \
            y += walk.inner;                                                                                           \
        } while (poetc_next_row(&walk, &offset, 1));                                                                   \
        return POETC_OK;                                                                                               \
    }

POETC_COPY(copy1, uint8_t, never_turned)
POETC_COPY(copy4, int32_t, turned)


/* ints: elements of y, start, walk over x in y; p = the value elsewhere */
int poetc_op_scatter(const poetc_call *call);
int poetc_op_scatter(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1), value = call->floats[0];
    int32_t offset = call->ints[1], step, i;
    poetc_walk walk;
    for (i = 0; i < call->ints[0]; i++)
        y[i] = value;
    poetc_walk_init(&walk, call->ints + 2);
    step = poetc_step_of(&walk, 0);
    do {
        for (i = 0; i < walk.inner; i++)
            y[offset + i * step] = *x++;
    } while (poetc_next_row(&walk, &offset, 1));
    return POETC_OK;
}

/* ints: how often, number of pieces, bytes of each piece that lie together */
int poetc_op_concat(const poetc_call *call);
int poetc_op_concat(const poetc_call *call)
{
    int32_t outer = call->ints[0], pieces = call->ints[1], o, i;
    const int32_t *bytes = call->ints + 2;
    uint8_t *y = poetc_out(call, (unsigned)pieces);
    for (o = 0; o < outer; o++) {
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
    int32_t outer = call->ints[0], pieces = call->ints[1], o, i;
    const int32_t *bytes = call->ints + 2;
    const uint8_t *x = poetc_in(call, 0);
    for (o = 0; o < outer; o++) {
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
