/* The task of a product of 8-bit integers: its operands, the axes that its terms read, and the values of its sums.
 *
 * Layout: results are [N, C, H, W]. Sums of a phase and a group are [rows][columns], with a column a pixel of the
 * phase.
 * Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#ifndef POETC_INT8_TASK_H
#define POETC_INT8_TASK_H

#include "int8/poetc_int8_sums.h"
#include "int8/poetc_linear.h"

/* ints: IntegerProduct of poetc/kernels/int8/selection.py. */
typedef struct {
    int32_t batch, channels, height, width, outputs, output_height, output_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t group, has_bias;
    int32_t groups, rows, columns, terms, rows_at_once, columns_at_once, terms_at_once, holds_sums, is_stochastic,
        adapts;
} product;

#define SMALL_TERMS 32768 /* with a bias, their sums are at most 2^30 */

/* The parameters of QLinearConv besides (poetc/ops/qlinear_layers.py). */
typedef struct {
    int32_t zero_x, zero, low, high;
    const float *scales; /* of the weights of each output */
    float scale_x, scale;
} requantization;

/* Along an axis: pixel i of a phase is at first + i * step, and its tap k reads the place i * move + origin + k * tap.
 */
typedef struct {
    int32_t first, step, count;        /* of pixels */
    int32_t move, origin, tap;         /* of the places that they read */
    int32_t taps, tap_first, tap_step; /* of the kernel */
} axis;

/* The operands of a call, the part of it that is being made, and the use of its sums. */
typedef struct task {
    product p;
    const requantization *requantized;
    const int32_t *starts; /* of the sums of each output */
    int32_t pad;           /* around the image */
    const int8_t *image, *errors, *weight;
    const int8_t *bias;
    int32_t bias_shift;
    /* Of a convolution: the planes that windows read, how many there are in all and in a group, and their size. */
    const int8_t *planes;
    int32_t planes_all, planes_group, height, width;
    size_t weight_row, weight_plane; /* steps from a row and from a plane to the next in the weights */
    int32_t phases;                  /* of pixels: those of one phase have the same taps */
    axis down, right;                /* of the phase */
    int32_t terms, columns;          /* of the phase */
    void (*set_phase)(struct task *, int32_t phase);
    void (*pack_rows)(const struct task *, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                      operand *to);
    void (*pack_columns)(const struct task *, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                         operand *to);
    /* Or of a depthwise convolution: adds the sums of the columns of a group, with `packed` to work in. */
    void (*add_group)(const struct task *, int32_t group, int32_t column, int32_t *sums, void *packed);
    int8_t *result;
    int32_t is_update;
    int32_t is_repeated; /* although all sums could be held */
    int32_t result_planes, result_height, result_width;
} task;

static inline product poetc_product_of(const poetc_call *call)
{
    product p;
    __builtin_memcpy(&p, call->ints, sizeof p);
    return p;
}

