/* Convolution in 8 bits, its gradients, and the gradient of a bias (poetc/ops/integer_convolution.py).
 *
 * Layout: images are [N, C, H, W], weights [O, C / group, kh, kw]. Rows and columns of a product are packed in 16 bits,
 * each behind the other. Their terms are filled up with zeros to a multiple of 16. Order of sums: sums of 32 bits are
 * exact, so that their order changes nothing. */
#include "int8/poetc_int8_sums.h"
#include "int8/poetc_linear.h"

/* ints: IntegerProduct of poetc/ops/kernels/integer.py. */
typedef struct {
    int32_t batch, channels, height, width, outputs, output_height, output_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t group, has_bias;
    int32_t groups, rows, columns, terms, rows_at_once, columns_at_once, terms_at_once, holds_sums, is_stochastic,
        adapts;
} product;

#define UNIT 16 /* terms */

/* The parameters of QLinearConv besides (poetc/ops/qlinear_layers.py). */
typedef struct {
    int32_t zero_x, zero, low, high;
    const float *scales; /* of the weights of each output */
    float scale_x, scale;
} requantization;

/* The operands of a call, and the use of its sums. */
typedef struct task {
    product p;
    const requantization *requantized;
    const int32_t *starts;        /* of the sums of each output */
    int32_t pad;                  /* around the image */
    const int8_t *x, *y, *weight; /* the image, its outputs or their error, the weights */
    const int8_t *bias;
    int32_t bias_shift;
    void (*pack_rows)(const struct task *, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                      int16_t *to);
    void (*pack_columns)(const struct task *, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                         int16_t *to);
    int8_t *result;
    int32_t is_update;
    int32_t plane, planes; /* of the result: its sums are at [column / plane][group and row][column % plane] */
} task;

static product describe(const poetc_call *call)
{
    product p;
    __builtin_memcpy(&p, call->ints, sizeof p);
    return p;
}

