/* Depthwise convolution of planes that fit the registers of Cortex-M's FPU, under 3 x 3 filters: unrolled, many planes
 * in one loop.
 *
 * Layout: whole planes without strips; taps beyond a border are left out.
 * Order of sums: that of depthwise.c. A sum that begins with 0 does not change by a product of zero. */
#ifndef POETC_DEPTHWISE_PLANES_H
#define POETC_DEPTHWISE_PLANES_H

#include "depthwise/poetc_depthwise_taps.h"

#if POETC_FPU_M
#define SMALL_PLANES 1

/* Results of one to four rows and columns, of planes of that size with one zero around. Or the planes are twice the
 * size under strides of two, with zeros before or after them. With a bias of -0 a zero's product would change a sum. */
static int is_small_plane(const convolution *c)
{
    const int32_t side = c->output_width, size = c->stride_w * side;
    return side >= 1 && side <= 4 && c->output_height == side && c->height == size && c->width == size &&
           c->kernel_h == 3 && c->kernel_w == 3 && c->stride_h == c->stride_w && c->dilation_h == 1 &&
           c->dilation_w == 1 && c->pad_top == c->pad_left && !c->has_bias &&
           (c->stride_w == 1 ? c->pad_left == 1 : c->stride_w == 2 && c->pad_left <= 1);
}

/* A row of pixels whose sums are y, of a row of x under the weights u, v, w of one line; zeros beside it. */
#define LINE_2(y0, y1, x0, x1, u, v, w) \
    PAIR(29, 30, y1, x0, u, y0, x0, v) PAIR(29, 30, y1, x1, v, y0, x1, w)
#define LINE_3(y0, y1, y2, x0, x1, x2, u, v, w) \
    PAIR(29, 30, y1, x0, u, y2, x1, u) PAIR(29, 30, y0, x0, v, y1, x1, v) PAIR(29, 30, y2, x2, v, y0, x1, w) \
        MLA(y1, x2, w)
#define LINE_4(x0, x1, x2, x3, u, v, w) \
    PAIR(29, 30, 26, x0, u, 27, x1, u) PAIR(29, 30, 28, x2, u, 25, x0, v) PAIR(29, 30, 26, x1, v, 27, x2, v) \
        PAIR(29, 30, 28, x3, v, 25, x1, w) PAIR(29, 30, 26, x2, w, 27, x3, w)
/* Lines of weights: s16 to s24. */
#define LINES_4(of_0, of_1, of_2) "vldmia %[none], {s25-s28}\n\t" of_0 of_1 of_2 "vstmia %[y]!, {s25-s28}\n\t"
#define ROW_4(which, u, v, w) ROW_4_##which(u, v, w)
#define ROW_4_0(u, v, w) LINE_4(0, 1, 2, 3, u, v, w)
#define ROW_4_1(u, v, w) LINE_4(4, 5, 6, 7, u, v, w)
#define ROW_4_2(u, v, w) LINE_4(8, 9, 10, 11, u, v, w)
#define ROW_4_3(u, v, w) LINE_4(12, 13, 14, 15, u, v, w)
#define SWAP(a, b) "vmov.f32 s31, s" #a "\n\tvmov.f32 s" #a ", s" #b "\n\tvmov.f32 s" #b ", s31\n\t"

/* Of planes with a single result: the taps that meet pixels, of which there is one, the filter's fifth, or four. */
static inline int32_t first_tap(int32_t pixels, int32_t left)
{
    return pixels == 1 || left ? 4 : 0;
}

static const int8_t next_taps[4] = {0, 1, 3, 4};

POETC_APART void single_results(int32_t pixels, const float *x, const float *w, float *y, int32_t planes, int32_t left)
{
    int32_t i;
    for (w += first_tap(pixels, left); planes > 0; planes--, x += pixels, w += 9) {
        float sum = 0.0f;
        POETC_UNROLL_4
        for (i = 0; i < pixels; i++)
            POETC_MULTIPLY_ADD(sum, x[i], w[next_taps[i]]);
        *y++ = sum;
    }
}

