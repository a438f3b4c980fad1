/* Depthwise convolution and its gradient under any filter: the loops for shapes that have none of their own.
 *
 * Layout: strips of poetc_depthwise.h.
 * Order of sums: that of depthwise.c. */
#ifndef POETC_DEPTHWISE_ANY_H
#define POETC_DEPTHWISE_ANY_H

#include "depthwise/poetc_depthwise.h"

/* `width` pixels of one row of the result under any filter. */
static void correlate(const filter *f, const float *from, int32_t width)
{
    int32_t at, kh, kw;
    for (at = 0; at < width; at += LANES) {
        const int32_t p = at + LANES > width ? width - LANES : at;
        const float *row = from + p;
        SUMS(a, f->bias);
        for (kh = 0; kh < f->kernel_h; kh++, row += (ptrdiff_t)f->down * f->s->row) {
            const float *w = f->weight + kh * f->row_step;
            for (kw = 0; kw < f->kernel_w; kw++, w += f->step) {
                const float *tap = row + tap_column(f->s, kw * f->across);
                TAP(v, tap);
                ADD(a, v, *w);
            }
        }
        if (f->y_step == 1) {
            PUT(f->y + p, a);
        } else {
            float pixels[LANES];
            PUT(pixels, a);
            put_pixels(pixels, f->y + (ptrdiff_t)p * f->y_step, f->y_step, LANES);
        }
    }
}

static float correlate_pixel(const filter *f, const float *from, int32_t p)
{
    float sum = f->bias;
    int32_t kh, kw;
    for (kh = 0; kh < f->kernel_h; kh++)
        for (kw = 0; kw < f->kernel_w; kw++)
            sum = POETC_FMA(from[(ptrdiff_t)kh * f->down * f->s->row + tap_column(f->s, kw * f->across) + p],
                            f->weight[kh * f->row_step + kw * f->step], sum);
    return sum;
}

#if POETC_LANES > 4
static void correlate_four(const filter *f, const float *from, int32_t p)
{
    poetc_f4 sum = poetc_f4_set(f->bias, f->bias, f->bias, f->bias);
    float pixels[4];
    int32_t kh, kw;
    for (kh = 0; kh < f->kernel_h; kh++)
        for (kw = 0; kw < f->kernel_w; kw++)
            sum = poetc_f4_add_scaled(sum,
                                      poetc_f4_load(from + (ptrdiff_t)kh * f->down * f->s->row +
                                                    tap_column(f->s, kw * f->across) + p),
                                      f->weight[kh * f->row_step + kw * f->step]);
    poetc_f4_store(pixels, sum);
    put_pixels(pixels, f->y + (ptrdiff_t)p * f->y_step, f->y_step, 4);
}
#endif

/* `rows` rows of the result under any filter, each as far as there are pixels. */
POETC_APART void correlate_any(const filter *of, float *from, int32_t rows, int32_t stride_h)
{
    filter f = *of;
    for (; rows > 0; rows--, f.y += f.y_row, from += (ptrdiff_t)stride_h * f.s->row) {
        int32_t p = 0;
#if defined(POETC_SOFT_FLOAT) /* no blocks that overlap: every operation counts */
        p = f.width / LANES * LANES;
        correlate(&f, from, p);
#else
        if (f.width >= LANES) {
            correlate(&f, from, f.width);
            continue;
        }
#endif
#if POETC_LANES > 4
        for (; p + 4 <= f.width; p += 4)
            correlate_four(&f, from, p);
#endif
        for (; p < f.width; p++)
            f.y[p * f.y_step] = correlate_pixel(&f, from, p);
    }
}

/* Sums of one strip, added to gw: kernel_h x kernel_w taps from (first_h, first_w) on. `gy` has rows of `width` floats,
 * a multiple of 4, zeros at their ends. */
