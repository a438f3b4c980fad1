/* Depthwise convolution of images stored in 16 bits, with one output a channel: forward, gradients of the input and of
 * the weight.
 *
 * Layout: images are [N, C, H, W], weights [C, 1, kh, kw]. Rows of an image become floats once, in a ring of lines with
 * zeros around them.
 * Order of sums: that of narrow_convolution.c. Terms are taps, or images and pixels, in blocks of POETC_NARROW_TERMS.
 */
#include "convolution/poetc_convolution.h"
#include "narrow/poetc_narrow_product.h"

#define FORMS 17 /* the ints behind those of a convolution: form and scale of three operands, floats of workspace */
#define SOME 32  /* pixels that are spread at once */

/* poetc/ops/_narrow_kernels.py computes the workspace: keep it in step. */
typedef struct {
    convolution c;
    const void *left, *right;
    poetc_stored left_stored, right_stored;
    poetc_narrow_result result;
    float *lines; /* the last is of zeros */
    int32_t ring, line;
    int32_t rows, columns; /* of a plane that becomes lines */
    int32_t first, apart;  /* where its first pixel is in a line, and how far from the next one */
    int32_t next;          /* the row that is brought next; rows before the first one and behind the last are zeros */
} depthwise;

static int32_t whole(int32_t count)
{
    return (count + 3) / 4 * 4;
}

static void clear(float *to, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = 0.0f;
}

static depthwise depthwise_of(const poetc_call *call, unsigned left, unsigned y)
{
    depthwise d;
    const int32_t *forms = call->ints + FORMS;
    d.c = describe(call);
    d.left = poetc_in(call, left), d.right = poetc_in(call, left + 1);
    d.left_stored = poetc_stored_of(forms), d.right_stored = poetc_stored_of(forms + 2);
    d.result.y = poetc_out(call, y), d.result.stored = poetc_stored_of(forms + 4);
    d.result.rate = d.result.bias = NULL;
    d.result.is_checked = d.left_stored.form == POETC_FORM_TO_F16 || d.right_stored.form == POETC_FORM_TO_F16;
    d.lines = poetc_out(call, y + 1);
    d.lines[forms[6] - 1] = 0.0f; /* so that all of it is touched, whatever the target */
    d.ring = (d.c.kernel_h - 1) * d.c.dilation_h + 1;
    d.rows = d.c.height, d.columns = d.c.width;
    d.first = d.c.pad_left, d.apart = 1;
    return d;
}

/* Clear the lines; the result is the workspace behind them. */
static float *begin_lines(depthwise *d, int32_t line)
{
    d->line = line;
    clear(d->lines, (d->ring + 1) * line);
    return d->lines + (d->ring + 1) * line;
}

static float *line_of(const depthwise *d, int32_t row)
{
    return d->lines + (row + d->c.pad_top) % d->ring * d->line;
}

/* Rows of plane number `plane` up to number `last`. */
static void bring(depthwise *d, ptrdiff_t plane, int32_t last)
{
    for (; d->next <= last; d->next++) {
        float *to = line_of(d, d->next) + d->first;
        const ptrdiff_t from = (plane * d->rows + d->next) * d->columns;
        const int32_t count = poetc_min(d->columns, (d->line - d->first + d->apart - 1) / d->apart);
        float some[SOME];
        int32_t i, k;
        if (d->next < 0 || d->next >= d->rows) {
            clear(to - d->first, d->line);
            continue;
        }
        if (d->apart == 1)
            poetc_widen(to, d->left, d->left_stored, from, 1, count);
        for (i = 0; d->apart > 1 && i < count; i += SOME) {
            poetc_widen(some, d->left, d->left_stored, from + i, 1, poetc_min(count - i, SOME));
            for (k = 0; k < poetc_min(count - i, SOME); k++)
                to[(i + k) * d->apart] = some[k];
        }
    }
}

POETC_INLINE poetc_f4 four(const int is_dense, const float *from, int32_t apart)
{
    if (is_dense)
        return poetc_f4_load(from);
    return poetc_f4_set(from[0], from[apart], from[2 * apart], from[3 * apart]);
}

/* sums[column] += the terms of a row of taps, which read the line from `from` on: columns are `apart`, taps `tap`
 * floats apart. `term`: the number of the first; where a block of terms ends, the sums join `totals`. */
