/* Convolution without workspace: forward, gradient of the input, gradient of the weight.
 *
 * Layout: images are [N, C, H, W], weights [O, C / group, kh, kw]. Conv and ConvGradInput both correlate rows and
 * differ only in steps, so they share `correlate_row`. It computes tiles of 4 channels x 4 pixels in registers.
 * Order of sums: bias, then depth (the source's channels), tap row, tap column, for every pixel and in every tile. So a
 * result does not depend on how its row was tiled. The gradient of a weight adds pixels in segments of four lanes. */
#include "convolution/poetc_convolution.h"
#include "simd/poetc_f4.h"

/* One row of the result for `channels` channels. Steps are in floats, columns in pixels of the source. */
typedef struct {
    const float *source;                    /* the first source row that a tap reads, at column 0, first channel */
    const float *weight;                    /* of the first channel, first depth, first tap */
    const float *start;                     /* with which sums begin: of the first channel, first pixel */
    float *result;                          /* of the first channel, first pixel */
    int32_t channels, depth, rows, columns; /* of taps: rows x columns */
    ptrdiff_t depth_step, row_step;         /* in the source */
    int32_t column, column_step;            /* source column of pixel 0's first tap; from tap to tap */
    int32_t pixels, pixel_step;             /* of the row; from pixel to pixel in the source */
    int32_t source_width;
    ptrdiff_t weight_channel, weight_depth, weight_row, weight_column;
    ptrdiff_t result_channel, result_pixel;
    ptrdiff_t start_channel, start_pixel;
} row_task;

#define GOES_ON 2 /* in has_bias: these are further terms of the sums that the result holds */
static const float ZERO = 0.0f;

/* Sums begin with the bias: added last it would meet a sum that has lost the bits that decide which side of zero it is.
 * `bias`: of the first channel, or NULL. */
static inline void begin_sums(row_task *t, const float *bias, int goes_on)
{
    t->start = goes_on ? t->result : bias ? bias : &ZERO;
    t->start_channel = goes_on ? t->result_channel : bias ? 1 : 0;
    t->start_pixel = goes_on ? t->result_pixel : 0;
}

static inline float start_of(const row_task *t, int32_t channel, int32_t p)
{
    return t->start[channel * t->start_channel + p * t->start_pixel];
}

static inline poetc_f4 four_starts(const row_task *t, int32_t channel, int32_t p)
{
    const float *start = t->start + channel * t->start_channel + p * t->start_pixel;
    const ptrdiff_t s = t->start_pixel;
    return poetc_f4_set(start[0], start[s], start[2 * s], start[3 * s]);
}

/* 4 channels x 4 pixels from pixel `p` on, all taps inside the source. */
static void tile_4x4(const row_task *t, int32_t channel, int32_t p)
{
    const float *weight = t->weight + channel * t->weight_channel;
    const float *source = t->source + (t->column + (ptrdiff_t)p * t->pixel_step);
    const ptrdiff_t o = t->weight_channel, s = t->pixel_step;
    poetc_f4 sum[4];
    int32_t d, r, k, i, j;
    poetc_f4 s0 = four_starts(t, channel, p), s1 = four_starts(t, channel + 1, p);
    poetc_f4 s2 = four_starts(t, channel + 2, p), s3 = four_starts(t, channel + 3, p);
    for (d = 0; d < t->depth; d++) {
        for (r = 0; r < t->rows; r++) {
            const float *x = source + d * t->depth_step + r * t->row_step;
            const float *w = weight + d * t->weight_depth + r * t->weight_row;
            for (k = 0; k < t->columns; k++, x += t->column_step, w += t->weight_column) {
                poetc_f4 v = s == 1 ? poetc_f4_load(x) : poetc_f4_set(x[0], x[s], x[2 * s], x[3 * s]);
                s0 = poetc_f4_add_scaled(s0, v, w[0]);
                s1 = poetc_f4_add_scaled(s1, v, w[o]);
                s2 = poetc_f4_add_scaled(s2, v, w[2 * o]);
                s3 = poetc_f4_add_scaled(s3, v, w[3 * o]);
            }
        }
    }
    sum[0] = s0, sum[1] = s1, sum[2] = s2, sum[3] = s3;
    for (i = 0; i < 4; i++) {
        float *y = t->result + (channel + i) * t->result_channel + p * t->result_pixel;
        float lanes[4];
        poetc_f4_store(lanes, sum[i]);
        for (j = 0; j < 4; j++)
            y[j * t->result_pixel] = lanes[j];
    }
}

