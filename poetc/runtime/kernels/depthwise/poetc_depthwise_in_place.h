/* Depthwise convolution of planes that Cortex-M's FPU reads where they are, under 3 x 3 filters with zeros around: no
 * strip is made.
 *
 * Layout: columns of up to eight pixels, from the top down. The zeros beside the plane stay in registers. Lines of taps
 * above and below it are left out.
 * Order of sums: that of depthwise.c. A sum that begins with 0 does not change by a product of zero. */
#ifndef POETC_DEPTHWISE_IN_PLACE_H
#define POETC_DEPTHWISE_IN_PLACE_H

#include "depthwise/poetc_depthwise_planes.h"

#if POETC_FPU_M
#define IN_PLACE 1

/* Planes as large as their results, of three, of five to eight columns, or of eights. */
static int is_in_place(const convolution *c)
{
    return c->kernel_h == 3 && c->kernel_w == 3 && c->stride_h == 1 && c->stride_w == 1 && c->dilation_h == 1 &&
           c->dilation_w == 1 && c->pad_top == 1 && c->pad_left == 1 && c->output_height == c->height &&
           c->output_width == c->width && (c->width == 3 || (c->width >= 5 && c->width < 8) || c->width % 8 == 0);
}

/* Whether a bias is -0, to which a product of zero may not be left out. */
static inline int is_negative_zero(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits == 0x80000000u;
}

/* A column of `n` pixels whose row and neighbours are `loaded`; others of s0 to s9 are zeros. */
#define COLUMN_OF(n, loaded, sums)                                                                                          \
    __asm__ volatile("vldmia %[none], {s0-s9}\n\tvldmia %[w], {s10-s18}\n\t"                                          \
                     "vldmia %[start], {" sums "}\n\tsub %[x], %[x], %[row]\n\tb 2f\n"                                  \
                     "1:\tvldmia %[start], {" sums "}\n\tvldmia %[x], {" loaded "}\n\t" SIDE_BY_SIDE_3(n, 27, 28, 10, 11, 12) \
                     "2:\tadd %[x], %[x], %[row]\n\tvldmia %[x], {" loaded "}\n\t" SIDE_BY_SIDE_3(n, 27, 28, 13, 14, 15)     \
                     "subs %[rows], #1\n\tbeq 3f\n\tadd %[x], %[x], %[row]\n\tvldmia %[x], {" loaded "}\n\t"                  \
                     SIDE_BY_SIDE_3(n, 27, 28, 16, 17, 18) "sub %[x], %[x], %[row]\n\t"                                 \
                     "vstmia %[y], {" sums "}\n\tadd %[y], %[y], %[row]\n\tb 1b\n3:\tvstmia %[y], {" sums "}"            \
                     : [x] "+r"(x), [y] "+r"(y), [rows] "+r"(rows)                                                      \
                     : [w] "r"(w), [start] "r"(start), [row] "r"(4 * width), [none] "r"(no_sums)                        \
                     : SCRATCH)

/* The first, one in between, and the last eight columns of a plane. */
POETC_APART void slide_first(const float *x, const float *w, const float *start, float *y, int32_t rows, int32_t width)
{
    COLUMN_OF(8, "s1-s9", "s19-s26");
}

POETC_APART void slide_next(const float *x, const float *w, const float *start, float *y, int32_t rows, int32_t width)
{
    COLUMN_OF(8, "s0-s9", "s19-s26");
}

POETC_APART void slide_last(const float *x, const float *w, const float *start, float *y, int32_t rows, int32_t width)
{
    COLUMN_OF(8, "s0-s8", "s19-s26");
}

/* A plane whose weights follow each other and whose sums begin with `start`. */
POETC_APART void slide_in_place(const float *x, const float *w, const float *start, float *y, int32_t rows,
                                int32_t width)
{
    int32_t at;
    switch (width) {
    case 3: COLUMN_OF(3, "s1-s3", "s19-s21"); return;
    case 5: COLUMN_OF(5, "s1-s5", "s19-s23"); return;
    case 6: COLUMN_OF(6, "s1-s6", "s19-s24"); return;
    case 7: COLUMN_OF(7, "s1-s7", "s19-s25"); return;
    case 8: COLUMN_OF(8, "s1-s8", "s19-s26"); return;
    default: break;
    }
    slide_first(x, w, start, y, rows, width);
    for (at = 8; at + 8 < width; at += 8)
        slide_next(x + at - 1, w, start, y + at, rows, width);
    slide_last(x + at - 1, w, start, y + at, rows, width);
}