POETC_INLINE void add_taps(const int is_dense, const float *from, int32_t apart, int32_t tap, const float *w,
                           int32_t taps, int32_t term, float *sums, float *totals, int32_t columns)
{
    int32_t column, j;
    for (column = 0; column < columns; column += 4, from += 4 * apart) {
        poetc_f4 sum = term == 0 ? POETC_F4_ZERO : poetc_f4_load(sums + column);
        const float *at = from;
        int32_t left = POETC_NARROW_TERMS - term % POETC_NARROW_TERMS;
        for (j = 0; j < taps; j++, at += tap) {
            sum = poetc_f4_add_scaled(sum, four(is_dense, at, apart), w[j]);
            if (--left == 0) {
                poetc_f4_store(totals + column, poetc_f4_add(poetc_f4_load(totals + column), sum));
                sum = POETC_F4_ZERO;
                left = POETC_NARROW_TERMS;
            }
        }
        poetc_f4_store(sums + column, sum);
    }
}

static int put_row(const depthwise *d, ptrdiff_t first, float *sums, const float *totals, int32_t columns, float bias)
{
    int32_t i;
    if (d->c.kernel_h * d->c.kernel_w >= POETC_NARROW_TERMS)
        for (i = 0; i < columns; i++)
            sums[i] += totals[i];
    for (i = 0; d->c.has_bias && i < columns; i++)
        sums[i] += bias;
    return poetc_narrow_put(&d->result, first, sums, columns);
}