/* 1 channel x 4 pixels: depthwise, and fewer than 4 channels. */
static void tile_1x4(const row_task *t, int32_t channel, int32_t p)
{
    const float *weight = t->weight + channel * t->weight_channel;
    const float *source = t->source + (t->column + (ptrdiff_t)p * t->pixel_step);
    float *y = t->result + channel * t->result_channel + p * t->result_pixel;
    const ptrdiff_t s = t->pixel_step;
    float lanes[4];
    int32_t d, r, k, j;
    poetc_f4 sum = four_starts(t, channel, p);
    for (d = 0; d < t->depth; d++) {
        for (r = 0; r < t->rows; r++) {
            const float *x = source + d * t->depth_step + r * t->row_step;
            const float *w = weight + d * t->weight_depth + r * t->weight_row;
            for (k = 0; k < t->columns; k++, x += t->column_step, w += t->weight_column) {
                poetc_f4 v = s == 1 ? poetc_f4_load(x) : poetc_f4_set(x[0], x[s], x[2 * s], x[3 * s]);
                sum = poetc_f4_add_scaled(sum, v, w[0]);
            }
        }
    }
    poetc_f4_store(lanes, sum);
    for (j = 0; j < 4; j++)
        y[j * t->result_pixel] = lanes[j];
}

/* One pixel of all channels, with only the taps that lie inside the source. */
static void border_pixel(const row_task *t, int32_t p)
{
    const ptrdiff_t o = t->weight_channel;
    int32_t column = t->column + p * t->pixel_step, first = 0, last = t->columns, channel = 0, d, r, k;
    while (first < last && (column + first * t->column_step < 0 || column + first * t->column_step >= t->source_width))
        first++;
    while (last > first &&
           (column + (last - 1) * t->column_step < 0 || column + (last - 1) * t->column_step >= t->source_width))
        last--;
    column += first * t->column_step;
    while (channel < t->channels) {
        int32_t count = t->channels - channel < 4 ? 1 : 4;
        const float *weight = t->weight + channel * o + first * t->weight_column;
        float *y = t->result + channel * t->result_channel + p * t->result_pixel;
        const int32_t other = count == 4;
        float s0 = start_of(t, channel, p), s1 = start_of(t, channel + other, p);
        float s2 = start_of(t, channel + 2 * other, p), s3 = start_of(t, channel + 3 * other, p);
        for (d = 0; first < last && d < t->depth; d++) {
            for (r = 0; r < t->rows; r++) {
                const float *x = t->source + d * t->depth_step + r * t->row_step + column;
                const float *w = weight + d * t->weight_depth + r * t->weight_row;
                if (count == 1) {
                    for (k = first; k < last; k++, x += t->column_step, w += t->weight_column)
                        s0 = POETC_FMA(x[0], w[0], s0);
                } else {
                    for (k = first; k < last; k++, x += t->column_step, w += t->weight_column) {
                        s0 = POETC_FMA(x[0], w[0], s0);
                        s1 = POETC_FMA(x[0], w[o], s1);
                        s2 = POETC_FMA(x[0], w[2 * o], s2);
                        s3 = POETC_FMA(x[0], w[3 * o], s3);
                    }
                }
            }
        }
        y[0] = s0;
        if (count == 4) {
            y[t->result_channel] = s1;
            y[2 * t->result_channel] = s2;
            y[3 * t->result_channel] = s3;
        }
        channel += count;
    }
}

/* All pixels: border, tiles of the interior (the last one overlaps the one before, with the same values), border. Where
 * sums go on, tiles do not overlap. The rest of a row is border then, and channels left over have tiles of one. */
