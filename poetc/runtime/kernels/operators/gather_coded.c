/* Rows of a coded table, which is whole or passes through a window.
 *
 * Layout: codes as in gemm/poetc_coded.h; y is [indices, columns]. A window has rows begin .. begin + here - 1.
 * Order of sums: none. */
#include "gemm/poetc_coded.h"

/* codes, scales?, zeros?, indices -> y. The ints are rows and columns of the table, bits, block, has_zeros, number of
 * indices. Negative indices count from the end. */
int poetc_op_gather_coded(const poetc_call *call)
{
    const int32_t *n = call->ints, rows = n[0], columns = n[1], count = n[5];
    const unsigned inputs = 2u + (n[2] <= 8) + !!n[4];
    const poetc_coded w = poetc_coded_of(call, 0, columns, n[2], n[3], n[4]);
    const int32_t *indices = poetc_in(call, inputs - 1);
    float *y = poetc_out(call, inputs);
    int32_t i;
    for (i = 0; i < count; i++, y += columns) {
        const int32_t row = indices[i] < 0 ? indices[i] + rows : indices[i];
        if (row < 0 || row >= rows)
            return POETC_ERANGE;
        poetc_decode(&w, row, 0, columns, y);
    }
    return POETC_OK;
}

/* The same, of a window. The ints are rows and columns of the whole table, here, begin, bits, block, has_zeros and
 * number of indices. Rows of other windows stay as they are. */
int poetc_op_gather_coded_rows(const poetc_call *call);
int poetc_op_gather_coded_rows(const poetc_call *call)
{
    const int32_t *n = call->ints, rows = n[0], columns = n[1], here = n[2], begin = n[3], count = n[7];
    const unsigned inputs = 2u + (n[4] <= 8) + !!n[6];
    const poetc_coded w = poetc_coded_of(call, 0, columns, n[4], n[5], n[6]);
    const int32_t *indices = poetc_in(call, inputs - 1);
    float *y = poetc_out(call, inputs);
    int32_t i;
    for (i = 0; i < count; i++, y += columns) {
        const int32_t row = indices[i] < 0 ? indices[i] + rows : indices[i];
        if (row < 0 || row >= rows)
            return POETC_ERANGE;
        if (row >= begin && row - begin < here)
            poetc_decode(&w, row - begin, 0, columns, y);
    }
    return POETC_OK;
}
