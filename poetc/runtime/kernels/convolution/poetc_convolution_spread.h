/* The second half of the packed gradient of the input: each product is added to the pixel that it belongs to.
 *
 * Layout: products are rows (c, kh, kw) by columns (n, oh, ow); pixels are [N, C, H, W].
 * Order of sums: one order whatever the way: bias, then the products of a pixel, rows of the output in ascending order.
 */
#ifndef POETC_CONVOLUTION_SPREAD_H
#define POETC_CONVOLUTION_SPREAD_H

#include "convolution/poetc_convolution_packed.h"

#if defined(POETC_MASKED)
#include <immintrin.h>
#endif

/* to += from */
static inline void add_to(float *to, const float *from, int32_t count)
{
#if POETC_FPU_M && POETC_LANES == 1
    for (; count >= 4; count -= 4)
        __asm__ volatile("vldmia %[from]!, {s16-s19}\n\tvldmia %[to], {s20-s23}\n\tvadd.f32 s20, s20, s16\n\t"
                         "vadd.f32 s21, s21, s17\n\tvadd.f32 s22, s22, s18\n\tvadd.f32 s23, s23, s19\n\t"
                         "vstmia %[to]!, {s20-s23}"
                         : [from] "+&r"(from), [to] "+&r"(to)
                         :
                         : "memory", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23");
#elif POETC_LANES > 1
    for (; count >= 4; count -= 4, to += 4, from += 4)
        poetc_f4_store(to, poetc_f4_add(poetc_f4_load(to), poetc_f4_load(from)));
#endif
    for (; count > 0; count--)
        *to++ += *from++;
}

#if POETC_FPU_M && POETC_LANES == 1
/* Three taps of a row of products, `step` floats apart, are added to the pixels of a row of the same width. Each pixel
 * is loaded and stored once. Where a tap has no product, -0 is added, which changes nothing. */
POETC_APART void add_threes(float *to, const float *from, ptrdiff_t step, int32_t width)
{
    const float *p = from + 1, *q = from + step, *r = q + step;
    int32_t blocks = width / 4 - 2;
    /* clang-format off */
#define ADD_FOUR(a, b, c, d) \
    "vadd.f32 s16, s16, s" #a "\n\tvadd.f32 s17, s17, s" #b "\n\tvadd.f32 s18, s18, s" #c "\n\tvadd.f32 s19, s19, s" #d "\n\t"
#define FOUR_PIXELS(first, third)                                                                                      \
    "vldmia %[p]!, {" first "}\n\tvldmia %[to], {s16-s19}\n\tvldmia %[q]!, {s24-s27}\n\tvldmia %[r]!, {" third "}\n\t"   \
    ADD_FOUR(20, 21, 22, 23) ADD_FOUR(24, 25, 26, 27) ADD_FOUR(28, 29, 30, 31) "vstmia %[to]!, {s16-s19}\n\t"
    __asm__ volatile("vmov s28, %[nothing]\n\t" FOUR_PIXELS("s20-s23", "s29-s31") "cmp %[blocks], #0\n\tbeq 2f\n"
                     "1:\t" FOUR_PIXELS("s20-s23", "s28-s31") "subs %[blocks], #1\n\tbne 1b\n"
                     "2:\tvmov s23, %[nothing]\n\t" FOUR_PIXELS("s20-s22", "s28-s31")
                     : [p] "+&r"(p), [q] "+&r"(q), [r] "+&r"(r), [to] "+&r"(to), [blocks] "+&r"(blocks)
                     : [nothing] "r"(INT32_MIN) /* the bits of -0 */
                     : "cc", "memory", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27",
                       "s28", "s29", "s30", "s31");
    /* clang-format on */
#undef FOUR_PIXELS
#undef ADD_FOUR
}
#endif

#if defined(POETC_MASKED)

/* As spread, of rows that the output shares with the image: a pixel's sum has the same order. */
POETC_APART void spread_masked(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                               float *gx)
{
    const int32_t taps = c->kernel_h * c->kernel_w, wide = c->width;
    const ptrdiff_t plane = (ptrdiff_t)c->height * wide, width = (ptrdiff_t)rows * wide;
    __mmask16 masks[MASKED_MOST];
    int32_t channel, r, end, kh, kw, i, lane, period = wide;
    while (period % 2 == 0 && wide / period < 16)
        period /= 2; /* masks that follow each other, until they repeat */
    for (kw = 0; kw < c->kernel_w; kw++) {
        const int32_t offset = kw * c->dilation_w - c->pad_left;
        for (i = 0; i < period; i++)
            for (masks[kw * period + i] = 0, lane = 0; lane < 16; lane++)
                if ((uint32_t)((16 * i + lane) % wide + offset) < (uint32_t)wide)
                    masks[kw * period + i] = (__mmask16)(masks[kw * period + i] | 1u << lane);
    }
    for (channel = 0; channel < channels; channel++, products += taps * width) {
        for (r = 0; r < rows; r = end) { /* rows of one image */
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            float *const to = gx + ((ptrdiff_t)image * c->channels + channel) * plane;
            end = poetc_min(rows, r + c->output_height - oh);
            for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                const int32_t down = kh * c->dilation_h - c->pad_top;
                const int32_t low = oh + down < 0 ? -down : oh, high = poetc_min(oh + end - r, c->height - down);
                for (kw = 0; kw < c->kernel_w; kw++) {
                    const __mmask16 *mask = masks + kw * period;
                    const float *from = products + (kh * c->kernel_w + kw) * width + (ptrdiff_t)(r + low - oh) * wide;
                    float *at = to + (ptrdiff_t)(low + down) * wide + kw * c->dilation_w - c->pad_left;
                    int32_t left = (high - low) * wide, next = 0;
                    for (; left > 0; left -= 16, from += 16, at += 16) {
                        const __mmask16 m = left < 16 ? (__mmask16)(mask[next] & ((1u << left) - 1u)) : mask[next];
                        if (++next == period)
                            next = 0;
                        _mm512_mask_storeu_ps(at, m,
                                              _mm512_add_ps(_mm512_maskz_loadu_ps(m, at),
                                                            _mm512_maskz_loadu_ps(m, from)));
                    }
                }
            }
        }
    }
}

