/* Convolution and its gradients without packing their pixels: what the packing kernels do (same sums in the same order,
 * same workspace), for AVX-512 and its 32 registers. Where windows overlap and few results share what would be packed,
 * reading a strip of a padded image at one offset a tap is cheaper.
 *
 * A piece is LANES results side by side in one row; results beyond the row are computed and dropped. */
#ifndef POETC_DIRECT_H
#define POETC_DIRECT_H

#include "poetc_convolution.h"
#include "poetc_gemm.h"

#if POETC_LANES == 16
#define POETC_DIRECT 1

#define DIRECT_LANES POETC_LANES
#define DIRECT_MOST 24 /* vectors of sums */

typedef int32_t direct_mask __attribute__((vector_size(4 * POETC_LANES)));

/* Rows [first, first + rows) of `channels` planes (those outside are zeros), from column `left` on, `columns` of them (those
 * outside are zeros), side by side; then zeros for a vector that reads on. */
POETC_APART void copy_strip(float *to, const float *from, int32_t channels, int32_t height, int32_t width, int32_t first,
                            int32_t rows, int32_t left, int32_t columns)
{
    const int32_t begin = left < 0 ? poetc_min(-left, columns) : 0;
    const int32_t end = width - left < columns ? (width - left > begin ? width - left : begin) : columns;
    int32_t channel, row;
    for (channel = 0; channel < channels; channel++, from += (ptrdiff_t)height * width) {
        for (row = first; row < first + rows; row++, to += columns) {
            if (row < 0 || row >= height) {
                poetc_put_piece(to, NULL, 1, columns);
                continue;
            }
            poetc_put_piece(to, NULL, 1, begin);
            poetc_put_piece(to + begin, from + (ptrdiff_t)row * width + left + begin, 1, end - begin);
            poetc_put_piece(to + end, NULL, 1, columns - end);
        }
    }
    poetc_put_piece(to, NULL, 1, DIRECT_LANES);
}

typedef struct {
    const float *a; /* a[row * a_row + k * a_k] */
    ptrdiff_t a_row, a_k;
    const float *b[4]; /* of each piece; of term k: b[piece] + offset[k] */
    const int32_t *offset;
    int32_t terms, depth; /* in blocks of `depth` */
    const float *bias;    /* of row 0, or NULL */
    float *tile;          /* [rows][vectors][LANES] */
} direct_task;

/* A block of `rows` results for each of `vectors` pieces: constants wherever this is inlined. */
POETC_INLINE void direct_block(const int rows, const int vectors, const direct_task *t, const ptrdiff_t a_k)
{
    const ptrdiff_t a_row = t->a_row;
    const int32_t terms = t->terms;
    const int32_t *offset = t->offset;
    const float *a = t->a, *b[4];
    int32_t first;
    int i, j;
    POETC_UNROLL
    for (j = 0; j < vectors; j++)
        b[j] = t->b[j];
    for (first = 0; first < terms; first += t->depth) {
        poetc_vector sum[DIRECT_MOST];
        int32_t k = poetc_min(t->depth, terms - first);
        _Pragma("GCC unroll 24")
        for (i = 0; i < rows; i++) {
            _Pragma("GCC unroll 24")
            for (j = 0; j < vectors; j++) {
                sum[i * vectors + j] = (poetc_vector){0};
                if (t->bias && first == 0)
                    sum[i * vectors + j] += t->bias[i];
            }
        }
        for (; k > 0; k--, a += a_k, offset++) {
            _Pragma("GCC unroll 24")
            for (i = 0; i < rows; i++) {
                _Pragma("GCC unroll 24")
                for (j = 0; j < vectors; j++)
                    POETC_ADD_SCALED(sum[i * vectors + j], poetc_vector_load(b[j] + *offset), a[i * a_row]);
            }
        }
        _Pragma("GCC unroll 24")
        for (i = 0; i < rows * vectors; i++) {
            float *at = t->tile + i * DIRECT_LANES;
            poetc_vector_store(at, first ? poetc_vector_load(at) + sum[i] : sum[i]);
        }
    }
}

#define DEFINE_DIRECT(ROWS, VECTORS)                                                                                   \
    static void direct_##ROWS##_##VECTORS(const direct_task *t)                                                        \
    {                                                                                                                  \
        if (t->a_k == 1)                                                                                               \
            direct_block(ROWS, VECTORS, t, 1);                                                                         \
        else                                                                                                           \
            direct_block(ROWS, VECTORS, t, t->a_k);                                                                    \
    }
