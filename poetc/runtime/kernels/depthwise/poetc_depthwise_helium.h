/* Depthwise convolution on Helium, in assembly: eight vector registers, and core registers for the weights. GCC would
 * spend the latter on addresses.
 *
 * Layout: lanes lie along the rows of a strip. Order of sums: bias, then taps in sequence; a weight adds four lanes. */
#ifndef POETC_DEPTHWISE_HELIUM_H
#define POETC_DEPTHWISE_HELIUM_H

#include "depthwise/poetc_depthwise.h"

#define MOST_TAPS 5 /* of a filter's side */
#define HAS_LOOPS(taps) ((taps) == 3 || (taps) == 5)
#define GATHERS(kernel_h, kernel_w) (((kernel_h) == 3 && (kernel_w) == 3) || ((kernel_h) == 5 && (kernel_w) == 5))

/* The loops below load these into core registers at once, r0 to r12; r7 is put aside: it may be GCC's frame. */
typedef struct {
    float w[9];
    const float *x;
    int32_t x_step; /* bytes */
    float *y;
    int32_t y_step; /* bytes */
    float bias;
} slide;

/* The assembly reads the members one after the other; these two places leave the others 4 bytes each. */
typedef char slide_places[offsetof(slide, x) == 36 && offsetof(slide, bias) == 52 ? 1 : -1];

/* Four columns of 4 `blocks` rows under a 3 x 3 filter, from the top down. */
static inline void slide_down(const slide *s, int32_t blocks)
{
    register const slide *at __asm__("r0") = s;
    register int32_t count __asm__("lr") = blocks;
#define LOAD "vldrw.u32 q0, [r9]\n\tvldrw.u32 q1, [r9, #4]\n\tvldrw.u32 q2, [r9, #8]\n\tadd r9, r9, r10\n\t"
#define TOP(a) "vfma.f32 " a ", q0, r0\n\tvfma.f32 " a ", q1, r1\n\tvfma.f32 " a ", q2, r2\n\t"
#define MIDDLE(a) "vfma.f32 " a ", q0, r3\n\tvfma.f32 " a ", q1, r4\n\tvfma.f32 " a ", q2, r5\n\t"
#define BOTTOM(a)                                                                                                      \
    "vfma.f32 " a ", q0, r6\n\tvfma.f32 " a ", q1, r7\n\tvfma.f32 " a ", q2, r8\n\tvstrw.32 " a ", [r11]\n\t"          \
    "add r11, r11, r12\n\t"
    /* clang-format off */
    __asm__ volatile("push {r7}\n\t"
                     "ldr r1, [r0, #52]\n\tvdup.32 q7, r1\n\t"
                     "ldmia r0, {r0-r12}\n\t"
                     "1:\n\t"
                     "vmov q3, q7\n\t" LOAD TOP("q3")
                     "vmov q4, q7\n\t" LOAD MIDDLE("q3") TOP("q4")
                     "vmov q5, q7\n\t" LOAD BOTTOM("q3") MIDDLE("q4") TOP("q5")
                     "vmov q6, q7\n\t" LOAD BOTTOM("q4") MIDDLE("q5") TOP("q6")
                     LOAD BOTTOM("q5") MIDDLE("q6")
                     LOAD BOTTOM("q6")
                     "sub r9, r9, r10, lsl #1\n\t"
                     "le lr, 1b\n\t"
                     "pop {r7}"
                     : "+r"(at), "+r"(count)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r9", "r10", "r11", "r12", "q0", "q1", "q2", "q3", "q4", "q5", "q6",
                       "q7", "memory");
    /* clang-format on */
#undef LOAD
#undef TOP
#undef MIDDLE
#undef BOTTOM
}

/* A row of 4 `blocks` pixels under a 3 x 3 filter that takes every other column, from left to right. */
static inline void slide_pairs(const slide *s, int32_t blocks)
{
    static const uint32_t third[4] = {8, 16, 24, 32};
    const uint32x4_t offsets = vld1q_u32(third);
    register const slide *at __asm__("r0") = s;
    register int32_t count __asm__("lr") = blocks;
#define ROW(x, u, v, w)                                                                                                \
    "vld20.32 {q0, q1}, [" x "]\n\tvldrw.u32 q2, [" x ", q6]\n\tvld21.32 {q0, q1}, [" x "]!\n\t"                        \
    "vfma.f32 q3, q0, " u "\n\tvfma.f32 q3, q1, " v "\n\tvfma.f32 q3, q2, " w "\n\t"
    /* clang-format off */
    __asm__ volatile("push {r7}\n\t"
                     "vmov q6, %q[offsets]\n\t"
                     "ldr r1, [r0, #52]\n\tvdup.32 q7, r1\n\t"
                     "ldmia r0, {r0-r11}\n\t"
                     "add r10, r9, r10\n\t"
                     "rsb r12, r9, r10, lsl #1\n\t"
                     "1:\n\t"
                     "vmov q3, q7\n\t" ROW("r9", "r0", "r1", "r2") ROW("r10", "r3", "r4", "r5") ROW("r12", "r6", "r7", "r8")
                     "vstrw.32 q3, [r11], #16\n\t"
                     "le lr, 1b\n\t"
                     "pop {r7}"
                     : "+r"(at), "+r"(count)
                     : [offsets] "w"(offsets)
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r9", "r10", "r11", "r12", "q0", "q1", "q2", "q3", "q6", "q7",
                       "memory");
    /* clang-format on */
#undef ROW
}

