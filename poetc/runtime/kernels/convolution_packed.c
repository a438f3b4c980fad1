/* Convolution and its gradients as matrix products on packed operands (poetc_gemm.h): convolution.c's kernels, faster, with
 * workspace. Pixels are gathered while they are packed; no column matrix is made.
 *
 * Columns are numbered over the batch, image after image, so that small images share a register block. */
#include "poetc_convolution.h"
#include "poetc_gemm.h"

#define COLUMNS POETC_GEMM_COLUMNS

static void fill(float *to, int32_t count, float value)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = value;
}

/* to[0 .. count) = from[0, step, ...], for runs that are mostly short. */
static inline void copy(float *to, const float *from, int32_t step, int32_t count)
{
    int32_t i = 0;
    if (step == 1) {
        for (; i + 4 <= count; i += 4)
            poetc_f4_store(to + i, poetc_f4_load(from + i));
        for (; i < count; i++)
            to[i] = from[i];
    } else {
        for (; i < count; i++)
            to[i] = from[(ptrdiff_t)i * step];
    }
}

/* Conv's b: rows (c, kh, kw) [first, first + depth), columns (n, oh, ow) [column, column + columns). `x` is the image of the
 * group's first channel. */
static void pack_pixels(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                        int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    int32_t at = 0, k;
    while (at < columns) { /* a run of one output row inside one panel */
        const int32_t image = (column + at) / pixels, pixel = column + at - image * pixels;
        const int32_t oh = pixel / c->output_width, ow = pixel - oh * c->output_width;
        const int32_t lane = at % COLUMNS;
        const int32_t run = poetc_min(poetc_min(c->output_width - ow, columns - at), COLUMNS - lane);
        const float *source = x + image * c->channels * plane;
        float *to = poetc_gemm_panel(space, at, depth) + lane;
        int32_t channel = first / taps, tap = first - channel * taps, kh = tap / c->kernel_w, kw = tap - kh * c->kernel_w;
        for (k = 0; k < depth; k++, to += COLUMNS) {
            const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
            int32_t low = 0, high = 0;
            if (ih >= 0 && ih < c->height) {
                const int32_t offset = kw * c->dilation_w - c->pad_left;
                output_range(offset, c->stride_w, c->width, c->output_width, &low, &high);
                low = low > ow ? poetc_min(low - ow, run) : 0;
                high = high > ow ? poetc_min(high - ow, run) : 0;
                if (high > low) {
                    fill(to, low, 0.0f);
                    copy(to + low,
                         source + channel * plane + (ptrdiff_t)ih * c->width + (ow + low) * c->stride_w + offset,
                         c->stride_w, high - low);
                }
            }
            if (high <= low)
                high = 0;
            fill(to + high, run - high, 0.0f);
            if (++kw == c->kernel_w) {
                kw = 0;
                if (++kh == c->kernel_h)
                    kh = 0, channel++;
            }
        }
        at += run;
    }
    for (; at % COLUMNS; at++) { /* beyond the last column */
        float *to = poetc_gemm_panel(space, at, depth) + at % COLUMNS;
        for (k = 0; k < depth; k++)
            to[(ptrdiff_t)k * COLUMNS] = 0.0f;
    }
}

/* As poetc_op_conv; the last ints are the size of the workspace (floats) and the terms of a block. */
int poetc_op_conv_packed(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *w = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, c.has_bias ? 3 : 2);
    const int32_t pixels = c.output_height * c.output_width, inputs = c.channels / c.group;
    const int32_t outputs = c.outputs / c.group, k = inputs * c.kernel_h * c.kernel_w;
    const int32_t depth = call->ints[18], total = c.batch * pixels;
    const poetc_gemm_space space = poetc_gemm_carve(poetc_out(call, c.has_bias ? 4 : 3), call->ints[17], depth, 0);
    int32_t group, column, first, i, n;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = k, g.a_k = 1;
        g.y = y + (ptrdiff_t)group * outputs * pixels, g.y_row = pixels;
        g.segment = pixels, g.segment_step = (ptrdiff_t)c.outputs * pixels;
        for (column = 0; column < total; column += space.columns) {
            g.column = column, g.columns = poetc_min(space.columns, total - column);
            for (first = 0; first < k; first += depth) {
                g.depth = poetc_min(depth, k - first);
                pack_pixels(&space, &c, image, first, g.depth, column, g.columns);
                g.a = w + (ptrdiff_t)group * outputs * k + first, g.accumulate = first > 0;
                poetc_gemm_run(&g, &space);
            }
        }
    }
    for (n = 0; bias && n < c.batch; n++)
        for (i = 0; i < c.outputs; i++, y += pixels)
            for (column = 0; column < pixels; column++)
                y[column] += bias[i];
    return POETC_OK;
}

