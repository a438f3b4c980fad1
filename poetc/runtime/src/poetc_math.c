/* Elementary functions in single precision and integers only; see poetc_math.h for why.
 *
 * Each reduces its argument exactly (or with the rounding error carried along), and evaluates a short polynomial on the
 * reduced range. It puts the result back together, the large exact term last. The polynomials are weighted minimax fits
 * made for this file. The stated errors are the largest seen over a dense sample of all arguments, in units in the last
 * place (ulp).
 */
#include "poetc_math.h"
#include "poetc_fma.h"

#define LOG2_E 0x1.715476p+0f
#define LN2_HI 0x1.62e4p-1f /* 15 bits: times an exponent it is exact */
#define LN2_LO 0x1.7f7d1cp-20f
#define ROUND_TO_INT 12582912.0f /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */

static float poetc_scale(float x, int32_t k)
{
    /* Two exact factors, so that a subnormal result is rounded once; |k| <= 252. */
    int32_t half = k / 2;
    return x * poetc_from_bits((uint32_t)(half + 127) << 23) * poetc_from_bits((uint32_t)(k - half + 127) << 23);
}

/* sqrt: 0.5 ulp (correctly rounded, hence the same bits from hardware and from integers) */
#if !defined(POETC_PORTABLE_SQRT) && defined(__GNUC__) && defined(__SSE__)
float poetc_sqrtf(float x)
{
    float y;
    __asm__("sqrtss %1, %0" : "=x"(y) : "x"(x));
    return y;
}
#elif !defined(POETC_PORTABLE_SQRT) && defined(__GNUC__) && defined(__aarch64__)
float poetc_sqrtf(float x)
{
    float y;
    __asm__("fsqrt %s0, %s1" : "=w"(y) : "w"(x));
    return y;
}
#elif !defined(POETC_PORTABLE_SQRT) && defined(__GNUC__) && defined(__ARM_FP) && (__ARM_FP & 4)
float poetc_sqrtf(float x)
{
    float y;
    __asm__("vsqrt.f32 %0, %1" : "=t"(y) : "t"(x));
    return y;
}
#else
float poetc_sqrtf(float x)
{
    uint32_t bits = poetc_bits(x), mantissa = bits & 0x7fffffu, root = 0, rest = 0;
    int32_t exponent = (int32_t)(bits >> 23), shift, i;
    uint64_t operand;
    if ((bits << 1) == 0 || bits == 0x7f800000u || poetc_isnan(x))
        return x;
    if (bits & 0x80000000u)
        return POETC_NAN;
    if (exponent == 0) {
        exponent = 1;
        while (!(mantissa & 0x800000u)) {
            mantissa <<= 1;
            exponent--;
        }
    }
    mantissa |= 0x800000u;
    /* x = operand * 2^(2j): root in [2^24, 2^25), one bit more than the result has. A tie cannot happen. */
    shift = (exponent & 1) ? 25 : 26;
    operand = (uint64_t)mantissa << shift;
    for (i = 0; i < 25; i++) {
        uint32_t trial = (root << 2) | 1u;
        rest = (rest << 2) | (uint32_t)(operand >> 48 & 3u);
        operand <<= 2;
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1u;
        }
    }
    root = (root + 1u) >> 1;
    exponent = (exponent - shift) / 2 + 76;
    return poetc_from_bits(((uint32_t)exponent << 23) + (root - 0x800000u));
}
#endif

/* exp(r) - 1 for |r| <= ln(2) / 2 */
static float exp_less_one(float r)
{
    float p = 0x1.6d649ap-10f;
    p = POETC_FMA(p, r, 0x1.1241d0p-7f);
    p = POETC_FMA(p, r, 0x1.5554d4p-5f);
    p = POETC_FMA(p, r, 0x1.555486p-3f);
    p = POETC_FMA(p, r, 0.5f);
    return POETC_FMA(r * r, p, r);
}

static float exp_reduce(float x, int32_t *k)
{
    float shifted = POETC_FMA(x, LOG2_E, ROUND_TO_INT), n = shifted - ROUND_TO_INT;
    *k = (int32_t)n;
    return POETC_FMS(n, LN2_LO, POETC_FMS(n, LN2_HI, x));
}

/* 1.0 ulp */
float poetc_expf(float x)
{
    int32_t k;
    float r;
    if (!(x < 89.0f))
        return poetc_isnan(x) ? x : POETC_INFINITY;
    if (x < -104.0f)
        return 0.0f;
    r = exp_reduce(x, &k);
    return poetc_scale(1.0f + exp_less_one(r), k);
}

