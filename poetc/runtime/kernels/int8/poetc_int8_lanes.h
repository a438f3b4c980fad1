/* Scans and rounding of sums in vectors: POETC_INT8_LANES sums at a time, where the target has vectors of integers.
 *
 * Layout: sums and values lie behind each other. Order of sums: nothing is added up here. */
#ifndef POETC_INT8_LANES_H
#define POETC_INT8_LANES_H

#include "int8/poetc_int8_helium.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define POETC_INT8_LANES 16
#elif defined(__SSE2__)
#include <immintrin.h>
#define POETC_INT8_LANES 4
#elif defined(__aarch64__)
#include <arm_neon.h>
#define POETC_INT8_LANES 4
#elif POETC_INT8_HELIUM
#define POETC_INT8_LANES 4
#endif

#if defined(POETC_INT8_LANES)
typedef int32_t poetc_sums __attribute__((vector_size(4 * POETC_INT8_LANES)));
typedef uint32_t poetc_magnitudes __attribute__((vector_size(4 * POETC_INT8_LANES)));
typedef int32_t poetc_sums_unaligned __attribute__((vector_size(4 * POETC_INT8_LANES), aligned(4), may_alias));

static inline poetc_sums poetc_load_sums(const int32_t *p)
{
    return *(const poetc_sums_unaligned *)p;
}

#if defined(__aarch64__)
static inline void poetc_store_sums(int32_t *p, poetc_sums v)
{
    *(poetc_sums_unaligned *)p = v;
}
#endif

#if !POETC_INT8_HELIUM
/* Stores the low bytes of the lanes, which are within a byte. */
static inline void poetc_store_bytes(int8_t *to, poetc_sums v)
{
#if POETC_INT8_LANES == 16
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__SSE2__)
    const __m128i halves = _mm_packs_epi32((__m128i)v, (__m128i)v);
    const int32_t word = _mm_cvtsi128_si32(_mm_packs_epi16(halves, halves));
    __builtin_memcpy(to, &word, sizeof word);
#elif defined(__aarch64__)
    const int8x16_t bytes = (int8x16_t)v, even = vuzp1q_s8(bytes, bytes), word = vuzp1q_s8(even, even);
    const int32_t low = vgetq_lane_s32((int32x4_t)word, 0);
    __builtin_memcpy(to, &low, sizeof low);
#endif
}

#endif

/* Sixteen values. */
typedef int8_t poetc_values __attribute__((vector_size(16)));
typedef uint8_t poetc_bytes __attribute__((vector_size(16)));
typedef int8_t poetc_values_unaligned __attribute__((vector_size(16), aligned(1), may_alias));

static inline poetc_values poetc_load_values(const int8_t *p)
{
    return *(const poetc_values_unaligned *)p;
}

static inline void poetc_store_values(int8_t *p, poetc_values v)
{
    *(poetc_values_unaligned *)p = v;
}

/* a where the mask is -1, b where it is 0. */
static inline poetc_values poetc_either(poetc_values mask, poetc_values a, poetc_values b)
{
    return (a & mask) | (b & ~mask);
}

/* a - b, clipped to -127 and 127. `clipped` falls by 1 where it is. */
static inline poetc_values poetc_subtract_values(poetc_values a, poetc_values b, poetc_values *clipped)
{
    const poetc_values difference = (poetc_values)((poetc_bytes)a - (poetc_bytes)b);
    const poetc_values over = ((a ^ b) & (a ^ difference)) < 0, end = (a < 0) ^ 127;
    poetc_values y = poetc_either(over, end, difference);
    y -= y == -128;
    *clipped += y != difference;
    return y;
}