DEFINE_DIRECT(12, 2)
DEFINE_DIRECT(8, 2)
DEFINE_DIRECT(6, 4)
DEFINE_DIRECT(4, 4)
DEFINE_DIRECT(2, 4)
DEFINE_DIRECT(1, 4)
#undef DEFINE_DIRECT

/* The block for `left` rows: its rows and, if there are so many pieces, vectors. */
static int32_t direct_shape(int32_t left, int *vectors)
{
    *vectors = left >= 8 ? 2 : 4;
    return left >= 12 && left != 16 ? 12 : left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static void direct_run(int32_t rows, const direct_task *t)
{
    switch (rows) {
    case 12: direct_12_2(t); break;
    case 8: direct_8_2(t); break;
    case 6: direct_6_4(t); break;
    case 4: direct_4_4(t); break;
    case 2: direct_2_4(t); break;
    default: direct_1_4(t); break;
    }
}

static inline int32_t direct_pieces(int32_t columns)
{
    return (columns + DIRECT_LANES - 1) / DIRECT_LANES;
}

/* Whether reading pieces costs less than packing: pieces of a row hold lanes for nothing, packed columns are shared by few
 * rows. */
static inline int direct_pays(int32_t columns, int32_t rows)
{
    return direct_pieces(columns) * DIRECT_LANES * rows < columns * (rows + 24);
}

/* Conv; returns whether it was done: it must pay, and its strip fit the workspace. */
POETC_APART int direct_conv(const convolution *c, const float *x, const float *w, const float *bias, float *y,
                            float *workspace, int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t terms = inputs * taps, pieces = direct_pieces(c->output_width);
    const int32_t row = c->output_width + (c->kernel_w - 1) * c->dilation_w, reach = (c->kernel_h - 1) * c->dilation_h;
    const int32_t room = (size - 1 - terms - DIRECT_LANES) / (inputs * row) - reach - 1;
    const int32_t held = poetc_min(c->output_height, room < 0 ? 0 : room / c->stride_h + 1); /* rows of y at a time */
    int32_t *offset = (int32_t *)workspace;
    float *strip = workspace + terms, tile[DIRECT_MOST * DIRECT_LANES];
    int32_t group, n, oh, o, rows, at, i, j, k;
    if (c->stride_w != 1 || room < 0 || !direct_pays(c->output_width, outputs))
        return 0;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs) * c->height * c->width;
            const float *filters = w + (ptrdiff_t)group * outputs * terms;
            float *result = y + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * c->output_width;
            for (oh = POETC_BEGIN(c->share, c->output_height, 1); oh < POETC_END(c->share, c->output_height, 1); oh += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, c->output_height, 1) - oh);
                const int32_t plane = ((here - 1) * c->stride_h + reach + 1);
                copy_strip(strip, image, inputs, c->height, c->width, oh * c->stride_h - c->pad_top, plane, -c->pad_left, row);
                for (k = 0; k < terms; k++) {
                    const int32_t channel = k / taps, kh = (k - channel * taps) / c->kernel_w;
                    const int32_t kw = k - channel * taps - kh * c->kernel_w;
                    offset[k] = (channel * plane + kh * c->dilation_h) * row + kw * c->dilation_w;
                }
                for (o = 0; o < outputs; o += rows) {
                    int vectors;
                    direct_task t = {filters + (ptrdiff_t)o * terms, terms, 1, {0}, offset, terms, depth, NULL, tile};
                    rows = direct_shape(outputs - o, &vectors);
                    if (bias)
                        t.bias = bias + (ptrdiff_t)group * outputs + o;
                    for (at = 0; at < here * pieces; at += vectors) {
                        for (j = 0; j < vectors; j++) { /* the last piece fills the block up */
                            const int32_t piece = poetc_min(at + j, here * pieces - 1), r = piece / pieces;
                            t.b[j] = strip + r * c->stride_h * row + (piece - r * pieces) * DIRECT_LANES;
                        }
                        direct_run(rows, &t);
                        for (j = 0; j < vectors && at + j < here * pieces; j++) {
                            const int32_t r = (at + j) / pieces, ow = (at + j - r * pieces) * DIRECT_LANES;
                            const int32_t count = poetc_min(DIRECT_LANES, c->output_width - ow);
                            float *to = result + ((ptrdiff_t)o * c->output_height + oh + r) * c->output_width + ow;
                            for (i = 0; i < rows; i++, to += (ptrdiff_t)c->output_height * c->output_width)
                                poetc_put_piece(to, tile + (i * vectors + j) * DIRECT_LANES, 1, count);
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

/* ConvGradInput with strides of 1: every pixel's products of one tap are a sum over the outputs, which is added to the
 * pixel, rows of the output in ascending order, taps in ascending order. Adding -0 where a tap has no output changes
 * nothing. */
POETC_APART int direct_grad_input(const convolution *c, const float *gy, const float *w, const float *bias, float *gx,
                                  float *workspace, int32_t size, int32_t depth)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pieces = direct_pieces(c->width), wide = (c->kernel_w - 1) * c->dilation_w;
    const int32_t row = c->width + wide, reach = (c->kernel_h - 1) * c->dilation_h;
    const int32_t room = (size - 1 - outputs - DIRECT_LANES) / (outputs * row) - reach;
    const int32_t held = poetc_min(c->height, room > 2 ? room & ~1 : room); /* rows of gx at a time */
    int32_t *offset = (int32_t *)workspace;
    float *strip = workspace + outputs, tile[DIRECT_MOST * DIRECT_LANES], total[DIRECT_MOST * DIRECT_LANES];
    int32_t group, n, top, ch, rows, at, i, j, k, kh, kw;
    direct_mask lanes, there[4];
    if (c->stride_h != 1 || c->stride_w != 1 || held < 1 || outputs > depth || !direct_pays(c->width, channels * 2))
        return 0;
    for (i = 0; i < DIRECT_LANES; i++)
        lanes[i] = i;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *from = gy + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * c->output_width;
            const float *filters = w + (ptrdiff_t)group * outputs * channels * taps;
            float *result = gx + ((ptrdiff_t)n * c->channels + group * channels) * c->height * c->width;
            for (top = POETC_BEGIN(c->share, c->height, 1); top < POETC_END(c->share, c->height, 1); top += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, c->height, 1) - top), plane = here + reach;
                const int32_t first = top + c->pad_top - reach; /* the strip's first row of gy */
                copy_strip(strip, from, outputs, c->output_height, c->output_width, first, plane, c->pad_left - wide, row);
                for (k = 0; k < outputs; k++)
                    offset[k] = k * plane * row;
                for (ch = 0; ch < channels; ch += rows) {
                    int vectors;
                    direct_task t = {NULL, taps, (ptrdiff_t)channels * taps, {0}, offset, outputs, depth, NULL, tile};
                    rows = direct_shape(channels - ch, &vectors);
                    for (at = 0; at < here * pieces; at += vectors) {
                        for (i = 0; i < rows; i++) {
                            const float begin = bias ? bias[group * channels + ch + i] : 0.0f;
                            for (j = 0; j < vectors; j++)
                                poetc_vector_store(total + (i * vectors + j) * DIRECT_LANES, (poetc_vector){0} + begin);
                        }
                        for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                            for (kw = 0; kw < c->kernel_w; kw++) {
                                int any = 0;
                                for (j = 0; j < vectors; j++) {
                                    const int32_t piece = poetc_min(at + j, here * pieces - 1), r = piece / pieces;
                                    const int32_t left = (piece - r * pieces) * DIRECT_LANES;
                                    const int32_t oh = top + r + c->pad_top - kh * c->dilation_h;
                                    const int32_t ow = left + c->pad_left - kw * c->dilation_w;
                                    const int valid = oh >= 0 && oh < c->output_height;
                                    any |= valid;
                                    there[j] = valid ? (lanes + ow >= 0) & (lanes + ow < c->output_width) : lanes < 0;
                                    t.b[j] = strip + (oh - first) * row + left + wide - kw * c->dilation_w;
                                }
                                if (!any)
                                    continue;
                                t.a = filters + (ptrdiff_t)ch * taps + kh * c->kernel_w + kw;
                                direct_run(rows, &t);
                                for (i = 0; i < rows * vectors; i++) {
                                    const direct_mask here_too = there[i % vectors];
                                    const direct_mask nothing = lanes * 0 + INT32_MIN; /* -0 */
                                    const direct_mask bits = (direct_mask)poetc_vector_load(tile + i * DIRECT_LANES);
                                    float *sum = total + i * DIRECT_LANES;
                                    poetc_vector_store(sum, poetc_vector_load(sum) + (poetc_vector)((bits & here_too) |
                                                                                                    (nothing & ~here_too)));
                                }
                            }
                        }
                        for (j = 0; j < vectors && at + j < here * pieces; j++) {
                            const int32_t r = (at + j) / pieces, left = (at + j - r * pieces) * DIRECT_LANES;
                            float *to = result + ((ptrdiff_t)ch * c->height + top + r) * c->width + left;
                            for (i = 0; i < rows; i++, to += (ptrdiff_t)c->height * c->width)
                                poetc_put_piece(to, total + (i * vectors + j) * DIRECT_LANES, 1,
                                                poetc_min(DIRECT_LANES, c->width - left));
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f;
    return 1;
}

/* LANES outputs for `count` taps: lanes lie along the outputs, a term is a pixel. Pixels are those of rows of gy: `pixels` of
 * them from column `column` on, in rows of `width`. */
POETC_INLINE void direct_taps(const int count, const float *gy, const float *x, const int32_t *offset, int32_t pixels,
                              int32_t column, int32_t width, ptrdiff_t x_row, const ptrdiff_t x_step, float *total, int first)
{
    poetc_vector sum[28];
    int i;
    _Pragma("GCC unroll 28")
    for (i = 0; i < count; i++)
        sum[i] = (poetc_vector){0};
    while (pixels > 0) {
        int32_t run = poetc_min(width - column, pixels);
        const float *from = x + column * x_step;
        pixels -= run, column = 0, x += x_row;
        for (; run > 0; run--, from += x_step, gy += DIRECT_LANES) {
            const poetc_vector v = poetc_vector_load(gy);
            _Pragma("GCC unroll 28")
            for (i = 0; i < count; i++)
                POETC_ADD_SCALED(sum[i], v, from[offset[i]]);
        }
    }
    _Pragma("GCC unroll 28")
    for (i = 0; i < count; i++, total += DIRECT_LANES)
        poetc_vector_store(total, first ? sum[i] : poetc_vector_load(total) + sum[i]);
}

#define DEFINE_TAPS(COUNT)                                                                                             \
    static void direct_taps_##COUNT(const float *gy, const float *x, const int32_t *offset, int32_t pixels,            \
                                    int32_t column, int32_t width, ptrdiff_t x_row, ptrdiff_t x_step, float *total,    \
                                    int first)                                                                         \
    {                                                                                                                  \
        direct_taps(COUNT, gy, x, offset, pixels, column, width, x_row, x_step, total, first);                         \
    }
DEFINE_TAPS(27)
DEFINE_TAPS(25)
DEFINE_TAPS(18)
DEFINE_TAPS(9)
DEFINE_TAPS(4)
DEFINE_TAPS(1)
#undef DEFINE_TAPS

/* ConvGradWeight for few outputs: gy is transposed, x read where it is or, if padded, from a strip. With a learning rate gw is
 * the weight, which descends. */
POETC_APART int direct_grad_weight(const convolution *c, const float *x, const float *gy, float *gw, const float *lr,
                                   float *workspace, int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pixels = c->output_height * c->output_width;
    const int32_t right = (c->output_width - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1 - c->pad_left;
    const int32_t reach = (c->kernel_h - 1) * c->dilation_h, bottom = (c->output_height - 1) * c->stride_h + reach + 1 - c->pad_top;
    const int padded = c->pad_top > 0 || c->pad_left > 0 || right > c->width || bottom > c->height;
    const int32_t row = padded ? right + c->pad_left : c->width;
    /* rows of gy that a block of terms may touch, and the rows of x that they reach */
    const int32_t touched = poetc_min(c->output_height, (depth + c->output_width - 2) / c->output_width + 1);
    const int32_t strip_rows = (touched - 1) * c->stride_h + reach + 1;
    const int32_t plane = padded ? strip_rows * row : c->height * c->width;
    const int32_t fixed = 1 + depth * DIRECT_LANES + (padded ? DIRECT_LANES : 0);
    /* channels at a time: their strip, sums and offsets */
    const int32_t each = (padded ? plane : 0) + taps * (DIRECT_LANES + 1);
    const int32_t held = size > fixed ? poetc_min(inputs, (size - fixed) / each) : 0;
    int32_t *offset = (int32_t *)workspace;
    int32_t group, out, channel, n, first, tap, i, j, k;
    if (held < 1 || outputs > 32)
        return 0;
    for (group = 0; group < c->group; group++) {
        for (out = 0; out < outputs; out += DIRECT_LANES) {
            const int32_t count = poetc_min(DIRECT_LANES, outputs - out);
            for (channel = POETC_BEGIN(c->share, inputs, 1); channel < POETC_END(c->share, inputs, 1); channel += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, inputs, 1) - channel), all = here * taps;
                float *total = workspace + all, *turned = total + all * DIRECT_LANES;
                float *strip = turned + depth * DIRECT_LANES;
                float *to = gw + ((ptrdiff_t)(group * outputs + out) * inputs + channel) * taps;
                for (k = 0; k < all; k++) {
                    const int32_t ch = k / taps, kh = (k - ch * taps) / c->kernel_w, kw = k - ch * taps - kh * c->kernel_w;
                    offset[k] = ch * plane + kh * c->dilation_h * row + kw * c->dilation_w;
                }
                for (n = 0; n < c->batch; n++) {
                    const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs + channel) * c->height * c->width;
                    const float *g = gy + ((ptrdiff_t)n * c->outputs + group * outputs + out) * pixels;
                    for (first = 0; first < pixels; first += depth) {
                        const int32_t terms = poetc_min(depth, pixels - first), oh = first / c->output_width;
                        const int32_t ow = first - oh * c->output_width;
                        const float *from = image + (ptrdiff_t)oh * c->stride_h * row;
                        for (k = 0; k + 4 <= terms; k += 4) {
                            for (i = 0; i + 4 <= count; i += 4) {
                                const float *q = g + (ptrdiff_t)i * pixels + first + k;
                                poetc_f4 r0 = poetc_f4_load(q), r1 = poetc_f4_load(q + pixels);
                                poetc_f4 r2 = poetc_f4_load(q + 2 * pixels), r3 = poetc_f4_load(q + 3 * pixels);
                                float *at = turned + k * DIRECT_LANES + i;
                                poetc_f4_transpose(&r0, &r1, &r2, &r3);
                                poetc_f4_store(at, r0);
                                poetc_f4_store(at + DIRECT_LANES, r1);
                                poetc_f4_store(at + 2 * DIRECT_LANES, r2);
                                poetc_f4_store(at + 3 * DIRECT_LANES, r3);
                            }
                            for (; i < count; i++)
                                for (j = k; j < k + 4; j++)
                                    turned[j * DIRECT_LANES + i] = g[(ptrdiff_t)i * pixels + first + j];
                            for (; i < DIRECT_LANES; i++)
                                for (j = k; j < k + 4; j++)
                                    turned[j * DIRECT_LANES + i] = 0.0f;
                        }
                        for (; k < terms; k++)
                            for (i = 0; i < DIRECT_LANES; i++)
                                turned[k * DIRECT_LANES + i] = i < count ? g[(ptrdiff_t)i * pixels + first + k] : 0.0f;
                        if (padded) {
                            copy_strip(strip, image, here, c->height, c->width, oh * c->stride_h - c->pad_top, strip_rows,
                                       -c->pad_left, row);
                            from = strip;
                        }
                        for (tap = 0; tap < all;) {
                            const int32_t left = all - tap;
                            float *sums = total + tap * DIRECT_LANES;
                            const ptrdiff_t x_row = (ptrdiff_t)c->stride_h * row;
                            const int begin = n == 0 && first == 0;
#define TAKE_TAPS(COUNT)                                                                                               \
    (direct_taps_##COUNT(turned, from, offset + tap, terms, ow, c->output_width, x_row, c->stride_w, sums, begin),     \
     tap += COUNT)
                            if (left >= 27 && taps % 25)
                                TAKE_TAPS(27);
                            else if (left >= 25)
                                TAKE_TAPS(25);
                            else if (left >= 18)
                                TAKE_TAPS(18);
                            else if (left >= 9)
                                TAKE_TAPS(9);
                            else if (left >= 4)
                                TAKE_TAPS(4);
                            else
                                TAKE_TAPS(1);
#undef TAKE_TAPS
                        }
                    }
                }
                for (i = 0; i < count; i++, to += (ptrdiff_t)inputs * taps) {
                    for (k = 0; k < all; k++) {
                        if (lr)
                            to[k] -= total[k * DIRECT_LANES + i] * *lr;
                        else
                            to[k] = total[k * DIRECT_LANES + i];
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f;
    return 1;
}

#else
#define direct_conv(c, x, w, bias, y, workspace, size, depth) 0
#define direct_grad_input(c, gy, w, bias, gx, workspace, size, depth) 0
#define direct_grad_weight(c, x, gy, gw, lr, workspace, size, depth) 0
#endif
#endif