/* x[N,C,H,W], w[C,1,kh,kw], b[C]? -> y[N,C,OH,OW] */
int poetc_op_narrow_depthwise(const poetc_call *call);
int poetc_op_narrow_depthwise(const poetc_call *call)
{
    const unsigned y = describe(call).has_bias ? 3 : 2;
    depthwise d = depthwise_of(call, 0, y);
    const convolution *c = &d.c;
    const float *bias = c->has_bias ? poetc_in(call, 2) : NULL;
    const int32_t taps = c->kernel_h * c->kernel_w, columns = whole(c->output_width);
    float *sums = begin_lines(&d, (columns - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1);
    float *totals = sums + columns, *w = totals + columns;
    int32_t channel, n, oh, i;
    for (channel = 0; channel < c->channels; channel++) {
        poetc_widen(w, d.right, d.right_stored, (ptrdiff_t)channel * taps, 1, taps);
        for (n = 0; n < c->batch; n++) {
            const ptrdiff_t plane = (ptrdiff_t)n * c->channels + channel;
            d.next = -c->pad_top;
            for (oh = 0; oh < c->output_height; oh++) {
                const int32_t top = oh * c->stride_h - c->pad_top;
                int err;
                bring(&d, plane, top + d.ring - 1);
                clear(totals, taps >= POETC_NARROW_TERMS ? columns : 0);
                for (i = 0; i < c->kernel_h; i++) {
                    const float *from = line_of(&d, top + i * c->dilation_h);
                    const int32_t term = i * c->kernel_w;
                    if (c->stride_w == 1)
                        add_taps(1, from, 1, c->dilation_w, w + term, c->kernel_w, term, sums, totals, columns);
                    else
                        add_taps(0, from, c->stride_w, c->dilation_w, w + term, c->kernel_w, term, sums, totals,
                                 columns);
                }
                err = put_row(&d, (plane * c->output_height + oh) * c->output_width, sums, totals, c->output_width,
                              bias ? bias[channel] : 0.0f);
                if (err)
                    return err;
            }
        }
    }
    return POETC_OK;
}

/* gy[N,C,OH,OW], w[C,1,kh,kw] -> gx[N,C,H,W]. Lines are rows of gy, whose pixels are a stride apart. */
int poetc_op_narrow_depthwise_grad_input(const poetc_call *call);
int poetc_op_narrow_depthwise_grad_input(const poetc_call *call)
{
    depthwise d = depthwise_of(call, 0, 2);
    const convolution *c = &d.c;
    const int32_t taps = c->kernel_h * c->kernel_w, columns = whole(c->width),
                  reach = (c->kernel_w - 1) * c->dilation_w;
    float *sums, *totals, *w;
    int32_t channel, n, h, i;
    d.ring = (c->kernel_h - 1) * c->dilation_h / c->stride_h + 1;
    d.rows = c->output_height, d.columns = c->output_width;
    d.first = reach, d.apart = c->stride_w;
    sums = begin_lines(&d, columns + c->pad_left + reach);
    totals = sums + columns, w = totals + columns;
    for (channel = 0; channel < c->channels; channel++) {
        poetc_widen(w, d.right, d.right_stored, (ptrdiff_t)channel * taps, 1, taps);
        for (n = 0; n < c->batch; n++) {
            const ptrdiff_t plane = (ptrdiff_t)n * c->channels + channel;
            d.next = 0;
            for (h = 0; h < c->height; h++) {
                const int32_t bottom = h + c->pad_top;
                int err;
                bring(&d, plane, poetc_min(bottom / c->stride_h, c->output_height - 1));
                clear(totals, taps >= POETC_NARROW_TERMS ? columns : 0);
                for (i = 0; i < c->kernel_h; i++) {
                    const int32_t down = bottom - i * c->dilation_h, oh = down / c->stride_h;
                    const int32_t term = i * c->kernel_w;
                    const int is_read = down >= 0 && down % c->stride_h == 0 && oh < c->output_height;
                    const float *line = is_read ? line_of(&d, oh) : d.lines + d.ring * d.line;
                    add_taps(1, line + c->pad_left + reach, 1, -c->dilation_w, w + term, c->kernel_w, term, sums,
                             totals, columns);
                }
                err = put_row(&d, (plane * c->height + h) * c->width, sums, totals, c->width, 0.0f);
                if (err)
                    return err;
            }
        }
    }
    return POETC_OK;
}

/* The terms of `count` pixels of a row; lanes are taps of a row of them. */
static void add_pixels(const depthwise *d, int32_t top, int32_t ow, int32_t count, const float *gy, float *sums)
{
    const convolution *c = &d->c;
    int32_t i, j, k;
    for (i = 0; i < c->kernel_h; i++) {
        const float *line = line_of(d, top + i * c->dilation_h) + ow * c->stride_w;
        for (j = 0; j < c->kernel_w; j += 4, sums += 4) {
            const float *from = line + j * c->dilation_w;
            poetc_f4 sum = poetc_f4_load(sums);
            if (c->dilation_w == 1)
                for (k = 0; k < count; k++, from += c->stride_w)
                    sum = poetc_f4_add_scaled(sum, poetc_f4_load(from), gy[k]);
            else
                for (k = 0; k < count; k++, from += c->stride_w)
                    sum = poetc_f4_add_scaled(sum, four(0, from, c->dilation_w), gy[k]);
            poetc_f4_store(sums, sum);
        }
    }
}

static int grad_weight(depthwise *d)
{
    const convolution *c = &d->c;
    const int32_t row = whole(c->kernel_w), lanes = c->kernel_h * row, taps = c->kernel_h * c->kernel_w;
    float *sums = begin_lines(d, (c->output_width - 1) * c->stride_w + (row - 1) * c->dilation_w + 1);
    float *totals = sums + lanes, *gy = totals + lanes;
    int32_t channel, n, oh, ow, i, run;
    for (channel = 0; channel < c->channels; channel++) {
        int32_t terms = 0;
        int err;
        clear(sums, 2 * lanes);
        for (n = 0; n < c->batch; n++) {
            const ptrdiff_t plane = (ptrdiff_t)n * c->channels + channel;
            d->next = -c->pad_top;
            for (oh = 0; oh < c->output_height; oh++) {
                const int32_t top = oh * c->stride_h - c->pad_top;
                bring(d, plane, top + d->ring - 1);
                poetc_widen(gy, d->right, d->right_stored, (plane * c->output_height + oh) * c->output_width, 1,
                            c->output_width);
                for (ow = 0; ow < c->output_width; ow += run) {
                    run = poetc_min(c->output_width - ow, POETC_NARROW_TERMS - terms);
                    add_pixels(d, top, ow, run, gy + ow, sums);
                    terms += run;
                    if (terms < POETC_NARROW_TERMS)
                        continue;
                    terms = 0;
                    for (i = 0; i < lanes; i++)
                        totals[i] += sums[i];
                    clear(sums, lanes);
                }
            }
        }
        for (i = 0; i < taps; i++) {
            const int32_t lane = i / c->kernel_w * row + i % c->kernel_w;
            totals[i] = totals[lane] + sums[lane]; /* a lane is never before its tap */
        }
        err = poetc_narrow_put(&d->result, (ptrdiff_t)channel * taps, totals, taps);
        if (err)
            return err;
    }
    return POETC_OK;
}

/* x[N,C,H,W], gy[N,C,OH,OW] -> gw[C,1,kh,kw] */
int poetc_op_narrow_depthwise_grad_weight(const poetc_call *call);
int poetc_op_narrow_depthwise_grad_weight(const poetc_call *call)
{
    depthwise d = depthwise_of(call, 0, 2);
    return grad_weight(&d);
}

/* w, x, gy, rate[1] -> w - rate gw, in place */
int poetc_op_narrow_depthwise_grad_weight_sgd(const poetc_call *call);
int poetc_op_narrow_depthwise_grad_weight_sgd(const poetc_call *call)
{
    depthwise d = depthwise_of(call, 1, 4);
    d.lines = poetc_out(call, 5);
    d.result.rate = poetc_in(call, 3);
    return grad_weight(&d);
}