/* One column of 4 `blocks` rows under a 3 x 3 filter, four rows at a time. */
static inline void slide_column(const slide *s, int32_t blocks)
{
    const uint32x4_t lines = vidupq_n_u32(0, 1);
    uint32x4_t x = vaddq_n_u32(vmulq_n_u32(lines, (uint32_t)s->x_step), (uint32_t)s->x);
    uint32x4_t y = vaddq_n_u32(vmulq_n_u32(lines, (uint32_t)s->y_step), (uint32_t)s->y);
    register const slide *at __asm__("r0") = s;
    register int32_t count __asm__("lr") = blocks;
#define ROW(x, u, v, w)                                                                                                \
    "vldrw.u32 q0, [" x "]\n\tvldrw.u32 q1, [" x ", #4]\n\tvldrw.u32 q2, [" x ", #8]\n\t"                                \
    "vfma.f32 q3, q0, " u "\n\tvfma.f32 q3, q1, " v "\n\tvfma.f32 q3, q2, " w "\n\t"
    /* clang-format off */
    __asm__ volatile("push {r7}\n\t"
                     "ldr r1, [r0, #52]\n\tvdup.32 q7, r1\n\t"
                     "ldmia r0, {r0-r12}\n\t"
                     "lsl r9, r10, #2\n\tlsl r12, r12, #2\n\t"
                     "1:\n\t"
                     "vmov q3, q7\n\t" ROW("%q[x]", "r0", "r1", "r2")
                     "vadd.i32 q6, %q[x], r10\n\t" ROW("q6", "r3", "r4", "r5")
                     "vadd.i32 q6, q6, r10\n\t" ROW("q6", "r6", "r7", "r8")
                     "vstrw.32 q3, [%q[y]]\n\t"
                     "vadd.i32 %q[x], %q[x], r9\n\tvadd.i32 %q[y], %q[y], r12\n\t"
                     "le lr, 1b\n\t"
                     "pop {r7}"
                     : "+r"(at), "+r"(count), [x] "+w"(x), [y] "+w"(y)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r9", "r10", "r11", "r12", "q0", "q1", "q2", "q3", "q6", "q7", "memory");
    /* clang-format on */
#undef ROW
}

/* A tile of four rows and columns, of which `rows` and `width` are pixels. */
static void slide_tile(slide *s, float *y, int32_t y_row, int32_t rows, int32_t width)
{
    float tile[16];
    int32_t i, r;
    s->y = tile, s->y_step = 16;
    slide_down(s, 1);
    for (r = 0; r < rows && r < 4; r++, y += y_row)
        for (i = 0; i < width && i < 4; i++)
            y[i] = tile[4 * r + i];
}

/* `rows` rows under a 3 x 3 filter without strides and dilation. A strip that is lower than a tile is read beyond its
 * end, for nothing. */
POETC_APART void correlate_columns(const filter *f, const float *from, int32_t rows)
{
    slide s;
    int32_t at, blocks = rows / 4, step;
    load_weights(f, 3, 3, s.w);
    s.bias = f->bias;
    s.x_step = 4 * f->s->row;
    for (at = 0; at < f->width; at += step) {
        const int32_t left = f->width - at;
        step = 4;
        s.x = from + at;
        if (rows < 4) {
            slide_tile(&s, f->y + at, f->y_row, rows, left);
            continue;
        }
        s.y = f->y + at, s.y_step = 4 * f->y_row;
        if (left < 3 || f->width < 4) {
            slide_column(&s, blocks);
            step = 1;
        } else {
            if (left == 3) /* once more the column before */
                s.x--, s.y--;
            slide_down(&s, blocks);
        }
        if (rows % 4) { /* the last four rows overlap those before */
            s.x += (ptrdiff_t)(rows - 4) * f->s->row, s.y += (ptrdiff_t)(rows - 4) * f->y_row;
            if (step == 1)
                slide_column(&s, 1);
            else
                slide_down(&s, 1);
        }
    }
}

/* `rows` rows under a 3 x 3 filter with a stride of two along the row. */
POETC_APART void correlate_pairs(const filter *f, const float *from, int32_t rows, int32_t stride_h)
{
    const int32_t left = f->width % 4, whole = f->width - left;
    float *y = f->y, tile[4];
    int32_t i;
    slide s;
    load_weights(f, 3, 3, s.w);
    s.bias = f->bias;
    s.x_step = 4 * f->down * f->s->row;
    for (; rows > 0; rows--, from += stride_h * f->s->row, y += f->y_row) {
        if (whole) {
            s.x = from, s.y = y;
            slide_pairs(&s, f->width / 4);
        }
        if (left) {
            s.x = from + 2 * whole, s.y = tile;
            slide_pairs(&s, 1);
            for (i = 0; i < left; i++)
                y[whole + i] = tile[i];
        }
    }
}

/* `rows` rows under any filter of at most MOST_TAPS rows and columns side by side, four pixels at a time. */
POETC_APART void correlate_windows(const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    const ptrdiff_t row = f->s->row, down = (ptrdiff_t)f->down * row;
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)stride_w);
    const uint32x4_t put = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)f->y_step);
    float w[MOST_TAPS * MOST_TAPS], *y = f->y;
    int32_t left, kh, kw;
    load_weights(f, f->kernel_h, f->kernel_w, w);
    for (; rows > 0; rows--, from += stride_h * row, y += f->y_row) {
        const float *x = from;
        float *at = y;
        for (left = f->width; left > 0; left -= 8, x += 8 * stride_w, at += 8 * f->y_step) {
            const float *line = x, *weight = w;
            float32x4_t low = vdupq_n_f32(f->bias), high = low, v, u;
            for (kh = f->kernel_h; kh > 0; kh--, line += down) {
                const float *tap = line, *other = line + 8;
                if (stride_w == 1) {
                    for (kw = f->kernel_w; kw > 0; kw--) {
                        /* clang-format off */
                        __asm__("vldrw.u32 %q0, [%2, #16]\n\tvldrw.u32 %q1, [%2], #4"
                                : "=&w"(u), "=&w"(v), "+r"(tap)
                                : "m"(*(const float(*)[8])tap));
                        /* clang-format on */
                        low = vfmaq_n_f32(low, v, *weight), high = vfmaq_n_f32(high, u, *weight), weight++;
                    }
                } else {
                    for (kw = f->kernel_w; kw > 0; kw--, tap++, other++, weight++) {
                        low = vfmaq_n_f32(low, vldrwq_gather_offset_f32(tap, apart), *weight);
                        high = vfmaq_n_f32(high, vldrwq_gather_offset_f32(other, apart), *weight);
                    }
                }
            }
            vstrwq_scatter_offset_p_f32(at, put, low, vctp32q((uint32_t)left));
            if (left > 4)
                vstrwq_scatter_offset_p_f32(at + 4 * f->y_step, put, high, vctp32q((uint32_t)left - 4));
        }
    }
}

