/* Integers with one exponent a tensor (poetc/ops/_integers.py): sums of 32 bits become values of 8 bits.
 *
 * Layout: a tensor of int8_t, and beside it a scale of four int32_t. They are the exponent, how many values were
 * clipped, the bits of the sums, and the shift. Order of sums: sums of 32 bits are exact, so that their order changes
 * nothing. */
#ifndef POETC_INT8_H
#define POETC_INT8_H

#include "int8/poetc_int8_helium.h"
#include "int8/poetc_int8_lanes.h"

#define POETC_INT8_MOST 127u
#define POETC_INT8_BITS 7
#define POETC_INT8_TOLERATED 1000 /* one clipped value in so many is no reason for a scan */
#define POETC_INT8_EXPONENT 100 /* beyond it a float may not hold a value */

/* How sums become values: the shift, the way of rounding, the largest value, and how many were clipped so far. */
typedef struct {
    int32_t shift, is_stochastic;
    uint32_t most;
    int32_t clipped;
} poetc_rounding;

static inline uint32_t poetc_magnitude(int32_t value)
{
    return value < 0 ? 0u - (uint32_t)value : (uint32_t)value;
}

/* The sum of `count` values that follow each other. */
static inline int32_t poetc_total_of_values(const int8_t *x, int32_t count)
{
    int32_t sum = 0;
#if defined(__aarch64__)
    int32x4_t sums = vdupq_n_s32(0);
    for (; count >= 16; count -= 16, x += 16)
        sums = vpadalq_s16(sums, vpaddlq_s8((int8x16_t)poetc_load_values(x)));
    if (count >= 8) {
        sums = vpadalq_s16(sums, vmovl_s8(vld1_s8(x)));
        count -= 8, x += 8;
    }
    sum = vaddvq_s32(sums);
#endif
    for (; count > 0; count--)
        sum += *x++;
    return sum;
}

/* ceil(log2 largest), 0 for none. */
static inline int32_t poetc_bits(uint32_t largest)
{
    int32_t bits = 0;
    while (bits < 32 && ((uint32_t)1 << bits) < largest && bits < 31)
        bits++;
    return largest > 0x80000000u ? 32 : bits;
}

/* Of a number above 1 its magnitude less 1, or a number with as many bits for the others. */
static inline uint32_t poetc_bits_below(int32_t sum)
{
    const uint32_t sign = (uint32_t)(sum >> 31), below = (uint32_t)sum - sign - 1u;
    return below ^ (uint32_t)((int32_t)below >> 31);
}

/* Adds the bits of `count` sums to `seen`: as many as poetc_bits_seen counts, others below them may differ. */
static inline uint32_t poetc_see(const int32_t *sums, int32_t count, uint32_t seen)
{
#if POETC_INT8_HELIUM
    if (count > 0) {
        seen = poetc_see_helium(sums, count, seen);
        count = 0;
    }
#elif defined(POETC_INT8_LANES)
    poetc_sums all = {0};
#if defined(__aarch64__)
    if (count >= 16) {
        const int32_t whole = count / 16 * 16;
        seen |= poetc_see_sixteens(sums, whole);
        sums += whole, count -= whole;
    }
#endif
    for (; count >= POETC_INT8_LANES; count -= POETC_INT8_LANES, sums += POETC_INT8_LANES)
        all |= poetc_below_lanes(poetc_load_sums(sums));
    seen |= poetc_or_of_lanes(all);
#endif
    for (; count >= 4; count -= 4, sums += 4) {
        seen |= poetc_bits_below(sums[0]) | poetc_bits_below(sums[1]);
        seen |= poetc_bits_below(sums[2]) | poetc_bits_below(sums[3]);
    }
    for (; count > 0; count--)
        seen |= poetc_bits_below(*sums++);
    return seen;
}

/* ceil(log2 of the largest magnitude) of the sums that were seen. */
static inline int32_t poetc_bits_seen(uint32_t seen)
{
    int32_t bits = 0;
    for (; seen; seen >>= 1)
        bits++;
    return bits;
}

/* sum / 2^shift. Nearest takes halves away from zero; pseudo-stochastic compares the upper half of the bits that go
 * with the lower half. */
static inline int8_t poetc_rounded(int32_t sum, poetc_rounding *r)
{
    uint32_t m = poetc_magnitude(sum);
    if (r->shift > 31)
        m = 0u;
    else if (r->shift > 0 && !r->is_stochastic)
        m = (m + ((uint32_t)1 << (r->shift - 1))) >> r->shift;
    else if (r->shift > 0) {
        const uint32_t rest = m & (((uint32_t)1 << r->shift) - 1u);
        const int32_t half = r->shift / 2;
        const uint32_t low = (rest & (((uint32_t)1 << half) - 1u)) << (r->shift & 1);
        m = (m >> r->shift) + ((rest >> half) > low);
    }
    if (m > r->most) {
        m = r->most;
        r->clipped++;
    }
    return (int8_t)(sum < 0 ? -(int32_t)m : (int32_t)m);
}