/* 16 sums a * times_a + b * times_b. */
static inline void poetc_add_values(const int8_t *a, int32_t times_a, const int8_t *b, int32_t times_b, int32_t *sums)
{
#if POETC_INT8_LANES == 16
    const poetc_sums x = (poetc_sums)_mm512_cvtepi8_epi32((__m128i)poetc_load_values(a));
    const poetc_sums y = (poetc_sums)_mm512_cvtepi8_epi32((__m128i)poetc_load_values(b));
    _mm512_storeu_si512(sums, (__m512i)(x * times_a + y * times_b));
#elif defined(__aarch64__)
    const int8x16_t x = (int8x16_t)poetc_load_values(a), y = (int8x16_t)poetc_load_values(b);
    const int16x8_t x_low = vmovl_s8(vget_low_s8(x)), x_high = vmovl_high_s8(x);
    const int16x8_t y_low = vmovl_s8(vget_low_s8(y)), y_high = vmovl_high_s8(y);
    poetc_store_sums(sums, (poetc_sums)vmovl_s16(vget_low_s16(x_low)) * times_a +
                               (poetc_sums)vmovl_s16(vget_low_s16(y_low)) * times_b);
    poetc_store_sums(sums + 4,
                     (poetc_sums)vmovl_high_s16(x_low) * times_a + (poetc_sums)vmovl_high_s16(y_low) * times_b);
    poetc_store_sums(sums + 8, (poetc_sums)vmovl_s16(vget_low_s16(x_high)) * times_a +
                                   (poetc_sums)vmovl_s16(vget_low_s16(y_high)) * times_b);
    poetc_store_sums(sums + 12,
                     (poetc_sums)vmovl_high_s16(x_high) * times_a + (poetc_sums)vmovl_high_s16(y_high) * times_b);
#elif POETC_INT8_HELIUM
    int32_t i;
    for (i = 0; i < 16; i += 4) {
        const int32x4_t x = vmulq_n_s32(vldrbq_s32(a + i), times_a);
        vstrwq_s32(sums + i, vmlaq_n_s32(x, vldrbq_s32(b + i), times_b));
    }
#else
    int32_t i;
    for (i = 0; i < 16; i++)
        sums[i] = a[i] * times_a + b[i] * times_b;
#endif
}

static inline int32_t poetc_clipped_of_values(poetc_values clipped)
{
    int32_t count = 0, i;
    for (i = 0; i < 16; i++)
        count -= clipped[i];
    return count;
}

/* Adds a number to `count` sums that follow each other. */
static inline void poetc_add_to_sums(int32_t *sums, int32_t count, int32_t number)
{
#if defined(__aarch64__)
    const poetc_sums all = {number, number, number, number};
    for (; count >= 4; count -= 4, sums += 4)
        poetc_store_sums(sums, poetc_load_sums(sums) + all);
#endif
    for (; count > 0; count--)
        *sums++ += number;
}

#if !POETC_INT8_HELIUM /* whose scans and rounding are in assembly */
/* Of each lane its magnitude less 1, or 0. */
static inline poetc_sums poetc_below_lanes(poetc_sums sum)
{
    const poetc_sums below = sum - 1 - (sum >> 31);
    return below ^ (below >> 31);
}

static inline uint32_t poetc_or_of_lanes(poetc_sums v)
{
    uint32_t all = 0u;
    int32_t i;
    for (i = 0; i < POETC_INT8_LANES; i++)
        all |= (uint32_t)v[i];
    return all;
}

/* Numbers that all lanes share: of the shift, and the largest value. */
typedef struct {
    int32_t shift, half, odd, unit, most;
    int32_t rests, lows, carries;
} poetc_rounding_lanes;

static inline poetc_rounding_lanes poetc_rounding_lanes_of(int32_t shift, uint32_t most)
{
    poetc_rounding_lanes r;
    r.shift = shift > 0 ? shift : 0;
    r.half = r.shift / 2, r.odd = r.shift & 1;
    r.unit = r.shift ? (int32_t)1 << (r.shift - 1) : 0;
    r.most = (int32_t)most;
    r.rests = (int32_t)(((uint32_t)1 << r.shift) - 1u);
    r.lows = ((int32_t)1 << r.half) - 1;
    r.carries = ((int32_t)1 << (r.shift - r.half)) - 1;
    return r;
}

/* Values of sums of at most 2^30 in magnitude. `clipped` falls by 1 in the lanes that are clipped. */
static inline poetc_sums poetc_round_lanes(poetc_sums sum, const poetc_rounding_lanes *r, int32_t is_stochastic,
                                           poetc_sums *clipped)
{
    const poetc_sums sign = sum >> 31, m = (sum ^ sign) - sign;
    poetc_sums v, over;
    if (is_stochastic) {
        const poetc_sums rest = m & r->rests;
        v = (m >> r->shift) - ((((rest & r->lows) << r->odd) - (rest >> r->half)) >> 31);
    } else
        v = (m + r->unit) >> r->shift;
    over = (r->most - v) >> 31;
    *clipped += over;
    v = (v & ~over) | (r->most & over);
    return (v ^ sign) - sign;
}