POETC_APART void spread_singles(int32_t pixels, const float *gy, const float *w, float *gx, int32_t planes,
                                int32_t left)
{
    int32_t i;
    for (w += first_tap(pixels, left); planes > 0; planes--, gy++, w += 9) {
        POETC_UNROLL_4
        for (i = 0; i < pixels; i++) {
            float sum = 0.0f;
            POETC_MULTIPLY_ADD(sum, *gy, w[next_taps[i]]);
            *gx++ = sum;
        }
    }
}

POETC_APART void add_taps_of_singles(int32_t pixels, const float *x, const float *gy, float *gw, int32_t planes,
                                     int32_t left)
{
    int32_t i;
    for (gw += first_tap(pixels, left); planes > 0; planes--, x += pixels, gy++, gw += 9) {
        POETC_UNROLL_4
        for (i = 0; i < pixels; i++)
            POETC_MULTIPLY_ADD(gw[next_taps[i]], x[i], *gy);
    }
}

/* `side` x `side` results of `planes` planes of that size, one zero around each. `turned`: so are the filters. */
POETC_APART void slide_planes(int32_t side, const float *x, const float *w, float *y, int32_t planes, int turned)
{
#define PLANES(body)                                                                                                   \
    __asm__ volatile("1:\tvldmia %[w]!, {s16-s24}\n\tcbz %[turned], 2f\n\t"                                             \
                     SWAP(16, 24) SWAP(17, 23) SWAP(18, 22) SWAP(19, 21) "2:\t" body                                   \
                     "subs %[planes], #1\n\tbne 1b"                                                                    \
                     : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [planes] "+r"(planes)                                    \
                     : [turned] "l"(turned), [none] "r"(no_sums)                                                       \
                     : SCRATCH)
    if (side == 1)
        single_results(1, x, w, y, planes, 1);
    else if (side == 2)
        /* clang-format off */
        PLANES("vldmia %[x]!, {s0-s3}\n\tvldmia %[none], {s25-s28}\n\t"
               LINE_2(25, 26, 0, 1, 19, 20, 21) LINE_2(25, 26, 2, 3, 22, 23, 24)
               LINE_2(27, 28, 0, 1, 16, 17, 18) LINE_2(27, 28, 2, 3, 19, 20, 21)
               "vstmia %[y]!, {s25-s28}\n\t");
    else if (side == 3)
        PLANES("vldmia %[x]!, {s0-s8}\n\tvldmia %[none], {s9-s15}\n\tvldmia %[none], {s25-s26}\n\t"
               LINE_3(9, 10, 11, 0, 1, 2, 19, 20, 21) LINE_3(9, 10, 11, 3, 4, 5, 22, 23, 24)
               LINE_3(12, 13, 14, 0, 1, 2, 16, 17, 18) LINE_3(12, 13, 14, 3, 4, 5, 19, 20, 21)
               LINE_3(12, 13, 14, 6, 7, 8, 22, 23, 24)
               LINE_3(15, 25, 26, 3, 4, 5, 16, 17, 18) LINE_3(15, 25, 26, 6, 7, 8, 19, 20, 21)
               "vstmia %[y]!, {s9-s15}\n\tvstmia %[y]!, {s25-s26}\n\t");
    else
        PLANES("vldmia %[x]!, {s0-s15}\n\t"
               LINES_4("", ROW_4(0, 19, 20, 21), ROW_4(1, 22, 23, 24))
               LINES_4(ROW_4(0, 16, 17, 18), ROW_4(1, 19, 20, 21), ROW_4(2, 22, 23, 24))
               LINES_4(ROW_4(1, 16, 17, 18), ROW_4(2, 19, 20, 21), ROW_4(3, 22, 23, 24))
               LINES_4(ROW_4(2, 16, 17, 18), ROW_4(3, 19, 20, 21), ""));
    /* clang-format on */
#undef PLANES
}

#define MUL(product, x, w) "vmul.f32 s" #product ", s" #x ", s" #w "\n\t"
#define SUM(sum, a, b) "vadd.f32 s" #sum ", s" #a ", s" #b "\n\t"

