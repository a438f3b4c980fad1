/* Resizing images, nearest or linear, by tables of rows and columns (poetc/ops/resize.py).
 *
 * Layout: planes of [images, h, w]. The ints are images, h, w, rows of y, columns of y, low row of each and low column
 * of each. For linear the high ones follow. Order of sums: gradients that meet in a pixel are added in the memory order
 * of y. */
#include "poetc_kernel.h"

typedef struct {
    int32_t images, h, w, rows, columns;
    const int32_t *row_low, *column_low, *row_high, *column_high;
} tables;

static void tables_init(tables *t, const int32_t *ints)
{
    t->images = ints[0];
    t->h = ints[1];
    t->w = ints[2];
    t->rows = ints[3];
    t->columns = ints[4];
    t->row_low = ints + 5;
    t->column_low = t->row_low + t->rows;
    t->row_high = t->column_low + t->columns;
    t->column_high = t->row_high + t->rows;
}

static void clear(float *x, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i++)
        x[i] = 0.0f;
}

int poetc_op_resize_nearest(const poetc_call *call);
int poetc_op_resize_nearest(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    tables t;
    int32_t n, r, c;
    tables_init(&t, call->ints);
    for (n = 0; n < t.images; n++, x += t.h * t.w) {
        for (r = 0; r < t.rows; r++) {
            const float *row = x + t.row_low[r] * t.w;
            for (c = 0; c < t.columns; c++)
                *y++ = row[t.column_low[c]];
        }
    }
    return POETC_OK;
}

int poetc_op_resize_nearest_grad(const poetc_call *call);
int poetc_op_resize_nearest_grad(const poetc_call *call)
{
    const float *gy = poetc_in(call, 0);
    float *gx = poetc_out(call, 1);
    tables t;
    int32_t n, r, c;
    tables_init(&t, call->ints);
    clear(gx, t.images * t.h * t.w);
    for (n = 0; n < t.images; n++, gx += t.h * t.w) {
        for (r = 0; r < t.rows; r++) {
            float *row = gx + t.row_low[r] * t.w;
            for (c = 0; c < t.columns; c++)
                row[t.column_low[c]] += *gy++;
        }
    }
    return POETC_OK;
}

int poetc_op_resize_linear(const poetc_call *call);
int poetc_op_resize_linear(const poetc_call *call)
{
    const float *x = poetc_in(call, 0), *down = call->floats, *across;
    float *y = poetc_out(call, 1);
    tables t;
    int32_t n, r, c;
    tables_init(&t, call->ints);
    across = down + t.rows;
    for (n = 0; n < t.images; n++, x += t.h * t.w) {
        for (r = 0; r < t.rows; r++) {
            const float *low = x + t.row_low[r] * t.w, *high = x + t.row_high[r] * t.w;
            for (c = 0; c < t.columns; c++) {
                int32_t left = t.column_low[c], right = t.column_high[c];
                float top = POETC_FMA(low[right] - low[left], across[c], low[left]);
                float bottom = POETC_FMA(high[right] - high[left], across[c], high[left]);
                *y++ = POETC_FMA(bottom - top, down[r], top);
            }
        }
    }
    return POETC_OK;
}

int poetc_op_resize_linear_grad(const poetc_call *call);
int poetc_op_resize_linear_grad(const poetc_call *call)
{
    const float *gy = poetc_in(call, 0), *down = call->floats, *across;
    float *gx = poetc_out(call, 1);
    tables t;
    int32_t n, r, c;
    tables_init(&t, call->ints);
    across = down + t.rows;
    clear(gx, t.images * t.h * t.w);
    for (n = 0; n < t.images; n++, gx += t.h * t.w) {
        for (r = 0; r < t.rows; r++) {
            float *low = gx + t.row_low[r] * t.w, *high = gx + t.row_high[r] * t.w;
            for (c = 0; c < t.columns; c++) {
                int32_t left = t.column_low[c], right = t.column_high[c];
                float g = *gy++, bottom = g * down[r], top = g * (1.0f - down[r]);
                low[left] = POETC_FMA(top, 1.0f - across[c], low[left]);
                low[right] = POETC_FMA(top, across[c], low[right]);
                high[left] = POETC_FMA(bottom, 1.0f - across[c], high[left]);
                high[right] = POETC_FMA(bottom, across[c], high[right]);
            }
        }
    }
    return POETC_OK;
}
