/* Softmax and log-softmax along one axis, and their gradients from the output.
 *
 * Layout: [before, along, after]. All kernels read an element before they write it, and may work in place.
 * Order of sums: contiguous rows (after = 1) are added over sixteen lanes as in poetc_f4.h. Strided elements are added
 * in sequence, with compensation. */
#include "poetc_math.h"
#include "simd/poetc_f4.h"
#include "simd/poetc_vector_math.h"

static float largest(const float *x, int32_t count, int32_t step)
{
    float best = x[0];
    int32_t i;
    for (i = 1; i < count; i++)
        if (x[(ptrdiff_t)i * step] > best)
            best = x[(ptrdiff_t)i * step];
    return best;
}

static inline float greater(float a, float b)
{
    return b > a ? b : a;
}

#if defined(POETC_WIDE_MATH)
POETC_INLINE poetc_vector put_exp(float *y, const float *x, float shift)
{
    const poetc_vector v = poetc_expv(poetc_vector_load(x) - shift);
    poetc_vector_store(y, v);
    return v;
}
#endif

/* y = exp(x - shift), a row, and its sum as of poetc_row_sum */
static float exp_row(float *y, const float *x, float shift, int32_t count)
{
#if defined(POETC_WIDE_MATH)
    float sum;
    POETC_LANE_SUM(sum, count, (y[at] = poetc_expf(x[at] - shift)), put_exp(y + at, x + at, shift));
    return sum;
#else
    int32_t i;
    for (i = 0; i < count; i++)
        y[i] = poetc_expf(x[i] - shift);
    return poetc_row_sum(y, count);
#endif
}

/* Which zero, or whether a NaN is seen, makes no difference to the result. */
static float largest_of_row(const float *x, int32_t count)
{
    float best = x[0];
    int32_t i = 0;
#if defined(POETC_WIDE_MATH)
    if (count >= POETC_LANES) {
        poetc_vector most = poetc_vector_load(x);
        for (i = POETC_LANES; i + POETC_LANES <= count; i += POETC_LANES) {
            const poetc_vector v = poetc_vector_load(x + i);
            most = poetc_choose_less(most, v, v, most);
        }
#if POETC_LANES == 16
        best = _mm512_reduce_max_ps((__m512)most);
#else
        {
            float lanes[POETC_LANES];
            poetc_vector_store(lanes, most);
            best = greater(best, largest(lanes, POETC_LANES, 1));
        }
#endif
    }
#endif
    for (; i < count; i++)
        best = greater(best, x[i]);
    return best;
}

/* All are -inf: zeros, not NaN. */
static inline float shift_of(float most)
{
    return most < -3.402823466e38f ? 0.0f : most;
}

static void softmax_row(float *y, const float *x, int32_t count)
{
    float factor = exp_row(y, x, shift_of(largest_of_row(x, count)), count);
    int32_t i;
    factor = factor == 0.0f ? 1.0f : 1.0f / factor; /* the largest term is 1 */
    for (i = 0; i < count; i++)
        y[i] *= factor;
}

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
            softmax_row(y, x, along);
            continue;
        }
        for (a = 0; a < after; a++) {
            const float best = shift_of(largest(x + a, along, after));
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
            const float best = largest(x + a, along, after);
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