/* Three taps of a row of gy and one of x: s18 and s19, s20 to s22, s23 and s24. Lanes are as in a strip whose rows are
 * four long. */
#define FIRST_TAPS_3(g0, g1, g2, x0, x1, x2)                                                                           \
    MUL(18, g1, x0) MUL(19, g2, x1) MUL(20, g0, x0) MUL(21, g1, x1) MUL(22, g2, x2) MUL(23, g0, x1) MUL(24, g1, x2)
#define TAPS_3(g0, g1, g2, x0, x1, x2)                                                                                 \
    PAIR(29, 30, 18, g1, x0, 19, g2, x1) PAIR(29, 30, 20, g0, x0, 21, g1, x1) PAIR(29, 30, 22, g2, x2, 23, g0, x1)     \
        MLA(24, g1, x2)
#define END_TAPS_3                                                                                                     \
    SUM(18, 18, 19) SUM(20, 20, 21) SUM(19, 20, 22) SUM(20, 23, 24)                                                    \
    "vldmia %[gw], {s25-s27}\n\t" SUM(18, 25, 18) SUM(19, 26, 19) SUM(20, 27, 20) "vstmia %[gw]!, {s18-s20}\n\t"
/* The same of four, with x in s16 to s19; the lanes of the row's columns, those of a strip whose rows are five long. */
#define TAPS_4(g0, g1, g2, g3, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2)                                                  \
    "vldmia %[x]!, {s16-s19}\n\t"                                                                                      \
    MLA(a1, g1, 16) MLA(a2, g2, 17) MLA(a3, g3, 18) MLA(b0, g0, 16) MLA(b1, g1, 17) MLA(b2, g2, 18) MLA(b3, g3, 19)      \
        MLA(c0, g0, 17) MLA(c1, g1, 18) MLA(c2, g2, 19)
#define GY_0 TAPS_4(0, 1, 2, 3, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30)
#define GY_1 TAPS_4(4, 5, 6, 7, 22, 23, 20, 25, 26, 27, 24, 29, 30, 31)
#define GY_2 TAPS_4(8, 9, 10, 11, 23, 20, 21, 26, 27, 24, 25, 30, 31, 28)
#define GY_3 TAPS_4(12, 13, 14, 15, 20, 21, 22, 27, 24, 25, 26, 31, 28, 29)
#define START_TAPS_4 "vldmia %[none], {s20-s31}\n\t"
#define END_TAPS_4                                                                                                     \
    LANES_OF(20, 21, 22, 23, 20) LANES_OF(24, 25, 26, 27, 21) LANES_OF(28, 29, 30, 31, 22)                             \
    "vldmia %[gw], {s16-s18}\n\t" SUM(16, 16, 20) SUM(17, 17, 21) SUM(18, 18, 22) "vstmia %[gw]!, {s16-s18}\n\t"

