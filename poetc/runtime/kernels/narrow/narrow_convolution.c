/* Convolution of images stored in 16 bits: forward, gradient of the input, gradient of the weight.
 *
 * Layout: images are [N, C, H, W], weights [O, C / group, kh, kw]. Weights in 32 bits are rounded when they are packed.
 * Order of sums: poetc_narrow_product.h. Terms go by channel, tap row and tap column, or by image and pixel. */
#include "convolution/poetc_convolution.h"
#include "narrow/poetc_narrow_product.h"

/* The operands of one group of channels. */
typedef struct {
    convolution c;
    int32_t first; /* the group */
    const void *left, *right;
    poetc_stored left_stored, right_stored;
    poetc_narrow_result result;
} group_task;

#define FORMS 17 /* the ints behind those of a convolution: form and scale of three operands, floats of workspace */

static void zeros(float *to, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = 0.0f;
}

/* `count` taps of an output row beginning at pixel `ow`, all from the image row at `row`. */
static void gather(const group_task *t, const void *image, poetc_stored stored, float *to, ptrdiff_t row, int32_t ow,
                   int32_t tap, int32_t count)
{
    const convolution *c = &t->c;
    int32_t column = ow * c->stride_w - c->pad_left + tap * c->dilation_w, skip = 0, end = count;
    while (skip < count && column + skip * c->stride_w < 0)
        skip++;
    while (end > skip && column + (end - 1) * c->stride_w >= c->width)
        end--;
    zeros(to, skip);
    if (end > skip)
        poetc_widen(to + skip, image, stored, row + column + (ptrdiff_t)skip * c->stride_w, c->stride_w, end - skip);
    zeros(to + end, count - end);
}

/* Pixels first .. first + count - 1 of all outputs, as tap number `k` of a channel sees the images. */
static void gather_pixels(const group_task *t, const void *image, poetc_stored stored, float *to, int32_t k,
                          int32_t first, int32_t count)
{
    const convolution *c = &t->c;
    const int32_t taps = c->kernel_h * c->kernel_w, channel = k / taps, tap = k % taps;
    const int32_t pixels = c->output_height * c->output_width, channels = c->channels / c->group;
    int32_t n = first / pixels, oh = first % pixels / c->output_width, ow = first % c->output_width;
    while (count > 0) {
        const int32_t run = poetc_min(count, c->output_width - ow);
        const int32_t ih = oh * c->stride_h - c->pad_top + tap / c->kernel_w * c->dilation_h;
        const ptrdiff_t plane = (ptrdiff_t)n * c->channels + (ptrdiff_t)t->first * channels + channel;
        if (ih < 0 || ih >= c->height)
            zeros(to, run);
        else
            gather(t, image, stored, to, (plane * c->height + ih) * c->width, ow, tap % c->kernel_w, run);
        to += run, count -= run, ow = 0;
        if (++oh == c->output_height)
            oh = 0, n++;
    }
}

/* Sums of rows of an image's planes, of columns that are pixels of all images, to their places. */
static int store_pixels(const group_task *t, const poetc_narrow_product *p, int32_t planes, int32_t pixels)
{
    const int32_t of_group = planes / t->c.group, row = p->row, column = p->column, columns = p->column_count;
    float *sums = p->sums;
    int32_t i, at, run;
    for (i = 0; i < p->row_count; i++, sums += POETC_NARROW_COLUMNS) {
        const float bias = t->result.bias ? t->result.bias[t->first * of_group + row + i] : 0.0f;
        for (at = 0; t->result.bias && at < columns; at++)
            sums[at] += bias;
        for (at = 0; at < columns; at += run) {
            const int32_t n = (column + at) / pixels, pixel = (column + at) % pixels;
            const ptrdiff_t plane = (ptrdiff_t)n * planes + (ptrdiff_t)t->first * of_group + row + i;
            int err;
            run = poetc_min(columns - at, pixels - pixel);
            err = poetc_narrow_put(&t->result, plane * pixels + pixel, sums + at, run);
            if (err)
                return err;
        }
    }
    return POETC_OK;
}