static inline int spreads_masked(const convolution *c)
{
    return is_shifted(c) && c->kernel_w * c->width <= MASKED_MOST;
}

/* The same where columns are a stride apart: every so many lanes. */
POETC_APART void spread_apart(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                              float *gx)
{
    const int32_t taps = c->kernel_h * c->kernel_w, step = c->stride_w, most = (15 + step) / step;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    const int32_t first_image = row / c->output_height, first_row = row - first_image * c->output_height;
    int32_t channel, kh, kw, oh, ow, i;
    __mmask16 all = 0;
    for (i = 0; i < 16; i += step)
        all = (__mmask16)(all | 1u << i);
    for (channel = 0; channel < channels; channel++, products += taps * width) {
        for (kh = c->kernel_h - 1; kh >= 0; kh--) {
            const int32_t down = kh * c->dilation_h - c->pad_top;
            int32_t top, bottom;
            output_range(down, c->stride_h, c->height, c->output_height, &top, &bottom);
            for (kw = 0; kw < c->kernel_w; kw++) {
                const int32_t across = kw * c->dilation_w - c->pad_left;
                const float *from = products + (kh * c->kernel_w + kw) * width;
                float *to = gx + ((ptrdiff_t)first_image * c->channels + channel) * plane;
                int32_t begin = first_row, rest = rows, left, right;
                output_range(across, step, c->width, c->output_width, &left, &right);
                for (; rest > 0;
                     begin = 0,
                     to += c->channels * plane) { /* an image after the other: the last stored one is not read next */
                    const int32_t here = poetc_min(rest, c->output_height - begin),
                                  high = poetc_min(bottom, begin + here);
                    for (oh = top > begin ? top : begin; oh < high; oh++) {
                        const float *products_here = from + (ptrdiff_t)(oh - begin) * c->output_width;
                        float *at = to + (ptrdiff_t)(oh * c->stride_h + down) * c->width + across + left * step;
                        for (ow = left; ow < right; ow += most, at += most * step) {
                            const int32_t beyond = right - ow < most ? 16 - (right - ow) * step : 0;
                            const __mmask16 m = (__mmask16)(all & 0xffffu >> (beyond > 0 ? beyond : 0));
                            const __m512 product = _mm512_maskz_expandloadu_ps(m, products_here + ow);
                            _mm512_mask_storeu_ps(at, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, at), product));
                        }
                    }
                    rest -= here, from += (ptrdiff_t)here * c->output_width;
                }
            }
        }
    }
}

static inline int spreads_apart(const convolution *c)
{
    return c->stride_w > 1 && c->stride_w <= 4;
}

#else
#define spreads_masked(c) 0
#define spread_masked(c, products, channels, row, rows, gx) ((void)0)
#define spreads_apart(c) 0
#define spread_apart(c, products, channels, row, rows, gx) ((void)0)
#endif

