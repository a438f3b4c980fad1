/* Depthwise convolution by scalars in an FPU. On Cortex-M the loops are in assembly: GCC would move the contents of 32
 * registers about.
 *
 * Layout: the sums of up to eight pixels of a row stay in registers while the taps pass over a strip.
 * Order of sums: bias, then taps in sequence. */
#ifndef POETC_DEPTHWISE_FPU_H
#define POETC_DEPTHWISE_FPU_H

#include "depthwise/poetc_depthwise.h"

#define MOST_TAPS 7   /* of a filter's side */
#define MOST_PIXELS 8 /* of a block */
/* Under strides of two, more taps leave fewer registers. */
#define MOST_APART(taps) ((taps) == 7 ? 6 : (taps) == 5 ? 7 : MOST_PIXELS)
#define PLANS 1
#define HAS_LOOPS(taps) ((taps) == 3 || (taps) == 5 || (taps) == 7)
#define GATHERS(kernel_h, kernel_w) (HAS_LOOPS(kernel_h) && HAS_LOOPS(kernel_w))

/* A column of blocks, from the top down; distances in bytes. */
typedef struct {
    const float *x, *w, *start; /* window, weights, and the start values of the sums */
    float *y;
    int32_t rows, lines;                 /* of the result, of the filter */
    ptrdiff_t down, next, y_row, w_next; /* from line to line of the window; after the last one, to the next row's
                                            first; likewise of the weights */
    int odd;                             /* the last of the pixels is none (gather) */
} column;

#if POETC_FPU_M
#define MLA(sum, x, w) POETC_VMLA " s" #sum ", s" #x ", s" #w "\n\t"
#define SCRATCH                                                                                                        \
    "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14",     \
        "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28", "s29", "s30", "s31"

/* One tap of `n` pixels whose sums are s19 to s26: x in s0 to s18. Products are in sp and sq before they are added. */
#ifdef POETC_CHAINED
#define MLA_1(p, sum, x, w) POETC_VMLA " s" #sum ", s" #x ", s" #w "\n\t"
#define PAIR(p, q, a, x, u, b, y, v) MLA(a, x, u) MLA(b, y, v)
#define TRIPLE(p, q, a, x, b, y, c, z, w) MLA(a, x, w) MLA(b, y, w) MLA(c, z, w)
#else
#define MUL(product, x, w) "vmul.f32 s" #product ", s" #x ", s" #w "\n\t"
#define ADD_TO(sum, x) "vadd.f32 s" #sum ", s" #sum ", s" #x "\n\t"
#define MLA_1(p, sum, x, w) MUL(p, x, w) ADD_TO(sum, p)
#define PAIR(p, q, a, x, u, b, y, v) MUL(p, x, u) MUL(q, y, v) ADD_TO(a, p) ADD_TO(b, q)
#define TRIPLE(p, q, a, x, b, y, c, z, w) /* nothing waits for the instruction before it */                            \
    MUL(p, x, w) MUL(q, y, w) ADD_TO(a, p) MUL(p, z, w) ADD_TO(b, q) ADD_TO(c, p)
#endif
#define MLA_2(p, q, sum, x, more, y, w) PAIR(p, q, sum, x, w, more, y, w)
#define PIXELS_1(p, q, w, a, b, c, d, e, f, g, h) MLA_1(p, 19, a, w)
#define PIXELS_2(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 19, a, 20, b, w)
#define PIXELS_3(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 19, a, 20, b, 21, c, w)
#define PIXELS_4(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    PIXELS_2(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 21, c, 22, d, w)
#define PIXELS_5(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    PIXELS_2(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 21, c, 22, d, 23, e, w)
#define PIXELS_6(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    PIXELS_4(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 23, e, 24, f, w)
#define PIXELS_7(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    PIXELS_4(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 23, e, 24, f, 25, g, w)
#define PIXELS_8(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    PIXELS_6(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 25, g, 26, h, w)
#define SIDE_BY_SIDE_3(n, p, q, u, v, w)                                                                               \
    PIXELS_##n(p, q, u, 0, 1, 2, 3, 4, 5, 6, 7) PIXELS_##n(p, q, v, 1, 2, 3, 4, 5, 6, 7, 8)                            \
        PIXELS_##n(p, q, w, 2, 3, 4, 5, 6, 7, 8, 9)
