/* Depthwise convolution (one filter a channel) and its gradients.
 *
 * Layout: a strip of an image is copied into the workspace with its padding, so that no border is left. Rows follow
 * each other with one gap of zeros between them, so a strip is one long row. Or columns a stride apart lie side by
 * side. Under strides, pixels of the gradient of the input that lie a stride apart see the same taps. Each such phase
 * is a convolution of gy of its own, under the filter of these taps. Order of sums: a pixel begins with the bias and
 * adds its taps in sequence. A weight adds four lanes, strip by strip: along the whole strip under strides of one, else
 * along each row.
 *
 * Usual filters have tiles of their own: poetc_depthwise_fpu.h and poetc_depthwise_taps.h for scalars in an FPU, and
 * poetc_depthwise_planes.h for the smallest planes on Cortex-M. Vectors have poetc_depthwise_vectors.h, and Helium
 * poetc_depthwise_channels.h for 3 x 3. poetc_depthwise_any.h does the rest, and all of it on processors without an
 * FPU. */
#include "depthwise/poetc_depthwise.h"

#if POETC_LANES == 1 && !defined(POETC_SOFT_FLOAT)
#include "depthwise/poetc_depthwise_in_place.h"
#elif POETC_LANES > 1
#include "depthwise/poetc_depthwise_vectors.h"
#if defined(POETC_HELIUM)
#include "depthwise/poetc_depthwise_channels.h"
#endif
#endif
#include "depthwise/poetc_depthwise_any.h"

#if POETC_LANES > 1
/* The gradient of the input under a 3 x 3 filter and strides of two: every other row of gx, of `lines` taps. They begin
 * with the row of gy that the first of them reads. */
POETC_APART void gather_rows(const filter *f, const float *g, int32_t lines, int32_t tap, int more_first, float *y,
                             int32_t rows)
{
    (void)tap;
    if (lines == 1 && more_first)
        gather_lines(f, g, 1, 1, y, rows);
    else if (lines == 1)
        gather_lines(f, g, 1, 0, y, rows);
    else if (more_first)
        gather_lines(f, g, 2, 1, y, rows);
    else
        gather_lines(f, g, 2, 0, y, rows);
}
#endif

/* `rows` rows of the result from the strip. `stride_w`: of the strip's columns, 1 but for pairs. */
static void correlate_strip(const filter *of, float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
#if !defined(POETC_SOFT_FLOAT)
    if (!correlate_fast(of, from, rows, stride_h, stride_w))
#else
    (void)stride_w;
#endif
        correlate_any(of, from, rows, stride_h);
}

/* The ints are those of convolution.c, then phases, floats of a phase and of a row, rows of the result in a strip, its
 * floats. */
static strip describe_strip(const poetc_call *call, float *workspace)
{
    strip s;
    s.data = workspace;
    s.phases = call->ints[17], s.phase = call->ints[18], s.row = call->ints[19];
    s.slack = ((call->ints[8] - 1) * call->ints[14] + 15) / 4 * 4;
    s.pairs = s.has_zeros = 0;
#if defined(MOST_TAPS)
    if (s.phases == 2 && HAS_LOOPS(call->ints[8]) && call->ints[7] <= MOST_TAPS && call->ints[14] == 1) {
        const int32_t width = call->ints[3], left = call->ints[12];
        const int32_t right = 2 * call->ints[6] - 2 + call->ints[8] - left - width;
        s.pairs = s.phases = 1;
        s.row = s.phase = width + (left > right ? left : right);
        /* So that the memory that is touched does not depend on the order of columns. */
        workspace[call->ints[21] - 1] = 0.0f;
    }
#endif
    return s;
}

#if defined(PLANS)
/* The results of planes that are one strip, when the zeros around them are there: their rows, from row `above` of the
 * strip on. */
typedef struct {
    column_plan plans[2];
    int32_t count; /* of plans, or 0 */
    int32_t above, left, rows;
} plane_plan;

static void run_plane(plane_plan *p, const filter *f, const float *from, int32_t width)
{
    int32_t i;
    copy_rows(f->s->data + p->above * f->s->row + p->left, f->s->row, from, width, p->rows, width);
    for (i = 0; i < p->count; i++) {
        if (f->step == 1 || p->count > 1)
            run_plan(&p->plans[i], f->y, f->weight);
        else
            run_in_sequence(p->plans, f);
    }
}
#endif

