/* Depthwise convolution in vectors.
 *
 * Layout: lanes lie along the rows of the result, and strips hold the image.
 * Order of sums: that of depthwise.c. */
#ifndef POETC_DEPTHWISE_VECTORS_H
#define POETC_DEPTHWISE_VECTORS_H

#include "depthwise/poetc_depthwise.h"

#define GATHERS(kernel_h, kernel_w) ((kernel_h) == 3 && (kernel_w) == 3)

/* One or two (a constant) rows of the result under a 3 x 3 filter. Two rows, whose windows lie one row apart, share
 * their loads. The last block of a row may overlap the one before, with the same values. */
POETC_INLINE void correlate_3x3(const filter *f, const float *from, const int rows)
{
    const ptrdiff_t row = (ptrdiff_t)f->down * f->s->row;
    const ptrdiff_t column[3] = {0, tap_column(f->s, f->across), tap_column(f->s, 2 * f->across)};
    const float bias = f->bias;
    const int32_t width = f->width;
    float w[9], *result = f->y;
    int32_t at, r, i;
    load_weights(f, 3, 3, w);
    for (at = 0; at < width; at += LANES) {
        const int32_t p = at + LANES > width ? width - LANES : at;
        const float *x = from + p;
        float *y = result + p;
        SUMS(a, bias);
        SUMS(b, bias);
        POETC_UNROLL_4
        for (r = 0; r < rows + 2; r++, x += row) {
            POETC_UNROLL_3
            for (i = 0; i < 3; i++) {
                const float *tap = x + column[i];
                TAP(v, tap);
                if (r < 3)
                    ADD(a, v, w[3 * r + i]);
                if (rows == 2 && r > 0)
                    ADD(b, v, w[3 * (r - 1) + i]);
            }
        }
        PUT(y, a);
        if (rows == 2)
            PUT(y + width, b);
    }
}
/* `rows` rows under a 3 x 3 filter without strides and dilation: the strip is one long row of which the results take
 * the place. Then their rows are copied, without the gaps. For rows that do not fill vectors. */
static void correlate_tiles(const filter *f, float *from, int32_t rows)
{
    const int32_t row = f->s->row, width = f->width;
    float w[9], *put = from;
    int32_t count, i;
    load_weights(f, 3, 3, w);
    for (count = (rows - 1) * row + width; count > 0; count -= LANES, put += LANES) {
        SUMS(a, f->bias);
        POETC_UNROLL_3
        for (i = 0; i < 3; i++) {
            TAP(u, put + (ptrdiff_t)i * row);
            TAP(v, put + (ptrdiff_t)i * row + 1);
            TAP(x, put + (ptrdiff_t)i * row + 2);
            ADD(a, u, w[3 * i]);
            ADD(a, v, w[3 * i + 1]);
            ADD(a, x, w[3 * i + 2]);
        }
        PUT(put, a);
    }
    copy_rows(f->y, width, from, row, rows, width);
}

#if defined(POETC_HELIUM)
/* `rows` rows under any filter of up to FEW_TAPS columns, `taps` (a constant wherever this is inlined), eight pixels at
 * a time. In poetc_depthwise_any.h the compiler would spend Helium's few core registers on addresses. */
#define FEW_TAPS 5
POETC_INLINE void correlate_eights(const filter *f, const float *from, int32_t rows, int32_t stride_h, const int taps)
{
    const ptrdiff_t row = f->s->row, down = (ptrdiff_t)f->down * row;
    const uint32x4_t put = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)f->y_step);
    ptrdiff_t column[FEW_TAPS];
    float *y = f->y;
    int32_t at, kh, kw;
    for (kw = 0; kw < taps; kw++)
        column[kw] = tap_column(f->s, kw * f->across);
    for (; rows > 0; rows--, from += stride_h * row, y += f->y_row) {
        for (at = 0; at < f->width; at += 8) {
            const float *line = from + at, *w = f->weight;
            float32x4_t low = vdupq_n_f32(f->bias), high = low;
            float *to = y + at * f->y_step;
            for (kh = f->kernel_h; kh > 0; kh--, line += down, w += f->row_step) {
                POETC_UNROLL_9
                for (kw = 0; kw < taps; kw++) {
                    const float *const x = line + column[kw], factor = w[kw * f->step];
                    low = vfmaq_n_f32(low, vld1q_f32(x), factor), high = vfmaq_n_f32(high, vld1q_f32(x + 4), factor);
                }
            }
            vstrwq_scatter_offset_p_f32(to, put, low, vctp32q((uint32_t)(f->width - at)));
            if (f->width - at > 4)
                vstrwq_scatter_offset_p_f32(to + 4 * f->y_step, put, high, vctp32q((uint32_t)(f->width - at) - 4));
        }
    }
}

/* Lines of five taps for eight pixels. `near` and `far` are the first and the second tap. The others lie `apart` floats
 * behind them in turn. */
#define TAP_OF_EIGHT(at, apart, w)                                                                                     \
    "vldrw.u32 %q[u], [%[" at "], #4*(" apart ")]\n\tvldrw.u32 %q[v], [%[" at "], #4*(4+" apart ")]\n\t"                \
    "vfma.f32 %q[low], %q[u], " w "\n\tvfma.f32 %q[high], %q[v], " w "\n\t"