#define SIDE_BY_SIDE_LINE(n, p, q)                                                                                     \
    SIDE_BY_SIDE_3(n, p, q, 27, 28, 29) PIXELS_##n(p, q, 30, 3, 4, 5, 6, 7, 8, 9, 10)                                  \
        PIXELS_##n(p, q, 31, 4, 5, 6, 7, 8, 9, 10, 11)
#define SIDE_BY_SIDE_5(n) SIDE_BY_SIDE_LINE(n, 12, 13)
#define SIDE_BY_SIDE_7(n)                                                                                              \
    SIDE_BY_SIDE_LINE(n, 14, 15) PIXELS_##n(14, 15, 17, 5, 6, 7, 8, 9, 10, 11, 12)                                     \
        PIXELS_##n(14, 15, 18, 6, 7, 8, 9, 10, 11, 12, 13)
#define APART_3(n, p, q, u, v, w)                                                                                      \
    PIXELS_##n(p, q, u, 0, 2, 4, 6, 8, 10, 12, 14) PIXELS_##n(p, q, v, 1, 3, 5, 7, 9, 11, 13, 15)                      \
        PIXELS_##n(p, q, w, 2, 4, 6, 8, 10, 12, 14, 16)
#define APART_5(n, p, q)                                                                                               \
    APART_3(n, p, q, 27, 28, 29) PIXELS_##n(p, q, 30, 3, 5, 7, 9, 11, 13, 15, 17)                                      \
        PIXELS_##n(p, q, 31, 4, 6, 8, 10, 12, 14, 16, 18)
#define TWO_APART_3(n) APART_3(n, 30, 31, 27, 28, 29)
#define TWO_APART_5(n) APART_5(n, 17, 18)
#define TWO_APART_7(n)                                                                                                 \
    APART_5(n, 25, 26) PIXELS_##n(25, 26, 17, 5, 7, 9, 11, 13, 15, 17, 19)                                             \
        PIXELS_##n(25, 26, 18, 6, 8, 10, 12, 14, 16, 18, 20)

/* A 3 x 3 filter that moves on by one: all of its weights in registers. `x`, `sums`: the last of their registers. */
#define NINE_TAPS(n, sums, x_last)                                                                                     \
    case n:                                                                                                            \
        __asm__ volatile("vldmia %[w], {s10-s18}\n"                                                                    \
                         "1:\tvldmia %[x], {s0-s" x_last "}\n\tvldmia %[start], {s19" sums "}\n\t"                     \
                         "add %[x], %[x], %[down]\n\t" SIDE_BY_SIDE_3(n, 27, 28, 10, 11, 12)                                   \
                         "vldmia %[x], {s0-s" x_last "}\n\tadd %[x], %[x], %[down]\n\t" SIDE_BY_SIDE_3(n, 27, 28, 13, 14, 15)   \
                         "vldmia %[x], {s0-s" x_last "}\n\tsub %[x], %[x], %[down]\n\t" SIDE_BY_SIDE_3(n, 27, 28, 16, 17, 18)   \
                         "subs %[rows], #1\n\tvstmia %[y], {s19" sums "}\n\tadd %[y], %[y], %[y_row]\n\tbne 1b"         \
                         : [x] "+r"(x), [y] "+r"(y), [rows] "+r"(rows)                                                 \
                         : [w] "r"(c->w), [start] "r"(c->start), [down] "r"(c->down), [y_row] "r"(c->y_row)             \
                         : SCRATCH);                                                                                   \
        break;
/* Any number of lines of three or five taps, or seven. */
#define LINES_OF_TAPS(n, sums, x_last, w_last, taps)                                                                   \
    case n:                                                                                                            \
        __asm__ volatile("1:\tvldmia %[start], {s19" sums "}\n\tmov %[left], %[lines]\n"                              \
                         "2:\tvldmia %[x], {s0-s" x_last "}\n\tvldmia %[w]!, {s27-s" w_last "}\n\t"                     \
                         "add %[x], %[x], %[down]\n\t" taps "subs %[left], #1\n\tbne 2b\n\t"                           \
                         "add %[w], %[w], %[w_next]\n\tadd %[x], %[x], %[next]\n\t"                                    \
                         "subs %[rows], #1\n\tvstmia %[y], {s19" sums "}\n\tadd %[y], %[y], %[y_row]\n\tbne 1b"        \
                         : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [rows] "+r"(rows), [left] "=&r"(left)                \
                         : [start] "r"(c->start), [down] "r"(c->down), [next] "r"(c->next), [y_row] "r"(c->y_row),     \
                           [lines] "r"(c->lines), [w_next] "r"(c->w_next)                                              \
                         : SCRATCH);                                                                                   \
        break;