/* x[N,C,H,W], w[C,1,kh,kw], b[C]? -> y[N,C,OH,OW] */
int poetc_op_depthwise(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *weight = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, c.has_bias ? 3 : 2);
    strip s = describe_strip(call, POETC_WORKSPACE(call, c.has_bias ? 4 : 3));
    const int32_t reach = (c.kernel_h - 1) * c.dilation_h, block = call->ints[20];
    filter f = {&s, NULL,           c.kernel_w,     1, c.kernel_h, c.kernel_w, c.dilation_h, c.dilation_w, 0.0f,
                y,  c.output_width, c.output_width, 1, NULL};
    float start[MOST_STARTS];
    int32_t n, channel, top;
#if defined(POETC_HELIUM)
    window planes;
    if (has_lanes_of_channels(&c, &planes)) {
        s.data[call->ints[21] - 1] = 0.0f; /* the memory that is touched is the workspace's whatever the kernel */
        for (n = 0; n < c.batch; n++)
            correlate_channels(&planes, x + n * c.channels * c.height * c.width, weight, bias, c.channels,
                               y + n * c.channels * c.output_height * c.output_width, 0);
        return POETC_OK;
    }
#endif
#if defined(PLANS)
    plane_plan p;
    p.above = c.pad_top, p.left = c.pad_left, p.rows = (c.output_height - 1) * c.stride_h + reach + 1 - c.pad_top;
    p.rows = p.rows < c.height ? p.rows : c.height;
    f.start = start;
    p.count = p.rows > 0 && plan_correlation(p.plans, &f, s.data, c.output_height, c.stride_h, s.pairs ? 2 : 1);
    f.start = NULL;
#endif
#if defined(SMALL_PLANES)
    if (is_small_plane(&c)) {
        s.data[call->ints[21] - 1] = 0.0f; /* the memory that is touched is the workspace's whatever the kernel */
        for (n = 0; n < c.batch;
             n++, x += c.channels * c.height * c.width, y += c.channels * c.output_height * c.output_width) {
            if (c.stride_w == 1)
                slide_planes(c.width, x, weight, y, c.channels, 0);
            else
                slide_planes_apart(c.output_width, x, weight, y, c.channels, c.pad_left);
        }
        return POETC_OK;
    }
#endif
    POETC_THREADED(poetc_op_depthwise, call, 4 * CONVOLUTION_WORK(c), call->ints[21]);
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, x += (ptrdiff_t)c.height * c.width) {
            POETC_SKIP(c.share, channel, c.channels, f.y += (ptrdiff_t)c.output_height * c.output_width)
            f.weight = weight + (ptrdiff_t)channel * c.kernel_h * c.kernel_w;
            start_with(&f, start, bias, channel);
#if defined(IN_PLACE)
            if (is_in_place(&c) && !is_negative_zero(f.bias)) {
                slide_in_place(x, f.weight, start, f.y, c.height, c.width);
                f.y += (ptrdiff_t)c.output_height * c.output_width;
                continue;
            }
#endif
#if defined(PLANS)
            if (s.has_zeros && p.count) {
                run_plane(&p, &f, x, c.width);
                f.y += (ptrdiff_t)c.output_height * c.output_width;
                continue;
            }
#endif
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                pad_strip(NULL, &s, x, c.height, c.width, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                s.has_zeros = EXACT_ROWS && rows == c.output_height && s.phases == 1;
                correlate_strip(&f, s.data, rows, c.stride_h, s.pairs ? 2 : 1);
                f.y += (ptrdiff_t)rows * c.output_width;
            }
        }
    }
    return POETC_OK;
}

/* The taps of an axis through which padded position `at` of the image was read, last tap first. They are the output of
 * the first tap, and the distance to that of the next one. */
typedef struct {
    int32_t tap, step, count, output, down;
} tap_sequence;

static tap_sequence taps_of(int32_t at, int32_t kernel, int32_t dilation, int32_t stride)
{
    tap_sequence t = {0, 0, 0, 0, 0};
    int32_t k;
    for (k = kernel - 1; k >= 0; k--) {
        const int32_t output = floor_div(at - k * dilation, stride);
        if (output * stride != at - k * dilation)
            continue;
        if (t.count == 0)
            t.tap = k, t.output = output;
        else if (t.count == 1)
            t.step = k - t.tap, t.down = output - t.output;
        t.count++;
    }
    return t;
}

