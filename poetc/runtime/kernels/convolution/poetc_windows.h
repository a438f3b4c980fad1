/* Windows of the image for the packed gradient of a convolution's weight: a window holds the terms that one pixel of
 * the output adds.
 *
 * Layout: windows are packed into panels of poetc_gemm.h, straight from the image or from strips of it with zeros
 * around them.
 * Order of sums: nothing is added here. */
#ifndef POETC_WINDOWS_H
#define POETC_WINDOWS_H

#include "convolution/poetc_convolution_packed.h"
#include "operators/poetc_norm.h"

/* The operators on pixels on their way in: the batch norm of each channel, the activation. By functions, so that only
 * kernels that do so bring their code along. */
typedef struct prologue {
    /* Of channels, from the group's first on: centres; factors and shifts `third` and twice that beyond. */
    const float *table;
    int32_t third;
    int32_t activation;
    const float *p;
    void (*strip)(const struct prologue *n, int32_t channel, float *to, const float *plane, const convolution *c,
                  int32_t first, int32_t count, int32_t columns);
    void (*panels)(const struct prologue *n, int32_t channel, const poetc_gemm_space *space, int32_t columns,
                   int32_t depth);
} prologue;

/* `count` rows of a channel's plane from row `first` on, with zeros beside the image, as many columns as windows reach
 * over. */
static void copy_padded(float *to, const float *plane, const convolution *c, int32_t first, int32_t count,
                        int32_t columns)
{
    const int32_t begin = clip(c->pad_left, 0, columns), end = clip(c->width + c->pad_left, begin, columns);
    int32_t row;
    for (row = first; row < first + count; row++, to += columns) {
        if (row < 0 || row >= c->height) {
            poetc_put_piece(to, NULL, 1, columns);
        } else {
            const float *from = plane + (ptrdiff_t)row * c->width + begin - c->pad_left;
            float *at = to + begin;
            int32_t left = end - begin;
            poetc_put_piece(to, NULL, 1, begin);
#if POETC_LANES == 1
            for (; left >= 4; left -= 4)
                POETC_COPY_FOUR(at, from);
#endif
            poetc_put_piece(at, from, 1, left);
            poetc_put_piece(to + end, NULL, 1, columns - end);
        }
    }
}

/* ConvGradWeight's b: rows (n, oh, ow) [first, first + depth), columns (c, kh, kw) [column, column + columns). */
#if POETC_GEMM_COLUMNS == 4
#include "convolution/poetc_windows_four.h"
#else

/* Windows of `count` rows of pixels of one channel, from a strip without edges. `to` is the first row's panel row. The
 * first of the wanted pixels is column `ow` of the first row, and there are `pixels` of them. */
typedef struct {
    const float *strip;
    int32_t width; /* of the strip */
    int32_t ow, pixels;
} window_strip;

/* `run` taps of a row of the window, side by side. Four at once may spill over the run: into lanes that the next run
 * fills. */
static inline void put_windows(const convolution *c, const window_strip *s, int32_t kh, int32_t kw, int32_t run,
                               int spill, float *to)
{
    const float *row = s->strip + (ptrdiff_t)kh * c->dilation_h * s->width + kw * c->dilation_w;
    int32_t ow = s->ow, left = s->pixels, i;
    for (; left > 0; row += (ptrdiff_t)c->stride_h * s->width, ow = 0) {
        const float *from = row + ow * c->stride_w;
        int32_t count = poetc_min(c->output_width - ow, left);
        left -= count;
        if (spill) {
            POETC_UNROLL_4
            for (; count > 0; count--, from += c->stride_w, to += COLUMNS)
                poetc_f4_store(to, poetc_f4_load(from));
        } else if (run == 1) {
            POETC_UNROLL_4
            for (; count > 0; count--, from += c->stride_w, to += COLUMNS)
                to[0] = from[0];
        } else {
            for (; count > 0; count--, from += c->stride_w, to += COLUMNS)
                for (i = 0; i < run; i++)
                    to[i] = from[i * c->dilation_w];
        }
    }
}

