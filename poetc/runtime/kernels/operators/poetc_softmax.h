/* The softmax of a row that lies in one piece, for kernels that make one.
 *
 * Layout: a row of floats; its result may take its place.
 * Order of sums: over sixteen lanes as in poetc_f4.h. */
#ifndef POETC_SOFTMAX_H
#define POETC_SOFTMAX_H

#include "poetc_math.h"
#include "simd/poetc_f4.h"
#include "simd/poetc_vector_math.h"

static inline float poetc_largest(const float *x, int32_t count, int32_t step)
{
    float best = x[0];
    int32_t i;
    for (i = 1; i < count; i++)
        if (x[(ptrdiff_t)i * step] > best)
            best = x[(ptrdiff_t)i * step];
    return best;
}

static inline float poetc_greater(float a, float b)
{
    return b > a ? b : a;
}

#if defined(POETC_WIDE_MATH)
POETC_INLINE poetc_vector poetc_put_exp(float *y, const float *x, float shift)
{
    const poetc_vector v = poetc_expv(poetc_vector_load(x) - shift);
    poetc_vector_store(y, v);
    return v;
}
#endif

/* y = exp(x - shift), a row, and its sum as of poetc_row_sum */
static inline float poetc_exp_row(float *y, const float *x, float shift, int32_t count)
{
#if defined(POETC_WIDE_MATH)
    float sum;
    POETC_LANE_SUM(sum, count, (y[at] = poetc_expf(x[at] - shift)), poetc_put_exp(y + at, x + at, shift));
    return sum;
#else
    int32_t i;
    for (i = 0; i < count; i++)
        y[i] = poetc_expf(x[i] - shift);
    return poetc_row_sum(y, count);
#endif
}

/* Which zero, or whether a NaN is seen, makes no difference to the result. */
static inline float poetc_largest_of_row(const float *x, int32_t count)
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
            best = poetc_greater(best, poetc_largest(lanes, POETC_LANES, 1));
        }
#endif
    }
#endif
    for (; i < count; i++)
        best = poetc_greater(best, x[i]);
    return best;
}

/* All are -inf: zeros, not NaN. */
static inline float poetc_shift_of(float most)
{
    return most < -3.402823466e38f ? 0.0f : most;
}

static inline void poetc_softmax_row(float *y, const float *x, int32_t count)
{
    float factor = poetc_exp_row(y, x, poetc_shift_of(poetc_largest_of_row(x, count)), count);
    int32_t i;
    factor = factor == 0.0f ? 1.0f : 1.0f / factor; /* the largest term is 1 */
    for (i = 0; i < count; i++)
        y[i] *= factor;
}

#endif
