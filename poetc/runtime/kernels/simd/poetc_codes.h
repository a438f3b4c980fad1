/* Codes of 4 and 8 bits as vectors of floats, on targets with IEEE vectors; POETC_CODE_LANES is 1 there.
 *
 * Layout: a byte has two codes of 4 bits, the lower half first. Words hold the codes of one lane each.
 * Order of sums: nothing is added here. */
#ifndef POETC_CODES_H
#define POETC_CODES_H

#include <string.h>

#include "simd/poetc_unpack.h"

#if POETC_LANES > 1 && !defined(POETC_HELIUM)
#define POETC_CODE_LANES 1

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint32_t poetc_words __attribute__((vector_size(4 * POETC_LANES)));

#if defined(__aarch64__)
#define POETC_FLOATS(words) ((poetc_vector)vcvtq_f32_s32((int32x4_t)(words)))
#else
#define POETC_FLOATS(words) \
    __builtin_convertvector((int32_t __attribute__((vector_size(4 * POETC_LANES))))(words), poetc_vector)
#endif

/* Code number n of `bits` bits of each word, as floats; both are constants wherever this is inlined. */
POETC_INLINE poetc_vector poetc_codes_of_words(poetc_words words, const int bits, const int n)
{
    const uint32_t most = (1u << bits) - 1u;
#if defined(__aarch64__)
#define POETC_FIXED(at) \
    case at: return (poetc_vector)vcvtq_n_f32_u32((uint32x4_t)(words & most << (at)), at) /* of fixed point */
    switch (bits * n) {
        POETC_FIXED(4);
        POETC_FIXED(8);
        POETC_FIXED(12);
        POETC_FIXED(16);
        POETC_FIXED(20);
        POETC_FIXED(24);
        POETC_FIXED(28);
    default: break;
    }
#undef POETC_FIXED
#endif
    return POETC_FLOATS(words >> (bits * n) & most);
}

/* Even and odd lanes of two vectors side by side, and back. */
#if POETC_LANES == 16
#define POETC_FIRST_OF(u, v) POETC_SHUFFLE(u, v, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define POETC_SECOND_OF(u, v) POETC_SHUFFLE(u, v, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define POETC_EVEN(u, v) POETC_SHUFFLE(u, v, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define POETC_ODD(u, v) POETC_SHUFFLE(u, v, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#elif POETC_LANES == 8
#define POETC_FIRST_OF(u, v) POETC_SHUFFLE(u, v, 0, 8, 1, 9, 2, 10, 3, 11)
#define POETC_SECOND_OF(u, v) POETC_SHUFFLE(u, v, 4, 12, 5, 13, 6, 14, 7, 15)
#define POETC_EVEN(u, v) POETC_SHUFFLE(u, v, 0, 2, 4, 6, 8, 10, 12, 14)
#define POETC_ODD(u, v) POETC_SHUFFLE(u, v, 1, 3, 5, 7, 9, 11, 13, 15)
#else
#define POETC_FIRST_OF(u, v) POETC_SHUFFLE(u, v, 0, 4, 1, 5)
#define POETC_SECOND_OF(u, v) POETC_SHUFFLE(u, v, 2, 6, 3, 7)
#define POETC_EVEN(u, v) POETC_SHUFFLE(u, v, 0, 2, 4, 6)
#define POETC_ODD(u, v) POETC_SHUFFLE(u, v, 1, 3, 5, 7)
#endif

/* Vectors whose lanes are the bytes from `from` on: 1, 2 or fours of vectors, a constant wherever this is inlined. */
POETC_INLINE void poetc_words_of_bytes(poetc_words *to, const uint8_t *from, const int vectors)
{
    int i;
#if defined(__aarch64__)
    static const uint8_t places[4][16] = {{0, 99, 99, 99, 1, 99, 99, 99, 2, 99, 99, 99, 3, 99, 99, 99},
                                          {4, 99, 99, 99, 5, 99, 99, 99, 6, 99, 99, 99, 7, 99, 99, 99},
                                          {8, 99, 99, 99, 9, 99, 99, 99, 10, 99, 99, 99, 11, 99, 99, 99},
                                          {12, 99, 99, 99, 13, 99, 99, 99, 14, 99, 99, 99, 15, 99, 99, 99}};
    uint8x16_t bytes = vdupq_n_u8(0);
    if (vectors == 2) {
        bytes = vcombine_u8(vld1_u8(from), vdup_n_u8(0));
    } else if (vectors == 1) {
        uint32_t word;
        memcpy(&word, from, sizeof word);
        bytes = vreinterpretq_u8_u32(vsetq_lane_u32(word, vdupq_n_u32(0), 0));
    }
    POETC_UNROLL
    for (i = 0; i < vectors; i++) {
        if (vectors >= 4 && i % 4 == 0)
            bytes = vld1q_u8(from + 4 * i);
        to[i] = (poetc_words)vqtbl1q_u8(bytes, vld1q_u8(places[i % 4])); /* no such byte: 0 */
    }
#else
    POETC_UNROLL
    for (i = 0; i < vectors; i++, from += POETC_LANES) {
#if POETC_LANES == 16
        to[i] = (poetc_words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(__AVX2__)
        to[i] = (poetc_words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
        poetc_words own = {0};
        int lane;
        POETC_UNROLL
        for (lane = 0; lane < POETC_LANES; lane++)
            own[lane] = from[lane];
        to[i] = own;
#endif
    }
#endif
}

/* Four words of each of as many rows as there are lanes, `step` bytes apart: to[word] has the rows' words in order. */
POETC_INLINE void poetc_words_of_rows(poetc_words *to, const uint8_t *from, ptrdiff_t step)
{
    poetc_vector v[4];
    int i;
#if POETC_LANES == 4
    for (i = 0; i < 4; i++)
        v[i] = poetc_vector_load((const float *)(const void *)(from + i * step));
#else
#if POETC_LANES == 16
#define POETC_INSERT_ROW(v, p, slot) (poetc_vector) _mm512_insertf32x4(v, _mm_loadu_ps((const float *)(const void *)(p)), slot)
#else
#define POETC_INSERT_ROW(v, p, slot) (poetc_vector) _mm256_insertf128_ps(v, _mm_loadu_ps((const float *)(const void *)(p)), slot)
#endif
    POETC_UNROLL
    for (i = 0; i < 4; i++) {
        v[i] = POETC_INSERT_ROW((poetc_vector){0}, from + i * step, 0);
        v[i] = POETC_INSERT_ROW(v[i], from + (4 + i) * step, 1);
#if POETC_LANES == 16
        v[i] = POETC_INSERT_ROW(v[i], from + (8 + i) * step, 2);
        v[i] = POETC_INSERT_ROW(v[i], from + (12 + i) * step, 3);
#endif
    }
#undef POETC_INSERT_ROW
#endif
    {
        const poetc_vector ab = POETC_LOW(v[0], v[1]), cd = POETC_LOW(v[2], v[3]);
        const poetc_vector ef = POETC_HIGH(v[0], v[1]), gh = POETC_HIGH(v[2], v[3]);
        to[0] = (poetc_words)POETC_LOW_PAIR(ab, cd), to[1] = (poetc_words)POETC_HIGH_PAIR(ab, cd);
        to[2] = (poetc_words)POETC_LOW_PAIR(ef, gh), to[3] = (poetc_words)POETC_HIGH_PAIR(ef, gh);
    }
}

#endif
#endif