#define FIVE_WEIGHTS "r4", "r5", "r6", "r8", "r9"
#define LOAD_FIVE_WEIGHTS(from) "ldmia %[" from "]!, {r4, r5, r6, r8, r9}\n\t"

/* Two or four vectors of a row of pixels under a filter of five columns, from the top down. */
typedef struct {
    const float *w;
    int32_t lines; /* of the filter */
    int32_t back;  /* bytes of the strip from the end of a window to the next row's */
    int32_t y_row; /* bytes */
    int32_t last;  /* pixels of the last vector: four, or fewer */
    float bias;
} five_columns;

POETC_INLINE void slide_fives(const five_columns *f, const float *x, int32_t down, float *y, int32_t rows,
                              const int vectors, const int stride_w)
{
    uint32x4_t apart = vaddq_n_u32(vmulq_n_u32(vidupq_n_u32(0, 1), 8), (uint32_t)x);
    const float *w;
    float32x4_t a, b, c, d, u, v;
#define NEAR(v, offset) "vldrw.u32 %q[" #v "], [%[x], #4*(" #offset ")]\n\t"
#define FAR(v, offset) "vldrw.u32 %q[" #v "], [%q[x], #4*(" #offset ")]\n\t"
#define TAP_2(load, j, s, w) load(u, j) load(v, j + 4*s) "vfma.f32 %q[a], %q[u], " w "\n\tvfma.f32 %q[b], %q[v], " w "\n\t"
#define TAP_4(load, j, s, w)                                                                                           \
    TAP_2(load, j, s, w) load(u, j + 8*s) load(v, j + 12*s) "vfma.f32 %q[c], %q[u], " w "\n\tvfma.f32 %q[d], %q[v], " w "\n\t"
#define STARTS_2 "vmov %q[b], %q[a]\n\t"
#define STARTS_4 STARTS_2 "vmov %q[c], %q[a]\n\tvmov %q[d], %q[a]\n\t"
#define STORES_2 "vstrw.32 %q[a], [%[y]]\n\tvpst\n\tvstrwt.32 %q[b], [%[y], #16]\n\t"
#define STORES_4 "vstrw.32 %q[a], [%[y]]\n\tvstrw.32 %q[b], [%[y], #16]\n\tvstrw.32 %q[c], [%[y], #32]\n\tvpst\n\tvstrwt.32 %q[d], [%[y], #48]\n\t"
#define ROWS(n, load, s, at, add)                                                                                      \
    __asm__ volatile("ldr r4, %[last]\n\tvctp.32 r4\n1:\tldr r4, %[bias]\n\tldr %[w], %[weights]\n\tldr lr, %[lines]\n\t" \
                     "vdup.32 %q[a], r4\n\t" STARTS_##n                                                                \
                     "2:\t" LOAD_FIVE_WEIGHTS("w") TAP_##n(load, 0, s, "r4") TAP_##n(load, 1, s, "r5") TAP_##n(load, 2, s, "r6") \
                     TAP_##n(load, 3, s, "r8") TAP_##n(load, 4, s, "r9") add(down) "le lr, 2b\n\t"                       \
                     STORES_##n "ldr r4, %[y_row]\n\tldr r5, %[back]\n\tadd %[y], %[y], r4\n\t" add(back)              \
                     "subs %[rows], #1\n\tbne 1b"                                                                      \
                     : [a] "=&w"(a), [b] "=&w"(b), [c] "=&w"(c), [d] "=&w"(d), [u] "=&w"(u), [v] "=&w"(v), at,         \
                       [y] "+&r"(y), [rows] "+&r"(rows), [w] "=&r"(w)                                                  \
                     : [down] "r"(down), [lines] "m"(f->lines), [back] "m"(f->back), [y_row] "m"(f->y_row),            \
                       [last] "m"(f->last), [bias] "m"(f->bias), [weights] "m"(f->w)                                   \
                     : FIVE_WEIGHTS, "lr", "cc", "memory")
#define ADD_NEAR_down "add %[x], %[x], %[down]\n\t"
#define ADD_NEAR_back "add %[x], %[x], r5\n\t"
#define ADD_FAR_down "vadd.i32 %q[x], %q[x], %[down]\n\t"
#define ADD_FAR_back "vadd.i32 %q[x], %q[x], r5\n\t"
#define ADD_NEAR(by) ADD_NEAR_##by
#define ADD_FAR(by) ADD_FAR_##by
    if (stride_w == 1 && vectors == 4)
        ROWS(4, NEAR, 1, [x] "+&r"(x), ADD_NEAR);
    else if (stride_w == 1)
        ROWS(2, NEAR, 1, [x] "+&r"(x), ADD_NEAR);
    else if (vectors == 4)
        ROWS(4, FAR, 2, [x] "+&w"(apart), ADD_FAR);
    else
        ROWS(2, FAR, 2, [x] "+&w"(apart), ADD_FAR);
#undef ADD_FAR
#undef ADD_NEAR
#undef ADD_FAR_back
#undef ADD_FAR_down
#undef ADD_NEAR_back
#undef ADD_NEAR_down
#undef ROWS
#undef STORES_4
#undef STORES_2
#undef STARTS_4
#undef STARTS_2
#undef TAP_4
#undef TAP_2
#undef FAR
#undef NEAR
}