static int32_t at_most(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t round_up(int32_t number, int32_t unit)
{
    return (number + unit - 1) / unit * unit;
}

/* Zeros for the rows or columns that fill up the last block. */
static void fill_up(int16_t *packed_rows, int32_t count, int32_t unit, int32_t depth)
{
    const int32_t missing = round_up(count, unit) - count;
    __builtin_memset(packed_rows + (size_t)count * (size_t)depth, 0, (size_t)missing * (size_t)depth * 2u);
}

static void start_sums(const task *t, int32_t group, int32_t columns, int32_t *sums, int32_t step)
{
    int32_t i, j;
    for (i = 0; i < t->p.rows; i++) {
        int32_t start = t->starts ? t->starts[group * t->p.rows + i] : 0;
        if (t->bias) {
            const int32_t b = t->bias[group * t->p.rows + i], shift = t->bias_shift;
            uint32_t m = poetc_magnitude(b);
            if (shift >= 0)
                m <<= at_most(shift, 22);
            else
                m = (m + ((uint32_t)1 << (at_most(-shift, 31) - 1))) >> at_most(-shift, 31);
            start = b < 0 ? -(int32_t)m : (int32_t)m;
        }
        for (j = 0; j < columns; j++)
            sums[(size_t)i * (size_t)step + (size_t)j] = start;
    }
}

/* Values of some columns of sums to their places in the result. */
static void store(const task *t, int32_t group, int32_t column, int32_t columns, const int32_t *sums, int32_t step,
                  poetc_rounding *rounding)
{
    const int32_t rows = t->p.rows;
    int32_t i, j;
    for (i = 0; i < rows; i++) {
        int32_t image = column / t->plane, pixel = column % t->plane;
        const size_t place = (size_t)image * (size_t)t->planes + (size_t)(group * rows + i);
        int8_t *to = t->result + place * (size_t)t->plane;
        const requantization *r = t->requantized;
        const float factor = r ? r->scale_x * r->scales[group * rows + i] / r->scale : 0.0f;
        for (j = 0; j < columns; j++) {
            const int32_t sum = sums[(size_t)i * (size_t)step + (size_t)j];
            to[pixel] =
                r ? poetc_requantized((float)sum * factor, r->zero, r->low, r->high) : poetc_rounded(sum, rounding);
            if (++pixel == t->plane) {
                pixel = 0;
                to += (size_t)t->planes * (size_t)t->plane;
            }
        }
    }
}

/* All sums, some columns at a time. With `largest` their largest magnitude is looked for; with `rounding` the values
 * are stored. Held sums stay in the workspace. */
static void make_sums(const task *t, void *workspace, uint32_t *largest, poetc_rounding *rounding)
{
    const product *p = &t->p;
    const int32_t depth = p->terms_at_once, is_packed = p->terms <= depth && p->rows <= p->rows_at_once;
    const size_t held = (size_t)p->groups * (size_t)p->rows * (size_t)p->columns;
    const size_t some = (size_t)p->rows * (size_t)p->columns_at_once;
    int32_t *sums = workspace, group, row, column, term, i;
    int16_t *a = (int16_t *)(void *)(sums + (p->holds_sums ? held : some));
    int16_t *b = a + (size_t)p->rows_at_once * (size_t)depth;

    for (group = 0; group < p->groups; group++) {
        if (is_packed) {
            t->pack_rows(t, group, 0, p->rows, 0, p->terms, a);
            fill_up(a, p->rows, BLOCK_ROWS, depth);
        }
        for (column = 0; column < p->columns; column += p->columns_at_once) {
            const int32_t columns = at_most(p->columns - column, p->columns_at_once);
            const int32_t step = p->holds_sums ? p->columns : p->columns_at_once;
            int32_t *part = sums;
            if (p->holds_sums)
                part += (size_t)group * (size_t)p->rows * (size_t)p->columns + (size_t)column;
            start_sums(t, group, columns, part, step);
            for (term = 0; term < p->terms; term += depth) {
                const int32_t terms = at_most(p->terms - term, depth);
                t->pack_columns(t, group, column, columns, term, terms, b);
                fill_up(b, columns, COLUMNS_AT_ONCE, depth);
                for (row = 0; row < p->rows; row += p->rows_at_once) {
                    const int32_t rows = at_most(p->rows - row, p->rows_at_once);
                    if (!is_packed) {
                        t->pack_rows(t, group, row, rows, term, terms, a);
                        fill_up(a, rows, BLOCK_ROWS, depth);
                    }
                    add_products(a, rows, b, columns, depth, part + (size_t)row * (size_t)step, step);
                }
            }
            for (i = 0; largest && i < p->rows; i++)
                *largest = poetc_largest(part + (size_t)i * (size_t)step, columns, *largest);
            if (rounding)
                store(t, group, column, columns, part, step, rounding);
        }
    }
}

/* Values from all sums, whose bits the history knows, or which are scanned first; then the scale. `update_bits`: of the
 * largest value of an update. */
static int finish(const task *t, void *workspace, int32_t exponent, int32_t update_bits, const int32_t *history,
                  int32_t *scale)
{
    const product *p = &t->p;
    const int32_t *sums = workspace;
    const int is_scanned = !p->adapts || history[1] <= 0;
    poetc_rounding rounding = {0, p->is_stochastic, POETC_INT8_MOST, 0};
    uint32_t largest = 0u;
    int32_t group, bits;
    int code;

    if (is_scanned)
        make_sums(t, workspace, &largest, 0);
    bits = is_scanned ? poetc_bits(largest) : history[0];
    rounding.shift = t->is_update ? bits - update_bits : poetc_shift(bits);
    if (t->is_update)
        rounding.most = poetc_update_most(update_bits);
    if (is_scanned && p->holds_sums)
        for (group = 0; group < p->groups; group++) {
            store(t, group, 0, p->columns, sums, p->columns, &rounding);
            sums += (size_t)p->rows * (size_t)p->columns;
        }
    else
        make_sums(t, workspace, 0, &rounding);
    code = poetc_scale(scale, exponent + (t->is_update ? 0 : rounding.shift), rounding.clipped, bits, rounding.shift);
    if (p->adapts) {
        const int32_t count = p->groups * p->rows * p->columns;
        int32_t i, most = 0;
        for (i = 0; i < count; i++) {
            const int32_t q = t->result[i];
            most = q > most ? q : -q > most ? -q : most;
        }
        scale[4] = is_scanned;
        scale[5] = poetc_bits((uint32_t)most);
    }
    return code;
}

/* --- rows and columns ------------------------------------------------------------------------------------------- */

static void clear_rest(int16_t *to, int32_t terms, int32_t depth)
{
    for (; terms < depth; terms++)
        to[terms] = 0;
}

static void widen(const int8_t *from, int32_t count, int16_t *to)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = from[i];
}

