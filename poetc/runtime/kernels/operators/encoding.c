/* Encodings of saved tensors (poetc/ops/encoding.py).
 *
 * Layout: dense arrays. Bit k of byte i belongs to element 8 i + k; the lower half of byte i to element 2 i.
 * Order of sums: nothing is added up here. */
#include "poetc_kernel.h"
#include "simd/poetc_half.h"

#define POSITIVE(word) ((word) - 1u < 0x7f800000u) /* of a float's bits: above 0, and no NaN */

/* y -> bits: y > 0. */
int poetc_op_slope_bits(const poetc_call *call);
int poetc_op_slope_bits(const poetc_call *call)
{
    const uint32_t *y = poetc_in(call, 0);
    uint8_t *bits = poetc_out(call, 1);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), k;
    POETC_THREADED_OVER(poetc_op_slope_bits, call, call->ints[0]);
    for (; i < count; i += 8) {
        const int32_t few = count - i < 8 ? count - i : 8;
        uint32_t byte = 0u;
        if (few == 8) {
            for (k = 7; k >= 0; k--)
                byte = byte << 1 | POSITIVE(y[i + k]);
        } else {
            for (k = few - 1; k >= 0; k--)
                byte = byte << 1 | POSITIVE(y[i + k]);
        }
        bits[i / 8] = (uint8_t)byte;
    }
    return POETC_OK;
}

/* y -> bits: floats[0] < y < floats[1]. */
int poetc_op_slope_bits_between(const poetc_call *call);
int poetc_op_slope_bits_between(const poetc_call *call)
{
    const float *y = poetc_in(call, 0), low = call->floats[0], high = call->floats[1];
    uint8_t *bits = poetc_out(call, 1);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), k;
    POETC_THREADED_OVER(poetc_op_slope_bits_between, call, call->ints[0]);
    for (; i < count; i += 8) {
        const int32_t few = count - i < 8 ? count - i : 8;
        uint32_t byte = 0u;
        for (k = few - 1; k >= 0; k--)
            byte = byte << 1 | (uint32_t)((y[i + k] > low) & (y[i + k] < high));
        bits[i / 8] = (uint8_t)byte;
    }
    return POETC_OK;
}

/* bits, gy -> gx: gy where the bit is set, else 0. The words are copied, so that a NaN keeps its bits. */
int poetc_op_slope_grad(const poetc_call *call);
int poetc_op_slope_grad(const poetc_call *call)
{
    const uint8_t *bits = poetc_in(call, 0);
    const uint32_t *gy = poetc_in(call, 1);
    uint32_t *gx = poetc_out(call, 2);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), k;
    POETC_THREADED_OVER(poetc_op_slope_grad, call, call->ints[0]);
    for (; i + 8 <= count; i += 8) {
        const uint32_t byte = bits[i / 8];
        for (k = 0; k < 8; k++)
            gx[i + k] = gy[i + k] & (0u - (byte >> k & 1u));
    }
    for (; i < count; i++)
        gx[i] = gy[i] & (0u - ((uint32_t)bits[i / 8] >> i % 8 & 1u));
    return POETC_OK;
}

/* bits, gy -> gx: gy where the bit is set, else floats[0] gy. */
int poetc_op_slope_grad_leaky(const poetc_call *call);
int poetc_op_slope_grad_leaky(const poetc_call *call)
{
    const uint8_t *bits = poetc_in(call, 0);
    const float *gy = poetc_in(call, 1), alpha = call->floats[0];
    float *gx = poetc_out(call, 2);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16);
    POETC_THREADED_OVER(poetc_op_slope_grad_leaky, call, call->ints[0]);
    for (; i < count; i++)
        gx[i] = bits[i / 8] >> i % 8 & 1 ? gy[i] : alpha * gy[i];
    return POETC_OK;
}

/* bytes below 16 -> two in a byte. */
int poetc_op_pack_nibbles(const poetc_call *call);
int poetc_op_pack_nibbles(const poetc_call *call)
{
    const uint8_t *x = poetc_in(call, 0);
    uint8_t *packed = poetc_out(call, 1);
    const int32_t count = call->ints[0];
    int32_t i;
    for (i = 0; i + 2 <= count; i += 2)
        packed[i / 2] = (uint8_t)(x[i] | (uint32_t)x[i + 1] << 4);
    if (i < count)
        packed[i / 2] = x[i];
    return POETC_OK;
}

/* two in a byte -> bytes. */
int poetc_op_unpack_nibbles(const poetc_call *call);
int poetc_op_unpack_nibbles(const poetc_call *call)
{
    const uint8_t *packed = poetc_in(call, 0);
    uint8_t *x = poetc_out(call, 1);
    const int32_t count = call->ints[0];
    int32_t i;
    for (i = 0; i < count; i++)
        x[i] = (uint8_t)(i % 2 ? packed[i / 2] >> 4 : packed[i / 2] & 15);
    return POETC_OK;
}

/* --- floats in fewer bits --- */

#define BLOCK 128 /* elements of 8 bits that share a scale */
#define SMALLEST 1e-30f
#define INFINITE 0x7f800000u /* the bits of an infinity */

/* Whether a float of these bits is finite and its code, which is infinite from magnitude `least` on, is not. */
static inline uint32_t becomes_infinite(uint32_t word, uint32_t least)
{
    return (word & 0x7fffffffu) - least < INFINITE - least;
}

