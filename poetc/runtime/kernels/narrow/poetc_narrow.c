/* Conversions of tensors to 16 bits and back, and sums of such tensors.
 *
 * Layout: dense arrays.
 * Order of sums: blocks of 32 terms in sequence, and the blocks in sequence. */
#include "narrow/poetc_narrow_lanes.h"

#define TERMS 32 /* of a block */

static float power_of_two(int32_t exponent)
{
    return poetc_from_bits((uint32_t)(127 + exponent) << 23);
}

/* One float, `form` a constant wherever this is inlined. */
POETC_INLINE float widened(const int form, const void *from, float factor, float times)
{
    const uint16_t *half = from;
    const float *x = from;
    if (form == POETC_FORM_F16)
        return poetc_float_of_half(*half) * factor;
    if (form == POETC_FORM_BF16)
        return poetc_from_bits((uint32_t)*half << 16);
    if (form == POETC_FORM_TO_F16)
        return poetc_float_of_half(poetc_half_of(*x * times)) * factor;
    if (form == POETC_FORM_TO_BF16)
        return poetc_from_bits((uint32_t)poetc_bfloat_of(poetc_bits(*x)) << 16);
    return *x;
}

POETC_INLINE void widen(const int form, const int is_dense, float *to, const void *from, ptrdiff_t step, int32_t scale,
                        int32_t count)
{
    const ptrdiff_t bytes = (form == POETC_FORM_F16 || form == POETC_FORM_BF16 ? 2 : 4) * (is_dense ? 1 : step);
    const char *at = from;
    int32_t left = count;
#if POETC_FOUR
    const poetc_stored stored = {form, scale};
    const poetc_powers powers = poetc_powers_of(stored);
    for (; left >= 4; left -= 4, at += 4 * bytes, to += 4)
        vst1q_f32(to, poetc_four(form, is_dense, at, step, powers, 4));
#if defined(POETC_HELIUM)
    if (left > 0)
        vstrwq_p_f32(to, poetc_four(form, is_dense, at, step, powers, left), vctp32q((uint32_t)left));
    return;
#endif
#endif
    for (; left > 0; left--, at += bytes)
        *to++ = widened(form, at, power_of_two(-scale), power_of_two(scale));
}

#define WIDEN(form)                                                                                                    \
    if (step == 1)                                                                                                     \
        widen(form, 1, to, at, 1, stored.scale, count);                                                                \
    else                                                                                                               \
        widen(form, 0, to, at, step, stored.scale, count)

void poetc_widen(float *to, const void *from, poetc_stored stored, ptrdiff_t first, ptrdiff_t step, int32_t count)
{
    const int is_half = stored.form == POETC_FORM_F16 || stored.form == POETC_FORM_BF16;
    const void *at = (const char *)from + first * (is_half ? 2 : 4);
    switch (stored.form) {
    case POETC_FORM_F16: WIDEN(POETC_FORM_F16); break;
    case POETC_FORM_BF16: WIDEN(POETC_FORM_BF16); break;
    case POETC_FORM_TO_F16: WIDEN(POETC_FORM_TO_F16); break;
    case POETC_FORM_TO_BF16: WIDEN(POETC_FORM_TO_BF16); break;
    default: WIDEN(POETC_FORM_F32);
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
    {
        uint16x4_t most = vdup_n_u16(0);
        for (; i + 4 <= count; i += 4) {
            const uint16x4_t words = vreinterpret_u16_f16(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(from + i), factor)));
            most = vmax_u16(most, vbic_u16(words, vdup_n_u16(0x8000u)));
            vst1_u16(halves + i, words);
        }
        largest = vmaxv_u16(most);
    }
#elif defined(POETC_HELIUM)
        for (; i < count; i += 4) {
            const mve_pred16_t some = vctp32q((uint32_t)(count - i));
            const uint32x4_t words = poetc_halves_of_four(vldrwq_z_f32(from + i, some), factor);
            largest = vmaxvq_p_u32(largest, vandq_u32(words, vdupq_n_u32(0x7fffu)), some);
            vstrhq_p_u32(halves + i, words, some);
        }
#endif
        for (; i < count; i++) {
            const uint32_t word = poetc_half_of(from[i] * factor), size = word & 0x7fffu;
            halves[i] = (uint16_t)word;
            largest = size > largest ? size : largest;
        }
        return largest >= 0x7c00u ? POETC_EEXPONENT : POETC_OK;
    case POETC_FORM_BF16:
        for (; i < count; i++)
            halves[i] = poetc_bfloat_of(poetc_bits(from[i]));
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
