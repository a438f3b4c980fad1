/* Products of 8-bit integers, a group and some columns at a time, and the way from their sums to values of 8 bits.
 *
 * Layout: results are [N, C, H, W]. Sums of a phase and a group are [rows][columns], with a column a pixel of the
 * phase. Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#ifndef POETC_INT8_PRODUCT_H
#define POETC_INT8_PRODUCT_H

#include "int8/poetc_int8_sums.h"
#include "int8/poetc_linear.h"

/* ints: IntegerProduct of poetc/ops/kernels/integer.py. */
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

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "int8/poetc_int8_vnni.h"
#define HAS_VNNI 1
#else
#define HAS_VNNI 0
#endif

/* All sums, some columns at a time. With `seen` their bits are looked at; with `rounding` the values
 * are stored. Held sums stay in the workspace. */
static void make_sums(task *t, void *workspace, uint32_t *seen, poetc_rounding *rounding)
{
    const product *p = &t->p;
    const size_t held = (size_t)p->groups * (size_t)p->rows * (size_t)p->columns;
    const size_t some = (size_t)p->rows * (size_t)p->columns_at_once;
    int32_t *sums = workspace, *part = sums, phase, group, row, column, term, i;
    operand *a = (operand *)(void *)(sums + (p->holds_sums ? held : some));
    operand *end = a + (size_t)(p->rows_at_once + p->columns_at_once) * (size_t)p->terms_at_once;
    const int32_t is_held = p->holds_sums && !t->is_repeated;

    for (phase = 0; phase < t->phases; phase++) {
        int32_t unit, is_packed, is_wide = 0, at_once = p->columns_at_once;
#if HAS_VNNI
        int32_t wide = at_once;
        vnni parts;
#endif
        t->set_phase(t, phase);
        unit = t->is_update ? p->terms_at_once : p->terms_at_once / (t->right.taps * t->planes_group);
        if (!t->is_update)
            unit *= t->right.taps * t->planes_group;
        is_packed = !t->add_group && t->terms <= unit && p->rows <= p->rows_at_once;
#if HAS_VNNI
        if (is_held)
            wide = t->columns;
        else if (t->is_repeated)
            wide = at_most(t->columns, VNNI_REPEATED_COLUMNS);
        is_wide = !t->add_group && vnni_fits(t, wide, (uint8_t *)a, (size_t)((uint8_t *)end - (uint8_t *)a), &parts);
        if (is_wide)
            at_once = wide;
#endif
        for (group = 0; group < p->groups; group++, part += is_held ? (size_t)p->rows * (size_t)t->columns : 0) {
            if (!t->terms) { /* no window reads these pixels: their errors are zeros */
                if (is_held && p->adapts)
                    __builtin_memset(part, 0, (size_t)p->rows * (size_t)t->columns * sizeof *part);
                if (rounding)
                    store(t, group, 0, t->columns, part, t->columns, rounding);
                continue;
            }
            if (is_packed && !is_wide) {
                t->pack_rows(t, group, 0, p->rows, 0, t->terms, a);
                fill_up(a, p->rows, BLOCK_ROWS, round_up(t->terms, UNIT));
            }
            for (column = 0; column < t->columns; column += at_once) {
                const int32_t columns = at_most(t->columns - column, at_once);
                const int32_t step = is_held ? t->columns : at_once;
                int32_t *at = is_held ? part + column : part;
#if HAS_VNNI
                if (is_wide)
                    vnni_make(t, &parts, group, column, columns, at, step, seen);
                else
#endif
                    start_sums(t, group, columns, at, step);
                if (t->add_group)
                    t->add_group(t, group, column, at, a);
                for (term = 0; term < t->terms && !t->add_group && !is_wide; term += unit) {
                    const int32_t terms = at_most(t->terms - term, unit), depth = round_up(terms, UNIT);
                    operand *b = end - (size_t)round_up(columns, COLUMNS_AT_ONCE) * (size_t)depth;
                    t->pack_columns(t, group, column, columns, term, terms, b);
                    fill_up(b, columns, COLUMNS_AT_ONCE, depth);
                    for (row = 0; row < p->rows; row += p->rows_at_once) {
                        const int32_t rows = at_most(p->rows - row, p->rows_at_once);
                        if (!is_packed) {
                            t->pack_rows(t, group, row, rows, term, terms, a);
                            fill_up(a, rows, BLOCK_ROWS, depth);
                        }
                        add_products(a, rows, b, columns, depth, at + (size_t)row * (size_t)step, step);
                    }
                }
                for (i = 0; seen && !is_wide && i < p->rows; i++)
                    *seen = poetc_see(at + (size_t)i * (size_t)step, columns, *seen);
                if (rounding)
                    store(t, group, column, columns, at, step, rounding);
            }
        }
    }
}

