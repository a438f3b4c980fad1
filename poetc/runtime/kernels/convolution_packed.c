/* Convolution and its gradients as matrix products on packed operands (poetc_gemm.h): convolution.c's kernels, faster, with
 * workspace. Pixels are gathered while they are packed; no column matrix is made.
 *
 * Columns are numbered over the batch, image after image, so that small images share a register block. */
#include "poetc_convolution.h"
#include "poetc_descend.h"
#include "poetc_direct.h"
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
    int together; /* side by side: a tap reads four floats in a row, and the first pixel tells the others */
    int inside;   /* all windows lie on the image */
} four_pixels;

static void find_pixels(four_pixels *f, const convolution *c, const float *x, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width;
    const int32_t lowest = c->height - (c->kernel_h - 1) * c->dilation_h;
    const int32_t rightmost = c->width - (c->kernel_w - 1) * c->dilation_w;
    int32_t lane, image = column / pixels, oh = (column - image * pixels) / c->output_width;
    int32_t ow = column - image * pixels - oh * c->output_width;
    f->together = c->stride_w == 1 && columns >= 4 && ow + 4 <= c->output_width;
    f->inside = columns >= 4;
    if (f->together) {
        f->image[0] = x + image * (ptrdiff_t)c->channels * c->height * c->width;
        f->top[0] = oh * c->stride_h - c->pad_top, f->left[0] = ow - c->pad_left;
        f->inside = f->top[0] >= 0 && f->top[0] < lowest && f->left[0] >= 0 && f->left[0] + 3 < rightmost;
        return;
    }
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
}

/* `left` taps from (channel, kh, kw) on. */
typedef struct {
    const convolution *c;
    ptrdiff_t channel; /* floats: its plane */
    int32_t kh, kw, left;
} tap_run;

/* The taps of a row that are left: how many; the run is moved to the next row. */
static inline int32_t next_row(tap_run *t)
{
    const int32_t count = poetc_min(t->c->kernel_w - t->kw, t->left);
    t->left -= count, t->kw = 0;
    if (++t->kh == t->c->kernel_h)
        t->kh = 0, t->channel += (ptrdiff_t)t->c->height * t->c->width;
    return count;
}

/* Four pixels side by side, all windows on the image: the usual case. */
POETC_APART void pack_inside(const four_pixels *f, tap_run t, float *to)
{
    const int32_t step = t.c->dilation_w, line = t.c->dilation_h * t.c->width, width = t.c->kernel_w;
    const ptrdiff_t jump = (ptrdiff_t)t.c->height * t.c->width - (ptrdiff_t)t.c->kernel_h * line;
    const float *row = f->image[0] + t.channel + (f->top[0] + t.kh * t.c->dilation_h) * t.c->width + f->left[0];
    const float *at = row + t.kw * step;
    int32_t rows = t.c->kernel_h - t.kh, count = width - t.kw, left = t.left;
    while (left > 0) {
        if (count > left)
            count = left;
        left -= count;
#if defined(POETC_HELIUM)
        if (step == 1) {
            __asm__ volatile("dls lr, %[n]\n1:\tvldrw.u32 q0, [%[at]], #4\n\tvstrw.32 q0, [%[to]], #16\n\tle lr, 1b"
                             : [at] "+r"(at), [to] "+r"(to)
                             : [n] "r"(count)
                             : "lr", "q0", "memory");
            count = 0;
        }
#endif
        for (; count > 0; count--, at += step) {
            const float *source = at;
            POETC_COPY_FOUR(to, source);
        }
        row += line, count = width;
        if (--rows == 0)
            rows = t.c->kernel_h, row += jump;
        at = row;
    }
}