POETC_APART void slide_nine(const column *c, int32_t pixels)
{
    const float *x = c->x;
    float *y = c->y;
    int32_t rows = c->rows;
    switch (pixels) {
        NINE_TAPS(1, "", "2")
        NINE_TAPS(2, "-s20", "3")
        NINE_TAPS(3, "-s21", "4")
        NINE_TAPS(4, "-s22", "5")
        NINE_TAPS(5, "-s23", "6")
        NINE_TAPS(6, "-s24", "7")
        NINE_TAPS(7, "-s25", "8")
    default: NINE_TAPS(8, "-s26", "9")
    }
}

#define DEFINE_SLIDE(name, taps, w_last, x1, x2, x3, x4, x5, x6, more)                                                 \
    POETC_APART void name(const column *c, int32_t pixels)                                                             \
    {                                                                                                                  \
        const float *x = c->x, *w = c->w;                                                                              \
        float *y = c->y;                                                                                               \
        int32_t rows = c->rows, left;                                                                                  \
        switch (pixels) {                                                                                              \
            LINES_OF_TAPS(1, "", x1, w_last, taps(1))                                                                  \
            LINES_OF_TAPS(2, "-s20", x2, w_last, taps(2))                                                              \
            LINES_OF_TAPS(3, "-s21", x3, w_last, taps(3))                                                              \
            LINES_OF_TAPS(4, "-s22", x4, w_last, taps(4))                                                              \
            LINES_OF_TAPS(5, "-s23", x5, w_last, taps(5))                                                              \
            LINES_OF_TAPS(6, "-s24", x6, w_last, taps(6))                                                              \
            more                                                                                                       \
        }                                                                                                              \
    }
#define SEVEN_AND_EIGHT(taps, w_last, x7, x8)                                                                          \
    LINES_OF_TAPS(7, "-s25", x7, w_last, taps(7)) LINES_OF_TAPS(8, "-s26", x8, w_last, taps(8))
#define SEVEN_TAPS "31}\n\tvldmia %[w]!, {s17-s18"
DEFINE_SLIDE(slide_five, SIDE_BY_SIDE_5, "31", "4", "5", "6", "7", "8", "9",
             SEVEN_AND_EIGHT(SIDE_BY_SIDE_5, "31", "10", "11"))
/* clang-format off */
DEFINE_SLIDE(slide_seven, SIDE_BY_SIDE_7, SEVEN_TAPS, "6", "7", "8", "9", "10", "11",
             SEVEN_AND_EIGHT(SIDE_BY_SIDE_7, SEVEN_TAPS, "12", "13"))
/* clang-format on */
DEFINE_SLIDE(slide_three_apart, TWO_APART_3, "29", "2", "4", "6", "8", "10", "12",
             SEVEN_AND_EIGHT(TWO_APART_3, "29", "14", "16"))
DEFINE_SLIDE(slide_five_apart, TWO_APART_5, "31", "4", "6", "8", "10", "12", "14",
             LINES_OF_TAPS(7, "-s25", "16", "31", TWO_APART_5(7)))
DEFINE_SLIDE(slide_seven_apart, TWO_APART_7, SEVEN_TAPS, "6", "8", "10", "12", "14", "16", )