/* Values from the sums that the workspace holds. */
static void store_held(task *t, const int32_t *sums, poetc_rounding *rounding)
{
    int32_t phase, group;
    for (phase = 0; phase < t->phases; phase++) {
        t->set_phase(t, phase);
        for (group = 0; group < t->p.groups; group++) {
            store(t, group, 0, t->columns, sums, t->columns, rounding);
            sums += (size_t)t->p.rows * (size_t)t->columns;
        }
    }
}

/* Values from all sums, by their bits: those that were seen, or those of the history. */
static void take_values(task *t, void *workspace, int32_t bits, int32_t update_bits, int32_t is_held,
                        poetc_rounding *rounding)
{
    rounding->shift = t->is_update ? bits - update_bits : poetc_shift(bits);
    rounding->clipped = 0;
    if (t->is_update)
        rounding->most = poetc_update_most(update_bits);
    if (is_held)
        store_held(t, workspace, rounding);
    else
        make_sums(t, workspace, 0, rounding);
}

/* Values from all sums, whose bits the history knows, or which are scanned first; then the scale. Where the bits of the
 * history clip too many, the sums are scanned after all. `update_bits`: of the largest value of an update. */
static int finish(task *t, void *workspace, int32_t exponent, int32_t update_bits, const int32_t *history,
                  int32_t *scale)
{
    const product *p = &t->p;
    const int32_t count = p->groups * p->rows * p->columns;
    const int has_bits = p->adapts && history[1] > 0;
    int is_scanned = !has_bits, is_held;
    poetc_rounding rounding = {0, p->is_stochastic, POETC_INT8_MOST, 0};
    uint32_t seen = 0u;
    int32_t bits = 0;
    int code;

#if HAS_VNNI
    t->is_repeated =
        t->is_update && p->holds_sums && p->terms <= VNNI_REPEATED_TERMS && p->columns > 2 * VNNI_REPEATED_COLUMNS;
#endif
    is_held = p->holds_sums && !t->is_repeated;
    if (has_bits) {
        bits = history[0];
        take_values(t, workspace, bits, update_bits, 0, &rounding);
        is_scanned = rounding.clipped > count / POETC_INT8_TOLERATED;
    }
    if (is_scanned) {
        if (has_bits && is_held) /* they are still there */
            seen = poetc_see(workspace, count, 0u);
        else
            make_sums(t, workspace, &seen, 0);
        bits = poetc_bits_seen(seen);
        take_values(t, workspace, bits, update_bits, is_held, &rounding);
    }
    code = poetc_scale(scale, exponent + (t->is_update ? 0 : rounding.shift), rounding.clipped, bits, rounding.shift);
    if (p->adapts) {
        int32_t i, most = 0;
        for (i = 0; i < count; i++) {
            const int32_t q = t->result[i];
            most = q > most ? q : -q > most ? -q : most;
        }
        scale[4] = is_scanned;
        scale[5] = poetc_bits((uint32_t)most);
    }
    return code;
}

#endif