static group_task task_of(const poetc_call *call, unsigned left, unsigned y)
{
    group_task t;
    t.c = describe(call), t.first = 0;
    t.left = poetc_in(call, left), t.right = poetc_in(call, left + 1);
    t.left_stored = poetc_stored_of(call->ints + FORMS), t.right_stored = poetc_stored_of(call->ints + FORMS + 2);
    t.result.y = poetc_out(call, y), t.result.stored = poetc_stored_of(call->ints + FORMS + 4);
    t.result.rate = t.result.bias = NULL;
    t.result.is_checked = t.left_stored.form == POETC_FORM_TO_F16 || t.right_stored.form == POETC_FORM_TO_F16;
    return t;
}

/* A walk over the groups' products. */
static void begin(const poetc_call *call, poetc_narrow_product *p, int32_t rows, int32_t columns, int32_t depth,
                  unsigned workspace)
{
    poetc_narrow_begin(p, rows, columns, depth, poetc_out(call, workspace), call->ints[FORMS + 6]);
}

/* --- forward: rows are output channels, columns pixels of the outputs, terms taps --- */

static void weights_of_outputs(const group_task *t, float *to, int32_t row, int32_t rows, int32_t term, int32_t terms)
{
    const int32_t of_group = t->c.outputs / t->c.group;
    const ptrdiff_t depth = (ptrdiff_t)(t->c.channels / t->c.group) * t->c.kernel_h * t->c.kernel_w;
    int32_t i;
    for (i = 0; i < rows; i++, to += terms)
        poetc_widen(to, t->right, t->right_stored, ((ptrdiff_t)t->first * of_group + row + i) * depth + term, 1, terms);
}

POETC_APART void windows(const group_task *t, const poetc_narrow_product *p)
{
    const int32_t column = p->column, columns = p->column_count, term = p->term, terms = p->terms;
    float line[POETC_NARROW_COLUMNS];
    int32_t k;
    zeros(line, POETC_NARROW_COLUMNS);
    for (k = 0; k < terms; k++) {
        gather_pixels(t, t->left, t->left_stored, line, term + k, column, columns);
        poetc_narrow_put_line(&p->space, terms, k, line);
    }
}

/* x[N,C,H,W], w[O,C/group,kh,kw], b[O]? -> y[N,O,OH,OW] */
int poetc_op_narrow_conv(const poetc_call *call);
int poetc_op_narrow_conv(const poetc_call *call)
{
    const convolution c = describe(call);
    const unsigned y = c.has_bias ? 3 : 2;
    const int32_t pixels = c.output_height * c.output_width;
    group_task t = task_of(call, 0, y);
    poetc_narrow_product p;
    t.result.bias = c.has_bias ? poetc_in(call, 2) : NULL;
    for (t.first = 0; t.first < c.group; t.first++) {
        begin(call, &p, c.outputs / c.group, c.batch * pixels, c.channels / c.group * c.kernel_h * c.kernel_w, y + 1);
        while (poetc_narrow_next(&p)) {
            int err;
            if (p.begins)
                windows(&t, &p);
            weights_of_outputs(&t, p.strip, p.strip_row, p.strip_rows, p.term, p.terms);
            poetc_narrow_multiply(&p);
            err = p.ends ? store_pixels(&t, &p, c.outputs, pixels) : POETC_OK;
            if (err)
                return err;
        }
    }
    return POETC_OK;
}

/* --- gradient of the input: rows are input channels, columns pixels of the images, terms taps of the outputs --- */

static void weights_of_inputs(const group_task *t, float *to, int32_t row, int32_t rows, int32_t term, int32_t terms)
{
    const int32_t taps = t->c.kernel_h * t->c.kernel_w, channels = t->c.channels / t->c.group;
    const int32_t of_group = t->c.outputs / t->c.group;
    int32_t i, k, run;
    for (i = 0; i < rows; i++) {
        if (taps == 1) {
            poetc_widen(to, t->right, t->right_stored, ((ptrdiff_t)t->first * of_group + term) * channels + row + i,
                        channels, terms);
            to += terms;
            continue;
        }
        for (k = 0; k < terms; k += run, to += run) {
            const int32_t output = (term + k) / taps, tap = (term + k) % taps;
            const ptrdiff_t filter = ((ptrdiff_t)t->first * of_group + output) * channels + row + i;
            run = poetc_min(terms - k, taps - tap);
            poetc_widen(to, t->right, t->right_stored, filter * taps + tap, 1, run);
        }
    }
}