/* ConvGradWeight's b: rows (n, oh, ow) [first, first + depth), columns (c, kh, kw) [column, column + columns). */
static void pack_windows(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
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
            const float *row = x + (image * (ptrdiff_t)c->channels + channel) * plane + (ptrdiff_t)ih * c->width + offset;
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

/* As poetc_op_conv_grad_weight; the last ints as above. Sums go over the pixels of all images,
 * block after block; a block never crosses from one image to the next. */
int poetc_op_conv_grad_weight_packed(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gw = poetc_out(call, 2);
    const int32_t pixels = c.output_height * c.output_width, inputs = c.channels / c.group;
    const int32_t outputs = c.outputs / c.group, taps = c.kernel_h * c.kernel_w, width = inputs * taps;
    const int32_t depth = call->ints[18];
    const poetc_gemm_space space = poetc_gemm_carve(poetc_out(call, 3), call->ints[17], depth, 0);
    const int pointwise = taps == 1 && c.stride_h == 1 && c.stride_w == 1 && pixels == c.height * c.width;
    int32_t group, column, first, n;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = pixels, g.a_k = 1;
        g.y = gw + (ptrdiff_t)group * outputs * width, g.y_row = width;
        g.segment = width, g.segment_step = 0;
        for (column = 0; column < width; column += space.columns) {
            g.column = column, g.columns = poetc_min(space.columns, width - column);
            for (n = 0; n < c.batch; n++) {
                for (first = 0; first < pixels; first += depth) {
                    g.depth = poetc_min(depth, pixels - first);
                    if (pointwise)
                        poetc_gemm_pack_transposed(&space, image + ((ptrdiff_t)n * c.channels + column) * pixels + first,
                                                   pixels, g.depth, g.columns);
                    else
                        pack_windows(&space, &c, image, n * pixels + first, g.depth, column, g.columns);
                    g.a = gy + ((ptrdiff_t)n * c.outputs + (ptrdiff_t)group * outputs) * pixels + first;
                    g.accumulate = n > 0 || first > 0;
                    poetc_gemm_run(&g, &space);
                }
            }
        }
    }
    return POETC_OK;
}

/* Add rows (c, kh, kw) of products, columns (n, oh, ow), to the pixels that they belong to: rows of the output in ascending
 * order, taps in ascending order, so that the order of a pixel's sum does not depend on the size of the block. */
static void spread(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows, float *gx)
{
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    int32_t channel, r, kh, kw, ow;
    for (channel = 0; channel < channels; channel++) {
        for (r = 0; r < rows; r++) {
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            const float *from = products + channel * c->kernel_h * c->kernel_w * width + r * c->output_width;
            for (kh = 0; kh < c->kernel_h; kh++) {
                const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
                float *to = gx + ((ptrdiff_t)image * c->channels + channel) * plane + (ptrdiff_t)ih * c->width;
                if (ih < 0 || ih >= c->height) {
                    from += c->kernel_w * width;
                    continue;
                }
                for (kw = 0; kw < c->kernel_w; kw++, from += width) {
                    const int32_t offset = kw * c->dilation_w - c->pad_left;
                    int32_t low, high;
                    output_range(offset, c->stride_w, c->width, c->output_width, &low, &high);
                    if (c->stride_w == 1) {
                        for (ow = low; ow + 4 <= high; ow += 4)
                            poetc_f4_store(to + ow + offset,
                                           poetc_f4_add(poetc_f4_load(to + ow + offset), poetc_f4_load(from + ow)));
                        for (; ow < high; ow++)
                            to[ow + offset] += from[ow];
                    } else {
                        for (ow = low; ow < high; ow++)
                            to[ow * c->stride_w + offset] += from[ow];
                    }
                }
            }
        }
    }
}