static void correlate_row(const row_task *t)
{
    int32_t reach = (t->columns - 1) * t->column_step, channel, p;
    int32_t leftmost = t->column + (reach < 0 ? reach : 0), rightmost = t->column + (reach > 0 ? reach : 0);
    int32_t low = -floor_div(leftmost, t->pixel_step);
    int32_t high = floor_div(t->source_width - 1 - rightmost, t->pixel_step) + 1;
    if (t->columns == 0 || t->rows == 0)
        low = high = 0;
    if (low < 0)
        low = 0;
    if (high > t->pixels)
        high = t->pixels;
    if (high - low < 4)
        low = high = 0;
    if (t->start == t->result)
        high -= (high - low) % 4;
    for (p = 0; p < low; p++)
        border_pixel(t, p);
    for (channel = 0; channel < t->channels && high > low;) {
        int32_t block = t->channels < 4 ? 1 : 4;
        if (channel + block > t->channels && t->start == t->result)
            block = 1;
        else if (channel + block > t->channels)
            channel = t->channels - block;
        for (p = low; p < high; p += 4) {
            int32_t at = p + 4 > high ? high - 4 : p;
            if (block == 4)
                tile_4x4(t, channel, at);
            else
                tile_1x4(t, channel, at);
        }
        channel += block;
    }
    for (p = high; p < t->pixels; p++)
        border_pixel(t, p);
}

/* x[N,C,H,W], w[O,C/group,kh,kw], b[O]? -> y[N,O,OH,OW] */
int poetc_op_conv(const poetc_call *call)
{
    const convolution c = describe(call);
    const int has_bias = c.has_bias & 1, goes_on = c.has_bias & GOES_ON;
    const float *x = poetc_in(call, 0), *w = poetc_in(call, 1), *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, has_bias ? 3 : 2);
    const ptrdiff_t plane = (ptrdiff_t)c.height * c.width, output_plane = (ptrdiff_t)c.output_height * c.output_width;
    const ptrdiff_t taps = (ptrdiff_t)c.kernel_h * c.kernel_w;
    const int32_t depth = c.channels / c.group, channels = c.outputs / c.group;
    int32_t n, g, oh;
    for (n = 0; n < c.batch; n++) {
        for (g = 0; g < c.group; g++) {
            for (oh = 0; oh < c.output_height; oh++) {
                int32_t top = oh * c.stride_h - c.pad_top, first = 0, last = c.kernel_h;
                row_task t;
                while (first < last && top + first * c.dilation_h < 0)
                    first++;
                while (last > first && top + (last - 1) * c.dilation_h >= c.height)
                    last--;
                top = last > first ? top + first * c.dilation_h : 0;
                t.source = x + ((ptrdiff_t)n * c.channels + (ptrdiff_t)g * depth) * plane + (ptrdiff_t)top * c.width;
                t.weight = w + (ptrdiff_t)g * channels * depth * taps + (ptrdiff_t)first * c.kernel_w;
                t.result = y + ((ptrdiff_t)n * c.outputs + (ptrdiff_t)g * channels) * output_plane +
                           (ptrdiff_t)oh * c.output_width;
                t.channels = channels, t.depth = depth, t.rows = last - first, t.columns = c.kernel_w;
                t.depth_step = plane, t.row_step = (ptrdiff_t)c.dilation_h * c.width;
                t.column = -c.pad_left, t.column_step = c.dilation_w;
                t.pixels = c.output_width, t.pixel_step = c.stride_w, t.source_width = c.width;
                t.weight_channel = depth * taps, t.weight_depth = taps;
                t.weight_row = c.kernel_w, t.weight_column = 1;
                t.result_channel = output_plane, t.result_pixel = 1;
                begin_sums(&t, bias ? bias + (ptrdiff_t)g * channels : NULL, goes_on);
                correlate_row(&t);
            }
        }
    }
    return POETC_OK;
}

/* The taps k of a window through which position `at` (padded, in pixels of the image) was read, as a progression. */
typedef struct {
    int32_t first, step, count;      /* k = first, first + step, ... */
    int32_t position, position_step; /* index of the output that tap `first` belongs to; from tap to tap */
} tap_progression;

/* `limit` >= 0: only outputs in [0, limit); otherwise any (the caller checks). */
static tap_progression taps_at(int32_t at, int32_t kernel, int32_t dilation, int32_t stride, int32_t limit)
{
    tap_progression taps = {0, 0, 0, 0, 0};
    int32_t k;
    for (k = 0; k < kernel; k++) {
        int32_t position = floor_div(at - k * dilation, stride);
        if (position * stride != at - k * dilation || (limit >= 0 && (position < 0 || position >= limit)))
            continue;
        if (taps.count == 0)
            taps.first = k, taps.position = position;
        else if (taps.count == 1)
            taps.step = k - taps.first, taps.position_step = position - taps.position;
        taps.count++;
    }
    return taps;
}

/* gy[N,O,OH,OW], w[O,C/group,kh,kw], b[C]? -> gx[N,C,H,W]. With the bias it is the transposed convolution. Pixels of a
 * row that lie a stride apart see the same taps and consecutive outputs. Each such class is a row task of its own. */