static inline int32_t at_most(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t round_up(int32_t number, int32_t unit)
{
    return (number + unit - 1) / unit * unit;
}

static inline requantization poetc_requantization_of(const poetc_call *call)
{
    const int32_t *more = call->ints + sizeof(product) / sizeof(int32_t);
    requantization r = {more[0], more[1], more[2], more[3], poetc_in(call, 2), call->floats[0], call->floats[1]};
    return r;
}

/* The sum of an output starts from its bias, without the share of the zero of x, which pads hold. */
static inline void poetc_start_requantized(task *t, const requantization *r, const int8_t *weight, const int32_t *bias,
                                           int32_t *starts)
{
    const int32_t count = t->p.channels / t->p.group * t->p.kernel_h * t->p.kernel_w;
    const int8_t *w = weight;
    int32_t i, k;
    for (i = 0; i < t->p.outputs; i++) {
        int32_t sum = 0;
        for (k = 0; k < count; k++)
            sum += *w++;
        starts[i] = (bias ? bias[i] : 0) - r->zero_x * sum;
    }
    t->weight = weight;
    t->requantized = r;
    t->starts = starts;
    t->pad = r->zero_x;
}

/* Zeros for the rows or columns that fill up the last block. */
static void fill_up(operand *packed_rows, int32_t count, int32_t unit, int32_t depth)
{
    const int32_t missing = round_up(count, unit) - count;
    __builtin_memset(packed_rows + (size_t)count * (size_t)depth, 0,
                     (size_t)missing * (size_t)depth * sizeof *packed_rows);
}

/* From which the sums of an output start. */
static int32_t start_of(const task *t, int32_t output)
{
    if (t->bias) {
        const int32_t b = t->bias[output], shift = t->bias_shift;
        uint32_t m = poetc_magnitude(b);
        if (shift >= 0)
            m <<= at_most(shift, 22);
        else
            m = (m + ((uint32_t)1 << (at_most(-shift, 31) - 1))) >> at_most(-shift, 31);
        return b < 0 ? -(int32_t)m : (int32_t)m;
    }
    return t->starts ? t->starts[output] : 0;
}

static void start_sums(const task *t, int32_t group, int32_t columns, int32_t *sums, int32_t step)
{
    int32_t i, j;
    for (i = 0; i < t->p.rows; i++) {
        const int32_t start = start_of(t, group * t->p.rows + i);
        int32_t *to = sums + (size_t)i * (size_t)step;
#if POETC_INT8_HELIUM
        poetc_fill_sums(to, columns, start);
        continue;
#endif
#if defined(__aarch64__)
        const int32x4x2_t starts = {{vdupq_n_s32(start), vdupq_n_s32(start)}};
        for (j = 0; j + 8 <= columns; j += 8)
            vst1q_s32_x2(to + j, starts);
#else
        j = 0;
#endif
        for (; j + 4 <= columns; j += 4)
            to[j] = start, to[j + 1] = start, to[j + 2] = start, to[j + 3] = start;
        for (; j < columns; j++)
            to[j] = start;
    }
}

/* Values of a run of sums, `step` apart. */
static void round_run(const task *t, const int32_t *sums, int32_t count, int8_t *to, int32_t step,
                      poetc_rounding *rounding)
{
    int32_t i;
    if (!t->terms) { /* the sums are not made */
        for (i = 0; i < count; i++, to += step)
            *to = 0;
        return;
    }
    if (t->terms <= SMALL_TERMS && rounding->shift <= 30) {
        poetc_round_small(sums, count, to, step, rounding);
        return;
    }
    for (i = 0; i < count; i++, to += step)
        *to = poetc_rounded(sums[i], rounding);
}

/* Values of some columns of sums to their places in the result. */
static void store(const task *t, int32_t group, int32_t column, int32_t columns, const int32_t *sums, int32_t step,
                  poetc_rounding *rounding)
{
    const int32_t rows = t->p.rows, pixels = t->down.count * t->right.count, apart = t->right.step;
    const size_t plane = (size_t)t->result_height * (size_t)t->result_width;
    /* Without gaps between them, all pixels of an image are one run. */
    const int32_t is_whole = apart == 1 && pixels == t->result_height * t->result_width,
                  run = is_whole ? pixels : t->right.count;
    int32_t i, j, k;
    for (i = 0; i < rows; i++) {
        const requantization *r = t->requantized;
        const float factor = r ? r->scale_x * r->scales[group * rows + i] / r->scale : 0.0f;
        const int32_t *from = sums + (size_t)i * (size_t)step;
        for (j = 0; j < columns;) {
            const int32_t image = (column + j) / pixels, pixel = (column + j) % pixels;
            const int32_t h = is_whole ? 0 : pixel / run, w = is_whole ? pixel : pixel % run;
            const int32_t count = at_most(run - w, columns - j);
            int8_t *to = t->result + ((size_t)image * (size_t)t->result_planes + (size_t)(group * rows + i)) * plane;
            to += (size_t)(t->down.first + h * t->down.step) * (size_t)t->result_width;
            to += t->right.first + w * apart;
            if (!r)
                round_run(t, from + j, count, to, apart, rounding);
            for (k = 0; r && k < count; k++)
                to[k] = poetc_requantized((float)from[j + k] * factor, r->zero, r->low, r->high);
            j += count;
        }
    }
}

#endif