/* `rows` rows under a filter of five columns and at most MOST_TAPS rows, of at least four pixels: sixteen at a time, or
 * eight. The last block overlaps the one before, or sees pixels beyond the row's end, for nothing. */
POETC_APART void correlate_fives(const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    const int32_t row = f->s->row, down = 4 * f->down * row, width = f->width;
    float w[MOST_TAPS * MOST_TAPS];
    five_columns t = {w, f->kernel_h, 4 * stride_h * row - f->kernel_h * down, 4 * f->y_row, 4, f->bias};
    int32_t at, count;
    load_weights(f, f->kernel_h, 5, w);
    for (at = 0; at < width && rows > 0; at += count) {
        const float *x;
        float *y;
        count = width - at > 8 && width > 12 ? 16 : 8;
        if (at + count > width && width >= count)
            at = width - count;
        if (at + count > width)
            t.last = width - at - count + 4;
        x = from + at * stride_w, y = f->y + at;
        if (stride_w == 1 && count == 16)
            slide_fives(&t, x, down, y, rows, 4, 1);
        else if (stride_w == 1)
            slide_fives(&t, x, down, y, rows, 2, 1);
        else if (count == 16)
            slide_fives(&t, x, down, y, rows, 4, 2);
        else
            slide_fives(&t, x, down, y, rows, 2, 2);
    }
}