/* One tap of every other of 2 `n` pixels whose sums are s15 to s30: the first, third, ...; the second, fourth, ... */
#define FIRSTS_1(p, q, w, a, b, c, d, e, f, g, h) MLA_1(p, 15, a, w)
#define FIRSTS_2(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 15, a, 17, b, w)
#define FIRSTS_3(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 15, a, 17, b, 19, c, w)
#define FIRSTS_4(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    FIRSTS_2(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 19, c, 21, d, w)
#define FIRSTS_5(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    FIRSTS_2(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 19, c, 21, d, 23, e, w)
#define FIRSTS_6(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    FIRSTS_4(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 23, e, 25, f, w)
#define FIRSTS_7(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    FIRSTS_4(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 23, e, 25, f, 27, g, w)
#define FIRSTS_8(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    FIRSTS_6(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 27, g, 29, h, w)
#define SECONDS_1(p, q, w, a, b, c, d, e, f, g, h) MLA_1(p, 16, a, w)
#define SECONDS_2(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 16, a, 18, b, w)
#define SECONDS_3(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 16, a, 18, b, 20, c, w)
#define SECONDS_4(p, q, w, a, b, c, d, e, f, g, h)                                                                     \
    SECONDS_2(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 20, c, 22, d, w)
#define SECONDS_5(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    SECONDS_2(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 20, c, 22, d, 24, e, w)
#define SECONDS_6(p, q, w, a, b, c, d, e, f, g, h)                                                                     \
    SECONDS_4(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 24, e, 26, f, w)
#define SECONDS_7(p, q, w, a, b, c, d, e, f, g, h)                                                                      \
    SECONDS_4(p, q, w, a, b, c, d, e, f, g, h) TRIPLE(p, q, 24, e, 26, f, 28, g, w)
#define SECONDS_8(p, q, w, a, b, c, d, e, f, g, h)                                                                     \
    SECONDS_6(p, q, w, a, b, c, d, e, f, g, h) MLA_2(p, q, 28, g, 30, h, w)
#define AT_0(which, n, p, q, w) which##_##n(p, q, w, 0, 1, 2, 3, 4, 5, 6, 7)
#define AT_1(which, n, p, q, w) which##_##n(p, q, w, 1, 2, 3, 4, 5, 6, 7, 8)
#define AT_2(which, n, p, q, w) which##_##n(p, q, w, 2, 3, 4, 5, 6, 7, 8, 9)
#define AT_3(which, n, p, q, w) which##_##n(p, q, w, 3, 4, 5, 6, 7, 8, 9, 10)
#define MORE_FIRST_3(n) AT_0(FIRSTS, n, 14, 31, 12) AT_1(FIRSTS, n, 14, 31, 10) AT_1(SECONDS, n, 14, 31, 11)
#define MORE_SECOND_3(n) AT_0(SECONDS, n, 14, 31, 12) AT_1(SECONDS, n, 14, 31, 10) AT_0(FIRSTS, n, 14, 31, 11)
#define MORE_FIRST_5(n)                                                                                                \
    AT_0(FIRSTS, n, 9, 31, 14) AT_1(FIRSTS, n, 9, 31, 12) AT_2(FIRSTS, n, 9, 31, 10)                                   \
        AT_1(SECONDS, n, 9, 31, 13) AT_2(SECONDS, n, 9, 31, 11)
#define MORE_SECOND_5(n)                                                                                               \
    AT_0(SECONDS, n, 9, 31, 14) AT_1(SECONDS, n, 9, 31, 12) AT_2(SECONDS, n, 9, 31, 10)                                \
        AT_0(FIRSTS, n, 9, 31, 13) AT_1(FIRSTS, n, 9, 31, 11)
#define MORE_FIRST_7(n) /* the last two weights in s27 and s28 */                                                      \
    AT_0(FIRSTS, n, 9, 31, 28) AT_1(FIRSTS, n, 9, 31, 14) AT_2(FIRSTS, n, 9, 31, 12) AT_3(FIRSTS, n, 9, 31, 10)        \
        AT_1(SECONDS, n, 9, 31, 27) AT_2(SECONDS, n, 9, 31, 13) AT_3(SECONDS, n, 9, 31, 11)
#define MORE_SECOND_7(n)                                                                                               \
    AT_0(SECONDS, n, 9, 31, 28) AT_1(SECONDS, n, 9, 31, 14) AT_2(SECONDS, n, 9, 31, 12) AT_3(SECONDS, n, 9, 31, 10)    \
        AT_0(FIRSTS, n, 9, 31, 27) AT_1(FIRSTS, n, 9, 31, 13) AT_2(FIRSTS, n, 9, 31, 11)

