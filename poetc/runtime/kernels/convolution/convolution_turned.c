/* The gradient of a convolution's weights with lanes along the channels, and the step of plain gradient descent that
 * takes it.
 *
 * Layout: the image is turned once, so that a pixel's channels lie side by side. Every tap reads the image where it is,
 * at an offset of a table. So windows of pixels that lie apart are never packed one by one.
 * Order of sums: that of convolution_packed_grad_weight.c. */
#include "convolution/poetc_convolution.h"
#include "gemm/poetc_gemm.h"
#include "operators/poetc_descend.h"

#define LANES POETC_LANES
#define ROWS POETC_GEMM_ROWS
#define COLUMNS POETC_GEMM_COLUMNS

/* poetc/kernels/convolution_turned/selection.py computes with these: keep them in step. */
#define TERMS 64    /* of a block */
#define CHANNELS 32 /* at a time: a multiple of every target's columns */
#define OUTPUTS 12  /* at a time: a multiple of every target's rows */
#define SLACK 1100  /* floats: to align with, zeros, and those that are read and stored too much */

/* Sums of one tap for some outputs and COLUMNS channels, over all pixels of some images. */
typedef struct {
    const float *gy;       /* of the first output */
    ptrdiff_t row, image;  /* floats to the next output, to the next image */
    const float *pixels;   /* turned */
    const int32_t *offset; /* of every pixel of gy: where in them its tap lies */
    int32_t images, count; /* count: pixels of an image */
    float *total;
    ptrdiff_t total_row;
    int accumulate;
} tap_task;

POETC_INLINE void sum_taps(const int rows, const tap_task *t)
{
    const ptrdiff_t row = t->row;
    const int32_t *offset = t->offset;
    const float *const pixels = t->pixels;
    int32_t n, first, k;
    int accumulate = t->accumulate, i, j;
    for (n = 0; n < t->images; n++) {
        for (first = 0; first < t->count; first += TERMS) {
            const float *a = t->gy + n * t->image + first;
            poetc_vector sum[ROWS][POETC_GEMM_VECTORS];
            float *to = t->total;
            POETC_UNROLL
            for (i = 0; i < rows; i++) {
                POETC_UNROLL
                for (j = 0; j < POETC_GEMM_VECTORS; j++)
                    sum[i][j] = (poetc_vector){0};
            }
            for (k = poetc_min(TERMS, t->count - first); k > 0; k--, a++, offset++) {
                const float *b = pixels + *offset;
                POETC_UNROLL
                for (i = 0; i < rows; i++) {
                    POETC_UNROLL
                    for (j = 0; j < POETC_GEMM_VECTORS; j++)
                        POETC_ADD_SCALED(sum[i][j], poetc_vector_load(b + j * LANES), a[i * row]);
                }
            }
            POETC_UNROLL
            for (i = 0; i < rows; i++, to += t->total_row) {
                POETC_UNROLL
                for (j = 0; j < POETC_GEMM_VECTORS; j++) {
                    float *at = to + j * LANES;
                    poetc_vector_store(at, accumulate ? poetc_vector_load(at) + sum[i][j] : sum[i][j]);
                }
            }
            accumulate = 1;
        }
    }
}

#define DEFINE_SUM(COUNT)                                                                                              \
    POETC_APART void sum_taps_##COUNT(const tap_task *t)                                                               \
    {                                                                                                                  \
        sum_taps(COUNT, t);                                                                                            \
    }
#if ROWS >= 12
DEFINE_SUM(12)
DEFINE_SUM(8)
#elif ROWS >= 6
DEFINE_SUM(6)
#endif
DEFINE_SUM(4)
DEFINE_SUM(1)
#undef DEFINE_SUM

/* The largest block that fits: its rows. */
static int32_t rows_of(int32_t left)
{
#if ROWS >= 12
    if (LANES == 16 && left == 16)
        return 8;
    return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : 1;
#elif ROWS >= 6
    return left >= 6 ? 6 : left >= 4 ? 4 : 1;
#else
    return left >= 4 ? 4 : 1;
#endif
}

static void run(int32_t rows, const tap_task *t)
{
    switch (rows) {
#if ROWS >= 12
    case 12: sum_taps_12(t); break;
    case 8: sum_taps_8(t); break;
#elif ROWS >= 6
    case 6: sum_taps_6(t); break;
#endif
    case 4: sum_taps_4(t); break;
    default: sum_taps_1(t); break;
    }
}

