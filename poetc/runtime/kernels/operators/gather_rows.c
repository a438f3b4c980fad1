/* Reading rows of a table, and adding gradients back, a block of the table at a time (poetc/ops/gather.py, sgd_of.py).
 *
 * Layout: the window has rows begin .. begin + here - 1 of a table of `length` rows; the indices name rows of the whole
 * table. A negative index counts from the end, and one outside is POETC_ERANGE.
 * Order of sums: rows that meet are added in the order of the indices, as in gather.c and sgd_of.c.
 *
 * ints of all: length, size of a row (of gather_rows in bytes, else in floats), number of indices, begin, here. */
#include <string.h>

#include "operators/poetc_descend.h"
#include "poetc_kernel.h"

enum { LENGTH, SIZE, COUNT, BEGIN, HERE };

/* The row of index k within the window; -1 if it is another one's. */
static int32_t row_of(const poetc_call *call, const int32_t *indices, int32_t k)
{
    const int32_t index = indices[k] < 0 ? indices[k] + call->ints[LENGTH] : indices[k], at = index - call->ints[BEGIN];
    return at >= 0 && at < call->ints[HERE] ? at : -1;
}

/* All indices before anything is written: state is old or new, never a mixture. */
static int check_rows(const poetc_call *call, const int32_t *indices)
{
    const int32_t length = call->ints[LENGTH];
    int32_t k;
    for (k = 0; k < call->ints[COUNT]; k++)
        if (indices[k] < -length || indices[k] >= length)
            return POETC_ERANGE;
    return POETC_OK;
}

/* x, indices -> y: the rows of y whose row of x is in the window */
int poetc_op_gather_rows(const poetc_call *call);
int poetc_op_gather_rows(const poetc_call *call)
{
    const uint8_t *x = poetc_in(call, 0);
    const int32_t *indices = poetc_in(call, 1);
    uint8_t *y = poetc_out(call, 2);
    const size_t bytes = (size_t)call->ints[SIZE];
    const int err = check_rows(call, indices);
    int32_t k;
    for (k = 0; !err && k < call->ints[COUNT]; k++) {
        const int32_t at = row_of(call, indices, k);
        if (at >= 0)
            memcpy(y + (size_t)k * bytes, x + (size_t)at * bytes, bytes);
    }
    return err;
}

/* indices, gy -> gx: the window of it */
int poetc_op_gather_grad_rows(const poetc_call *call);
int poetc_op_gather_grad_rows(const poetc_call *call)
{
    const int32_t *indices = poetc_in(call, 0), inner = call->ints[SIZE];
    const float *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    const int err = check_rows(call, indices);
    int32_t k, i;
    for (i = 0; i < call->ints[HERE] * inner; i++)
        gx[i] = 0.0f;
    for (k = 0; !err && k < call->ints[COUNT]; k++, gy += inner) {
        const int32_t at = row_of(call, indices, k);
        for (i = 0; at >= 0 && i < inner; i++)
            gx[at * inner + i] += gy[i];
    }
    return err;
}

/* w, indices, gy, lr -> w: the window of it. Workspace: a row. Rows that no index names stay as they are. */
int poetc_op_gather_grad_sgd_rows(const poetc_call *call);
int poetc_op_gather_grad_sgd_rows(const poetc_call *call)
{
    const int32_t *indices = poetc_in(call, 1), inner = call->ints[SIZE], count = call->ints[COUNT];
    const float *gy = poetc_in(call, 2), lr = *(const float *)poetc_in(call, 3);
    float *w = poetc_out(call, 4), *sum = poetc_out(call, 5);
    const int err = check_rows(call, indices);
    int32_t k, other, i;
    for (i = 0; i < inner; i++)
        sum[i] = 0.0f;
    for (k = 0; !err && k < count; k++) {
        const int32_t at = row_of(call, indices, k);
        for (other = 0; other < k && row_of(call, indices, other) != at; other++)
            ;
        if (at < 0 || other < k)
            continue; /* of another window, or done where it was named first */
        for (other = k; other < count; other++) {
            const float *g = gy + (ptrdiff_t)other * inner;
            if (row_of(call, indices, other) == at)
                for (i = 0; i < inner; i++)
                    sum[i] = (other == k ? 0.0f : sum[i]) + g[i];
        }
        poetc_descend(w + (ptrdiff_t)at * inner, sum, lr, inner);
    }
    return err;
}
