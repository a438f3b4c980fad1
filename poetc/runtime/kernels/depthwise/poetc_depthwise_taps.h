/* The gradient of a depthwise filter by scalars in an FPU.
 *
 * Layout: the lanes of three, four or five taps of a line are sums in registers, while a strip and gy pass.
 * Order of sums: four lanes a weight, as in depthwise.c. */
#ifndef POETC_DEPTHWISE_TAPS_H
#define POETC_DEPTHWISE_TAPS_H

#include "depthwise/poetc_depthwise_fpu.h"

/* Sums of `taps` (three, five or seven) taps side by side over a strip that is one long row, added to gw. They are of
 * `lines` rows of the filter, `down` floats apart in x. Four lanes. */
#if POETC_FPU_M
static const float no_sums[20];

/* Sums in s0, s4, ... to s0, s1, ...; their old values are brought to s24 and following. */
#define LANES_OF(a, b, c, d, to) "vadd.f32 s" #a ", s" #b "\n\tvadd.f32 s" #c ", s" #d "\n\tvadd.f32 s" #to ", s" #a ", s" #c "\n\t"
#define END_THREE                                                                                                      \
    LANES_OF(0, 1, 2, 3, 0) LANES_OF(4, 5, 6, 7, 1) LANES_OF(8, 9, 10, 11, 2)                                          \
    "vldmia %[gw], {s24-s26}\n\tvadd.f32 s0, s24, s0\n\tvadd.f32 s1, s25, s1\n\tvadd.f32 s2, s26, s2\n\t"                \
    "vstmia %[gw]!, {s0-s2}"
#define END_FOUR                                                                                                       \
    LANES_OF(0, 1, 2, 3, 0) LANES_OF(4, 5, 6, 7, 1) LANES_OF(8, 9, 10, 11, 2) LANES_OF(12, 13, 14, 15, 3)               \
    "vldmia %[gw], {s24-s27}\n\tvadd.f32 s0, s24, s0\n\tvadd.f32 s1, s25, s1\n\tvadd.f32 s2, s26, s2\n\t"                \
    "vadd.f32 s3, s27, s3\n\tvstmia %[gw]!, {s0-s3}"
#define END_FIVE                                                                                                       \
    LANES_OF(0, 1, 2, 3, 0) LANES_OF(4, 5, 6, 7, 1) LANES_OF(8, 9, 10, 11, 2) LANES_OF(12, 13, 14, 15, 3)               \
    LANES_OF(16, 17, 18, 19, 4)                                                                                        \
    "vldmia %[gw], {s24-s28}\n\tvadd.f32 s0, s24, s0\n\tvadd.f32 s1, s25, s1\n\tvadd.f32 s2, s26, s2\n\t"                \
    "vadd.f32 s3, s27, s3\n\tvadd.f32 s4, s28, s4\n\tvstmia %[gw]!, {s0-s4}"
/* One tap, whose lanes are s`a` to s`d`, of four floats. Products are in sp and sq before they are added, where there
 * are registers for them. */
#define PRODUCTS(p, q, a, b, c, d, e, f, g, h, i, j, k, l) PAIR(p, q, a, e, i, b, f, j) PAIR(p, q, c, g, k, d, h, l)
#define AT_ONCE(a, b, c, d, e, f, g, h, i, j, k, l) MLA(a, e, i) MLA(b, f, j) MLA(c, g, k) MLA(d, h, l)
/* Three taps of s12 to s17 and s22 to s25, and of s16 to s21 and s26 to s29. */
#define FOUR_TIMES_THREE                                                                                               \
    PRODUCTS(30, 31, 0, 1, 2, 3, 12, 13, 14, 15, 22, 23, 24, 25) PRODUCTS(30, 31, 4, 5, 6, 7, 13, 14, 15, 16, 22, 23, 24, 25)          \
    PRODUCTS(30, 31, 8, 9, 10, 11, 14, 15, 16, 17, 22, 23, 24, 25)
#define FOUR_MORE                                                                                                      \
    PRODUCTS(30, 31, 0, 1, 2, 3, 16, 17, 18, 19, 26, 27, 28, 29) PRODUCTS(30, 31, 4, 5, 6, 7, 17, 18, 19, 20, 26, 27, 28, 29)          \
    PRODUCTS(30, 31, 8, 9, 10, 11, 18, 19, 20, 21, 26, 27, 28, 29)

#define THREE_OF_ROW                                                                                                   \
    __asm__ volatile("vldmia %[none], {s0-s11}\n\t"                                                                    \
                     "lsrs %[left], #3\n\tbcc 2f\n\t"                                                                  \
                     "vldmia %[x], {s12-s17}\n\tvldmia %[gy]!, {s22-s25}\n\tadd %[x], #16\n\t" FOUR_TIMES_THREE        \
                     "2:\tcmp %[left], #0\n\tbeq 3f\n"                                                                \
                     "1:\tvldmia %[x], {s12-s21}\n\tvldmia %[gy]!, {s22-s29}\n\tadd %[x], #32\n\t"                     \
                     FOUR_TIMES_THREE FOUR_MORE "subs %[left], #1\n\tbne 1b\n"                                         \
                     "3:\t" END_THREE                                                                                  \
                     : [x] "+r"(x), [gy] "+r"(gy), [left] "+l"(left), [gw] "+r"(gw)                                    \
                     : [none] "r"(no_sums)                                                                             \
                     : SCRATCH)
