/* Reading at computed places, and adding gradients back there (poetc/ops/gather.py).
 *
 * Layout: [outer, length, slice]; an index names a slice. A negative index counts from the end, and one outside is
 * POETC_ERANGE.
 * Order of sums: slices that meet are added in the order of the indices. */
#include <string.h>

#include "operators/poetc_walk.h"

/* The index from the front, or -1 if it is outside. */
static int32_t wrap(int32_t index, int32_t length)
{
    if (index < 0)
        index += length;
    return index < length && index >= 0 ? index : -1;
}

static void clear(float *x, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i++)
        x[i] = 0.0f;
}

/* ints: outer, length, bytes of a slice, number of indices */
int poetc_op_gather(const poetc_call *call);
int poetc_op_gather(const poetc_call *call)
{
    const uint8_t *x = poetc_in(call, 0);
    const int32_t *indices = poetc_in(call, 1);
    uint8_t *y = poetc_out(call, 2);
    int32_t length = call->ints[1], count = call->ints[3], o, k;
    size_t bytes = (size_t)call->ints[2];
    for (o = 0; o < call->ints[0]; o++) {
        for (k = 0; k < count; k++) {
            int32_t at = wrap(indices[k], length);
            if (at < 0)
                return POETC_ERANGE;
            memcpy(y, x + (size_t)at * bytes, bytes);
            y += bytes;
        }
        x += (size_t)length * bytes;
    }
    return POETC_OK;
}

/* ints: outer, length, bytes of a slice, number of indices; the output is input 0 in place */
int poetc_op_put_slices(const poetc_call *call);
int poetc_op_put_slices(const poetc_call *call)
{
    const int32_t *indices = poetc_in(call, 1);
    const uint8_t *slices = poetc_in(call, 2);
    uint8_t *x = poetc_out(call, 3);
    int32_t length = call->ints[1], count = call->ints[3], o, k;
    size_t bytes = (size_t)call->ints[2];
    for (o = 0; o < call->ints[0]; o++) {
        for (k = 0; k < count; k++) {
            int32_t at = wrap(indices[k], length);
            if (at < 0)
                return POETC_ERANGE;
            memcpy(x + (size_t)at * bytes, slices, bytes);
            slices += bytes;
        }
        x += (size_t)length * bytes;
    }
    return POETC_OK;
}

/* ints: outer, length, elements of a slice, number of indices */
int poetc_op_gather_grad(const poetc_call *call);
int poetc_op_gather_grad(const poetc_call *call)
{
    const int32_t *indices = poetc_in(call, 0);
    const float *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t length = call->ints[1], inner = call->ints[2], count = call->ints[3], o, k, i;
    clear(gx, call->ints[0] * length * inner);
    for (o = 0; o < call->ints[0]; o++) {
        for (k = 0; k < count; k++) {
            int32_t at = wrap(indices[k], length);
            if (at < 0)
                return POETC_ERANGE;
            for (i = 0; i < inner; i++)
                gx[at * inner + i] += *gy++;
        }
        gx += length * inner;
    }
    return POETC_OK;
}

/* ints: elements of x, length and stride of the axis, walk over the indices */
int poetc_op_gather_elements(const poetc_call *call);
int poetc_op_gather_elements(const poetc_call *call)
{
    const int32_t *x = poetc_in(call, 0), *indices = poetc_in(call, 1);
    int32_t *y = poetc_out(call, 2);
    int32_t offset = 0, step, i;
    poetc_walk walk;
    poetc_walk_init(&walk, call->ints + 3);
    step = poetc_step_of(&walk, 0);
    do {
        for (i = 0; i < walk.inner; i++) {
            int32_t at = wrap(*indices++, call->ints[1]);
            if (at < 0)
                return POETC_ERANGE;
            memcpy(y++, &x[offset + i * step + at * call->ints[2]], sizeof *y);
        }
    } while (poetc_next_row(&walk, &offset, 1));
    return POETC_OK;
}

int poetc_op_gather_elements_grad(const poetc_call *call);
int poetc_op_gather_elements_grad(const poetc_call *call)
{
    const int32_t *indices = poetc_in(call, 0);
    const float *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t offset = 0, step, i;
    poetc_walk walk;
    clear(gx, call->ints[0]);
    poetc_walk_init(&walk, call->ints + 3);
    step = poetc_step_of(&walk, 0);
    do {
        for (i = 0; i < walk.inner; i++) {
            int32_t at = wrap(*indices++, call->ints[1]);
            if (at < 0)
                return POETC_ERANGE;
            gx[offset + i * step + at * call->ints[2]] += *gy++;
        }
    } while (poetc_next_row(&walk, &offset, 1));
    return POETC_OK;
}

/* The number of the slice that a tuple names within its batch, or -1 if it is outside. */
static int32_t tuple_row(const int32_t *tuple, int32_t depth, const int32_t *dims)
{
    int32_t row = 0, d;
    for (d = 0; d < depth; d++) {
        int32_t at = wrap(tuple[d], dims[d]);
        if (at < 0)
            return -1;
        row = row * dims[d] + at;
    }
    return row;
}

static int32_t rows_in_batch(int32_t depth, const int32_t *dims)
{
    int32_t rows = 1, d;
    for (d = 0; d < depth; d++)
        rows *= dims[d];
    return rows;
}

/* ints: batches, tuples a batch, bytes of a slice, depth, dimensions */
int poetc_op_gather_nd(const poetc_call *call);
int poetc_op_gather_nd(const poetc_call *call)
{
    const uint8_t *x = poetc_in(call, 0);
    const int32_t *tuple = poetc_in(call, 1), *dims = call->ints + 4;
    uint8_t *y = poetc_out(call, 2);
    int32_t depth = call->ints[3], rows = rows_in_batch(depth, dims), o, k;
    size_t bytes = (size_t)call->ints[2];
    for (o = 0; o < call->ints[0]; o++) {
        for (k = 0; k < call->ints[1]; k++, tuple += depth) {
            int32_t row = tuple_row(tuple, depth, dims);
            if (row < 0)
                return POETC_ERANGE;
            memcpy(y, x + (size_t)row * bytes, bytes);
            y += bytes;
        }
        x += (size_t)rows * bytes;
    }
    return POETC_OK;
}

/* ints: batches, tuples a batch, elements of a slice, depth, dimensions */
int poetc_op_gather_nd_grad(const poetc_call *call);
int poetc_op_gather_nd_grad(const poetc_call *call)
{
    const int32_t *tuple = poetc_in(call, 0), *dims = call->ints + 4;
    const float *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t inner = call->ints[2], depth = call->ints[3], rows = rows_in_batch(depth, dims), o, k, i;
    clear(gx, call->ints[0] * rows * inner);
    for (o = 0; o < call->ints[0]; o++) {
        for (k = 0; k < call->ints[1]; k++, tuple += depth) {
            int32_t row = tuple_row(tuple, depth, dims);
            if (row < 0)
                return POETC_ERANGE;
            for (i = 0; i < inner; i++)
                gx[row * inner + i] += *gy++;
        }
        gx += rows * inner;
    }
    return POETC_OK;
}