/* `count` bytes that lie `step` apart. */
static void gather(const int8_t *from, size_t step, int32_t count, int16_t *to)
{
    for (; count >= 4; count -= 4, from += 4 * step, to += 4) {
        const int16_t v0 = from[0], v1 = from[step], v2 = from[2 * step], v3 = from[3 * step];
        to[0] = v0, to[1] = v1, to[2] = v2, to[3] = v3;
    }
    for (; count > 0; count--, from += step)
        *to++ = *from;
}

static void zeros(int16_t *to, int32_t count)
{
    __builtin_memset(to, 0, (size_t)count * sizeof *to);
}

/* Rows are the weights of an output; its terms are taps, and channels within a tap. */
static void weights_of_outputs(const task *t, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                               int16_t *to)
{
    const product *p = &t->p;
    const int32_t depth = p->terms_at_once, taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group;
    int32_t i, tap;
    (void)term;
    for (i = 0; i < count; i++, to += depth) {
        const int8_t *w = t->weight + (size_t)(group * p->rows + row + i) * (size_t)terms;
        for (tap = 0; tap < taps; tap++)
            gather(w + tap, (size_t)taps, inputs, to + tap * inputs);
        clear_rest(to, terms, depth);
    }
}

/* Rows are the weights of a channel of the image; its terms are taps, and outputs of its group within a tap. */
static void weights_of_channels(const task *t, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                                int16_t *to)
{
    const product *p = &t->p;
    const int32_t depth = p->terms_at_once, taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group;
    const int32_t outputs = p->outputs / p->group;
    int32_t i, tap;
    (void)term;
    for (i = 0; i < count; i++, to += depth) {
        const size_t place = (size_t)(group * outputs) * (size_t)inputs + (size_t)(row + i);
        for (tap = 0; tap < taps; tap++)
            gather(t->weight + place * (size_t)taps + tap, (size_t)(inputs * taps), outputs, to + tap * outputs);
        clear_rest(to, terms, depth);
    }
}

static void pads(int16_t *to, int32_t count, int32_t pad)
{
    if (!pad) {
        zeros(to, count);
        return;
    }
    for (; count > 0; count--)
        *to++ = (int16_t)pad;
}

