/* Depthwise convolution by tiles of scalars in an FPU: a few pixels' sums stay in registers while a window slides over them. */
#ifndef POETC_DEPTHWISE_FPU_H
#define POETC_DEPTHWISE_FPU_H

#include "poetc_depthwise.h"

#define FAST_TILES 1
#define MOST_TAPS 5 /* of a filter's side */

#if POETC_FPU_M
#define SIX(v)                                                                                                         \
    register float v##0 __asm__("s16"), v##1 __asm__("s17"), v##2 __asm__("s18"), v##3 __asm__("s19");                 \
    register float v##4 __asm__("s20"), v##5 __asm__("s21")
#define LOAD_SIX(v, p)                                                                                                 \
    __asm__("vldmia %6, {%0, %1, %2, %3, %4, %5}"                                                                      \
            : "=t"(v##0), "=t"(v##1), "=t"(v##2), "=t"(v##3), "=t"(v##4), "=t"(v##5)                                   \
            : "r"(p), "m"(*(const float(*)[6])(p)))
#define FOUR(v) \
    register float v##0 __asm__("s25"), v##1 __asm__("s26"), v##2 __asm__("s27"), v##3 __asm__("s28")
#define LOAD_FOUR(v, p) POETC_LOAD_QUAD(v, p)
#define ADD_PRODUCTS(s, p, q, r, t)                                                                                    \
    __asm__("vmla.f32 %0, %4, %8\n\tvmla.f32 %1, %5, %9\n\tvmla.f32 %2, %6, %10\n\tvmla.f32 %3, %7, %11"                  \
            : "+t"(s##0), "+t"(s##1), "+t"(s##2), "+t"(s##3)                                                           \
            : "t"(p), "t"(q), "t"(r), "t"(t), "t"(g0), "t"(g1), "t"(g2), "t"(g3))
#define NINE(v)                                                                                                        \
    SIX(v);                                                                                                            \
    register float v##6 __asm__("s22"), v##7 __asm__("s23"), v##8 __asm__("s24")
#define LOAD_NINE(v, p)                                                                                                \
    __asm__("vldmia %9, {%0, %1, %2, %3, %4, %5, %6, %7, %8}"                                                          \
            : "=t"(v##0), "=t"(v##1), "=t"(v##2), "=t"(v##3), "=t"(v##4), "=t"(v##5), "=t"(v##6), "=t"(v##7),          \
              "=t"(v##8)                                                                                               \
            : "r"(p), "m"(*(const float(*)[9])(p)))
#define LOAD_THREE(v, p)                                                                                               \
    __asm__("vldmia %3, {%0, %1, %2}" : "=t"(v##0), "=t"(v##1), "=t"(v##2) : "r"(p), "m"(*(const float(*)[3])(p)))
/* Sums in fixed registers, and in one piece: GCC would move them about. */
#define SUMS_A(s) \
    register float s##0 __asm__("s0"), s##1 __asm__("s1"), s##2 __asm__("s2"), s##3 __asm__("s3")
#define SUMS_B(s) \
    register float s##0 __asm__("s4"), s##1 __asm__("s5"), s##2 __asm__("s6"), s##3 __asm__("s7")
#define SUMS_C(s) \
    register float s##0 __asm__("s8"), s##1 __asm__("s9"), s##2 __asm__("s10"), s##3 __asm__("s11")
#define ADD_TO(a, b, c, d, p, q, r, t, w)                                                                              \
    __asm__("vmla.f32 %0, %4, %8\n\tvmla.f32 %1, %5, %8\n\tvmla.f32 %2, %6, %8\n\tvmla.f32 %3, %7, %8"                     \
            : "+t"(a), "+t"(b), "+t"(c), "+t"(d)                                                                       \
            : "t"(p), "t"(q), "t"(r), "t"(t), "t"(w))
#define ADD_ONE(s, w)                                                                                                  \
    __asm__("vmla.f32 %0, %1, %4\n\tvmla.f32 %0, %2, %5\n\tvmla.f32 %0, %3, %6"                                        \
            : "+t"(s)                                                                                                  \
            : "t"(v0), "t"(v1), "t"(v2), "t"((w)[0]), "t"((w)[1]), "t"((w)[2]))
#define PUT_FOUR(p, s)                                                                                                 \
    __asm__("vstmia %1, {%2, %3, %4, %5}"                                                                              \
            : "=m"(*(float(*)[4])(p))                                                                                  \
            : "r"(p), "t"(s##0), "t"(s##1), "t"(s##2), "t"(s##3))
/* The address in a register, so that what is next to it needs no other. */
#define KEEP(pointer) __asm__("" : "+r"(pointer))
/* Windows of eight and eleven floats, and the weights of a row of taps. */
#define EIGHT(v)                                                                                                       \
    SIX(v);                                                                                                            \
    register float v##6 __asm__("s22"), v##7 __asm__("s23")
#define ELEVEN(v)                                                                                                      \
    NINE(v);                                                                                                           \
    register float v##9 __asm__("s25"), v##10 __asm__("s26")
#define LOAD_EIGHT(v, p)                                                                                               \
    __asm__("vldmia %8, {%0, %1, %2, %3, %4, %5, %6, %7}"                                                              \
            : "=t"(v##0), "=t"(v##1), "=t"(v##2), "=t"(v##3), "=t"(v##4), "=t"(v##5), "=t"(v##6), "=t"(v##7)           \
            : "r"(p), "m"(*(const float(*)[8])(p)))
#define LOAD_ELEVEN(v, p)                                                                                              \
    __asm__("vldmia %11, {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10}"                                                \
            : "=t"(v##0), "=t"(v##1), "=t"(v##2), "=t"(v##3), "=t"(v##4), "=t"(v##5), "=t"(v##6), "=t"(v##7),          \
              "=t"(v##8), "=t"(v##9), "=t"(v##10)                                                                      \
            : "r"(p), "m"(*(const float(*)[11])(p)))
#define EIGHT_SUMS(s)                                                                                                  \
    SUMS_A(s);                                                                                                         \
    register float s##4 __asm__("s4"), s##5 __asm__("s5"), s##6 __asm__("s6"), s##7 __asm__("s7")
#define STORE_EIGHT(p, s)                                                                                              \
    __asm__("vstmia %0, {%2, %3, %4, %5, %6, %7, %8, %9}"                                                              \
            :                                                                                                          \
            : "r"(p), "m"(*(float(*)[8])(p)), "t"(s##0), "t"(s##1), "t"(s##2), "t"(s##3), "t"(s##4), "t"(s##5),        \
              "t"(s##6), "t"(s##7)                                                                                     \
            : "memory")
#else
#define ADD_TO(a, b, c, d, p, q, r, t, w) ((a) += (p) * (w), (b) += (q) * (w), (c) += (r) * (w), (d) += (t) * (w))
#define ADD_ONE(s, w) (s += v0 * (w)[0], s += v1 * (w)[1], s += v2 * (w)[2])
#define KEEP(pointer) ((void)0)
#define PUT_FOUR(p, s) PUT(p, s)
#define FOUR(v) float v##0, v##1, v##2, v##3
#define SUMS_A(s) FOUR(s)
#define SUMS_B(s) FOUR(s)
#define SUMS_C(s) FOUR(s)
#define LOAD_FOUR(v, p) POETC_LOAD_QUAD(v, p)
#define ADD_PRODUCTS(s, p, q, r, t) (s##0 += (p) * g0, s##1 += (q) * g1, s##2 += (r) * g2, s##3 += (t) * g3)
#define SIX(v) float v##0, v##1, v##2, v##3, v##4, v##5
#define LOAD_SIX(v, p) (v##0 = (p)[0], v##1 = (p)[1], v##2 = (p)[2], v##3 = (p)[3], v##4 = (p)[4], v##5 = (p)[5])
#define NINE(v) float v##0, v##1, v##2, v##3, v##4, v##5, v##6, v##7, v##8
#define LOAD_NINE(v, p) (LOAD_SIX(v, p), v##6 = (p)[6], v##7 = (p)[7], v##8 = (p)[8])
#define LOAD_THREE(v, p) (v##0 = (p)[0], v##1 = (p)[1], v##2 = (p)[2])
#define EIGHT(v) \
    SIX(v);      \
    float v##6, v##7
#define ELEVEN(v) \
    NINE(v);      \
    float v##9, v##10
#define LOAD_EIGHT(v, p) (LOAD_SIX(v, p), v##6 = (p)[6], v##7 = (p)[7])
#define LOAD_ELEVEN(v, p) (LOAD_NINE(v, p), v##9 = (p)[9], v##10 = (p)[10])
#define EIGHT_SUMS(s) float s##0, s##1, s##2, s##3, s##4, s##5, s##6, s##7
#define STORE_EIGHT(p, s)                                                                                              \
    ((p)[0] = s##0, (p)[1] = s##1, (p)[2] = s##2, (p)[3] = s##3, (p)[4] = s##4, (p)[5] = s##5, (p)[6] = s##6,          \
     (p)[7] = s##7)
#endif

/* Three taps of a row, for four pixels that lie two apart. */
#define ADD_PAIRS(s, w)                                                                                                \
    do {                                                                                                               \
        ADD_TO_FOUR(s, v0, v2, v4, v6, (w)[0]);                                                                        \
        ADD_TO_FOUR(s, v1, v3, v5, v7, (w)[1]);                                                                        \
        ADD_TO_FOUR(s, v2, v4, v6, v8, (w)[2]);                                                                        \
    } while (0)
#define ADD_TO_FOUR(s, p, q, r, t, w) ADD_TO(s##0, s##1, s##2, s##3, p, q, r, t, w)

/* Three taps of a row, for four pixels side by side; for one. */
#define ADD_FOUR(s, w)                                                                                                 \
    do {                                                                                                               \
        ADD_TO_FOUR(s, v0, v1, v2, v3, (w)[0]);                                                                        \
        ADD_TO_FOUR(s, v1, v2, v3, v4, (w)[1]);                                                                        \
        ADD_TO_FOUR(s, v2, v3, v4, v5, (w)[2]);                                                                        \
    } while (0)

/* `rows` rows under a 3 x 3 filter without strides and dilation: tiles of two rows and four pixels, then of four rows and one
 * pixel. The last tile of a column overlaps the one before, with the same values; a strip that is lower than a tile is read
 * beyond its end, for nothing. */
POETC_APART void correlate_tiles(const filter *f, const float *from, int32_t rows)
{
    const ptrdiff_t row = f->s->row, width = f->width;
    const float bias = f->bias;
    float w[9], *y = f->y;
    int32_t at, r;
    load_weights(f, 3, 3, w);
    for (at = 0; at + 4 <= width; at += 4, from += 4, y += 4) {
        const float *x = from;
        float *put = y;
        for (r = rows; r > 0; r -= 2, put += width) {
            SUMS_A(a);
            SUMS_B(b);
            SIX(v);
            if (r == 1 && rows > 1)
                x -= row, put -= width;
            a0 = a1 = a2 = a3 = bias;
            b0 = b1 = b2 = b3 = bias;
            LOAD_SIX(v, x);
            ADD_FOUR(a, w);
            x += row;
            LOAD_SIX(v, x);
            ADD_FOUR(a, w + 3);
            ADD_FOUR(b, w);
            x += row;
            LOAD_SIX(v, x);
            ADD_FOUR(a, w + 6);
            ADD_FOUR(b, w + 3);
            x += row;
            LOAD_SIX(v, x);
            ADD_FOUR(b, w + 6);
            x -= row;
            PUT_FOUR(put, a);
            if (rows == 1)
                break;
            put += width;
            KEEP(put);
            PUT_FOUR(put, b);
        }
    }
    for (; at < width; at++, from++, y++) {
        const float *x = from;
        float *put = y;
        for (r = rows; r > 0; r -= 4, put += 4 * width) {
            float a = bias, b = bias, c = bias, d = bias;
            SIX(v);
            (void)v3, (void)v4, (void)v5;
            if (r < 4 && rows >= 4)
                x -= (4 - r) * row, put -= (4 - r) * width;
            LOAD_THREE(v, x);
            ADD_ONE(a, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(a, w + 3);
            ADD_ONE(b, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(a, w + 6);
            ADD_ONE(b, w + 3);
            ADD_ONE(c, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(b, w + 6);
            ADD_ONE(c, w + 3);
            ADD_ONE(d, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(c, w + 6);
            ADD_ONE(d, w + 3);
            LOAD_THREE(v, x + row);
            ADD_ONE(d, w + 6);
            put[0] = a;
            if (rows > 1)
                put[width] = b;
            if (rows > 2)
                put[2 * width] = c;
            if (rows > 3)
                put[3 * width] = d;
        }
    }
}

/* Two rows under a 3 x 3 filter with strides of two, of which one row of the image is shared: four pixels at a time. */
POETC_INLINE void correlate_two(const float *w, float bias, const float *x, ptrdiff_t row, float *y, int32_t width, int32_t blocks)
{
    for (; blocks > 0; blocks--, x += 8, y += 4) {
        const float *line = x;
        SUMS_A(a);
        SUMS_B(b);
        NINE(v);
        a0 = a1 = a2 = a3 = bias;
        b0 = b1 = b2 = b3 = bias;
        LOAD_NINE(v, line);
        ADD_PAIRS(a, w);
        line += row;
        LOAD_NINE(v, line);
        ADD_PAIRS(a, w + 3);
        line += row;
        LOAD_NINE(v, line);
        ADD_PAIRS(a, w + 6);
        PUT_FOUR(y, a);
        ADD_PAIRS(b, w);
        line += row;
        LOAD_NINE(v, line);
        ADD_PAIRS(b, w + 3);
        line += row;
        LOAD_NINE(v, line);
        ADD_PAIRS(b, w + 6);
        PUT_FOUR(y + width, b);
    }
}

/* `rows` rows under a 3 x 3 filter with a stride of two along the row. */
POETC_APART void correlate_pairs(const filter *f, const float *from, int32_t rows, int32_t stride_h)
{
    const ptrdiff_t row = f->s->row, down = (ptrdiff_t)f->down * row;
    const float bias = f->bias;
    float w[9], *y = f->y;
    int32_t at, i;
    load_weights(f, 3, 3, w);
    for (; rows >= 2 && stride_h == 2 && f->down == 1 && f->width % 4 == 0; rows -= 2, from += 4 * row, y += 2 * f->width)
        correlate_two(w, bias, from, row, y, f->width, f->width / 4);
    for (; rows > 0; rows--, from += stride_h * row) {
        const float *x = from;
        for (at = f->width; at >= 4; at -= 4, x += 8, y += 4) {
            const float *line = x;
            SUMS_A(a);
            NINE(v);
            a0 = a1 = a2 = a3 = bias;
            POETC_UNROLL_3
            for (i = 0; i < 9; i += 3, line += down) {
                LOAD_NINE(v, line);
                ADD_PAIRS(a, w + i);
            }
            PUT_FOUR(y, a);
        }
        for (; at > 0; at--, x += 2) {
            const float *line = x;
            float a = bias;
            SIX(v);
            (void)v3, (void)v4, (void)v5;
            POETC_UNROLL_3
            for (i = 0; i < 9; i += 3, line += down) {
                LOAD_THREE(v, line);
                ADD_ONE(a, w + i);
            }
            *y++ = a;
        }
    }
}


/* `rows` rows under a filter of `taps` columns, four pixels at a time: a row of the window comes in one instruction. */
POETC_INLINE void correlate_windows(const filter *f, const float *from, int32_t rows, int32_t stride_h, const int taps,
                                    const int stride)
{
    const ptrdiff_t row = f->s->row, down = (ptrdiff_t)f->down * row;
    const float bias = f->bias;
    float w[MOST_TAPS * MOST_TAPS], *y = f->y;
    int32_t left, kh;
    load_weights(f, f->kernel_h, taps, w);
    for (; rows > 0; rows--, from += stride_h * row, y += f->y_row) {
        const float *x = from;
        float *put = y;
        for (left = f->width; left > 0; left -= 4, x += 4 * stride) {
            const float *line = x, *weight = w;
            SUMS_A(a);
            ELEVEN(v);
            a0 = a1 = a2 = a3 = bias;
            for (kh = f->kernel_h; kh > 0; kh--, line += down, weight += taps) {
                if (stride == 1) {
                    LOAD_EIGHT(v, line);
                    ADD_TO_FOUR(a, v0, v1, v2, v3, weight[0]);
                    if (taps > 1)
                        ADD_TO_FOUR(a, v1, v2, v3, v4, weight[1]);
                    if (taps > 2)
                        ADD_TO_FOUR(a, v2, v3, v4, v5, weight[2]);
                    if (taps > 3)
                        ADD_TO_FOUR(a, v3, v4, v5, v6, weight[3]);
                    if (taps > 4)
                        ADD_TO_FOUR(a, v4, v5, v6, v7, weight[4]);
                } else {
                    LOAD_ELEVEN(v, line);
                    ADD_TO_FOUR(a, v0, v2, v4, v6, weight[0]);
                    ADD_TO_FOUR(a, v1, v3, v5, v7, weight[1]);
                    ADD_TO_FOUR(a, v2, v4, v6, v8, weight[2]);
                    if (taps > 3)
                        ADD_TO_FOUR(a, v3, v5, v7, v9, weight[3]);
                    if (taps > 4)
                        ADD_TO_FOUR(a, v4, v6, v8, v10, weight[4]);
                }
            }
            if (left >= 4 && f->y_step == 1) {
                PUT_FOUR(put, a);
                put += 4;
            } else {
                float *at = put;
                const ptrdiff_t step = f->y_step;
                put += 4 * step;
                *at = a0;
                if (left > 1)
                    at += step, *at = a1;
                if (left > 2)
                    at += step, *at = a2;
                if (left > 3)
                    at += step, *at = a3;
            }
        }
    }
}

/* `rows` rows of a result, if there are tiles for the filter; returns whether there are. `stride_w`: of the strip's columns. */
static int correlate_fast(const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    const int is_3x3 = f->kernel_h == 3 && f->kernel_w == 3 && f->y_step == 1 && f->y_row == f->width;
    if (f->across != 1 || f->s->phases != 1)
        return 0;
    if (is_3x3 && stride_w == 2)
        correlate_pairs(f, from, rows, stride_h);
    else if (is_3x3 && stride_h == 1 && f->down == 1 && (rows >= 4 || (4 - rows) * f->s->row + 2 <= f->s->slack))
        correlate_tiles(f, from, rows);
    else if (f->kernel_h > MOST_TAPS)
        return 0;
    else if (f->kernel_w == 1)
        correlate_windows(f, from, rows, stride_h, 1, 1);
    else if (f->kernel_w == 2)
        correlate_windows(f, from, rows, stride_h, 2, 1);
    else if (f->kernel_w == 3 && stride_w == 1)
        correlate_windows(f, from, rows, stride_h, 3, 1);
    else if (f->kernel_w == 3)
        correlate_windows(f, from, rows, stride_h, 3, 2);
    else if (f->kernel_w == 5 && stride_w == 1)
        correlate_windows(f, from, rows, stride_h, 5, 1);
    else if (f->kernel_w == 5)
        correlate_windows(f, from, rows, stride_h, 5, 2);
    else
        return 0;
    return 1;
}

#define ADD_COLUMNS(w)                                                                                                 \
    do {                                                                                                               \
        if (twice) {                                                                                                   \
            ADD_TO(s0, s2, s4, s6, v0, v1, v2, v3, (w)[2]);                                                            \
            ADD_TO(s0, s2, s4, s6, v1, v2, v3, v4, (w)[0]);                                                            \
            ADD_TO(s1, s3, s5, s7, v1, v2, v3, v4, (w)[1]);                                                            \
        } else {                                                                                                       \
            ADD_TO(s0, s2, s4, s6, v0, v1, v2, v3, (w)[1]);                                                            \
            ADD_TO(s1, s3, s5, s7, v0, v1, v2, v3, (w)[2]);                                                            \
            ADD_TO(s1, s3, s5, s7, v1, v2, v3, v4, (w)[0]);                                                            \
        }                                                                                                              \
    } while (0)
#define ADD_TWICE(s, v, w) \
    do {                                                                                                               \
        POETC_MULTIPLY_ADD(s, (v)[0], (w)[2]);                                                                         \
        POETC_MULTIPLY_ADD(s, (v)[1], (w)[0]);                                                                         \
    } while (0)
/* Two pixels of a row, or the first of them. */
POETC_INLINE void gather_two(const float *w, float bias, const float *from, ptrdiff_t row, const int taps, const int twice, float *to,
                             int32_t left)
{
    float first = bias, second = bias;
    int32_t i;
    POETC_UNROLL_2
    for (i = 0; i < taps; i++) {
        const float *v = from + i * row, *u = w + (taps == 1 ? 3 : i == 0 ? 6 : 0);
        if (twice) {
            ADD_TWICE(first, v, u);
            POETC_MULTIPLY_ADD(second, v[1], u[1]);
        } else {
            POETC_MULTIPLY_ADD(first, v[0], u[1]);
            ADD_TWICE(second, v, u);
        }
    }
    to[0] = first;
    if (left > 1)
        to[1] = second;
}

/* The gradient of the input under a 3 x 3 filter and strides of two: every other row of gx, of one tap or two, from the row of gy on
 * that the first of them reads; or, if `taps` is 3, every row, in pairs of one of one tap and one of two. Columns take one tap and two in turn, the first of them two if `twice`. Eight columns at a time, then
 * two, then one. All constants but for sizes. */
POETC_INLINE void gather_lines(const float *w, float bias, const float *g, ptrdiff_t row, const int taps, const int twice, float *y,
                               int32_t width, int32_t rows)
{
    int32_t left;
    for (; rows > 0; rows--, g += row, y += 2 * width) {
        const float *from = g;
        float *to = y;
        for (left = width; left >= 8; left -= 8, from += 4, to += 8) {
            EIGHT_SUMS(s);
            SIX(v);
            (void)v5;
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = bias;
            LOAD_SIX(v, from);
            if (taps != 2)
                ADD_COLUMNS(w + 3);
            if (taps == 3) {
                STORE_EIGHT(to, s);
                s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = bias;
            }
            if (taps > 1) {
                ADD_COLUMNS(w + 6);
                LOAD_SIX(v, from + row);
                ADD_COLUMNS(w);
            }
            STORE_EIGHT(taps == 3 ? to + width : to, s);
        }
        for (; left > 0; left -= 2, from++, to += 2) {
            if (taps != 2)
                gather_two(w, bias, from, row, 1, twice, to, left);
            if (taps > 1)
                gather_two(w, bias, from, row, 2, twice, taps == 3 ? to + width : to, left);
        }
    }
}

POETC_APART void gather_rows(const filter *f, const float *g, int taps, int twice, float *y, int32_t rows)
{
    const ptrdiff_t row = f->s->row;
    const float bias = f->bias;
    float w[9];
    int32_t i;
    POETC_UNROLL_9
    for (i = 0; i < 9; i++)
        w[i] = f->weight[i];
    if (taps == 1 && twice)
        gather_lines(w, bias, g, row, 1, 1, y, f->width, rows);
    else if (taps == 1)
        gather_lines(w, bias, g, row, 1, 0, y, f->width, rows);
    else if (taps == 2 && twice)
        gather_lines(w, bias, g, row, 2, 1, y, f->width, rows);
    else if (taps == 2)
        gather_lines(w, bias, g, row, 2, 0, y, f->width, rows);
    else if (twice)
        gather_lines(w, bias, g, row, 3, 1, y, f->width, rows);
    else
        gather_lines(w, bias, g, row, 3, 0, y, f->width, rows);
}

/* Sums of three taps side by side over a strip that is one long row; of `lines` rows of the filter, `down` floats apart in x. */
POETC_APART void add_three_taps(const float *line, ptrdiff_t down, int32_t lines, const float *gradient, int32_t count, float *gw)
{
    SUMS_A(a);
    SUMS_B(b);
    SUMS_C(c);
    SIX(v);
    FOUR(g);
#define ADD_QUAD                                                                                                       \
    do {                                                                                                               \
        LOAD_SIX(v, x);                                                                                                \
        LOAD_FOUR(g, gy);                                                                                              \
        x += 4;                                                                                                        \
        ADD_PRODUCTS(a, v0, v1, v2, v3);                                                                               \
        ADD_PRODUCTS(b, v1, v2, v3, v4);                                                                               \
        ADD_PRODUCTS(c, v2, v3, v4, v5);                                                                               \
    } while (0)
    for (; lines > 0; lines--, line += down, gw += 3) {
        const float *x = line, *gy = gradient;
        int32_t left = count / 8;
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = 0.0f;
        if (count & 4)
            ADD_QUAD;
        for (; left > 0; left--) {
            ADD_QUAD;
            ADD_QUAD;
        }
        gw[0] += (a0 + a1) + (a2 + a3);
        gw[1] += (b0 + b1) + (b2 + b3);
        gw[2] += (c0 + c1) + (c2 + c3);
    }
#undef ADD_QUAD
}

/* The same under a stride of two: `rows` rows of `width` floats of gy, a multiple of four, and of x, `step` floats apart. */
POETC_APART void add_three_pairs(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient, int32_t rows,
                                 int32_t width, float *gw)
{
    SUMS_A(a);
    SUMS_B(b);
    SUMS_C(c);
    NINE(v);
    FOUR(g);
#define ADD_QUAD                                                                                                       \
    do {                                                                                                               \
        LOAD_NINE(v, x);                                                                                               \
        LOAD_FOUR(g, gy);                                                                                              \
        x += 8;                                                                                                        \
        ADD_PRODUCTS(a, v0, v2, v4, v6);                                                                               \
        ADD_PRODUCTS(b, v1, v3, v5, v7);                                                                               \
        ADD_PRODUCTS(c, v2, v4, v6, v8);                                                                               \
    } while (0)
    for (; lines > 0; lines--, line += down, gw += 3) {
        const float *row = line, *gy = gradient;
        int32_t left = rows;
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = 0.0f;
        if (width == 8) { /* without a loop: short rows are many */
            for (; left > 0; left--, row += step) {
                const float *x = row;
                ADD_QUAD;
                ADD_QUAD;
            }
        }
        for (; left > 0; left--, row += step) {
            const float *x = row;
            int32_t quads = width;
            do {
                ADD_QUAD;
                quads -= 4;
            } while (quads > 0);
        }
        gw[0] += (a0 + a1) + (a2 + a3);
        gw[1] += (b0 + b1) + (b2 + b3);
        gw[2] += (c0 + c1) + (c2 + c3);
    }
#undef ADD_QUAD
}

#endif
