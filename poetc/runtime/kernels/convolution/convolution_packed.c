/* Convolution as a matrix product on packed operands: the kernel of convolution.c, faster, with workspace.
 *
 * Layout: images are [N, C, H, W]. Pixels are gathered while they are packed (poetc_pixels.h), so no column matrix is
 * made. Columns are numbered over the batch, image after image, so small images share a register block.
 * Order of sums: bias, then input channel, tap row, tap column, in blocks of terms as in poetc_gemm.h. The direct
 * loops, which read a strip without packing, keep this order. */
#include "convolution/poetc_convolution_packed.h"
#include "convolution/poetc_pixels.h"
#if defined(POETC_HELIUM)
#define POETC_STRIPS 1
#include "convolution/poetc_direct.h"
#include "convolution/poetc_direct_helium.h"
#elif POETC_FPU_M && POETC_LANES == 1
#define POETC_STRIPS 1
#include "convolution/poetc_direct.h"
#include "convolution/poetc_direct_fpu.h"
#else
#include "convolution/poetc_direct_block.h"
#endif

#if defined(POETC_DIRECT)

/* Conv; returns whether it was done: it must pay, and its strip fit the workspace. */
POETC_APART int direct_conv(const convolution *c, const float *x, const float *w, const float *bias, float *y,
                            float *workspace, int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t terms = inputs * taps, pieces = direct_pieces(c->output_width);
    const int32_t row = c->output_width + (c->kernel_w - 1) * c->dilation_w, reach = (c->kernel_h - 1) * c->dilation_h;
    const int32_t room = (size - 1 - terms - DIRECT_LANES) / (inputs * row) - reach - 1;
    const int32_t held = poetc_min(c->output_height, room < 0 ? 0 : room / c->stride_h + 1); /* rows of y at a time */
    int32_t *offset = (int32_t *)workspace;
    float *strip = workspace + terms, tile[DIRECT_MOST * DIRECT_LANES];
    int32_t group, n, oh, o, rows, at, i, j, k;
    if (c->stride_w != 1 || room < 0 || !direct_pays(c->output_width, outputs))
        return 0;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs) * c->height * c->width;
            const float *filters = w + (ptrdiff_t)group * outputs * terms;
            float *result = y + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * c->output_width;
            for (oh = POETC_BEGIN(c->share, c->output_height, 1); oh < POETC_END(c->share, c->output_height, 1);
                 oh += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, c->output_height, 1) - oh);
                const int32_t plane = ((here - 1) * c->stride_h + reach + 1);
                copy_strip(strip, image, inputs, c->height, c->width, oh * c->stride_h - c->pad_top, plane,
                           -c->pad_left, row);
                for (k = 0; k < terms; k++) {
                    const int32_t channel = k / taps, kh = (k - channel * taps) / c->kernel_w;
                    const int32_t kw = k - channel * taps - kh * c->kernel_w;
                    offset[k] = (channel * plane + kh * c->dilation_h) * row + kw * c->dilation_w;
                }
                for (o = 0; o < outputs; o += rows) {
                    int vectors;
                    direct_task t = {filters + (ptrdiff_t)o * terms, terms, 1, {0}, offset, terms, depth, NULL, tile};
                    rows = direct_shape(outputs - o, &vectors);
                    if (bias)
                        t.bias = bias + (ptrdiff_t)group * outputs + o;
                    for (at = 0; at < here * pieces; at += vectors) {
                        for (j = 0; j < vectors; j++) { /* the last piece fills the block up */
                            const int32_t piece = poetc_min(at + j, here * pieces - 1), r = piece / pieces;
                            t.b[j] = strip + r * c->stride_h * row + (piece - r * pieces) * DIRECT_LANES;
                        }
                        direct_run(rows, &t);
                        for (j = 0; j < vectors && at + j < here * pieces; j++) {
                            const int32_t r = (at + j) / pieces, ow = (at + j - r * pieces) * DIRECT_LANES;
                            const int32_t count = poetc_min(DIRECT_LANES, c->output_width - ow);
                            float *to = result + ((ptrdiff_t)o * c->output_height + oh + r) * c->output_width + ow;
                            for (i = 0; i < rows; i++, to += (ptrdiff_t)c->output_height * c->output_width)
                                poetc_put_piece(to, tile + (i * vectors + j) * DIRECT_LANES, 1, count);
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

#elif defined(POETC_HELIUM)

/* Conv; returns whether it was done: there must be loops for it, few lanes for nothing, and room for weights and a
 * strip. */
POETC_APART int direct_conv(const convolution *c, const float *x, const float *w, const float *bias, float *y,
                            float *workspace, int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t terms = inputs * taps, width = c->output_width, reach = (c->kernel_h - 1) * c->dilation_h;
    const int is_padded = c->pad_top > 0 || c->pad_left > 0 ||
                          (c->output_height - 1) * c->stride_h + reach >= c->height ||
                          width + c->kernel_w - 1 > c->width;
    const int32_t row = is_padded ? width + c->kernel_w - 1 : c->width, most = depth < taps ? 1 : depth / taps;
    const int32_t room = (size - 1 - 6 * terms - DIRECT_LANES) / (inputs * row) - reach - 1;
    const int32_t fit = is_padded ? room < 0 ? 0 : room / c->stride_h + 1 : 6 * terms < size ? c->output_height : 0;
    const int32_t held = poetc_min(c->output_height, fit); /* rows of y at a time */
    float *strip = workspace + 6 * terms;
    int32_t group, n, oh, o, rows, at, r, first;
    if (c->stride_w != 1 || c->dilation_w != 1 || (c->kernel_w != 3 && c->kernel_w != 5) || width < 4)
        return 0;
    if ((width + 3) / 4 * 16 > 5 * width || held * width < 32)
        return 0;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs) * c->height * c->width;
            float *result = y + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * width;
            for (oh = 0; oh < c->output_height; oh += held) {
                const int32_t here = poetc_min(held, c->output_height - oh);
                const int32_t plane = is_padded ? ((here - 1) * c->stride_h + reach + 1) * row : c->height * c->width;
                const float *from = is_padded ? strip : image + oh * c->stride_h * row;
                if (is_padded)
                    copy_strip(strip, image, inputs, c->height, c->width, oh * c->stride_h - c->pad_top, plane / row,
                               -c->pad_left, row);
                for (o = 0; o < outputs; o += rows) {
                    direct_task t;
                    rows = direct_rows(outputs - o);
                    poetc_pack_apart(workspace, w + ((ptrdiff_t)group * outputs + o) * terms, terms, rows, terms);
                    t.y_row = (ptrdiff_t)c->output_height * width, t.lines = c->kernel_h;
                    t.next = 4 * (c->dilation_h * row - c->kernel_w), t.skip = 0, t.lanes = 4;
                    t.plane = plane - (ptrdiff_t)c->kernel_h * c->dilation_h * row;
                    for (r = 0; r < here; r++) {
                        const float *line = from + r * c->stride_h * row;
                        float *to = result + ((ptrdiff_t)o * c->output_height + oh + r) * width;
                        for (at = 0; at < width; at += 4 * t.blocks) {
                            const int32_t left =
                                at + 4 > width ? width - 4 : at; /* the last four overlap those before */
                            t.blocks = at == 0 ? width / 4 : 1;
                            t.a = workspace, t.b = line + left, t.y = to + left, t.accumulate = 0;
                            t.bias = bias ? bias + group * outputs + o : NULL;
                            for (first = 0; first < inputs; first += most) {
                                t.channels = poetc_min(most, inputs - first);
                                poetc_direct_run(rows, c->kernel_w, &t);
                                t.a += (ptrdiff_t)most * taps * rows, t.b += (ptrdiff_t)most * plane;
                                t.accumulate = 1, t.bias = NULL;
                            }
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

#elif POETC_FPU_M && POETC_LANES == 1

/* Conv of 3 x 3; returns whether it was done: few results may be made twice, and a strip must have room. */
POETC_APART int direct_conv(const convolution *c, const float *x, const float *w, const float *bias, float *y,
                            float *workspace, int32_t size, int32_t depth)
{
    static const float zeros[16];
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, terms = 9 * inputs;
    const int32_t width = c->output_width, row = width + 2, reach = 2 * c->dilation_h,
                  runs = (terms + depth - 1) / depth;
    const int32_t room = (size - 2 - 2 * runs) / (inputs * row) - reach - 1;
    const int32_t held = poetc_min(c->output_height, room < 0 ? 0 : room / c->stride_h + 1); /* rows of y at a time */
    const ptrdiff_t pixels = (ptrdiff_t)c->output_height * width;
    float *const strip = workspace + 2 * runs, first[16], total[16];
    int32_t group, n, oh, o, r, i;
    direct_task t = {zeros, zeros, total, NULL, 4 * (int32_t)pixels, (const int32_t *)workspace, 0};
    if (c->kernel_h != 3 || c->kernel_w != 3 || c->stride_w != 1 || c->dilation_w != 1 || width < 4 || outputs < 4 ||
        (width + 3) / 4 * 16 > 5 * width || (outputs + 3) / 4 * 16 > 5 * outputs || held * width < 32)
        return 0;
    find_runs((int32_t *)workspace, inputs, depth);
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs) * c->height * c->width;
            for (oh = 0; oh < c->output_height; oh += held) {
                const int32_t here = poetc_min(held, c->output_height - oh),
                              plane = (here - 1) * c->stride_h + reach + 1;
                const int32_t line = 4 * c->dilation_h * row;
                copy_strip(strip, image, inputs, c->height, c->width, oh * c->stride_h - c->pad_top, plane,
                           -c->pad_left, row);
                for (o = 0; o < outputs; o += 4) {
                    const int32_t output = group * outputs + poetc_min(o, outputs - 4);
                    const float *a = w + (ptrdiff_t)output * terms;
                    for (i = 0; bias && i < 16; i++)
                        first[i] = 0.0f + bias[output + i / 4], t.start = first;
                    for (r = 0; r < here; r++) {
                        float *to = y + ((ptrdiff_t)n * c->outputs + output) * pixels + (oh + r) * width;
                        direct_row(&t, strip + r * c->stride_h * row, a, terms, to, width, line,
                                   4 * plane * row - 2 * line);
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

#else
#define direct_conv(c, x, w, bias, y, workspace, size, depth) 0
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
    const poetc_gemm_space space =
        poetc_gemm_carve(workspace, call->ints[17], terms, (k + terms - 1) / terms, total, 0);
    int32_t group, column, first;
    POETC_SPLIT(split, c.share, 1, outputs, total)
    POETC_THREADED(poetc_op_conv_packed, call, CONVOLUTION_WORK(c), call->ints[17]);
    if (!pointwise && !(outputs >= MANY_OUTPUTS(k) && packs_masked(&c)) &&
        direct_conv(&c, x, w, bias, y, workspace, call->ints[17], terms))
        return POETC_OK;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = k, g.a_k = 1, g.terms = terms, g.a_block = terms;
        g.row_bias = bias ? bias + (ptrdiff_t)group * outputs : NULL, g.column_bias = NULL;
        POETC_NOTHING_AHEAD(g);
        g.y = y + (ptrdiff_t)group * outputs * pixels, g.y_row = pixels;
        g.segment = pixels, g.segment_step = (ptrdiff_t)c.outputs * pixels;
        POETC_SPLIT_ROWS(g, split);
        for (column = POETC_BEGIN(split.columns, total, COLUMNS); column < POETC_END(split.columns, total, COLUMNS);
             column += space.columns) {
            g.column = column, g.columns = poetc_min(space.columns, POETC_END(split.columns, total, COLUMNS) - column);
            for (first = 0; first < k; first += space.depth) {
                g.depth = poetc_min(space.depth, k - first);
                if (pointwise)
                    poetc_pack_planes(&space, image, c.channels, pixels, first, g.depth, column, g.columns);
                else if (packs_masked(&c))
                    pack_masked(&space, &c, image, first, g.depth, column, g.columns);
                else if (packs_gathered(&c) && packs_halves(&c))
                    pack_halves(&space, &c, image, first, g.depth, column, g.columns);
                else if (packs_gathered(&c))
                    pack_gathered(&space, &c, image, first, g.depth, column, g.columns);
                else
                    pack_pixels(&space, &c, image, first, g.depth, column, g.columns);
                g.a = w + (ptrdiff_t)group * outputs * k + first, g.accumulate = first > 0;
                poetc_gemm_run(&g, &space);
            }
        }
    }
    return POETC_OK;
}
