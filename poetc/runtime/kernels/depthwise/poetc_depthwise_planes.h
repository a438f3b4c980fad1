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

/* Planes of two or four rows and columns with one zero around, whose results have that size. With a bias of -0 a zero's
 * product would change a sum. */
static int is_small_plane(const convolution *c)
{
    const int32_t side = c->width;
    return (side == 2 || side == 4) && c->height == side && c->output_width == side && c->output_height == side &&
           c->kernel_h == 3 && c->kernel_w == 3 && c->stride_h == 1 && c->stride_w == 1 && c->dilation_h == 1 &&
           c->dilation_w == 1 && c->pad_top == 1 && c->pad_left == 1 && !c->has_bias;
}

/* A row of pixels whose sums are y, of a row of x under the weights u, v, w of one line; zeros beside it. */
#define LINE_2(y0, y1, x0, x1, u, v, w) \
    PAIR(29, 30, y1, x0, u, y0, x0, v) PAIR(29, 30, y1, x1, v, y0, x1, w)
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
    if (side == 2)
        /* clang-format off */
        PLANES("vldmia %[x]!, {s0-s3}\n\tvldmia %[none], {s25-s28}\n\t"
               LINE_2(25, 26, 0, 1, 19, 20, 21) LINE_2(25, 26, 2, 3, 22, 23, 24)
               LINE_2(27, 28, 0, 1, 16, 17, 18) LINE_2(27, 28, 2, 3, 19, 20, 21)
               "vstmia %[y]!, {s25-s28}\n\t");
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

/* Three taps of a row of gy and one of x, four each, with x in s16 to s19. Lanes are the row's columns, as in a strip
 * whose rows are five long. */
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
    if (side == 2) /* x: s0 to s3, gy: s4 to s7; lanes of a strip whose rows are three long: 0, 1, 3, 0 */
                   /* clang-format off */
        PLANES("vldmia %[x]!, {s0-s3}\n\tvldmia %[gy]!, {s4-s7}\n\tvldmia %[gw], {s8-s16}\n\t"
               MUL(17, 7, 0) MUL(18, 7, 1) MLA(18, 6, 0) MUL(19, 6, 1)
               MUL(20, 7, 2) MLA(20, 5, 0) MUL(21, 4, 0) MLA(21, 7, 3) MLA(21, 5, 1) MLA(21, 6, 2) MUL(22, 4, 1) MLA(22, 6, 3)
               MUL(23, 5, 2) MUL(24, 4, 2) MLA(24, 5, 3) MUL(25, 4, 3)
               SUM(8, 8, 17) SUM(9, 9, 18) SUM(10, 10, 19) SUM(11, 11, 20) SUM(12, 12, 21) SUM(13, 13, 22) SUM(14, 14, 23)
               SUM(15, 15, 24) SUM(16, 16, 25)
               "vstmia %[gw]!, {s8-s16}\n\t");
    else
        PLANES("vldmia %[gy]!, {s0-s15}\n\t"
               START_TAPS_4 GY_1 GY_2 GY_3 END_TAPS_4 "subs %[x], #48\n\t"
               START_TAPS_4 GY_0 GY_1 GY_2 GY_3 END_TAPS_4 "subs %[x], #48\n\t"
               START_TAPS_4 GY_0 GY_1 GY_2 END_TAPS_4);
                   /* clang-format on */
#undef PLANES
}

#endif
#endif