/* `rows` rows of a result, if there are loops for the filter; returns whether there are. `stride_w`: of the strip's
 * columns. */
static int correlate_fast(const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    const int is_3x3 = f->kernel_h == 3 && f->kernel_w == 3 && f->across == 1 && f->y_step == 1;
    if (f->across != 1 || f->kernel_h > MOST_TAPS || f->kernel_w > MOST_TAPS || f->s->phases != 1)
        return 0;
    if (is_3x3 && stride_w == 2)
        correlate_pairs(f, from, rows, stride_h);
    else if (is_3x3 && stride_w == 1 && stride_h == 1 && f->down == 1 &&
             (rows >= 4 || (4 - rows) * f->s->row + 6 <= f->s->slack))
        correlate_columns(f, from, rows);
    else if (f->kernel_w == 5 && f->kernel_h > 0 && f->y_step == 1 &&
             f->width >= 4) /* its loop goes round at least once */
        correlate_fives(f, from, rows, stride_h, stride_w);
    else
        correlate_windows(f, from, rows, stride_h, stride_w);
    return 1;
}

/* The gradient of the input under a 3 x 3 filter and strides of two: every other row of gx, of one tap or two. They
 * begin with the row of gy that the first of them reads. Columns take one tap and two in turn, the first of them two if
 * `twice`. Eight columns at a time. */
POETC_INLINE void gather_lines(const filter *f, const float *g, const int taps, const int twice, float *y, int32_t rows)
{
    const float32x4_t start = vdupq_n_f32(f->bias);
    const float *w = f->weight + (taps == 2 ? 6 : 3), *u = f->weight;
    const int32_t row = f->s->row, blocks = f->width / 8, rest = f->width % 8;
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), 8);
    for (; rows > 0; rows--, g += row, y += 2 * f->width) {
        const float *from = g, *below = g + row;
        float *to = y;
#define LOADS(from) "vldrw.u32 q0, [" from "], #4\n\tvldrw.u32 q1, [" from "], #12\n\t"
#define STARTS "vmov q2, %q[start]\n\tvmov q3, %q[start]\n\t"
#define ONE_FIRST(a, b, c) "vfma.f32 q2, q0, " b "\n\tvfma.f32 q3, q0, " c "\n\tvfma.f32 q3, q1, " a "\n\t"
#define TWO_FIRST(a, b, c) "vfma.f32 q2, q0, " c "\n\tvfma.f32 q3, q1, " b "\n\tvfma.f32 q2, q1, " a "\n\t"
#define STORES "vst20.32 {q2, q3}, [%[to]]\n\tvst21.32 {q2, q3}, [%[to]]!\n\tle lr, 1b"
#define LOOP_OF_ONE(columns)                                                                                           \
    __asm__ volatile("dls lr, %[n]\n1:\t" LOADS("%[from]") STARTS columns("%[w0]", "%[w1]", "%[w2]") STORES              \
                     : [from] "+r"(from), [to] "+r"(to)                                                                \
                     : [n] "r"(blocks), [start] "w"(start), [w0] "r"(w[0]), [w1] "r"(w[1]), [w2] "r"(w[2])             \
                     : "lr", "q0", "q1", "q2", "q3", "memory")
#define LOOP_OF_TWO(columns)                                                                                           \
    __asm__ volatile("dls lr, %[n]\n1:\t" LOADS("%[from]") STARTS columns("%[w0]", "%[w1]", "%[w2]")                     \
                     LOADS("%[below]") columns("%[u0]", "%[u1]", "%[u2]") STORES                                       \
                     : [from] "+r"(from), [below] "+r"(below), [to] "+r"(to)                                           \
                     : [n] "r"(blocks), [start] "w"(start), [w0] "r"(w[0]), [w1] "r"(w[1]), [w2] "r"(w[2]),            \
                       [u0] "r"(u[0]), [u1] "r"(u[1]), [u2] "r"(u[2])                                                  \
                     : "lr", "q0", "q1", "q2", "q3", "memory")
        if (blocks > 0) {
            if (taps == 1 && twice)
                LOOP_OF_ONE(TWO_FIRST);
            else if (taps == 1)
                LOOP_OF_ONE(ONE_FIRST);
            else if (twice)
                LOOP_OF_TWO(TWO_FIRST);
            else
                LOOP_OF_TWO(ONE_FIRST);
        }
        if (rest > 0) {
            const mve_pred16_t first = vctp32q((uint32_t)(rest + 1) / 2), second = vctp32q((uint32_t)rest / 2);
            float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + 1);
            float32x4_t one = vfmaq_n_f32(start, twice ? b : a, w[1]);
            float32x4_t two = vfmaq_n_f32(vfmaq_n_f32(start, a, w[2]), b, w[0]);
            if (taps == 2) {
                a = vld1q_f32(below), b = vld1q_f32(below + 1);
                one = vfmaq_n_f32(one, twice ? b : a, u[1]);
                two = vfmaq_n_f32(vfmaq_n_f32(two, a, u[2]), b, u[0]);
            }
            vstrwq_scatter_offset_p_f32(to, apart, twice ? two : one, first);
            vstrwq_scatter_offset_p_f32(to + 1, apart, twice ? one : two, second);
        }