/* The gradient of their filters, added to gw. */
POETC_APART void add_taps_of_planes(int32_t side, const float *x, const float *gy, float *gw, int32_t planes)
{
#define PLANES(body)                                                                                                   \
    __asm__ volatile("1:\t" body "subs %[planes], #1\n\tbne 1b"                                                        \
                     : [x] "+r"(x), [gy] "+r"(gy), [gw] "+r"(gw), [planes] "+r"(planes)                                \
                     : [none] "r"(no_sums)                                                                             \
                     : SCRATCH)
    if (side == 1)
        add_taps_of_singles(1, x, gy, gw, planes, 1);
    else if (side == 2) /* x: s0 to s3, gy: s4 to s7; lanes of a strip whose rows are three long: 0, 1, 3, 0 */
                        /* clang-format off */
        PLANES("vldmia %[x]!, {s0-s3}\n\tvldmia %[gy]!, {s4-s7}\n\tvldmia %[gw], {s8-s16}\n\t"
               MUL(17, 7, 0) MUL(18, 7, 1) MLA(18, 6, 0) MUL(19, 6, 1)
               MUL(20, 7, 2) MLA(20, 5, 0) MUL(21, 4, 0) MLA(21, 7, 3) MLA(21, 5, 1) MLA(21, 6, 2) MUL(22, 4, 1) MLA(22, 6, 3)
               MUL(23, 5, 2) MUL(24, 4, 2) MLA(24, 5, 3) MUL(25, 4, 3)
               SUM(8, 8, 17) SUM(9, 9, 18) SUM(10, 10, 19) SUM(11, 11, 20) SUM(12, 12, 21) SUM(13, 13, 22) SUM(14, 14, 23)
               SUM(15, 15, 24) SUM(16, 16, 25)
               "vstmia %[gw]!, {s8-s16}\n\t");
    else if (side == 3)
        PLANES("vldmia %[x]!, {s0-s8}\n\tvldmia %[gy]!, {s9-s17}\n\t"
               FIRST_TAPS_3(12, 13, 14, 0, 1, 2) TAPS_3(15, 16, 17, 3, 4, 5) END_TAPS_3
               FIRST_TAPS_3(9, 10, 11, 0, 1, 2) TAPS_3(12, 13, 14, 3, 4, 5) TAPS_3(15, 16, 17, 6, 7, 8) END_TAPS_3
               FIRST_TAPS_3(9, 10, 11, 3, 4, 5) TAPS_3(12, 13, 14, 6, 7, 8) END_TAPS_3);
    else
        PLANES("vldmia %[gy]!, {s0-s15}\n\t"
               START_TAPS_4 GY_1 GY_2 GY_3 END_TAPS_4 "subs %[x], #48\n\t"
               START_TAPS_4 GY_0 GY_1 GY_2 GY_3 END_TAPS_4 "subs %[x], #48\n\t"
               START_TAPS_4 GY_0 GY_1 GY_2 END_TAPS_4);
                        /* clang-format on */
#undef PLANES
}

/* Under strides of two a row of a plane lies in s0 to s8, with a zero before it (`left`) or after it. */
#define LOAD_ROW(x, before, after) "ite ne\n\tvldmiane %[" x "]!, {s1-s" after "}\n\tvldmiaeq %[" x "]!, {s0-s" before "}\n\t"

/* Four results as a whole: pixels in s0 to s15, weights in s16 to s24, sums in s25 to s28. */
#define FOUR_BEFORE \
    PAIR(29, 30, 25, 0, 20, 26, 1, 19) PAIR(29, 30, 27, 4, 17, 28, 5, 16) PAIR(29, 30, 25, 1, 21, 26, 2, 20) \
        PAIR(29, 30, 27, 5, 18, 28, 6, 17) PAIR(29, 30, 25, 4, 23, 26, 3, 21) PAIR(29, 30, 27, 8, 20, 28, 7, 18) \
        PAIR(29, 30, 25, 5, 24, 26, 5, 22) PAIR(29, 30, 27, 9, 21, 28, 9, 19) \
        PAIR(29, 30, 26, 6, 23, 27, 12, 23) PAIR(29, 30, 28, 10, 20, 26, 7, 24) \
        PAIR(29, 30, 27, 13, 24, 28, 11, 21) PAIR(29, 30, 28, 13, 22, 28, 14, 23) MLA(28, 15, 24)
#define FOUR_AFTER \
    PAIR(29, 30, 25, 0, 16, 26, 2, 16) PAIR(29, 30, 27, 8, 16, 28, 10, 16) PAIR(29, 30, 25, 1, 17, 26, 3, 17) \
        PAIR(29, 30, 27, 9, 17, 28, 11, 17) PAIR(29, 30, 25, 2, 18, 26, 6, 19) \
        PAIR(29, 30, 27, 10, 18, 28, 14, 19) PAIR(29, 30, 25, 4, 19, 26, 7, 20) \
        PAIR(29, 30, 27, 12, 19, 28, 15, 20) PAIR(29, 30, 25, 5, 20, 26, 10, 22) \
        PAIR(29, 30, 27, 13, 20, 25, 6, 21) PAIR(29, 30, 26, 11, 23, 27, 14, 21) \
        PAIR(29, 30, 25, 8, 22, 25, 9, 23) MLA(25, 10, 24)