static inline int32_t strip_width(const convolution *c)
{
    return (c->output_width - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1;
}

/* Rows of the output whose windows a strip of `size` floats holds. */
static inline int32_t strip_rows(const convolution *c, int32_t size)
{
    const int32_t room = size < 4 ? -1 : (size - 4) / strip_width(c) - (c->kernel_h - 1) * c->dilation_h - 1;
    return room < 0 ? 0 : room / c->stride_h + 1;
}

/* By a strip with room for `held` rows of the output: rows of the image with zeros around them. */
POETC_APART void pack_strips(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns, float *strip, int32_t held,
                             const prologue *n)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const int32_t reach = (c->kernel_h - 1) * c->dilation_h, width = strip_width(c);
    window_strip s = {strip, width, 0, 0};
    int32_t k, at, run;
    for (k = 0; k < depth; k += s.pixels) {
        const int32_t image = (first + k) / pixels, pixel = first + k - image * pixels, oh = pixel / c->output_width;
        int32_t channel = -1;
        s.ow = pixel - oh * c->output_width;
        s.pixels = poetc_min(poetc_min(depth - k, pixels - pixel), held * c->output_width - s.ow);
        for (at = 0; at < columns; at += run) { /* the taps of one row of a window inside one panel */
            const int32_t here = (column + at) / taps, tap = column + at - here * taps, kh = tap / c->kernel_w;
            const int32_t kw = tap - kh * c->kernel_w, lane = at % COLUMNS;
            float *to = poetc_gemm_panel(space, at, depth) + (ptrdiff_t)k * COLUMNS + lane;
            run = poetc_min(poetc_min(c->kernel_w - kw, columns - at), COLUMNS - lane);
            if (here != channel) {
                const int32_t rows = (s.ow + s.pixels + c->output_width - 1) / c->output_width;
                const float *plane = x + (image * (ptrdiff_t)c->channels + here) * c->height * c->width;
                const int32_t top = oh * c->stride_h - c->pad_top, taken = (rows - 1) * c->stride_h + reach + 1;
                channel = here;
                if (n)
                    n->strip(n, here, strip, plane, c, top, taken, width);
                else
                    copy_padded(strip, plane, c, top, taken, width);
            }
            put_windows(c, &s, kh, kw, run, c->dilation_w == 1 && run > 1 && run <= 4 && lane + 4 <= COLUMNS, to);
        }
    }
    for (at = columns; at % COLUMNS; at++)
        for (k = 0; k < depth; k++)
            poetc_gemm_panel(space, at, depth)[(ptrdiff_t)k * COLUMNS + at % COLUMNS] = 0.0f;
}

/* Without one, or where rows are too wide for it. */
POETC_APART void pack_windows(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                              int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    int32_t at = 0, k, i, j;
    while (at < columns) { /* the taps of one row of a window inside one panel */
        const int32_t channel = (column + at) / taps, tap = column + at - channel * taps;
        const int32_t kh = tap / c->kernel_w, kw = tap - kh * c->kernel_w, lane = at % COLUMNS;
        const int32_t run = poetc_min(poetc_min(c->kernel_w - kw, columns - at), COLUMNS - lane);
        const int32_t offset = kw * c->dilation_w - c->pad_left;
        /* Four at once may spill over the run: into lanes that the next run fills. */
        const int spill = c->dilation_w == 1 && run < 4 && lane + 4 <= COLUMNS && run > 1;
        float *to = poetc_gemm_panel(space, at, depth) + lane;
        int32_t low, high, other, image = first / pixels, pixel = first - image * pixels;
        int32_t oh = pixel / c->output_width, ow = pixel - oh * c->output_width;
        output_range(offset, c->stride_w, c->width, c->output_width, &low, &other);
        output_range(offset + (run - 1) * c->dilation_w, c->stride_w, c->width, c->output_width, &other, &high);
        for (k = 0; k < depth;) { /* one row of the output */
            const int32_t end = poetc_min(c->output_width, ow + depth - k);
            const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
            const float *row =
                x + (image * (ptrdiff_t)c->channels + channel) * plane + (ptrdiff_t)ih * c->width + offset;
            const int inside = ih >= 0 && ih < c->height;
            const int last = image == c->batch - 1 && ih == c->height - 1; /* nothing may be read beyond it */
            k += end - ow;
            for (; ow < end; ow++, to += COLUMNS) {
                const float *from = row + (ptrdiff_t)ow * c->stride_w;
                if (!inside) {
                    for (i = 0; i < run; i++)
                        to[i] = 0.0f;
                } else if (ow >= low && ow < high) {
                    if (run == 1)
                        to[0] = from[0];
                    else if (spill && !last)
                        poetc_f4_store(to, poetc_f4_load(from));
                    else
                        for (i = 0; i < run; i++)
                            to[i] = from[(ptrdiff_t)i * c->dilation_w];
                } else {
                    for (i = 0; i < run; i++) {
                        const int32_t iw = ow * c->stride_w + offset + i * c->dilation_w;
                        to[i] = iw >= 0 && iw < c->width ? from[(ptrdiff_t)i * c->dilation_w] : 0.0f;
                    }
                }
            }
            ow = 0;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
        at += run;
    }
    for (; at % COLUMNS; at++) {
        float *to = poetc_gemm_panel(space, at, depth) + at % COLUMNS;
        for (j = 0; j < depth; j++)
            to[(ptrdiff_t)j * COLUMNS] = 0.0f;
    }
}

#endif

#endif
