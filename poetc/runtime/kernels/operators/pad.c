/* Padding by repeated elements (poetc/ops/pad.py). Padding by a constant is poetc_op_scatter.
 *
 * Layout: dense arrays of any rank. ints: mode (1 edge, 2 reflect, 3 wrap), rank, sizes of x, elements before, sizes of
 * y.
 * Order of sums: gradients that meet in an element are added in the memory order of y. */
#include "poetc_kernel.h"

static int32_t source(int32_t i, int32_t size, int32_t mode)
{
    if (i >= 0 && i < size)
        return i;
    if (mode == 1)
        return i < 0 ? 0 : size - 1;
    if (mode == 2)
        return i < 0 ? -i : 2 * (size - 1) - i;
    return i < 0 ? i + size : i - size;
}

/* The index of y moves in memory order; x follows it. */
typedef struct {
    int32_t mode, rank;
    const int32_t *x_sizes, *before, *y_sizes;
    int32_t index[POETC_MAX_RANK];
} padding;

static void padding_init(padding *p, const int32_t *ints)
{
    int32_t d;
    p->mode = ints[0];
    p->rank = ints[1];
    p->x_sizes = ints + 2;
    p->before = p->x_sizes + p->rank;
    p->y_sizes = p->before + p->rank;
    for (d = 0; d < p->rank; d++)
        p->index[d] = 0;
}

/* Offset in x of the current row of y. */
static int32_t row_offset(const padding *p)
{
    int32_t offset = 0, d;
    for (d = 0; d < p->rank - 1; d++)
        offset = (offset + source(p->index[d] - p->before[d], p->x_sizes[d], p->mode)) * p->x_sizes[d + 1];
    return offset;
}

static int next_row(padding *p)
{
    int32_t d;
    for (d = p->rank - 2; d >= 0; d--) {
        if (++p->index[d] < p->y_sizes[d])
            return 1;
        p->index[d] = 0;
    }
    return 0;
}

int poetc_op_pad(const poetc_call *call);
int poetc_op_pad(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    padding p;
    int32_t i, last;
    padding_init(&p, call->ints);
    last = p.rank - 1;
    do {
        const float *row = x + row_offset(&p);
        for (i = 0; i < p.y_sizes[last]; i++)
            *y++ = row[source(i - p.before[last], p.x_sizes[last], p.mode)];
    } while (next_row(&p));
    return POETC_OK;
}

int poetc_op_pad_grad(const poetc_call *call);
int poetc_op_pad_grad(const poetc_call *call)
{
    const float *gy = poetc_in(call, 0);
    float *gx = poetc_out(call, 1);
    padding p;
    int32_t i, last, count = 1;
    padding_init(&p, call->ints);
    last = p.rank - 1;
    for (i = 0; i < p.rank; i++)
        count *= p.x_sizes[i];
    for (i = 0; i < count; i++)
        gx[i] = 0.0f;
    do {
        float *row = gx + row_offset(&p);
        for (i = 0; i < p.y_sizes[last]; i++)
            row[source(i - p.before[last], p.x_sizes[last], p.mode)] += *gy++;
    } while (next_row(&p));
    return POETC_OK;
}
