/* Products whose sums have few bits: chunks of terms in sequence, and the chunks in sequence (poetc/ops/chunked.py).
 *
 * Layout: images are [N, C, H, W], weights [O, C / group, kh, kw]; matrices have steps. Operands are of f32 or bf16.
 * Order of sums: each addition is rounded to the grid, to nearest. Terms go by channel, tap row and tap column, or by
 * image and pixel. Taps outside of the image are terms of 0. The bias comes last, and is not rounded. */
#include "convolution/poetc_convolution.h"
#include "narrow/poetc_narrow.h"
#include "operators/poetc_grid.h"

#define FORMS 17 /* the ints behind those of a convolution: form and scale of three operands, floats of workspace */

typedef struct {
    poetc_grid grid;
    int32_t chunk, drop;               /* bits of a float that go */
    uint32_t normal, half, kept, most; /* the words of 2^low and of the largest number; masks of the bits that go */
    const void *a, *b;
    int32_t a_form, b_form;
    float total, part;
    int32_t terms;
} task;

static float at(const void *x, int32_t form, ptrdiff_t i)
{
    if (form == POETC_FORM_F32)
        return ((const float *)x)[i];
    return poetc_from_bits((uint32_t)((const uint16_t *)x)[i] << 16);
}

/* A word plus half of its last bit that stays, less one unless that bit is odd: halves go to the even number. Without
 * a mantissa that bit would be one of the exponent, so `normal` is above all words. */
static float on_grid(const task *t, float x)
{
    const uint32_t word = poetc_bits(x), sign = word & 0x80000000u;
    uint32_t size = word ^ sign;
    if (size < t->normal) {
        const float a = poetc_on_grid(&t->grid, poetc_from_bits(size), -1.0f);
        return sign ? -a : a;
    }
    size = (size + t->half + (size >> t->drop & 1u)) & t->kept;
    return poetc_from_bits((size > t->most ? t->most : size) | sign);
}

static void end_chunk(task *t)
{
    t->total = on_grid(t, t->total + t->part), t->part = 0.0f, t->terms = 0;
}

/* A term; an index below 0 is a tap outside of the image. */
static void add(task *t, ptrdiff_t a, ptrdiff_t b)
{
    if (a >= 0 && b >= 0)
        t->part = on_grid(t, t->part + at(t->a, t->a_form, a) * at(t->b, t->b_form, b));
    if (++t->terms == t->chunk)
        end_chunk(t);
}

static float ended(task *t)
{
    float total;
    if (t->terms > 0)
        end_chunk(t);
    total = t->total, t->total = 0.0f;
    return total;
}

/* ints: forms of a and b with their scales in between; chunk, low, mantissa, power. floats: the largest number. */
static task task_of(const poetc_call *call, const int32_t *forms, const int32_t *sums)
{
    task t;
    t.a = poetc_in(call, 0), t.b = poetc_in(call, 1), t.a_form = forms[0], t.b_form = forms[2];
    t.chunk = sums[0], t.grid.low = sums[1] + sums[3], t.grid.mantissa = sums[2];
    t.grid.largest = call->floats[0] * poetc_power_of_two(sums[3]);
    t.drop = 23 - sums[2], t.kept = 0xffffffffu << t.drop, t.half = (1u << (t.drop - 1)) - 1u;
    t.normal = sums[2] ? poetc_bits(poetc_power_of_two(t.grid.low)) : 0xffffffffu, t.most = poetc_bits(t.grid.largest);
    t.total = t.part = 0.0f, t.terms = 0;
    return t;
}

/* a, b, bias[N]? -> y[M,N]. ints: those of poetc_op_narrow_matmul, then the sums. */
int poetc_op_narrow_chunked_matmul(const poetc_call *call);
int poetc_op_narrow_chunked_matmul(const poetc_call *call)
{
    const int32_t *n = call->ints;
    task t = task_of(call, n + 8, n + 15);
    const float *bias = n[7] ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, n[7] ? 3u : 2u);
    int32_t i, j, k;
    for (i = 0; i < n[0]; i++) {
        for (j = 0; j < n[1]; j++) {
            for (k = 0; k < n[2]; k++)
                add(&t, (ptrdiff_t)i * n[3] + (ptrdiff_t)k * n[4], (ptrdiff_t)k * n[5] + (ptrdiff_t)j * n[6]);
            *y = ended(&t);
            if (bias)
                *y += bias[j];
            y++;
        }
    }
    return POETC_OK;
}

/* The element of the image that tap (kh, kw) of output pixel (oh, ow) reads; below 0 outside of it. */
static ptrdiff_t read_by(const convolution *c, ptrdiff_t plane, int32_t oh, int32_t ow, int32_t kh, int32_t kw)
{
    const int32_t h = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
    const int32_t w = ow * c->stride_w - c->pad_left + kw * c->dilation_w;
    return h < 0 || h >= c->height || w < 0 || w >= c->width ? -1 : (plane * c->height + h) * c->width + w;
}

