/* Declarations that the kernels of depthwise convolution share: strips, and how a result is made of one.
 *
 * Layout: a strip is a plane, or some rows of one, with zeros around it.
 * Order of sums: bias, then taps in sequence. */
#ifndef POETC_DEPTHWISE_H
#define POETC_DEPTHWISE_H

#include "convolution/poetc_convolution.h"
#include "operators/poetc_norm.h"
#include "simd/poetc_clear.h"
#include "simd/poetc_f4.h"
#include "simd/poetc_vector.h"

#define LANES (POETC_LANES == 1 ? 4 : POETC_LANES) /* of a block of pixels: on scalars, four registers that load together */

/* A padded strip: row r, padded column q is at data[r * row + (q % phases) * phase + q / phases]. */
typedef struct {
    float *data;
    int32_t phases, phase, row;
    int32_t slack; /* zeros beyond the last row */
    int pairs;     /* one phase all the same, for loops that pick every other column */
    int has_zeros; /* those of a plane of the same size: only its rows are to be copied */
} strip;

#if POETC_FPU_M
#define EXACT_ROWS 1 /* copied rows leave the gaps between them alone, so that their zeros are needed once for all
                      * planes */
#else
#define EXACT_ROWS 0
#endif

/* `rows` rows of `width` floats, `from_step` and `to_step` floats apart. Unless EXACT_ROWS, a row but the last may
 * spill over the beginning of the next, which is copied after it, or into the gap. */
static void copy_rows(float *to, int32_t to_step, const float *from, int32_t from_step, int32_t rows, int32_t width)
{
#if POETC_FPU_M
#define MOVED                                                                                                          \
    "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14", "s15"
#define MOVE(registers)                                                                                                \
    for (; rows > 0; rows--, from += from_step, to += to_step)                                                         \
    __asm__ volatile("vldmia %1, {" registers "}\n\tvstmia %0, {" registers "}" : : "r"(to), "r"(from) : MOVED, "memory")
#define MOVE_ON(registers)                                                                                             \
    __asm__ volatile("vldmia %1!, {" registers "}\n\tvstmia %0!, {" registers "}" : "+r"(to), "+r"(from) : : MOVED, "memory")
    int32_t i;
    switch (width) { /* without a loop: short rows are many */
    case 1: MOVE("s0"); return;
    case 2: MOVE("s0-s1"); return;
    case 3: MOVE("s0-s2"); return;
    case 4: MOVE("s0-s3"); return;
    case 5: MOVE("s0-s4"); return;
    case 6: MOVE("s0-s5"); return;
    case 7: MOVE("s0-s6"); return;
    case 8: MOVE("s0-s7"); return;
    case 10: MOVE("s0-s9"); return;
    case 12: MOVE("s0-s11"); return;
    case 14: MOVE("s0-s13"); return;
    case 16: MOVE("s0-s15"); return;
    default: break;
    }
    for (to_step -= width, from_step -= width; rows > 0; rows--, from += from_step, to += to_step) {
        for (i = width / 16; i > 0; i--)
            MOVE_ON("s0-s15");
        if (width & 8)
            MOVE_ON("s0-s7");
        if (width & 4)
            MOVE_ON("s0-s3");
        if (width & 2)
            MOVE_ON("s0-s1");
        if (width & 1)
            MOVE_ON("s0");
    }
#undef MOVE_ON
#undef MOVE
#undef MOVED
#else
    const int32_t quads = (width + 3) / 4;
    int32_t i;
    for (; width == 1 && rows > 1;
         rows--, from += from_step, to += to_step) /* four would spill over more than one row */
        *to = *from;
    to_step -= 4 * quads, from_step -= 4 * quads;
    if (quads == 2) { /* without a loop: short rows are many */
        for (; rows > 1; rows--, from += from_step, to += to_step) {
            POETC_COPY_FOUR(to, from);
            POETC_COPY_FOUR(to, from);
        }
    }
    for (; rows > 1; rows--, from += from_step, to += to_step) {
        for (i = quads; i > 0; i--)
            POETC_COPY_FOUR(to, from);
    }
    for (i = width; i >= 4; i -= 4)
        POETC_COPY_FOUR(to, from);
    for (; i > 0; i--)
        *to++ = *from++;
#endif
}

/* The gaps after each of `rows` rows, `step` floats apart. */
static void clear_gaps(float *to, int32_t step, int32_t rows, int32_t gap)
{
    int32_t r;
    for (; gap > 0; gap--, to++) {
        float *at = to;
        POETC_UNROLL_4
        for (r = rows; r > 0; r--, at += step)
            *at = 0.0f;
    }
}

/* The operators on pixels on their way into a strip: a batch norm, an activation. By a function, so that only kernels
 * that do so bring its code along. */
typedef struct {
    poetc_norm norm;
    poetc_channel channel;
    poetc_row_function rows;
} prologue;

/* copy_rows, with the operators `n` on them, if it is not NULL. */
static void copy_pixels(const prologue *n, float *to, int32_t to_step, const float *from, int32_t from_step,
                        int32_t rows, int32_t width)
{
    if (n)
        n->rows(n->channel, n->norm.activation, n->norm.floats + 1, from, from_step, to, to_step, rows, width);
    else
        copy_rows(to, to_step, from, from_step, rows, width);
}

/* Pixels of a row that is taken apart: they are on the stack. */
#if POETC_LANES == 4
#define MOST_AT_ONCE 48
#else
#define MOST_AT_ONCE 16
#endif