/* The same under the filter of f, from its last tap on. */
POETC_APART void slide_turned(const filter *f, const float *x, const float *start, float *y, int32_t rows,
                              int32_t width)
{
    float w[MOST_TAPS * MOST_TAPS];
    slide_in_place(x, weights_of(f, w), start, y, rows, width);
}

/* Three taps of a row: their lanes a to d, e to h, i to l. x is in s12 and following, gy behind it. Lanes are those of
 * a strip whose rows are a zero longer, so that they move on from row to row. */
#define TAPS_OF_ROW_3(a, b, c, d, e, f, g, h, i, j, k, l)                                                                   \
    "vldmia %[x]!, {s12-s14}\n\tvldmia %[gy]!, {s21-s23}\n\t" PAIR(28, 29, b, 12, 22, c, 13, 23)                       \
        PAIR(28, 29, e, 12, 21, f, 13, 22) TRIPLE_TAPS(28, 29, g, 14, 23, i, 13, 21, j, 14, 22)
#define TAPS_OF_ROW_5(a, b, c, d, e, f, g, h, i, j, k, l)                                                                   \
    "vldmia %[x]!, {s12-s16}\n\tvldmia %[gy]!, {s21-s25}\n\t" PAIR(28, 29, b, 12, 22, c, 13, 23)                       \
        PAIR(28, 29, d, 14, 24, a, 15, 25) PAIR(28, 29, e, 12, 21, f, 13, 22) PAIR(28, 29, g, 14, 23, h, 15, 24)       \
            PAIR(28, 29, i, 13, 21, j, 14, 22) TRIPLE_TAPS(28, 29, e, 16, 25, k, 15, 23, l, 16, 24)
#define TRIPLE_TAPS(p, q, a, x, u, b, y, v, c, z, w) PAIR(p, q, a, x, u, b, y, v) MLA_OF(p, c, z, w)
#ifdef POETC_CHAINED
#define MLA_OF(p, sum, x, g) MLA(sum, x, g)
#else
#define MLA_OF(p, sum, x, g) MUL(p, x, g) ADD_TO(sum, p)
#endif
#define TAPS_OF_ROW_6(a, b, c, d, e, f, g, h, i, j, k, l)                                                                   \
    "vldmia %[x]!, {s12-s17}\n\tvldmia %[gy]!, {s21-s26}\n\t" PAIR(28, 29, b, 12, 22, c, 13, 23)                       \
        PAIR(28, 29, d, 14, 24, a, 15, 25) PAIR(28, 29, e, 12, 21, f, 13, 22) PAIR(28, 29, g, 14, 23, h, 15, 24)       \
            PAIR(28, 29, b, 16, 26, i, 13, 21) PAIR(28, 29, j, 14, 22, k, 15, 23) PAIR(28, 29, e, 16, 25, f, 17, 26)   \
                PAIR(28, 29, l, 16, 24, i, 17, 25)
#define TAPS_OF_ROW_7(a, b, c, d, e, f, g, h, i, j, k, l)                                                                   \
    "vldmia %[x]!, {s12-s18}\n\tvldmia %[gy]!, {s21-s27}\n\t" PAIR(28, 29, b, 12, 22, c, 13, 23)                       \
        PAIR(28, 29, d, 14, 24, a, 15, 25) PAIR(28, 29, e, 12, 21, f, 13, 22) PAIR(28, 29, g, 14, 23, h, 15, 24)       \
            PAIR(28, 29, b, 16, 26, c, 17, 27) PAIR(28, 29, i, 13, 21, j, 14, 22) PAIR(28, 29, k, 15, 23, l, 16, 24)   \
                PAIR(28, 29, e, 16, 25, f, 17, 26) TRIPLE_TAPS(28, 29, g, 18, 27, i, 17, 25, j, 18, 26)
#define TAPS_OF_ROW_8(a, b, c, d, e, f, g, h, i, j, k, l)                                                                   \
    "vldmia %[x]!, {s12-s19}\n\tvldmia %[gy]!, {s20-s27}\n\t" PAIR(28, 29, b, 12, 21, c, 13, 22)                       \
        PAIR(28, 29, d, 14, 23, a, 15, 24) PAIR(28, 29, b, 16, 25, c, 17, 26) PAIR(28, 29, e, 12, 20, f, 13, 21)       \
            PAIR(28, 29, g, 14, 22, h, 15, 23) PAIR(28, 29, e, 16, 24, f, 17, 25) PAIR(28, 29, g, 18, 26, h, 19, 27)   \
                PAIR(28, 29, i, 13, 20, j, 14, 21) PAIR(28, 29, k, 15, 22, l, 16, 23)                                  \
                    PAIR(28, 29, i, 17, 24, j, 18, 25) PAIR(28, 29, k, 19, 26, d, 18, 27)