/* `count` pixels of an image row from `w` on: the outputs of the row at `from` that read them through a tap. */
POETC_APART void spread(const group_task *t, float *to, ptrdiff_t from, int32_t w, int32_t tap, int32_t count)
{
    const convolution *c = &t->c;
    int32_t at = w + c->pad_left - tap * c->dilation_w, outputs, i, k;
    float some[POETC_NARROW_COLUMNS];
    if (c->stride_w == 1) {
        int32_t skip = 0, end = count;
        while (skip < count && at + skip < 0)
            skip++;
        while (end > skip && at + end - 1 >= c->output_width)
            end--;
        zeros(to, skip);
        if (end > skip)
            poetc_widen(to + skip, t->left, t->left_stored, from + at + skip, 1, end - skip);
        zeros(to + end, count - end);
        return;
    }
    zeros(to, count);
    i = at < 0 ? -at : (c->stride_w - at % c->stride_w) % c->stride_w;
    outputs = poetc_min((count - i + c->stride_w - 1) / c->stride_w, c->output_width - (at + i) / c->stride_w);
    if (outputs <= 0)
        return;
    poetc_widen(some, t->left, t->left_stored, from + (at + i) / c->stride_w, 1, outputs);
    for (k = 0; k < outputs; k++)
        to[i + k * c->stride_w] = some[k];
}

POETC_APART void gradients(const group_task *t, const poetc_narrow_product *p)
{
    const int32_t column = p->column, columns = p->column_count, term = p->term, terms = p->terms;
    const convolution *c = &t->c;
    const int32_t taps = c->kernel_h * c->kernel_w, pixels = c->height * c->width;
    float line[POETC_NARROW_COLUMNS];
    int32_t k, at, run;
    zeros(line, POETC_NARROW_COLUMNS);
    for (k = 0; k < terms; k++) {
        const int32_t output = (term + k) / taps, tap = (term + k) % taps;
        int32_t n = column / pixels, h = column % pixels / c->width, w = column % c->width;
        for (at = 0; at < columns; at += run, w = 0) {
            const int32_t down = h + c->pad_top - tap / c->kernel_w * c->dilation_h, oh = down / c->stride_h;
            const ptrdiff_t plane = (ptrdiff_t)n * c->outputs + (ptrdiff_t)t->first * (c->outputs / c->group) + output;
            run = poetc_min(columns - at, c->width - w);
            if (down < 0 || down % c->stride_h != 0 || oh >= c->output_height)
                zeros(line + at, run);
            else
                spread(t, line + at, (plane * c->output_height + oh) * c->output_width, w, tap % c->kernel_w, run);
            if (++h == c->height)
                h = 0, n++;
        }
        poetc_narrow_put_line(&p->space, terms, k, line);
    }
}

/* gy[N,O,OH,OW], w[O,C/group,kh,kw] -> gx[N,C,H,W] */
int poetc_op_narrow_conv_grad_input(const poetc_call *call);
int poetc_op_narrow_conv_grad_input(const poetc_call *call)
{
    group_task t = task_of(call, 0, 2);
    const convolution *c = &t.c;
    const int32_t pixels = c->height * c->width;
    poetc_narrow_product p;
    for (t.first = 0; t.first < c->group; t.first++) {
        begin(call, &p, c->channels / c->group, c->batch * pixels, c->outputs / c->group * c->kernel_h * c->kernel_w,
              3);
        while (poetc_narrow_next(&p)) {
            int err;
            if (p.begins)
                gradients(&t, &p);
            weights_of_inputs(&t, p.strip, p.strip_row, p.strip_rows, p.term, p.terms);
            poetc_narrow_multiply(&p);
            err = p.ends ? store_pixels(&t, &p, c->channels, pixels) : POETC_OK;
            if (err)
                return err;
        }
    }
    return POETC_OK;
}