static inline int32_t poetc_clipped_of_lanes(poetc_sums clipped)
{
    int32_t count = 0, i;
    for (i = 0; i < POETC_INT8_LANES; i++)
        count -= clipped[i];
    return count;
}

#if defined(__aarch64__)
/* Of `count` sums, a multiple of 16, bits as many as the largest magnitude less 1 has. */
static inline uint32_t poetc_see_sixteens(const int32_t *sums, int32_t count)
{
    int32x4_t least = vdupq_n_s32(0), most = least;
    int32_t low, high;
    for (; count > 0; count -= 16, sums += 16) {
        const int32x4x2_t a = vld1q_s32_x2(sums), b = vld1q_s32_x2(sums + 8);
        least = vminq_s32(least, vminq_s32(vminq_s32(a.val[0], a.val[1]), vminq_s32(b.val[0], b.val[1])));
        most = vmaxq_s32(most, vmaxq_s32(vmaxq_s32(a.val[0], a.val[1]), vmaxq_s32(b.val[0], b.val[1])));
    }
    low = vminvq_s32(least), high = vmaxvq_s32(most);
    return (uint32_t)((low ^ (low >> 31)) | (high - (high > 0)));
}

/* The magnitude of four values, which may be too large. */
static inline uint32x4_t poetc_round_four(int32x4_t sum, const poetc_rounding_lanes *r, int32_t is_stochastic)
{
    const uint32x4_t m = vreinterpretq_u32_s32(vabsq_s32(sum));
    uint32x4_t rest, low;
    if (!is_stochastic)
        return vrshlq_u32(m, vdupq_n_s32(-r->shift));
    rest = vandq_u32(m, vdupq_n_u32((uint32_t)r->rests));
    low = vshlq_u32(vandq_u32(rest, vdupq_n_u32((uint32_t)r->lows)), vdupq_n_s32(r->odd));
    return vsubq_u32(vshlq_u32(m, vdupq_n_s32(-r->shift)), vcgtq_u32(vshlq_u32(rest, vdupq_n_s32(-r->half)), low));
}

/* Values of `count` sums, a multiple of 16. Narrow lanes saturate above the largest value. */
static inline void poetc_round_sixteens(const int32_t *sums, int32_t count, int8_t *to, const poetc_rounding_lanes *r,
                                        int32_t is_stochastic, poetc_sums *clipped)
{
    const uint8x16_t most = vdupq_n_u8((uint8_t)r->most);
    int32x4_t over = vdupq_n_s32(0);
    for (; count > 0; count -= 16, sums += 16, to += 16) {
        const int32x4x2_t a = vld1q_s32_x2(sums), b = vld1q_s32_x2(sums + 8);
        const uint16x8_t low = vqmovn_high_u32(vqmovn_u32(poetc_round_four(a.val[0], r, is_stochastic)),
                                               poetc_round_four(a.val[1], r, is_stochastic));
        const uint16x8_t high = vqmovn_high_u32(vqmovn_u32(poetc_round_four(b.val[0], r, is_stochastic)),
                                                poetc_round_four(b.val[1], r, is_stochastic));
        const uint8x16_t v = vqmovn_high_u16(vqmovn_u16(low), high);
        const int16x8_t tops = vuzp2q_s16(vreinterpretq_s16_s32(a.val[0]), vreinterpretq_s16_s32(a.val[1]));
        const int16x8_t more = vuzp2q_s16(vreinterpretq_s16_s32(b.val[0]), vreinterpretq_s16_s32(b.val[1]));
        const int8x16_t sign = vshrq_n_s8(vuzp2q_s8(vreinterpretq_s8_s16(tops), vreinterpretq_s8_s16(more)), 7);
        over = vpadalq_s16(over, vpaddlq_s8(vreinterpretq_s8_u8(vcgtq_u8(v, most))));
        poetc_store_values(to, (poetc_values)vsubq_s8(veorq_s8(vreinterpretq_s8_u8(vminq_u8(v, most)), sign), sign));
    }
    *clipped += (poetc_sums)over;
}
#endif