#undef LOOP_OF_TWO
#undef LOOP_OF_ONE
#undef STORES
#undef TWO_FIRST
#undef ONE_FIRST
#undef STARTS
#undef LOADS
    }
}

/* Sixteen columns of every other row of gx from twice four of gy, under a 5 x 5 filter. The second `next` pixels of gy
 * are behind the first. */
typedef struct {
    const float *w; /* of the last line that a row sees */
    int32_t lines;  /* of a row: two or three, two apart */
    int32_t back;   /* bytes of the strip from the end of a window to the next row's */
    int32_t y_row;  /* bytes from row to row */
    int32_t y_next; /* bytes from the first eight columns to the second */
    float bias;
} five_pairs;

POETC_INLINE void spread_fives(const five_pairs *f, const float *from, const float *next, int32_t down, float *y,
                               int32_t rows, const int more_first)
{
    const float *w;
#define LOADS(at) "vldrw.u32 q0, [%[" at "]]\n\tvldrw.u32 q1, [%[" at "], #4]\n\tvldrw.u32 q6, [%[" at "], #8]\n\t"
#define TAKE(more, less, third, fourth)                                                                                \
    "vfma.f32 " more ", q0, r9\n\tvfma.f32 " less ", " third ", r8\n\tvfma.f32 " more ", q1, r6\n\t"                    \
    "vfma.f32 " less ", " fourth ", r5\n\tvfma.f32 " more ", q6, r4\n\t"
#define ROWS(take)                                                                                                     \
    __asm__ volatile("1:\tldr r4, %[bias]\n\tldr %[w], %[weights]\n\tldr lr, %[lines]\n\t"                              \
                     "vdup.32 q2, r4\n\tvmov q3, q2\n\tvmov q4, q2\n\tvmov q5, q2\n"                                    \
                     "2:\t" LOAD_FIVE_WEIGHTS("w") LOADS("from") "sub %[w], #60\n\tadd %[from], %[from], %[down]\n\t"     \
                     take("q2", "q3") LOADS("next") "add %[next], %[next], %[down]\n\t" take("q4", "q5") "le lr, 2b\n\t"   \
                     "ldr r4, %[y_next]\n\tadd r4, r4, %[y]\n\t"                                                       \
                     "vst20.32 {q2, q3}, [%[y]]\n\tvst21.32 {q2, q3}, [%[y]]\n\tvst20.32 {q4, q5}, [r4]\n\tvst21.32 {q4, q5}, [r4]\n\t" \
                     "ldr r4, %[back]\n\tldr r5, %[y_row]\n\tadd %[from], %[from], r4\n\tadd %[next], %[next], r4\n\t"  \
                     "add %[y], %[y], r5\n\tsubs %[rows], #1\n\tbne 1b"                                                \
                     : [from] "+&r"(from), [next] "+&r"(next), [y] "+&r"(y), [rows] "+&r"(rows), [w] "=&r"(w)          \
                     : [down] "r"(down), [lines] "m"(f->lines), [back] "m"(f->back), [y_row] "m"(f->y_row),            \
                       [y_next] "m"(f->y_next), [bias] "m"(f->bias), [weights] "m"(f->w)                               \
                     : FIVE_WEIGHTS, "lr", "cc", "q0", "q1", "q2", "q3", "q4", "q5", "q6", "memory")
#define MORE_FIRST(first, second) TAKE(first, second, "q1", "q6")
#define LESS_FIRST(first, second) TAKE(second, first, "q0", "q1")
    if (more_first)
        ROWS(MORE_FIRST);
    else
        ROWS(LESS_FIRST);
#undef LESS_FIRST
#undef MORE_FIRST
#undef ROWS
#undef TAKE
#undef LOADS
}

