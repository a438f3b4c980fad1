/* The multiply-add of kernels and elementary functions: c + a * b, and c - a * b.
 *
 * Separate numerics (the default) round twice, the product and the sum. Fused numerics (POETC_FUSED) round once, by an
 * instruction of the target, or by the same arithmetic in double precision. A compiler contracts nothing by itself:
 * -ffp-contract=off holds for both, so one numerics has the same bits on every target.
 */
#ifndef POETC_FMA_H
#define POETC_FMA_H

#if !defined(POETC_FUSED)
#define POETC_FMA(a, b, c) ((c) + (a) * (b))
#define POETC_FMS(a, b, c) ((c) - (a) * (b))
#else
#if defined(__GNUC__) && (defined(__FMA__) || defined(__aarch64__) || defined(__ARM_FEATURE_FMA))
#define POETC_HAS_FMA 1 /* in hardware */
#define POETC_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#include <stdint.h>
#include <string.h>

/* The product of two floats is exact in double precision. Their sum is rounded to odd: its last bit is set where it is
 * inexact. Then the rounding to float is that of the exact sum (Boldo and Melquiond 2008). */
static inline float poetc_fma(float a, float b, float c)
{
    const double product = (double)a * (double)b, addend = (double)c, sum = product + addend;
    const double part = sum - product, error = (product - (sum - part)) + (addend - part);
    uint64_t bits;
    double odd;
    if (!(error < 0.0 || error > 0.0)) /* exact, infinite or no number */
        return (float)sum;
    memcpy(&bits, &sum, sizeof bits);
    if (!(bits & 1u))
        bits = (error > 0.0) == (sum > 0.0) ? bits + 1u : bits - 1u;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
#define POETC_FMA(a, b, c) poetc_fma(a, b, c)
#endif
#define POETC_FMS(a, b, c) POETC_FMA(-(a), b, c)
#endif

#endif
