/* The gradient of a convolution's input as matrix products on packed operands: the kernel of convolution.c, faster,
 * with workspace.
 *
 * Layout: products w' gy of a channel's taps with pixels of the output are made in the workspace.
 * poetc_convolution_spread.h adds each to its pixel.
 * Order of sums: a product adds the output channels in sequence, in blocks as in poetc_gemm.h. A pixel adds the
 * products of its taps, rows of the output in ascending order. */
#include "convolution/poetc_convolution_packed.h"
#include "convolution/poetc_convolution_spread.h"
#if defined(POETC_HELIUM)
#define POETC_STRIPS 1
#include "convolution/poetc_direct_helium.h"
#endif
#include "convolution/poetc_direct_block.h"

static void fill(float *to, int32_t count, float value)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = value;
}

#if defined(POETC_DIRECT)

typedef int32_t direct_mask __attribute__((vector_size(4 * POETC_LANES)));

/* ConvGradInput with strides of 1: every pixel's products of one tap are a sum over the outputs, which is added to the
 * pixel. Rows of the output come in ascending order, and taps in ascending order. Adding -0 where a tap has no output
 * changes nothing. */
POETC_APART int direct_grad_input(const convolution *c, const float *gy, const float *w, const float *bias, float *gx,
                                  float *workspace, int32_t size, int32_t depth)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pieces = direct_pieces(c->width), wide = (c->kernel_w - 1) * c->dilation_w;
    const int32_t row = c->width + wide, reach = (c->kernel_h - 1) * c->dilation_h;
    const int32_t room = (size - 1 - outputs - DIRECT_LANES) / (outputs * row) - reach;
    const int32_t held = poetc_min(c->height, room > 2 ? room & ~1 : room); /* rows of gx at a time */
    int32_t *offset = (int32_t *)workspace;
    float *strip = workspace + outputs, tile[DIRECT_MOST * DIRECT_LANES], total[DIRECT_MOST * DIRECT_LANES];
    int32_t group, n, top, ch, rows, at, i, j, k, kh, kw;
    direct_mask lanes, there[4];
    if (c->stride_h != 1 || c->stride_w != 1 || held < 1 || outputs > depth || !direct_pays(c->width, channels * 2))
        return 0;
    for (i = 0; i < DIRECT_LANES; i++)
        lanes[i] = i;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *from = gy + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * c->output_width;
            const float *filters = w + (ptrdiff_t)group * outputs * channels * taps;
            float *result = gx + ((ptrdiff_t)n * c->channels + group * channels) * c->height * c->width;
            for (top = POETC_BEGIN(c->share, c->height, 1); top < POETC_END(c->share, c->height, 1); top += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, c->height, 1) - top), plane = here + reach;
                const int32_t first = top + c->pad_top - reach; /* the strip's first row of gy */
                copy_strip(strip, from, outputs, c->output_height, c->output_width, first, plane, c->pad_left - wide,
                           row);
                for (k = 0; k < outputs; k++)
                    offset[k] = k * plane * row;
                for (ch = 0; ch < channels; ch += rows) {
                    int vectors;
                    direct_task t = {NULL, taps, (ptrdiff_t)channels * taps, {0}, offset, outputs, depth, NULL, tile};
                    rows = direct_shape(channels - ch, &vectors);
                    for (at = 0; at < here * pieces; at += vectors) {
                        for (i = 0; i < rows; i++) {
                            const float begin = bias ? bias[group * channels + ch + i] : 0.0f;
                            for (j = 0; j < vectors; j++)
                                poetc_vector_store(total + (i * vectors + j) * DIRECT_LANES, (poetc_vector){0} + begin);
                        }
                        for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                            for (kw = 0; kw < c->kernel_w; kw++) {
                                int any = 0;
                                for (j = 0; j < vectors; j++) {
                                    const int32_t piece = poetc_min(at + j, here * pieces - 1), r = piece / pieces;
                                    const int32_t left = (piece - r * pieces) * DIRECT_LANES;
                                    const int32_t oh = top + r + c->pad_top - kh * c->dilation_h;
                                    const int32_t ow = left + c->pad_left - kw * c->dilation_w;
                                    const int valid = oh >= 0 && oh < c->output_height;
                                    any |= valid;
                                    there[j] = valid ? (lanes + ow >= 0) & (lanes + ow < c->output_width) : lanes < 0;
                                    t.b[j] = strip + (oh - first) * row + left + wide - kw * c->dilation_w;
                                }
                                if (!any)
                                    continue;
                                t.a = filters + (ptrdiff_t)ch * taps + kh * c->kernel_w + kw;
                                direct_run(rows, &t);
                                for (i = 0; i < rows * vectors; i++) {
                                    const direct_mask here_too = there[i % vectors];
                                    const direct_mask nothing = lanes * 0 + INT32_MIN; /* -0 */
                                    const direct_mask bits = (direct_mask)poetc_vector_load(tile + i * DIRECT_LANES);
                                    float *sum = total + i * DIRECT_LANES;
                                    poetc_vector_store(sum,
                                                       poetc_vector_load(sum) +
                                                           (poetc_vector)((bits & here_too) | (nothing & ~here_too)));
                                }
                            }
                        }
                        for (j = 0; j < vectors && at + j < here * pieces; j++) {
                            const int32_t r = (at + j) / pieces, left = (at + j - r * pieces) * DIRECT_LANES;
                            float *to = result + ((ptrdiff_t)ch * c->height + top + r) * c->width + left;
                            for (i = 0; i < rows; i++, to += (ptrdiff_t)c->height * c->width)
                                poetc_put_piece(to, total + (i * vectors + j) * DIRECT_LANES, 1,
                                                poetc_min(DIRECT_LANES, c->width - left));
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f;
    return 1;
}

#elif defined(POETC_HELIUM)

/* to[(o * taps + tap) * rows + row]: the filters of `rows` channels, turned, from those of each of `outputs` outputs,
 * `step` floats apart. */
static void pack_turned(float *to, const float *from, ptrdiff_t step, int32_t rows, int32_t taps, int32_t outputs)
{
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)rows);
    int32_t row, k;
    for (; outputs > 0; outputs--, to += taps * rows, from += step) {
        const float *source = from;
        for (row = 0; row < rows; row++) {
            uint32x4_t put = vsubq_u32(vdupq_n_u32((uint32_t)(to + (taps - 1) * rows + row)), apart);
            /* clang-format off */
            __asm__ volatile("wls lr, %[n], 2f\n1:\tvldrw.u32 q0, [%[from]], #16\n\tvstrw.32 q0, [%q[put]]\n\t"
                             "vsub.i32 %q[put], %q[put], %[step]\n\tle lr, 1b\n2:"
                             : [from] "+&r"(source), [put] "+w"(put)
                             : [n] "r"(taps / 4), [step] "r"(16 * rows)
                             : "lr", "q0", "memory");
            /* clang-format on */
            for (k = taps % 4; k > 0; k--)
                to[(k - 1) * rows + row] = *source++;
        }
    }
}