/* Rows [top, top + rows) of the padded plane. A padded row holds `width` floats of `from`, `left` columns in; likewise
 * `height` rows below `above` rows of padding. */
static void pad_strip(const prologue *n, const strip *s, const float *from, int32_t height, int32_t width,
                      int32_t above, int32_t left, int32_t top, int32_t rows)
{
    int32_t first, second, r, i, begin, count;
    float *even, *odd;
    if (s->phases == 1) {
        const int32_t last = top + rows - above;
        int32_t count, lead;
        float *to = s->data;
        first = top > above ? top - above : 0;
        count = (last < height ? last : height) - first, lead = first - (top - above);
        if (s->has_zeros && count > 0) {
            copy_pixels(n, to + (ptrdiff_t)lead * s->row + left, s->row, from + (ptrdiff_t)first * width, width, count,
                        width);
            return;
        }
        if (count > 0) {
            poetc_clear(to, lead * s->row + left);
            to += (ptrdiff_t)lead * s->row + left;
            copy_pixels(n, to, s->row, from + (ptrdiff_t)first * width, width, count, width);
            clear_gaps(to + width, s->row, count, s->row - width);
            to += (ptrdiff_t)count * s->row;
        }
        poetc_clear(to, (int32_t)(s->data + (ptrdiff_t)rows * s->row + s->slack - to));
        return;
    }
    poetc_clear(s->data, rows * s->row + s->slack);
    first = (left & 1) * s->phase + left / 2, second = ((left + 1) & 1) * s->phase + (left + 1) / 2;
    for (r = 0; r < rows; r++) {
        const int32_t at = top + r - above;
        float *to = s->data + (ptrdiff_t)r * s->row;
        const float *row = from + (ptrdiff_t)at * width;
        if (at < 0 || at >= height)
            continue;
        even = to + first, odd = to + second;
        for (begin = 0; begin < width; begin += count, row += count) {
            const float *pixels = row;
            float made[MOST_AT_ONCE];
            count = width - begin;
            if (n) {
                count = count < MOST_AT_ONCE ? count : MOST_AT_ONCE, pixels = made;
                copy_pixels(n, made, 0, row, 0, 1, count);
            }
            if (s->phases == 2) { /* the usual stride */
                for (i = 0; i + 2 <= count; i += 2)
                    *even++ = pixels[i], *odd++ = pixels[i + 1];
                if (i < count)
                    *even = pixels[i];
            } else {
                for (i = 0; i < count; i++)
                    to[(left + begin + i) % s->phases * s->phase + (left + begin + i) / s->phases] = pixels[i];
            }
        }
    }
}

static inline ptrdiff_t tap_column(const strip *s, int32_t q)
{
    return s->phases == 1 ? q : (ptrdiff_t)(q % s->phases) * s->phase + q / s->phases;
}

/* How a result is made of a strip. `down` and `across`: padded rows and columns from tap to tap; `row_step` and `step`
 * through the weights, negative where the filter is turned. */
typedef struct {
    const strip *s;
    const float *weight;
    int32_t row_step, step, kernel_h, kernel_w, down, across;
    float bias;
    float *y;
    int32_t width, y_row, y_step; /* of the result; floats from row to row, from pixel to pixel */
    const float *start;           /* the bias, for each of a block of pixels */
} filter;

#define MOST_STARTS 16

/* The bias of the next channel, or none. */
static inline void start_with(filter *f, float *start, const float *bias, int32_t channel)
{
    int32_t i;
    if (!bias && f->start)
        return;
    f->bias = bias ? bias[channel] : 0.0f, f->start = start;
    POETC_UNROLL
    for (i = 0; i < MOST_STARTS; i++)
        start[i] = f->bias;
}

/* The weights of `kernel_h` x `kernel_w` taps (constants wherever this is inlined, or the filter's) in sequence. */
POETC_INLINE void load_weights(const filter *f, const int kernel_h, const int kernel_w, float *w)
{
    int32_t i, j;
    POETC_UNROLL_3
    for (i = 0; i < kernel_h; i++) {
        POETC_UNROLL_3
        for (j = 0; j < kernel_w; j++)
            w[i * kernel_w + j] = f->weight[i * f->row_step + j * f->step];
    }
}

/* Four pixels of a result, or `count` of them. */
static inline void put_pixels(const float *pixels, float *y, int32_t step, int32_t count)
{
    for (; count > 0; count--, y += step)
        *y = *pixels++;
}

/* A block of LANES pixels: their sums, the products that a tap adds to them, and their address. */
#if POETC_LANES == 1
#define SUMS(s, value) float s##0 = (value), s##1 = s##0, s##2 = s##0, s##3 = s##0
#define TAP(v, x)                                                                                                      \
    const float *x##_at = (x);                                                                                         \
    POETC_QUAD(v);                                                                                                   \
    POETC_LOAD_QUAD_B(v, x##_at)
#define ADD(s, v, w)                                                                                                   \
    do {                                                                                                               \
        POETC_MULTIPLY_ADD_4(s##0, s##1, s##2, s##3, v##0, w, v##1, w, v##2, w, v##3, w);                                                                             \
    } while (0)
#define PUT(y, s) ((y)[0] = s##0, (y)[1] = s##1, (y)[2] = s##2, (y)[3] = s##3)
#else
#define SUMS(s, value) poetc_vector s = (poetc_vector){0} + (value)
#define TAP(v, x) const poetc_vector v = poetc_vector_load(x)
#define ADD(s, v, w) POETC_ADD_SCALED(s, v, w)
#define PUT(y, s) poetc_vector_store(y, s)
#endif

#endif
