/* Floats rounded to few bits (poetc/ops/few_bits.py).
 *
 * Layout: dense arrays; a group is a run of elements. An element's random word depends on its number, the step and the
 * seed only.
 * Order of sums: nothing is added here. */
#include "operators/poetc_grid.h"
#include "operators/poetc_philox.h"

#define ROOT 0x1.6a09e6p-1f /* of a half */

enum scale { FIXED, NEAREST_POWER, POWER, REAL, ADAPTED };

/* The largest magnitude as bits; those of an infinity and more: an element is no finite number. */
static uint32_t largest_of(const float *x, int32_t count)
{
    uint32_t largest = 0u;
    int32_t i;
    for (i = 0; i < count; i++) {
        const uint32_t size = poetc_bits(x[i]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* 2^k for the largest magnitude, which is normal: m is in [1/2, 1) of 2^e. */
static float scale_of(int32_t rule, float largest, float top)
{
    const int32_t e = poetc_exponent(largest) + 1;
    const float m = largest * poetc_power_of_two(-e);
    if (rule == NEAREST_POWER)
        return poetc_power_of_two(m >= ROOT ? e : e - 1);
    return poetc_power_of_two(m + m <= top ? e - 1 : m <= top ? e : e + 1);
}

/* The least of 1 or 1.5 times a power of two that is no smaller. */
static float group_scale_of(float largest)
{
    int32_t e;
    float m;
    if (largest <= 0.0f)
        return 1.0f;
    largest = largest < 1.0f / POETC_GRID_MOST ? 1.0f / POETC_GRID_MOST : largest;
    e = poetc_exponent(largest) + 1, m = largest * poetc_power_of_two(-e);
    return (m <= 0.5f ? 0.5f : m <= 0.75f ? 0.75f : 1.0f) * poetc_power_of_two(e);
}

/* x, step?, state? -> y, scale?. x and y may be one. The ints are those of FewBitsOf. floats: largest, top, range,
 * unit. */
int poetc_op_few_bits(const poetc_call *call);
int poetc_op_few_bits(const poetc_call *call)
{
    const int32_t *n = call->ints;
    const int32_t count = n[0], rule = n[2], is_stochastic = n[6], is_narrow = n[8];
    const int32_t each = n[1] ? count / n[1] : count;
    const uint32_t step = is_stochastic ? *(const uint32_t *)poetc_in(call, 1) : 0u,
                   size = largest_of(poetc_in(call, 0), count);
    const float *x = poetc_in(call, 0), unit = call->floats[3];
    const unsigned state = 1u + (unsigned)is_stochastic, first = state + (rule == ADAPTED);
    float *y = poetc_out(call, first), scale = poetc_power_of_two(n[3]), inverse;
    uint16_t *halves = (uint16_t *)y;
    poetc_grid g = {n[4], n[5], call->floats[0]};
    int32_t i, begin;
    uint32_t left = 0u, right = 0u;
    if (size >= 0x7f800000u)
        return POETC_EEXPONENT;
    if (rule == ADAPTED) {
        const float *adapted = poetc_in(call, state);
        g.low = 0, g.mantissa = (int32_t)adapted[0] - 1;
        g.largest = 1.0f - poetc_power_of_two(-g.mantissa);
        scale = poetc_power_of_two((int32_t)adapted[1] + g.mantissa);
    } else if (rule != FIXED && size > 0u) {
        float largest = poetc_from_bits(size) * call->floats[2];
        largest = largest > POETC_GRID_MOST          ? POETC_GRID_MOST
                  : largest < 1.0f / POETC_GRID_MOST ? 1.0f / POETC_GRID_MOST
                                                     : largest;
        scale = rule == REAL ? largest / call->floats[1] : scale_of(rule, largest, call->floats[1]);
    } else if (rule != FIXED) {
        scale = 1.0f;
    }
    inverse = 1.0f / scale;
    if (rule == REAL) {
        *(float *)poetc_out(call, first + 1u) = scale;
        scale = 1.0f;
    }
    scale = unit > 0.0f ? unit : scale;
    for (begin = 0; begin < count; begin += each) {
        float group = 1.0f;
        if (n[1])
            group = group_scale_of(poetc_from_bits(largest_of(x + begin, each)) * inverse);
        for (i = begin; i < begin + each; i++) {
            const float value = x[i];
            float a = poetc_from_bits(poetc_bits(value) & 0x7fffffffu) * inverse, threshold = -1.0f;
            if (is_stochastic) {
                if (!(i & 1) || i == begin) {
                    left = (uint32_t)i / 2u, right = step;
                    poetc_philox(&left, &right, (uint32_t)n[7]);
                }
                threshold = (float)((i & 1 ? right : left) >> 8) * 0x1p-24f;
            }
            if (n[1])
                a = a / group;
            a = poetc_on_grid(&g, a, threshold) * group * scale;
            a = value < 0.0f ? -a : a;
            if (is_narrow)
                halves[i] = (uint16_t)(poetc_bits(a) >> 16);
            else
                y[i] = a;
        }
    }
    return POETC_OK;
}