/* The gradient of `rows` rows of a plane of the image from row `top` on, each phase by itself. The strip's first row
 * (column) is row `first_h` (column `first_w`) of gy. */
POETC_APART void gather_phases(const convolution *c, filter f, const float *weight, float *gx, int32_t top,
                               int32_t rows, int32_t first_h, int32_t first_w)
{
    int32_t down, across;
    f.y_row = c->stride_h * c->width, f.y_step = c->stride_w;
    for (down = 0; down < c->stride_h && down < rows; down++) {
        const tap_sequence h = taps_of(top + down + c->pad_top, c->kernel_h, c->dilation_h, c->stride_h);
        f.kernel_h = h.count, f.down = h.down, f.row_step = h.step * c->kernel_w;
        for (across = 0; across < c->stride_w && across < c->width; across++) {
            const tap_sequence w = taps_of(across + c->pad_left, c->kernel_w, c->dilation_w, c->stride_w);
            float *from = f.s->data;
            f.kernel_w = w.count, f.across = w.count > 1 ? w.down : 1, f.step = w.step;
            f.width = (c->width - across - 1) / c->stride_w + 1;
            f.weight = weight + h.tap * c->kernel_w + w.tap;
            f.y = gx + (ptrdiff_t)(top + down) * c->width + across;
            if (h.count > 0 && w.count > 0)
                from += (ptrdiff_t)(h.output - first_h) * f.s->row + w.output - first_w;
            correlate_strip(&f, from, (rows - down - 1) / c->stride_h + 1, 1, 1);
        }
    }
}

#if !defined(POETC_SOFT_FLOAT)
/* The same under strides of two and a filter with an odd number of rows and columns. Rows and columns of gx take the
 * filter's even and its odd taps in turn: which do is a matter of the padding before them. The strip begins with the
 * first row and column of gy that any of them needs. */
static void gather_pairs_of_rows(const convolution *c, const filter *f, float *gx, int32_t top, int32_t rows)
{
    const int32_t even = !((top + c->pad_top) & 1); /* the first row takes the even taps */
    const int more_first = !(c->pad_left & 1);      /* the first column does */
    const int32_t lines = c->kernel_h / 2;
    gather_rows(f, f->s->data + even * f->s->row, lines, 2 * lines - 1, more_first,
                gx + (ptrdiff_t)(top + even) * f->width, (rows - even + 1) / 2);
    gather_rows(f, f->s->data, lines + 1, 2 * lines, more_first, gx + (ptrdiff_t)(top + 1 - even) * f->width,
                (rows + even) / 2);
}

static int is_gathered(const convolution *c)
{
    return c->stride_h == 2 && c->stride_w == 2 && GATHERS(c->kernel_h, c->kernel_w) && c->dilation_h == 1 &&
           c->dilation_w == 1;
}
#endif

#if defined(PLANS)
/* How a whole plane is gathered. */
static int32_t plan_pairs_of_rows(column_plan *plans, const convolution *c, const filter *f)
{
    const int32_t even = !(c->pad_top & 1), more_first = !(c->pad_left & 1), lines = c->kernel_h / 2;
    plan_gather(plans, f, f->s->data, lines + 1, 2 * lines, more_first, (1 - even) * f->width, (c->height + even) / 2);
    plan_gather(plans + 1, f, f->s->data + even * f->s->row, lines, 2 * lines - 1, more_first, even * f->width,
                (c->height - even + 1) / 2);
    return c->height > 1 ? 2 : 0;
}
#endif