/* `count` pixels of COLUMNS channels, `step` floats apart, with their channels side by side. */
static void turn(const float *from, ptrdiff_t step, int32_t count, float *to)
{
    int32_t k = 0, lane;
#ifdef POETC_AHEAD
    const int32_t whole = count / LANES;
    for (lane = 0; lane < COLUMNS; lane += LANES)
        poetc_transpose_lanes(to + lane, COLUMNS, from + lane * step, step, whole);
    k = whole * LANES;
#endif
    for (; k < count; k++)
        for (lane = 0; lane < COLUMNS; lane++)
            to[k * COLUMNS + lane] = from[k + lane * step];
}

/* Of every tap and pixel of gy, of `images` images: where its pixel lies in the turned ones; `zeros` where it lies
 * beside the image. */
static void find_taps(const convolution *c, int32_t images, int32_t zeros, int32_t *offset)
{
    int32_t kh, kw, n, oh, ow;
    for (kh = 0; kh < c->kernel_h; kh++) {
        for (kw = 0; kw < c->kernel_w; kw++) {
            for (n = 0; n < images; n++) {
                for (oh = 0; oh < c->output_height; oh++) {
                    const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
                    int32_t iw = kw * c->dilation_w - c->pad_left;
                    for (ow = 0; ow < c->output_width; ow++, iw += c->stride_w) {
                        const int there = (uint32_t)ih < (uint32_t)c->height && (uint32_t)iw < (uint32_t)c->width;
                        *offset++ = there ? ((n * c->height + ih) * c->width + iw) * COLUMNS : zeros;
                    }
                }
            }
        }
    }
}

/* Sums [taps][COLUMNS] of `outputs` outputs become [COLUMNS][taps], their weights' order. */
POETC_APART void turn_back(const float *total, int32_t taps, int32_t outputs, float *to)
{
    int32_t o, lane, tap;
    for (o = 0; o < outputs; o++, total += taps * COLUMNS, to += taps * COLUMNS) {
#ifdef POETC_AHEAD
        if (taps <= LANES) { /* later stores overwrite those that are too much */
            poetc_transpose_lanes(to, taps, total, COLUMNS, COLUMNS / LANES);
            continue;
        }
#endif
        for (lane = 0; lane < COLUMNS; lane++)
            for (tap = 0; tap < taps; tap++)
                to[lane * taps + tap] = total[tap * COLUMNS + lane];
    }
}

/* Images at a time, `size` floats being there; 0: there is no room for one. If not all of them, sums of all outputs are
 * kept. */
static int32_t images_at_once(const convolution *c, int32_t size)
{
    const int32_t taps = c->kernel_h * c->kernel_w, outputs = c->outputs / c->group;
    const int32_t each = CHANNELS * c->height * c->width + taps * c->output_height * c->output_width;
    const int32_t least = SLACK + 2 * OUTPUTS * taps * CHANNELS;
    if (least + (int64_t)c->batch * each <= size)
        return c->batch;
    size -= least + outputs * taps * CHANNELS;
    return size < each ? 0 : size / each;
}

/* The weights that `outputs` outputs move next, a part of them. */
static void fetch(const float *weights, ptrdiff_t row, int32_t floats, int32_t outputs, int32_t part, int32_t parts)
{
#ifdef POETC_AHEAD
    const int32_t lines = (floats + 15) / 16, end = (int32_t)((int64_t)outputs * lines * (part + 1) / parts);
    int32_t i;
    for (i = (int32_t)((int64_t)outputs * lines * part / parts); i < end; i++)
        __builtin_prefetch(weights + i / lines * row + i % lines * 16, 1, 2);
#else
    (void)weights, (void)row, (void)floats, (void)outputs, (void)part, (void)parts;
#endif
}