#if POETC_LANES == 1
/* A row of at most three taps at a time: the sums stay in registers. */
#define TAPS_H 1
POETC_INLINE void add_taps(const strip *s, const convolution *c, const float *gy, int32_t width, int32_t rows,
                           const int32_t kernel_h, const int32_t kernel_w, int32_t first_h, int32_t first_w, float *gw)
{
    float sums[3][4];
    const float *x[3];
    int32_t r, i, kw;
    (void)kernel_h;
    POETC_UNROLL_3
    for (kw = 0; kw < kernel_w; kw++)
        sums[kw][0] = sums[kw][1] = sums[kw][2] = sums[kw][3] = 0.0f;
    for (r = 0; r < rows; r++) {
        const float *from = s->data + ((ptrdiff_t)r * c->stride_h + first_h * c->dilation_h) * s->row;
        POETC_UNROLL_3
        for (kw = 0; kw < kernel_w; kw++)
            x[kw] = from + tap_column(s, (first_w + kw) * c->dilation_w);
        for (i = width; i > 0; i -= 4) {
            POETC_QUAD(g);
            POETC_QUAD(v);
            POETC_LOAD_QUAD_A(g, gy);
            POETC_UNROLL_3
            for (kw = 0; kw < kernel_w; kw++) {
                POETC_LOAD_QUAD_B(v, x[kw]);
                POETC_MULTIPLY_ADD_4(sums[kw][0], sums[kw][1], sums[kw][2], sums[kw][3], g0, v0, g1, v1, g2, v2, g3,
                                     v3);
            }
        }
    }
    POETC_UNROLL_3
    for (kw = 0; kw < kernel_w; kw++)
        gw[kw] += (sums[kw][0] + sums[kw][1]) + (sums[kw][2] + sums[kw][3]);
}
#else
#if defined(POETC_HELIUM)
#define TAPS_H 1
#else
#define TAPS_H 3
#endif
POETC_INLINE void add_taps(const strip *s, const convolution *c, const float *gy, int32_t width, int32_t rows,
                           const int32_t kernel_h, const int32_t kernel_w, int32_t first_h, int32_t first_w, float *gw)
{
    poetc_f4 sums[9];
    int32_t r, i, kh, kw;
    POETC_UNROLL_9
    for (i = 0; i < kernel_h * kernel_w; i++)
        sums[i] = POETC_F4_ZERO;
    for (r = 0; r < rows; r++, gy += width) {
        const float *from = s->data + ((ptrdiff_t)r * c->stride_h + first_h * c->dilation_h) * s->row;
        for (i = 0; i < width; i += 4) {
            const poetc_f4 g = poetc_f4_load(gy + i);
            POETC_UNROLL_3
            for (kh = 0; kh < kernel_h; kh++) {
                POETC_UNROLL_9
                for (kw = 0; kw < kernel_w; kw++) {
                    const float *x = from + (ptrdiff_t)kh * c->dilation_h * s->row +
                                     tap_column(s, (first_w + kw) * c->dilation_w) + i;
                    sums[kh * kernel_w + kw] = poetc_f4_add_product(sums[kh * kernel_w + kw], g, poetc_f4_load(x));
                }
            }
        }
    }
    POETC_UNROLL_9
    for (i = 0; i < kernel_h * kernel_w; i++)
        gw[i] += poetc_f4_total(sums[i]);
}
#endif

#if defined(POETC_HELIUM)
/* The same of a line of five taps that lie side by side, or in turn in a strip of two phases. */
#define NEXT_TAP(sum, x, offset) "vldrw.u32 %q[p], [%[" x "], #4*(" offset ")]\n\tvfma.f32 %q[" sum "], %q[g], %q[p]\n\t"
#define QUADS_OF_FIVE(apart)                                                                                           \
    __asm__("dls lr, %[n]\n1:\tvldrw.u32 %q[g], [%[gy]], #16\n\t" NEXT_TAP("a", "near", "0") NEXT_TAP("b", "far", "0") \
                NEXT_TAP("c", "near", apart) NEXT_TAP("d", "far", apart) NEXT_TAP("e", "near", "2*" apart)             \
            "adds %[near], #16\n\tadds %[far], #16\n\tle lr, 1b"                                                      \
            : [a] "+w"(a), [b] "+w"(b), [c] "+w"(third), [d] "+w"(d), [e] "+w"(e), [g] "=&w"(g), [p] "=&w"(p),             \
              [near] "+l"(near), [far] "+l"(far), [gy] "+r"(gy)                                                        \
            : [n] "r"(width / 4)                                                                                       \
            : "lr", "cc", "memory")

static int has_five_taps(const strip *s, const convolution *c)
{
    return c->kernel_w == 5 && c->dilation_w == 1 && s->phases <= 2;
}

POETC_APART void add_five_taps(const strip *s, const convolution *c, const float *gy, int32_t width, int32_t rows,
                               int32_t line, float *gw)
{
    const float *near = s->data + (ptrdiff_t)line * c->dilation_h * s->row, *far = near + tap_column(s, 1);
    const ptrdiff_t next = (ptrdiff_t)c->stride_h * s->row - width;
    poetc_f4 a = POETC_F4_ZERO, b = a, third = a, d = a, e = a, g, p;
    for (; rows > 0; rows--, near += next, far += next) {
        if (s->phases == 1)
            QUADS_OF_FIVE("2");
        else
            QUADS_OF_FIVE("1");
    }
    gw[0] += poetc_f4_total(a), gw[1] += poetc_f4_total(b), gw[2] += poetc_f4_total(third);
    gw[3] += poetc_f4_total(d), gw[4] += poetc_f4_total(e);
}
#undef QUADS_OF_FIVE
#undef NEXT_TAP
#endif

#endif
