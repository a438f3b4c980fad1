/* The update of a convolution's codes, whose gradient is never stored, and the gradient of its input from codes of
 * weights (poetc/ops/qlinear_update.py, qlinear_layers.py).
 *
 * Layout: images are [N, C, H, W] of int8_t, gradients floats, weights [O, C / group, kh, kw] of int8_t.
 * Order of sums: a sum is made of parts of PART terms, pixels in their order; the parts are added in sequence. */
#include "int8/poetc_linear_sgd.h"
#include "simd/poetc_f4.h"

#define PART 64
#define COLUMNS 4
#define OUTPUTS 32 /* whose weights are made floats at once: 512 bytes of stack */

/* ints: QLinearConvSgd of poetc/ops/qlinear_update.py. */
typedef struct {
    int32_t batch, channels, height, width, outputs, output_height, output_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t group, has_bias;
    int32_t zero_x, is_stochastic, seed;
} layer;

static int32_t at_most(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* `terms` pixels of the image under a tap, from output pixel `term` of the batch on; zeros outside the image. */
static void pack(const layer *p, const int8_t *x, int32_t channel, int32_t tap, int32_t term, int32_t terms, float *to)
{
    const int32_t down = tap / p->kernel_w * p->dilation_h - p->pad_top;
    const int32_t right = tap % p->kernel_w * p->dilation_w - p->pad_left;
    const int32_t pixels = p->output_height * p->output_width;
    const size_t plane = (size_t)p->height * (size_t)p->width;
    int32_t n = term / pixels, oh = term % pixels / p->output_width, ow = term % p->output_width;
    while (terms > 0) { /* a row of the output */
        const int32_t part = at_most(terms, p->output_width - ow), h = oh * p->stride_h + down;
        const int8_t *from = x + ((size_t)n * (size_t)p->channels + (size_t)channel) * plane;
        const int is_inside = h >= 0 && h < p->height;
        int32_t w = ow * p->stride_w + right, i;
        if (is_inside)
            from += (size_t)h * (size_t)p->width;
        for (i = 0; i < part; i++, w += p->stride_w)
            *to++ = is_inside && w >= 0 && w < p->width ? (float)(from[w] - p->zero_x) : 0.0f;
        terms -= part, ow = 0;
        if (++oh == p->output_height)
            oh = 0, n++;
    }
}

/* sums[0..7] += two rows of gradients times four packed columns. */
static void two_rows(const float *a, const float *b, const float *columns, int32_t terms, float *sums)
{
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, t0 = 0.0f, t1 = 0.0f, t2 = 0.0f, t3 = 0.0f;
    int32_t k;
    for (k = 0; k < terms; k++, columns++) {
        const float x = a[k], y = b[k], c0 = columns[0], c1 = columns[PART], c2 = columns[2 * PART],
                    c3 = columns[3 * PART];
        POETC_MULTIPLY_ADD_4(s0, s1, s2, s3, x, c0, x, c1, x, c2, x, c3);
        POETC_MULTIPLY_ADD_4(t0, t1, t2, t3, y, c0, y, c1, y, c2, y, c3);
    }
    sums[0] += s0, sums[1] += s1, sums[2] += s2, sums[3] += s3;
    sums[4] += t0, sums[5] += t1, sums[6] += t2, sums[7] += t3;
}

static void one_row(const float *a, const float *columns, int32_t terms, float *sums)
{
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    int32_t k;
    for (k = 0; k < terms; k++, columns++) {
        const float x = a[k];
        POETC_MULTIPLY_ADD_4(s0, s1, s2, s3, x, columns[0], x, columns[PART], x, columns[2 * PART], x,
                             columns[3 * PART]);
    }
    sums[0] += s0, sums[1] += s1, sums[2] += s2, sums[3] += s3;
}

/* w, count, x, gy, scale of each output, lr, step -> w, count. floats: scale of x. Workspace: four packed columns, and
 * the sums of all outputs of a group. */
int poetc_op_qlinear_conv_sgd(const poetc_call *call);
int poetc_op_qlinear_conv_sgd(const poetc_call *call)
{
    const int32_t *count = poetc_in(call, 1), *step = poetc_in(call, 6);
    const int8_t *x = poetc_in(call, 2);
    const float *gy = poetc_in(call, 3), *scales = poetc_in(call, 4), *rate = poetc_in(call, 5);
    int8_t *w = poetc_out(call, 7); /* in place */
    int32_t *total = poetc_out(call, 8);
    float *packed = poetc_out(call, 9), *sums = packed + COLUMNS * PART;
    layer p;
    poetc_moving moving;
    int32_t group, column, term, o, j;
    __builtin_memcpy(&p, call->ints, sizeof p);
    moving = poetc_moving_of(p.is_stochastic, (uint32_t)p.seed, (uint32_t)*step, *count);
    {
        const int32_t taps = p.kernel_h * p.kernel_w, inputs = p.channels / p.group, rows = p.outputs / p.group;
        const int32_t columns = inputs * taps, pixels = p.output_height * p.output_width, terms = p.batch * pixels;
        for (group = 0; group < p.group; group++)
            for (column = 0; column < columns; column += COLUMNS) {
                const int32_t some = at_most(COLUMNS, columns - column);
                __builtin_memset(sums, 0, (size_t)rows * COLUMNS * sizeof *sums);
                __builtin_memset(packed, 0, COLUMNS * PART * sizeof *packed);
                for (term = 0; term < terms;) {
                    const int32_t n = term / pixels, pixel = term % pixels;
                    const int32_t part = at_most(PART, pixels - pixel); /* of one image */
                    const float *g = gy + ((size_t)n * (size_t)p.outputs + (size_t)(group * rows)) * (size_t)pixels;
                    for (j = 0; j < some; j++)
                        pack(&p, x, group * inputs + (column + j) / taps, (column + j) % taps, term, part,
                             packed + j * PART);
                    g += pixel;
                    for (o = 0; o + 1 < rows; o += 2, g += 2 * (size_t)pixels)
                        two_rows(g, g + pixels, packed, part, sums + (size_t)o * COLUMNS);
                    if (o < rows)
                        one_row(g, packed, part, sums + (size_t)o * COLUMNS);
                    term += part;
                }
                for (o = 0; o < rows; o++) {
                    const float factor = *rate / scales[group * rows + o];
                    for (j = 0; j < some; j++) {
                        const int32_t place = (group * rows + o) * columns + column + j;
                        const float gradient = sums[o * COLUMNS + j] * call->floats[0];
                        w[place] = poetc_moved(&moving, w[place], gradient * factor, place);
                    }
                }
            }
    }
    *total = moving.clipped;
    return POETC_OK;
}

/* Adds the gradients of an output times one tap to the pixels of a plane that the tap lies on. */
static void spread(const layer *p, const float *g, float tap_weight, int32_t tap, float *gx)
{
    const int32_t down = tap / p->kernel_w * p->dilation_h - p->pad_top;
    const int32_t right = tap % p->kernel_w * p->dilation_w - p->pad_left, stride = p->stride_w;
    int32_t first = right < 0 ? (stride - 1 - right) / stride : 0, oh, ow;
    int32_t last = p->width > right ? (p->width - right + stride - 1) / stride : 0;
    last = at_most(last, p->output_width);
    for (oh = 0; oh < p->output_height; oh++, g += p->output_width) {
        const int32_t h = oh * p->stride_h + down;
        const int32_t at = h * p->width + right;
        if (h < 0 || h >= p->height)
            continue;
        for (ow = first; ow < last; ow++)
            POETC_MULTIPLY_ADD(gx[at + ow * stride], g[ow], tap_weight);
    }
}

/* The same of images of one pixel and one tap. */
static void dense(const layer *p, const float *gy, const int8_t *w, const float *scales, float *gx)
{
    const int32_t inputs = p->channels / p->group, rows = p->outputs / p->group;
    int32_t n, o, c;
    __builtin_memset(gx, 0, (size_t)p->batch * (size_t)p->channels * sizeof *gx);
    for (n = 0; n < p->batch; n++, gx += p->channels)
        for (o = 0; o < p->outputs; o++) {
            const float factor = *gy++ * scales[o];
            const int8_t *codes = w + (size_t)o * (size_t)inputs;
            float *to = gx + o / rows * inputs;
            for (c = 0; c < inputs; c++)
                POETC_MULTIPLY_ADD(to[c], (float)codes[c], factor);
        }
}

/* gx[4 channels][4 pixels] += weights[terms][4 channels] times gy[terms][4 pixels]. */
static void four_pixels(const float *gy, ptrdiff_t plane, const float *weights, int32_t terms, float *gx)
{
    poetc_f4 a = poetc_f4_load(gx), b = poetc_f4_load(gx + plane), c = poetc_f4_load(gx + 2 * plane),
             d = poetc_f4_load(gx + 3 * plane);
    for (; terms > 0; terms--, gy += plane, weights += 4) {
        const poetc_f4 g = poetc_f4_load(gy);
        a = poetc_f4_add_scaled(a, g, weights[0]);
        b = poetc_f4_add_scaled(b, g, weights[1]);
        c = poetc_f4_add_scaled(c, g, weights[2]);
        d = poetc_f4_add_scaled(d, g, weights[3]);
    }
    poetc_f4_store(gx, a);
    poetc_f4_store(gx + plane, b);
    poetc_f4_store(gx + 2 * plane, c);
    poetc_f4_store(gx + 3 * plane, d);
}

/* Four planes of gx, where each pixel has one tap: `rows` outputs in their order, as `spread` adds them. `codes` are
 * those of the first output, `inputs` apart from the next. */
static void four_planes(const float *gy, int32_t pixels, const int8_t *codes, int32_t inputs, const float *scales,
                        int32_t rows, float *gx)
{
    float weights[4 * OUTPUTS];
    int32_t o, k, pixel, j;
    __builtin_memset(gx, 0, 4 * (size_t)pixels * sizeof *gx);
    for (o = 0; o < rows; o += OUTPUTS, gy += OUTPUTS * (size_t)pixels) {
        const int32_t part = at_most(OUTPUTS, rows - o);
        for (k = 0; k < part; k++, codes += inputs)
            for (j = 0; j < 4; j++)
                weights[4 * k + j] = (float)codes[j] * scales[o + k];
        for (pixel = 0; pixel + 4 <= pixels; pixel += 4)
            four_pixels(gy + pixel, pixels, weights, part, gx + pixel);
        for (; pixel < pixels; pixel++)
            for (j = 0; j < 4; j++) {
                float *to = gx + (size_t)j * (size_t)pixels + pixel;
                const float *g = gy + pixel;
                for (k = 0; k < part; k++, g += pixels)
                    POETC_MULTIPLY_ADD(*to, *g, weights[4 * k + j]);
            }
    }
}

static int is_pointwise(const layer *p)
{
    return p->kernel_h * p->kernel_w == 1 && p->stride_h * p->stride_w == 1 && p->output_height == p->height &&
           p->output_width == p->width;
}

/* gy, w, scale of each output -> gx. ints: the layer. One plane of gx at a time: each output of its group spreads its
 * rows over the plane, the taps in their order. */
int poetc_op_qlinear_conv_grad_input(const poetc_call *call);
int poetc_op_qlinear_conv_grad_input(const poetc_call *call)
{
    const float *gy = poetc_in(call, 0), *scales = poetc_in(call, 2);
    const int8_t *w = poetc_in(call, 1);
    float *gx = poetc_out(call, 3);
    layer p;
    int32_t n, c, o, tap;
    __builtin_memcpy(&p, call->ints, sizeof p);
    {
        const int32_t taps = p.kernel_h * p.kernel_w, inputs = p.channels / p.group, rows = p.outputs / p.group;
        const size_t plane = (size_t)p.height * (size_t)p.width;
        const size_t pixels = (size_t)p.output_height * (size_t)p.output_width;
        if (plane == 1 && taps == 1) { /* a dense layer */
            dense(&p, gy, w, scales, gx);
            return POETC_OK;
        }
        for (n = 0; n < p.batch; n++)
            for (c = 0; c < p.channels; c++, gx += plane) {
                const int32_t first = c / inputs * rows;
                if (is_pointwise(&p) && c % inputs + 4 <= inputs) {
                    four_planes(gy + ((size_t)n * (size_t)p.outputs + (size_t)first) * pixels, (int32_t)pixels,
                                w + (size_t)first * (size_t)inputs + c % inputs, inputs, scales + first, rows, gx);
                    c += 3, gx += 3 * plane;
                    continue;
                }
                __builtin_memset(gx, 0, plane * sizeof *gx);
                for (o = first; o < first + rows; o++) {
                    const int8_t *codes = w + (size_t)(o * inputs + c % inputs) * (size_t)taps;
                    const float *g = gy + ((size_t)n * (size_t)p.outputs + (size_t)o) * pixels;
                    for (tap = 0; tap < taps; tap++)
                        spread(&p, g, (float)codes[tap] * scales[o], tap, gx);
                }
            }
    }
    return POETC_OK;
}