#define FOUR_OF_ROW                                                                                                    \
    __asm__ volatile("vldmia %[none], {s0-s15}\n"                                                                      \
                     "1:\tvldmia %[gy]!, {s16-s19}\n\tvldmia %[x], {s20-s26}\n\tadd %[x], #16\n\t"                     \
                     PRODUCTS(27, 28, 0, 1, 2, 3, 20, 21, 22, 23, 16, 17, 18, 19)                                              \
                     PRODUCTS(27, 28, 4, 5, 6, 7, 21, 22, 23, 24, 16, 17, 18, 19)                                              \
                     PRODUCTS(27, 28, 8, 9, 10, 11, 22, 23, 24, 25, 16, 17, 18, 19)                                            \
                     PRODUCTS(27, 28, 12, 13, 14, 15, 23, 24, 25, 26, 16, 17, 18, 19)                                          \
                     "subs %[left], #4\n\tbne 1b\n\t" END_FOUR                                                         \
                     : [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left), [gw] "+r"(gw)                                    \
                     : [none] "r"(no_sums)                                                                             \
                     : SCRATCH)
/* Seven taps are three, and four. */
POETC_APART void add_seven_of_row(const float *line, ptrdiff_t down, int32_t lines, const float *gradient,
                                  int32_t count, float *gw)
{
    for (; lines > 0; lines--, line += down) {
        const float *x = line, *gy = gradient;
        int32_t left = count;
        THREE_OF_ROW;
        x = line + 3, gy = gradient, left = count;
        FOUR_OF_ROW;
    }
}

POETC_APART void add_taps_of_row(const float *line, ptrdiff_t down, int32_t lines, const float *gradient, int32_t count,
                                 float *gw, int taps)
{
    if (taps == 7) {
        add_seven_of_row(line, down, lines, gradient, count, gw);
        return;
    }
    for (; lines > 0; lines--, line += down) {
        const float *x = line, *gy = gradient;
        int32_t left = count;
        if (taps == 3)
            THREE_OF_ROW;
        else
            /* clang-format off */
            __asm__ volatile("vldmia %[none], {s0-s19}\n"
                             "1:\tvldmia %[gy]!, {s20-s23}\n\tvldmia %[x], {s24-s31}\n\tadd %[x], #16\n\t"
                             AT_ONCE(0, 1, 2, 3, 24, 25, 26, 27, 20, 21, 22, 23)
                             AT_ONCE(4, 5, 6, 7, 25, 26, 27, 28, 20, 21, 22, 23)
                             PRODUCTS(24, 25, 8, 9, 10, 11, 26, 27, 28, 29, 20, 21, 22, 23)
                             PRODUCTS(24, 25, 12, 13, 14, 15, 27, 28, 29, 30, 20, 21, 22, 23)
                             PRODUCTS(24, 25, 16, 17, 18, 19, 28, 29, 30, 31, 20, 21, 22, 23)
                             "subs %[left], #4\n\tbne 1b\n\t" END_FIVE
                             : [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left), [gw] "+r"(gw)
                             : [none] "r"(no_sums)
                             : SCRATCH);
        /* clang-format on */
    }
}

#define ROWS_OF_QUADS(sums, body, end)                                                                                 \
    __asm__ volatile("vldmia %[none], {" sums "}\n"                                                                    \
                     "1:\tmov %[quads], %[width]\n"                                                                    \
                     "2:\tvldmia %[gy]!, {s20-s23}\n\t" body "subs %[quads], #4\n\tbne 2b\n\t"                         \
                     "add %[x], %[x], %[next]\n\tsubs %[left], #1\n\tbne 1b\n\t" end                                   \
                     : [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left), [gw] "+r"(gw), [quads] "=&r"(quads)              \
                     : [none] "r"(no_sums), [next] "r"(next), [width] "r"(width)                                       \
                     : SCRATCH)
#define THREE_APART                                                                                                    \
    ROWS_OF_QUADS("s0-s11",                                                                                            \
                  "vldmia %[x]!, {s12-s19}\n\tvldr s24, [%[x]]\n\t"                                                    \
                  PRODUCTS(25, 26, 0, 1, 2, 3, 12, 14, 16, 18, 20, 21, 22, 23)                                                 \
                  PRODUCTS(25, 26, 4, 5, 6, 7, 13, 15, 17, 19, 20, 21, 22, 23)                                                 \
                  PRODUCTS(25, 26, 8, 9, 10, 11, 14, 16, 18, 24, 20, 21, 22, 23),                                              \
                  END_THREE)