/* Four pixels side by side, anywhere. */
POETC_APART void pack_clipped(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    const int32_t step = c->dilation_w, most = c->width - 4;
#if defined(POETC_HELIUM)
    const uint32x4_t widths = vdupq_n_u32((uint32_t)c->width);
#endif
    while (t.left > 0) {
        const int32_t ih = f->top[0] + t.kh * c->dilation_h;
        const float *from = f->image[0] + t.channel + ih * c->width;
        int32_t position = f->left[0] + t.kw * step, count = next_row(&t);
        if ((uint32_t)ih >= (uint32_t)c->height) {
            for (count *= 4; count > 0; count--)
                *to++ = 0.0f;
        }
#if defined(POETC_HELIUM)
        if (count > 0) { /* what lies beside the image is not read and becomes zero */
            uint32x4_t columns = vaddq_n_u32(vidupq_n_u32(0, 1), (uint32_t)position);
            from += position;
            __asm__ volatile("dls lr, %[n]\n"
                             "1:\tvcmp.u32 hi, %q[widths], %q[columns]\n\tvpst\n\tvldrwt.u32 q0, [%[from]]\n\t"
                             "vstrw.32 q0, [%[to]], #16\n\tvadd.i32 %q[columns], %q[columns], %[step]\n\t"
                             "add %[from], %[from], %[step], lsl #2\n\tle lr, 1b"
                             : [from] "+r"(from), [to] "+r"(to), [columns] "+w"(columns)
                             : [n] "r"(count), [widths] "w"(widths), [step] "r"(step)
                             : "lr", "q0", "memory");
            count = 0;
        }
#endif
        for (; count > 0; count--, position += step) {
            const float *source = from + position;
            if (position >= 0 && position <= most) {
                POETC_COPY_FOUR(to, source);
            } else {
                const uint32_t width = (uint32_t)c->width, first = (uint32_t)position;
                to[0] = first < width ? source[0] : 0.0f;
                to[1] = first + 1u < width ? source[1] : 0.0f;
                to[2] = first + 2u < width ? source[2] : 0.0f;
                to[3] = first + 3u < width ? source[3] : 0.0f;
                to += 4;
            }
        }
    }
}

/* Four pixels apart, all windows on the image. */
POETC_APART void pack_apart(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    const float *p0 = f->image[0] + f->top[0] * c->width + f->left[0];
    const float *p1 = f->image[1] + f->top[1] * c->width + f->left[1];
    const float *p2 = f->image[2] + f->top[2] * c->width + f->left[2];
    const float *p3 = f->image[3] + f->top[3] * c->width + f->left[3];
    const int32_t step = c->dilation_w;
    while (t.left > 0) {
        ptrdiff_t at = t.channel + t.kh * c->dilation_h * c->width + t.kw * step;
        int32_t count = next_row(&t);
        for (; count > 0; count--, at += step, to += 4)
            to[0] = p0[at], to[1] = p1[at], to[2] = p2[at], to[3] = p3[at];
    }
}

/* Four pixels anywhere. */
POETC_APART void pack_any(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    while (t.left > 0) {
        const int32_t kh = t.kh;
        const ptrdiff_t channel = t.channel;
        int32_t across = t.kw * c->dilation_w, count = next_row(&t), lane;
        for (; count > 0; count--, across += c->dilation_w) {
            for (lane = 0; lane < 4; lane++) {
                const int32_t ih = f->top[lane] + kh * c->dilation_h, iw = f->left[lane] + across;
                const int there = (uint32_t)ih < (uint32_t)c->height && (uint32_t)iw < (uint32_t)c->width;
                *to++ = there ? f->image[lane][channel + ih * c->width + iw] : 0.0f;
            }
        }
    }
}