/* --- gradient of the weight: rows are output channels, columns taps, terms pixels of the outputs --- */

static void gradients_of_outputs(const group_task *t, float *to, int32_t row, int32_t rows, int32_t term, int32_t terms)
{
    const int32_t pixels = t->c.output_height * t->c.output_width, of_group = t->c.outputs / t->c.group;
    int32_t i, k, run;
    for (i = 0; i < rows; i++) {
        for (k = 0; k < terms; k += run, to += run) {
            const int32_t n = (term + k) / pixels, pixel = (term + k) % pixels;
            const ptrdiff_t plane = (ptrdiff_t)n * t->c.outputs + (ptrdiff_t)t->first * of_group + row + i;
            run = poetc_min(terms - k, pixels - pixel);
            poetc_widen(to, t->right, t->right_stored, plane * pixels + pixel, 1, run);
        }
    }
}

POETC_APART void pixels_of_taps(const group_task *t, const poetc_narrow_product *p)
{
    const int32_t column = p->column, columns = p->column_count, term = p->term, terms = p->terms;
    float line[POETC_NARROW_TERMS];
    int32_t i, k;
    zeros(line, POETC_NARROW_TERMS);
    for (i = 0; i < POETC_NARROW_COLUMNS; i++) {
        float *to = poetc_gemm_panel(&p->space, i, terms) + i % POETC_GEMM_COLUMNS;
        if (i < columns)
            gather_pixels(t, t->left, t->left_stored, line, column + i, term, terms);
        else if (i == columns)
            zeros(line, POETC_NARROW_TERMS);
        for (k = 0; k < terms; k++)
            to[k * POETC_GEMM_COLUMNS] = line[k];
    }
}

static int store_weights(const group_task *t, const poetc_narrow_product *p)
{
    const ptrdiff_t depth = (ptrdiff_t)(t->c.channels / t->c.group) * t->c.kernel_h * t->c.kernel_w;
    const ptrdiff_t first = (ptrdiff_t)t->first * (t->c.outputs / t->c.group) + p->row;
    float *sums = p->sums;
    int32_t i;
    for (i = 0; i < p->row_count; i++, sums += POETC_NARROW_COLUMNS) {
        const int err = poetc_narrow_put(&t->result, (first + i) * depth + p->column, sums, p->column_count);
        if (err)
            return err;
    }
    return POETC_OK;
}

static int grad_weight(const poetc_call *call, group_task *t, unsigned workspace)
{
    const convolution *c = &t->c;
    const int32_t taps = c->channels / c->group * c->kernel_h * c->kernel_w;
    poetc_narrow_product p;
    for (t->first = 0; t->first < c->group; t->first++) {
        begin(call, &p, c->outputs / c->group, taps, c->batch * c->output_height * c->output_width, workspace);
        while (poetc_narrow_next(&p)) {
            int err;
            if (p.begins)
                pixels_of_taps(t, &p);
            gradients_of_outputs(t, p.strip, p.strip_row, p.strip_rows, p.term, p.terms);
            poetc_narrow_multiply(&p);
            err = p.ends ? store_weights(t, &p) : POETC_OK;
            if (err)
                return err;
        }
    }
    return POETC_OK;
}

/* x[N,C,H,W], gy[N,O,OH,OW] -> gw[O,C/group,kh,kw] */
int poetc_op_narrow_conv_grad_weight(const poetc_call *call);
int poetc_op_narrow_conv_grad_weight(const poetc_call *call)
{
    group_task t = task_of(call, 0, 2);
    return grad_weight(call, &t, 3);
}

/* w, x, gy, rate[1] -> w - rate gw, in place */
int poetc_op_narrow_conv_grad_weight_sgd(const poetc_call *call);
int poetc_op_narrow_conv_grad_weight_sgd(const poetc_call *call)
{
    group_task t = task_of(call, 1, 4);
    t.result.rate = poetc_in(call, 3);
    return grad_weight(call, &t, 5);
}
