/* The gradient of a convolution's weight as a matrix product on packed operands, and the step of plain gradient descent
 * that takes it.
 *
 * Layout: gy is [N, O, OH, OW]; windows of the image (poetc_windows.h) are packed into panels whose rows are pixels.
 * Order of sums: over the pixels of all images in sequence, block of terms after block. A block never spans two images.
 */
#include "convolution/poetc_convolution_packed.h"
#if POETC_FPU_M && POETC_LANES == 1
#define POETC_STRIPS 1
#include "convolution/poetc_direct_taps_fpu.h"
#endif
#include "convolution/poetc_direct.h"
#include "convolution/poetc_windows.h"
#include "operators/poetc_descend.h"

#if defined(POETC_DIRECT)

/* LANES outputs for `count` taps: lanes lie along the outputs, a term is a pixel. Pixels are those of rows of gy:
 * `pixels` of them from column `column` on, in rows of `width`. */
POETC_INLINE void direct_taps(const int count, const float *gy, const float *x, const int32_t *offset, int32_t pixels,
                              int32_t column, int32_t width, ptrdiff_t x_row, const ptrdiff_t x_step, float *total,
                              int first)
{
    poetc_vector sum[28];
    int i;
    _Pragma("GCC unroll 28") for (i = 0; i < count; i++) sum[i] = (poetc_vector){0};
    while (pixels > 0) {
        int32_t run = poetc_min(width - column, pixels);
        const float *from = x + column * x_step;
        pixels -= run, column = 0, x += x_row;
        for (; run > 0; run--, from += x_step, gy += DIRECT_LANES) {
            const poetc_vector v = poetc_vector_load(gy);
            _Pragma("GCC unroll 28") for (i = 0; i < count; i++) POETC_ADD_SCALED(sum[i], v, from[offset[i]]);
        }
    }
    _Pragma("GCC unroll 28") for (i = 0; i < count; i++, total += DIRECT_LANES)
        poetc_vector_store(total, first ? sum[i] : poetc_vector_load(total) + sum[i]);
}

#define DEFINE_TAPS(COUNT)                                                                                             \
    static void direct_taps_##COUNT(const float *gy, const float *x, const int32_t *offset, int32_t pixels,            \
                                    int32_t column, int32_t width, ptrdiff_t x_row, ptrdiff_t x_step, float *total,    \
                                    int first)                                                                         \
    {                                                                                                                  \
        direct_taps(COUNT, gy, x, offset, pixels, column, width, x_row, x_step, total, first);                         \
    }
DEFINE_TAPS(27)
DEFINE_TAPS(25)
DEFINE_TAPS(18)
DEFINE_TAPS(9)
DEFINE_TAPS(4)
DEFINE_TAPS(1)
#undef DEFINE_TAPS

/* ConvGradWeight for few outputs: gy is transposed, x read where it is or, if padded, from a strip. With a learning
 * rate gw is the weight, which descends. */