/* 1.6 ulp */
float poetc_expm1f(float x)
{
    int32_t k;
    float r, t, power;
    if (!(x < 89.0f))
        return poetc_isnan(x) ? x : POETC_INFINITY;
    if (x < -18.0f)
        return -1.0f;
    if (poetc_fabsf(x) < 0x1p-25f)
        return x;
    r = exp_reduce(x, &k);
    t = exp_less_one(r);
    if (k == 0)
        return t;
    if (k >= 127)
        return poetc_scale(1.0f + t, k);
    power = poetc_from_bits((uint32_t)(k + 127) << 23);
    return POETC_FMA(power, t, power - 1.0f);
}

/* x = m * 2^k with m in [sqrt(1/2), sqrt(2)); x positive and finite */
static float split_exponent(float x, int32_t *k)
{
    uint32_t bits;
    *k = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p25f;
        *k = -25;
    }
    bits = poetc_bits(x) - 0x3f3504f3u;
    *k += (int32_t)(bits >> 23) - ((bits >> 31) ? 512 : 0);
    return poetc_from_bits((bits & 0x7fffffu) + 0x3f3504f3u);
}

/* log(1 + f) = 2 s + s R(s^2), s = f / (2 + f); rewritten as f - (f^2 / 2 - s (f^2 / 2 + R)), where
 * the large term is exact. 0.8 ulp */
float poetc_logf(float x)
{
    int32_t k;
    float f, s, z, r, half, n;
    if (!(x > 0.0f))
        return x == 0.0f ? -POETC_INFINITY : POETC_NAN;
    if (x == POETC_INFINITY)
        return x;
    f = split_exponent(x, &k) - 1.0f;
    n = (float)k;
    s = f / (2.0f + f);
    z = s * s;
    r = 0x1.ec153ep-3f;
    r = POETC_FMA(r, z, 0x1.23f1bcp-2f);
    r = POETC_FMA(r, z, 0x1.999bd4p-2f);
    r = POETC_FMA(r, z, 0x1.555554p-1f);
    half = 0.5f * f;
    return POETC_FMA(n, LN2_HI, f - POETC_FMA(half, f, -POETC_FMA(s, POETC_FMA(half, f, r * z), n * LN2_LO)));
}

/* 1.5 ulp */
float poetc_log1pf(float x)
{
    float u = 1.0f + x;
    if (!(u > 0.0f) || u == POETC_INFINITY)
        return poetc_logf(u);
    /* the part that rounding took from u, to first order; u - 1 is exact where it matters */
    return u == 1.0f ? x : poetc_logf(u) + (u < 0x1p24f ? (x - (u - 1.0f)) / u : 0.0f);
}

/* 1.3 ulp */
float poetc_tanhf(float x)
{
    float a = poetc_fabsf(x), z, p;
    if (!(a < 9.5f))
        return poetc_isnan(x) ? x : poetc_copysignf(1.0f, x);
    if (a >= 0.625f)
        return poetc_copysignf(1.0f - 2.0f / (poetc_expm1f(2.0f * a) + 2.0f), x);
    if (a < 0x1p-13f)
        return x; /* keeps -0 */
    z = x * x;
    p = -0x1.769df8p-8f;
    p = POETC_FMA(p, z, 0x1.525328p-6f);
    p = POETC_FMA(p, z, -0x1.b8439ap-5f);
    p = POETC_FMA(p, z, 0x1.110762p-3f);
    p = POETC_FMA(p, z, -0x1.555534p-2f);
    return POETC_FMA(x, z * p, x);
}

