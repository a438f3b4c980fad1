/* Depthwise convolution (a filter a channel) and its gradients.
 *
 * A strip of the image is copied into the workspace with its padding, so that no border is left, and columns a stride apart
 * lie side by side, so that every tap reads consecutive floats. The sum of a pixel goes over the taps in sequence; the sum
 * of a weight goes over four lanes along each row, strip by strip. */
#include "poetc_convolution.h"
#include "poetc_f4.h"
#include "poetc_vector.h"

/* A padded strip: row r, padded column q is at data[r * row + (q % phases) * phase + q / phases]. */
typedef struct {
    float *data;
    int32_t phases, phase, row;
} strip;

/* Rows [top, top + rows) of the padded plane. A padded row holds `width` floats of `from`, `spread` columns apart (zeros
 * between), `left` columns in; likewise `height` rows below `above` rows of padding. */
static void pad_strip(const strip *s, const float *from, int32_t height, int32_t width, int32_t spread_h,
                      int32_t spread_w, int32_t above, int32_t left, int32_t top, int32_t rows)
{
    int32_t r, i;
    for (r = 0; r < rows; r++) {
        const int32_t at = top + r - above, source = floor_div(at, spread_h);
        float *to = s->data + (ptrdiff_t)r * s->row;
        const float *row = from + (ptrdiff_t)source * width;
        const int there = source >= 0 && source < height && source * spread_h == at;
        if (there && s->phases == 1 && spread_w == 1) {
            for (i = 0; i < left; i++)
                to[i] = 0.0f;
            for (i = 0; i + 4 <= width; i += 4)
                poetc_f4_store(to + left + i, poetc_f4_load(row + i));
            for (; i < width; i++)
                to[left + i] = row[i];
            for (i += left; i < s->row; i++)
                to[i] = 0.0f;
            continue;
        }
        for (i = 0; i < s->row; i++)
            to[i] = 0.0f;
        if (!there)
            continue;
        if (s->phases == 1) {
            for (i = 0; i < width; i++)
                to[left + i * spread_w] = row[i];
        } else if (s->phases == 2) { /* the usual stride */
            float *even = to + (left & 1) * s->phase + left / 2, *odd = to + ((left + 1) & 1) * s->phase + (left + 1) / 2;
            for (i = 0; i + 2 <= width; i += 2)
                *even++ = row[i], *odd++ = row[i + 1];
            if (i < width)
                *even = row[i];
        } else {
            for (i = 0; i < width; i++)
                to[(left + i) % s->phases * s->phase + (left + i) / s->phases] = row[i];
        }
    }
}

static inline ptrdiff_t tap_column(const strip *s, int32_t q)
{
    return s->phases == 1 ? q : (ptrdiff_t)(q % s->phases) * s->phase + q / s->phases;
}

/* One row of the result. `down` and `across`: padded rows and columns from tap to tap; `step` through the weights: -1 turns
 * the filter. */
POETC_INLINE void correlate(const strip *s, const float *from, const float *weight, const int32_t step,
                            const int32_t kernel_h, const int32_t kernel_w, const int32_t down, const int32_t across,
                            float *y, const int32_t width, const float bias)
{
    int32_t at, kh, kw;
    if (POETC_LANES > 1 && width >= POETC_LANES) {
        for (at = 0; at < width; at += POETC_LANES) {
            const int32_t p = at + POETC_LANES > width ? width - POETC_LANES : at;
            const float *w = weight;
            poetc_vector sum = {0};
            POETC_UNROLL_3
            for (kh = 0; kh < kernel_h; kh++) {
                POETC_UNROLL_3
                for (kw = 0; kw < kernel_w; kw++, w += step) {
                    const float *x = from + (ptrdiff_t)kh * down * s->row + tap_column(s, kw * across) + p;
                    sum += *(const poetc_vector_unaligned *)x * w[0];
                }
            }
            sum += bias;
            *(poetc_vector_unaligned *)(y + p) = sum;
        }
    } else if (width >= 4) {
        for (at = 0; at < width; at += 4) {
            const int32_t p = at + 4 > width ? width - 4 : at;
            const float *w = weight;
            poetc_f4 sum = POETC_F4_ZERO;
            POETC_UNROLL_3
            for (kh = 0; kh < kernel_h; kh++) {
                POETC_UNROLL_3
                for (kw = 0; kw < kernel_w; kw++, w += step)
                    sum = poetc_f4_add_scaled(
                        sum, poetc_f4_load(from + (ptrdiff_t)kh * down * s->row + tap_column(s, kw * across) + p), w[0]);
            }
            poetc_f4_store(y + p, poetc_f4_add(sum, poetc_f4_set(bias, bias, bias, bias)));
        }
    } else {
        for (at = 0; at < width; at++) {
            const float *w = weight;
            float sum = 0.0f;
            for (kh = 0; kh < kernel_h; kh++)
                for (kw = 0; kw < kernel_w; kw++, w += step)
                    sum += from[(ptrdiff_t)kh * down * s->row + tap_column(s, kw * across) + at] * w[0];
            y[at] = sum + bias;
        }
    }
}

static void correlate_row(const strip *s, const float *from, const float *weight, int32_t step, const convolution *c,
                          float *y, int32_t width, float bias)
{
    const int32_t down = c->dilation_h, across = c->dilation_w;
    if (c->kernel_h == 3 && c->kernel_w == 3)
        correlate(s, from, weight, step, 3, 3, down, across, y, width, bias);
    else
        correlate(s, from, weight, step, c->kernel_h, c->kernel_w, down, across, y, width, bias);
}