int poetc_op_conv_grad_input(const poetc_call *call)
{
    const convolution c = describe(call);
    const int has_bias = c.has_bias & 1, goes_on = c.has_bias & GOES_ON;
    const float *gy = poetc_in(call, 0), *w = poetc_in(call, 1), *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *gx = poetc_out(call, has_bias ? 3 : 2);
    const ptrdiff_t plane = (ptrdiff_t)c.height * c.width, output_plane = (ptrdiff_t)c.output_height * c.output_width;
    const ptrdiff_t taps = (ptrdiff_t)c.kernel_h * c.kernel_w;
    const int32_t channels = c.channels / c.group, depth = c.outputs / c.group;
    int32_t n, g, ih, phase;
    for (n = 0; n < c.batch; n++) {
        for (g = 0; g < c.group; g++) {
            for (ih = 0; ih < c.height; ih++) {
                tap_progression down = taps_at(ih + c.pad_top, c.kernel_h, c.dilation_h, c.stride_h, c.output_height);
                for (phase = 0; phase < c.stride_w && phase < c.width; phase++) {
                    tap_progression across = taps_at(phase + c.pad_left, c.kernel_w, c.dilation_w, c.stride_w, -1);
                    row_task t;
                    t.source = gy + ((ptrdiff_t)n * c.outputs + (ptrdiff_t)g * depth) * output_plane +
                               (ptrdiff_t)down.position * c.output_width;
                    t.weight =
                        w + (ptrdiff_t)g * depth * channels * taps + (ptrdiff_t)down.first * c.kernel_w + across.first;
                    t.result = gx + ((ptrdiff_t)n * c.channels + (ptrdiff_t)g * channels) * plane +
                               (ptrdiff_t)ih * c.width + phase;
                    t.channels = channels, t.depth = depth, t.rows = down.count, t.columns = across.count;
                    t.depth_step = output_plane, t.row_step = (ptrdiff_t)down.position_step * c.output_width;
                    t.column = across.position, t.column_step = across.position_step;
                    t.pixels = (c.width - phase + c.stride_w - 1) / c.stride_w, t.pixel_step = 1;
                    t.source_width = c.output_width;
                    t.weight_channel = taps, t.weight_depth = channels * taps;
                    t.weight_row = (ptrdiff_t)down.step * c.kernel_w, t.weight_column = across.step;
                    t.result_channel = plane, t.result_pixel = c.stride_w;
                    begin_sums(&t, bias ? bias + (ptrdiff_t)g * channels : NULL, goes_on);
                    correlate_row(&t);
                }
            }
        }
    }
    return POETC_OK;
}

/* Terms that are added up plainly before they join the total. */
#define SEGMENT 256

/* Row segments' sums for up to 4 output channels: four lanes along the row and a tail each. */
typedef struct {
    poetc_f4 lanes[4];
    float tail[4], total[4];
    int32_t pending;
} weight_sums;

static void flush(weight_sums *sums)
{
    int32_t i;
    for (i = 0; i < 4; i++) {
        sums->total[i] += poetc_f4_total(sums->lanes[i]) + sums->tail[i];
        sums->lanes[i] = POETC_F4_ZERO;
        sums->tail[i] = 0.0f;
    }
    sums->pending = 0;
}

/* gy rows `o` floats apart times one row of x with pixels `s` apart. */
static void add_segment_4(weight_sums *sums, const float *gy, ptrdiff_t o, const float *x, ptrdiff_t s, int32_t count)
{
    poetc_f4 s0 = sums->lanes[0], s1 = sums->lanes[1], s2 = sums->lanes[2], s3 = sums->lanes[3];
    float t0 = sums->tail[0], t1 = sums->tail[1], t2 = sums->tail[2], t3 = sums->tail[3];
    int32_t i;
    for (i = 0; i + 4 <= count; i += 4, x += 4 * s, gy += 4) {
        poetc_f4 v = s == 1 ? poetc_f4_load(x) : poetc_f4_set(x[0], x[s], x[2 * s], x[3 * s]);
        s0 = poetc_f4_add_product(s0, v, poetc_f4_load(gy));
        s1 = poetc_f4_add_product(s1, v, poetc_f4_load(gy + o));
        s2 = poetc_f4_add_product(s2, v, poetc_f4_load(gy + 2 * o));
        s3 = poetc_f4_add_product(s3, v, poetc_f4_load(gy + 3 * o));
    }
    for (; i < count; i++, x += s, gy++) {
        t0 = POETC_FMA(x[0], gy[0], t0);
        t1 = POETC_FMA(x[0], gy[o], t1);
        t2 = POETC_FMA(x[0], gy[2 * o], t2);
        t3 = POETC_FMA(x[0], gy[3 * o], t3);
    }
    sums->lanes[0] = s0, sums->lanes[1] = s1, sums->lanes[2] = s2, sums->lanes[3] = s3;
    sums->tail[0] = t0, sums->tail[1] = t1, sums->tail[2] = t2, sums->tail[3] = t3;
}