#if POETC_INT8_LANES == 16
/* The magnitude of 16 values, which may be too large. */
static inline __m512i poetc_round_sixteen(__m512i sum, const poetc_rounding_lanes *r, int32_t is_stochastic)
{
    const __m128i shift = _mm_cvtsi32_si128(r->shift);
    const __m512i m = _mm512_abs_epi32(sum);
    __m512i upper, lower, whole;
    if (!is_stochastic)
        return _mm512_srl_epi32(_mm512_add_epi32(m, _mm512_set1_epi32(r->unit)), shift);
    upper = _mm512_srl_epi32(_mm512_and_si512(m, _mm512_set1_epi32(r->rests)), _mm_cvtsi32_si128(r->half));
    lower = _mm512_sll_epi32(_mm512_and_si512(m, _mm512_set1_epi32(r->lows)), _mm_cvtsi32_si128(r->odd));
    whole = _mm512_srl_epi32(m, shift);
    return _mm512_mask_add_epi32(whole, _mm512_cmpgt_epi32_mask(upper, lower), whole, _mm512_set1_epi32(1));
}

/* Values of `count` sums, a multiple of 64; whether none was too large. If one was, `to` holds no values. */
static inline int poetc_round_unclipped(const int32_t *sums, int32_t count, int8_t *to, const poetc_rounding_lanes *r,
                                        int32_t is_stochastic)
{
    const __m512i zero = _mm512_setzero_si512();
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i largest = zero;
    for (; count > 0; count -= 64, sums += 64, to += 64) {
        __m512i y[4], low, high;
        int32_t i;
        _Pragma("GCC unroll 4") for (i = 0; i < 4; i++)
        {
            const __m512i sum = _mm512_loadu_si512(sums + 16 * i), v = poetc_round_sixteen(sum, r, is_stochastic);
            largest = _mm512_max_epu32(largest, v);
            y[i] = _mm512_mask_sub_epi32(v, _mm512_cmplt_epi32_mask(sum, zero), zero, v);
        }
        low = _mm512_packs_epi32(y[0], y[1]), high = _mm512_packs_epi32(y[2], y[3]);
        _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high)));
    }
    return !_mm512_cmpgt_epu32_mask(largest, _mm512_set1_epi32(r->most));
}
#endif

/* Values of the sums of whole vectors, which lie `step` apart. Returns how many sums were taken. */
static inline int32_t poetc_round_vectors(const int32_t *sums, int32_t count, int8_t *to, int32_t step, int32_t shift,
                                          int32_t is_stochastic, uint32_t most, int32_t *clipped)
{
    const poetc_rounding_lanes r = poetc_rounding_lanes_of(shift, most);
    const int32_t whole = count / POETC_INT8_LANES * POETC_INT8_LANES;
    poetc_sums over = {0};
    int32_t i = 0, j;
#if defined(__aarch64__)
    if (step == 1) {
        i = count / 16 * 16;
        if (is_stochastic)
            poetc_round_sixteens(sums, i, to, &r, 1, &over);
        else
            poetc_round_sixteens(sums, i, to, &r, 0, &over);
    }
#endif
#if POETC_INT8_LANES == 16
    if (step == 1 && count >= 64) {
        i = count / 64 * 64;
        if (!(is_stochastic ? poetc_round_unclipped(sums, i, to, &r, 1) : poetc_round_unclipped(sums, i, to, &r, 0)))
            i = 0; /* the clipped ones are counted below */
    }
#endif
    if (step == 1 && is_stochastic)
        for (; i < whole; i += POETC_INT8_LANES)
            poetc_store_bytes(to + i, poetc_round_lanes(poetc_load_sums(sums + i), &r, 1, &over));
    else if (step == 1)
        for (; i < whole; i += POETC_INT8_LANES)
            poetc_store_bytes(to + i, poetc_round_lanes(poetc_load_sums(sums + i), &r, 0, &over));
    else
        for (; i < whole; i += POETC_INT8_LANES) {
            const poetc_sums v = poetc_round_lanes(poetc_load_sums(sums + i), &r, is_stochastic, &over);
            for (j = 0; j < POETC_INT8_LANES; j++, to += step)
                *to = (int8_t)v[j];
        }
    *clipped += poetc_clipped_of_lanes(over);
    return whole;
}
#endif
#endif

#endif