/* ints: those of all convolutions, the floats of the workspace. */
static int grad_weight(const poetc_call *call, const float *x, const float *gy, float *to, float *workspace,
                       const float *lr)
{
    const convolution c = describe(call);
    const int32_t pixels = c.output_height * c.output_width, plane = c.height * c.width, inputs = c.channels / c.group;
    const int32_t outputs = c.outputs / c.group, taps = c.kernel_h * c.kernel_w,
                  images = images_at_once(&c, call->ints[17]);
    const int32_t part = taps * COLUMNS, kept = images < c.batch ? outputs : 0;
    const ptrdiff_t weights_row = (ptrdiff_t)inputs * taps;
    float *const totals = workspace + (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
    float *const turned = totals + (ptrdiff_t)(kept + OUTPUTS) * part + LANES * COLUMNS;
    float *const strip = turned + OUTPUTS * part + LANES;
    float *const zeros = strip + (ptrdiff_t)images * plane * COLUMNS;
    int32_t *const offset = (int32_t *)(zeros + COLUMNS);
    const int split = inputs / CHANNELS >= POETC_PARTS(call->share); /* channels, else outputs */
    const int32_t begin = split ? POETC_BEGIN(call->share, inputs, CHANNELS) : 0;
    const int32_t end = split ? POETC_END(call->share, inputs, CHANNELS) : inputs;
    const int32_t from = split ? 0 : POETC_BEGIN(call->share, outputs, OUTPUTS);
    const int32_t stop = split ? outputs : POETC_END(call->share, outputs, OUTPUTS);
    int32_t group, channel, n, o, first, rows, tap, i;
    if (images < 1)
        return POETC_EINVAL;
    workspace[call->ints[17] - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    find_taps(&c, images, (int32_t)(zeros - strip), offset);
    for (i = 0; i < COLUMNS; i++)
        zeros[i] = 0.0f;
    for (group = 0; group < c.group; group++) {
        for (channel = begin; channel < end; channel += COLUMNS) {
            for (n = 0; n < c.batch; n += images) {
                tap_task t;
                t.images = poetc_min(images, c.batch - n), t.count = pixels, t.row = pixels,
                t.image = (ptrdiff_t)c.outputs * pixels;
                t.pixels = strip, t.total_row = part, t.accumulate = n > 0;
                for (i = 0; i < t.images; i++)
                    turn(x + ((ptrdiff_t)(n + i) * c.channels + group * inputs + channel) * plane, plane, plane,
                         strip + (ptrdiff_t)i * plane * COLUMNS);
                for (first = from; first < stop; first += OUTPUTS) {
                    const int32_t here = poetc_min(OUTPUTS, stop - first), last = n + t.images == c.batch;
                    float *const total = totals + (ptrdiff_t)(kept ? first : 0) * part;
                    float *const weights =
                        to + ((ptrdiff_t)group * outputs + first) * weights_row + (ptrdiff_t)channel * taps;
                    for (tap = 0; tap < taps; tap++) {
                        if (last && lr)
                            fetch(weights, weights_row, part, here, tap, taps);
                        t.offset = offset + (ptrdiff_t)tap * images * pixels;
                        for (o = 0; o < here; o += rows) {
                            rows = rows_of(here - o);
                            t.gy = gy + ((ptrdiff_t)n * c.outputs + group * outputs + first + o) * pixels;
                            t.total = total + o * part + tap * COLUMNS;
                            run(rows, &t);
                        }
                    }
                    if (!last)
                        continue;
                    turn_back(total, taps, here, turned);
                    for (o = 0; o < here; o++) {
                        float *const row = weights + o * weights_row;
                        if (lr)
                            poetc_descend(row, turned + o * part, *lr, part);
                        else
                            for (i = 0; i < part; i++)
                                row[i] = turned[o * part + i];
                    }
                }
            }
        }
    }
    return POETC_OK;
}

/* x, gy -> gw */
int poetc_op_conv_grad_weight_turned(const poetc_call *call);
int poetc_op_conv_grad_weight_turned(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_grad_weight_turned, call, CONVOLUTION_WORK(describe(call)), call->ints[17]);
    return grad_weight(call, poetc_in(call, 0), poetc_in(call, 1), poetc_out(call, 2), POETC_WORKSPACE(call, 3), NULL);
}

/* w, x, gy, lr -> w */
int poetc_op_conv_grad_weight_sgd_turned(const poetc_call *call);
int poetc_op_conv_grad_weight_sgd_turned(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_grad_weight_sgd_turned, call, CONVOLUTION_WORK(describe(call)), call->ints[17]);
    return grad_weight(call, poetc_in(call, 1), poetc_in(call, 2), poetc_out(call, 4), POETC_WORKSPACE(call, 5),
                       poetc_in(call, 3));
}
