/* The register blocks of products of 8-bit integers, packed in 16 bits, or with Helium or SDOT in 8.
 *
 * Layout: rows and columns are packed each behind the other, `depth` numbers each. `depth` is a multiple of UNIT.
 * Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#ifndef POETC_INT8_SUMS_H
#define POETC_INT8_SUMS_H

#include "int8/poetc_int8.h"

#if defined(__aarch64__)
#define HAS_NEON 1
#else
#define HAS_NEON 0
#endif

/* SDOT adds four products of 8 bits to a sum, 16 products in an instruction: Armv8.2-A, from the Cortex-A55 on. */
#if HAS_NEON && defined(__ARM_FEATURE_DOTPROD)
#define HAS_SDOT 1
#else
#define HAS_SDOT 0
#endif

#if POETC_INT8_HELIUM || HAS_SDOT
typedef int8_t operand;
#else
typedef int16_t operand; /* of a product, packed */
#endif

#if defined(__AVX2__)
typedef __m256i lanes;
#define LANES 16
#define ZERO _mm256_setzero_si256()
#define MULTIPLY_ADD(sum, a, b) (sum) = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
static inline int32_t total(__m256i v)
{
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
#elif defined(__SSE2__)
typedef __m128i lanes;
#define LANES 8
#define ZERO _mm_setzero_si128()
#define MULTIPLY_ADD(sum, a, b) (sum) = _mm_add_epi32(sum, _mm_madd_epi16(a, b))
#define LOAD(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
static inline int32_t total(__m128i v)
{
    const __m128i two = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
#elif defined(__aarch64__)
typedef int32x4_t lanes;
#define ZERO vdupq_n_s32(0)
#define MULTIPLY_ADD_SHORTS(sum, a, b)                                                                                 \
    (sum) = vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b)
#if HAS_SDOT
#define LANES 16
#define MULTIPLY_ADD(sum, a, b) (sum) = vdotq_s32(sum, a, b)
#define LOAD(p) vld1q_s8(p)
#else
#define LANES 8
#define MULTIPLY_ADD MULTIPLY_ADD_SHORTS
#define LOAD(p) vld1q_s16(p)
#endif
#define ADD_TOTALS(sums, s)                                                                                            \
    vst1q_s32(sums, vaddq_s32(vld1q_s32(sums), vpaddq_s32(vpaddq_s32((s)[0], (s)[1]), vpaddq_s32((s)[2], (s)[3]))))
static inline int32_t total(int32x4_t v)
{
    return vaddvq_s32(v);
}
#endif

#if defined(LANES)
#if HAS_SDOT
typedef int8x16_t packed;
#elif defined(__aarch64__)
typedef int16x8_t packed;
#else
typedef lanes packed;
#define ADD_TOTALS(sums, s)                                                                                            \
    ((sums)[0] += total((s)[0]), (sums)[1] += total((s)[1]), (sums)[2] += total((s)[2]), (sums)[3] += total((s)[3]))
#endif
#if defined(__aarch64__) /* which has vectors for 16 sums */
#define BLOCK_ROWS 4
#else
#define BLOCK_ROWS 2
#endif

/* A block of rows and four columns: sums[row * step + column]. */
static void sums_of_block(const operand *a, const operand *b, int32_t depth, int32_t *sums, int32_t step)
{
    lanes s[BLOCK_ROWS][4];
    int32_t i, j, k;
    _Pragma("GCC unroll 4") for (i = 0; i < BLOCK_ROWS; i++) s[i][0] = ZERO, s[i][1] = ZERO, s[i][2] = ZERO,
                                                             s[i][3] = ZERO;
    for (k = 0; k < depth; k += LANES) {
        packed x[BLOCK_ROWS];
        _Pragma("GCC unroll 4") for (i = 0; i < BLOCK_ROWS; i++) x[i] = LOAD(a + i * depth + k);
        _Pragma("GCC unroll 4") for (j = 0; j < 4; j++)
        {
            const packed y = LOAD(b + j * depth + k);
            _Pragma("GCC unroll 4") for (i = 0; i < BLOCK_ROWS; i++) MULTIPLY_ADD(s[i][j], x[i], y);
        }
    }
    _Pragma("GCC unroll 4") for (i = 0; i < BLOCK_ROWS; i++, sums += step) ADD_TOTALS(sums, s[i]);
}

#define BLOCK_COLUMNS 4
#elif defined(__ARM_FEATURE_DSP) && !defined(POETC_PLAIN_C) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'
#include <arm_acle.h>

/* Four terms, which lie at a multiple of 4 bytes, in one instruction. */
#define LOAD_FOUR(v, p)                                                                                                \
    __asm__("ldrd %0, %1, [%2], #8" : "=r"(v##_low), "=r"(v##_high), "+r"(p) : "m"(*(const int16_t(*)[4])(p)))
#define FOUR_TERMS                                                                                                     \
    LOAD_FOUR(x0, a);                                                                                                  \
    LOAD_FOUR(x1, a1);                                                                                                 \
    LOAD_FOUR(y, b);                                                                                                   \
    s00 = __smlad(x0_high, y_high, __smlad(x0_low, y_low, s00));                                                       \
    s10 = __smlad(x1_high, y_high, __smlad(x1_low, y_low, s10));                                                       \
    LOAD_FOUR(y, b1);                                                                                                  \
    s01 = __smlad(x0_high, y_high, __smlad(x0_low, y_low, s01));                                                       \
    s11 = __smlad(x1_high, y_high, __smlad(x1_low, y_low, s11))

#if POETC_INT8_HELIUM
/* Two rows and two columns, and so many `pairs` of rows that lie behind each other: sixteen terms at a time. Alone it
 * has all registers. */
__attribute__((noinline)) static void sums_of_pairs(const operand *a, int32_t pairs, const operand *b, int32_t depth,
                                                    int32_t *sums, int32_t step)
{
    const operand *a1 = a + depth, *b1 = b + depth;
    const uint32_t times = (uint32_t)depth / 16u;
    do {
        int32_t *const sums1 = sums + step;
        int32_t s00 = sums[0], s01 = sums[1], s10 = sums1[0], s11 = sums1[1];
        int8x16_t x0, x1, y0, y1;
        __asm__("dls lr, %[times]\n"
                "0: vldrb.8 %q[x0], [%[a]], #16\n\t"
                "vldrb.8 %q[y0], [%[b]], #16\n\t"
                "vmladava.s8 %[s00], %q[x0], %q[y0]\n\t"
                "vldrb.8 %q[x1], [%[a1]], #16\n\t"
                "vmladava.s8 %[s10], %q[x1], %q[y0]\n\t"
                "vldrb.8 %q[y1], [%[b1]], #16\n\t"
                "vmladava.s8 %[s01], %q[x0], %q[y1]\n\t"
                "vmladava.s8 %[s11], %q[x1], %q[y1]\n\t"
                "le lr, 0b"
                : [x0] "=&w"(x0), [x1] "=&w"(x1), [y0] "=&w"(y0), [y1] "=&w"(y1), [s00] "+Te"(s00), [s01] "+Te"(s01),
                  [s10] "+Te"(s10), [s11] "+Te"(s11), [a] "+r"(a), [a1] "+r"(a1), [b] "+r"(b), [b1] "+r"(b1)
                : [times] "r"(times)
                : "lr", "memory");
        sums[0] = s00, sums[1] = s01, sums1[0] = s10, sums1[1] = s11;
        a = a1, a1 += depth, b -= depth, b1 -= depth;
        sums += 2 * step;
    } while (--pairs);
}

#define UNIT 16
#else
/* Two rows and two columns, and so many `pairs` of rows: those that follow lie behind. */
static void sums_of_pairs(const operand *a, int32_t pairs, const operand *b, int32_t depth, int32_t *sums, int32_t step)
{
    const operand *b1 = b + depth, *const next = b1, *const many = b + depth / 16 * 16;
    do {
        const operand *a1 = a + depth;
        int32_t s00 = sums[0], s01 = sums[1], s10 = sums[step], s11 = sums[step + 1];
        int16x2_t x0_low, x0_high, x1_low, x1_high, y_low, y_high;
        while (b != many) {
            FOUR_TERMS;
            FOUR_TERMS;
            FOUR_TERMS;
            FOUR_TERMS;
        }
        while (b != next) {
            FOUR_TERMS;
        }
        sums[0] = s00, sums[1] = s01, sums[step] = s10, sums[step + 1] = s11;
        a = a1, b -= depth, b1 = next;
        sums += 2 * step;
    } while (--pairs);
}

#define UNIT 4
#endif
#define HAS_SMLAD 1
#define BLOCK_COLUMNS 2
#else
/* Two rows and two columns. */
static void sums_of_block(const operand *a, const operand *b, int32_t depth, int32_t *sums, int32_t step)
{
    const operand *a1 = a + depth, *b1 = b + depth;
    int32_t s00 = 0, s01 = 0, s10 = 0, s11 = 0, k;
    for (k = 0; k < depth; k++) {
        s00 += a[k] * b[k];
        s01 += a[k] * b1[k];
        s10 += a1[k] * b[k];
        s11 += a1[k] * b1[k];
    }
    sums[0] += s00, sums[1] += s01, sums[step] += s10, sums[step + 1] += s11;
}

#define BLOCK_COLUMNS 2
#endif

#ifndef HAS_SMLAD
#define HAS_SMLAD 0
#endif
#ifndef UNIT
#define UNIT 16 /* of which packed terms are a multiple */
#endif
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 2
#endif
#define COLUMNS_AT_ONCE 4 /* packed columns are a multiple of it on every target: all have one workspace */

#if !HAS_SMLAD
static inline void sums_of_pairs(const operand *a, int32_t pairs, const operand *b, int32_t depth, int32_t *sums,
                                 int32_t step)
{
    for (; pairs > 0; pairs--, a += BLOCK_ROWS * (size_t)depth, sums += BLOCK_ROWS * (size_t)step)
        sums_of_block(a, b, depth, sums, step);
}
#endif

/* Adds the products of packed rows and columns to sums[row * step + column]. Rows and columns beyond the last one in
 * its block are left out. */
__attribute__((always_inline)) static inline void add_products(const operand *a, int32_t rows, const operand *b,
                                                               int32_t columns, int32_t depth, int32_t *sums,
                                                               int32_t step)
{
    int32_t i, j, k, l;
    for (j = 0; j < columns; j += BLOCK_COLUMNS) {
        const operand *y = b + (size_t)j * (size_t)depth;
        const int32_t pairs = j + BLOCK_COLUMNS <= columns ? rows / BLOCK_ROWS : 0;
        if (pairs)
            sums_of_pairs(a, pairs, y, depth, sums + j, step);
        for (i = pairs * BLOCK_ROWS; i < rows; i += BLOCK_ROWS) {
            int32_t part[BLOCK_ROWS * BLOCK_COLUMNS] = {0};
            sums_of_pairs(a + (size_t)i * (size_t)depth, 1, y, depth, part, BLOCK_COLUMNS);
            for (k = i; k < rows && k < i + BLOCK_ROWS; k++)
                for (l = j; l < columns && l < j + BLOCK_COLUMNS; l++)
                    sums[(size_t)k * (size_t)step + (size_t)l] += part[(k - i) * BLOCK_COLUMNS + l - j];
        }
    }
}

#endif