/* ints: those of convolution.c, then phases, floats of a phase, floats of a row, and rows of the result in a strip. */
static strip describe_strip(const poetc_call *call, float *workspace)
{
    strip s;
    s.data = workspace;
    s.phases = call->ints[17], s.phase = call->ints[18], s.row = call->ints[19];
    return s;
}

/* x[N,C,H,W], w[C,1,kh,kw], b[C]? -> y[N,C,OH,OW] */
int poetc_op_depthwise(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *weight = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, c.has_bias ? 3 : 2);
    const strip s = describe_strip(call, poetc_out(call, c.has_bias ? 4 : 3));
    const int32_t reach = (c.kernel_h - 1) * c.dilation_h, block = call->ints[20];
    int32_t n, channel, top, r;
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, x += (ptrdiff_t)c.height * c.width) {
            const float *w = weight + (ptrdiff_t)channel * c.kernel_h * c.kernel_w;
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                pad_strip(&s, x, c.height, c.width, 1, 1, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                for (r = 0; r < rows; r++, y += c.output_width)
                    correlate_row(&s, s.data + (ptrdiff_t)r * c.stride_h * s.row, w, 1, &c, y, c.output_width,
                                  bias ? bias[channel] : 0.0f);
            }
        }
    }
    return POETC_OK;
}

/* gy[N,C,OH,OW], w[C,1,kh,kw], b[C]? -> gx[N,C,H,W]: the turned filter over gy, spread by the strides. */
int poetc_op_depthwise_grad_input(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *gy = poetc_in(call, 0), *weight = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *gx = poetc_out(call, c.has_bias ? 3 : 2);
    const strip s = describe_strip(call, poetc_out(call, c.has_bias ? 4 : 3));
    const int32_t reach_h = (c.kernel_h - 1) * c.dilation_h, reach_w = (c.kernel_w - 1) * c.dilation_w;
    const int32_t taps = c.kernel_h * c.kernel_w, block = call->ints[20];
    int32_t n, channel, top, r;
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, gy += (ptrdiff_t)c.output_height * c.output_width) {
            const float *w = weight + (ptrdiff_t)channel * taps + (taps - 1);
            for (top = 0; top < c.height; top += block) {
                const int32_t rows = top + block > c.height ? c.height - top : block;
                pad_strip(&s, gy, c.output_height, c.output_width, c.stride_h, c.stride_w, reach_h - c.pad_top,
                          reach_w - c.pad_left, top, rows + reach_h);
                for (r = 0; r < rows; r++, gx += c.width)
                    correlate_row(&s, s.data + (ptrdiff_t)r * s.row, w, -1, &c, gx, c.width,
                                  bias ? bias[channel] : 0.0f);
            }
        }
    }
    return POETC_OK;
}

/* Sums of one strip, added to gw. `gy` has rows of `width` floats, a multiple of 4, zeros at their ends. */
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
                POETC_UNROLL_3
                for (kw = 0; kw < kernel_w; kw++) {
                    const float *x = from + (ptrdiff_t)kh * c->dilation_h * s->row +
                                     tap_column(s, (first_w + kw) * c->dilation_w) + i;
                    sums[kh * kernel_w + kw] = poetc_f4_add(sums[kh * kernel_w + kw], poetc_f4_mul(g, poetc_f4_load(x)));
                }
            }
        }
    }
    POETC_UNROLL_9
    for (i = 0; i < kernel_h * kernel_w; i++)
        gw[i] += poetc_f4_total(sums[i]);
}

/* x[N,C,H,W], gy[N,C,OH,OW] -> gw[C,1,kh,kw]. The last int is where rows of gy go in the workspace (floats). */
int poetc_op_depthwise_grad_weight(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gw = poetc_out(call, 2), *workspace = poetc_out(call, 3), *rows_of_gy = workspace + call->ints[21];
    const strip s = describe_strip(call, workspace);
    const int32_t reach = (c.kernel_h - 1) * c.dilation_h, block = call->ints[20], width = (c.output_width + 3) / 4 * 4;
    int32_t n, channel, top, r, i, kh, kw;
    for (channel = 0; channel < c.channels; channel++, gw += c.kernel_h * c.kernel_w) {
        for (i = 0; i < c.kernel_h * c.kernel_w; i++)
            gw[i] = 0.0f;
        for (n = 0; n < c.batch; n++) {
            const float *plane = x + ((ptrdiff_t)n * c.channels + channel) * c.height * c.width;
            const float *from = gy + ((ptrdiff_t)n * c.channels + channel) * c.output_height * c.output_width;
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                pad_strip(&s, plane, c.height, c.width, 1, 1, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                for (r = 0; r < rows; r++, from += c.output_width) {
                    float *to = rows_of_gy + (ptrdiff_t)r * width;
                    for (i = 0; i < c.output_width; i++)
                        to[i] = from[i];
                    for (; i < width; i++)
                        to[i] = 0.0f;
                }
                if (c.kernel_h == 3 && c.kernel_w == 3) {
                    add_taps(&s, &c, rows_of_gy, width, rows, 3, 3, 0, 0, gw);
                } else {
                    for (kh = 0; kh < c.kernel_h; kh++)
                        for (kw = 0; kw < c.kernel_w; kw++)
                            add_taps(&s, &c, rows_of_gy, width, rows, 1, 1, kh, kw, gw + kh * c.kernel_w + kw);
                }
            }
        }
    }
    return POETC_OK;
}
