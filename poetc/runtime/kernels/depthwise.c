/* Depthwise convolution (a filter a channel) and its gradients.
 *
 * A strip of the image is copied into the workspace with its padding, so that no border is left. Under a stride of one, rows
 * follow each other with one gap of zeros between them, so that a strip is one long row; else columns a stride apart lie side by
 * side. The sum of a pixel begins with the bias and goes over the taps in sequence. The sum of a weight goes over four lanes:
 * under strides of one along the strip, gaps and all, else along each row; strip by strip. */
#include "poetc_convolution.h"
#include "poetc_f4.h"
#include "poetc_vector.h"

#define LANES (POETC_LANES == 1 ? 4 : POETC_LANES) /* of a block of pixels: on scalars, four registers that load together */

/* A padded strip: row r, padded column q is at data[r * row + (q % phases) * phase + q / phases]. */
typedef struct {
    float *data;
    int32_t phases, phase, row;
    int32_t slack; /* zeros beyond the last row */
    int pairs;     /* one phase all the same, for loops that pick every other column */
} strip;

static void clear(float *to, int32_t count)
{
#if POETC_LANES > 1
    for (; count >= LANES; count -= LANES, to += LANES)
        poetc_vector_store(to, (poetc_vector){0});
#else
    POETC_QUAD_B(zero);
    zero0 = zero1 = zero2 = zero3 = 0.0f;
    for (; count >= 4; count -= 4)
        POETC_STORE_QUAD(to, zero);
#endif
    for (; count > 0; count--)
        *to++ = 0.0f;
}

/* `rows` rows of `width` floats, `from_step` and `to_step` floats apart. A row but the last may spill over the beginning of the
 * next, which is copied after it, or into the gap. */
