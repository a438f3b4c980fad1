/* Elementary functions on whole vectors: exponential, logarithm, sigmoid, tanh.
 *
 * Layout: one argument a lane. Each function takes all branches of src/poetc_math.c and selects the right result for a
 * lane. The functions exist only where POETC_WIDE_MATH is set: Helium has no division.
 * Order of sums: the operations of the scalar function in their order, so a lane has the bits of the scalar function.
 */
#ifndef POETC_VECTOR_MATH_H
#define POETC_VECTOR_MATH_H

#include "poetc_math.h"
#include "simd/poetc_vector.h"

#if POETC_LANES == 16
#include <immintrin.h>
#endif

#if POETC_LANES > 1 && !defined(POETC_HELIUM)
#define POETC_WIDE_MATH 1

typedef int32_t poetc_lanes __attribute__((vector_size(4 * POETC_LANES)));

POETC_INLINE poetc_vector poetc_choose(poetc_lanes condition, poetc_vector yes, poetc_vector no)
{
#if POETC_LANES == 16 && defined(__AVX512DQ__)
    return (poetc_vector)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)condition), no, yes);
#endif
    return (poetc_vector)((condition & (poetc_lanes)yes) | (~condition & (poetc_lanes)no));
}

/* a < b ? yes : no; GCC would make a vector of the condition and take its signs. */
POETC_INLINE poetc_vector poetc_choose_less(poetc_vector a, poetc_vector b, poetc_vector yes, poetc_vector no)
{
#if POETC_LANES == 16
    return (poetc_vector)_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
#else
    return poetc_choose(a < b, yes, no);
#endif
}

POETC_INLINE poetc_vector poetc_absv(poetc_vector x)
{
    return (poetc_vector)((poetc_lanes)x & 0x7fffffff);
}

POETC_INLINE poetc_vector poetc_copysignv(poetc_vector x, poetc_vector sign)
{
    return (poetc_vector)(((poetc_lanes)x & 0x7fffffff) | ((poetc_lanes)sign & (int32_t)~0x7fffffff));
}

/* x * 2^n for a whole n: as two factors of which the first is exact; n / 2 is cut towards zero as in C */
POETC_INLINE poetc_vector poetc_scalev(poetc_vector x, poetc_vector n)
{
#if POETC_LANES == 16
    return (poetc_vector)_mm512_scalef_ps(x, n); /* rounds once, as they do */
#else
    const poetc_lanes k = __builtin_convertvector(n, poetc_lanes), half = (k - (k >> 31)) >> 1;
    return x * (poetc_vector)((half + 127) << 23) * (poetc_vector)((k - half + 127) << 23);
#endif
}

/* x within [-104, 89]: n = x / log 2, rounded, and exp(r) - 1 of the rest r */
POETC_INLINE poetc_vector poetc_exp_reducev(poetc_vector x, poetc_vector *n)
{
    const poetc_vector shifted = POETC_FMAV(x, 0x1.715476p+0f, 12582912.0f), whole = shifted - 12582912.0f;
    const poetc_vector r = POETC_FMSV(whole, 0x1.7f7d1cp-20f, POETC_FMSV(whole, 0x1.62e4p-1f, x));
    poetc_vector p = POETC_SPLAT(0x1.6d649ap-10f);
    p = POETC_FMAV(p, r, 0x1.1241d0p-7f);
    p = POETC_FMAV(p, r, 0x1.5554d4p-5f);
    p = POETC_FMAV(p, r, 0x1.555486p-3f);
    p = POETC_FMAV(p, r, 0.5f);
    *n = whole;
    return POETC_FMAV(r * r, p, r);
}

/* Where the condition does not hold the result is not used, but a conversion to an integer must be in range. */
#if POETC_LANES == 16
#define POETC_WITHIN(condition, x, other) (x)
#else
#define POETC_WITHIN(condition, x, other) poetc_choose(condition, x, POETC_SPLAT(other))
#endif