#define FOUR_APART                                                                                                     \
    ROWS_OF_QUADS("s0-s15",                                                                                            \
                  "vldmia %[x]!, {s24-s31}\n\tvldmia %[x], {s16-s17}\n\t"                                              \
                  PRODUCTS(18, 19, 0, 1, 2, 3, 24, 26, 28, 30, 20, 21, 22, 23)                                                 \
                  PRODUCTS(18, 19, 4, 5, 6, 7, 25, 27, 29, 31, 20, 21, 22, 23)                                                 \
                  PRODUCTS(18, 19, 8, 9, 10, 11, 26, 28, 30, 16, 20, 21, 22, 23)                                               \
                  PRODUCTS(18, 19, 12, 13, 14, 15, 27, 29, 31, 17, 20, 21, 22, 23),                                            \
                  END_FOUR)
/* The same of seven taps under a stride of two. It has `rows` rows of `width` floats of gy, a multiple of four, and of
 * x, `step` floats apart. */
POETC_APART void add_seven_apart(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step,
                                 const float *gradient, int32_t rows, int32_t width, float *gw)
{
    const ptrdiff_t next = 4 * (step - 2 * width);
    for (; lines > 0; lines--, line += down) {
        const float *x = line, *gy = gradient;
        int32_t left = rows, quads;
        THREE_APART;
        x = line + 3, gy = gradient, left = rows;
        FOUR_APART;
    }
}

/* The same under a stride of two. It has `rows` rows of `width` floats of gy, a multiple of four, and of x, `step`
 * floats apart. */
POETC_APART void add_taps_apart(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient,
                                int32_t rows, int32_t width, float *gw, int taps)
{
    const ptrdiff_t next = 4 * (step - 2 * width);
    if (taps == 7) {
        add_seven_apart(line, down, lines, step, gradient, rows, width, gw);
        return;
    }
    for (; lines > 0; lines--, line += down) {
        const float *x = line, *gy = gradient;
        int32_t left = rows, quads;
        if (taps == 3)
            THREE_APART;
        else /* s24 to s31, of which s24 to s26 become those beyond */
             /* clang-format off */
            ROWS_OF_QUADS("s0-s19",
                          "vldmia %[x]!, {s24-s31}\n\t"
                          AT_ONCE(0, 1, 2, 3, 24, 26, 28, 30, 20, 21, 22, 23)
                          AT_ONCE(4, 5, 6, 7, 25, 27, 29, 31, 20, 21, 22, 23)
                          MLA(8, 26, 20) MLA(9, 28, 21) MLA(10, 30, 22) MLA(12, 27, 20) MLA(13, 29, 21) MLA(14, 31, 22)
                          MLA(16, 28, 20) MLA(17, 30, 21) "vldmia %[x], {s24-s26}\n\t"
                          MLA(11, 24, 23) MLA(15, 25, 23) MLA(18, 24, 22) MLA(19, 26, 23),
                          END_FIVE);
             /* clang-format on */
    }
}
#undef ROWS_OF_QUADS

#else

POETC_INLINE void add_taps_in_c(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient,
                                int32_t rows, int32_t width, float *gw, const int taps, const int stride)
{
    for (; lines > 0; lines--, line += down) {
        float sum[MOST_TAPS][4] = {{0.0f}};
        const float *x = line, *gy = gradient;
        int32_t left, at, i, tap;
        for (left = rows; left > 0; left--, x += step, gy += width)
            for (at = 0; at < width; at += 4)
                for (tap = 0; tap < taps; tap++)
                    for (i = 0; i < 4; i++)
                        sum[tap][i] = POETC_FMA(x[(at + i) * stride + tap], gy[at + i], sum[tap][i]);
        for (tap = 0; tap < taps; tap++)
            *gw++ += (sum[tap][0] + sum[tap][1]) + (sum[tap][2] + sum[tap][3]);
    }
}

POETC_APART void add_taps_of_row(const float *line, ptrdiff_t down, int32_t lines, const float *gradient, int32_t count,
                                 float *gw, int taps)
{
    if (taps == 7)
        add_taps_in_c(line, down, lines, 0, gradient, 1, count, gw, 7, 1);
    else if (taps == 3)
        add_taps_in_c(line, down, lines, 0, gradient, 1, count, gw, 3, 1);
    else
        add_taps_in_c(line, down, lines, 0, gradient, 1, count, gw, 5, 1);
}

POETC_APART void add_taps_apart(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient,
                                int32_t rows, int32_t width, float *gw, int taps)
{
    if (taps == 7)
        add_taps_in_c(line, down, lines, step, gradient, rows, width, gw, 7, 2);
    else if (taps == 3)
        add_taps_in_c(line, down, lines, step, gradient, rows, width, gw, 3, 2);
    else
        add_taps_in_c(line, down, lines, step, gradient, rows, width, gw, 5, 2);
}

#endif
#endif