#define LINES_OF_PAIRS(n, x_last, w_last, w_back, but_one, sums, taps)                                                 \
    case n:                                                                                                            \
        __asm__ volatile("1:\tvldmia %[start], {s15" sums "}\n\tmov %[left], %[lines]\n"                              \
                         "2:\tvldmia %[x], {s0-s" x_last "}\n\tvldmia %[w], {s10-s" w_last "}\n\t"                      \
                         "add %[x], %[x], %[down]\n\tsub %[w], #" w_back "\n\t" taps "subs %[left], #1\n\tbne 2b\n\t"      \
                         "add %[w], %[w], %[w_next]\n\tadd %[x], %[x], %[next]\n\t"                                    \
                         "cmp %[odd], #0\n\tite ne\n\tvstmiane %[y], {s15" but_one "}\n\tvstmiaeq %[y], {s15" sums "}\n\t" \
                         "subs %[rows], #1\n\tadd %[y], %[y], %[y_row]\n\tbne 1b"                                        \
                         : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [rows] "+r"(rows), [left] "=&r"(left)                \
                         : [start] "r"(c->start), [down] "r"(c->down), [next] "r"(c->next), [y_row] "r"(c->y_row),     \
                           [lines] "r"(c->lines), [w_next] "r"(c->w_next), [odd] "r"(c->odd)                           \
                         : SCRATCH);                                                                                   \
        break;
#define DEFINE_GATHER(name, taps, w_last, w_back, x1, x2, x3, x4, x5, x6, more)                                        \
    POETC_APART void name(const column *c, int32_t pairs)                                                              \
    {                                                                                                                  \
        const float *x = c->x, *w = c->w;                                                                              \
        float *y = c->y;                                                                                               \
        int32_t rows = c->rows, left;                                                                                  \
        switch (pairs) {                                                                                               \
            LINES_OF_PAIRS(1, x1, w_last, w_back, "", "-s16", taps(1))                                                 \
            LINES_OF_PAIRS(2, x2, w_last, w_back, "-s17", "-s18", taps(2))                                             \
            LINES_OF_PAIRS(3, x3, w_last, w_back, "-s19", "-s20", taps(3))                                             \
            LINES_OF_PAIRS(4, x4, w_last, w_back, "-s21", "-s22", taps(4))                                             \
            LINES_OF_PAIRS(5, x5, w_last, w_back, "-s23", "-s24", taps(5))                                             \
            LINES_OF_PAIRS(6, x6, w_last, w_back, "-s25", "-s26", taps(6))                                             \
            more                                                                                                       \
        }                                                                                                              \
    }
#define SEVEN_PAIRS(taps, x_last, w_last, w_back) LINES_OF_PAIRS(7, x_last, w_last, w_back, "-s27", "-s28", taps(7))
#define THREES(taps)                                                                                                   \
    taps, "12", "24", "1", "2", "3", "4", "5", "6",                                                                    \
        SEVEN_PAIRS(taps, "7", "12", "24") LINES_OF_PAIRS(8, "8", "12", "24", "-s29", "-s30", taps(8))
#define FIVES(taps) taps, "14", "40", "2", "3", "4", "5", "6", "7", SEVEN_PAIRS(taps, "8", "14", "40")
#define SEVENS(taps) taps, "14}\n\tadd %[w], #20\n\tvldmia %[w], {s27-s28", "76", "3", "4", "5", "6", "7", "8",
#define GATHER(name, arguments) DEFINE_GATHER(name, arguments)
GATHER(gather_three_first, THREES(MORE_FIRST_3))
GATHER(gather_three_second, THREES(MORE_SECOND_3))
GATHER(gather_five_first, FIVES(MORE_FIRST_5))
GATHER(gather_five_second, FIVES(MORE_SECOND_5))
GATHER(gather_seven_first, SEVENS(MORE_FIRST_7))
GATHER(gather_seven_second, SEVENS(MORE_SECOND_7))

#else

/* The same in C. */
POETC_INLINE void slide(const column *c, const int32_t pixels, const int taps, const int stride)
{
    const float *x = c->x, *w = c->w;
    float *y = c->y;
    int32_t rows, left, tap, i;
    for (rows = c->rows; rows > 0; rows--) {
        float sum[MOST_PIXELS];
        for (i = 0; i < pixels; i++)
            sum[i] = *c->start;
        for (left = c->lines; left > 0; left--, x += c->down / 4, w += taps) {
            for (tap = 0; tap < taps; tap++)
                for (i = 0; i < pixels; i++)
                    sum[i] = POETC_FMA(x[i * stride + tap], w[tap], sum[i]);
        }
        for (i = 0; i < pixels; i++)
            y[i] = sum[i];
        x += c->next / 4, w += c->w_next / 4, y += c->y_row / 4;
    }
}

