/* Conversions of tensors to 16 bits and back, and sums of such tensors.
 *
 * Layout: dense arrays.
 * Order of sums: blocks of 32 terms in sequence, and the blocks in sequence. */
#include "narrow/poetc_narrow.h"
#include "simd/poetc_half.h"
#include "simd/poetc_vector.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define TERMS 32 /* of a block */

static float power_of_two(int32_t exponent)
{
    return poetc_float_of((uint32_t)(127 + exponent) << 23);
}

/* Halves that lie together; vectors convert four at once. */
static void widen_halves(float *to, const uint16_t *from, float factor, int32_t count)
{
    int32_t i = 0;
#if defined(__aarch64__)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(to + i, vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))), factor));
#elif defined(POETC_HELIUM)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(to + i, vmulq_n_f32(vcvtbq_f32_f16(vreinterpretq_f16_u32(vldrhq_u32(from + i))), factor));
#endif
    for (; i < count; i++)
        to[i] = poetc_float_of_half(from[i]) * factor;
}

void poetc_widen(float *to, const void *from, poetc_stored stored, ptrdiff_t first, ptrdiff_t step, int32_t count)
{
    const uint16_t *halves = (const uint16_t *)from + first;
    const float *floats = (const float *)from + first;
    const float factor = power_of_two(-stored.scale), times = power_of_two(stored.scale);
    int32_t i;
    switch (stored.form) {
    case POETC_FORM_F16:
        if (step == 1) {
            widen_halves(to, halves, factor, count);
            break;
        }
        for (i = 0; i < count; i++, halves += step)
            to[i] = poetc_float_of_half(*halves) * factor;
        break;
    case POETC_FORM_BF16:
        if (step == 1) { /* a loop that compilers turn into vectors */
            for (i = 0; i < count; i++)
                to[i] = poetc_float_of((uint32_t)halves[i] << 16);
            break;
        }
        for (i = 0; i < count; i++, halves += step)
            to[i] = poetc_float_of((uint32_t)*halves << 16);
        break;
    case POETC_FORM_TO_F16:
        for (i = 0; i < count; i++, floats += step)
            to[i] = poetc_float_of_half(poetc_half_of(*floats * times)) * factor;
        break;
    case POETC_FORM_TO_BF16:
        for (i = 0; i < count; i++, floats += step)
            to[i] = poetc_float_of((uint32_t)poetc_bfloat_of(poetc_bits_of(*floats)) << 16);
        break;
    default:
        for (i = 0; i < count; i++, floats += step)
            to[i] = *floats;
    }
}

int poetc_narrow(void *to, poetc_stored stored, ptrdiff_t first, const float *from, int32_t count)
{
    uint16_t *halves = (uint16_t *)to + first;
    const float factor = power_of_two(stored.scale);
    uint32_t largest = 0u;
    int32_t i = 0;
    switch (stored.form) {
    case POETC_FORM_F16:
#if defined(__aarch64__)
        for (; i + 4 <= count; i += 4)
            vst1_u16(halves + i, vreinterpret_u16_f16(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(from + i), factor))));
#elif defined(POETC_HELIUM)
        for (; i + 4 <= count; i += 4)
            vstrhq_u32(halves + i,
                       vreinterpretq_u32_f16(vcvtbq_f16_f32(vdupq_n_f16(0), vmulq_n_f32(vld1q_f32(from + i), factor))));
#endif
        for (; i < count; i++)
            halves[i] = poetc_half_of(from[i] * factor);
        for (i = 0; i < count; i++) {
            const uint32_t size = halves[i] & 0x7fffu;
            largest = size > largest ? size : largest;
        }
        return largest >= 0x7c00u ? POETC_EEXPONENT : POETC_OK;
    case POETC_FORM_BF16:
        for (; i < count; i++)
            halves[i] = poetc_bfloat_of(poetc_bits_of(from[i]));
        break;
    default:
        for (; i < count; i++)
            ((float *)to)[first + i] = from[i];
    }
    return POETC_OK;
}

/* ints: elements, form, scale. x -> x in 16 bits. */
int poetc_op_narrow(const poetc_call *call);
int poetc_op_narrow(const poetc_call *call)
{
    const int32_t count = call->ints[0], first = POETC_BEGIN(call->share, count, 16);
    const float *x = poetc_in(call, 0);
    POETC_THREADED_OVER(poetc_op_narrow, call, count);
    return poetc_narrow(poetc_out(call, 1), poetc_stored_of(call->ints + 1), first, x + first,
                        POETC_END(call->share, count, 16) - first);
}

/* The same ints. x in 16 bits -> x. */
int poetc_op_widen(const poetc_call *call);
int poetc_op_widen(const poetc_call *call)
{
    const int32_t count = call->ints[0], first = POETC_BEGIN(call->share, count, 16);
    float *x = poetc_out(call, 1);
    POETC_THREADED_OVER(poetc_op_widen, call, count);
    poetc_widen(x + first, poetc_in(call, 0), poetc_stored_of(call->ints + 1), first, 1,
                POETC_END(call->share, count, 16) - first);
    return POETC_OK;
}

/* x[outer, kept, inner] -> y[kept]. ints: outer, kept, inner, form, scale. */
int poetc_op_narrow_reduce_sum(const poetc_call *call);
int poetc_op_narrow_reduce_sum(const poetc_call *call)
{
    const int32_t outer = call->ints[0], kept = call->ints[1], inner = call->ints[2];
    const poetc_stored stored = poetc_stored_of(call->ints + 3);
    const void *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t k, n, i, j;
    for (k = 0; k < kept; k++) {
        float total = 0.0f, part = 0.0f, piece[TERMS];
        int32_t terms = 0;
        for (n = 0; n < outer; n++) {
            const ptrdiff_t row = ((ptrdiff_t)n * kept + k) * inner;
            for (i = 0; i < inner; i += TERMS) {
                const int32_t count = inner - i < TERMS ? inner - i : TERMS;
                poetc_widen(piece, x, stored, row + i, 1, count);
                for (j = 0; j < count; j++) {
                    part += piece[j];
                    if (++terms == TERMS) {
                        total += part;
                        part = 0.0f;
                        terms = 0;
                    }
                }
            }
        }
        y[k] = total + part;
    }
    return POETC_OK;
}
