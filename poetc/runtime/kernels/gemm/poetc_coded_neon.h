/* Few rows times codes in Neon. Zero points that are codes are taken from codes as integers.
 *
 * Layout: that of poetc_coded_block.h, which includes this file. Pairs of a call that lie along the columns share their
 * scales.
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
    const uint8_t *codes, *zeros; /* with a step of nothing, each is `zero` */
    const float *scales, *x;
    ptrdiff_t step, blocks, zero_step;
    uint8x16_t zero;
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
        const float scale = at->scales[n * at->blocks];
        poetc_vector v[2 * MOST_PAIRS];
        if (rows >= 4 || at->zero_step) { /* for many rows a branch costs more */
            at->zero = vld1q_dup_u8(at->zeros + n * at->zero_step);
            if (apart)
                at->zero = vandq_u8(vshlq_u8(at->zero, at->shift), vdupq_n_u8(15));
        }
        codes_less(v, at->codes + n * at->step, at->zero, bits, pairs);
        POETC_UNROLL
        for (j = 0; j < 2 * pairs; j++) {
            v[j] *= scale;
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                POETC_ADD_SCALED(sum[i][j], v[j], rows >= 4 ? factors[i / 4][i % 4] : factors[i][n]);
        }
        __asm__ volatile("" ::: "memory"); /* terms that mix would need more registers than there are */
    }
    at->codes += together * at->step, at->scales += together * at->blocks;
    at->zeros += together * at->zero_step;
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
        at.zero = vdupq_n_u8(apart ? 8 : 128);
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

/* Of four columns: the scales of a block, `blocks` apart. */
POETC_INLINE poetc_vector neon_scales(const float *from, ptrdiff_t blocks)
{
    float32x4_t scales = vdupq_n_f32(from[0]);
    scales = vld1q_lane_f32(from += blocks, scales, 1), scales = vld1q_lane_f32(from += blocks, scales, 2);
    return (poetc_vector)vld1q_lane_f32(from + blocks, scales, 3);
}

/* Likewise the zero points. */
POETC_INLINE poetc_vector neon_zeros(const uint8_t *from, ptrdiff_t step, const int bits, int32_t block)
{
    uint8x16_t zeros = vld1q_lane_u8(from, vdupq_n_u8(0), 0);
    zeros = vld1q_lane_u8(from += step, zeros, 4), zeros = vld1q_lane_u8(from += step, zeros, 8);
    zeros = vld1q_lane_u8(from + step, zeros, 12);
    if (bits == 4)
        return (poetc_vector)vcvtq_f32_u32((uint32x4_t)zeros >> (4 * (block & 1)) & 15);
    return (poetc_vector)vcvtq_f32_u32((uint32x4_t)zeros);
}

/* Whether neon_columns can: pieces of a column have one scale each, and zero points are codes. */
static inline int neon_fits(const poetc_coded *w)
{
    return !w->points && (w->blocks <= 1 || w->block % (PIECE * 8 / w->bits) == 0);
}

/* Codes as floats: a code whose lowest bit is number n is put into the mantissa of 2^(23 - n), which it is added to.
 * The difference of that and of 2^(23 - n) and the zero point is exact. */
#define CODES_OF_HALF (16 / bits)
#define LOWEST_BIT(n) ((n) % CODES_OF_HALF * bits)
#define HOLDER(n) vdupq_n_u32((uint32_t)(150 - LOWEST_BIT(n)) << 23)

/* The terms of a word of each of eight columns. `holders` have codes of the word before in their mantissas; `less` has
 * their powers of two with the zero points. */