/* The same under a 5 x 5 filter: every other row of gx, of `lines` taps from row `tap` of the filter on. */
POETC_APART void gather_fives(const filter *f, const float *g, int32_t lines, int32_t tap, int more_first, float *y,
                              int32_t rows)
{
    const float32x4_t start = vdupq_n_f32(f->bias);
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), 8);
    const int32_t width = f->width, pairs = (width + 1) / 2, down = 4 * f->s->row;
    if (width % 2 == 0 && pairs >= 4 && rows > 0) {
        const int32_t second = pairs >= 8 ? 4 : pairs - 4;
        five_pairs t = {f->weight + 5 * tap, lines, down - lines * down, 8 * width, 8 * second, f->bias};
        int32_t at;
        for (at = 0; at < pairs; at += 8) {
            const int32_t p =
                at + 8 > pairs && pairs >= 8 ? pairs - 8 : at; /* the last block may overlap the one before */
            if (more_first)
                spread_fives(&t, g + p, g + p + second, down, y + 2 * p, rows, 1);
            else
                spread_fives(&t, g + p, g + p + second, down, y + 2 * p, rows, 0);
        }
        return;
    }
    for (; rows > 0; rows--, g += f->s->row, y += 2 * width) {
        int32_t at;
        for (at = 0; at < pairs; at += 4) {
            const int32_t p = at + 4 > pairs && pairs >= 4 ? pairs - 4 : at;
            const float *from = g + p, *w = f->weight + 5 * tap;
            float *to = y + 2 * p;
            float32x4x2_t sum;
            float32x4_t more = start, less = start;
#define LOOP_OF_LINES(third, fourth)                                                                                   \
    __asm__ volatile("dls lr, %[n]\n1:\t" LOAD_FIVE_WEIGHTS("w")                                                       \
                     "vldrw.u32 q0, [%[from]]\n\tvldrw.u32 q1, [%[from], #4]\n\tvldrw.u32 q2, [%[from], #8]\n\t"         \
                     "sub %[w], #60\n\tadd %[from], %[from], %[down]\n\t"                                              \
                     "vfma.f32 %q[more], q0, r9\n\tvfma.f32 %q[less], " third ", r8\n\tvfma.f32 %q[more], q1, r6\n\t"     \
                     "vfma.f32 %q[less], " fourth ", r5\n\tvfma.f32 %q[more], q2, r4\n\tle lr, 1b"                      \
                     : [from] "+r"(from), [w] "+r"(w), [more] "+w"(more), [less] "+w"(less)                            \
                     : [n] "r"(lines), [down] "r"(down)                                                                \
                     : FIVE_WEIGHTS, "lr", "q0", "q1", "q2", "memory")
            if (more_first)
                LOOP_OF_LINES("q1", "q2");
            else
                LOOP_OF_LINES("q0", "q1");
#undef LOOP_OF_LINES
            sum.val[0] = more_first ? more : less, sum.val[1] = more_first ? less : more;
            if (2 * p + 8 <= width) {
                vst2q_f32(to, sum);
            } else {
                vstrwq_scatter_offset_p_f32(to, apart, sum.val[0], vctp32q((uint32_t)(width - 2 * p + 1) / 2));
                vstrwq_scatter_offset_p_f32(to + 1, apart, sum.val[1], vctp32q((uint32_t)(width - 2 * p) / 2));
            }
        }
    }
}

/* Sums of `taps` (three or five) taps side by side over a strip that is one long row, added to gw. They are of `lines`
 * rows of the filter, `down` floats apart in x. */
