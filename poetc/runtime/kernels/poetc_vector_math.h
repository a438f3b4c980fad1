/* Elementary functions on whole vectors: the operations of src/poetc_math.c lane by lane, all branches taken and the right
 * one chosen, so that a lane has the bits of the scalar function. Only where POETC_WIDE_MATH is set: Helium has no division. */
#ifndef POETC_VECTOR_MATH_H
#define POETC_VECTOR_MATH_H

#include "poetc_math.h"
#include "poetc_vector.h"

#if POETC_LANES > 1 && !defined(POETC_HELIUM)
#define POETC_WIDE_MATH 1

typedef int32_t poetc_lanes __attribute__((vector_size(4 * POETC_LANES)));

#define POETC_SPLAT(x) ((poetc_vector){0} + (x))

POETC_INLINE poetc_vector poetc_choose(poetc_lanes condition, poetc_vector yes, poetc_vector no)
{
    return (poetc_vector)((condition & (poetc_lanes)yes) | (~condition & (poetc_lanes)no));
}

POETC_INLINE poetc_vector poetc_absv(poetc_vector x)
{
    return (poetc_vector)((poetc_lanes)x & 0x7fffffff);
}

POETC_INLINE poetc_vector poetc_copysignv(poetc_vector x, poetc_vector sign)
{
    return (poetc_vector)(((poetc_lanes)x & 0x7fffffff) | ((poetc_lanes)sign & (int32_t)~0x7fffffff));
}

/* x * 2^k as two exact factors; k / 2 is cut towards zero as in C */
POETC_INLINE poetc_vector poetc_scalev(poetc_vector x, poetc_lanes k)
{
    const poetc_lanes half = (k - (k >> 31)) >> 1;
    return x * (poetc_vector)((half + 127) << 23) * (poetc_vector)((k - half + 127) << 23);
}

/* x within [-104, 89]: *tail = exp(r) - 1 - r */
POETC_INLINE poetc_vector poetc_exp_reducev(poetc_vector x, poetc_lanes *k, poetc_vector *tail)
{
    const poetc_vector shifted = x * 0x1.715476p+0f + 12582912.0f, n = shifted - 12582912.0f;
    const poetc_vector r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    poetc_vector p = POETC_SPLAT(0x1.6d649ap-10f);
    p = p * r + 0x1.1241d0p-7f;
    p = p * r + 0x1.5554d4p-5f;
    p = p * r + 0x1.555486p-3f;
    p = p * r + 0.5f;
    *tail = r * r * p;
    *k = __builtin_convertvector(n, poetc_lanes);
    return r;
}

POETC_INLINE poetc_vector poetc_expv(poetc_vector x)
{
    const poetc_lanes small = x < -104.0f, fits = x < 89.0f;
    poetc_lanes k;
    poetc_vector tail, r, y;
    r = poetc_exp_reducev(poetc_choose(fits & ~small, x, POETC_SPLAT(0.0f)), &k, &tail);
    y = poetc_scalev(1.0f + (r + tail), k);
    y = poetc_choose(small, POETC_SPLAT(0.0f), y);
    return poetc_choose(fits, y, poetc_choose(x != x, x, POETC_SPLAT(POETC_INFINITY)));
}

/* tanh */
POETC_INLINE poetc_vector poetc_tanhv(poetc_vector x)
{
    const poetc_vector a = poetc_absv(x), one = POETC_SPLAT(1.0f);
    const poetc_lanes fits = a < 9.5f, large = a >= 0.625f, tiny = a < 0x1p-13f;
    poetc_vector r, t, power, high, z, p;
    poetc_lanes k;
    r = poetc_exp_reducev(2.0f * poetc_choose(fits & large, a, one), &k, &t); /* expm1 of [1.25, 19): k is neither 0 nor large */
    t = r + t;
    power = (poetc_vector)((k + 127) << 23);
    high = poetc_copysignv(1.0f - 2.0f / (((power - 1.0f) + power * t) + 2.0f), x);
    z = x * x;
    p = POETC_SPLAT(-0x1.769df8p-8f);
    p = p * z + 0x1.525328p-6f;
    p = p * z - 0x1.b8439ap-5f;
    p = p * z + 0x1.110762p-3f;
    p = p * z - 0x1.555534p-2f;
    p = poetc_choose(tiny, x, x + x * (z * p));
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
    const poetc_vector z = x * x, b = poetc_choose(fits & ~small, a, one);
    poetc_vector p = POETC_SPLAT(0x1.5c2d7cp-14f), q = POETC_SPLAT(-0x1.62f10ap-16f), r, tail;
    poetc_lanes k;
    p = p * z - 0x1.a9fdb8p-11f;
    p = p * z + 0x1.54be04p-8f;
    p = p * z - 0x1.b80d1ap-6f;
    p = p * z + 0x1.ce2deep-4f;
    p = p * z - 0x1.812742p-2f;
    p = p * z + 0x1.06eba8p-3f;
    p = x + x * p;
    q = q * b + 0x1.c84de4p-12f;
    q = q * b - 0x1.11938cp-8f;
    q = q * b + 0x1.9bb37ap-6f;
    q = q * b - 0x1.bb9202p-4f;
    q = q * b - 0x1.444478p-1f;
    q = q * b - 0x1.212846p+0f;
    q = q * b + 0x1.70d5f0p-13f;
    r = poetc_exp_reducev(q, &k, &tail);
    q = poetc_copysignv(1.0f - poetc_scalev(1.0f + (r + tail), k), x);
    q = poetc_choose(small, p, q);
    return poetc_choose(fits, q, poetc_choose(x != x, x, poetc_copysignv(one, x)));
}

#endif
#endif