POETC_INLINE void gather_pairs(const column *c, const int32_t pairs, const int taps, const int more_first)
{
    const float *x = c->x, *w = c->w;
    float *y = c->y;
    int32_t rows, left, tap, i;
    for (rows = c->rows; rows > 0; rows--) {
        float sum[2 * MOST_PIXELS];
        for (i = 0; i < 2 * pairs; i++)
            sum[i] = *c->start;
        for (left = c->lines; left > 0; left--, x += c->down / 4, w -= 2 * taps) {
            for (tap = taps - 1; tap >= 0; tap--) {
                const int is_more = !(tap & 1); /* of the columns with more taps */
                const int32_t first = is_more ? (taps - 1 - tap) / 2 : (taps - 2 - tap) / 2 + more_first;
                for (i = 0; i < pairs; i++)
                    sum[2 * i + (is_more != more_first)] =
                        POETC_FMA(x[first + i], w[tap], sum[2 * i + (is_more != more_first)]);
            }
        }
        for (i = 0; i < 2 * pairs - c->odd; i++)
            y[i] = sum[i];
        x += c->next / 4, w += c->w_next / 4, y += c->y_row / 4;
    }
}

#define DEFINE_BLOCKS(name, call)                                                                                      \
    POETC_APART void name(const column *c, int32_t n)                                                                  \
    {                                                                                                                  \
        if (n == MOST_PIXELS)                                                                                          \
            call(c, MOST_PIXELS, CONSTANTS);                                                                           \
        else                                                                                                           \
            call(c, n, CONSTANTS);                                                                                     \
    }