/* Eight of sixteen columns: those on the left, with a neighbour, and those on the right behind one. */
#define TAP_OF_8(a, b, c, d, r, s, t, u, v, w, x, y)                                                                   \
    PAIR(29, 30, a, r, 21, b, s, 22) PAIR(29, 30, c, t, 23, d, u, 24) PAIR(29, 30, a, v, 25, b, w, 26)                 \
        PAIR(29, 30, c, x, 27, d, y, 28)
#define TAPS_OF_ROW_16(a, b, c, d, e, f, g, h, i, j, k, l)                                                                  \
    "vldmia %[x], {s12-s20}\n\tvldmia %[gy]!, {s21-s28}\n\tadd %[x], #28\n\t" PAIR(29, 30, b, 12, 22, c, 13, 23)      \
        PAIR(29, 30, d, 14, 24, a, 15, 25) PAIR(29, 30, b, 16, 26, c, 17, 27)                                          \
            TAP_OF_8(e, f, g, h, 12, 13, 14, 15, 16, 17, 18, 19) TAP_OF_8(i, j, k, l, 13, 14, 15, 16, 17, 18, 19, 20)  \
                MLA_OF(29, d, 18, 28)                                                                                  \
    "vldmia %[x]!, {s12-s20}\n\tvldmia %[gy]!, {s21-s28}\n\t" TAP_OF_8(a, b, c, d, 12, 13, 14, 15, 16, 17, 18, 19)     \
        TAP_OF_8(e, f, g, h, 13, 14, 15, 16, 17, 18, 19, 20) PAIR(29, 30, i, 14, 21, j, 15, 22)                        \
            PAIR(29, 30, k, 16, 23, l, 17, 24) PAIR(29, 30, i, 18, 25, j, 19, 26) MLA_OF(29, k, 20, 27)
#define FROM_0(row) row(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
#define FROM_1(row) row(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8)
#define FROM_2(row) row(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9)
#define FROM_3(row) row(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10)
#define UNLESS_LAST "subs %[left], #1\n\tbeq 3f\n\t"

static int has_taps_in_place(int32_t width)
{
    return width <= 8 || width == 16;
}

/* The gradient of the filter from a plane, added to gw. The first line of taps begins with the second row of gy. */
POETC_APART void add_taps_in_place(const float *plane, const float *gradient, int32_t rows, int32_t width, float *gw)
{
    int32_t line;
    for (line = 0; line < 3; line++) {
        const float *x = plane + (line == 2 ? width : 0), *gy = gradient + (line == 0 ? width : 0);
        int32_t left = rows - (line != 1);
        if (left == 0) {
            gw += 3;
            continue;
        }
#define ROWS(first, others)                                                                                            \
    __asm__ volatile("vldmia %[none], {s0-s11}\n\tcmp %[line], #0\n\tbeq 2f\n1:\t" first "2:\t" others                  \
                     "subs %[left], #1\n\tbne 1b\n3:\t" END_THREE                                                     \
                     : [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left), [gw] "+r"(gw)                                    \
                     : [none] "r"(no_sums), [line] "r"(line)                                                           \
                     : SCRATCH)
        switch (width) {
        case 3: ROWS("", FROM_0(TAPS_OF_ROW_3)); break;
        case 5: ROWS(FROM_0(TAPS_OF_ROW_5) UNLESS_LAST, FROM_2(TAPS_OF_ROW_5)); break;
        case 6:
            ROWS(FROM_0(TAPS_OF_ROW_6) UNLESS_LAST,
                 FROM_3(TAPS_OF_ROW_6) UNLESS_LAST FROM_2(TAPS_OF_ROW_6) UNLESS_LAST FROM_1(TAPS_OF_ROW_6));
            break;
        case 7: ROWS("", FROM_0(TAPS_OF_ROW_7)); break;
        case 8:
            ROWS(FROM_0(TAPS_OF_ROW_8) UNLESS_LAST,
                 FROM_1(TAPS_OF_ROW_8) UNLESS_LAST FROM_2(TAPS_OF_ROW_8) UNLESS_LAST FROM_3(TAPS_OF_ROW_8));
            break;
        default:
            ROWS(FROM_0(TAPS_OF_ROW_16) UNLESS_LAST,
                 FROM_1(TAPS_OF_ROW_16) UNLESS_LAST FROM_2(TAPS_OF_ROW_16) UNLESS_LAST FROM_3(TAPS_OF_ROW_16));
        }
#undef ROWS
    }
}

#endif
#endif