/* Columns are the windows of pixels of the output. */
static void windows_of_pixels(const task *t, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                              int16_t *to)
{
    const product *p = &t->p;
    const int32_t pixels = p->output_height * p->output_width, inputs = p->channels / p->group;
    const int32_t depth = p->terms_at_once;
    const size_t plane = (size_t)p->height * (size_t)p->width;
    int32_t n = column / pixels, oh = column % pixels / p->output_width, ow = column % p->output_width;
    int32_t i, tap_h, tap_w;
    (void)term;
    for (i = 0; i < count; i++, to += depth) {
        const int32_t top = oh * p->stride_h - p->pad_top, left = ow * p->stride_w - p->pad_left;
        const int8_t *x = t->x + ((size_t)n * (size_t)p->channels + (size_t)(group * inputs)) * plane;
        const int is_one = inputs == 1 && p->dilation_w == 1 && left >= 0 && left + p->kernel_w <= p->width;
        int16_t *next = to;
        for (tap_h = 0; tap_h < p->kernel_h; tap_h++) {
            const int32_t h = top + tap_h * p->dilation_h;
            if (is_one && h >= 0 && h < p->height) { /* taps of one channel lie side by side */
                for (tap_w = 0; tap_w < p->kernel_w; tap_w++)
                    *next++ = x[h * p->width + left + tap_w];
                continue;
            }
            for (tap_w = 0; tap_w < p->kernel_w; tap_w++, next += inputs) {
                const int32_t w = left + tap_w * p->dilation_w;
                if (h >= 0 && h < p->height && w >= 0 && w < p->width)
                    gather(x + h * p->width + w, plane, inputs, next);
                else
                    pads(next, inputs, t->pad);
            }
        }
        clear_rest(to, terms, depth);
        if (++ow == p->output_width) {
            ow = 0;
            if (++oh == p->output_height)
                oh = 0, n++;
        }
    }
}

/* The place along an axis of the output whose tap lies on `at`, or -1. */
static int32_t output_at(int32_t at, int32_t stride, int32_t size)
{
    if (at < 0)
        return -1;
    if (stride > 1) {
        if (at % stride)
            return -1;
        at /= stride;
    }
    return at < size ? at : -1;
}

/* Columns are the errors that reach a pixel of the image, of all outputs of its group and all taps. */
static void errors_of_pixels(const task *t, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                             int16_t *to)
{
    const product *p = &t->p;
    const int32_t pixels = p->height * p->width, outputs = p->outputs / p->group, depth = p->terms_at_once;
    const size_t plane = (size_t)p->output_height * (size_t)p->output_width;
    int32_t i, tap_h, tap_w;
    (void)term;
    for (i = 0; i < count; i++, to += depth) {
        const int32_t n = (column + i) / pixels, pixel = (column + i) % pixels;
        const int32_t h = pixel / p->width + p->pad_top, w = pixel % p->width + p->pad_left;
        const int8_t *y = t->y + ((size_t)n * (size_t)p->outputs + (size_t)(group * outputs)) * plane;
        const int is_one =
            outputs == 1 && p->stride_w == 1 && p->dilation_w == 1 && w >= p->kernel_w - 1 && w < p->output_width;
        int16_t *next = to;
        for (tap_h = 0; tap_h < p->kernel_h; tap_h++) {
            const int32_t oh = output_at(h - tap_h * p->dilation_h, p->stride_h, p->output_height);
            if (is_one && oh >= 0) { /* taps of one output lie side by side, the last one first */
                for (tap_w = 0; tap_w < p->kernel_w; tap_w++)
                    *next++ = y[oh * p->output_width + w - tap_w];
                continue;
            }
            for (tap_w = 0; tap_w < p->kernel_w; tap_w++, next += outputs) {
                const int32_t ow = output_at(w - tap_w * p->dilation_w, p->stride_w, p->output_width);
                if (oh < 0 || ow < 0)
                    zeros(next, outputs);
                else
                    gather(y + oh * p->output_width + ow, plane, outputs, next);
            }
        }
        clear_rest(to, terms, depth);
    }
}

/* Rows are the errors of an output, a term a pixel. */
static void errors_of_outputs(const task *t, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                              int16_t *to)
{
    const product *p = &t->p;
    const int32_t pixels = p->output_height * p->output_width, depth = p->terms_at_once;
    int32_t i;
    for (i = 0; i < count; i++, to += depth) {
        const int32_t output = group * p->rows + row + i;
        int32_t n = term / pixels, pixel = term % pixels, done = 0;
        while (done < terms) {
            const int32_t part = at_most(terms - done, pixels - pixel);
            const int8_t *y = t->y + ((size_t)n * (size_t)p->outputs + (size_t)output) * (size_t)pixels;
            widen(y + pixel, part, to + done);
            done += part, pixel = 0, n++;
        }
        clear_rest(to, terms, depth);
    }
}