/* `side` x `side` results of `planes` planes of twice that size. The row that two rows of results read stays. */
POETC_APART void slide_planes_apart(int32_t side, const float *x, const float *w, float *y, int32_t planes,
                                    int32_t left)
{
    int32_t rows;
#define FOUR(body)                                                                                                     \
    __asm__ volatile("1:\tvldmia %[x]!, {s0-s15}\n\tvldmia %[w]!, {s16-s24}\n\tvldmia %[none], {s25-s28}\n\t" body        \
                     "vstmia %[y]!, {s25-s28}\n\tsubs %[planes], #1\n\tbne 1b"                                         \
                     : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [planes] "+r"(planes)                                    \
                     : [none] "r"(no_sums)                                                                             \
                     : SCRATCH)
#define PLANES(n, before, after, sums)                                                                                 \
    __asm__ volatile("vldmia %[none], {s0-s8}\n"                                                                       \
                     "1:\tvldmia %[w]!, {s9-s17}\n\tmov %[rows], #" #n "\n\tvldmia %[none], {" sums "}\n\t"              \
                     "cmp %[left], #0\n\tbne 3f\n\tvldmia %[x]!, {s0-s" before "}\n"                                   \
                     "2:\t" APART_3(n, 30, 31, 9, 10, 11)                                                                      \
                     "cmp %[left], #0\n"                                                                               \
                     "3:\t" LOAD_ROW("x", before, after) APART_3(n, 30, 31, 12, 13, 14)                                        \
                     "subs %[rows], #1\n\tit eq\n\tcmpeq %[left], #0\n\tbeq 4f\n\t" /* below the last row are zeros */  \
                     "cmp %[left], #0\n\t" LOAD_ROW("x", before, after) APART_3(n, 30, 31, 15, 16, 17)                         \
                     "4:\tvstmia %[y]!, {" sums "}\n\tvldmia %[none], {" sums "}\n\tcmp %[rows], #0\n\tbne 2b\n\t"      \
                     "subs %[planes], #1\n\tbne 1b"                                                                    \
                     : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [planes] "+r"(planes), [rows] "=&r"(rows)                \
                     : [left] "r"(left), [none] "r"(no_sums)                                                           \
                     : SCRATCH)
    if (side == 1)
        single_results(4, x, w, y, planes, left);
    else if (side == 2 && left)
        FOUR(FOUR_BEFORE);
    else if (side == 2)
        FOUR(FOUR_AFTER);
    else if (side == 3)
        PLANES(3, "5", "6", "s19-s21");
    else
        PLANES(4, "7", "8", "s19-s22");
#undef FOUR
#undef PLANES
}

/* The products of a row of gy for a row of gx and a column before or after it, s19 to s27. They are of one line of the
 * filter: its last tap first. */
#define SPREAD_3(u, v, w) \
    PAIR(29, 30, 21, 0, w, 23, 1, w) PAIR(29, 30, 25, 2, w, 20, 0, v) PAIR(29, 30, 22, 1, v, 24, 2, v) \
        PAIR(29, 30, 19, 0, u, 21, 1, u) MLA(23, 2, u)
#define SPREAD_4(u, v, w) \
    PAIR(29, 30, 21, 0, w, 23, 1, w) PAIR(29, 30, 25, 2, w, 27, 3, w) PAIR(29, 30, 20, 0, v, 22, 1, v) \
        PAIR(29, 30, 24, 2, v, 26, 3, v) PAIR(29, 30, 19, 0, u, 21, 1, u) PAIR(29, 30, 23, 2, u, 25, 3, u)