/* gy[N,C,OH,OW], w[C,1,kh,kw], b[C]? -> gx[N,C,H,W] */
int poetc_op_depthwise_grad_input(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *gy = poetc_in(call, 0), *weight = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *gx = poetc_out(call, c.has_bias ? 3 : 2), *workspace = POETC_WORKSPACE(call, c.has_bias ? 4 : 3);
    strip s = describe_strip(call, workspace);
    const int32_t reach_h = (c.kernel_h - 1) * c.dilation_h, reach_w = (c.kernel_w - 1) * c.dilation_w;
    const int32_t taps = c.kernel_h * c.kernel_w, block = call->ints[20];
    const int32_t left = (reach_w - c.pad_left) / c.stride_w,
                  right = (c.width - 1 + c.pad_left) / c.stride_w + 1 - c.output_width;
    const int strided = c.stride_h > 1 || c.stride_w > 1;
    filter f = {&s,           NULL, -c.kernel_w, -1,      c.kernel_h, c.kernel_w, c.dilation_h,
                c.dilation_w, 0.0f, gx,          c.width, c.width,    1,          NULL};
    float start[MOST_STARTS];
    int32_t n, channel, top;
#if defined(PLANS)
    plane_plan p;
    p.count = 0;
#endif
#if defined(POETC_HELIUM)
    window planes;
    if (has_lanes_of_channels(&c, &planes) && (!strided || (!bias && planes.right >= 0 && planes.below >= 0))) {
        workspace[call->ints[21] - 1] = 0.0f;
        for (n = 0; n < c.batch;
             n++, gy += c.channels * c.output_height * c.output_width, gx += c.channels * c.height * c.width) {
            if (strided)
                spread_channels(&planes, gy, weight, c.channels, gx);
            else /* as many zeros on all sides: the same window */
                correlate_channels(&planes, gy, weight, bias, c.channels, gx, 1);
        }
        return POETC_OK;
    }
#endif
#if defined(SMALL_PLANES)
    if (is_small_plane(&c)) {
        workspace[call->ints[21] - 1] = 0.0f;
        for (n = 0; n < c.batch;
             n++, gy += c.channels * c.output_height * c.output_width, gx += c.channels * c.height * c.width) {
            if (strided)
                spread_planes(c.output_width, gy, weight, gx, c.channels, c.pad_left);
            else
                slide_planes(c.width, gy, weight, gx, c.channels, 1);
        }
        return POETC_OK;
    }
#endif
    POETC_THREADED(poetc_op_depthwise_grad_input, call, 4 * CONVOLUTION_WORK(c), call->ints[21]);
    if (strided) { /* the workspace would hold gy spread by the strides */
        s.row = s.phase = c.output_width + (left > right ? left : right);
        workspace[call->ints[21] - 1] = 0.0f;
    }
#if defined(PLANS)
    p.above = floor_div(reach_h - c.pad_top, c.stride_h), p.left = left;
    p.rows = floor_div(c.height - 1 + c.pad_top, c.stride_h) + 1;
    p.rows = p.rows < c.output_height ? p.rows : c.output_height;
    f.start = start;
    if (p.rows > 0 && p.above >= 0)
        p.count = strided ? is_gathered(&c) ? plan_pairs_of_rows(p.plans, &c, &f) : 0
                          : plan_correlation(p.plans, &f, s.data, c.height, 1, 1);
    f.start = NULL;
#endif
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, gy += (ptrdiff_t)c.output_height * c.output_width) {
            POETC_SKIP(c.share, channel, c.channels, gx += (ptrdiff_t)c.height * c.width)
            start_with(&f, start, bias, channel);
#if defined(IN_PLACE)
            if (is_in_place(&c) && !is_negative_zero(f.bias)) {
                f.weight = weight + (ptrdiff_t)channel * taps + taps - 1;
                slide_turned(&f, gy, start, gx, c.height, c.width);
                gx += (ptrdiff_t)c.height * c.width;
                continue;
            }
#endif
#if defined(PLANS)
            if (s.has_zeros && p.count) {
                f.weight = weight + (ptrdiff_t)channel * taps, f.y = gx;
                if (!strided)
                    f.weight += taps - 1;
                run_plane(&p, &f, gy, c.output_width);
                gx += (ptrdiff_t)c.height * c.width;
                continue;
            }
#endif
            for (top = 0; top < c.height; top += block) {
                const int32_t rows = top + block > c.height ? c.height - top : block;
                const int32_t first = -floor_div(reach_h - c.pad_top - top, c.stride_h);
                const int32_t last = floor_div(top + rows - 1 + c.pad_top, c.stride_h);
                pad_strip(NULL, &s, gy, c.output_height, c.output_width, -first, left, 0,
                          last < first ? 1 : last - first + 1);
                s.has_zeros = EXACT_ROWS && rows == c.height;
                f.weight = weight + (ptrdiff_t)channel * taps;
                f.y = gx + (ptrdiff_t)top * c.width;
#if !defined(POETC_SOFT_FLOAT)
                if (is_gathered(&c)) {
                    gather_pairs_of_rows(&c, &f, gx, top, rows);
                    continue;
                }
#endif
                if (strided) {
                    gather_phases(&c, f, f.weight, gx, top, rows, first, -left);
                } else {
                    f.weight += taps - 1;
                    correlate_strip(&f, s.data, rows, 1, 1);
                }
            }
            gx += (ptrdiff_t)c.height * c.width;
        }
    }
    return POETC_OK;
}