POETC_APART int direct_grad_weight(const convolution *c, const float *x, const float *gy, float *gw, const float *lr,
                                   float *workspace, int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pixels = c->output_height * c->output_width;
    const int32_t right = (c->output_width - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1 - c->pad_left;
    const int32_t reach = (c->kernel_h - 1) * c->dilation_h,
                  bottom = (c->output_height - 1) * c->stride_h + reach + 1 - c->pad_top;
    const int padded = c->pad_top > 0 || c->pad_left > 0 || right > c->width || bottom > c->height;
    const int32_t row = padded ? right + c->pad_left : c->width;
    /* rows of gy that a block of terms may touch, and the rows of x that they reach */
    const int32_t touched = poetc_min(c->output_height, (depth + c->output_width - 2) / c->output_width + 1);
    const int32_t touched_rows = (touched - 1) * c->stride_h + reach + 1;
    const int32_t plane = padded ? touched_rows * row : c->height * c->width;
    const int32_t fixed = 1 + depth * DIRECT_LANES + (padded ? DIRECT_LANES : 0);
    /* channels at a time: their strip, sums and offsets */
    const int32_t each = (padded ? plane : 0) + taps * (DIRECT_LANES + 1);
    const int32_t held = size > fixed ? poetc_min(inputs, (size - fixed) / each) : 0;
    int32_t *offset = (int32_t *)workspace;
    int32_t group, out, channel, n, first, tap, i, j, k;
    if (held < 1 || outputs > 32)
        return 0;
    for (group = 0; group < c->group; group++) {
        for (out = 0; out < outputs; out += DIRECT_LANES) {
            const int32_t count = poetc_min(DIRECT_LANES, outputs - out);
            for (channel = POETC_BEGIN(c->share, inputs, 1); channel < POETC_END(c->share, inputs, 1);
                 channel += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, inputs, 1) - channel), all = here * taps;
                float *total = workspace + all, *turned = total + all * DIRECT_LANES;
                float *strip = turned + depth * DIRECT_LANES;
                float *to = gw + ((ptrdiff_t)(group * outputs + out) * inputs + channel) * taps;
                for (k = 0; k < all; k++) {
                    const int32_t ch = k / taps, kh = (k - ch * taps) / c->kernel_w,
                                  kw = k - ch * taps - kh * c->kernel_w;
                    offset[k] = ch * plane + kh * c->dilation_h * row + kw * c->dilation_w;
                }
                for (n = 0; n < c->batch; n++) {
                    const float *image =
                        x + ((ptrdiff_t)n * c->channels + group * inputs + channel) * c->height * c->width;
                    const float *g = gy + ((ptrdiff_t)n * c->outputs + group * outputs + out) * pixels;
                    for (first = 0; first < pixels; first += depth) {
                        const int32_t terms = poetc_min(depth, pixels - first), oh = first / c->output_width;
                        const int32_t ow = first - oh * c->output_width;
                        const float *from = image + (ptrdiff_t)oh * c->stride_h * row;
                        for (k = 0; k + 4 <= terms; k += 4) {
                            for (i = 0; i + 4 <= count; i += 4) {
                                const float *q = g + (ptrdiff_t)i * pixels + first + k;
                                poetc_f4 r0 = poetc_f4_load(q), r1 = poetc_f4_load(q + pixels);
                                poetc_f4 r2 = poetc_f4_load(q + 2 * pixels), r3 = poetc_f4_load(q + 3 * pixels);
                                float *at = turned + k * DIRECT_LANES + i;
                                poetc_f4_transpose(&r0, &r1, &r2, &r3);
                                poetc_f4_store(at, r0);
                                poetc_f4_store(at + DIRECT_LANES, r1);
                                poetc_f4_store(at + 2 * DIRECT_LANES, r2);
                                poetc_f4_store(at + 3 * DIRECT_LANES, r3);
                            }
                            for (; i < count; i++)
                                for (j = k; j < k + 4; j++)
                                    turned[j * DIRECT_LANES + i] = g[(ptrdiff_t)i * pixels + first + j];
                            for (; i < DIRECT_LANES; i++)
                                for (j = k; j < k + 4; j++)
                                    turned[j * DIRECT_LANES + i] = 0.0f;
                        }
                        for (; k < terms; k++)
                            for (i = 0; i < DIRECT_LANES; i++)
                                turned[k * DIRECT_LANES + i] = i < count ? g[(ptrdiff_t)i * pixels + first + k] : 0.0f;
                        if (padded) {
                            copy_strip(strip, image, here, c->height, c->width, oh * c->stride_h - c->pad_top,
                                       touched_rows, -c->pad_left, row);
                            from = strip;
                        }
                        for (tap = 0; tap < all;) {
                            const int32_t left = all - tap;
                            float *sums = total + tap * DIRECT_LANES;
                            const ptrdiff_t x_row = (ptrdiff_t)c->stride_h * row;
                            const int begin = n == 0 && first == 0;
#define TAKE_TAPS(COUNT)                                                                                               \
    (direct_taps_##COUNT(turned, from, offset + tap, terms, ow, c->output_width, x_row, c->stride_w, sums, begin),     \
     tap += COUNT)
                            if (left >= 27 && taps % 25)
                                TAKE_TAPS(27);
                            else if (left >= 25)
                                TAKE_TAPS(25);
                            else if (left >= 18)
                                TAKE_TAPS(18);
                            else if (left >= 9)
                                TAKE_TAPS(9);
                            else if (left >= 4)
                                TAKE_TAPS(4);
                            else
                                TAKE_TAPS(1);
#undef TAKE_TAPS
                        }
                    }
                }
                for (i = 0; i < count; i++, to += (ptrdiff_t)inputs * taps) {
                    for (k = 0; k < all; k++) {
                        if (lr)
                            to[k] = POETC_FMS(total[k * DIRECT_LANES + i], *lr, to[k]);
                        else
                            to[k] = total[k * DIRECT_LANES + i];
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f;
    return 1;
}

#elif defined(POETC_HELIUM)

/* Four taps of a window, anywhere, for some outputs. */
typedef struct {
    uint32x4_t x;               /* addresses of their values in the first pixel's window */
    const float *gy;            /* pixel by pixel, the outputs side by side */
    int32_t lines, width, skip; /* rows of pixels; floats from the end of one to the next in x */
    float *to;
    ptrdiff_t to_row;
    int accumulate;
    mve_pred16_t lanes; /* the last taps may be fewer */
} tap_task;

POETC_INLINE void direct_taps(const int rows, const tap_task *t)
{
    uint32x4_t x = vsubq_n_u32(t->x, 4);
    const float *gy = t->gy;
    float *to = t->to;
    float32x4_t sum[6], v;
    int32_t lines = t->lines;
    int i;
    POETC_UNROLL
    for (i = 0; i < rows; i++)
        sum[i] = vdupq_n_f32(0.0f);
#define PIXEL(n) POETC_STEP_##n("vldrw.u32 %q[v], [%q[x], #4]!\n\t", "gy")
#define LINES(n, text, count)                                                                                          \
    __asm__ volatile("1:\tdls lr, %[pixels]\n2:\t" text "le lr, 2b\n\t"                                                \
                     "vadd.i32 %q[x], %q[x], %[skip]\n\tsubs %[lines], #1\n\tbne 1b"                                   \
                     : POETC_SUMS_##n, [v] "=&w"(v), [x] "+w"(x), [gy] "+&r"(gy), [lines] "+&r"(lines)                 \
                     : [pixels] "r"(count), [skip] "r"(4 * t->skip)                                                    \
                     : POETC_FACTORS, "lr", "cc", "memory")
#define LINES_OF(n)                                                                                                    \
    do {                                                                                                               \
        if (t->width % 2)                                                                                              \
            LINES(n, PIXEL(n), t->width);                                                                              \
        else                                                                                                           \
            LINES(n, PIXEL(n) PIXEL(n), t->width / 2);                                                                 \
    } while (0)
    POETC_FOR_ROWS(rows, LINES_OF);
#undef LINES_OF
#undef LINES
#undef PIXEL
    POETC_UNROLL
    for (i = 0; i < rows; i++, to += t->to_row) {
        if (t->accumulate)
            sum[i] = vaddq_f32(sum[i], vldrwq_z_f32(to, t->lanes));
        vstrwq_p_f32(to, sum[i], t->lanes);
    }
}

#define DEFINE_TAPS(ROWS)                                                                                              \
    POETC_APART void direct_taps_##ROWS(const tap_task *t)                                                             \
    {                                                                                                                  \
        direct_taps(ROWS, t);                                                                                          \
    }
DEFINE_TAPS(6)
DEFINE_TAPS(4)
DEFINE_TAPS(2)
DEFINE_TAPS(1)
#undef DEFINE_TAPS

/* ConvGradWeight with a stride of one along rows: windows are gathered, four taps a vector. They are read where they
 * are or from a strip, instead of being packed. Returns whether it was done: there must be room for the strip of at
 * least one row of gy. */
POETC_APART int direct_grad_weight(const convolution *c, const float *x, const float *gy, float *gw, const float *lr,
                                   float *workspace, int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t columns = inputs * taps, pixels = c->output_height * c->output_width,
                  reach = (c->kernel_h - 1) * c->dilation_h;
    const int padded = is_padded(c);
    const int32_t row = strip_width(c), offsets = (columns + 3) / 4 * 4;
    const int32_t each = 6 * c->output_width + (padded ? inputs * c->stride_h * row : 0); /* floats a row of gy */
    const int32_t room = size - 1 - offsets - (padded ? inputs * (reach + 1 - c->stride_h) * row : 0);
    const int32_t most = poetc_min(c->output_height, (depth + c->output_width - 1) / c->output_width);
    const int32_t held =
        room < each ? 0 : poetc_min(most, room / each); /* rows of gy at a time: about a block of terms */
    const int32_t rows_of_x = (held - 1) * c->stride_h + reach + 1,
                  plane = padded ? rows_of_x * row : c->height * c->width;
    uint32_t *offset = (uint32_t *)workspace; /* bytes */
    float *packed = workspace + offsets, *strip = packed + held * 6 * c->output_width;
    int32_t group, n, top, o, rows, channel, kh, kw, k = 0;
    if (lr || c->stride_w != 1 || held < 1 || 2 * held < most)
        return 0;
    for (channel = 0; channel < inputs; channel++)
        for (kh = 0; kh < c->kernel_h; kh++)
            for (kw = 0; kw < c->kernel_w; kw++)
                offset[k++] = 4u * (uint32_t)(channel * plane + kh * c->dilation_h * row + kw * c->dilation_w);
    for (; k < offsets; k++) /* sums that nobody reads */
        offset[k] = 0;
    for (group = 0; group < c->group; group++) {
        float *part = gw + (ptrdiff_t)group * outputs * columns;
        for (n = 0; n < c->batch; n++) {
            const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs) * c->height * c->width;
            for (top = 0; top < c->output_height; top += held) {
                const float *from = padded ? strip : image + (ptrdiff_t)top * c->stride_h * row;
                tap_task t;
                t.lines = poetc_min(held, c->output_height - top), t.width = c->output_width;
                t.skip = c->stride_h * row - c->output_width, t.accumulate = n > 0 || top > 0;
                for (channel = 0; padded && channel < inputs; channel++)
                    copy_padded(strip + (ptrdiff_t)channel * plane, image + (ptrdiff_t)channel * c->height * c->width,
                                c, top * c->stride_h - c->pad_top, rows_of_x, row);
                for (o = 0; o < outputs; o += rows) {
                    rows = outputs - o >= 6 ? 6 : outputs - o >= 4 ? 4 : outputs - o >= 2 ? 2 : 1;
                    poetc_pack_apart(packed,
                                     gy + ((ptrdiff_t)n * c->outputs + group * outputs + o) * pixels +
                                         top * c->output_width,
                                     pixels, rows, t.lines * c->output_width);
                    t.gy = packed, t.to = part + (ptrdiff_t)o * columns, t.to_row = columns;
                    for (k = 0; k < columns; k += 4, t.to += 4) {
                        t.x = vaddq_n_u32(vld1q_u32(offset + k), (uint32_t)from);
                        t.lanes = vctp32q((uint32_t)(columns - k));
                        switch (rows) {
                        case 6: direct_taps_6(&t); break;
                        case 4: direct_taps_4(&t); break;
                        case 2: direct_taps_2(&t); break;
                        default: direct_taps_1(&t); break;
                        }
                    }
                }
            }
        }
    }
    return 1;
}

#elif POETC_FPU_M && POETC_LANES == 1

/* ConvGradWeight of three columns with a stride of one along rows, of one image. Returns whether it was done: blocks of
 * terms must be whole rows, few results made twice, and a strip have room. */
POETC_APART int direct_grad_weight(const convolution *c, const float *x, const float *gy, float *gw, const float *lr,
                                   float *workspace, int32_t size, int32_t depth)
{
    static const float zeros[12];
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = 3 * c->kernel_h;
    const int32_t width = c->output_width, pixels = c->output_height * width, row = width + 2;
    const int32_t plane = (c->output_height - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1;
    const int32_t most = poetc_min(inputs, (size - 2) / (plane * row)); /* channels at a time */
    float total[12];
    const taps_task t = {zeros, total, depth / width, width / 8};
    int32_t group, first, channel, o, kh, i;
    if (c->batch != 1 || c->kernel_w != 3 || c->stride_w != 1 || c->dilation_w != 1 || width % 8 || depth % width ||
        pixels <= depth || outputs < 4 || (outputs + 3) / 4 * 16 > 5 * outputs || most < 1)
        return 0;
    for (group = 0; group < c->group; group++) {
        for (first = 0; first < inputs; first += most) {
            const int32_t count = poetc_min(most, inputs - first);
            copy_strip(workspace, x + ((ptrdiff_t)group * inputs + first) * c->height * c->width, count, c->height,
                       c->width, -c->pad_top, plane, -c->pad_left, row);
            for (o = 0; o < outputs; o += 4) {
                const int32_t output = group * outputs + poetc_min(o, outputs - 4),
                              again = o - poetc_min(o, outputs - 4);
                for (channel = 0; channel < count; channel++) {
                    for (kh = 0; kh < c->kernel_h; kh++) {
                        float *to = gw + ((ptrdiff_t)output * inputs + first + channel) * taps + 3 * kh;
                        direct_taps(&t, workspace + (channel * plane + kh * c->dilation_h) * row,
                                    gy + (ptrdiff_t)output * pixels, pixels, c->output_height,
                                    4 * (c->stride_h * row - width));
                        for (i = 0; i < 4; i++, to += (ptrdiff_t)inputs * taps) {
                            const float *sum = total + 3 * i;
                            if (i < again) /* moved already */
                                continue;
                            if (lr)
                                to[0] = POETC_FMS(sum[0], *lr, to[0]), to[1] = POETC_FMS(sum[1], *lr, to[1]),
                                to[2] = POETC_FMS(sum[2], *lr, to[2]);
                            else
                                to[0] = sum[0], to[1] = sum[1], to[2] = sum[2];
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f;
    return 1;
}

#else
#define direct_grad_weight(c, x, gy, gw, lr, workspace, size, depth) 0
#endif

/* The other operand of the weight's gradient, beside gy. It has columns from number `column` on and pixels from number
 * `first` of image n on, or whole small images. */
POETC_APART void pack_taps(const poetc_gemm_space *space, const convolution *c, const float *image, int32_t n,
                           int32_t first, const poetc_gemm *g, int32_t column, float *strip, int32_t held,
                           const prologue *p)
{
    const int32_t pixels = c->output_height * c->output_width;
    int32_t k;
    if (is_pointwise(c)) {
        const float *from = image + ((ptrdiff_t)n * c->channels + column) * pixels + first;
        for (k = 0; k < g->depth; k += pixels, from += (ptrdiff_t)c->channels * pixels)
            poetc_gemm_pack_transposed(space, from, pixels, k, poetc_min(pixels, g->depth - k), g->depth, g->columns);
        if (p)
            p->panels(p, column, space, g->columns, g->depth);
        return;
    }
    if (held > 0)
        pack_strips(space, c, image, n * pixels + first, g->depth, column, g->columns, strip, held, p);
    else
        pack_windows(space, c, image, n * pixels + first, g->depth, column, g->columns);
}

/* A batch norm and an activation, of packed pixels of channels from number `channel` on, which are columns. */
static void normalize_panels(const prologue *n, int32_t channel, const poetc_gemm_space *space, int32_t columns,
                             int32_t depth)
{
    int32_t at, k, i;
    for (at = 0; at < columns; at += COLUMNS) {
        float *x = poetc_gemm_panel(space, at, depth);
        const float *centre = n->table + channel + at, *factor = centre + n->third, *shift = factor + n->third;
#if POETC_LANES > 1
#define ONE(F) F##_V
#else
#define ONE(F) F
#endif
#define EACH(F)                                                                                                        \
    for (i = 0; i < COLUMNS; i += POETC_LANES) {                                                                       \
        const poetc_vector c = poetc_vector_load(centre + i), f = poetc_vector_load(factor + i);                       \
        const poetc_vector s = poetc_vector_load(shift + i);                                                           \
        const float q[] = POETC_FLOATS(F, n->p);                                                                       \
        (void)q;                                                                                                       \
        for (k = 0; k < depth; k++) {                                                                                  \
            float *at_x = x + k * COLUMNS + i;                                                                         \
            const poetc_vector normal = POETC_FMAV(poetc_vector_load(at_x) - c, f, s);                                         \
            poetc_vector_store(at_x, ONE(F)(normal, q));                                                               \
        }                                                                                                              \
    }
        POETC_FOR_ACTIVATION(n->activation, EACH)
#undef EACH
#undef ONE
    }
}

/* copy_padded, then once more the part that lies on the image. */
static void normalize_strip(const prologue *n, int32_t channel, float *to, const float *plane, const convolution *c,
                            int32_t first, int32_t count, int32_t columns)
{
    const int32_t begin = clip(c->pad_left, 0, columns), end = clip(c->width + c->pad_left, begin, columns);
    const int32_t top = clip(first, 0, c->height), bottom = clip(first + count, top, c->height);
    const float *at = n->table + channel;
    const poetc_channel t = {at[0], at[n->third], at[2 * n->third], 0.0f};
    copy_padded(to, plane, c, first, count, columns);
    poetc_normalize_rows(t, n->activation, n->p, plane + (ptrdiff_t)top * c->width + begin - c->pad_left, c->width,
                         to + (ptrdiff_t)(top - first) * columns + begin, columns, bottom - top, end - begin);
}

#define PROLOGUE_FLOATS 16
/* The bytes that norm_table_floats in poetc/ops/convolution.py counts are enough; C99 has no _Static_assert. */
typedef char prologue_fits[sizeof(prologue) <= PROLOGUE_FLOATS * sizeof(float) ? 1 : -1];

/* Floats of a third of the table, with as many as a panel may hold beyond the last channel. */
static int32_t table_third(const poetc_call *call)
{
    return (call->ints[1] + 31) / 32 * 32 + 32;
}

/* The prologue and its table of all channels, in the end of the workspace: the stack has no room for them. `first`: the
 * batch norm's first operand. */
POETC_APART prologue *prepare(const poetc_call *call, unsigned first, float *workspace)
{
    const poetc_norm norm = poetc_norm_of(call, first);
    const int32_t third = table_third(call);
    float *table = workspace + call->ints[17] - 3 * third;
    prologue *n = (prologue *)(table - PROLOGUE_FLOATS);
    int32_t i;
    n->table = table, n->third = third, n->p = norm.floats + 1, n->activation = norm.activation;
    n->strip = normalize_strip, n->panels = normalize_panels;
    for (i = 0; i < third; i++) {
        const poetc_channel t = poetc_channel_of(&norm, poetc_min(i, call->ints[1] - 1));
        table[i] = t.centre, table[third + i] = t.factor, table[2 * third + i] = t.shift;
    }
    return n;
}

/* The gradient of the weights. If there is a learning rate, it moves the weights in `to` instead: then the workspace
 * holds only a strip of results of all outputs. Sums go over the pixels of all images, block after block; a block never
 * crosses from one image to the next. */
static void grad_weight(const poetc_call *call, const float *x, const float *gy, float *to, float *workspace,
                        const float *lr, prologue *norm)
{
    const convolution c = describe(call);
    const int32_t pixels = c.output_height * c.output_width, inputs = c.channels / c.group;
    const int32_t outputs = c.outputs / c.group, taps = c.kernel_h * c.kernel_w, width = inputs * taps;
    const int32_t terms = call->ints[18], blocks = (pixels + terms - 1) / terms;
#if POETC_GEMM_COLUMNS == 4
    const int32_t strip = call->ints[19] || is_pointwise(&c) ? call->ints[19] : strip_floats(&c, terms, call->ints[17]);
#else
    const int32_t strip = call->ints[19];
#endif
    const int32_t size = call->ints[17] - strip - (norm ? PROLOGUE_FLOATS + 3 * norm->third : 0);
    const int32_t held = is_pointwise(&c) ? 0 : strip_rows(&c, strip);
    poetc_gemm_space space = poetc_gemm_carve(workspace, size, terms, blocks > 1 ? blocks : c.batch, width, 0);
    const int32_t images = blocks > 1 ? 1 : space.depth / terms; /* at once: small ones, one a block */
#ifdef POETC_AT_ONCE                                             /* sums of one block move the weights at once */
    float *const strip_at = lr && pixels * c.batch > terms ? workspace + call->ints[17] : NULL;
#else
    float *const strip_at = lr ? workspace + call->ints[17] : NULL;
#endif
    int32_t group, column, first, n, o;
    POETC_SPLIT_WEIGHTS(split, c.share, c.batch * pixels, outputs, width)
    if (!norm)
        workspace[call->ints[17] - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    if (strip_at)                             /* as many as it holds */
        space.columns = poetc_min(space.columns, (call->ints[20] - call->ints[17]) / outputs / COLUMNS * COLUMNS);
    if (!norm && !is_pointwise(&c) && direct_grad_weight(&c, x, gy, to, lr, workspace, call->ints[17], terms))
        return;
    for (group = 0; group < c.group; group++) {
        const float *image = x + (ptrdiff_t)group * inputs * c.height * c.width;
        float *part = to + (ptrdiff_t)group * outputs * width;
        poetc_gemm g;
        g.rows = outputs, g.a_row = pixels, g.a_k = 1, g.terms = terms;
        g.a_block = blocks > 1 ? terms : (ptrdiff_t)c.outputs * pixels;
        g.row_bias = g.column_bias = NULL;
        POETC_NOTHING_AHEAD(g);
        POETC_SET_RATE(g, strip_at ? NULL : lr);
        g.y = strip_at ? strip_at : part;
        g.y_row = strip_at ? space.columns : width;
        g.segment = width, g.segment_step = 0;
        POETC_SPLIT_ROWS(g, split);
        for (column = POETC_BEGIN(split.columns, width, COLUMNS); column < POETC_END(split.columns, width, COLUMNS);
             column += space.columns) {
            g.column = strip_at ? 0 : column;
            g.columns = poetc_min(space.columns, POETC_END(split.columns, width, COLUMNS) - column);
            POETC_SET_AHEAD(g, NULL, 0, 0, 0);
            for (n = 0; n < c.batch; n += images) {
                for (first = 0; first < pixels; first += space.depth) {
                    const int32_t here = poetc_min(images, c.batch - n);
                    g.depth = here > 1 ? here * pixels : poetc_min(space.depth, pixels - first);
                    pack_taps(&space, &c, image, n, first, &g, column, workspace + size, held, norm);
                    g.a = gy + ((ptrdiff_t)n * c.outputs + (ptrdiff_t)group * outputs) * pixels + first;
                    g.accumulate = n > 0 || first > 0;
                    if (strip_at && n + here == c.batch &&
                        first + space.depth >= pixels) /* the rows that descend next */
                        POETC_SET_AHEAD(g, part + column, width, outputs, g.columns);
                    poetc_gemm_run(&g, &space);
                }
            }
            for (o = POETC_BEGIN(split.rows, outputs, POETC_GEMM_PART);
                 strip_at && o < POETC_END(split.rows, outputs, POETC_GEMM_PART); o++)
                poetc_descend(part + (ptrdiff_t)o * width + column, g.y + (ptrdiff_t)o * g.y_row, *lr, g.columns);
        }
        if (norm)
            norm->table += inputs;
    }
}

/* As poetc_op_conv_grad_weight; the last ints as above, and the floats of the workspace that hold a strip of an image.
 */
int poetc_op_conv_grad_weight_packed(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_grad_weight_packed, call, CONVOLUTION_WORK(describe(call)), call->ints[17]);
    grad_weight(call, poetc_in(call, 0), poetc_in(call, 1), poetc_out(call, 2), POETC_WORKSPACE(call, 3), NULL, NULL);
    return POETC_OK;
}

/* x, gy, mean, var, scale, bias -> gw, of f(batch norm of x); the workspace holds a table of the channels too. */
int poetc_op_conv_grad_weight_norm_packed(const poetc_call *call);
int poetc_op_conv_grad_weight_norm_packed(const poetc_call *call)
{
    float *workspace = POETC_WORKSPACE(call, 7);
    POETC_THREADED(poetc_op_conv_grad_weight_norm_packed, call, CONVOLUTION_WORK(describe(call)), call->ints[17]);
    grad_weight(call, poetc_in(call, 0), poetc_in(call, 1), poetc_out(call, 6), workspace, NULL,
                prepare(call, 2, workspace));
    return POETC_OK;
}

/* w, x, gy, lr -> w. ints: as above, and the floats of the workspace with the strip. */
int poetc_op_conv_grad_weight_sgd_packed(const poetc_call *call);
int poetc_op_conv_grad_weight_sgd_packed(const poetc_call *call)
{
    float *workspace = POETC_WORKSPACE(call, 5);
    POETC_THREADED(poetc_op_conv_grad_weight_sgd_packed, call, CONVOLUTION_WORK(describe(call)), call->ints[20]);
    workspace[call->ints[20] - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    grad_weight(call, poetc_in(call, 1), poetc_in(call, 2), poetc_out(call, 4), workspace, poetc_in(call, 3), NULL);
    return POETC_OK;
}

/* w, x, gy, mean, var, scale, bias, lr -> w */
int poetc_op_conv_grad_weight_sgd_norm_packed(const poetc_call *call);
int poetc_op_conv_grad_weight_sgd_norm_packed(const poetc_call *call)
{
    float *workspace = POETC_WORKSPACE(call, 9);
    POETC_THREADED(poetc_op_conv_grad_weight_sgd_norm_packed, call, CONVOLUTION_WORK(describe(call)), call->ints[20]);
    workspace[call->ints[20] - 1] = 0.0f;
    grad_weight(call, poetc_in(call, 1), poetc_in(call, 2), poetc_out(call, 8), workspace, poetc_in(call, 7),
                prepare(call, 3, workspace));
    return POETC_OK;
}