/* Columns are the pixels that a tap of a channel reads, a term a pixel of the output. */
static void pixels_of_taps(const task *t, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                           int16_t *to)
{
    const product *p = &t->p;
    const int32_t taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group, depth = p->terms_at_once;
    const int32_t pixels = p->output_height * p->output_width;
    const size_t plane = (size_t)p->height * (size_t)p->width;
    int32_t i;
    for (i = 0; i < count; i++, to += depth) {
        const int32_t c = (column + i) / taps, tap = (column + i) % taps;
        const int32_t down = tap / p->kernel_w * p->dilation_h - p->pad_top;
        const int32_t right = tap % p->kernel_w * p->dilation_w - p->pad_left;
        int32_t n = term / pixels, oh = term % pixels / p->output_width, ow = term % p->output_width, done = 0;
        while (done < terms) { /* a row of the output */
            const int32_t part = at_most(terms - done, p->output_width - ow), h = oh * p->stride_h + down;
            const int8_t *x = t->x + ((size_t)n * (size_t)p->channels + (size_t)(group * inputs + c)) * plane;
            const int32_t w = ow * p->stride_w + right, stride = p->stride_w;
            int32_t first = w < 0 ? (stride - 1 - w) / stride : 0;
            int32_t last = p->width > w ? (p->width - w + stride - 1) / stride : 0;
            last = at_most(last, part), first = at_most(first, last);
            if (h < 0 || h >= p->height)
                first = last = 0;
            zeros(to + done, first);
            gather(x + h * p->width + w + first * stride, (size_t)stride, last - first, to + done + first);
            zeros(to + done + last, part - last);
            done += part, ow = 0;
            if (++oh == p->output_height)
                oh = 0, n++;
        }
        clear_rest(to, terms, depth);
    }
}

/* --- kernels ---------------------------------------------------------------------------------------------------- */

/* x, its scale, w, its exponent, (b, its exponent), (history) -> y, its scale. */
int poetc_op_int8_conv(const poetc_call *call);
int poetc_op_int8_conv(const poetc_call *call)
{
    const product p = describe(call);
    const unsigned history = p.has_bias ? 6 : 4, y = history + (p.adapts != 0);
    const int32_t *scale = poetc_in(call, 1), *weight_scale = poetc_in(call, 3);
    const int32_t exponent = scale[0] + weight_scale[0];
    task t = {0};
    t.p = p;
    t.x = poetc_in(call, 0);
    t.weight = poetc_in(call, 2);
    if (p.has_bias) {
        const int32_t *bias_scale = poetc_in(call, 5);
        t.bias = poetc_in(call, 4);
        t.bias_shift = bias_scale[0] - exponent;
    }
    t.pack_rows = weights_of_outputs;
    t.pack_columns = windows_of_pixels;
    t.result = poetc_out(call, y);
    t.plane = p.output_height * p.output_width;
    t.planes = p.outputs;
    return finish(&t, poetc_out(call, y + 2), exponent, POETC_INT8_BITS, poetc_in(call, history),
                  poetc_out(call, y + 1));
}

/* gy, its scale, w, its exponent, (history) -> gx, its scale. */
int poetc_op_int8_conv_grad_input(const poetc_call *call);
int poetc_op_int8_conv_grad_input(const poetc_call *call)
{
    const int32_t *scale = poetc_in(call, 1), *weight_scale = poetc_in(call, 3);
    unsigned y;
    task t = {0};
    t.p = describe(call);
    y = 4 + (t.p.adapts != 0);
    t.y = poetc_in(call, 0);
    t.weight = poetc_in(call, 2);
    t.pack_rows = weights_of_channels;
    t.pack_columns = errors_of_pixels;
    t.result = poetc_out(call, y);
    t.plane = t.p.height * t.p.width;
    t.planes = t.p.channels;
    return finish(&t, poetc_out(call, y + 2), scale[0] + weight_scale[0], POETC_INT8_BITS, poetc_in(call, 4),
                  poetc_out(call, y + 1));
}

