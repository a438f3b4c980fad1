/* Four floats at once from tensors in 16 bits, where the target has vectors that convert them; POETC_FOUR is 1 there.
 *
 * Layout: four elements, `step` apart.
 * Order of sums: nothing is added here. Each lane has the bits of the functions of simd/poetc_half.h. */
#ifndef POETC_NARROW_LANES_H
#define POETC_NARROW_LANES_H

#include "narrow/poetc_narrow.h"
#include "simd/poetc_half.h"
#include "simd/poetc_vector.h"

#if defined(POETC_HELIUM) || (defined(__GNUC__) && defined(__aarch64__))
#define POETC_FOUR 1
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef struct {
    float factor, times; /* 2^-scale and 2^scale */
} poetc_powers;

static inline poetc_powers poetc_powers_of(poetc_stored stored)
{
    poetc_powers p = {poetc_from_bits((uint32_t)(127 - stored.scale) << 23),
                      poetc_from_bits((uint32_t)(127 + stored.scale) << 23)};
    return p;
}

#if defined(POETC_HELIUM)
/* binutils 2.40 doubles the numbers of registers in these conversions: q0 alone is encoded as it should
 * be. */
POETC_INLINE float32x4_t poetc_four_of_halves(uint32x4_t words, float factor)
{
    float32x4_t x;
    __asm__("vmov q0, %q1\n\tvcvtb.f32.f16 q0, q0\n\tvmul.f32 %q0, q0, %2" : "=w"(x) : "w"(words), "r"(factor) : "q0");
    return x;
}

POETC_INLINE uint32x4_t poetc_halves_of_four(float32x4_t x, float times)
{
    uint32x4_t words;
    __asm__("vmul.f32 q0, %q1, %2\n\tvcvtb.f16.f32 q0, q0\n\tvmov %q0, q0" : "=w"(words) : "w"(x), "r"(times) : "q0");
    return words;
}

POETC_INLINE float32x4_t poetc_four_rounded(float32x4_t x, poetc_powers powers)
{
    __asm__("vmul.f32 q0, %q0, %1\n\tvcvtb.f16.f32 q0, q0\n\tvcvtb.f32.f16 q0, q0\n\tvmul.f32 %q0, q0, %2"
            : "+w"(x)
            : "r"(powers.times), "r"(powers.factor)
            : "q0");
    return x;
}
#endif

/* Of four floats, those that bf16 holds. */
POETC_INLINE float32x4_t poetc_four_bfloats(float32x4_t x)
{
#if defined(POETC_HELIUM)
    const uint32x4_t word = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(word, 16), vdupq_n_u32(1u));
    const uint32x4_t most = vdupq_n_u32(0xffff0000u);
    const uint32x4_t nearest = vandq_u32(vaddq_u32(vaddq_n_u32(word, 0x7fffu), odd), most);
    const uint32x4_t quiet = vorrq_u32(vandq_u32(word, most), vdupq_n_u32(0x400000u));
    const mve_pred16_t is_nan = vcmphiq_n_u32(vandq_u32(word, vdupq_n_u32(0x7fffffffu)), 0x7f800000u);
    return vreinterpretq_f32_u32(vpselq_u32(quiet, nearest, is_nan));
#else
    const uint32x4_t word = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(word, 16), vdupq_n_u32(1u));
    const uint32x4_t most = vdupq_n_u32(0xffff0000u);
    const uint32x4_t nearest = vandq_u32(vaddq_u32(vaddq_u32(word, vdupq_n_u32(0x7fffu)), odd), most);
    const uint32x4_t quiet = vorrq_u32(vandq_u32(word, most), vdupq_n_u32(0x400000u));
    const uint32x4_t is_nan = vmvnq_u32(vceqq_f32(x, x));
    return vreinterpretq_f32_u32(vbslq_u32(is_nan, quiet, nearest));
#endif
}

/* The floats at `from`, at most `left` of them; lanes beyond the last may hold anything. Form and `is_dense` (the step
 * is 1) are constants wherever this is inlined. A constant `left` is 4. */
POETC_INLINE float32x4_t poetc_four(const int form, const int is_dense, const void *from, ptrdiff_t step,
                                    poetc_powers powers, int32_t left)
{
    float32x4_t x;
#if defined(POETC_HELIUM)
    const int is_whole = __builtin_constant_p(left);
    const mve_pred16_t some = vctp32q((uint32_t)left);
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)step);
    if (form == POETC_FORM_F16 || form == POETC_FORM_BF16) {
        const uint32x4_t word = is_whole && is_dense ? vldrhq_u32(from)
                                : is_whole           ? vldrhq_gather_shifted_offset_u32(from, apart)
                                : is_dense           ? vldrhq_z_u32(from, some)
                                                     : vldrhq_gather_shifted_offset_z_u32(from, apart, some);
        if (form == POETC_FORM_BF16)
            return vreinterpretq_f32_u32(vshlq_n_u32(word, 16));
        return poetc_four_of_halves(word, powers.factor);
    }
    x = is_whole && is_dense ? vld1q_f32(from)
        : is_whole           ? vldrwq_gather_shifted_offset_f32(from, apart)
        : is_dense           ? vldrwq_z_f32(from, some)
                             : vldrwq_gather_shifted_offset_z_f32(from, apart, some);
    if (form == POETC_FORM_TO_F16)
        return poetc_four_rounded(x, powers);
#else
    if (form == POETC_FORM_F16 || form == POETC_FORM_BF16) {
        const uint16_t *h = from;
        uint16x4_t words;
        (void)left;
        if (is_dense)
            words = vld1_u16(h);
        else
            words = (uint16x4_t){h[0], h[step], h[2 * step], h[3 * step]};
        if (form == POETC_FORM_BF16)
            return vreinterpretq_f32_u32(vshll_n_u16(words, 16));
        return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(words)), powers.factor);
    }
    if (is_dense)
        x = vld1q_f32(from);
    else {
        const float *f = from;
        x = (float32x4_t){f[0], f[step], f[2 * step], f[3 * step]};
    }
    if (form == POETC_FORM_TO_F16)
        return vmulq_n_f32(vcvt_f32_f16(vcvt_f16_f32(vmulq_n_f32(x, powers.times))), powers.factor);
#endif
    return form == POETC_FORM_TO_BF16 ? poetc_four_bfloats(x) : x;
}
#else
#define POETC_FOUR 0
#endif

/* sum += v * s for a product that is exact: fused or not, the bits are the same. */
#if defined(__GNUC__) && defined(__aarch64__)
#define POETC_ADD_EXACT(sum, v, s) ((sum) = vfmaq_n_f32(sum, v, s))
#else
#define POETC_ADD_EXACT(sum, v, s) POETC_ADD_SCALED(sum, v, s)
#endif

#endif