/* x -> halves. POETC_EEXPONENT: a finite number is none of f16. */
int poetc_op_encode_f16(const poetc_call *call);
int poetc_op_encode_f16(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    uint16_t *code = poetc_out(call, 1);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16);
    uint32_t is_over = 0u;
    POETC_THREADED_OVER(poetc_op_encode_f16, call, call->ints[0]);
    for (; i < count; i++) {
        is_over |= becomes_infinite(poetc_bits(x[i]), 0x477ff000u); /* 65520 */
        code[i] = poetc_half_of(x[i]);
    }
    return is_over ? POETC_EEXPONENT : POETC_OK;
}

/* halves -> x. */
int poetc_op_decode_f16(const poetc_call *call);
int poetc_op_decode_f16(const poetc_call *call)
{
    const uint16_t *code = poetc_in(call, 0);
    float *x = poetc_out(call, 1);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16);
    POETC_THREADED_OVER(poetc_op_decode_f16, call, call->ints[0]);
    for (; i < count; i++)
        x[i] = poetc_float_of_half(code[i]);
    return POETC_OK;
}

/* x -> the upper halves of words: to nearest, ties to even. A NaN stays one. POETC_EEXPONENT: a finite number is none
 * of bf16. */
int poetc_op_encode_bf16(const poetc_call *call);
int poetc_op_encode_bf16(const poetc_call *call)
{
    const uint32_t *x = poetc_in(call, 0);
    uint16_t *code = poetc_out(call, 1);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16);
    uint32_t is_over = 0u;
    POETC_THREADED_OVER(poetc_op_encode_bf16, call, call->ints[0]);
    for (; i < count; i++) {
        is_over |= becomes_infinite(x[i], 0x7f7f8000u);
        code[i] = poetc_bfloat_of(x[i]);
    }
    return is_over ? POETC_EEXPONENT : POETC_OK;
}

/* the upper halves of words -> x. */
int poetc_op_decode_bf16(const poetc_call *call);
int poetc_op_decode_bf16(const poetc_call *call)
{
    const uint16_t *code = poetc_in(call, 0);
    uint32_t *x = poetc_out(call, 1);
    const int32_t count = POETC_END(call->share, call->ints[0], 16);
    int32_t i = POETC_BEGIN(call->share, call->ints[0], 16);
    POETC_THREADED_OVER(poetc_op_decode_bf16, call, call->ints[0]);
    for (; i < count; i++)
        x[i] = (uint32_t)code[i] << 16;
    return POETC_OK;
}

/* x -> bytes, then from the next multiple of 4 on a scale for each block: its largest magnitude / 127. Values are
 * rounded to nearest, ties away from zero. A block with a NaN or an infinity has the scale NaN. */
int poetc_op_encode_int8(const poetc_call *call);
int poetc_op_encode_int8(const poetc_call *call)
{
    const int32_t all = call->ints[0], count = POETC_END(call->share, all, BLOCK);
    const float *x = poetc_in(call, 0);
    int8_t *code = poetc_out(call, 1);
    float *scale = (float *)(void *)(code + (all + 3) / 4 * 4);
    int32_t first = POETC_BEGIN(call->share, all, BLOCK), i;
    POETC_THREADED_OVER(poetc_op_encode_int8, call, all);
    for (; first < count; first += BLOCK) {
        const int32_t end = count - first < BLOCK ? count : first + BLOCK;
        uint32_t largest = 0u;
        float size, factor = 0.0f;
        for (i = first; i < end; i++) {
            const uint32_t word = poetc_bits(x[i]) & 0x7fffffffu;
            largest = word > largest ? word : largest;
        }
        size = poetc_from_bits(largest);
        scale[first / BLOCK] = largest >= 0x7f800000u ? poetc_from_bits(0x7fc00000u)
                               : size >= SMALLEST     ? size * (1.0f / 127.0f)
                                                      : 0.0f;
        if (largest >= 0x7f800000u || size < SMALLEST) {
            for (i = first; i < end; i++)
                code[i] = 0;
            continue;
        }
        factor = 127.0f / size;
        for (i = first; i < end; i++) {
            const float scaled = x[i] * factor;
            code[i] = (int8_t)(int32_t)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
        }
    }
    for (i = all; i < (all + 3) / 4 * 4 && count == all; i++)
        code[i] = 0;
    return POETC_OK;
}

/* bytes, scales -> x. */
int poetc_op_decode_int8(const poetc_call *call);
int poetc_op_decode_int8(const poetc_call *call)
{
    const int32_t all = call->ints[0], count = POETC_END(call->share, all, BLOCK);
    const int8_t *code = poetc_in(call, 0);
    const float *scale = (const float *)(const void *)(code + (all + 3) / 4 * 4);
    float *x = poetc_out(call, 1);
    int32_t i = POETC_BEGIN(call->share, all, BLOCK);
    POETC_THREADED_OVER(poetc_op_decode_int8, call, all);
    while (i < count) {
        const int32_t end = count - i < BLOCK ? count : i + BLOCK;
        const float factor = scale[i / BLOCK];
        for (; i < end; i++)
            x[i] = (float)code[i] * factor;
    }
    return POETC_OK;
}
