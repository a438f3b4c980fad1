/* Numbers of few bits (poetc/ops/few_bits.py).
 *
 * Layout: single numbers.
 * Order of sums: nothing is added here. */
#ifndef POETC_GRID_H
#define POETC_GRID_H

#include "poetc_math.h"

#define POETC_GRID_MOST 0x1p60f

/* `mantissa` bits below the leading one, but never finer than 2^(low - mantissa), and up to `largest`. */
typedef struct {
    int32_t low, mantissa;
    float largest;
} poetc_grid;

static inline float poetc_power_of_two(int32_t exponent)
{
    return poetc_from_bits((uint32_t)(127 + exponent) << 23);
}

static inline int32_t poetc_exponent(float magnitude)
{
    return (int32_t)(poetc_bits(magnitude) >> 23) - 127;
}

/* A magnitude on the grid. `threshold` is in [0, 1): a rest above it goes up. Below 0: a half goes to the even number.
 */
static inline float poetc_on_grid(const poetc_grid *g, float a, float threshold)
{
    int32_t k, whole;
    float v, rest;
    a = a > POETC_GRID_MOST ? POETC_GRID_MOST : a;
    k = poetc_exponent(a), k = k > g->low ? k : g->low;
    v = a * poetc_power_of_two(g->mantissa - k);
    whole = (int32_t)(v > 0x1p24f ? 0x1p24f : v), rest = v - (float)whole;
    if (threshold < 0.0f)
        whole += rest > 0.5f || (rest >= 0.5f && (whole & 1));
    else
        whole += threshold < rest;
    v = (float)whole * poetc_power_of_two(k - g->mantissa);
    return v > g->largest ? g->largest : v;
}

#endif
