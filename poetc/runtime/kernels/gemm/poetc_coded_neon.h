/* Few rows times codes that follow each other along the columns, in Neon. Zero points that are codes are taken from
 * codes as bytes, which widen as they are subtracted.
 *
 * Layout: that of poetc_coded_block.h, which includes this file. Pairs of a call share their scales.
 * Order of sums: that of poetc_gemm_block.h. The difference of two codes is exact, so the bits are those of floats. */
#ifndef POETC_CODED_NEON_H
#define POETC_CODED_NEON_H

/* The codes of a term less a zero point, as floats: of even and odd columns if they have 4 bits. */
POETC_INLINE void codes_less(poetc_vector *to, const uint8_t *codes, uint8x16_t zero, const int bits, const int pairs)
{
    const uint8x16_t low = vdupq_n_u8(15);
    const int apart = bits == 4, bytes = apart ? 4 * pairs : 8 * pairs;
    int16x8_t parts[2 * MOST_PAIRS]; /* of eight codes each: even ones, odd ones, or all in order */
    int i;
    POETC_UNROLL
    for (i = 0; i < bytes; i += 16) {
        uint8x16_t own = vdupq_n_u8(0);
        if (bytes >= 16) {
            own = vld1q_u8(codes + i);
        } else if (bytes == 8) {
            own = vcombine_u8(vld1_u8(codes), vdup_n_u8(0));
        } else {
            uint32_t word;
            memcpy(&word, codes, sizeof word);
            own = vreinterpretq_u8_u32(vsetq_lane_u32(word, vdupq_n_u32(0), 0));
        }
        if (apart) {
            const uint8x16_t even = vandq_u8(own, low), odd = vshrq_n_u8(own, 4);
            parts[0] = (int16x8_t)vsubl_u8(vget_low_u8(even), vget_low_u8(zero));
            parts[1] = (int16x8_t)vsubl_u8(vget_low_u8(odd), vget_low_u8(zero));
            if (bytes >= 16)
                parts[2] = (int16x8_t)vsubl_high_u8(even, zero), parts[3] = (int16x8_t)vsubl_high_u8(odd, zero);
        } else {
            parts[i / 8] = (int16x8_t)vsubl_u8(vget_low_u8(own), vget_low_u8(zero));
            if (bytes >= 16)
                parts[i / 8 + 1] = (int16x8_t)vsubl_high_u8(own, zero);
        }
    }
    POETC_UNROLL
    for (i = 0; i < 2 * pairs; i++) { /* vector number i */
        const int16x8_t part = parts[apart ? i % 2 + i / 4 * 2 : i / 2];
        const int is_high = apart ? i / 2 % 2 : i % 2;
        to[i] = (poetc_vector)vcvtq_f32_s32(is_high ? vmovl_high_s16(part) : vmovl_s16(vget_low_s16(part)));
    }
}

/* Where the codes, scales, zero points and factors of the next term lie. */
typedef struct {
    const uint8_t *codes, *zeros;
    const float *scales, *x;
    ptrdiff_t step, blocks, zero_step;
    int8x16_t shift; /* of a zero point of 4 bits */
} neon_place;

/* Adds `together` terms to the sums: one, or four whose factors are loaded at once. */
POETC_INLINE void neon_terms(poetc_vector sum[][2 * MOST_PAIRS], neon_place *at, const coded_task *t, const int bits,
                             const int rows, const int pairs, const int together)
{
    const int apart = bits == 4, loads = rows >= 4 ? rows / 4 : rows;
    poetc_vector factors[MOST_ROWS];
    int i, j, n;
    POETC_UNROLL
    for (i = 0; i < loads; i++)
        factors[i] = rows >= 4       ? poetc_vector_load(at->x + 4 * i)
                     : together == 4 ? poetc_vector_load(at->x + i * t->x_row)
                                     : (poetc_vector){0} + at->x[i * t->x_row];
    at->x += rows >= 4 ? rows : together;
    POETC_UNROLL
    for (n = 0; n < together; n++) {
        uint8x16_t zero = vld1q_dup_u8(at->zeros);
        const float scale = *at->scales;
        poetc_vector v[2 * MOST_PAIRS];
        if (apart)
            zero = vandq_u8(vshlq_u8(zero, at->shift), vdupq_n_u8(15));
        codes_less(v, at->codes, zero, bits, pairs);
        POETC_UNROLL
        for (j = 0; j < 2 * pairs; j++) {
            v[j] *= scale;
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                POETC_ADD_SCALED(sum[i][j], v[j], rows >= 4 ? factors[i / 4][i % 4] : factors[i][n]);
        }
        at->codes += at->step, at->scales += at->blocks, at->zeros += at->zero_step;
        __asm__ volatile("" ::: "memory"); /* terms that mix would need more registers than there are */
    }
}

/* The sums of one to eight rows with all terms of a block of columns. */
POETC_INLINE void neon_rows(const poetc_coded *w, const int bits, const int rows, const int pairs, const coded_task *t)
{
    static const uint8_t middles[2] = {8, 128};
    const int apart = bits == 4, together = rows >= 4 ? 1 : 4;
    neon_place at = {.step = poetc_coded_bytes(bits, w->depth), .blocks = w->blocks};
    int32_t column, left;
    at.zero_step = w->zeros ? poetc_coded_bytes(bits, w->blocks) : 0;
    for (column = t->column; column + pairs * PAIR <= t->column + t->columns; column += pairs * PAIR) {
        const int32_t block = w->blocks > 1 ? column / w->block : 0;
        poetc_vector sum[MOST_ROWS][2 * MOST_PAIRS];
        at.codes = w->codes + t->first * at.step + column * bits / 8;
        at.zeros = w->zeros ? w->zeros + t->first * at.zero_step + (apart ? block >> 1 : block) : middles + !apart;
        at.shift = vdupq_n_s8((int8_t)(w->zeros && apart ? -4 * (block & 1) : 0));
        at.scales = w->scales + t->first * at.blocks + block, at.x = t->x;
        start_sums(sum, t, rows, pairs, apart, column);
        for (left = t->depth; left >= together; left -= together)
            neon_terms(sum, &at, t, bits, rows, pairs, together);
        for (; left > 0; left--)
            neon_terms(sum, &at, t, bits, rows, pairs, 1);
        finish_sums(sum, t, rows, pairs, apart, column);
    }
}

#endif