POETC_APART void add_taps_of_row(const float *line, ptrdiff_t down, int32_t lines, const float *gradient, int32_t count,
                                 float *gw, int taps)
{
    for (; lines > 0; lines--, line += down, gw += taps) {
        poetc_f4 a = POETC_F4_ZERO, b = a, c = a, d = a, e = a, g, p;
        const float *x = line, *gy = gradient;
#define NEXT_TAP(sum, step) "vldrw.u32 %q[p], [%[x]], #" step "\n\tvfma.f32 %q[" sum "], %q[g], %q[p]\n\t"
        if (taps == 3) {
            /* clang-format off */
            __asm__ volatile("dls lr, %[n]\n"
                             "1:\tvldrw.u32 %q[g], [%[gy]], #16\n\t" NEXT_TAP("a", "4") NEXT_TAP("b", "4") NEXT_TAP("c", "8") "le lr, 1b"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [g] "=&w"(g), [p] "=&w"(p), [x] "+r"(x), [gy] "+r"(gy)
                             : [n] "r"(count / 4)
                             : "lr", "memory");
        } else {
            __asm__ volatile("dls lr, %[n]\n"
                             "1:\tvldrw.u32 %q[g], [%[gy]], #16\n\t" NEXT_TAP("a", "4") NEXT_TAP("b", "4") NEXT_TAP("c", "4") NEXT_TAP("d", "4")
                             "vldrw.u32 %q[p], [%[x]]\n\tvfma.f32 %q[e], %q[g], %q[p]\n\t"
                             "le lr, 1b"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [d] "+w"(d), [e] "+w"(e), [g] "=&w"(g), [p] "=&w"(p),
                               [x] "+r"(x), [gy] "+r"(gy)
                             : [n] "r"(count / 4)
                             : "lr", "memory");
            /* clang-format on */
            gw[3] += poetc_f4_total(d);
            gw[4] += poetc_f4_total(e);
        }
#undef NEXT_TAP
        gw[0] += poetc_f4_total(a);
        gw[1] += poetc_f4_total(b);
        gw[2] += poetc_f4_total(c);
    }
}

/* The same under a stride of two: `rows` rows of `width` floats of gy, a multiple of four, and of x, `step` floats
 * apart. */
POETC_APART void add_taps_apart(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient,
                                int32_t rows, int32_t width, float *gw, int taps)
{
    static const uint32_t third[4] = {8, 16, 24, 32};
    const uint32x4_t offsets = vld1q_u32(third);
    for (; lines > 0; lines--, line += down, gw += taps) {
        poetc_f4 a = POETC_F4_ZERO, b = a, c = a, d = a, e = a;
        const float *x = line, *gy = gradient;
        const int32_t jump = 4 * (int32_t)(step - 2 * width);
        int32_t left = rows;
#define TWO_TAPS(x, a, b) "vld20.32 {q0, q1}, [%[" x "]]\n\tvld21.32 {q0, q1}, [%[" x "]]!\n\tvfma.f32 %q[" a "], q2, q0\n\tvfma.f32 %q[" b "], q2, q1\n\t"
        if (rows > 0 && taps == 3) {
            /* clang-format off */
            __asm__ volatile("1:\tdls lr, %[n]\n"
                             "2:\tvldrw.u32 q2, [%[gy]], #16\n\t"
                             "vldrw.u32 q0, [%[x], %q[offsets]]\n\tvfma.f32 %q[c], q2, q0\n\t" TWO_TAPS("x", "a", "b")
                             "le lr, 2b\n\tsubs %[left], #1\n\tadd %[x], %[x], %[jump]\n\tbne 1b"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left)
                             : [n] "r"(width / 4), [offsets] "w"(offsets), [jump] "r"(jump)
                             : "lr", "cc", "q0", "q1", "q2", "memory");
        } else if (rows > 0) {
            const float *next = x + 2, *last = x + 4;
            __asm__ volatile("1:\tdls lr, %[n]\n"
                             "2:\tvldrw.u32 q2, [%[gy]], #16\n\t" TWO_TAPS("x", "a", "b") TWO_TAPS("next", "c", "d")
                             "vld20.32 {q0, q1}, [%[last]]\n\tvld21.32 {q0, q1}, [%[last]]!\n\tvfma.f32 %q[e], q2, q0\n\t"
                             "le lr, 2b\n\tadd %[x], %[x], %[jump]\n\tadd %[next], %[next], %[jump]\n\tadd %[last], %[last], %[jump]\n\t"
                             "subs %[left], #1\n\tbne 1b"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [d] "+w"(d), [e] "+w"(e), [x] "+r"(x), [next] "+r"(next),
                               [last] "+r"(last), [gy] "+r"(gy), [left] "+r"(left)
                             : [n] "r"(width / 4), [jump] "r"(jump)
                             : "lr", "cc", "q0", "q1", "q2", "memory");
            /* clang-format on */
        }
#undef TWO_TAPS
        gw[0] += poetc_f4_total(a);
        gw[1] += poetc_f4_total(b);
        gw[2] += poetc_f4_total(c);
        if (taps == 5) {
            gw[3] += poetc_f4_total(d);
            gw[4] += poetc_f4_total(e);
        }
    }
}

#endif