/* The output pixel along one axis whose tap reads `at`; below 0: none. */
static int32_t brought_by(int32_t at_pixel, int32_t tap, int32_t stride, int32_t outputs)
{
    const int32_t place = at_pixel - tap;
    return place < 0 || place % stride || place / stride >= outputs ? -1 : place / stride;
}

/* x, w, bias? -> y. ints: those of poetc_op_narrow_conv, then the sums. */
int poetc_op_narrow_chunked_conv(const poetc_call *call);
int poetc_op_narrow_chunked_conv(const poetc_call *call)
{
    const convolution c = describe(call);
    task t = task_of(call, call->ints + FORMS, call->ints + FORMS + 7);
    const float *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    const int32_t channels = c.channels / c.group, outputs = c.outputs / c.group;
    float *y = poetc_out(call, c.has_bias ? 3u : 2u);
    int32_t n, o, oh, ow, k, kh, kw;
    for (n = 0; n < c.batch; n++)
        for (o = 0; o < c.outputs; o++)
            for (oh = 0; oh < c.output_height; oh++)
                for (ow = 0; ow < c.output_width; ow++) {
                    ptrdiff_t w = (ptrdiff_t)o * channels * c.kernel_h * c.kernel_w;
                    for (k = 0; k < channels; k++)
                        for (kh = 0; kh < c.kernel_h; kh++)
                            for (kw = 0; kw < c.kernel_w; kw++)
                                add(&t,
                                    read_by(&c, (ptrdiff_t)n * c.channels + o / outputs * channels + k, oh, ow, kh, kw),
                                    w++);
                    *y = ended(&t);
                    if (bias)
                        *y += bias[o];
                    y++;
                }
    return POETC_OK;
}

/* gy, w -> gx */
int poetc_op_narrow_chunked_conv_grad_input(const poetc_call *call);
int poetc_op_narrow_chunked_conv_grad_input(const poetc_call *call)
{
    const convolution c = describe(call);
    task t = task_of(call, call->ints + FORMS, call->ints + FORMS + 7);
    const int32_t channels = c.channels / c.group, outputs = c.outputs / c.group;
    float *y = poetc_out(call, 2);
    int32_t n, k, h, w, o, kh, kw;
    for (n = 0; n < c.batch; n++)
        for (k = 0; k < c.channels; k++)
            for (h = 0; h < c.height; h++)
                for (w = 0; w < c.width; w++) {
                    const int32_t first = k / channels * outputs;
                    for (o = first; o < first + outputs; o++)
                        for (kh = 0; kh < c.kernel_h; kh++)
                            for (kw = 0; kw < c.kernel_w; kw++) {
                                const int32_t oh =
                                    brought_by(h + c.pad_top, kh * c.dilation_h, c.stride_h, c.output_height);
                                const int32_t ow =
                                    brought_by(w + c.pad_left, kw * c.dilation_w, c.stride_w, c.output_width);
                                const ptrdiff_t plane = (ptrdiff_t)n * c.outputs + o;
                                const ptrdiff_t filter = (ptrdiff_t)o * channels + k % channels;
                                add(&t, oh < 0 || ow < 0 ? -1 : (plane * c.output_height + oh) * c.output_width + ow,
                                    (filter * c.kernel_h + kh) * c.kernel_w + kw);
                            }
                    *y++ = ended(&t);
                }
    return POETC_OK;
}

/* x, gy -> gw */
int poetc_op_narrow_chunked_conv_grad_weight(const poetc_call *call);
int poetc_op_narrow_chunked_conv_grad_weight(const poetc_call *call)
{
    const convolution c = describe(call);
    task t = task_of(call, call->ints + FORMS, call->ints + FORMS + 7);
    const int32_t channels = c.channels / c.group, outputs = c.outputs / c.group;
    float *y = poetc_out(call, 2);
    int32_t o, k, kh, kw, n, oh, ow;
    for (o = 0; o < c.outputs; o++)
        for (k = 0; k < channels; k++)
            for (kh = 0; kh < c.kernel_h; kh++)
                for (kw = 0; kw < c.kernel_w; kw++) {
                    for (n = 0; n < c.batch; n++) {
                        const ptrdiff_t plane = (ptrdiff_t)n * c.channels + o / outputs * channels + k;
                        ptrdiff_t pixel = ((ptrdiff_t)n * c.outputs + o) * c.output_height * c.output_width;
                        for (oh = 0; oh < c.output_height; oh++)
                            for (ow = 0; ow < c.output_width; ow++)
                                add(&t, read_by(&c, plane, oh, ow, kh, kw), pixel++);
                    }
                    *y++ = ended(&t);
                }
    return POETC_OK;
}
