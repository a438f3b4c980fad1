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

static int is_pointwise(const convolution *c)
{
    return c->kernel_h * c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 &&
           c->output_height * c->output_width == c->height * c->width;
}

static inline int32_t clip(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Rows (channels) [first, first + depth) of planes of `pixels`, `channels` of them an image, and columns (n, oh, ow)
 * [column, column + columns). */
POETC_APART void pack_planes(const poetc_gemm_space *space, const float *from, int32_t channels, int32_t pixels, int32_t first,
                        int32_t depth, int32_t column, int32_t columns)
{
    int32_t at, k, run;
    for (at = 0; at < columns; at += run) {
        const int32_t image = (column + at) / pixels, pixel = column + at - image * pixels;
        const float *row = from + ((ptrdiff_t)image * channels + first) * pixels + pixel;
        run = poetc_min(pixels - pixel, columns - at);
        for (k = 0; k < depth; k++, row += pixels)
            poetc_gemm_put(space, depth, k, at, row, 1, run);
    }
    poetc_gemm_put_end(space, depth, columns);
}

/* Conv's b: rows (c, kh, kw) [first, first + depth), columns (n, oh, ow) [column, column + columns). `x` is the image of the
 * group's first channel. */
#if POETC_GEMM_COLUMNS == 4

/* Four pixels: where their windows begin. */
typedef struct {
    const float *image[4];
    int32_t top[4], left[4];
    int together; /* side by side: a tap reads four floats in a row */
    int inside;   /* all windows lie on the image */
    int32_t first, last; /* if together: columns of taps on the image for all of them */
} four_pixels;

static void find_pixels(four_pixels *f, const convolution *c, const float *x, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, step = c->dilation_w;
    const int32_t lowest = c->height - (c->kernel_h - 1) * c->dilation_h, rightmost = c->width - (c->kernel_w - 1) * step;
    int32_t lane, image = column / pixels, oh = (column - image * pixels) / c->output_width;
    int32_t ow = column - image * pixels - oh * c->output_width;
    f->together = c->stride_w == 1 && columns >= 4 && ow + 4 <= c->output_width;
    f->inside = columns >= 4;
    for (lane = 0; lane < 4; lane++, ow++) {
        if (ow == c->output_width) {
            ow = 0;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
        f->image[lane] = x + image * (ptrdiff_t)c->channels * c->height * c->width;
        f->top[lane] = oh * c->stride_h - c->pad_top, f->left[lane] = ow * c->stride_w - c->pad_left;
        if (lane >= columns) /* beyond the last column: above the image are only zeros */
            f->top[lane] = -(1 << 24), f->image[lane] = x;
        f->inside &= f->top[lane] >= 0 && f->top[lane] < lowest && f->left[lane] >= 0 && f->left[lane] < rightmost;
    }
    f->first = f->last = 0;
    if (f->together) {
        int32_t position = f->left[0];
        for (; f->first < c->kernel_w && position < 0; position += step)
            f->first++;
        for (f->last = f->first; f->last < c->kernel_w && position + 4 <= c->width; position += step)
            f->last++;
    }
}

/* Taps [kw, end) of row kh for four pixels anywhere. */
static float *pack_taps(const convolution *c, const four_pixels *f, ptrdiff_t channel, int32_t kh, int32_t kw,
                        int32_t end, float *to)
{
    int32_t lane;
    if (f->inside) {
        const ptrdiff_t at = channel + kh * c->dilation_h * c->width + kw * c->dilation_w;
        const float *p0 = f->image[0] + f->top[0] * c->width + f->left[0] + at;
        const float *p1 = f->image[1] + f->top[1] * c->width + f->left[1] + at;
        const float *p2 = f->image[2] + f->top[2] * c->width + f->left[2] + at;
        const float *p3 = f->image[3] + f->top[3] * c->width + f->left[3] + at;
        int32_t offset = 0;
        for (kw = end - kw; kw > 0; kw--, offset += c->dilation_w, to += 4)
            to[0] = p0[offset], to[1] = p1[offset], to[2] = p2[offset], to[3] = p3[offset];
        return to;
    }
    for (; kw < end; kw++) {
        for (lane = 0; lane < 4; lane++) {
            const int32_t ih = f->top[lane] + kh * c->dilation_h, iw = f->left[lane] + kw * c->dilation_w;
            const int there = (uint32_t)ih < (uint32_t)c->height && (uint32_t)iw < (uint32_t)c->width;
            *to++ = there ? f->image[lane][channel + ih * c->width + iw] : 0.0f;
        }
    }
    return to;
}

/* Taps [kw, end) for four pixels side by side, the first one's window at `left` in `row`. What lies beside the image is
 * loaded too if it is in the tensor, and then replaced. */
static inline float *pack_row(const convolution *c, const four_pixels *f, const float *row, int32_t kw, int32_t end,
                              const float *tensor, const float *tensor_end, float *to)
{
    const int32_t step = c->dilation_w, low = f->first;
    int32_t position = f->left[0] + kw * step, count = poetc_min(f->last, end) - (kw > low ? kw : low);
    const float *from = row + position;
    while (kw < end) {
        if (kw >= low && count > 0) {
            kw += count, position += count * step;
            do {
                const float *source = from;
                POETC_COPY_FOUR(to, source);
                from += step;
            } while (--count > 0);
        } else {
            int32_t lane = 0;
            if (from >= tensor && from + 4 <= tensor_end) {
                const float *source = from;
                POETC_COPY_FOUR(to, source);
                for (; position + lane < 0 && lane < 4; lane++)
                    to[lane - 4] = 0.0f;
                for (lane = 3; position + lane >= c->width && lane >= 0; lane--)
                    to[lane - 4] = 0.0f;
            } else {
                for (; lane < 4; lane++)
                    *to++ = (uint32_t)(position + lane) < (uint32_t)c->width ? from[lane] : 0.0f;
            }
            kw++, from += step, position += step;
        }
    }
    return to;
}

POETC_APART void pack_pixels(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                        int32_t depth, int32_t column, int32_t columns)
{
    const int32_t taps = c->kernel_h * c->kernel_w, start = first % taps;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    const float *end_of_x = x + ((c->batch - 1) * (ptrdiff_t)c->channels + c->channels / c->group) * plane;
    float *to = space->panels;
    int32_t at, i;
    for (at = 0; at < columns; at += 4) {
        four_pixels f;
        int32_t kh = start / c->kernel_w, kw = start - kh * c->kernel_w, left = depth;
        ptrdiff_t channel = first / taps * plane;
        find_pixels(&f, c, x, column + at, columns - at);
        for (; left > 0; kw = 0) { /* the taps of one row of a window */
            const int32_t end = poetc_min(c->kernel_w, kw + left), ih = f.top[0] + kh * c->dilation_h;
            left -= end - kw;
            if (f.together && f.inside) { /* the usual case, first */
                const float *from = f.image[0] + f.left[0] + channel + ih * c->width + kw * c->dilation_w;
                do {
                    const float *source = from;
                    POETC_COPY_FOUR(to, source);
                    from += c->dilation_w;
                } while (++kw < end);
            } else if (!f.together)
                to = pack_taps(c, &f, channel, kh, kw, end, to);
            else if ((uint32_t)ih < (uint32_t)c->height)
                to = pack_row(c, &f, f.image[0] + channel + ih * c->width, kw, end, x, end_of_x, to);
            else
                for (i = 4 * (end - kw); i > 0; i--)
                    *to++ = 0.0f;
            if (++kh == c->kernel_h)
                kh = 0, channel += plane;
        }
    }
}

#else

/* What holds for all channels is found out once: tap by tap, output row by output row. */
POETC_APART void pack_pixels(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                        int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    int32_t tap, kh = 0, kw = 0, channel, at;
    for (tap = 0; tap < taps; tap++, kw++) {
        const int32_t from = first <= tap ? 0 : (first - tap + taps - 1) / taps;
        const int32_t to = first + depth <= tap ? 0 : (first + depth - tap + taps - 1) / taps;
        int32_t image = column / pixels, oh = (column - image * pixels) / c->output_width;
        int32_t ow = column - image * pixels - oh * c->output_width, low, high, run;
        if (kw == c->kernel_w)
            kw = 0, kh++;
        output_range(kw * c->dilation_w - c->pad_left, c->stride_w, c->width, c->output_width, &low, &high);
        for (at = 0; from < to && at < columns; at += run) { /* a part of one output row */
            const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
            const int inside = ih >= 0 && ih < c->height;
            int32_t begin, end, k = from * taps + tap - first;
            const float *source;
            run = poetc_min(c->output_width - ow, columns - at);
            begin = inside ? clip(low - ow, 0, run) : run;
            end = clip(high - ow, begin, run);
            source = x + (image * (ptrdiff_t)c->channels + from) * plane;
            if (end > begin)
                source += (ptrdiff_t)ih * c->width + (ow + begin) * c->stride_w + kw * c->dilation_w - c->pad_left;
            for (channel = from; channel < to; channel++, k += taps, source += plane) {
                if (begin > 0)
                    poetc_gemm_put(space, depth, k, at, NULL, 1, begin);
                poetc_gemm_put(space, depth, k, at + begin, source, c->stride_w, end - begin);
                if (end < run)
                    poetc_gemm_put(space, depth, k, at + end, NULL, 1, run - end);
            }
            ow = 0;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
    }
    poetc_gemm_put_end(space, depth, columns);
}

#endif

/* As poetc_op_conv; the last ints are the size of the workspace (floats) and the terms of a block. */
int poetc_op_conv_packed(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *w = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, c.has_bias ? 3 : 2);
    const int32_t pixels = c.output_height * c.output_width, inputs = c.channels / c.group;
    const int32_t outputs = c.outputs / c.group, k = inputs * c.kernel_h * c.kernel_w;
    const int32_t depth = call->ints[18], total = c.batch * pixels;
    const int pointwise = is_pointwise(&c);
    const poetc_gemm_space space = poetc_gemm_carve(poetc_out(call, c.has_bias ? 4 : 3), call->ints[17], depth, 0);
    int32_t group, column, first;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = k, g.a_k = 1;
        g.row_bias = bias ? bias + (ptrdiff_t)group * outputs : NULL, g.column_bias = NULL;
        g.y = y + (ptrdiff_t)group * outputs * pixels, g.y_row = pixels;
        g.segment = pixels, g.segment_step = (ptrdiff_t)c.outputs * pixels;
        for (column = 0; column < total; column += space.columns) {
            g.column = column, g.columns = poetc_min(space.columns, total - column);
            for (first = 0; first < k; first += depth) {
                g.depth = poetc_min(depth, k - first);
                if (pointwise)
                    pack_planes(&space, image, c.channels, pixels, first, g.depth, column, g.columns);
                else
                    pack_pixels(&space, &c, image, first, g.depth, column, g.columns);
                g.a = w + (ptrdiff_t)group * outputs * k + first, g.accumulate = first > 0;
                poetc_gemm_run(&g, &space);
            }
        }
    }
    return POETC_OK;
}

/* ConvGradWeight's b: rows (n, oh, ow) [first, first + depth), columns (c, kh, kw) [column, column + columns). */
#if POETC_GEMM_COLUMNS == 4

/* to[0, 4, ...] = from[0, step, ...], or zeros; returns what follows. */
static inline float *put_column(float *to, const float *from, int32_t step, int32_t count)
{
    if (!from) {
        for (; count > 0; count--, to += 4)
            *to = 0.0f;
        return to;
    }
#if defined(POETC_HELIUM)
    const uint32x4_t offsets = {0, 16, 32, 48};
    if (step == 1)
        for (; count >= 4; count -= 4, from += 4, to += 16)
            vstrwq_scatter_offset_f32(to, offsets, vld1q_f32(from));
#else
    if (step == 1)
        for (; count >= 4; count -= 4, to += 16) {
            POETC_QUAD_B(four);
            POETC_LOAD_QUAD(four, from);
            to[0] = four0, to[4] = four1, to[8] = four2, to[12] = four3;
        }
#endif
    for (; count > 0; count--, to += 4, from += step)
        *to = *from;
    return to;
}

POETC_APART void pack_windows(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                         int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    const int32_t image = first / pixels, first_row = (first - image * pixels) / c->output_width;
    const int32_t first_column = first - image * pixels - first_row * c->output_width;
    int32_t channel = column / taps, kh = (column - channel * taps) / c->kernel_w;
    int32_t kw = column - channel * taps - kh * c->kernel_w, at;
    for (at = 0; at < columns; at++) {
        const float *source = x + (image * (ptrdiff_t)c->channels + channel) * plane;
        const int32_t offset = kw * c->dilation_w - c->pad_left;
        float *to = poetc_gemm_panel(space, at, depth) + at % POETC_GEMM_COLUMNS;
        int32_t low, high, k, run, oh = first_row, ow = first_column;
        output_range(offset, c->stride_w, c->width, c->output_width, &low, &high);
        for (k = 0; k < depth; k += run, ow = 0, oh++) { /* one row of the output; a block is within one image */
            const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
            int32_t begin = low, end = high;
            run = c->output_width;
            if (ow > 0 || run > depth - k) { /* a part of it */
                run = poetc_min(run - ow, depth - k);
                begin = clip(low - ow, 0, run), end = clip(high - ow, begin, run);
            }
            if ((uint32_t)ih >= (uint32_t)c->height)
                begin = end = run;
            if (begin > 0)
                to = put_column(to, NULL, 0, begin);
            if (end > begin)
                to = put_column(to, source + ih * c->width + (ow + begin) * c->stride_w + offset, c->stride_w,
                                end - begin);
            if (end < run)
                to = put_column(to, NULL, 0, run - end);
        }
        if (++kw == c->kernel_w) {
            kw = 0;
            if (++kh == c->kernel_h)
                kh = 0, channel++;
        }
    }
    poetc_gemm_put_end(space, depth, columns);
}

#else

POETC_APART void pack_windows(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
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

#endif

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
    const int pointwise = is_pointwise(&c);
    int32_t group, column, first, n;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = pixels, g.a_k = 1;
        g.row_bias = g.column_bias = NULL;
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

/* to += from */
static inline void add_to(float *to, const float *from, int32_t count)
{
#if POETC_LANES == 1
    for (; count >= 4; count -= 4) {
        const float *old = to;
        POETC_QUAD_A(p);
        POETC_QUAD_B(q);
        POETC_LOAD_QUAD(p, from);
        POETC_LOAD_QUAD(q, old);
        q0 += p0, q1 += p1, q2 += p2, q3 += p3;
        POETC_STORE_QUAD(to, q);
    }
#else
    for (; count >= 4; count -= 4, to += 4, from += 4)
        poetc_f4_store(to, poetc_f4_add(poetc_f4_load(to), poetc_f4_load(from)));
#endif
    for (; count > 0; count--)
        *to++ += *from++;
}

/* Add rows (c, kh, kw) of products, columns (n, oh, ow), to the pixels that they belong to: rows of the output in ascending
 * order, taps in ascending order, so that the order of a pixel's sum does not depend on the size of the block. */
POETC_APART void spread(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows, float *gx)
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
                    if (c->stride_w == 1) {
                        low = offset < 0 ? -offset : 0;
                        high = poetc_min(c->output_width, c->width - offset);
                        add_to(to + low + offset, from + low, high - low);
                    } else {
                        output_range(offset, c->stride_w, c->width, c->output_width, &low, &high);
                        for (ow = low; ow < high; ow++)
                            to[ow * c->stride_w + offset] += from[ow];
                    }
                }
            }
        }
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
        g.a_row = 1, g.a_k = (ptrdiff_t)channels * taps, g.column_bias = NULL;
        g.row_bias = pointwise && bias ? bias + (ptrdiff_t)group * channels : NULL;
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
                        pack_planes(&space, g_gy, c.outputs, pixels, first, g.depth, column, g.columns);
                        g.a = g_w + (first * (ptrdiff_t)channels + channel) * taps, g.accumulate = first > 0;
                        poetc_gemm_run(&g, &space);
                    }
                }
                if (!pointwise)
                    spread(&c, workspace, count, row, rows, g_gx + (ptrdiff_t)channel * plane);
            }
        }
    }
    return POETC_OK;
}