#if defined(MOST_TAPS) && EXACT_ROWS
/* add_taps_of_row for each line of the filter, from the first row of gy on that meets a row of the image to the last.
 * It takes four of whole rows, so that lanes stay as they are. */
static void add_lines_on_image(const convolution *c, const float *line, ptrdiff_t down, const float *gy, int32_t step,
                               float *gw)
{
    int32_t kh, above = c->pad_top;
    for (kh = c->kernel_h; kh > 0; kh--, line += down, gw += c->kernel_w, above -= c->dilation_h) {
        const int32_t first = above > 0 ? above : 0,
                      end = c->height + above < c->output_height ? c->height + above : c->output_height;
        const int32_t from = first * step & ~3;
        if (first < end)
            add_taps_of_row(line + from, down, 1, gy + from, (((end - 1) * step + c->output_width + 3) & ~3) - from, gw,
                            c->kernel_w);
    }
}
#endif

/* The last int is where rows of gy go in the workspace (floats). */
static int grad_weight(const poetc_call *call, float *gw, float *workspace, prologue *norm, poetc_kernel kernel)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *rows_of_gy = workspace + call->ints[21];
    strip s = describe_strip(call, workspace);
    const int32_t reach = (c.kernel_h - 1) * c.dilation_h, block = call->ints[20];
    const int flat = c.stride_h == 1 && c.stride_w == 1;
#if defined(IN_PLACE)
    const int in_place = !norm && is_in_place(&c) && has_taps_in_place(c.width) && block >= c.height;
#endif
    const int32_t step = flat ? s.row : (c.output_width + 3) / 4 * 4; /* of gy */
    int32_t n, channel, top, kh, kw;
#if defined(POETC_HELIUM)
    window planes;
#endif
#if defined(MOST_TAPS) && EXACT_ROWS
    const int is_copied = step != c.output_width || (flat && ((c.output_height * step) & 3)); /* gy of a whole plane */
    const int32_t most = (c.output_height - 1) * c.stride_h + reach + 1 - c.pad_top,
                  held = most < c.height ? most : c.height;
#endif
#if defined(MOST_TAPS)
    const int fast = (flat || s.pairs) && HAS_LOOPS(c.kernel_w) && c.dilation_w == 1;
    const ptrdiff_t next = (ptrdiff_t)c.stride_h * s.row, down = (ptrdiff_t)c.dilation_h * s.row;
#endif
    /* So that the memory that is touched does not depend on the width. */
    rows_of_gy[(block * step + 3) / 4 * 4 - 1] = 0.0f;
#if defined(POETC_HELIUM)
    if (!norm && has_lanes_of_channels(&c, &planes)) {
        add_taps_of_channels(&planes, x, gy, c.batch, c.channels, gw);
        return POETC_OK;
    }
#endif
#if defined(SMALL_PLANES)
    if (!norm && is_small_plane(&c)) {
        poetc_clear(gw, 9 * c.channels);
        for (n = 0; n < c.batch;
             n++, x += c.channels * c.height * c.width, gy += c.channels * c.output_height * c.output_width) {
            if (flat)
                add_taps_of_planes(c.width, x, gy, gw, c.channels);
            else
                add_taps_of_planes_apart(c.output_width, x, gy, gw, c.channels, c.pad_left);
        }
        return POETC_OK;
    }
#endif
    (void)kernel;
    POETC_THREADED(kernel, call, 4 * CONVOLUTION_WORK(c), call->ints[21] + (block * step + 3) / 4 * 4);
#if !defined(POETC_THREADS)
    poetc_clear(gw, c.channels * c.kernel_h * c.kernel_w);
