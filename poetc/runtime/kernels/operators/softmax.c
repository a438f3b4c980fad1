/* Softmax and log-softmax along one axis, and their gradients from the output.
 *
 * Layout: [before, along, after]. All kernels read an element before they write it, and may work in place.
 * Order of sums: contiguous rows (after = 1) are added over sixteen lanes as in poetc_f4.h. Strided elements are added
 * in sequence, with compensation. */
#include "operators/poetc_softmax.h"

int poetc_op_softmax(const poetc_call *call)
{
    const int32_t before = call->ints[0], along = call->ints[1], after = call->ints[2];
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t b, a, i;
    POETC_THREADED_OVER(poetc_op_softmax, call, (int64_t)4 * before * along * after);
    for (b = 0; b < before; b++, x += (ptrdiff_t)along * after, y += (ptrdiff_t)along * after) {
        POETC_SKIP(call->share, b, before, )
        if (after == 1) {
            poetc_softmax_row(y, x, along);
            continue;
        }
        for (a = 0; a < after; a++) {
            const float best = poetc_shift_of(poetc_largest(x + a, along, after));
            float sum;
            for (i = 0; i < along; i++)
                y[(ptrdiff_t)i * after + a] = poetc_expf(x[(ptrdiff_t)i * after + a] - best);
            sum = poetc_sum(y + a, along, after);
            sum = sum == 0.0f ? 1.0f : 1.0f / sum;
            for (i = 0; i < along; i++)
                y[(ptrdiff_t)i * after + a] *= sum;
        }
    }
    return POETC_OK;
}

int poetc_op_log_softmax(const poetc_call *call)
{
    const int32_t before = call->ints[0], along = call->ints[1], after = call->ints[2];
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t b, a, i;
    for (b = 0; b < before; b++, x += (ptrdiff_t)along * after, y += (ptrdiff_t)along * after) {
        for (a = 0; a < after; a++) {
            const float best = poetc_largest(x + a, along, after);
            poetc_compensated sum = {0.0f, 0.0f};
            float shift;
            for (i = 0; i < along; i++)
                poetc_compensated_add(&sum, poetc_expf(x[(ptrdiff_t)i * after + a] - best));
            shift = poetc_logf(sum.total);
            for (i = 0; i < along; i++)
                y[(ptrdiff_t)i * after + a] = x[(ptrdiff_t)i * after + a] - best - shift;
        }
    }
    return POETC_OK;
}

/* y, gy -> gx = y * (gy - Σ gy * y) */
int poetc_op_softmax_grad(const poetc_call *call)
{
    const int32_t before = call->ints[0], along = call->ints[1], after = call->ints[2];
    const float *y = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t b, a, i;
    if (after == 1) {
        POETC_THREADED_OVER(poetc_op_softmax_grad, call, before * along);
        for (b = 0; b < before; b++, y += along, gy += along, gx += along) {
            float sum;
            POETC_SKIP(call->share, b, before, )
            POETC_LANE_DOT(sum, along, gy[at], y[at], poetc_vector_load(gy + at), poetc_vector_load(y + at));
            for (i = 0; i < along; i++)
                gx[i] = y[i] * (gy[i] - sum);
        }
        return POETC_OK;
    }
    for (b = 0; b < before; b++) {
        for (a = 0; a < after; a++) {
            const ptrdiff_t base = (ptrdiff_t)b * along * after + a;
            poetc_compensated sum = {0.0f, 0.0f};
            for (i = 0; i < along; i++)
                poetc_compensated_add(&sum, gy[base + (ptrdiff_t)i * after] * y[base + (ptrdiff_t)i * after]);
            for (i = 0; i < along; i++) {
                const ptrdiff_t at = base + (ptrdiff_t)i * after;
                gx[at] = y[at] * (gy[at] - sum.total);
            }
        }
    }
    return POETC_OK;
}

/* y, gy -> gx = gy - exp(y) * Σ gy */
int poetc_op_log_softmax_grad(const poetc_call *call)
{
    const int32_t before = call->ints[0], along = call->ints[1], after = call->ints[2];
    const float *y = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t b, a, i;
    for (b = 0; b < before; b++) {
        for (a = 0; a < after; a++) {
            const ptrdiff_t base = (ptrdiff_t)b * along * after + a;
            const float sum = poetc_sum(gy + base, along, after);
            for (i = 0; i < along; i++) {
                const ptrdiff_t at = base + (ptrdiff_t)i * after;
                gx[at] = POETC_FMS(poetc_expf(y[at]), sum, gy[at]);
            }
        }
    }
    return POETC_OK;
}