/* x, gy, learning rate, (history) -> g, its scale. */
int poetc_op_int8_conv_grad_weight(const poetc_call *call);
int poetc_op_int8_conv_grad_weight(const poetc_call *call)
{
    const float *rate = poetc_in(call, 2);
    unsigned g;
    task t = {0};
    t.p = describe(call);
    g = 3 + (t.p.adapts != 0);
    t.x = poetc_in(call, 0);
    t.y = poetc_in(call, 1);
    t.pack_rows = errors_of_outputs;
    t.pack_columns = pixels_of_taps;
    t.is_update = 1;
    t.result = poetc_out(call, g);
    t.plane = t.p.columns; /* one image */
    t.planes = t.p.groups * t.p.rows;
    return finish(&t, poetc_out(call, g + 2), 0, poetc_update_bits(*rate), poetc_in(call, 3), poetc_out(call, g + 1));
}

/* gy, learning rate -> g, its scale. */
int poetc_op_int8_bias_grad(const poetc_call *call);
int poetc_op_int8_bias_grad(const poetc_call *call)
{
    const product p = describe(call);
    const int8_t *gy = poetc_in(call, 0);
    const float *rate = poetc_in(call, 1);
    int8_t *g = poetc_out(call, 2);
    int32_t *sums = poetc_out(call, 4), n, c, i;
    const int32_t pixels = p.height * p.width;
    poetc_rounding rounding = {0, p.is_stochastic, POETC_INT8_MOST, 0};
    int32_t bits;
    for (c = 0; c < p.channels; c++) {
        int32_t sum = 0;
        for (n = 0; n < p.batch; n++) {
            const int8_t *plane = gy + ((size_t)n * (size_t)p.channels + (size_t)c) * (size_t)pixels;
            for (i = 0; i < pixels; i++)
                sum += plane[i];
        }
        sums[c] = sum;
    }
    bits = poetc_bits(poetc_largest(sums, p.channels, 0u));
    rounding.shift = bits - poetc_update_bits(*rate);
    rounding.most = poetc_update_most(poetc_update_bits(*rate));
    for (c = 0; c < p.channels; c++)
        g[c] = poetc_rounded(sums[c], &rounding);
    return poetc_scale(poetc_out(call, 3), 0, rounding.clipped, bits, rounding.shift);
}

/* x, w, scale of each output, (b) -> y. ints: product, then zero of x, zero, low, high. floats: scale of x, scale. Pads
 * hold the zero of x, and a sum starts from the bias without that zero's share. */
int poetc_op_int8_qlinear_conv(const poetc_call *call);
int poetc_op_int8_qlinear_conv(const poetc_call *call)
{
    const product p = describe(call);
    const int32_t *more = call->ints + sizeof p / sizeof(int32_t), *bias = poetc_in(call, 3);
    const unsigned y = p.has_bias ? 4 : 3;
    int32_t *starts = poetc_out(call, y + 1), i, k;
    const int8_t *w = poetc_in(call, 1);
    requantization r = {more[0], more[1], more[2], more[3], poetc_in(call, 2), call->floats[0], call->floats[1]};
    poetc_rounding unused = {0, 0, POETC_INT8_MOST, 0};
    task t = {0};
    for (i = 0; i < p.outputs; i++) {
        int32_t sum = 0;
        for (k = 0; k < p.terms; k++)
            sum += *w++;
        starts[i] = (p.has_bias ? bias[i] : 0) - r.zero_x * sum;
    }
    t.p = p;
    t.requantized = &r;
    t.starts = starts;
    t.pad = r.zero_x;
    t.x = poetc_in(call, 0);
    t.weight = poetc_in(call, 1);
    t.pack_rows = weights_of_outputs;
    t.pack_columns = windows_of_pixels;
    t.result = poetc_out(call, y);
    t.plane = p.output_height * p.output_width;
    t.planes = p.outputs;
    make_sums(&t, starts + p.outputs, 0, &unused);
    return POETC_OK;
}