#endif
    for (channel = 0; channel < c.channels; channel++, gw += c.kernel_h * c.kernel_w) {
        POETC_SKIP(c.share, channel, c.channels, )
#if defined(POETC_THREADS)
        poetc_clear(gw, c.kernel_h * c.kernel_w);
#endif
        if (norm)
            norm->channel = poetc_channel_of(&norm->norm, channel);
        for (n = 0; n < c.batch; n++) {
            const float *plane = x + ((ptrdiff_t)n * c.channels + channel) * c.height * c.width;
            const float *from = gy + ((ptrdiff_t)n * c.channels + channel) * c.output_height * c.output_width;
#if defined(IN_PLACE)
            if (in_place) {
                add_taps_in_place(plane, from, c.height, c.width, gw);
                continue;
            }
#endif
#if defined(MOST_TAPS) && EXACT_ROWS
            if (s.has_zeros && fast && held > 0) { /* a plane like the one before */
                const float *lines_of_gy = is_copied ? rows_of_gy : from;
                copy_pixels(norm, s.data + c.pad_top * s.row + c.pad_left, s.row, plane, c.width, held, c.width);
                if (is_copied)
                    copy_rows(rows_of_gy, step, from, c.output_width, c.output_height, c.output_width);
                if (flat && c.kernel_h > 3)
                    add_lines_on_image(&c, s.data, down, lines_of_gy, step, gw);
                else if (flat)
                    add_taps_of_row(s.data, down, c.kernel_h, lines_of_gy, (c.output_height * step + 3) / 4 * 4, gw,
                                    c.kernel_w);
                else
                    add_taps_apart(s.data, down, c.kernel_h, next, lines_of_gy, c.output_height, step, gw, c.kernel_w);
                continue;
            }
#endif
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                const float *lines_of_gy;
                int32_t lines, width;
                pad_strip(norm, &s, plane, c.height, c.width, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                if (step != c.output_width || (flat && ((rows * step) & 3))) {
                    copy_rows(rows_of_gy, step, from, c.output_width, rows, c.output_width);
                    if (!s.has_zeros) {
                        clear_gaps(rows_of_gy + c.output_width, step, rows, step - c.output_width);
                        poetc_clear(rows_of_gy + rows * step, -(rows * step) & 3);
                    }
                    lines_of_gy = rows_of_gy;
                } else { /* as they are */
                    lines_of_gy = from;
                }
                s.has_zeros = EXACT_ROWS && rows == c.output_height && s.phases == 1;
                from += (ptrdiff_t)rows * c.output_width;
                lines = flat ? 1 : rows, width = flat ? (rows * step + 3) / 4 * 4 : step;
#if defined(MOST_TAPS)
                if (fast) {
                    if (flat)
                        add_taps_of_row(s.data, down, c.kernel_h, lines_of_gy, width, gw, c.kernel_w);
                    else
                        add_taps_apart(s.data, down, c.kernel_h, next, lines_of_gy, lines, width, gw, c.kernel_w);
                    continue;
                }
#endif
#if defined(POETC_HELIUM)
                if (has_five_taps(&s, &c)) {
                    for (kh = 0; kh < c.kernel_h; kh++)
                        add_five_taps(&s, &c, lines_of_gy, width, lines, kh, gw + 5 * kh);
                    continue;
                }
#endif
                if (c.kernel_h == 3 && c.kernel_w == 3) {
                    for (kh = 0; kh < 3; kh += TAPS_H)
                        add_taps(&s, &c, lines_of_gy, width, lines, TAPS_H, 3, kh, 0, gw + 3 * kh);
                } else {
                    for (kh = 0; kh < c.kernel_h; kh++)
                        for (kw = 0; kw < c.kernel_w; kw++)
                            add_taps(&s, &c, lines_of_gy, width, lines, 1, 1, kh, kw, gw + kh * c.kernel_w + kw);
                }
            }
        }
    }
    return POETC_OK;
}

/* x[N,C,H,W], gy[N,C,OH,OW] -> gw[C,1,kh,kw] */
int poetc_op_depthwise_grad_weight(const poetc_call *call)
{
    return grad_weight(call, poetc_out(call, 2), POETC_WORKSPACE(call, 3), NULL, poetc_op_depthwise_grad_weight);
}

/* x, gy, mean[C], var[C], scale[C], bias[C] -> gw, of f(batch norm of x) */
int poetc_op_depthwise_grad_weight_norm(const poetc_call *call);
int poetc_op_depthwise_grad_weight_norm(const poetc_call *call)
{
    prologue n;
    n.norm = poetc_norm_of(call, 2), n.rows = poetc_normalize_rows;
    return grad_weight(call, poetc_out(call, 6), POETC_WORKSPACE(call, 7), &n, poetc_op_depthwise_grad_weight_norm);
}