/* gy's rows (outputs) [first, first + depth) and columns (n, oh, ow) [column, column + columns). */
static void pack_outputs(const poetc_gemm_space *space, const convolution *c, const float *gy, int32_t first,
                         int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width;
    int32_t at = 0, k;
    while (at < columns) {
        const int32_t image = (column + at) / pixels, pixel = column + at - image * pixels, lane = at % COLUMNS;
        const int32_t run = poetc_min(poetc_min(pixels - pixel, columns - at), COLUMNS - lane);
        const float *from = gy + ((ptrdiff_t)image * c->outputs + first) * pixels + pixel;
        float *to = poetc_gemm_panel(space, at, depth) + lane;
        for (k = 0; k < depth; k++, to += COLUMNS, from += pixels)
            copy(to, from, 1, run);
        at += run;
    }
    for (; at % COLUMNS; at++) {
        float *to = poetc_gemm_panel(space, at, depth) + at % COLUMNS;
        for (k = 0; k < depth; k++)
            to[(ptrdiff_t)k * COLUMNS] = 0.0f;
    }
}

/* As poetc_op_conv_grad_input. Products w' gy of some channels' taps and some rows of the output are made in the workspace
 * and added to the pixels they belong to. The last ints: as above, the part of the workspace that holds products (floats; 0
 * for a pointwise convolution, which needs none), and its rows of the output and channels. */
int poetc_op_conv_grad_input_packed(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *gy = poetc_in(call, 0), *w = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *gx = poetc_out(call, c.has_bias ? 3 : 2), *workspace = poetc_out(call, c.has_bias ? 4 : 3);
    const int32_t size = call->ints[17], depth = call->ints[18], held = call->ints[19];
    const int32_t block_rows = call->ints[20], block = call->ints[21];
    const int32_t pixels = c.output_height * c.output_width, plane = c.height * c.width;
    const int32_t taps = c.kernel_h * c.kernel_w, channels = c.channels / c.group, outputs = c.outputs / c.group;
    const int32_t all_rows = c.batch * c.output_height;
    const poetc_gemm_space space = poetc_gemm_carve(workspace + held, size - held, depth, 1);
    const int pointwise = held == 0;
    int32_t group, channel, row, column, first, n, i;
    if (!pointwise) {
        float *to = gx;
        for (n = 0; n < c.batch; n++)
            for (i = 0; i < c.channels; i++, to += plane)
                fill(to, plane, bias ? bias[i] : 0.0f);
    }
    for (group = 0; group < c.group; group++) {
        const float *g_gy = gy + (ptrdiff_t)group * outputs * pixels;
        const float *g_w = w + (ptrdiff_t)group * outputs * channels * taps;
        float *g_gx = gx + (ptrdiff_t)group * channels * plane;
        poetc_gemm g;
        g.a_row = 1, g.a_k = (ptrdiff_t)channels * taps;
        for (row = 0; row < all_rows; row += block_rows) {
            const int32_t rows = poetc_min(block_rows, all_rows - row);
            const int32_t start = row * c.output_width, end = start + rows * c.output_width;
            for (channel = 0; channel < channels; channel += block) {
                const int32_t count = poetc_min(block, channels - channel);
                g.rows = count * taps;
                for (column = start; column < end; column += space.columns) {
                    g.columns = poetc_min(space.columns, end - column);
                    if (pointwise) {
                        g.y = g_gx, g.y_row = plane, g.column = column;
                        g.segment = pixels, g.segment_step = (ptrdiff_t)c.channels * plane;
                    } else {
                        g.y = workspace, g.y_row = end - start, g.column = column - start;
                        g.segment = end - start, g.segment_step = 0;
                    }
                    for (first = 0; first < outputs; first += depth) {
                        g.depth = poetc_min(depth, outputs - first);
                        pack_outputs(&space, &c, g_gy, first, g.depth, column, g.columns);
                        g.a = g_w + (first * (ptrdiff_t)channels + channel) * taps, g.accumulate = first > 0;
                        poetc_gemm_run(&g, &space);
                    }
                }
                if (!pointwise)
                    spread(&c, workspace, count, row, rows, g_gx + (ptrdiff_t)channel * plane);
            }
        }
    }
    for (n = 0; pointwise && bias && n < c.batch; n++)
        for (i = 0; i < c.channels; i++, gx += plane)
            for (column = 0; column < plane; column++)
                gx[column] += bias[i];
    return POETC_OK;
}