/* ConvGradInput with strides of one: a convolution of gy, zeros around it, by the turned filters of some outputs at a
 * time. Lines of them that meet nothing but zeros are left out. Whether it was done: there must be loops for it, and
 * room for filters and a strip. */
POETC_APART int direct_grad_input(const convolution *c, const float *gy, const float *w, const float *bias, float *gx,
                                  float *workspace, int32_t size, int32_t depth)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t width = c->width, reach = c->kernel_h - 1, row = width + c->kernel_w - 1, vectors = (width + 3) / 4;
    const int32_t most = taps > 64 ? 1 : taps > 16 ? 150 / taps : 64 / taps; /* outputs, of about as many terms */
    const int32_t room = (size - 1 - 6 * most * taps - POETC_LANES) / (most * row); /* rows of gy */
    const int32_t held = room >= c->output_height ? c->height : poetc_min(c->height, room - reach);
    const ptrdiff_t plane_of_gy = (ptrdiff_t)c->output_height * c->output_width;
    float *strip = workspace + 6 * most * taps;
    int32_t group, n, top, o, ch, rows, r, at;
    direct_task t;
    (void)depth;
    if (c->stride_h != 1 || c->stride_w != 1 || c->dilation_h != 1 || c->dilation_w != 1 ||
        (c->kernel_w != 3 && c->kernel_w != 5))
        return 0;
    if (channels < 4 || width < 4 || 16 * vectors > 5 * width || 40 * vectors > 17 * c->output_width ||
        held * width < 16)
        return 0;
    t.next = 4 * (row - c->kernel_w), t.y_row = (ptrdiff_t)c->height * width;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *from = gy + ((ptrdiff_t)n * c->outputs + group * outputs) * plane_of_gy;
            const float *filters = w + (ptrdiff_t)group * outputs * channels * taps;
            float *result = gx + ((ptrdiff_t)n * c->channels + group * channels) * c->height * width;
            for (top = 0; top < c->height; top += held) {
                const int32_t here = poetc_min(held, c->height - top), first = top + c->pad_top - reach; /* row of gy */
                const int32_t begin = first < 0 ? 0 : first, end = poetc_min(c->output_height, first + here + reach);
                const int32_t plane = end > begin ? (end - begin) * row : 0;
                for (o = 0; o < outputs; o += most) {
                    const int32_t count = poetc_min(most, outputs - o);
                    copy_strip(strip, from + o * plane_of_gy, count, c->output_height, c->output_width, begin,
                               end - begin, c->pad_left - c->kernel_w + 1, row);
                    for (ch = 0; ch < channels; ch += rows) {
                        rows = direct_rows(channels - ch);
                        pack_turned(workspace, filters + ((ptrdiff_t)o * channels + ch) * taps,
                                    (ptrdiff_t)channels * taps, rows, taps, count);
                        t.accumulate = o > 0, t.bias = bias && o == 0 ? bias + group * channels + ch : NULL;
                        for (r = 0; r < here; r++) {
                            const int32_t low = first + r < 0 ? -(first + r) : 0;
                            const int32_t lines = poetc_min(c->kernel_h, c->output_height - (first + r)) - low;
                            const float *line = strip + (first + r + low - begin) * row;
                            float *to = result + ((ptrdiff_t)ch * c->height + top + r) * width;
                            t.lines = lines, t.channels = lines > 0 ? count : 0;
                            t.skip = (c->kernel_h - lines) * c->kernel_w * rows,
                            t.plane = plane - (ptrdiff_t)lines * row;
                            for (at = 0; at < width; at += 4 * t.blocks) {
                                const int32_t left =
                                    at + 4 > width && o == 0 ? width - 4 : at; /* overlaps those before */
                                t.blocks = at == 0 ? width / 4 : 1;
                                t.lanes = poetc_min(4, width - left), t.a = workspace + low * c->kernel_w * rows,
                                t.b = line + left, t.y = to + left;
                                poetc_direct_run(rows, c->kernel_w, &t);
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

#else
#define direct_grad_input(c, gy, w, bias, gx, workspace, size, depth) 0
#endif

#if defined(POETC_AHEAD)

#define STREAM_TERMS 32 /* rows of weights at once: so many streams the processor foresees */
#define STREAM_ROWS (POETC_LANES == 16 ? 8 : 4)

/* Some terms of products of pixels' gradients, `a_k` floats from term to term, with rows of weights where they are.
 * `sums` of a block of terms begin with 0 or the sums that are there. With the last terms of a block they go to
 * `total`, else NULL. */
typedef struct {
    const float *a, *b;
    float *sums, *total;
    ptrdiff_t a_k, b_k, row; /* row: of sums and total */
    int32_t depth;
    int begins, accumulate; /* begins: a block of terms; accumulate: to the total */
} stream_task;

POETC_APART void stream(const stream_task *t)
{
    const ptrdiff_t a_k = t->a_k, b_k = t->b_k, row = t->row;
    const float *a = t->a, *b = t->b;
    float *const to = t->total ? t->total : t->sums;
    const int accumulate = t->total && t->accumulate;
    poetc_vector sum[STREAM_ROWS][2];
    int32_t k;
    int i, j;
    POETC_UNROLL
    for (i = 0; i < STREAM_ROWS; i++) {
        POETC_UNROLL
        for (j = 0; j < 2; j++)
            sum[i][j] = t->begins ? (poetc_vector){0} : poetc_vector_load(t->sums + i * row + j * POETC_LANES);
    }
    for (k = t->depth; k > 0; k--, a += a_k, b += b_k) {
        POETC_UNROLL
        for (i = 0; i < STREAM_ROWS; i++) {
            POETC_UNROLL
            for (j = 0; j < 2; j++)
                POETC_ADD_SCALED(sum[i][j], poetc_vector_load(b + j * POETC_LANES), a[i]);
        }
    }
    POETC_UNROLL
    for (i = 0; i < STREAM_ROWS; i++) {
        POETC_UNROLL
        for (j = 0; j < 2; j++) {
            float *const at = to + i * row + j * POETC_LANES;
            poetc_vector_store(at, accumulate ? poetc_vector_load(at) + sum[i][j] : sum[i][j]);
        }
    }
}

/* ConvGradInput for few pixels, where the weights are most of the data: they are read once, where they are. Lanes lie
 * along the channels' taps, pixels are rows of the register block; sums have the same terms in the same order. Whether
 * it was done. */
POETC_APART int stream_weights(const convolution *c, const float *gy, const float *w, const float *bias, float *gx,
                               float *workspace, int32_t size, int32_t terms)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pixels = c->output_height * c->output_width, plane = c->height * c->width;
    const ptrdiff_t row = (ptrdiff_t)channels * taps;
    float *const turned = workspace + (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
    int32_t unit = 1, most, channel, count, group, first, column, i, k;
    while (unit * taps % COLUMNS)
        unit *= 2;
    most = (size - 16) / (3 * pixels * taps) / unit *
           unit; /* channels at once: products, sums of a block of terms, products turned */
    if (c->batch != 1 || pixels > 2 * POETC_GEMM_ROWS || pixels % POETC_LANES || channels % unit || most <= 0)
        return 0;
    for (group = 0; group < c->group; group++) {
        const float *from = gy + (ptrdiff_t)group * outputs * pixels, *filters = w + group * outputs * row;
        const int32_t end = POETC_END(c->share, channels, unit);
        for (channel = POETC_BEGIN(c->share, channels, unit); channel < end; channel += count) {
            const float *const channel_bias = bias ? bias + (ptrdiff_t)group * channels + channel : NULL;
            float *to = gx + ((ptrdiff_t)group * channels + channel) * plane, *total, *sums;
            int32_t columns;
            count = poetc_min(most, end - channel), columns = count * taps;
            total = turned + pixels * columns, sums = total + pixels * columns;
            for (i = 0; i < count; i++)
                fill(to + (ptrdiff_t)i * plane, plane, bias ? channel_bias[i] : 0.0f);
            for (first = 0; first < outputs; first += terms) {
                const int32_t depth = poetc_min(terms, outputs - first);
                for (k = 0; k < depth; k += STREAM_TERMS) {
                    const int ends = k + STREAM_TERMS >= depth;
                    stream_task t;
                    t.a_k = pixels, t.b_k = row, t.row = columns, t.depth = poetc_min(STREAM_TERMS, depth - k);
                    t.begins = k == 0, t.accumulate = first > 0;
                    t.b = filters + (first + k) * row + (ptrdiff_t)channel * taps;
                    for (column = 0; column < columns; column += COLUMNS, t.b += COLUMNS) {
                        t.a = from + (ptrdiff_t)(first + k) * pixels;
                        t.sums = sums + column, t.total = ends ? total + column : NULL;
                        for (i = 0; i < pixels; i += STREAM_ROWS, t.a += STREAM_ROWS) {
                            stream(&t);
                            t.sums += STREAM_ROWS * columns;
                            if (ends)
                                t.total += STREAM_ROWS * columns;
                        }
                    }
                }
            }
            for (i = 0; i < pixels; i += POETC_LANES)
                poetc_transpose_lanes(turned + i, pixels, total + (ptrdiff_t)i * columns, columns,
                                      columns / POETC_LANES);
            spread_somehow(c, turned, count, 0, c->output_height, to);
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

#else
#define stream_weights(c, gy, w, bias, gx, workspace, size, terms) 0
#endif

/* As poetc_op_conv_grad_input. Products w' gy of some channels' taps and some rows of the output are made in the
 * workspace. From there they are added to the pixels they belong to. The last ints: as above, the part of the workspace
 * that holds products, and its rows of the output and channels. The part is in floats; it is 0 for a pointwise
 * convolution, which needs none. */
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
    poetc_gemm_space space = poetc_gemm_carve(workspace + held, size - held, terms, (outputs + terms - 1) / terms,
                                              block_rows * c.output_width, 1);
    float *const packed = space.panels;
    const int pointwise = held == 0;
    int32_t group, channel, row, column, first, n, i;
    POETC_THREADED(poetc_op_conv_grad_input_packed, call, CONVOLUTION_WORK(c), size);
    if (!pointwise && stream_weights(&c, gy, w, bias, gx, workspace, size, terms))
        return POETC_OK;
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
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        for (row = 0; row < all_rows; row += block_rows) {
            const int32_t rows = poetc_min(block_rows, all_rows - row);
            const int32_t start = row * c.output_width, end = start + rows * c.output_width;
            const int32_t panels = (end - start + COLUMNS - 1) / COLUMNS * COLUMNS;
            /* Packed columns serve all channels: each block of terms stays where it is. */
            const int once = (int64_t)((outputs + terms - 1) / terms) * panels <= space.columns;
            for (channel = POETC_BEGIN(c.share, channels, 1); channel < POETC_END(c.share, channels, 1);
                 channel += block) {
                const int32_t count = poetc_min(block, POETC_END(c.share, channels, 1) - channel);
                g.rows = count * taps;
                g.row_bias = pointwise && bias ? bias + (ptrdiff_t)group * channels + channel : NULL;
                for (column = start; column < end; column += space.columns) {
                    g.columns = poetc_min(space.columns, end - column);
                    if (pointwise) {
                        g.y = g_gx + (ptrdiff_t)channel * plane, g.y_row = plane, g.column = column;
                        g.segment = pixels, g.segment_step = (ptrdiff_t)c.channels * plane;
                    } else {
                        g.y = workspace, g.y_row = end - start, g.column = column - start;
                        g.segment = end - start, g.segment_step = 0;
                    }
                    for (first = 0; first < outputs; first += space.depth) {
                        g.depth = poetc_min(space.depth, outputs - first);
                        space.panels = packed + (once ? (ptrdiff_t)first * panels : 0);
                        if (channel == POETC_BEGIN(c.share, channels, 1) || !once)
                            poetc_pack_planes(&space, g_gy, c.outputs, pixels, first, g.depth, column, g.columns);
                        g.a = g_w + (first * (ptrdiff_t)channels + channel) * taps, g.accumulate = first > 0;
                        poetc_gemm_run(&g, &space);
                    }
                }
                if (!pointwise)
                    spread_somehow(&c, workspace, count, row, rows, g_gx + (ptrdiff_t)channel * plane);
            }
        }
    }
    return POETC_OK;
}