/* 2.3 ulp */
float poetc_sigmoidf(float x)
{
    float e = poetc_expf(-poetc_fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* 1.3 ulp */
float poetc_erff(float x)
{
    float a = poetc_fabsf(x), z, p;
    if (!(a < 3.95f))
        return poetc_isnan(x) ? x : poetc_copysignf(1.0f, x);
    if (a < 0.92f) {
        z = x * x;
        p = 0x1.5c2d7cp-14f;
        p = POETC_FMA(p, z, -0x1.a9fdb8p-11f);
        p = POETC_FMA(p, z, 0x1.54be04p-8f);
        p = POETC_FMA(p, z, -0x1.b80d1ap-6f);
        p = POETC_FMA(p, z, 0x1.ce2deep-4f);
        p = POETC_FMA(p, z, -0x1.812742p-2f);
        p = POETC_FMA(p, z, 0x1.06eba8p-3f);
        return POETC_FMA(x, p, x);
    }
    /* 1 - exp(log(1 - erf(a))) */
    p = -0x1.62f10ap-16f;
    p = POETC_FMA(p, a, 0x1.c84de4p-12f);
    p = POETC_FMA(p, a, -0x1.11938cp-8f);
    p = POETC_FMA(p, a, 0x1.9bb37ap-6f);
    p = POETC_FMA(p, a, -0x1.bb9202p-4f);
    p = POETC_FMA(p, a, -0x1.444478p-1f);
    p = POETC_FMA(p, a, -0x1.212846p+0f);
    p = POETC_FMA(p, a, 0x1.70d5f0p-13f);
    return poetc_copysignf(1.0f - poetc_expf(p), x);
}

/* x = quadrant * pi / 2 + r, |r| <= pi / 4, by fixed-point multiplication with the bits of 2 / pi that matter for x
 * (Payne and Hanek 1983). Returns r. */
static float trig_reduce(float x, uint32_t *quadrant)
{
    static const uint32_t two_over_pi[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                            0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    uint32_t bits = poetc_bits(x), mantissa = (bits & 0x7fffffu) | 0x800000u, window[3], shift, i, first, turns;
    int32_t exponent = (int32_t)(bits >> 23 & 0xffu) - 127;
    uint64_t turn, size;
    float r;
    *quadrant = 0;
    if (poetc_fabsf(x) <= 0x1.921fb6p-1f)
        return x;
    first = (uint32_t)(exponent + 7); /* of the bits to take, counted in the table; the earlier ones make whole turns */
    shift = first & 31u;
    for (i = 0; i < 3; i++) {
        const uint32_t *word = &two_over_pi[(first >> 5) + i];
        window[i] = shift ? (word[0] << shift) | (word[1] >> (32u - shift)) : word[0];
    }
    turn = (((uint64_t)window[0] << 32) | window[1]) * mantissa + ((uint64_t)window[2] * mantissa >> 32);
    turns = (uint32_t)((turn + ((uint64_t)1 << 61)) >> 62); /* turn counts quadrants in units of 2^-62 */
    turn -= (uint64_t)turns << 62;
    size = (turn >> 63) ? ~turn + 1u : turn;
    exponent = 0;
    if (size == 0)
        size = 1;
    while (!(size >> 63)) {
        size <<= 1;
        exponent--;
    }
    size = (size >> 32) * 0xc90fdaa2u; /* pi / 2 in units of 2^-31 */
    r = (float)(uint32_t)(size >> 32) * poetc_from_bits((uint32_t)(exponent + 127 - 29) << 23);
    *quadrant = turns;
    if (turn >> 63)
        r = -r;
    if (bits >> 31) {
        r = -r;
        *quadrant = 0u - turns;
    }
    return r;
}

static float sin_kernel(float r)
{
    float z = r * r, p = 0x1.7848aep-19f;
    p = POETC_FMA(p, z, -0x1.a04a40p-13f);
    p = POETC_FMA(p, z, 0x1.111166p-7f);
    p = POETC_FMA(p, z, -0x1.555556p-3f);
    return POETC_FMA(r, z * p, r);
}

static float cos_kernel(float r)
{
    float z = r * r, top = POETC_FMS(0.5f, z, 1.0f), p = 0x1.99e6c4p-16f;
    p = POETC_FMA(p, z, -0x1.6c0c26p-10f);
    p = POETC_FMA(p, z, 0x1.55554ap-5f);
    return top + POETC_FMA(z * z, p, POETC_FMS(0.5f, z, 1.0f - top));
}

static float trig(float x, uint32_t advance)
{
    uint32_t quadrant;
    float r, y;
    if (!(poetc_fabsf(x) < POETC_INFINITY))
        return POETC_NAN;
    r = trig_reduce(x, &quadrant);
    quadrant += advance;
    if (quadrant == 0 && poetc_fabsf(r) < 0x1p-13f)
        return r; /* keeps -0 */
    y = (quadrant & 1u) ? cos_kernel(r) : sin_kernel(r);
    return (quadrant & 2u) ? -y : y;
}

/* 1.5 ulp */
float poetc_sinf(float x)
{
    return trig(x, 0);
}

/* 1.5 ulp */
float poetc_cosf(float x)
{
    return trig(x, 1);
}

#define PI_OVER_4_HI 0x1.921fb6p-1f
#define PI_OVER_4_LO (-0x1.777a5cp-26f)

/* 1.8 ulp; atan(a) = atan(c) + atan((a - c) / (1 + a c)), with c = 0, 1 or infinity */
float poetc_atanf(float x)
{
    float a = poetc_fabsf(x), times = 0.0f, t = a, z, p;
    if (poetc_isnan(x))
        return x;
    if (a > 0x1.3504f4p+1f) { /* tan(3 pi / 8) */
        times = 2.0f;
        t = -1.0f / a;
    } else if (a > 0x1.a8279ap-2f) { /* tan(pi / 8) */
        times = 1.0f;
        t = (a - 1.0f) / (a + 1.0f);
    }
    z = t * t;
    p = -0x1.f256aep-5f;
    p = POETC_FMA(p, z, 0x1.b20246p-4f);
    p = POETC_FMA(p, z, -0x1.23b6bcp-3f);
    p = POETC_FMA(p, z, 0x1.9991aep-3f);
    p = POETC_FMA(p, z, -0x1.55554ap-2f);
    return poetc_copysignf(POETC_FMA(times, PI_OVER_4_HI, t + POETC_FMA(t, z * p, times * PI_OVER_4_LO)), x);
}

float poetc_floorf(float x)
{
    float t;
    if (!(poetc_fabsf(x) < 0x1p23f))
        return x;
    t = (float)(int32_t)x;
    return poetc_copysignf(t > x ? t - 1.0f : t, x);
}

float poetc_ceilf(float x)
{
    return -poetc_floorf(-x);
}

float poetc_roundf(float x)
{
    float a = poetc_fabsf(x);
    if (!(a < 0x1p23f))
        return x;
    return poetc_copysignf((a + 0x1p23f) - 0x1p23f, x);
}

/* a * b = result + *error, exactly (Dekker 1971), unless the error underflows */
static float multiply_exactly(float a, float b, float *error)
{
    float p = a * b;
#if defined(POETC_FUSED)
    *error = POETC_FMA(a, b, -p);
#else
    float ah = poetc_from_bits(poetc_bits(a) & 0xfffff000u), al = a - ah;
    float bh = poetc_from_bits(poetc_bits(b) & 0xfffff000u), bl = b - bh;
    *error = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
    return p;
}

/* log(x) as an unevaluated sum, to about 2^-36 relative; x positive and finite */
static float log_pair(float x, float *low)
{
    int32_t k;
    float f = split_exponent(x, &k) - 1.0f, n = (float)k;
    float d = 2.0f + f, d_low = f - (d - 2.0f), s = f / d, s_low, product, error;
    float z, z_low, third, third_low, q, w, a, b, c, t;
    product = multiply_exactly(s, d, &error);
    s_low = POETC_FMS(s, d_low, (f - product) - error) / d;
    /* log(1 + f) = 2 s (1 + z / 3 + z^2 q), z = s^2 */
    z = multiply_exactly(s, s, &z_low);
    z_low = POETC_FMA(2.0f * s, s_low, z_low);
    q = 0x1.dfd1d0p-4f;
    q = POETC_FMA(q, z, 0x1.245194p-3f);
    q = POETC_FMA(q, z, 0x1.999a02p-3f);
    third = multiply_exactly(z, 0x1.555556p-2f, &third_low);
    third_low += POETC_FMA(z * z, q, POETC_FMS(z, 0x1.555556p-27f, z_low * 0x1.555556p-2f)); /* 1/3 as two floats */
    w = multiply_exactly(s, third, &error);
    error += POETC_FMA(s_low, third, s * third_low);
    /* s + w, then twice that + n ln 2 */
    a = s + w;
    b = (w - (a - s)) + (error + s_low);
    a *= 2.0f;
    b *= 2.0f;
    c = n * LN2_HI;
    t = c + a;
    b += POETC_FMA(n, LN2_LO, poetc_fabsf(c) > poetc_fabsf(a) ? a - (t - c) : c - (t - a));
    a = t + b;
    *low = b - (a - t);
    return a;
}

/* 1.2 ulp */
float poetc_powf(float x, float y)
{
    float ax = poetc_fabsf(x), ay = poetc_fabsf(y), magnitude, high, low, p, p_low, r;
    int32_t k;
    int negative = 0, whole = ay >= 0x1p23f || poetc_floorf(y) == y;
    int odd = whole && ay < 0x1p24f && ((int32_t)ay & 1);
    if (y == 0.0f || x == 1.0f)
        return 1.0f;
    if (poetc_isnan(x) || poetc_isnan(y))
        return POETC_NAN;
    if (poetc_bits(x) >> 31) {
        negative = odd;
        if (!whole && ax > 0.0f && ax < POETC_INFINITY)
            return POETC_NAN;
    }
    if (ax == 1.0f) {
        magnitude = 1.0f;
    } else if (ax == 0.0f || ax == POETC_INFINITY) {
        magnitude = (ax == 0.0f) == (y > 0.0f) ? 0.0f : POETC_INFINITY;
    } else if (ay == POETC_INFINITY) {
        magnitude = (ax < 1.0f) == (y > 0.0f) ? 0.0f : POETC_INFINITY;
    } else {
        high = log_pair(ax, &low);
        p = y * high;
        if (p > 89.0f) {
            magnitude = POETC_INFINITY;
        } else if (p < -104.0f) {
            magnitude = 0.0f;
        } else {
            p = multiply_exactly(y, high, &p_low);
            p_low = POETC_FMA(y, low, p_low);
            r = exp_reduce(p, &k) + p_low;
            magnitude = poetc_scale(1.0f + exp_less_one(r), k);
        }
    }
    return negative ? -magnitude : magnitude;
}