#define LINES_OF_FIVE(apart)                                                                                           \
    __asm__("wls lr, %[lines], 2f\n1:\tldmia %[w]!, {r4, r5, r6, r8, r9}\n\t" TAP_OF_EIGHT("near", "0", "r4")               \
            TAP_OF_EIGHT("far", "0", "r5") TAP_OF_EIGHT("near", apart, "r6") TAP_OF_EIGHT("far", apart, "r8")          \
            TAP_OF_EIGHT("near", "2*" apart, "r9")                                                                     \
            "add %[near], %[near], %[down]\n\tadd %[far], %[far], %[down]\n\tle lr, 1b\n2:"                                 \
            : [near] "+r"(near), [far] "+r"(far), [w] "+r"(w), [low] "+w"(low), [high] "+w"(high), [u] "=&w"(u),       \
              [v] "=&w"(v)                                                                                             \
            : [lines] "r"(f->kernel_h), [down] "r"(4 * down)                                                           \
            : "r4", "r5", "r6", "r8", "r9", "lr", "memory")

POETC_APART void correlate_five_taps(const filter *f, const float *from, int32_t rows, int32_t stride_h)
{
    const ptrdiff_t row = f->s->row, down = (ptrdiff_t)f->down * row, second = tap_column(f->s, f->across);
    const uint32x4_t put = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)f->y_step);
    float weights[5 * 5], *y = f->y;
    int32_t at;
    load_weights(f, f->kernel_h, 5, weights);
    for (; rows > 0; rows--, from += stride_h * row, y += f->y_row) {
        for (at = 0; at < f->width; at += 8) {
            const float *near = from + at, *far = near + second, *w = weights;
            float32x4_t low = vdupq_n_f32(f->bias), high = low, u, v;
            float *to = y + at * f->y_step;
            if (f->s->phases == 1)
                LINES_OF_FIVE("2");
            else
                LINES_OF_FIVE("1");
            vstrwq_scatter_offset_p_f32(to, put, low, vctp32q((uint32_t)(f->width - at)));
            if (f->width - at > 4)
                vstrwq_scatter_offset_p_f32(to + 4 * f->y_step, put, high, vctp32q((uint32_t)(f->width - at) - 4));
        }
    }
}
#undef LINES_OF_FIVE
#undef TAP_OF_EIGHT

POETC_APART void correlate_few_taps(const filter *f, const float *from, int32_t rows, int32_t stride_h)
{
    correlate_eights(f, from, rows, stride_h, f->kernel_w);
}
#endif

/* `rows` rows of a result, if there are loops for it; returns whether there are. */
static int correlate_fast(const filter *f, float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    filter g = *f;
    (void)stride_w;
    if (f->kernel_h != 3 || f->kernel_w != 3 || f->y_step != 1 || f->y_row != f->width) {
#if defined(POETC_HELIUM)
        if (f->kernel_w == 5 && f->kernel_h <= 5 && f->across == 1 && f->s->phases <= 2)
            correlate_five_taps(f, from, rows, stride_h);
        else if (f->kernel_w <= 5)
            correlate_few_taps(f, from, rows, stride_h);
        return f->kernel_w <= 5;
#else
        return 0;
#endif
    }
    if (stride_h == 1 && f->s->phases == 1 && f->down == 1 && f->across == 1 && f->width % LANES != 0 &&
        f->width < 3 * LANES &&
        f->width + LANES + 1 <= f->s->row + f->s->slack) { /* the last vector stays inside the strip */
        correlate_tiles(f, from, rows);
        return 1;
    }
    if (f->width < LANES)
        return 0;
    for (; stride_h == 1 && f->down == 1 && rows >= 2; rows -= 2, from += 2 * f->s->row, g.y += 2 * f->width)
        correlate_3x3(&g, from, 2);
    for (; rows > 0; rows--, from += (ptrdiff_t)stride_h * f->s->row, g.y += f->width)
        correlate_3x3(&g, from, 1);
    return 1;
}

/* The gradient of the input under a 3 x 3 filter and strides of two: every other row of gx, of one tap or two. They
 * begin with the row of gy that the first of them reads. Columns take one tap and two in turn, the first of them two if
 * `twice`. Eight columns at a time. */
POETC_INLINE void gather_lines(const filter *f, const float *g, const int taps, const int twice, float *y, int32_t rows)
{
    const poetc_f4 start = poetc_f4_set(f->bias, f->bias, f->bias, f->bias);
    const float *w = f->weight + (taps == 2 ? 6 : 3), *u = f->weight;
    const ptrdiff_t row = f->s->row;
    int32_t left, i;
    for (; rows > 0; rows--, g += row, y += 2 * f->width) {
        const float *from = g;
        float *to = y;
        for (left = f->width; left > 0; left -= 8, from += 4, to += 8) {
            poetc_f4 a = poetc_f4_load(from), b = poetc_f4_load(from + 1);
            poetc_f4 one = poetc_f4_add_scaled(start, twice ? b : a, w[1]);
            poetc_f4 two = poetc_f4_add_scaled(poetc_f4_add_scaled(start, a, w[2]), b, w[0]);
            float rest[8];
            if (taps == 2) {
                a = poetc_f4_load(from + row), b = poetc_f4_load(from + row + 1);
                one = poetc_f4_add_scaled(one, twice ? b : a, u[1]);
                two = poetc_f4_add_scaled(poetc_f4_add_scaled(two, a, u[2]), b, u[0]);
            }
            a = twice ? two : one, b = twice ? one : two;
            poetc_f4_interleave(&a, &b);
            if (left >= 8) {
                poetc_f4_store(to, a), poetc_f4_store(to + 4, b);
                continue;
            }
            poetc_f4_store(rest, a), poetc_f4_store(rest + 4, b);
            for (i = 0; i < left; i++)
                to[i] = rest[i];
        }
    }
}

#endif