POETC_INLINE void neon_word(poetc_vector sum[][2 * MOST_PAIRS], const poetc_words first, const poetc_words second,
                            const poetc_vector *scale, poetc_vector less[][4], uint32x4_t *holders, const float **x,
                            ptrdiff_t x_row, float **to, const int bits, const int rows)
{
    const uint32x4_t parts[2][2] = {{(uint32x4_t)first, (uint32x4_t)first >> 16},
                                    {(uint32x4_t)second, (uint32x4_t)second >> 16}};
    const int together = rows >= 4 ? 1 : 4, loads = rows >= 4 ? rows / 4 : rows;
    poetc_vector factors[MOST_ROWS];
    int h, i, n;
    POETC_UNROLL
    for (n = 0; n < 32 / bits; n++) {
        const int place = n % CODES_OF_HALF;
        if (n % together == 0) {
            POETC_UNROLL
            for (i = 0; i < loads; i++)
                factors[i] = poetc_vector_load(rows >= 4 ? *x + 4 * i : *x + i * x_row);
            *x += rows >= 4 ? rows : together;
        }
        POETC_UNROLL
        for (h = 0; h < 2; h++) {
            const uint32x4_t bits_of_code = vdupq_n_u32(((1u << bits) - 1u) << LOWEST_BIT(n));
            poetc_vector v;
            /* as a whole: the compiler would keep both codes of a holder */
            __asm__("bit %0.16b, %2.16b, %3.16b\n\tfsub %1.4s, %0.4s, %4.4s"
                    : "+&w"(holders[place]), "=w"(v)
                    : "w"(parts[h][n / CODES_OF_HALF]), "w"(bits_of_code), "w"(less[h][place]));
            v *= scale[h];
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                POETC_ADD_SCALED(sum[i][h], v, rows >= 4 ? factors[i / 4][i % 4] : factors[i][n % together]);
            if (rows == 0) {
                poetc_vector_store(*to, v);
                *to += LANES;
            }
        }
        __asm__ volatile("" ::: "memory"); /* as above */
    }
}

/* The sums of rows with all terms of a block of columns, or panels, of codes along the terms. */
POETC_INLINE void neon_columns(const poetc_coded *w, const int bits, const int rows, const coded_task *t)
{
    const ptrdiff_t step = poetc_coded_bytes(bits, w->depth), blocks = w->blocks, x_row = t->x_row;
    const ptrdiff_t zero_step = poetc_coded_bytes(bits, w->blocks);
    const int32_t depth = t->depth, length = blocks > 1 ? w->block : t->first + depth;
    const int32_t begin = blocks > 1 ? t->first / length : 0;
    const poetc_vector middle = (poetc_vector){0} + (bits == 4 ? 8.0f : 128.0f);
    uint32x4_t holders[4];
    int32_t column, k;
    int n, word;
    POETC_UNROLL
    for (n = 0; n < CODES_OF_HALF; n++)
        holders[n] = HOLDER(n);
    for (column = t->column; column < t->column + t->columns; column += PAIR) {
        const uint8_t *codes = w->codes + column * step + t->first * bits / 8;
        const float *x = t->x, *scales = w->scales + column * blocks + begin;
        float *to = t->panels + (ptrdiff_t)(column - t->column) * depth;
        poetc_vector sum[MOST_ROWS][2 * MOST_PAIRS], scale[2], less[2][4];
        poetc_vector zero[2] = {middle, middle};
        int32_t block = begin, left = 0;
        start_sums(sum, t, rows, 1, 0, column);
        for (k = 0; k < depth; k += PIECE * 8 / bits, left -= PIECE * 8 / bits, codes += PIECE) {
            poetc_words words[2][4];
            if (left == 0) {
                scale[0] = neon_scales(scales, blocks), scale[1] = neon_scales(scales + LANES * blocks, blocks);
                if (w->zeros) {
                    const uint8_t *from = w->zeros + column * zero_step + (bits == 4 ? block >> 1 : block);
                    zero[0] = neon_zeros(from, zero_step, bits, block);
                    zero[1] = neon_zeros(from + LANES * zero_step, zero_step, bits, block);
                }
                scales++, block++, left = length * block - (t->first + k);
                POETC_UNROLL
                for (n = 0; n < CODES_OF_HALF; n++)
                    less[0][n] = (poetc_vector)HOLDER(n) + zero[0], less[1][n] = (poetc_vector)HOLDER(n) + zero[1];
            }
            poetc_words_of_rows(words[0], codes, step);
            poetc_words_of_rows(words[1], codes + LANES * step, step);
#define WORD neon_word(sum, words[0][word], words[1][word], scale, less, holders, &x, x_row, &to, bits, rows)
            if (rows == 1 || rows == 2) {
                POETC_UNROLL_4
                for (word = 0; word < 4; word++)
                    WORD;
            } else {
                for (word = 0; word < 4; word++)
                    WORD;
            }
#undef WORD
        }
        finish_sums(sum, t, rows, 1, 0, column);
    }
}

#endif
