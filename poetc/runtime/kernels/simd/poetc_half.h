/* Floats in 16 bits, one by one: IEEE halves (f16), and the upper halves of words (bf16).
 *
 * Layout: single numbers.
 * Order of sums: nothing is added here. */
#ifndef POETC_HALF_H
#define POETC_HALF_H

#include "poetc_kernel.h"
#include "poetc_math.h"

/* Arm's cores convert to and from 16 bits themselves, with the bits of the functions below. */
#if defined(__GNUC__) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' && defined(__ARM_FP) &&              \
    (__ARM_FP & 6) == 6
static inline uint16_t poetc_half_of(float x)
{
    float packed;
    __asm__("vcvtb.f16.f32 %0, %1" : "=t"(packed) : "t"(x));
    return (uint16_t)poetc_bits(packed);
}

static inline float poetc_float_of_half(uint16_t half)
{
    float x = poetc_from_bits(half);
    __asm__("vcvtb.f32.f16 %0, %0" : "+t"(x));
    return x;
}
#elif defined(__GNUC__) && defined(__aarch64__)
static inline uint16_t poetc_half_of(float x)
{
    const __fp16 half = (__fp16)x;
    uint16_t word;
    __builtin_memcpy(&word, &half, sizeof word);
    return word;
}

static inline float poetc_float_of_half(uint16_t word)
{
    __fp16 half;
    __builtin_memcpy(&half, &word, sizeof half);
    return (float)half;
}
#else
/* To nearest, ties to even. A NaN keeps its upper bits, and becomes quiet. */
static inline uint16_t poetc_half_of(float x)
{
    const uint32_t word = poetc_bits(x), sign = word >> 16 & 0x8000u;
    uint32_t size = word & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x1ffu));
    if (size >= 0x477ff000u) /* rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* subnormal: adding a half rounds it in the last place of the sum */
        const float sum = poetc_from_bits(size) + 0.5f;
        return (uint16_t)(sign | (poetc_bits(sum) - 0x3f000000u));
    }
    size += 0xfffu + (size >> 13 & 1u);
    return (uint16_t)(sign | (size - 0x38000000u) >> 13);
}

static inline float poetc_float_of_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, size = half & 0x7fffu;
    if (size >= 0x7c00u)
        return poetc_from_bits(sign | 0x7f800000u | (size & 0x3ffu) << 13 | (size > 0x7c00u ? 0x400000u : 0u));
    if (size >= 0x400u)
        return poetc_from_bits(sign | ((size << 13) + 0x38000000u));
    return poetc_from_bits(sign | poetc_bits((float)(int32_t)size * 0x1p-24f));
}
#endif

/* The upper half of a float's bits: to nearest, ties to even. A NaN stays one. */
static inline uint16_t poetc_bfloat_of(uint32_t word)
{
    const uint32_t nearest = (word + 0x7fffu + (word >> 16 & 1u)) >> 16;
    return (uint16_t)((word & 0x7fffffffu) > 0x7f800000u ? word >> 16 | 0x40u : nearest);
}

#endif