/* Pseudo-stochastic rounding of a sum by half + carry bits. It adds 1 where the upper of these bits, h, are above the
 * lower ones, l. That is the carry of h + (all ones - l). With an odd shift l has half of the bits and a zero. */
static inline int8_t poetc_round_by_carry(int32_t sum, int32_t half, int32_t carry, uint32_t ones, uint32_t most,
                                          int32_t *clipped)
{
    const int32_t sign = sum >> 31;
    const uint32_t m = (uint32_t)((sum ^ sign) - sign);
    uint32_t v = ((m >> half) + (ones & ~(m << (carry - half)))) >> carry;
    if (__builtin_expect(v > most, 0)) {
        v = most;
        ++*clipped;
    }
    return (int8_t)(((int32_t)v ^ sign) - sign);
}

/* Values of `count` sums of at most 2^30 in magnitude, `step` apart. The shift is at most 30. */
static inline void poetc_round_small(const int32_t *sums, int32_t count, int8_t *to, int32_t step, poetc_rounding *r)
{
    const int32_t shift = r->shift > 0 ? r->shift : 0, half = shift / 2, most = (int32_t)r->most;
    const uint32_t largest = r->most;
    const int32_t *const end = sums + count;
    int32_t clipped = 0;
#if POETC_INT8_HELIUM
    r->clipped += poetc_round_helium(sums, count, to, step, shift, r->is_stochastic, largest);
    sums = end;
#elif defined(POETC_INT8_LANES)
    const int32_t done = poetc_round_vectors(sums, count, to, step, shift, r->is_stochastic, largest, &clipped);
    sums += done;
    to += (ptrdiff_t)done * step;
#endif
    if (shift && r->is_stochastic) {
        const int32_t carry = shift - half;
        const uint32_t ones = ((uint32_t)1 << carry) - 1u;
        int32_t pairs = (int32_t)(end - sums) / 2;
        for (; pairs > 0; pairs--, sums += 2, to += step) {
            const int32_t first = sums[0], second = sums[1];
            *to = poetc_round_by_carry(first, half, carry, ones, largest, &clipped);
            to += step;
            *to = poetc_round_by_carry(second, half, carry, ones, largest, &clipped);
        }
        if (sums != end)
            *to = poetc_round_by_carry(*sums, half, carry, ones, largest, &clipped);
    } else if (shift) {
        const int32_t unit = (int32_t)((uint32_t)1 << (shift - 1)); /* one is taken from a negative sum */
        for (; sums != end; to += step) {
            const int32_t sum = *sums++;
            int32_t v = (sum + (sum >> 31) + unit) >> shift;
            if ((uint32_t)(v + most) > 2u * largest) {
                v = v < 0 ? -most : most;
                clipped++;
            }
            *to = (int8_t)v;
        }
    } else
        for (; sums != end; to += step) {
            int32_t v = *sums++;
            if ((uint32_t)v + largest > 2u * largest) {
                v = v < 0 ? -most : most;
                clipped++;
            }
            *to = (int8_t)v;
        }
    r->clipped += clipped;
}

/* The shift of activations and errors, whose sums have so many bits. */
static inline int32_t poetc_shift(int32_t bits)
{
    return bits > POETC_INT8_BITS ? bits - POETC_INT8_BITS : 0;
}

/* The bits of the largest update: 7 + floor(log2 rate), at most 7. */
static inline int32_t poetc_update_bits(float rate)
{
    uint32_t word;
    int32_t bits;
    if (!(rate > 0.0f))
        return -128;
    __builtin_memcpy(&word, &rate, sizeof word);
    bits = (int32_t)(word >> 23) - 127 + POETC_INT8_BITS;
    return bits > POETC_INT8_BITS ? POETC_INT8_BITS : bits;
}

/* The largest update of so many bits. */
static inline uint32_t poetc_update_most(int32_t bits)
{
    return bits < 0 ? 1u : bits < POETC_INT8_BITS ? (uint32_t)1 << bits : POETC_INT8_MOST;
}

/* POETC_EEXPONENT where the exponent overflows. One below the least counts as that: the values have vanished, as the
   errors of a sample do that the network is sure of. */
static inline int poetc_scale(int32_t *scale, int32_t exponent, int32_t clipped, int32_t bits, int32_t shift)
{
    scale[0] = exponent < -POETC_INT8_EXPONENT ? -POETC_INT8_EXPONENT : exponent;
    scale[1] = clipped;
    scale[2] = bits;
    scale[3] = shift;
    return exponent > POETC_INT8_EXPONENT ? POETC_EEXPONENT : POETC_OK;
}

#endif