/* Planes of sixteen pixels as a whole: gy in s0 to s3, weights in s4 to s12, sums in s13 to s28. */
#define SIXTEEN_BEFORE \
    PAIR(29, 30, 13, 0, 8, 14, 0, 9) PAIR(29, 30, 15, 1, 8, 16, 1, 9) PAIR(29, 30, 17, 0, 11, 18, 0, 12) \
        PAIR(29, 30, 19, 1, 11, 20, 1, 12) PAIR(29, 30, 21, 2, 8, 22, 2, 9) PAIR(29, 30, 23, 3, 8, 24, 3, 9) \
        PAIR(29, 30, 25, 2, 11, 26, 2, 12) PAIR(29, 30, 27, 3, 11, 28, 3, 12) PAIR(29, 30, 14, 1, 7, 17, 2, 5) \
        PAIR(29, 30, 18, 1, 10, 19, 3, 5) PAIR(29, 30, 20, 3, 6, 22, 3, 7) PAIR(29, 30, 26, 3, 10, 18, 2, 6) \
        MLA(18, 3, 4)
#define SIXTEEN_AFTER \
    PAIR(29, 30, 13, 0, 4, 14, 0, 5) PAIR(29, 30, 15, 0, 6, 16, 1, 5) PAIR(29, 30, 17, 0, 7, 18, 0, 8) \
        PAIR(29, 30, 19, 0, 9, 20, 1, 8) PAIR(29, 30, 21, 0, 10, 22, 0, 11) PAIR(29, 30, 23, 0, 12, 24, 1, 11) \
        PAIR(29, 30, 25, 2, 7, 26, 2, 8) PAIR(29, 30, 27, 2, 9, 28, 3, 8) PAIR(29, 30, 15, 1, 4, 19, 1, 7) \
        PAIR(29, 30, 21, 2, 4, 22, 2, 5) PAIR(29, 30, 23, 1, 10, 24, 3, 5) PAIR(29, 30, 27, 3, 7, 23, 2, 6) \
        MLA(23, 3, 4)

/* The gradient of the input. Rows of gx that take two lines of the filter begin with the last of them, under the row of
 * gy before. Where zeros are before the plane, the second row overwrites the first. */
POETC_APART void spread_planes(int32_t side, const float *gy, const float *w, float *gx, int32_t planes, int32_t left)
{
    int32_t rows, step;
#define SIXTEEN(body)                                                                                                  \
    __asm__ volatile("1:\tvldmia %[gy]!, {s0-s3}\n\tvldmia %[w]!, {s4-s12}\n\tvldmia %[none], {s13-s28}\n\t" body        \
                     "vstmia %[gx]!, {s13-s28}\n\tsubs %[planes], #1\n\tbne 1b"                                        \
                     : [gy] "+r"(gy), [w] "+r"(w), [gx] "+r"(gx), [planes] "+r"(planes)                                \
                     : [none] "r"(no_sums)                                                                             \
                     : SCRATCH)
#define PLANES(n, last, row, before, after)                                                                            \
    __asm__ volatile("1:\tvldmia %[w]!, {s9-s17}\n\tmov %[rows], #" #n "\n\tmov %[step], #0\n\tvldmia %[none], {s19-s27}\n" \
                     "2:\tvldmia %[gy]!, {s0-s" last "}\n\t" SPREAD_##n(9, 10, 11)                                     \
                     "cmp %[left], #0\n\titte ne\n\tvstmiane %[gx], {s20-s" after "}\n\taddne %[gx], %[gx], %[step]\n\t"  \
                     "vstmiaeq %[gx]!, {s19-s" before "}\n\t"                                                          \
                     "vldmia %[none], {s19-s27}\n\tmov %[step], #" row "\n\t" SPREAD_##n(12, 13, 14)                   \
                     "ite ne\n\tvstmiane %[gx]!, {s20-s" after "}\n\tvstmiaeq %[gx]!, {s19-s" before "}\n\t"            \
                     "vldmia %[none], {s19-s27}\n\t" SPREAD_##n(15, 16, 17)                                            \
                     "subs %[rows], #1\n\tbne 2b\n\t"                                                                  \
                     "cmp %[left], #0\n\tit ne\n\tvstmiane %[gx]!, {s20-s" after "}\n\t"                               \
                     "subs %[planes], #1\n\tbne 1b"                                                                    \
                     : [gy] "+r"(gy), [w] "+r"(w), [gx] "+r"(gx), [planes] "+r"(planes), [rows] "=&r"(rows), [step] "=&r"(step) \
                     : [left] "r"(left), [none] "r"(no_sums)                                                           \
                     : SCRATCH)
    if (side == 1)
        spread_singles(4, gy, w, gx, planes, left);
    else if (side == 2 && left)
        SIXTEEN(SIXTEEN_BEFORE);
    else if (side == 2)
        SIXTEEN(SIXTEEN_AFTER);
    else if (side == 3)
        PLANES(3, "2", "24", "24", "25");
    else
        PLANES(4, "3", "32", "26", "27");
#undef SIXTEEN
#undef PLANES
}