POETC_INLINE poetc_vector poetc_expv(poetc_vector x)
{
#if POETC_LANES == 16 /* scaling leaves nothing of -104 and infinity of 89; NaN comes second and stays */
    poetc_vector whole;
    const poetc_vector low = (poetc_vector)_mm512_max_ps((__m512)POETC_SPLAT(-104.0f), x);
    const poetc_vector fraction =
        poetc_exp_reducev((poetc_vector)_mm512_min_ps((__m512)POETC_SPLAT(89.0f), low), &whole);
    return poetc_scalev(1.0f + fraction, whole);
#else
    const poetc_lanes small = x < -104.0f, fits = x < 89.0f;
    poetc_vector n, r, y;
    r = poetc_exp_reducev(POETC_WITHIN(fits & ~small, x, 0.0f), &n);
    y = poetc_scalev(1.0f + r, n);
    y = poetc_choose(small, POETC_SPLAT(0.0f), y);
    return poetc_choose(fits, y, poetc_choose(x != x, x, POETC_SPLAT(POETC_INFINITY)));
#endif
}

/* tanh */
POETC_INLINE poetc_vector poetc_tanhv(poetc_vector x)
{
    const poetc_vector a = poetc_absv(x), one = POETC_SPLAT(1.0f);
    const poetc_lanes fits = a < 9.5f, large = a >= 0.625f, tiny = a < 0x1p-13f;
    poetc_vector t, n, power, high, z, p;
    t = poetc_exp_reducev(2.0f * poetc_choose(fits & large, a, one),
                          &n); /* expm1 of [1.25, 19): n is neither 0 nor large */
    power = (poetc_vector)((__builtin_convertvector(n, poetc_lanes) + 127) << 23);
    high = poetc_copysignv(1.0f - 2.0f / (POETC_FMAV(power, t, power - 1.0f) + 2.0f), x);
    z = x * x;
    p = POETC_SPLAT(-0x1.769df8p-8f);
    p = POETC_FMAV(p, z, 0x1.525328p-6f);
    p = POETC_FMAV(p, z, -0x1.b8439ap-5f);
    p = POETC_FMAV(p, z, 0x1.110762p-3f);
    p = POETC_FMAV(p, z, -0x1.555534p-2f);
    p = poetc_choose(tiny, x, POETC_FMAV(x, z * p, x));
    p = poetc_choose(large, high, p);
    return poetc_choose(fits, p, poetc_choose(x != x, x, poetc_copysignv(one, x)));
}

POETC_INLINE poetc_vector poetc_sigmoidv(poetc_vector x)
{
    const poetc_vector e = poetc_expv((poetc_vector)((poetc_lanes)x | (int32_t)~0x7fffffff)); /* of -|x| */
    return poetc_choose(x < 0.0f, e, POETC_SPLAT(1.0f)) / (1.0f + e);
}

POETC_INLINE poetc_vector poetc_erfv(poetc_vector x)
{
    const poetc_vector a = poetc_absv(x), one = POETC_SPLAT(1.0f);
    const poetc_lanes fits = a < 3.95f, small = a < 0.92f;
    const poetc_vector z = x * x, b = POETC_WITHIN(fits & ~small, a, 1.0f);
    poetc_vector p = POETC_SPLAT(0x1.5c2d7cp-14f), q = POETC_SPLAT(-0x1.62f10ap-16f), r, n;
    p = POETC_FMAV(p, z, -0x1.a9fdb8p-11f);
    p = POETC_FMAV(p, z, 0x1.54be04p-8f);
    p = POETC_FMAV(p, z, -0x1.b80d1ap-6f);
    p = POETC_FMAV(p, z, 0x1.ce2deep-4f);
    p = POETC_FMAV(p, z, -0x1.812742p-2f);
    p = POETC_FMAV(p, z, 0x1.06eba8p-3f);
    p = POETC_FMAV(x, p, x);
    q = POETC_FMAV(q, b, 0x1.c84de4p-12f);
    q = POETC_FMAV(q, b, -0x1.11938cp-8f);
    q = POETC_FMAV(q, b, 0x1.9bb37ap-6f);
    q = POETC_FMAV(q, b, -0x1.bb9202p-4f);
    q = POETC_FMAV(q, b, -0x1.444478p-1f);
    q = POETC_FMAV(q, b, -0x1.212846p+0f);
    q = POETC_FMAV(q, b, 0x1.70d5f0p-13f);
    r = poetc_exp_reducev(q, &n);
    q = poetc_copysignv(1.0f - poetc_scalev(1.0f + r, n), x);
    q = poetc_choose(small, p, q);
    return poetc_choose(fits, q, poetc_choose(x != x, x, poetc_copysignv(one, x)));
}

#endif
#endif