static void add_segment_1(weight_sums *sums, const float *gy, const float *x, ptrdiff_t s, int32_t count)
{
    poetc_f4 s0 = sums->lanes[0];
    float t0 = sums->tail[0];
    int32_t i;
    for (i = 0; i + 4 <= count; i += 4, x += 4 * s, gy += 4) {
        poetc_f4 v = s == 1 ? poetc_f4_load(x) : poetc_f4_set(x[0], x[s], x[2 * s], x[3 * s]);
        s0 = poetc_f4_add_product(s0, v, poetc_f4_load(gy));
    }
    for (; i < count; i++, x += s, gy++)
        t0 = POETC_FMA(x[0], gy[0], t0);
    sums->lanes[0] = s0, sums->tail[0] = t0;
}

/* x[N,C,H,W], gy[N,O,OH,OW] -> gw[O,C/group,kh,kw]: per weight the sum over N and the outputs, in segments. */
int poetc_op_conv_grad_weight(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gw = poetc_out(call, 2);
    const ptrdiff_t plane = (ptrdiff_t)c.height * c.width, output_plane = (ptrdiff_t)c.output_height * c.output_width;
    const int32_t depth = c.channels / c.group, outputs = c.outputs / c.group, block = outputs < 4 ? 1 : 4;
    int32_t g, o, d, kh, kw, n, oh, ow, i;
    for (g = 0; g < c.group; g++) {
        for (o = 0; o < outputs; o += block) {
            int32_t first = g * outputs + (o + block > outputs ? outputs - block : o);
            for (d = 0; d < depth; d++) {
                for (kh = 0; kh < c.kernel_h; kh++) {
                    for (kw = 0; kw < c.kernel_w; kw++) {
                        int32_t down = kh * c.dilation_h - c.pad_top, across = kw * c.dilation_w - c.pad_left;
                        int32_t top, bottom, left, right;
                        weight_sums sums = {{POETC_F4_ZERO, POETC_F4_ZERO, POETC_F4_ZERO, POETC_F4_ZERO},
                                            {0.0f, 0.0f, 0.0f, 0.0f},
                                            {0.0f, 0.0f, 0.0f, 0.0f},
                                            0};
                        output_range(down, c.stride_h, c.height, c.output_height, &top, &bottom);
                        output_range(across, c.stride_w, c.width, c.output_width, &left, &right);
                        for (n = 0; n < c.batch; n++) {
                            const float *image = x + ((ptrdiff_t)n * c.channels + (ptrdiff_t)g * depth + d) * plane;
                            const float *grad = gy + ((ptrdiff_t)n * c.outputs + first) * output_plane;
                            for (oh = top; oh < bottom; oh++) {
                                const float *row = image + (ptrdiff_t)(oh * c.stride_h + down) * c.width;
                                for (ow = left; ow < right; ow += SEGMENT) {
                                    int32_t count = right - ow < SEGMENT ? right - ow : SEGMENT;
                                    const float *from = row + (ow * c.stride_w + across);
                                    const float *of = grad + (ptrdiff_t)oh * c.output_width + ow;
                                    if (block == 4)
                                        add_segment_4(&sums, of, output_plane, from, c.stride_w, count);
                                    else
                                        add_segment_1(&sums, of, from, c.stride_w, count);
                                    sums.pending += count;
                                    if (sums.pending >= SEGMENT)
                                        flush(&sums);
                                }
                            }
                        }
                        flush(&sums);
                        for (i = 0; i < block; i++)
                            gw[(((ptrdiff_t)(first + i) * depth + d) * c.kernel_h + kh) * c.kernel_w + kw] =
                                sums.total[i];
                    }
                }
            }
        }
    }
    return POETC_OK;
}