/* The taps of a line from one row of gy. They are in s9 to s12, or nine of gy in s9 to s17 and x in s0 to s8. Lanes are
 * the columns. */
#define APART_TAPS_3(a, b, c) \
    PAIR(29, 30, 18, a, 0, 19, b, 2) PAIR(29, 30, 20, c, 4, 21, a, 1) PAIR(29, 30, 22, b, 3, 23, c, 5) \
        PAIR(29, 30, 24, a, 2, 25, b, 4) MLA(26, c, 6)
#define APART_TAPS_4 \
    PAIR(29, 30, 13, 9, 0, 14, 10, 2) PAIR(29, 30, 15, 11, 4, 16, 12, 6) PAIR(29, 30, 17, 9, 1, 18, 10, 3) \
        PAIR(29, 30, 19, 11, 5, 20, 12, 7) PAIR(29, 30, 21, 9, 2, 22, 10, 4) PAIR(29, 30, 23, 11, 6, 24, 12, 8)
/* Planes of four columns in s0 to s15, gy in s16 to s19. It takes a tap of all pixels, of those of one column, of those
 * of one row. */
#define TAP_OF_FOUR(to, a, b, c, d) MUL(to, 16, a) MLA(to, 18, c) MUL(31, 17, b) MLA(31, 19, d) SUM(to, to, 31)
#define TAP_OF_COLUMN(to, g, a, h, b) MUL(to, g, a) MLA(to, h, b)
#define TAP_OF_ROW(to, g, a, h, b) MUL(to, g, a) MUL(31, h, b) SUM(to, to, 31)
#define ADD_NINE                                                                                                       \
    "vldmia %[gw], {s0-s8}\n\t" SUM(0, 0, 20) SUM(1, 1, 21) SUM(2, 2, 22) SUM(3, 3, 23) SUM(4, 4, 24) SUM(5, 5, 25)      \
        SUM(6, 6, 26) SUM(7, 7, 27) SUM(8, 8, 28) "vstmia %[gw]!, {s0-s8}\n\t"