static void copy_rows(float *to, int32_t to_step, const float *from, int32_t from_step, int32_t rows, int32_t width)
{
    const int32_t quads = (width + 3) / 4;
    int32_t i;
    for (; width == 1 && rows > 1; rows--, from += from_step, to += to_step) /* four would spill over more than one row */
        *to = *from;
    to_step -= 4 * quads, from_step -= 4 * quads;
    if (quads == 2) { /* without a loop: short rows are many */
        for (; rows > 1; rows--, from += from_step, to += to_step) {
            POETC_COPY_FOUR(to, from);
            POETC_COPY_FOUR(to, from);
        }
    }
    for (; rows > 1; rows--, from += from_step, to += to_step)
        for (i = quads; i > 0; i--)
            POETC_COPY_FOUR(to, from);
    for (i = width; i >= 4; i -= 4)
        POETC_COPY_FOUR(to, from);
    for (; i > 0; i--)
        *to++ = *from++;
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

/* Rows [top, top + rows) of the padded plane. A padded row holds `width` floats of `from`, `spread` columns apart (zeros
 * between), `left` columns in; likewise `height` rows below `above` rows of padding. */
static void pad_strip(const strip *s, const float *from, int32_t height, int32_t width, int32_t spread_h,
                      int32_t spread_w, int32_t above, int32_t left, int32_t top, int32_t rows)
{
    int32_t first, second, r, i;
    if (s->phases == 1 && spread_w == 1 && spread_h == 1) {
        const int32_t last = top + rows - above;
        int32_t count, lead;
        float *to = s->data;
        first = top > above ? top - above : 0;
        count = (last < height ? last : height) - first, lead = first - (top - above);
        if (count > 0) {
            clear(to, lead * s->row + left);
            to += (ptrdiff_t)lead * s->row + left;
            copy_rows(to, s->row, from + (ptrdiff_t)first * width, width, count, width);
            clear_gaps(to + width, s->row, count, s->row - width);
            to += (ptrdiff_t)count * s->row;
        }
        clear(to, (int32_t)(s->data + (ptrdiff_t)rows * s->row + s->slack - to));
        return;
    }
    clear(s->data, rows * s->row + s->slack);
    first = (left & 1) * s->phase + left / 2, second = ((left + 1) & 1) * s->phase + (left + 1) / 2;
    for (r = 0; r < rows; r++) {
        const int32_t at = top + r - above, source = floor_div(at, spread_h);
        float *to = s->data + (ptrdiff_t)r * s->row;
        const float *row = from + (ptrdiff_t)source * width;
        if (source < 0 || source >= height || source * spread_h != at)
            continue;
        if (s->phases == 1) {
            for (i = 0; i < width; i++)
                to[left + i * spread_w] = row[i];
        } else if (s->phases == 2) { /* the usual stride */
            float *even = to + first, *odd = to + second;
            i = 0;
#if defined(POETC_HELIUM)
            for (; i + 8 <= width; i += 8, even += 4, odd += 4) {
                const float32x4x2_t pairs = vld2q_f32(row + i);
                vst1q_f32(even, pairs.val[0]), vst1q_f32(odd, pairs.val[1]);
            }
#endif
            for (; i + 2 <= width; i += 2)
                *even++ = row[i], *odd++ = row[i + 1];
            if (i < width)
                *even = row[i];
        } else {
            for (i = 0; i < width; i++)
                to[(left + i) % s->phases * s->phase + (left + i) / s->phases] = row[i];
        }
    }
}

static inline ptrdiff_t tap_column(const strip *s, int32_t q)
{
    return s->phases == 1 ? q : (ptrdiff_t)(q % s->phases) * s->phase + q / s->phases;
}

/* How a result is made of a strip. `down` and `across`: padded rows and columns from tap to tap; `step` through the weights: -1
 * turns the filter. */
typedef struct {
    const strip *s;
    const float *weight;
    int32_t step, kernel_h, kernel_w, down, across;
    float bias;
    float *y;
    int32_t width;
} filter;

/* A block of LANES pixels: their sums, what a tap adds to them, and where they go. */
#if POETC_LANES == 1
#define SUMS(s, value) float s##0 = (value), s##1 = s##0, s##2 = s##0, s##3 = s##0
#define TAP(v, x)                                                                                                      \
    const float *x##_at = (x);                                                                                         \
    POETC_QUAD_B(v);                                                                                                   \
    POETC_LOAD_QUAD(v, x##_at)
#define ADD(s, v, w)                                                                                                   \
    do {                                                                                                               \
        POETC_MULTIPLY_ADD(s##0, v##0, w);                                                                             \
        POETC_MULTIPLY_ADD(s##1, v##1, w);                                                                             \
        POETC_MULTIPLY_ADD(s##2, v##2, w);                                                                             \
        POETC_MULTIPLY_ADD(s##3, v##3, w);                                                                             \
    } while (0)
#define PUT(y, s) ((y)[0] = s##0, (y)[1] = s##1, (y)[2] = s##2, (y)[3] = s##3)
#else
#define SUMS(s, value) poetc_vector s = (poetc_vector){0} + (value)
#define TAP(v, x) const poetc_vector v = poetc_vector_load(x)
#define ADD(s, v, w) POETC_ADD_SCALED(s, v, w)
#define PUT(y, s) poetc_vector_store(y, s)
#endif

#if !defined(POETC_SOFT_FLOAT)
/* One or two (a constant) rows of the result under a 3 x 3 filter. Two rows, whose windows lie one row apart, share what
 * they load. The last block of a row may overlap the one before, with the same values. */
POETC_INLINE void correlate_3x3(const filter *f, const float *from, const int rows)
{
    const ptrdiff_t row = (ptrdiff_t)f->down * f->s->row;
    const ptrdiff_t column[3] = {0, tap_column(f->s, f->across), tap_column(f->s, 2 * f->across)};
    const float bias = f->bias;
    const int32_t width = f->width;
    float w[9], *result = f->y;
    int32_t at, r, i;
    POETC_UNROLL_9
    for (i = 0; i < 9; i++)
        w[i] = f->weight[i * f->step];
    for (at = 0; at < width; at += LANES) {
        const int32_t p = at + LANES > width ? width - LANES : at;
        const float *x = from + p;
        float *y = result + p;
        SUMS(a, bias);
        SUMS(b, bias);
        POETC_UNROLL_4
        for (r = 0; r < rows + 2; r++, x += row) {
            POETC_UNROLL_3
            for (i = 0; i < 3; i++) {
                const float *tap = x + column[i];
                TAP(v, tap);
                if (r < 3)
                    ADD(a, v, w[3 * r + i]);
                if (rows == 2 && r > 0)
                    ADD(b, v, w[3 * (r - 1) + i]);
            }
        }
        PUT(y, a);
        if (rows == 2)
            PUT(y + width, b);
    }
}
#endif

#if POETC_LANES == 1 && !defined(POETC_SOFT_FLOAT)
#define THREE_TAPS 1
#define TILES(f, rows) ((rows) >= 4 || (4 - (rows)) * (f)->s->row + 2 <= (f)->s->slack)
#define PAIRS 1 /* under a stride of two, columns stay in sequence, and taps pick every other one */

#if defined(__ARM_FP) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' && (__ARM_FP & 4)
#define SIX(v)                                                                                                         \
    register float v##0 __asm__("s16"), v##1 __asm__("s17"), v##2 __asm__("s18"), v##3 __asm__("s19");                 \
    register float v##4 __asm__("s20"), v##5 __asm__("s21")
#define LOAD_SIX(v, p)                                                                                                 \
    __asm__("vldmia %6, {%0, %1, %2, %3, %4, %5}"                                                                      \
            : "=t"(v##0), "=t"(v##1), "=t"(v##2), "=t"(v##3), "=t"(v##4), "=t"(v##5)                                   \
            : "r"(p), "m"(*(const float(*)[6])(p)))
#define FOUR(v) \
    register float v##0 __asm__("s25"), v##1 __asm__("s26"), v##2 __asm__("s27"), v##3 __asm__("s28")
#define LOAD_FOUR(v, p) POETC_LOAD_QUAD(v, p)
#define ADD_PRODUCTS(s, p, q, r, t)                                                                                    \
    __asm__("vmla.f32 %0, %4, %8\n\tvmla.f32 %1, %5, %9\n\tvmla.f32 %2, %6, %10\n\tvmla.f32 %3, %7, %11"                  \
            : "+t"(s##0), "+t"(s##1), "+t"(s##2), "+t"(s##3)                                                           \
            : "t"(p), "t"(q), "t"(r), "t"(t), "t"(g0), "t"(g1), "t"(g2), "t"(g3))
#define NINE(v)                                                                                                        \
    SIX(v);                                                                                                            \
    register float v##6 __asm__("s22"), v##7 __asm__("s23"), v##8 __asm__("s24")
#define LOAD_NINE(v, p)                                                                                                \
    __asm__("vldmia %9, {%0, %1, %2, %3, %4, %5, %6, %7, %8}"                                                          \
            : "=t"(v##0), "=t"(v##1), "=t"(v##2), "=t"(v##3), "=t"(v##4), "=t"(v##5), "=t"(v##6), "=t"(v##7),          \
              "=t"(v##8)                                                                                               \
            : "r"(p), "m"(*(const float(*)[9])(p)))
#define LOAD_THREE(v, p)                                                                                               \
    __asm__("vldmia %3, {%0, %1, %2}" : "=t"(v##0), "=t"(v##1), "=t"(v##2) : "r"(p), "m"(*(const float(*)[3])(p)))
/* Sums in fixed registers, and in one piece: GCC would move them about. */
#define SUMS_A(s) \
    register float s##0 __asm__("s0"), s##1 __asm__("s1"), s##2 __asm__("s2"), s##3 __asm__("s3")
#define SUMS_B(s) \
    register float s##0 __asm__("s4"), s##1 __asm__("s5"), s##2 __asm__("s6"), s##3 __asm__("s7")
#define SUMS_C(s) \
    register float s##0 __asm__("s8"), s##1 __asm__("s9"), s##2 __asm__("s10"), s##3 __asm__("s11")
#define ADD_TO_FOUR(s, p, q, r, t, w)                                                                                  \
    __asm__("vmla.f32 %0, %4, %8\n\tvmla.f32 %1, %5, %8\n\tvmla.f32 %2, %6, %8\n\tvmla.f32 %3, %7, %8"                     \
            : "+t"(s##0), "+t"(s##1), "+t"(s##2), "+t"(s##3)                                                           \
            : "t"(p), "t"(q), "t"(r), "t"(t), "t"(w))
#define ADD_ONE(s, w)                                                                                                  \
    __asm__("vmla.f32 %0, %1, %4\n\tvmla.f32 %0, %2, %5\n\tvmla.f32 %0, %3, %6"                                        \
            : "+t"(s)                                                                                                  \
            : "t"(v0), "t"(v1), "t"(v2), "t"((w)[0]), "t"((w)[1]), "t"((w)[2]))
/* The address in a register, so that what is next to it needs no other. */
#define KEEP(pointer) __asm__("" : "+r"(pointer))
#else
#define ADD_TO_FOUR(s, p, q, r, t, w) (s##0 += (p) * (w), s##1 += (q) * (w), s##2 += (r) * (w), s##3 += (t) * (w))
#define ADD_ONE(s, w) (s += v0 * (w)[0], s += v1 * (w)[1], s += v2 * (w)[2])
#define KEEP(pointer) ((void)0)
#define FOUR(v) float v##0, v##1, v##2, v##3
#define SUMS_A(s) FOUR(s)
#define SUMS_B(s) FOUR(s)
#define SUMS_C(s) FOUR(s)
#define LOAD_FOUR(v, p) POETC_LOAD_QUAD(v, p)
#define ADD_PRODUCTS(s, p, q, r, t) (s##0 += (p) * g0, s##1 += (q) * g1, s##2 += (r) * g2, s##3 += (t) * g3)
#define SIX(v) float v##0, v##1, v##2, v##3, v##4, v##5
#define LOAD_SIX(v, p) (v##0 = (p)[0], v##1 = (p)[1], v##2 = (p)[2], v##3 = (p)[3], v##4 = (p)[4], v##5 = (p)[5])
#define NINE(v) float v##0, v##1, v##2, v##3, v##4, v##5, v##6, v##7, v##8
#define LOAD_NINE(v, p) (LOAD_SIX(v, p), v##6 = (p)[6], v##7 = (p)[7], v##8 = (p)[8])
#define LOAD_THREE(v, p) (v##0 = (p)[0], v##1 = (p)[1], v##2 = (p)[2])
#endif

/* Three taps of a row, for four pixels side by side; for one. */
#define ADD_FOUR(s, w)                                                                                                 \
    do {                                                                                                               \
        ADD_TO_FOUR(s, v0, v1, v2, v3, (w)[0]);                                                                        \
        ADD_TO_FOUR(s, v1, v2, v3, v4, (w)[1]);                                                                        \
        ADD_TO_FOUR(s, v2, v3, v4, v5, (w)[2]);                                                                        \
    } while (0)

/* `rows` rows under a 3 x 3 filter without strides and dilation: tiles of two rows and four pixels, then of four rows and one
 * pixel. The last tile of a column overlaps the one before, with the same values; a strip that is lower than a tile is read
 * beyond its end, for nothing. */
POETC_APART void correlate_tiles(const filter *f, const float *from, int32_t rows)
{
    const ptrdiff_t row = f->s->row, width = f->width;
    const float bias = f->bias;
    float w[9], *y = f->y;
    int32_t at, r, i;
    POETC_UNROLL_9
    for (i = 0; i < 9; i++)
        w[i] = f->weight[i * f->step];
    for (at = 0; at + 4 <= width; at += 4, from += 4, y += 4) {
        const float *x = from;
        float *put = y;
        for (r = rows; r > 0; r -= 2, put += width) {
            SUMS_A(a);
            SUMS_B(b);
            SIX(v);
            if (r == 1 && rows > 1)
                x -= row, put -= width;
            a0 = a1 = a2 = a3 = bias;
            b0 = b1 = b2 = b3 = bias;
            LOAD_SIX(v, x);
            ADD_FOUR(a, w);
            x += row;
            LOAD_SIX(v, x);
            ADD_FOUR(a, w + 3);
            ADD_FOUR(b, w);
            x += row;
            LOAD_SIX(v, x);
            ADD_FOUR(a, w + 6);
            ADD_FOUR(b, w + 3);
            x += row;
            LOAD_SIX(v, x);
            ADD_FOUR(b, w + 6);
            x -= row;
            PUT(put, a);
            if (rows == 1)
                break;
            put += width;
            KEEP(put);
            PUT(put, b);
        }
    }
    for (; at < width; at++, from++, y++) {
        const float *x = from;
        float *put = y;
        for (r = rows; r > 0; r -= 4, put += 4 * width) {
            float a = bias, b = bias, c = bias, d = bias;
            SIX(v);
            (void)v3, (void)v4, (void)v5;
            if (r < 4 && rows >= 4)
                x -= (4 - r) * row, put -= (4 - r) * width;
            LOAD_THREE(v, x);
            ADD_ONE(a, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(a, w + 3);
            ADD_ONE(b, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(a, w + 6);
            ADD_ONE(b, w + 3);
            ADD_ONE(c, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(b, w + 6);
            ADD_ONE(c, w + 3);
            ADD_ONE(d, w);
            x += row;
            LOAD_THREE(v, x);
            ADD_ONE(c, w + 6);
            ADD_ONE(d, w + 3);
            LOAD_THREE(v, x + row);
            ADD_ONE(d, w + 6);
            put[0] = a;
            if (rows > 1)
                put[width] = b;
            if (rows > 2)
                put[2 * width] = c;
            if (rows > 3)
                put[3 * width] = d;
        }
    }
}

/* `rows` rows under a 3 x 3 filter with a stride of two along the row. */
POETC_APART void correlate_pairs(const filter *f, const float *from, int32_t rows, int32_t stride_h)
{
    const ptrdiff_t row = f->s->row, down = (ptrdiff_t)f->down * row;
    const float bias = f->bias;
    float w[9], *y = f->y;
    int32_t at, i;
    POETC_UNROLL_9
    for (i = 0; i < 9; i++)
        w[i] = f->weight[i * f->step];
    for (; rows > 0; rows--, from += stride_h * row) {
        const float *x = from;
        for (at = f->width; at >= 4; at -= 4, x += 8, y += 4) {
            const float *line = x;
            SUMS_A(a);
            NINE(v);
            a0 = a1 = a2 = a3 = bias;
            POETC_UNROLL_3
            for (i = 0; i < 9; i += 3, line += down) {
                LOAD_NINE(v, line);
                ADD_TO_FOUR(a, v0, v2, v4, v6, w[i]);
                ADD_TO_FOUR(a, v1, v3, v5, v7, w[i + 1]);
                ADD_TO_FOUR(a, v2, v4, v6, v8, w[i + 2]);
            }
            PUT(y, a);
        }
        for (; at > 0; at--, x += 2) {
            const float *line = x;
            float a = bias;
            SIX(v);
            (void)v3, (void)v4, (void)v5;
            POETC_UNROLL_3
            for (i = 0; i < 9; i += 3, line += down) {
                LOAD_THREE(v, line);
                ADD_ONE(a, w + i);
            }
            *y++ = a;
        }
    }
}

#elif defined(POETC_HELIUM)
#define THREE_TAPS 1
#define TILES(f, rows) 1

/* Three taps of a row for twelve pixels; the weights come to core registers in one instruction. */
#define ADD_ROW(from)                                                                                                   \
    __asm__("ldmia %[w]!, {r4, r5, r6}\n\t"                                                                             \
            "vldrw.u32 %q[p], [%[x]], #8\n\t"                                                                          \
            "vldrw.u32 %q[q], [%[x], #8]\n\t"                                                                          \
            "vldrw.u32 %q[r], [%[x], #24]\n\t"                                                                         \
            "vfma.f32 %q[a], %q[p], r4\n\t"                                                                            \
            "vldrw.u32 %q[p], [%[x], #-4]\n\t"                                                                         \
            "vfma.f32 %q[b], %q[q], r4\n\t"                                                                            \
            "vldrw.u32 %q[q], [%[x], #12]\n\t"                                                                         \
            "vfma.f32 %q[c], %q[r], r4\n\t"                                                                            \
            "vldrw.u32 %q[r], [%[x], #28]\n\t"                                                                         \
            "vfma.f32 %q[a], %q[p], r5\n\t"                                                                            \
            "vldrw.u32 %q[p], [%[x], #16]\n\t"                                                                         \
            "vfma.f32 %q[b], %q[q], r5\n\t"                                                                            \
            "vldrw.u32 %q[q], [%[x], #32]\n\t"                                                                         \
            "vfma.f32 %q[c], %q[r], r5\n\t"                                                                            \
            "vldrw.u32 %q[r], [%[x]], #40\n\t"                                                                         \
            "vfma.f32 %q[b], %q[p], r6\n\t"                                                                            \
            "vfma.f32 %q[c], %q[q], r6\n\t"                                                                            \
            "vfma.f32 %q[a], %q[r], r6"                                                                                \
            : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [p] "=&w"(p), [q] "=&w"(q), [r] "=&w"(r), [x] "+r"(from),         \
              [w] "+r"(w)                                                                                              \
            :                                                                                                          \
            : "r4", "r5", "r6", "memory")

/* `rows` rows under a 3 x 3 filter without strides and dilation: the strip is one long row of which the results take the place;
 * then their rows are copied, without the gaps. */
POETC_APART void correlate_tiles(const filter *f, float *from, int32_t rows)
{
    const int32_t row = f->s->row, width = f->width;
    const float32x4_t bias = vdupq_n_f32(f->bias);
    const float *x0 = from, *x1 = from + row, *x2 = from + 2 * row;
    float weights[9], *put = from;
    int32_t count, i;
    for (i = 0; i < 9; i++)
        weights[i] = f->weight[i * f->step];
    for (count = (rows - 1) * row + width; count > 0; count -= 12, put += 12) {
        const float *w = weights;
        float32x4_t a = bias, b = bias, c = bias, p, q, r;
        ADD_ROW(x0);
        ADD_ROW(x1);
        ADD_ROW(x2);
        vst1q_f32(put, a), vst1q_f32(put + 4, b), vst1q_f32(put + 8, c);
    }
    copy_rows(f->y, width, from, row, rows, width);
}

#elif POETC_LANES > 1
/* Rows that do not fill vectors, where the last vector stays inside the strip. */
#define TILES(f, rows)                                                                                                 \
    ((f)->width % LANES != 0 && (f)->width < 3 * LANES && (f)->width + LANES + 1 <= (f)->s->row + (f)->s->slack)

/* The same in vectors of any length. */
static void correlate_tiles(const filter *f, float *from, int32_t rows)
{
    const ptrdiff_t row = f->s->row;
    const int32_t width = f->width;
    float w[9], *put = from;
    int32_t count, i;
    POETC_UNROLL_9
    for (i = 0; i < 9; i++)
        w[i] = f->weight[i * f->step];
    for (count = (rows - 1) * (int32_t)row + width; count > 0; count -= LANES, put += LANES) {
        SUMS(a, f->bias);
        POETC_UNROLL_3
        for (i = 0; i < 3; i++) {
            TAP(u, put + i * row);
            TAP(v, put + i * row + 1);
            TAP(x, put + i * row + 2);
            ADD(a, u, w[3 * i]);
            ADD(a, v, w[3 * i + 1]);
            ADD(a, x, w[3 * i + 2]);
        }
        PUT(put, a);
    }
    copy_rows(f->y, width, from, row, rows, width);
}
#endif

/* `width` pixels of one row of the result under any filter. */
static void correlate(const filter *f, const float *from, int32_t width)
{
    int32_t at, kh, kw;
    for (at = 0; at < width; at += LANES) {
        const int32_t p = at + LANES > width ? width - LANES : at;
        const float *w = f->weight, *row = from + p;
        SUMS(a, f->bias);
        for (kh = 0; kh < f->kernel_h; kh++, row += (ptrdiff_t)f->down * f->s->row) {
            for (kw = 0; kw < f->kernel_w; kw++, w += f->step) {
                const float *tap = row + tap_column(f->s, kw * f->across);
                TAP(v, tap);
                ADD(a, v, *w);
            }
        }
        PUT(f->y + p, a);
    }
}

static float correlate_pixel(const filter *f, const float *from, int32_t p)
{
    const float *w = f->weight;
    float sum = f->bias;
    int32_t kh, kw;
    for (kh = 0; kh < f->kernel_h; kh++)
        for (kw = 0; kw < f->kernel_w; kw++, w += f->step)
            sum += from[(ptrdiff_t)kh * f->down * f->s->row + tap_column(f->s, kw * f->across) + p] * w[0];
    return sum;
}

#if POETC_LANES > 4
static void correlate_four(const filter *f, const float *from, int32_t p)
{
    const float *w = f->weight;
    poetc_f4 sum = poetc_f4_set(f->bias, f->bias, f->bias, f->bias);
    int32_t kh, kw;
    for (kh = 0; kh < f->kernel_h; kh++)
        for (kw = 0; kw < f->kernel_w; kw++, w += f->step)
            sum = poetc_f4_add_scaled(
                sum, poetc_f4_load(from + (ptrdiff_t)kh * f->down * f->s->row + tap_column(f->s, kw * f->across) + p),
                w[0]);
    poetc_f4_store(f->y + p, sum);
}
#endif

/* One row of the result, or two if there are and their windows lie one row of the strip apart; returns how many. */
static int32_t correlate_some(const filter *f, const float *from, int32_t left, int32_t stride_h)
{
    int32_t p = 0;
#if defined(POETC_SOFT_FLOAT) /* no blocks that overlap: every operation counts */
    (void)left, (void)stride_h;
    p = f->width / LANES * LANES;
    correlate(f, from, p);
#else
    const int small = f->kernel_h == 3 && f->kernel_w == 3;
    if (f->width >= LANES) {
        if (small && left >= 2 && stride_h == 1 && f->down == 1) {
            correlate_3x3(f, from, 2);
            return 2;
        }
        if (small)
            correlate_3x3(f, from, 1);
        else
            correlate(f, from, f->width);
        return 1;
    }
#endif
#if POETC_LANES > 4
    for (; p + 4 <= f->width; p += 4)
        correlate_four(f, from, p);
#endif
    for (; p < f->width; p++)
        f->y[p] = correlate_pixel(f, from, p);
    return 1;
}

/* `rows` rows of the result from the strip. */
static void correlate_strip(filter *f, int32_t rows, int32_t stride_h)
{
    float *from = f->s->data;
#if defined(PAIRS)
    if (f->s->pairs) {
        correlate_pairs(f, from, rows, stride_h);
        f->y += (ptrdiff_t)rows * f->width;
        return;
    }
#endif
#if defined(TILES)
    if (stride_h == 1 && f->s->phases == 1 && f->kernel_h == 3 && f->kernel_w == 3 && f->down == 1 && f->across == 1 &&
        TILES(f, rows)) {
        correlate_tiles(f, from, rows);
        f->y += (ptrdiff_t)rows * f->width;
        return;
    }
#endif
    while (rows > 0) {
        const int32_t done = correlate_some(f, from, rows, stride_h);
        rows -= done, f->y += done * f->width, from += (ptrdiff_t)done * stride_h * f->s->row;
    }
}

/* ints: those of convolution.c, then phases, floats of a phase, floats of a row, and rows of the result in a strip. */
static strip describe_strip(const poetc_call *call, float *workspace)
{
    strip s;
    s.data = workspace;
    s.phases = call->ints[17], s.phase = call->ints[18], s.row = call->ints[19];
    s.slack = ((call->ints[8] - 1) * call->ints[14] + 15) / 4 * 4;
    s.pairs = 0;
#if defined(PAIRS)
    if (s.phases == 2 && call->ints[7] == 3 && call->ints[8] == 3 && call->ints[14] == 1) {
        const int32_t width = call->ints[3], left = call->ints[12], right = 2 * call->ints[6] + 1 - left - width;
        s.pairs = s.phases = 1;
        s.row = s.phase = width + (left > right ? left : right);
        workspace[call->ints[21] - 1] = 0.0f; /* so that the memory that is touched does not depend on the order of columns */
    }
#endif
    return s;
}

/* x[N,C,H,W], w[C,1,kh,kw], b[C]? -> y[N,C,OH,OW] */
int poetc_op_depthwise(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *weight = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, c.has_bias ? 3 : 2);
    const strip s = describe_strip(call, POETC_WORKSPACE(call, c.has_bias ? 4 : 3));
    const int32_t reach = (c.kernel_h - 1) * c.dilation_h, block = call->ints[20];
    filter f = {&s, NULL, 1, c.kernel_h, c.kernel_w, c.dilation_h, c.dilation_w, 0.0f, y, c.output_width};
    int32_t n, channel, top;
    POETC_THREADED(poetc_op_depthwise, call, 4 * CONVOLUTION_WORK(c), call->ints[21]);
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, x += (ptrdiff_t)c.height * c.width) {
            POETC_SKIP(c.share, channel, c.channels, f.y += (ptrdiff_t)c.output_height * c.output_width)
            f.weight = weight + (ptrdiff_t)channel * c.kernel_h * c.kernel_w;
            f.bias = bias ? bias[channel] : 0.0f;
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                pad_strip(&s, x, c.height, c.width, 1, 1, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                correlate_strip(&f, rows, c.stride_h);
            }
        }
    }
    return POETC_OK;
}

/* gy[N,C,OH,OW], w[C,1,kh,kw], b[C]? -> gx[N,C,H,W]: the turned filter over gy, spread by the strides. */
int poetc_op_depthwise_grad_input(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *gy = poetc_in(call, 0), *weight = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *gx = poetc_out(call, c.has_bias ? 3 : 2);
    const strip s = describe_strip(call, POETC_WORKSPACE(call, c.has_bias ? 4 : 3));
    const int32_t reach_h = (c.kernel_h - 1) * c.dilation_h, reach_w = (c.kernel_w - 1) * c.dilation_w;
    const int32_t taps = c.kernel_h * c.kernel_w, block = call->ints[20];
    filter f = {&s, NULL, -1, c.kernel_h, c.kernel_w, c.dilation_h, c.dilation_w, 0.0f, gx, c.width};
    int32_t n, channel, top;
    POETC_THREADED(poetc_op_depthwise_grad_input, call, 4 * CONVOLUTION_WORK(c), call->ints[21]);
    for (n = 0; n < c.batch; n++) {
        for (channel = 0; channel < c.channels; channel++, gy += (ptrdiff_t)c.output_height * c.output_width) {
            POETC_SKIP(c.share, channel, c.channels, f.y += (ptrdiff_t)c.height * c.width)
            f.weight = weight + (ptrdiff_t)channel * taps + (taps - 1);
            f.bias = bias ? bias[channel] : 0.0f;
            for (top = 0; top < c.height; top += block) {
                const int32_t rows = top + block > c.height ? c.height - top : block;
                pad_strip(&s, gy, c.output_height, c.output_width, c.stride_h, c.stride_w, reach_h - c.pad_top,
                          reach_w - c.pad_left, top, rows + reach_h);
                correlate_strip(&f, rows, 1);
            }
        }
    }
    return POETC_OK;
}

/* Sums of one strip, added to gw: kernel_h x kernel_w taps from (first_h, first_w) on. `gy` has rows of `width` floats, a multiple of 4,
 * zeros at their ends. */
#if POETC_LANES == 1
/* A row of at most three taps at a time: the sums stay in registers. */
#define TAPS_H 1
POETC_INLINE void add_taps(const strip *s, const convolution *c, const float *gy, int32_t width, int32_t rows,
                           const int32_t kernel_h, const int32_t kernel_w, int32_t first_h, int32_t first_w, float *gw)
{
    float sums[3][4];
    const float *x[3];
    int32_t r, i, kw;
    (void)kernel_h;
    POETC_UNROLL_3
    for (kw = 0; kw < kernel_w; kw++)
        sums[kw][0] = sums[kw][1] = sums[kw][2] = sums[kw][3] = 0.0f;
    for (r = 0; r < rows; r++) {
        const float *from = s->data + ((ptrdiff_t)r * c->stride_h + first_h * c->dilation_h) * s->row;
        POETC_UNROLL_3
        for (kw = 0; kw < kernel_w; kw++)
            x[kw] = from + tap_column(s, (first_w + kw) * c->dilation_w);
        for (i = width; i > 0; i -= 4) {
            POETC_QUAD_A(g);
            POETC_QUAD_B(v);
            POETC_LOAD_QUAD(g, gy);
            POETC_UNROLL_3
            for (kw = 0; kw < kernel_w; kw++) {
                POETC_LOAD_QUAD(v, x[kw]);
                POETC_MULTIPLY_ADD(sums[kw][0], g0, v0);
                POETC_MULTIPLY_ADD(sums[kw][1], g1, v1);
                POETC_MULTIPLY_ADD(sums[kw][2], g2, v2);
                POETC_MULTIPLY_ADD(sums[kw][3], g3, v3);
            }
        }
    }
    POETC_UNROLL_3
    for (kw = 0; kw < kernel_w; kw++)
        gw[kw] += (sums[kw][0] + sums[kw][1]) + (sums[kw][2] + sums[kw][3]);
}
#else
#if defined(POETC_HELIUM)
#define TAPS_H 1
#else
#define TAPS_H 3
#endif
POETC_INLINE void add_taps(const strip *s, const convolution *c, const float *gy, int32_t width, int32_t rows,
                           const int32_t kernel_h, const int32_t kernel_w, int32_t first_h, int32_t first_w, float *gw)
{
    poetc_f4 sums[9];
    int32_t r, i, kh, kw;
    POETC_UNROLL_9
    for (i = 0; i < kernel_h * kernel_w; i++)
        sums[i] = POETC_F4_ZERO;
    for (r = 0; r < rows; r++, gy += width) {
        const float *from = s->data + ((ptrdiff_t)r * c->stride_h + first_h * c->dilation_h) * s->row;
        for (i = 0; i < width; i += 4) {
            const poetc_f4 g = poetc_f4_load(gy + i);
            POETC_UNROLL_3
            for (kh = 0; kh < kernel_h; kh++) {
                POETC_UNROLL_3
                for (kw = 0; kw < kernel_w; kw++) {
                    const float *x = from + (ptrdiff_t)kh * c->dilation_h * s->row +
                                     tap_column(s, (first_w + kw) * c->dilation_w) + i;
                    sums[kh * kernel_w + kw] = poetc_f4_add_product(sums[kh * kernel_w + kw], g, poetc_f4_load(x));
                }
            }
        }
    }
    POETC_UNROLL_9
    for (i = 0; i < kernel_h * kernel_w; i++)
        gw[i] += poetc_f4_total(sums[i]);
}
#endif

#if defined(THREE_TAPS)
/* Sums of three taps side by side over a strip that is one long row. */
POETC_APART void add_three_taps(const float *x, const float *gy, int32_t count, float *gw)
{
#if defined(POETC_HELIUM)
    poetc_f4 a = POETC_F4_ZERO, b = a, c = a;
    for (count /= 4; count > 0; count--) {
        poetc_f4 g, p, q, r; /* GCC would keep an address for each */
        __asm__("vldrw.u32 %q0, [%4], #16\n\tvldrw.u32 %q1, [%5], #4\n\tvldrw.u32 %q3, [%5, #4]\n\tvldrw.u32 %q2, [%5], #12"
                : "=&w"(g), "=&w"(p), "=&w"(q), "=&w"(r), "+r"(gy), "+r"(x)
                :
                : "memory");
        a = poetc_f4_add_product(a, g, p);
        b = poetc_f4_add_product(b, g, q);
        c = poetc_f4_add_product(c, g, r);
    }
    gw[0] += poetc_f4_total(a);
    gw[1] += poetc_f4_total(b);
    gw[2] += poetc_f4_total(c);
#else
    SUMS_A(a);
    SUMS_B(b);
    SUMS_C(c);
    SIX(v);
    FOUR(g);
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = 0.0f;
#define ADD_QUAD                                                                                                       \
    do {                                                                                                               \
        LOAD_SIX(v, x);                                                                                                \
        LOAD_FOUR(g, gy);                                                                                              \
        x += 4;                                                                                                        \
        ADD_PRODUCTS(a, v0, v1, v2, v3);                                                                               \
        ADD_PRODUCTS(b, v1, v2, v3, v4);                                                                               \
        ADD_PRODUCTS(c, v2, v3, v4, v5);                                                                               \
    } while (0)
    if (count & 4)
        ADD_QUAD;
    for (count /= 8; count > 0; count--) {
        ADD_QUAD;
        ADD_QUAD;
    }
    gw[0] += (a0 + a1) + (a2 + a3);
    gw[1] += (b0 + b1) + (b2 + b3);
    gw[2] += (c0 + c1) + (c2 + c3);
#endif
}
#endif

#if defined(PAIRS)
/* Sums of three taps side by side under a stride of two: `rows` rows of `width` floats of gy, a multiple of four, and of x, `step`
 * floats apart. */
POETC_APART void add_three_pairs(const float *x, ptrdiff_t step, const float *gy, int32_t rows, int32_t width, float *gw)
{
    SUMS_A(a);
    SUMS_B(b);
    SUMS_C(c);
    NINE(v);
    FOUR(g);
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = 0.0f;
    for (; rows > 0; rows--, x += step - 2 * width) {
        int32_t i;
        for (i = width; i > 0; i -= 4, x += 8) {
            LOAD_NINE(v, x);
            LOAD_FOUR(g, gy);
            ADD_PRODUCTS(a, v0, v2, v4, v6);
            ADD_PRODUCTS(b, v1, v3, v5, v7);
            ADD_PRODUCTS(c, v2, v4, v6, v8);
        }
    }
    gw[0] += (a0 + a1) + (a2 + a3);
    gw[1] += (b0 + b1) + (b2 + b3);
    gw[2] += (c0 + c1) + (c2 + c3);
}
#endif

/* x[N,C,H,W], gy[N,C,OH,OW] -> gw[C,1,kh,kw]. The last int is where rows of gy go in the workspace (floats). */
int poetc_op_depthwise_grad_weight(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gw = poetc_out(call, 2), *workspace = POETC_WORKSPACE(call, 3), *rows_of_gy = workspace + call->ints[21];
    const strip s = describe_strip(call, workspace);
    const int32_t reach = (c.kernel_h - 1) * c.dilation_h, block = call->ints[20];
    const int flat = c.stride_h == 1 && c.stride_w == 1;
    const int32_t step = flat ? s.row : (c.output_width + 3) / 4 * 4;
    int32_t n, channel, top, i, kh, kw;
    POETC_THREADED(poetc_op_depthwise_grad_weight, call, 4 * CONVOLUTION_WORK(c), call->ints[21] + (block * step + 3) / 4 * 4);
    for (channel = 0; channel < c.channels; channel++, gw += c.kernel_h * c.kernel_w) {
        POETC_SKIP(c.share, channel, c.channels, )
        for (i = 0; i < c.kernel_h * c.kernel_w; i++)
            gw[i] = 0.0f;
        for (n = 0; n < c.batch; n++) {
            const float *plane = x + ((ptrdiff_t)n * c.channels + channel) * c.height * c.width;
            const float *from = gy + ((ptrdiff_t)n * c.channels + channel) * c.output_height * c.output_width;
            for (top = 0; top < c.output_height; top += block) {
                const int32_t rows = top + block > c.output_height ? c.output_height - top : block;
                int32_t lines, width;
                pad_strip(&s, plane, c.height, c.width, 1, 1, c.pad_top, c.pad_left, top * c.stride_h,
                          (rows - 1) * c.stride_h + reach + 1);
                copy_rows(rows_of_gy, step, from, c.output_width, rows, c.output_width);
                clear_gaps(rows_of_gy + c.output_width, step, rows, step - c.output_width);
                clear(rows_of_gy + rows * step, -(rows * step) & 3);
                from += (ptrdiff_t)rows * c.output_width;
                lines = flat ? 1 : rows, width = flat ? (rows * step + 3) / 4 * 4 : step;
#if defined(PAIRS)
                if (s.pairs) {
                    for (kh = 0; kh < 3; kh++)
                        add_three_pairs(s.data + kh * c.dilation_h * s.row, (ptrdiff_t)c.stride_h * s.row, rows_of_gy, rows,
                                        width, gw + 3 * kh);
                    continue;
                }
#endif
#if defined(THREE_TAPS)
                if (flat && c.kernel_w == 3 && c.dilation_w == 1) {
                    for (kh = 0; kh < c.kernel_h; kh++)
                        add_three_taps(s.data + kh * c.dilation_h * s.row, rows_of_gy, width, gw + 3 * kh);
                    continue;
                }
#endif
                if (c.kernel_h == 3 && c.kernel_w == 3) {
                    for (kh = 0; kh < 3; kh += TAPS_H)
                        add_taps(&s, &c, rows_of_gy, width, lines, TAPS_H, 3, kh, 0, gw + 3 * kh);
                } else {
                    for (kh = 0; kh < c.kernel_h; kh++)
                        for (kw = 0; kw < c.kernel_w; kw++)
                            add_taps(&s, &c, rows_of_gy, width, lines, 1, 1, kh, kw, gw + kh * c.kernel_w + kw);
                }
            }
        }
    }
    return POETC_OK;
}