#if defined(POETC_HELIUM)
/* As spread, of columns that follow each other: all rows that a tap reads at once. A pixel's sum has the same order. */
POETC_APART void spread_rows(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                             float *gx)
{
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    int32_t channel, r, end, kh, kw;
    for (channel = 0; channel < channels; channel++, products += c->kernel_h * c->kernel_w * width) {
        for (r = 0; r < rows; r = end) { /* rows of one image */
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            float *const pixels = gx + ((ptrdiff_t)image * c->channels + channel) * plane;
            end = poetc_min(rows, r + c->output_height - oh);
            for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                const int32_t down = kh * c->dilation_h - c->pad_top;
                int32_t top, bottom, offset = -c->pad_left;
                output_range(down, c->stride_h, c->height, c->output_height, &top, &bottom);
                top = top < oh ? oh : top, bottom = poetc_min(bottom, oh + end - r);
                for (kw = 0; kw < c->kernel_w && bottom > top; kw++, offset += c->dilation_w) {
                    const int32_t low = offset < 0 ? -offset : 0;
                    const int32_t count = poetc_min(c->output_width, c->width - offset) - low;
                    const int32_t taken = (count + 3) / 4 * 4;
                    const float *from =
                        products + (kh * c->kernel_w + kw) * width + (r + top - oh) * c->output_width + low;
                    float *to = pixels + (top * c->stride_h + down) * c->width + low + offset;
                    int32_t left = bottom - top;
                    if (count > 0) /* the hardware leaves out the lanes beyond the last */
                                   /* clang-format off */
                        __asm__ volatile("1:\tdlstp.32 lr, %[count]\n"
                                         "2:\tvldrw.u32 q0, [%[from]], #16\n\tvldrw.u32 q1, [%[to]]\n\tvadd.f32 q0, q1, q0\n\t"
                                         "vstrw.32 q0, [%[to]], #16\n\tletp lr, 2b\n\t"
                                         "add %[from], %[from], %[next_from]\n\tadd %[to], %[to], %[next_to]\n\t"
                                         "subs %[left], #1\n\tbne 1b"
                                         : [to] "+&r"(to), [from] "+&r"(from), [left] "+&r"(left)
                                         : [count] "r"(count), [next_from] "r"(4 * (c->output_width - taken)),
                                           [next_to] "r"(4 * (c->stride_h * c->width - taken))
                                         : "lr", "cc", "q0", "q1", "memory");
                                   /* clang-format on */
                }
            }
        }
    }
}
#endif

/* Add rows (c, kh, kw) of products, columns (n, oh, ow), to the pixels that they belong to. Rows of the output come in
 * ascending order, and taps in ascending order. So the order of a pixel's sum does not depend on the size of the block.
 */
POETC_APART void spread(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                        float *gx)
{
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    int32_t channel, r, kh, kw, ow;
#if POETC_FPU_M && POETC_LANES == 1
    const int in_threes = is_shifted(c) && c->kernel_w == 3 && c->dilation_w == 1 && c->pad_left == 1 &&
                          c->width >= 8 && c->width % 4 == 0;
#endif
    for (channel = 0; channel < channels; channel++) {
        for (r = 0; r < rows; r++) {
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            const float *from = products + channel * c->kernel_h * c->kernel_w * width + r * c->output_width;
            for (kh = 0; kh < c->kernel_h; kh++) {
                const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
                float *to = gx + ((ptrdiff_t)image * c->channels + channel) * plane + (ptrdiff_t)ih * c->width;
                if (ih < 0 || ih >= c->height) {
                    from += c->kernel_w * width;
                    continue;
                }
#if POETC_FPU_M && POETC_LANES == 1
                if (in_threes) {
                    add_threes(to, from, width, c->width);
                    from += 3 * width;
                    continue;
                }
#endif
                for (kw = 0; kw < c->kernel_w; kw++, from += width) {
                    const int32_t offset = kw * c->dilation_w - c->pad_left;
                    int32_t low, high;
                    if (c->stride_w == 1) {
                        low = offset < 0 ? -offset : 0;
                        high = poetc_min(c->output_width, c->width - offset);
                        add_to(to + low + offset, from + low, high - low);
                    } else {
                        output_range(offset, c->stride_w, c->width, c->output_width, &low, &high);
                        for (ow = low; ow < high; ow++)
                            to[ow * c->stride_w + offset] += from[ow];
                    }
                }
            }
        }
    }
}

static void spread_somehow(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                           float *gx)
{
#if defined(POETC_HELIUM)
    if (c->stride_w == 1) {
        spread_rows(c, products, channels, row, rows, gx);
        return;
    }
#endif
    if (spreads_masked(c))
        spread_masked(c, products, channels, row, rows, gx);
    else if (spreads_apart(c))
        spread_apart(c, products, channels, row, rows, gx);
    else
        spread(c, products, channels, row, rows, gx);
}

#endif
