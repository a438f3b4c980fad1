/* Depthwise convolution (a filter a channel) and its gradients.
 *
 * A strip of the image is copied into the workspace with its padding, so that no border is left, and columns a stride apart
 * lie side by side, so that every tap reads consecutive floats. The sum of a pixel begins with the bias and goes over the taps
 * in sequence; the sum of a weight goes over four lanes along each row, strip by strip. */
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
            to += left;
            for (i = width; i >= 4; i -= 4)
                POETC_COPY_FOUR(to, row);
            for (; i > 0; i--)
                *to++ = *row++;
            for (i = s->row - left - width; i > 0; i--)
                *to++ = 0.0f;
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

/* How a result is made of a strip. `down` and `across`: padded rows and columns from tap to tap; `step` through the weights: -1
 * turns the filter. */
typedef struct {
    const strip *s;
    const float *weight;
    int32_t step, kernel_h, kernel_w, down, across;
    float bias;
    float *y;
    int32_t width;
} filter;

/* A block of LANES pixels: their sums, what a tap adds to them, and where they go. On scalars four, in registers that load
 * together. */
#if POETC_LANES == 1
#define LANES 4
#define SUMS(s, value) float s##0 = (value), s##1 = s##0, s##2 = s##0, s##3 = s##0
#define TAP(v, x)                                                                                                      \
    const float *x##_at = (x);                                                                                         \
    POETC_QUAD_B(v);                                                                                                   \
    POETC_LOAD_QUAD(v, x##_at)
#define ADD(s, v, w)                                                                                                   \
    do {                                                                                                               \
        POETC_MULTIPLY_ADD(s##0, v##0, w);                                                                             \
        POETC_MULTIPLY_ADD(s##1, v##1, w);                                                                             \
        POETC_MULTIPLY_ADD(s##2, v##2, w);                                                                             \
        POETC_MULTIPLY_ADD(s##3, v##3, w);                                                                             \
    } while (0)
#define PUT(y, s) ((y)[0] = s##0, (y)[1] = s##1, (y)[2] = s##2, (y)[3] = s##3)
#else
#define LANES POETC_LANES
#define SUMS(s, value) poetc_vector s = (poetc_vector){0} + (value)
#define TAP(v, x) const poetc_vector v = poetc_vector_load(x)
#define ADD(s, v, w) POETC_ADD_SCALED(s, v, w)
#define PUT(y, s) poetc_vector_store(y, s)
#endif

/* One or two (a constant) rows of the result under a 3 x 3 filter. Two rows, whose windows lie one row apart, share what
 * they load. The last block of a row may overlap the one before, with the same values. */
POETC_INLINE void correlate_3x3(const filter *f, const float *from, const int rows)
{
    const ptrdiff_t row = (ptrdiff_t)f->down * f->s->row;
    const ptrdiff_t column[3] = {0, tap_column(f->s, f->across), tap_column(f->s, 2 * f->across)};
    const float bias = f->bias;
    const int32_t width = f->width;
    float w[9], *result = f->y;
    int32_t at, r, i;
    POETC_UNROLL_9
    for (i = 0; i < 9; i++)
        w[i] = f->weight[i * f->step];
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

/* One row of the result under any filter. */
static void correlate(const filter *f, const float *from)
{
    int32_t at, kh, kw;
    for (at = 0; at < f->width; at += LANES) {
        const int32_t p = at + LANES > f->width ? f->width - LANES : at;
        const float *w = f->weight, *row = from + p;
        SUMS(a, f->bias);
        for (kh = 0; kh < f->kernel_h; kh++, row += (ptrdiff_t)f->down * f->s->row) {
            for (kw = 0; kw < f->kernel_w; kw++, w += f->step) {
                const float *tap = row + tap_column(f->s, kw * f->across);
                TAP(v, tap);
                ADD(a, v, *w);
            }
        }
        PUT(f->y + p, a);
    }
}

static float correlate_pixel(const filter *f, const float *from, int32_t p)
{
    const float *w = f->weight;
    float sum = f->bias;
    int32_t kh, kw;
    for (kh = 0; kh < f->kernel_h; kh++)
        for (kw = 0; kw < f->kernel_w; kw++, w += f->step)
            sum += from[(ptrdiff_t)kh * f->down * f->s->row + tap_column(f->s, kw * f->across) + p] * w[0];
    return sum;
}

#if POETC_LANES > 4
static void correlate_four(const filter *f, const float *from, int32_t p)
{
    const float *w = f->weight;
    poetc_f4 sum = poetc_f4_set(f->bias, f->bias, f->bias, f->bias);
    int32_t kh, kw;
    for (kh = 0; kh < f->kernel_h; kh++)
        for (kw = 0; kw < f->kernel_w; kw++, w += f->step)
            sum = poetc_f4_add_scaled(
                sum, poetc_f4_load(from + (ptrdiff_t)kh * f->down * f->s->row + tap_column(f->s, kw * f->across) + p),
                w[0]);
    poetc_f4_store(f->y + p, sum);
}
#endif

/* One row of the result, or two if there are and their windows lie one row of the strip apart; returns how many. */
static int32_t correlate_some(const filter *f, const float *from, int32_t left, int32_t stride_h)
{
    const int small = f->kernel_h == 3 && f->kernel_w == 3;
    int32_t p = 0;
    if (f->width >= LANES) {
        if (small && left >= 2 && stride_h == 1 && f->down == 1) {
            correlate_3x3(f, from, 2);
            return 2;
        }
        if (small)
            correlate_3x3(f, from, 1);
        else
            correlate(f, from);
        return 1;
    }
#if POETC_LANES > 4
    for (; p + 4 <= f->width; p += 4)
        correlate_four(f, from, p);
#endif
    for (; p < f->width; p++)
        f->y[p] = correlate_pixel(f, from, p);
    return 1;
}

/* `rows` rows of the result from the strip. */
static void correlate_strip(filter *f, int32_t rows, int32_t stride_h)
{
    const float *from = f->s->data;
    while (rows > 0) {
        const int32_t done = correlate_some(f, from, rows, stride_h);
        rows -= done, f->y += done * f->width, from += (ptrdiff_t)done * stride_h * f->s->row;
    }
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
    filter f = {&s, NULL, 1, c.kernel_h, c.kernel_w, c.dilation_h, c.dilation_w, 0.0f, y, c.output_width};
    int32_t n, channel, top;
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, x += (ptrdiff_t)c.height * c.width) {
            f.weight = weight + (ptrdiff_t)channel * c.kernel_h * c.kernel_w;
            f.bias = bias ? bias[channel] : 0.0f;
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                pad_strip(&s, x, c.height, c.width, 1, 1, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                correlate_strip(&f, rows, c.stride_h);
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
    filter f = {&s, NULL, -1, c.kernel_h, c.kernel_w, c.dilation_h, c.dilation_w, 0.0f, gx, c.width};
    int32_t n, channel, top;
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, gy += (ptrdiff_t)c.output_height * c.output_width) {
            f.weight = weight + (ptrdiff_t)channel * taps + (taps - 1);
            f.bias = bias ? bias[channel] : 0.0f;
            for (top = 0; top < c.height; top += block) {
                const int32_t rows = top + block > c.height ? c.height - top : block;
                pad_strip(&s, gy, c.output_height, c.output_width, c.stride_h, c.stride_w, reach_h - c.pad_top,
                          reach_w - c.pad_left, top, rows + reach_h);
                correlate_strip(&f, rows, 1);
            }
        }
    }
    return POETC_OK;
}

/* Sums of one strip, added to gw: kernel_h x kernel_w taps from (first_h, first_w) on. `gy` has rows of `width` floats, a multiple of 4,
 * zeros at their ends. */
#if POETC_LANES == 1
/* A row of at most three taps at a time: the sums stay in registers. */
#define TAPS_H 1
POETC_INLINE void add_taps(const strip *s, const convolution *c, const float *gy, int32_t width, int32_t rows,
                           const int32_t kernel_h, const int32_t kernel_w, int32_t first_h, int32_t first_w, float *gw)
{
    float sums[3][4];
    const float *x[3];
    int32_t r, i, kw;
    (void)kernel_h;
    POETC_UNROLL_3
    for (kw = 0; kw < kernel_w; kw++)
        sums[kw][0] = sums[kw][1] = sums[kw][2] = sums[kw][3] = 0.0f;
    for (r = 0; r < rows; r++) {
        const float *from = s->data + ((ptrdiff_t)r * c->stride_h + first_h * c->dilation_h) * s->row;
        POETC_UNROLL_3
        for (kw = 0; kw < kernel_w; kw++)
            x[kw] = from + tap_column(s, (first_w + kw) * c->dilation_w);
        for (i = width; i > 0; i -= 4) {
            POETC_QUAD_A(g);
            POETC_QUAD_B(v);
            POETC_LOAD_QUAD(g, gy);
            POETC_UNROLL_3
            for (kw = 0; kw < kernel_w; kw++) {
                POETC_LOAD_QUAD(v, x[kw]);
                POETC_MULTIPLY_ADD(sums[kw][0], g0, v0);
                POETC_MULTIPLY_ADD(sums[kw][1], g1, v1);
                POETC_MULTIPLY_ADD(sums[kw][2], g2, v2);
                POETC_MULTIPLY_ADD(sums[kw][3], g3, v3);
            }
        }
    }
    POETC_UNROLL_3
    for (kw = 0; kw < kernel_w; kw++)
        gw[kw] += (sums[kw][0] + sums[kw][1]) + (sums[kw][2] + sums[kw][3]);
}
#else
#if defined(POETC_HELIUM)
#define TAPS_H 1
#else
#define TAPS_H 3
#endif
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
                    sums[kh * kernel_w + kw] = poetc_f4_add_product(sums[kh * kernel_w + kw], g, poetc_f4_load(x));
                }
            }
        }
    }
    POETC_UNROLL_9
    for (i = 0; i < kernel_h * kernel_w; i++)
        gw[i] += poetc_f4_total(sums[i]);
}
#endif

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
                    for (kh = 0; kh < 3; kh += TAPS_H)
                        add_taps(&s, &c, rows_of_gy, width, rows, TAPS_H, 3, kh, 0, gw + 3 * kh);
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