POETC_APART void pack_pixels(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                        int32_t depth, int32_t column, int32_t columns)
{
    const int32_t taps = c->kernel_h * c->kernel_w, start = first % taps;
    float *to = space->panels;
    int32_t at;
    tap_run t;
    t.c = c, t.channel = first / taps * ((ptrdiff_t)c->height * c->width);
    t.kh = start / c->kernel_w, t.kw = start - t.kh * c->kernel_w, t.left = depth;
    for (at = 0; at < columns; at += 4, to += 4 * depth) {
        four_pixels f;
        find_pixels(&f, c, x, column + at, columns - at);
        if (f.together && f.inside)
            pack_inside(&f, t, to);
        else if (f.together)
            pack_clipped(&f, t, to);
        else if (f.inside)
            pack_apart(&f, t, to);
        else
            pack_any(&f, t, to);
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
    const int32_t terms = call->ints[18], total = c.batch * pixels;
    const int pointwise = is_pointwise(&c);
    float *workspace = POETC_WORKSPACE(call, c.has_bias ? 4 : 3);
    const poetc_gemm_space space = poetc_gemm_carve(workspace, call->ints[17], terms, (k + terms - 1) / terms, total, 0);
    int32_t group, column, first;
    POETC_SPLIT(split, c.share, 1, outputs, total)
    POETC_THREADED(poetc_op_conv_packed, call, CONVOLUTION_WORK(c), call->ints[17]);
    if (!pointwise && direct_conv(&c, x, w, bias, y, workspace, call->ints[17], terms))
        return POETC_OK;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = k, g.a_k = 1, g.terms = g.a_block = terms;
        g.row_bias = bias ? bias + (ptrdiff_t)group * outputs : NULL, g.column_bias = NULL;
        g.y = y + (ptrdiff_t)group * outputs * pixels, g.y_row = pixels;
        g.segment = pixels, g.segment_step = (ptrdiff_t)c.outputs * pixels;
        POETC_SPLIT_ROWS(g, split);
        for (column = POETC_BEGIN(split.columns, total, COLUMNS); column < POETC_END(split.columns, total, COLUMNS);
             column += space.columns) {
            g.column = column, g.columns = poetc_min(space.columns, POETC_END(split.columns, total, COLUMNS) - column);
            for (first = 0; first < k; first += space.depth) {
                g.depth = poetc_min(space.depth, k - first);
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

/* Four taps: what they read of a row of the output. */
typedef struct {
    int32_t offset[4]; /* floats, from where the window would begin without padding */
    int32_t down[4];   /* rows, likewise */
    int32_t low[4], length[4]; /* of a row of the output: the pixels whose tap lies on the image, if its row does */
    int32_t now[4];            /* length, or 0 */
} four_taps;

/* Pixels [ow, end) of a row of the output, with zeros beside the image. */
POETC_APART void pack_checked(const four_taps *t, const float *from, int32_t step, int32_t ow, int32_t end, float *to)
{
#if defined(POETC_HELIUM)
    const uint32x4_t offsets = vshlq_n_u32(vld1q_u32((const uint32_t *)t->offset), 2);
    const uint32x4_t low = vld1q_u32((const uint32_t *)t->low), now = vld1q_u32((const uint32_t *)t->now);
    for (from += ow * step; ow < end; ow++, from += step, to += 4) {
        const mve_pred16_t there = vcmphiq_u32(now, vsubq_u32(vdupq_n_u32((uint32_t)ow), low));
        vst1q_f32(to, vldrwq_gather_offset_z_f32(from, offsets, there));
    }
#else
    int lane;
    for (from += ow * step; ow < end; ow++, from += step, to += 4) {
        POETC_UNROLL_4
        for (lane = 0; lane < 4; lane++)
            to[lane] = (uint32_t)(ow - t->low[lane]) < (uint32_t)t->now[lane] ? from[t->offset[lane]] : 0.0f;
    }
#endif
}

/* `count` pixels of taps whose columns all lie on the image. */
POETC_APART void pack_four(const four_taps *t, const float *from, int32_t step, int32_t count, float *to)
{
#if defined(POETC_HELIUM)
    const uint32x4_t offsets = vshlq_n_u32(vld1q_u32((const uint32_t *)t->offset), 2);
    const mve_pred16_t there = vcmphiq_u32(vld1q_u32((const uint32_t *)t->now), vdupq_n_u32(0));
    for (; count > 0; count--, from += step, to += 4)
        vst1q_f32(to, vldrwq_gather_offset_z_f32(from, offsets, there));
#else
    static const float zero = 0.0f;
    const float *p0 = t->now[0] ? from + t->offset[0] : &zero, *p1 = t->now[1] ? from + t->offset[1] : &zero;
    const float *p2 = t->now[2] ? from + t->offset[2] : &zero, *p3 = t->now[3] ? from + t->offset[3] : &zero;
    if (step == 1 && t->now[0] && t->now[1] && t->now[2] && t->now[3]) {
        POETC_UNROLL_4
        for (; count > 0; count--) {
            POETC_QUAD_B(q);
            q0 = *p0++, q1 = *p1++, q2 = *p2++, q3 = *p3++;
            POETC_STORE_QUAD(to, q);
        }
    } else {
        const ptrdiff_t s0 = t->now[0] ? step : 0, s1 = t->now[1] ? step : 0;
        const ptrdiff_t s2 = t->now[2] ? step : 0, s3 = t->now[3] ? step : 0;
        for (; count > 0; count--, p0 += s0, p1 += s1, p2 += s2, p3 += s3, to += 4)
            to[0] = *p0, to[1] = *p1, to[2] = *p2, to[3] = *p3;
    }
#endif
}

POETC_APART void pack_windows(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                         int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, per_channel = c->kernel_h * c->kernel_w;
    const int32_t first_image = first / pixels, first_row = (first - first_image * pixels) / c->output_width;
    const int32_t first_pixel = first - first_image * pixels - first_row * c->output_width;
    const int32_t plane = c->height * c->width;
    int32_t channel = column / per_channel, kh = (column - channel * per_channel) / c->kernel_w, at, lane;
    int32_t kw = column - channel * per_channel - kh * c->kernel_w;
    float *to = space->panels;
    for (at = 0; at < columns; at += 4) {
        int32_t low = 0, high = c->output_width, top = c->height, bottom = -c->height, left, run;
        int32_t image = first_image, oh = first_row, ow = first_pixel;
        four_taps t;
        for (lane = 0; lane < 4; lane++) {
            const int32_t down = kh * c->dilation_h - c->pad_top, across = kw * c->dilation_w - c->pad_left;
            int32_t tap_low, tap_high;
            t.down[lane] = down, t.offset[lane] = channel * plane + down * c->width + across;
            output_range(across, c->stride_w, c->width, c->output_width, &tap_low, &tap_high);
            t.low[lane] = tap_low, t.length[lane] = t.now[lane] = tap_high > tap_low ? tap_high - tap_low : 0;
#if defined(POETC_SOFT_FLOAT)
            if (at + lane >= columns) /* zeros take least time */
                t.length[lane] = t.now[lane] = 0;
#endif
            low = tap_low > low ? tap_low : low, high = poetc_min(tap_high, high);
            top = poetc_min(down, top), bottom = down > bottom ? down : bottom;
            if (at + lane + 1 >= columns) /* results that nobody reads: again the last tap */
                continue;
            if (++kw == c->kernel_w) {
                kw = 0;
                if (++kh == c->kernel_h)
                    kh = 0, channel++;
            }
        }
        for (left = depth; left > 0; left -= run, ow = 0) {
            const int32_t row = oh * c->stride_h;
            const float *from = x + image * (ptrdiff_t)c->channels * plane + (ptrdiff_t)row * c->width;
            const int clipped = row + top < 0 || row + bottom >= c->height;
            int32_t last, begin, end;
            run = poetc_min(c->output_width - ow, left), last = ow + run;
            begin = clip(low, ow, last), end = clip(high, begin, last);
            if (clipped)
                for (lane = 0; lane < 4; lane++)
                    t.now[lane] = (uint32_t)(row + t.down[lane]) < (uint32_t)c->height ? t.length[lane] : 0;
            if (begin > ow)
                pack_checked(&t, from, c->stride_w, ow, begin, to);
            if (end > begin)
                pack_four(&t, from + begin * c->stride_w, c->stride_w, end - begin, to + 4 * (begin - ow));
            if (last > end)
                pack_checked(&t, from, c->stride_w, end, last, to + 4 * (end - ow));
            if (clipped)
                for (lane = 0; lane < 4; lane++)
                    t.now[lane] = t.length[lane];
            to += 4 * run;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
    }
}

#define strip_rows(c, size) ((void)(size), 0)
#define pack_strips(space, c, x, first, depth, column, columns, strip, held) ((void)(strip))

#else

/* `count` rows of a channel's plane from row `first` on, `columns` columns from `left` on; zeros beside the image. */
static inline void copy_rows(float *to, const float *plane, const convolution *c, int32_t first, int32_t count, int32_t left,
                             int32_t columns)
{
    const int32_t begin = clip(-left, 0, columns), end = clip(c->width - left, begin, columns);
    int32_t row;
    for (row = first; row < first + count; row++, to += columns) {
        if (row < 0 || row >= c->height) {
            poetc_put_piece(to, NULL, 1, columns);
            continue;
        }
        poetc_put_piece(to, NULL, 1, begin);
        poetc_put_piece(to + begin, plane + (ptrdiff_t)row * c->width + left + begin, 1, end - begin);
        poetc_put_piece(to + end, NULL, 1, columns - end);
    }
}

/* Windows of `count` rows of pixels of one channel, from a strip without edges. `to` is the first row's panel row, the first
 * of the pixels that are wanted is column `ow` of the first row, and there are `pixels` of them. */
typedef struct {
    const float *strip;
    int32_t width; /* of the strip */
    int32_t ow, pixels;
} window_strip;

/* `run` taps of a row of the window, side by side. Four at once may spill over the run: into lanes that the next run fills. */
static inline void put_windows(const convolution *c, const window_strip *s, int32_t kh, int32_t kw, int32_t run,
                               int spill, float *to)
{
    const float *row = s->strip + (ptrdiff_t)kh * c->dilation_h * s->width + kw * c->dilation_w;
    int32_t ow = s->ow, left = s->pixels, i;
    for (; left > 0; row += (ptrdiff_t)c->stride_h * s->width, ow = 0) {
        const float *from = row + ow * c->stride_w;
        int32_t count = poetc_min(c->output_width - ow, left);
        left -= count;
        if (spill) {
            POETC_UNROLL_4
            for (; count > 0; count--, from += c->stride_w, to += COLUMNS)
                poetc_f4_store(to, poetc_f4_load(from));
        } else if (run == 1) {
            POETC_UNROLL_4
            for (; count > 0; count--, from += c->stride_w, to += COLUMNS)
                to[0] = from[0];
        } else {
            for (; count > 0; count--, from += c->stride_w, to += COLUMNS)
                for (i = 0; i < run; i++)
                    to[i] = from[i * c->dilation_w];
        }
    }
}

static inline int32_t strip_width(const convolution *c)
{
    return (c->output_width - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1;
}

/* Rows of the output whose windows a strip of `size` floats holds. */
static inline int32_t strip_rows(const convolution *c, int32_t size)
{
    const int32_t room = size < 4 ? -1 : (size - 4) / strip_width(c) - (c->kernel_h - 1) * c->dilation_h - 1;
    return room < 0 ? 0 : room / c->stride_h + 1;
}

/* By a strip with room for `held` rows of the output: rows of the image with zeros around them. */
POETC_APART void pack_strips(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns, float *strip, int32_t held)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const int32_t reach = (c->kernel_h - 1) * c->dilation_h, width = strip_width(c);
    window_strip s = {strip, width, 0, 0};
    int32_t k, at, run;
    for (k = 0; k < depth; k += s.pixels) {
        const int32_t image = (first + k) / pixels, pixel = first + k - image * pixels, oh = pixel / c->output_width;
        int32_t channel = -1;
        s.ow = pixel - oh * c->output_width;
        s.pixels = poetc_min(poetc_min(depth - k, pixels - pixel), held * c->output_width - s.ow);
        for (at = 0; at < columns; at += run) { /* the taps of one row of a window inside one panel */
            const int32_t here = (column + at) / taps, tap = column + at - here * taps, kh = tap / c->kernel_w;
            const int32_t kw = tap - kh * c->kernel_w, lane = at % COLUMNS;
            run = poetc_min(poetc_min(c->kernel_w - kw, columns - at), COLUMNS - lane);
            if (here != channel) {
                const int32_t rows = (s.ow + s.pixels + c->output_width - 1) / c->output_width;
                const float *plane = x + (image * (ptrdiff_t)c->channels + here) * c->height * c->width;
                channel = here;
                copy_rows(strip, plane, c, oh * c->stride_h - c->pad_top, (rows - 1) * c->stride_h + reach + 1,
                          -c->pad_left, width);
            }
            put_windows(c, &s, kh, kw, run, c->dilation_w == 1 && run > 1 && run <= 4 && lane + 4 <= COLUMNS,
                        poetc_gemm_panel(space, at, depth) + (ptrdiff_t)k * COLUMNS + lane);
        }
    }
    for (at = columns; at % COLUMNS; at++)
        for (k = 0; k < depth; k++)
            poetc_gemm_panel(space, at, depth)[(ptrdiff_t)k * COLUMNS + at % COLUMNS] = 0.0f;
}

/* Without one, or where rows are too wide for it. */
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

/* What the weight's gradient multiplies gy by: columns from number `column` on, pixels from number `first` of image n on; or
 * whole small images. */
POETC_APART void pack_taps(const poetc_gemm_space *space, const convolution *c, const float *image, int32_t n, int32_t first,
                           const poetc_gemm *g, int32_t column, float *strip, int32_t size)
{
    const int32_t pixels = c->output_height * c->output_width;
    int32_t k, held = 0;
    if (is_pointwise(c)) {
        const float *from = image + ((ptrdiff_t)n * c->channels + column) * pixels + first;
        for (k = 0; k < g->depth; k += pixels, from += (ptrdiff_t)c->channels * pixels)
            poetc_gemm_pack_transposed(space, from, pixels, k, poetc_min(pixels, g->depth - k), g->depth, g->columns);
        return;
    }
    held = strip_rows(c, size);
    if (held > 0)
        pack_strips(space, c, image, n * pixels + first, g->depth, column, g->columns, strip, held);
    else
        pack_windows(space, c, image, n * pixels + first, g->depth, column, g->columns);
}

/* The gradient of the weights; or, if there is a learning rate, the weights in `to` moved by it: then a strip of results of
 * all outputs, in the workspace, is all that is held of it. Sums go over the pixels of all images, block after block; a block
 * never crosses from one image to the next. */
static void grad_weight(const poetc_call *call, const float *x, const float *gy, float *to, float *workspace, const float *lr)
{
    const convolution c = describe(call);
    const int32_t pixels = c.output_height * c.output_width, inputs = c.channels / c.group;
    const int32_t outputs = c.outputs / c.group, taps = c.kernel_h * c.kernel_w, width = inputs * taps;
    const int32_t terms = call->ints[18], blocks = (pixels + terms - 1) / terms;
    const int32_t strip = call->ints[19], size = call->ints[17] - strip;
    poetc_gemm_space space = poetc_gemm_carve(workspace, size, terms, blocks > 1 ? blocks : c.batch, width, 0);
    const int32_t images = blocks > 1 ? 1 : space.depth / terms; /* at once: small ones, one a block */
    int32_t group, column, first, n, o;
    POETC_SPLIT(split, c.share, 1, outputs, width)
    workspace[call->ints[17] - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    if (lr) /* as many as a strip holds */
        space.columns = poetc_min(space.columns, (call->ints[20] - call->ints[17]) / outputs / COLUMNS * COLUMNS);
    if (!is_pointwise(&c) && direct_grad_weight(&c, x, gy, to, lr, workspace, call->ints[17], terms))
        return;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        float *part = to + (ptrdiff_t)group * outputs * width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = pixels, g.a_k = 1, g.terms = terms;
        g.a_block = blocks > 1 ? terms : (ptrdiff_t)c.outputs * pixels;
        g.row_bias = g.column_bias = NULL;
        g.y = lr ? workspace + call->ints[17] : part;
        g.y_row = lr ? space.columns : width;
        g.segment = width, g.segment_step = 0;
        POETC_SPLIT_ROWS(g, split);
        for (column = POETC_BEGIN(split.columns, width, COLUMNS); column < POETC_END(split.columns, width, COLUMNS);
             column += space.columns) {
            g.column = lr ? 0 : column;
            g.columns = poetc_min(space.columns, POETC_END(split.columns, width, COLUMNS) - column);
            for (n = 0; n < c.batch; n += images) {
                for (first = 0; first < pixels; first += space.depth) {
                    const int32_t here = poetc_min(images, c.batch - n);
                    g.depth = here > 1 ? here * pixels : poetc_min(space.depth, pixels - first);
                    pack_taps(&space, &c, image, n, first, &g, column, workspace + size, strip);
                    g.a = gy + ((ptrdiff_t)n * c.outputs + (ptrdiff_t)group * outputs) * pixels + first;
                    g.accumulate = n > 0 || first > 0;
                    poetc_gemm_run(&g, &space);
                }
            }
            for (o = POETC_BEGIN(split.rows, outputs, POETC_GEMM_ROWS);
                 lr && o < POETC_END(split.rows, outputs, POETC_GEMM_ROWS); o++)
                poetc_descend(part + (ptrdiff_t)o * width + column, g.y + (ptrdiff_t)o * g.y_row, *lr, g.columns);
        }
    }
}

/* As poetc_op_conv_grad_weight; the last ints as above, and the floats of the workspace that hold a strip of an image. */
int poetc_op_conv_grad_weight_packed(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_grad_weight_packed, call, CONVOLUTION_WORK(describe(call)), call->ints[17]);
    grad_weight(call, poetc_in(call, 0), poetc_in(call, 1), poetc_out(call, 2), POETC_WORKSPACE(call, 3), NULL);
    return POETC_OK;
}

/* w, x, gy, lr -> w. ints: as above, and the floats of the workspace with the strip. */
int poetc_op_conv_grad_weight_sgd_packed(const poetc_call *call);
int poetc_op_conv_grad_weight_sgd_packed(const poetc_call *call)
{
    float *workspace = POETC_WORKSPACE(call, 5);
    POETC_THREADED(poetc_op_conv_grad_weight_sgd_packed, call, CONVOLUTION_WORK(describe(call)), call->ints[20]);
    workspace[call->ints[20] - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    grad_weight(call, poetc_in(call, 1), poetc_in(call, 2), poetc_out(call, 4), workspace, poetc_in(call, 3));
    return POETC_OK;
}

/* to += from */
static inline void add_to(float *to, const float *from, int32_t count)
{
#if defined(POETC_HELIUM)
    if (count > 0) /* the hardware leaves out the lanes beyond the last */
        __asm__ volatile("dlstp.32 lr, %2\n"
                         "1:\tvldrw.u32 q0, [%1], #16\n\tvldrw.u32 q1, [%0]\n\tvadd.f32 q0, q1, q0\n\t"
                         "vstrw.32 q0, [%0], #16\n\tletp lr, 1b"
                         : "+r"(to), "+r"(from)
                         : "r"(count)
                         : "lr", "q0", "q1", "memory");
    count = 0;
#elif POETC_LANES == 1
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
    float *gx = poetc_out(call, c.has_bias ? 3 : 2), *workspace = POETC_WORKSPACE(call, c.has_bias ? 4 : 3);
    const int32_t size = call->ints[17], terms = call->ints[18], held = call->ints[19];
    const int32_t block_rows = call->ints[20], block = call->ints[21];
    const int32_t pixels = c.output_height * c.output_width, plane = c.height * c.width;
    const int32_t taps = c.kernel_h * c.kernel_w, channels = c.channels / c.group, outputs = c.outputs / c.group;
    const int32_t all_rows = c.batch * c.output_height;
    const poetc_gemm_space space = poetc_gemm_carve(workspace + held, size - held, terms, (outputs + terms - 1) / terms,
                                                    block_rows * c.output_width, 1);
    const int pointwise = held == 0;
    int32_t group, channel, row, column, first, n, i;
    POETC_THREADED(poetc_op_conv_grad_input_packed, call, CONVOLUTION_WORK(c), size);
    if (!pointwise && direct_grad_input(&c, gy, w, bias, gx, workspace, size, terms))
        return POETC_OK;
    if (!pointwise) {
        float *to = gx;
        for (n = 0; n < c.batch; n++)
            for (i = 0; i < c.channels; i++, to += plane)
                if (!POETC_SKIPS(c.share, i % channels, channels))
                    fill(to, plane, bias ? bias[i] : 0.0f);
    }
    for (group = 0; group < c.group; group++) {
        const float *g_gy = gy + (ptrdiff_t)group * outputs * pixels;
        const float *g_w = w + (ptrdiff_t)group * outputs * channels * taps;
        float *g_gx = gx + (ptrdiff_t)group * channels * plane;
        poetc_gemm g;
        g.a_row = 1, g.a_k = (ptrdiff_t)channels * taps, g.terms = terms, g.a_block = terms * g.a_k;
        g.column_bias = NULL;
        g.row_bias = pointwise && bias ? bias + (ptrdiff_t)group * channels : NULL;
        POETC_ALL_ROWS(g);
        for (row = 0; row < all_rows; row += block_rows) {
            const int32_t rows = poetc_min(block_rows, all_rows - row);
            const int32_t start = row * c.output_width, end = start + rows * c.output_width;
            const int once = space.columns >= end - start && space.depth >= outputs; /* what is packed serves all channels */
            for (channel = POETC_BEGIN(c.share, channels, 1); channel < POETC_END(c.share, channels, 1); channel += block) {
                const int32_t count = poetc_min(block, POETC_END(c.share, channels, 1) - channel);
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
                    for (first = 0; first < outputs; first += space.depth) {
                        g.depth = poetc_min(space.depth, outputs - first);
                        if (channel == POETC_BEGIN(c.share, channels, 1) || !once)
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