/* The gradient of the filters, added to gw. */
POETC_APART void add_taps_of_planes_apart(int32_t side, const float *x, const float *gy, float *gw, int32_t planes,
                                          int32_t left)
{
    const float *at, *from;
    int32_t lines;
#define PLANES(body)                                                                                                   \
    __asm__ volatile("vldmia %[none], {s0-s8}\n1:\t" body "subs %[planes], #1\n\tbne 1b"                                \
                     : [x] "+r"(x), [gy] "+r"(gy), [gw] "+r"(gw), [planes] "+r"(planes), [at] "=&r"(at), [from] "=&r"(from),  \
                       [lines] "=&r"(lines)                                                                            \
                     : [none] "r"(no_sums), [left] "r"(left), [first] "r"(left ? 3 : 0), [last] "r"(left ? 0 : 1)         \
                     : SCRATCH)
/* A line of taps after the other; `x` is the row that the first row of gy meets. Rows of zeros are left out. */
#define LINES(row, two_rows, row_of_gy, start, first, rest, last, end)                                                        \
    "mov %[lines], #3\n2:\t" start "mov %[at], %[x]\n\tmov %[from], %[gy]\n\tadd %[x], #" row "\n\t"                    \
    "cmp %[lines], %[first]\n\tbne 3f\n\tadd %[at], #" two_rows "\n\tadd %[from], #" row_of_gy "\n\tcmp %[left], #0\n\tb 4f\n"     \
    "3:\tcmp %[left], #0\n\t" first "4:\t" rest                                                                        \
    "cmp %[lines], %[last]\n\tbeq 5f\n\tcmp %[left], #0\n\t" last                                                      \
    "5:\t" end "subs %[lines], #1\n\tbne 2b\n\t"
#define ROW_OF_3(a, b, c) LOAD_ROW("at", "5", "6") "add %[at], #24\n\t" APART_TAPS_3(a, b, c)
#define ROW_OF_4 LOAD_ROW("at", "7", "8") "add %[at], #32\n\tvldmia %[from]!, {s9-s12}\n\t" APART_TAPS_4
    if (side == 1)
        add_taps_of_singles(4, x, gy, gw, planes, left);
    else if (side == 2 && left)
        /* clang-format off */
        PLANES("vldmia %[x]!, {s0-s15}\n\tvldmia %[gy]!, {s16-s19}\n\t"
               MUL(20, 19, 5) TAP_OF_ROW(21, 18, 4, 19, 6) TAP_OF_ROW(22, 18, 5, 19, 7)
               TAP_OF_COLUMN(23, 17, 1, 19, 9) TAP_OF_FOUR(24, 0, 2, 8, 10) TAP_OF_FOUR(25, 1, 3, 9, 11)
               TAP_OF_COLUMN(26, 17, 5, 19, 13) TAP_OF_FOUR(27, 4, 6, 12, 14) TAP_OF_FOUR(28, 5, 7, 13, 15) ADD_NINE);
    else if (side == 2)
        PLANES("vldmia %[x]!, {s0-s15}\n\tvldmia %[gy]!, {s16-s19}\n\t"
               TAP_OF_FOUR(20, 0, 2, 8, 10) TAP_OF_FOUR(21, 1, 3, 9, 11) TAP_OF_COLUMN(22, 16, 2, 18, 10)
               TAP_OF_FOUR(23, 4, 6, 12, 14) TAP_OF_FOUR(24, 5, 7, 13, 15) TAP_OF_COLUMN(25, 16, 6, 18, 14)
               TAP_OF_ROW(26, 16, 8, 17, 10) TAP_OF_ROW(27, 16, 9, 17, 11) MUL(28, 16, 10) ADD_NINE);
    else if (side == 3) {
        x -= 6 * left;
        PLANES("vldmia %[gy]!, {s9-s17}\n\t"
               LINES("24", "48", "0", "vldmia %[none], {s18-s26}\n\t", ROW_OF_3(9, 10, 11), ROW_OF_3(12, 13, 14), ROW_OF_3(15, 16, 17),
                     SUM(18, 18, 19) SUM(18, 18, 20) SUM(21, 21, 22) SUM(19, 21, 23) SUM(24, 24, 25) SUM(20, 24, 26)
                     "vldmia %[gw], {s27-s29}\n\t" SUM(18, 27, 18) SUM(19, 28, 19) SUM(20, 29, 20) "vstmia %[gw]!, {s18-s20}\n\t")
               "add %[x], #72\n\t");
    } else {
        x -= 8 * left;
        PLANES(LINES("32", "64", "16", "vldmia %[none], {s13-s24}\n\t", ROW_OF_4, ROW_OF_4 ROW_OF_4, ROW_OF_4,
                     LANES_OF(13, 14, 15, 16, 13) LANES_OF(17, 18, 19, 20, 14) LANES_OF(21, 22, 23, 24, 15)
                     "vldmia %[gw], {s25-s27}\n\t" SUM(13, 25, 13) SUM(14, 26, 14) SUM(15, 27, 15) "vstmia %[gw]!, {s13-s15}\n\t")
               "add %[x], #160\n\tadd %[gy], #64\n\t");
        /* clang-format on */
    }
#undef PLANES
}

#endif
#endif