#define CONSTANTS 3, 1
DEFINE_BLOCKS(slide_nine, slide)
DEFINE_BLOCKS(gather_three_first, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 5, 1
DEFINE_BLOCKS(slide_five, slide)
DEFINE_BLOCKS(gather_five_first, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 7, 1
DEFINE_BLOCKS(slide_seven, slide)
DEFINE_BLOCKS(gather_seven_first, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 7, 2
DEFINE_BLOCKS(slide_seven_apart, slide)
#undef CONSTANTS
#define CONSTANTS 7, 0
DEFINE_BLOCKS(gather_seven_second, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 3, 2
DEFINE_BLOCKS(slide_three_apart, slide)
#undef CONSTANTS
#define CONSTANTS 5, 2
DEFINE_BLOCKS(slide_five_apart, slide)
#undef CONSTANTS
#define CONSTANTS 3, 0
DEFINE_BLOCKS(gather_three_second, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 5, 0
DEFINE_BLOCKS(gather_five_second, gather_pairs)
#endif

/* A result, or every other row of it, in blocks of about the same width, from left to right. The last one overlaps the
 * one before, with the same values. Its operands lie in the same places for all planes of a size. */
typedef struct {
    column c;
    void (*run)(const column *c, int32_t pixels);
    const float *x;
    int32_t y, w;          /* floats: where the first row of the result and the first weight are */
    int32_t total, pixels; /* or pairs, for each of which x and y move on by so many floats: */
    int32_t x_step, y_step;
    int odd; /* the last pair is a pixel */
} column_plan;

static void set_blocks(column_plan *p, int32_t total, int32_t most)
{
    const int32_t blocks = (total + most - 1) / most;
    p->total = total, p->pixels = blocks == 1 ? total : (total + blocks - 1) / blocks;
}

static void run_plan(column_plan *p, float *y, const float *w)
{
    column *c = &p->c;
    const int32_t last = p->total - p->pixels;
    int32_t at = 0;
    y += p->y, c->w = w + p->w;
    for (c->odd = 0; at < last; at += p->pixels) {
        c->x = p->x + at * p->x_step, c->y = y + at * p->y_step;
        p->run(c, p->pixels);
    }
    c->x = p->x + last * p->x_step, c->y = y + last * p->y_step, c->odd = p->odd;
    p->run(c, p->pixels);
}

/* The weights of a filter in sequence: where they are, or copied to `w`. */
POETC_APART const float *weights_of(const filter *f, float *w)
{
    const int32_t taps = f->kernel_w;
    float *to = w;
    int32_t line, i;
    if (f->step == 1 && f->row_step == taps)
        return f->weight;
    if (f->step == -1 && f->row_step == -taps) {
        const float *from = f->weight + 1;
        POETC_UNROLL_9
        for (i = f->kernel_h * taps; i > 0; i--)
            *to++ = *--from;
        return w;
    }
    for (line = 0; line < f->kernel_h; line++)
        for (i = 0; i < taps; i++)
            *to++ = f->weight[line * f->row_step + i * f->step];
    return w;
}

/* With room for the weights, which no other function's variables are to lie beside on the stack. */
POETC_APART void run_in_sequence(column_plan *p, const filter *f)
{
    float w[MOST_TAPS * MOST_TAPS];
    run_plan(p, f->y, weights_of(f, w));
}

/* `rows` rows of a result, if there are loops for the filter; returns whether there are. `stride_w`: of the strip's
 * columns. */
static int plan_correlation(column_plan *p, const filter *f, const float *from, int32_t rows, int32_t stride_h,
                            int32_t stride_w)
{
    const int32_t taps = f->kernel_w, lines = f->kernel_h, row = 4 * f->s->row;
    const int nine =
        lines == 3 && taps == 3 && stride_h == 1 && f->down == 1; /* whose rows of taps follow one another */
    if (lines < 1)                                                /* the loops go round at least once */
        return 0;
    if (f->across != 1 || f->s->phases != 1 || f->y_step != 1 || lines > MOST_TAPS || !HAS_LOOPS(taps))
        return 0;
    if (stride_w == 1 && taps == 3 && !nine)
        return 0;
    p->c.start = f->start, p->c.rows = rows, p->c.lines = lines, p->c.y_row = 4 * f->y_row;
    p->c.down = f->down * row, p->c.next = stride_h * row - lines * p->c.down, p->c.w_next = -4 * taps * lines;
    if (stride_w == 1)
        p->run = nine ? slide_nine : taps == 5 ? slide_five : slide_seven;
    else
        p->run = taps == 3 ? slide_three_apart : taps == 5 ? slide_five_apart : slide_seven_apart;
    p->x = from, p->y = p->w = 0, p->x_step = stride_w, p->y_step = 1, p->odd = 0;
    set_blocks(p, f->width, stride_w == 2 ? MOST_APART(taps) : MOST_PIXELS);
    return 1;
}

static int correlate_fast(const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    column_plan p;
    if (!plan_correlation(&p, f, from, rows, stride_h, stride_w))
        return 0;
    run_in_sequence(&p, f);
    return 1;
}

/* The gradient of the input under strides of two and a filter with an odd number of rows and three, five or seven
 * columns. It is every other row of gx, of `lines` taps, the first of them on row `tap` of the filter. They begin with
 * the row of gy that the first of them reads. `y`: floats before the first of the rows. */
static void plan_gather(column_plan *p, const filter *f, const float *g, int32_t lines, int32_t tap, int more_first,
                        int32_t y, int32_t rows)
{
    const int32_t taps = f->kernel_w;
    p->c.start = f->start, p->c.rows = rows, p->c.lines = lines, p->c.y_row = 8 * f->width;
    p->c.down = 4 * f->s->row, p->c.next = p->c.down - lines * p->c.down, p->c.w_next = 8 * taps * lines;
    if (taps == 7)
        p->run = more_first ? gather_seven_first : gather_seven_second;
    else if (taps == 5)
        p->run = more_first ? gather_five_first : gather_five_second;
    else
        p->run = more_first ? gather_three_first : gather_three_second;
    p->x = g, p->y = y, p->w = tap * taps, p->x_step = 1, p->y_step = 2, p->odd = f->width & 1;
    set_blocks(p, (f->width + 1) / 2, MOST_APART(taps));
}

static void gather_rows(const filter *f, const float *g, int32_t lines, int32_t tap, int more_first, float *y,
                        int32_t rows)
{
    column_plan p;
    if (rows > 0) {
        plan_gather(&p, f, g, lines, tap, more_first, 0, rows);
        run_plan(&p, y, f->weight);
    }
}

#endif
