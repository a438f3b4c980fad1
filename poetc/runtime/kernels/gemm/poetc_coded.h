/* Coded weights: matrices whose numbers lie in fewer bits, and are decoded where they are read.
 *
 * Layout: codes are [rows, depth]; 4 bits: two a byte, the lower half first, rows filled up to whole bytes. The number
 * of code q is (q - zero) * scale, with a scale and a zero point for each block along a row. Zero points have the bits
 * of the codes, or are floats; without them zero is half of the range. 16 bits: IEEE floats or bfloat16, no scales.
 * Order of sums: nothing is added here. */
#ifndef POETC_CODED_H
#define POETC_CODED_H

#include <string.h>

#include "poetc_kernel.h"
#include "simd/poetc_half.h"

#define POETC_CODED_F16 16
#define POETC_CODED_BF16 17

typedef struct {
    const uint8_t *codes, *zeros;       /* zeros NULL: half of the range */
    const float *scales, *points;       /* points: zero points that are floats, or NULL */
    int32_t bits, block, depth, blocks; /* depth of a row; blocks of a row */
} poetc_coded;

/* Operands `first` and on: codes, then scales and zero points if there are some (has_zeros 2: floats). */
static inline poetc_coded poetc_coded_of(const poetc_call *call, unsigned first, int32_t depth, int32_t bits,
                                         int32_t block, int has_zeros)
{
    poetc_coded w = {.codes = poetc_in(call, first), .bits = bits, .block = block, .depth = depth};
    w.blocks = block ? (depth + block - 1) / block : 0;
    if (bits <= 8)
        w.scales = poetc_in(call, first + 1);
    if (has_zeros == 2)
        w.points = poetc_in(call, first + 2);
    else if (has_zeros)
        w.zeros = poetc_in(call, first + 2);
    return w;
}

static inline int32_t poetc_nibble(const uint8_t *row, int32_t at)
{
    return at & 1 ? row[at >> 1] >> 4 : row[at >> 1] & 15;
}

static inline float poetc_float_of_bfloat(uint16_t word)
{
    const uint32_t bits = (uint32_t)word << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Bytes of a row of so many codes. */
static inline ptrdiff_t poetc_coded_bytes(int32_t bits, int32_t count)
{
    return bits == 4 ? (count + 1) / 2 : bits == 8 ? count : 2 * (ptrdiff_t)count;
}

/* to[0 .. count) = elements first, first + 1, ... of a row. */
static inline void poetc_decode(const poetc_coded *w, int32_t row, int32_t first, int32_t count, float *to)
{
    const uint8_t *codes = w->codes + (ptrdiff_t)row * poetc_coded_bytes(w->bits, w->depth);
    const int32_t end = first + count;
    int32_t k = first;
    if (w->bits > 8) {
        const uint16_t *words = (const uint16_t *)(const void *)codes;
        for (; k < end; k++)
            *to++ = w->bits == POETC_CODED_F16 ? poetc_float_of_half(words[k]) : poetc_float_of_bfloat(words[k]);
        return;
    }
    while (k < end) {
        const int32_t block = k / w->block, stop = (block + 1) * w->block < end ? (block + 1) * w->block : end;
        const float scale = w->scales[(ptrdiff_t)row * w->blocks + block];
        if (w->points) {
            const float zero = w->points[(ptrdiff_t)row * w->blocks + block];
            for (; w->bits == 4 && !(k & 1) && k + 2 <= stop; k += 2, to += 2) {
                const int32_t pair = codes[k >> 1];
                to[0] = ((float)(pair & 15) - zero) * scale;
                to[1] = ((float)(pair >> 4) - zero) * scale;
            }
            for (; k < stop && (w->bits == 8 || k & 1 || k + 1 == stop); k++)
                *to++ = ((float)(w->bits == 4 ? poetc_nibble(codes, k) : codes[k]) - zero) * scale;
            continue; /* an odd first number of 4 bits was decoded alone; pairs follow */
        }
        const uint8_t *zeros = w->zeros ? w->zeros + (ptrdiff_t)row * poetc_coded_bytes(w->bits, w->blocks) : NULL;
        if (w->bits == 4) {
            const int32_t zero = zeros ? poetc_nibble(zeros, block) : 8;
            if (k & 1)
                *to++ = (float)(poetc_nibble(codes, k) - zero) * scale, k++;
            for (; k + 2 <= stop; k += 2, to += 2) {
                const int32_t pair = codes[k >> 1];
                to[0] = (float)((pair & 15) - zero) * scale;
                to[1] = (float)((pair >> 4) - zero) * scale;
            }
            if (k < stop)
                *to++ = (float)(poetc_nibble(codes, k) - zero) * scale, k++;
        } else {
            const int32_t zero = zeros ? zeros[block] : 128;
            for (; k < stop; k++)
                *to++ = (float)(codes[k] - zero) * scale;
        }
    }
}

#endif
