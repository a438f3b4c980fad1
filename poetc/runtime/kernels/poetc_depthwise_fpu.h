/* Depthwise convolution by scalars in an FPU: the sums of up to eight pixels of a row stay in registers while the taps pass. On
 * Cortex-M the loops are in assembly: GCC would move what lies in 32 registers about. */
#ifndef POETC_DEPTHWISE_FPU_H
#define POETC_DEPTHWISE_FPU_H

#include "poetc_depthwise.h"

#define MOST_TAPS 5   /* of a filter's side */
#define MOST_PIXELS 8 /* of a block */
#define PLANS 1
#define GATHERS(kernel_h, kernel_w) (((kernel_h) == 3 || (kernel_h) == 5) && ((kernel_w) == 3 || (kernel_w) == 5))

/* A column of blocks, from the top down; distances in bytes. */
typedef struct {
    const float *x, *w, *start; /* window, weights, and what the sums begin with */
    float *y;
    int32_t rows, lines;        /* of the result, of the filter */
    ptrdiff_t down, next, y_row, w_next; /* from line to line of the window; after the last one, to the next row's first; likewise of the weights */
    int odd;                    /* the last of the pixels is none (gather) */
} column;

#if POETC_FPU_M
#define MLA(sum, x, w) "vmla.f32 s" #sum ", s" #x ", s" #w "\n\t"
#define SCRATCH                                                                                                        \
    "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14",     \
        "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28", "s29", "s30", "s31"

/* One tap of `n` pixels whose sums are s19 to s26: x in s0 to s18. */
#define PIXELS_1(w, a, b, c, d, e, f, g, h) MLA(19, a, w)
#define PIXELS_2(w, a, b, c, d, e, f, g, h) PIXELS_1(w, a, b, c, d, e, f, g, h) MLA(20, b, w)
#define PIXELS_3(w, a, b, c, d, e, f, g, h) PIXELS_2(w, a, b, c, d, e, f, g, h) MLA(21, c, w)
#define PIXELS_4(w, a, b, c, d, e, f, g, h) PIXELS_3(w, a, b, c, d, e, f, g, h) MLA(22, d, w)
#define PIXELS_5(w, a, b, c, d, e, f, g, h) PIXELS_4(w, a, b, c, d, e, f, g, h) MLA(23, e, w)
#define PIXELS_6(w, a, b, c, d, e, f, g, h) PIXELS_5(w, a, b, c, d, e, f, g, h) MLA(24, f, w)
#define PIXELS_7(w, a, b, c, d, e, f, g, h) PIXELS_6(w, a, b, c, d, e, f, g, h) MLA(25, g, w)
#define PIXELS_8(w, a, b, c, d, e, f, g, h) PIXELS_7(w, a, b, c, d, e, f, g, h) MLA(26, h, w)
#define SIDE_BY_SIDE_3(n, u, v, w)                                                                                     \
    PIXELS_##n(u, 0, 1, 2, 3, 4, 5, 6, 7) PIXELS_##n(v, 1, 2, 3, 4, 5, 6, 7, 8) PIXELS_##n(w, 2, 3, 4, 5, 6, 7, 8, 9)
#define SIDE_BY_SIDE_5(n)                                                                                              \
    SIDE_BY_SIDE_3(n, 27, 28, 29) PIXELS_##n(30, 3, 4, 5, 6, 7, 8, 9, 10) PIXELS_##n(31, 4, 5, 6, 7, 8, 9, 10, 11)
#define APART_3(n, u, v, w)                                                                                            \
    PIXELS_##n(u, 0, 2, 4, 6, 8, 10, 12, 14) PIXELS_##n(v, 1, 3, 5, 7, 9, 11, 13, 15)                                  \
        PIXELS_##n(w, 2, 4, 6, 8, 10, 12, 14, 16)
#define TWO_APART_3(n) APART_3(n, 27, 28, 29)
#define TWO_APART_5(n)                                                                                                 \
    TWO_APART_3(n) PIXELS_##n(30, 3, 5, 7, 9, 11, 13, 15, 17) PIXELS_##n(31, 4, 6, 8, 10, 12, 14, 16, 18)

/* A 3 x 3 filter that moves on by one: all of its weights in registers. `x`, `sums`: the last of their registers. */
#define NINE_TAPS(n, sums, x_last)                                                                                     \
    case n:                                                                                                            \
        __asm__ volatile("vldmia %[w], {s10-s18}\n"                                                                    \
                         "1:\tvldmia %[x], {s0-s" x_last "}\n\tvldmia %[start], {s19" sums "}\n\t"                     \
                         "add %[x], %[x], %[down]\n\t" SIDE_BY_SIDE_3(n, 10, 11, 12)                                   \
                         "vldmia %[x], {s0-s" x_last "}\n\tadd %[x], %[x], %[down]\n\t" SIDE_BY_SIDE_3(n, 13, 14, 15)   \
                         "vldmia %[x], {s0-s" x_last "}\n\tsub %[x], %[x], %[down]\n\t" SIDE_BY_SIDE_3(n, 16, 17, 18)   \
                         "subs %[rows], #1\n\tvstmia %[y], {s19" sums "}\n\tadd %[y], %[y], %[y_row]\n\tbne 1b"         \
                         : [x] "+r"(x), [y] "+r"(y), [rows] "+r"(rows)                                                 \
                         : [w] "r"(c->w), [start] "r"(c->start), [down] "r"(c->down), [y_row] "r"(c->y_row)             \
                         : SCRATCH);                                                                                   \
        break;
/* Any number of lines of three or five taps. */
#define LINES_OF_TAPS(n, sums, x_last, w_last, taps)                                                                   \
    case n:                                                                                                            \
        __asm__ volatile("1:\tvldmia %[start], {s19" sums "}\n\tmov %[left], %[lines]\n"                              \
                         "2:\tvldmia %[x], {s0-s" x_last "}\n\tvldmia %[w]!, {s27-s" w_last "}\n\t"                     \
                         "add %[x], %[x], %[down]\n\t" taps "subs %[left], #1\n\tbne 2b\n\t"                           \
                         "add %[w], %[w], %[w_next]\n\tadd %[x], %[x], %[next]\n\t"                                    \
                         "subs %[rows], #1\n\tvstmia %[y], {s19" sums "}\n\tadd %[y], %[y], %[y_row]\n\tbne 1b"        \
                         : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [rows] "+r"(rows), [left] "=&r"(left)                \
                         : [start] "r"(c->start), [down] "r"(c->down), [next] "r"(c->next), [y_row] "r"(c->y_row),     \
                           [lines] "r"(c->lines), [w_next] "r"(c->w_next)                                              \
                         : SCRATCH);                                                                                   \
        break;

POETC_APART void slide_nine(const column *c, int32_t pixels)
{
    const float *x = c->x;
    float *y = c->y;
    int32_t rows = c->rows;
    switch (pixels) {
        NINE_TAPS(1, "", "2")
        NINE_TAPS(2, "-s20", "3")
        NINE_TAPS(3, "-s21", "4")
        NINE_TAPS(4, "-s22", "5")
        NINE_TAPS(5, "-s23", "6")
        NINE_TAPS(6, "-s24", "7")
        NINE_TAPS(7, "-s25", "8")
    default:
        NINE_TAPS(8, "-s26", "9")
    }
}

#define DEFINE_SLIDE(name, taps, w_last, x1, x2, x3, x4, x5, x6, x7, x8)                                               \
    POETC_APART void name(const column *c, int32_t pixels)                                                             \
    {                                                                                                                  \
        const float *x = c->x, *w = c->w;                                                                              \
        float *y = c->y;                                                                                               \
        int32_t rows = c->rows, left;                                                                                  \
        switch (pixels) {                                                                                              \
            LINES_OF_TAPS(1, "", x1, w_last, taps(1))                                                                \
            LINES_OF_TAPS(2, "-s20", x2, w_last, taps(2))                                                                \
            LINES_OF_TAPS(3, "-s21", x3, w_last, taps(3))                                                                \
            LINES_OF_TAPS(4, "-s22", x4, w_last, taps(4))                                                                \
            LINES_OF_TAPS(5, "-s23", x5, w_last, taps(5))                                                                \
            LINES_OF_TAPS(6, "-s24", x6, w_last, taps(6))                                                                \
            LINES_OF_TAPS(7, "-s25", x7, w_last, taps(7))                                                                \
        default:                                                                                                       \
            LINES_OF_TAPS(8, "-s26", x8, w_last, taps(8))                                                                \
        }                                                                                                              \
    }
DEFINE_SLIDE(slide_five, SIDE_BY_SIDE_5, "31", "4", "5", "6", "7", "8", "9", "10", "11")
DEFINE_SLIDE(slide_three_apart, TWO_APART_3, "29", "2", "4", "6", "8", "10", "12", "14", "16")
DEFINE_SLIDE(slide_five_apart, TWO_APART_5, "31", "4", "6", "8", "10", "12", "14", "16", "18")

/* One tap of every other of 2 `n` pixels whose sums are s15 to s30: the first, third, ...; the second, fourth, ... */
#define FIRSTS_1(w, a, b, c, d, e, f, g, h) MLA(15, a, w)
#define FIRSTS_2(w, a, b, c, d, e, f, g, h) FIRSTS_1(w, a, b, c, d, e, f, g, h) MLA(17, b, w)
#define FIRSTS_3(w, a, b, c, d, e, f, g, h) FIRSTS_2(w, a, b, c, d, e, f, g, h) MLA(19, c, w)
#define FIRSTS_4(w, a, b, c, d, e, f, g, h) FIRSTS_3(w, a, b, c, d, e, f, g, h) MLA(21, d, w)
#define FIRSTS_5(w, a, b, c, d, e, f, g, h) FIRSTS_4(w, a, b, c, d, e, f, g, h) MLA(23, e, w)
#define FIRSTS_6(w, a, b, c, d, e, f, g, h) FIRSTS_5(w, a, b, c, d, e, f, g, h) MLA(25, f, w)
#define FIRSTS_7(w, a, b, c, d, e, f, g, h) FIRSTS_6(w, a, b, c, d, e, f, g, h) MLA(27, g, w)
#define FIRSTS_8(w, a, b, c, d, e, f, g, h) FIRSTS_7(w, a, b, c, d, e, f, g, h) MLA(29, h, w)
#define SECONDS_1(w, a, b, c, d, e, f, g, h) MLA(16, a, w)
#define SECONDS_2(w, a, b, c, d, e, f, g, h) SECONDS_1(w, a, b, c, d, e, f, g, h) MLA(18, b, w)
#define SECONDS_3(w, a, b, c, d, e, f, g, h) SECONDS_2(w, a, b, c, d, e, f, g, h) MLA(20, c, w)
#define SECONDS_4(w, a, b, c, d, e, f, g, h) SECONDS_3(w, a, b, c, d, e, f, g, h) MLA(22, d, w)
#define SECONDS_5(w, a, b, c, d, e, f, g, h) SECONDS_4(w, a, b, c, d, e, f, g, h) MLA(24, e, w)
#define SECONDS_6(w, a, b, c, d, e, f, g, h) SECONDS_5(w, a, b, c, d, e, f, g, h) MLA(26, f, w)
#define SECONDS_7(w, a, b, c, d, e, f, g, h) SECONDS_6(w, a, b, c, d, e, f, g, h) MLA(28, g, w)
#define SECONDS_8(w, a, b, c, d, e, f, g, h) SECONDS_7(w, a, b, c, d, e, f, g, h) MLA(30, h, w)
#define AT_0(which, n, w) which##_##n(w, 0, 1, 2, 3, 4, 5, 6, 7)
#define AT_1(which, n, w) which##_##n(w, 1, 2, 3, 4, 5, 6, 7, 8)
#define AT_2(which, n, w) which##_##n(w, 2, 3, 4, 5, 6, 7, 8, 9)
#define MORE_FIRST_3(n) AT_0(FIRSTS, n, 12) AT_1(FIRSTS, n, 10) AT_1(SECONDS, n, 11)
#define MORE_SECOND_3(n) AT_0(SECONDS, n, 12) AT_1(SECONDS, n, 10) AT_0(FIRSTS, n, 11)
#define MORE_FIRST_5(n)                                                                                                \
    AT_0(FIRSTS, n, 14) AT_1(FIRSTS, n, 12) AT_2(FIRSTS, n, 10) AT_1(SECONDS, n, 13) AT_2(SECONDS, n, 11)
#define MORE_SECOND_5(n)                                                                                               \
    AT_0(SECONDS, n, 14) AT_1(SECONDS, n, 12) AT_2(SECONDS, n, 10) AT_0(FIRSTS, n, 13) AT_1(FIRSTS, n, 11)

#define LINES_OF_PAIRS(n, x_last, w_last, w_back, but_one, sums, taps)                                                 \
    case n:                                                                                                            \
        __asm__ volatile("1:\tvldmia %[start], {s15" sums "}\n\tmov %[left], %[lines]\n"                              \
                         "2:\tvldmia %[x], {s0-s" x_last "}\n\tvldmia %[w], {s10-s" w_last "}\n\t"                      \
                         "add %[x], %[x], %[down]\n\tsub %[w], #" w_back "\n\t" taps "subs %[left], #1\n\tbne 2b\n\t"      \
                         "add %[w], %[w], %[w_next]\n\tadd %[x], %[x], %[next]\n\t"                                    \
                         "cmp %[odd], #0\n\tite ne\n\tvstmiane %[y], {s15" but_one "}\n\tvstmiaeq %[y], {s15" sums "}\n\t" \
                         "subs %[rows], #1\n\tadd %[y], %[y], %[y_row]\n\tbne 1b"                                        \
                         : [x] "+r"(x), [w] "+r"(w), [y] "+r"(y), [rows] "+r"(rows), [left] "=&r"(left)                \
                         : [start] "r"(c->start), [down] "r"(c->down), [next] "r"(c->next), [y_row] "r"(c->y_row),     \
                           [lines] "r"(c->lines), [w_next] "r"(c->w_next), [odd] "r"(c->odd)                           \
                         : SCRATCH);                                                                                   \
        break;
#define DEFINE_GATHER(name, taps, w_last, w_back, x1, x2, x3, x4, x5, x6, x7, x8)                                      \
    POETC_APART void name(const column *c, int32_t pairs)                                                              \
    {                                                                                                                  \
        const float *x = c->x, *w = c->w;                                                                              \
        float *y = c->y;                                                                                               \
        int32_t rows = c->rows, left;                                                                                  \
        switch (pairs) {                                                                                               \
            LINES_OF_PAIRS(1, x1, w_last, w_back, "", "-s16", taps(1))                                                 \
            LINES_OF_PAIRS(2, x2, w_last, w_back, "-s17", "-s18", taps(2))                                                 \
            LINES_OF_PAIRS(3, x3, w_last, w_back, "-s19", "-s20", taps(3))                                                 \
            LINES_OF_PAIRS(4, x4, w_last, w_back, "-s21", "-s22", taps(4))                                                 \
            LINES_OF_PAIRS(5, x5, w_last, w_back, "-s23", "-s24", taps(5))                                                 \
            LINES_OF_PAIRS(6, x6, w_last, w_back, "-s25", "-s26", taps(6))                                                 \
            LINES_OF_PAIRS(7, x7, w_last, w_back, "-s27", "-s28", taps(7))                                                 \
        default:                                                                                                       \
            LINES_OF_PAIRS(8, x8, w_last, w_back, "-s29", "-s30", taps(8))                                                 \
        }                                                                                                              \
    }
DEFINE_GATHER(gather_three_first, MORE_FIRST_3, "12", "24", "1", "2", "3", "4", "5", "6", "7", "8")
DEFINE_GATHER(gather_three_second, MORE_SECOND_3, "12", "24", "1", "2", "3", "4", "5", "6", "7", "8")
DEFINE_GATHER(gather_five_first, MORE_FIRST_5, "14", "40", "2", "3", "4", "5", "6", "7", "8", "9")
DEFINE_GATHER(gather_five_second, MORE_SECOND_5, "14", "40", "2", "3", "4", "5", "6", "7", "8", "9")

#else

/* The same in C. */
POETC_INLINE void slide(const column *c, const int32_t pixels, const int taps, const int stride)
{
    const float *x = c->x, *w = c->w;
    float *y = c->y;
    int32_t rows, left, tap, i;
    for (rows = c->rows; rows > 0; rows--) {
        float sum[MOST_PIXELS];
        for (i = 0; i < pixels; i++)
            sum[i] = *c->start;
        for (left = c->lines; left > 0; left--, x += c->down / 4, w += taps) {
            for (tap = 0; tap < taps; tap++)
                for (i = 0; i < pixels; i++)
                    sum[i] += x[i * stride + tap] * w[tap];
        }
        for (i = 0; i < pixels; i++)
            y[i] = sum[i];
        x += c->next / 4, w += c->w_next / 4, y += c->y_row / 4;
    }
}

POETC_INLINE void gather_pairs(const column *c, const int32_t pairs, const int taps, const int more_first)
{
    const float *x = c->x, *w = c->w;
    float *y = c->y;
    int32_t rows, left, tap, i;
    for (rows = c->rows; rows > 0; rows--) {
        float sum[2 * MOST_PIXELS];
        for (i = 0; i < 2 * pairs; i++)
            sum[i] = *c->start;
        for (left = c->lines; left > 0; left--, x += c->down / 4, w -= 2 * taps) {
            for (tap = taps - 1; tap >= 0; tap--) {
                const int is_more = !(tap & 1); /* of the columns with more taps */
                const int32_t first = is_more ? (taps - 1 - tap) / 2 : (taps - 2 - tap) / 2 + more_first;
                for (i = 0; i < pairs; i++)
                    sum[2 * i + (is_more != more_first)] += x[first + i] * w[tap];
            }
        }
        for (i = 0; i < 2 * pairs - c->odd; i++)
            y[i] = sum[i];
        x += c->next / 4, w += c->w_next / 4, y += c->y_row / 4;
    }
}

#define DEFINE_BLOCKS(name, call)                                                                                      \
    POETC_APART void name(const column *c, int32_t n)                                                                  \
    {                                                                                                                  \
        if (n == MOST_PIXELS)                                                                                          \
            call(c, MOST_PIXELS, CONSTANTS);                                                                           \
        else                                                                                                           \
            call(c, n, CONSTANTS);                                                                                     \
    }
#define CONSTANTS 3, 1
DEFINE_BLOCKS(slide_nine, slide)
DEFINE_BLOCKS(gather_three_first, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 5, 1
DEFINE_BLOCKS(slide_five, slide)
DEFINE_BLOCKS(gather_five_first, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 3, 2
DEFINE_BLOCKS(slide_three_apart, slide)
#undef CONSTANTS
#define CONSTANTS 5, 2
DEFINE_BLOCKS(slide_five_apart, slide)
#undef CONSTANTS
#define CONSTANTS 3, 0
DEFINE_BLOCKS(gather_three_second, gather_pairs)
#undef CONSTANTS
#define CONSTANTS 5, 0
DEFINE_BLOCKS(gather_five_second, gather_pairs)
#endif

/* A result, or every other row of it, in blocks of about the same width, from left to right. The last one overlaps the one before, with
 * the same values. What it is made of lies where it did for all planes of a size. */
typedef struct {
    column c;
    void (*run)(const column *c, int32_t pixels);
    const float *x;
    int32_t y, w;          /* floats: where the first row of the result and the first weight are */
    int32_t total, pixels; /* or pairs, for each of which x and y move on by so many floats: */
    int32_t x_step, y_step;
    int odd;               /* the last pair is a pixel */
} column_plan;

static void set_blocks(column_plan *p, int32_t total)
{
    const int32_t blocks = (total + MOST_PIXELS - 1) / MOST_PIXELS;
    p->total = total, p->pixels = blocks == 1 ? total : (total + blocks - 1) / blocks;
}

static void run_plan(column_plan *p, float *y, const float *w)
{
    column *c = &p->c;
    const int32_t last = p->total - p->pixels;
    int32_t at = 0;
    y += p->y, c->w = w + p->w;
    for (c->odd = 0; at < last; at += p->pixels) {
        c->x = p->x + at * p->x_step, c->y = y + at * p->y_step;
        p->run(c, p->pixels);
    }
    c->x = p->x + last * p->x_step, c->y = y + last * p->y_step, c->odd = p->odd;
    p->run(c, p->pixels);
}

/* The weights of a filter in sequence: where they are, or copied to `w`. */
POETC_APART const float *weights_of(const filter *f, float *w)
{
    const int32_t taps = f->kernel_w;
    float *to = w;
    int32_t line, i;
    if (f->step == 1 && f->row_step == taps)
        return f->weight;
    if (f->step == -1 && f->row_step == -taps) {
        const float *from = f->weight + 1;
        POETC_UNROLL_9
        for (i = f->kernel_h * taps; i > 0; i--)
            *to++ = *--from;
        return w;
    }
    for (line = 0; line < f->kernel_h; line++)
        for (i = 0; i < taps; i++)
            *to++ = f->weight[line * f->row_step + i * f->step];
    return w;
}

/* `rows` rows of a result, if there are loops for the filter; returns whether there are. `stride_w`: of the strip's columns. */
static int plan_correlation(column_plan *p, const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    const int32_t taps = f->kernel_w, lines = f->kernel_h, row = 4 * f->s->row;
    const int nine = lines == 3 && taps == 3 && stride_h == 1 && f->down == 1; /* whose rows of taps follow one another */
    if (lines < 1) /* the loops go round at least once */
        return 0;
    if (f->across != 1 || f->s->phases != 1 || f->y_step != 1 || lines > MOST_TAPS || (taps != 3 && taps != 5))
        return 0;
    if (stride_w == 1 && taps == 3 && !nine)
        return 0;
    p->c.start = f->start, p->c.rows = rows, p->c.lines = lines, p->c.y_row = 4 * f->y_row;
    p->c.down = f->down * row, p->c.next = stride_h * row - lines * p->c.down, p->c.w_next = -4 * taps * lines;
    if (stride_w == 1)
        p->run = nine ? slide_nine : slide_five;
    else
        p->run = taps == 3 ? slide_three_apart : slide_five_apart;
    p->x = from, p->y = p->w = 0, p->x_step = stride_w, p->y_step = 1, p->odd = 0;
    set_blocks(p, f->width);
    return 1;
}

static int correlate_fast(const filter *f, const float *from, int32_t rows, int32_t stride_h, int32_t stride_w)
{
    float w[MOST_TAPS * MOST_TAPS];
    column_plan p;
    if (!plan_correlation(&p, f, from, rows, stride_h, stride_w))
        return 0;
    run_plan(&p, f->y, weights_of(f, w));
    return 1;
}

/* The gradient of the input under strides of two and a filter with an odd number of rows and three or five columns: every other row of
 * gx, of `lines` taps, the first of them on row `tap` of the filter, from the row of gy on that it reads. `y`: floats before the first of
 * the rows. */
static void plan_gather(column_plan *p, const filter *f, const float *g, int32_t lines, int32_t tap, int more_first, int32_t y, int32_t rows)
{
    const int32_t taps = f->kernel_w;
    p->c.start = f->start, p->c.rows = rows, p->c.lines = lines, p->c.y_row = 8 * f->width;
    p->c.down = 4 * f->s->row, p->c.next = p->c.down - lines * p->c.down, p->c.w_next = 8 * taps * lines;
    if (taps == 5)
        p->run = more_first ? gather_five_first : gather_five_second;
    else
        p->run = more_first ? gather_three_first : gather_three_second;
    p->x = g, p->y = y, p->w = tap * taps, p->x_step = 1, p->y_step = 2, p->odd = f->width & 1;
    set_blocks(p, (f->width + 1) / 2);
}

static void gather_rows(const filter *f, const float *g, int32_t lines, int32_t tap, int more_first, float *y, int32_t rows)
{
    column_plan p;
    if (rows > 0) {
        plan_gather(&p, f, g, lines, tap, more_first, 0, rows);
        run_plan(&p, y, f->weight);
    }
}

/* Sums of `taps` (three or five) taps side by side over a strip that is one long row, added to gw; of `lines` rows of the filter, `down`
 * floats apart in x. Four lanes. */
#if POETC_FPU_M
static const float no_sums[20];

/* Sums in s0, s4, ... to s0, s1, ...; what they are added to is brought to s24 and following. */
#define LANES_OF(a, b, c, d, to) "vadd.f32 s" #a ", s" #b "\n\tvadd.f32 s" #c ", s" #d "\n\tvadd.f32 s" #to ", s" #a ", s" #c "\n\t"
#define END_THREE                                                                                                      \
    LANES_OF(0, 1, 2, 3, 0) LANES_OF(4, 5, 6, 7, 1) LANES_OF(8, 9, 10, 11, 2)                                          \
    "vldmia %[gw], {s24-s26}\n\tvadd.f32 s0, s24, s0\n\tvadd.f32 s1, s25, s1\n\tvadd.f32 s2, s26, s2\n\t"                \
    "vstmia %[gw]!, {s0-s2}"
#define END_FIVE                                                                                                       \
    LANES_OF(0, 1, 2, 3, 0) LANES_OF(4, 5, 6, 7, 1) LANES_OF(8, 9, 10, 11, 2) LANES_OF(12, 13, 14, 15, 3)               \
    LANES_OF(16, 17, 18, 19, 4)                                                                                        \
    "vldmia %[gw], {s24-s28}\n\tvadd.f32 s0, s24, s0\n\tvadd.f32 s1, s25, s1\n\tvadd.f32 s2, s26, s2\n\t"                \
    "vadd.f32 s3, s27, s3\n\tvadd.f32 s4, s28, s4\n\tvstmia %[gw]!, {s0-s4}"
/* One tap, whose lanes are s`a` to s`d`, of four floats. */
#define PRODUCTS(a, b, c, d, e, f, g, h, i, j, k, l) MLA(a, e, i) MLA(b, f, j) MLA(c, g, k) MLA(d, h, l)
/* Three taps of s12 to s17 and s22 to s25, and of s16 to s21 and s26 to s29. */
#define FOUR_TIMES_THREE                                                                                               \
    PRODUCTS(0, 1, 2, 3, 12, 13, 14, 15, 22, 23, 24, 25) PRODUCTS(4, 5, 6, 7, 13, 14, 15, 16, 22, 23, 24, 25)          \
    PRODUCTS(8, 9, 10, 11, 14, 15, 16, 17, 22, 23, 24, 25)
#define FOUR_MORE                                                                                                      \
    PRODUCTS(0, 1, 2, 3, 16, 17, 18, 19, 26, 27, 28, 29) PRODUCTS(4, 5, 6, 7, 17, 18, 19, 20, 26, 27, 28, 29)          \
    PRODUCTS(8, 9, 10, 11, 18, 19, 20, 21, 26, 27, 28, 29)

POETC_APART void add_taps_of_row(const float *line, ptrdiff_t down, int32_t lines, const float *gradient, int32_t count, float *gw,
                                 int taps)
{
    for (; lines > 0; lines--, line += down) {
        const float *x = line, *gy = gradient;
        int32_t left = count;
        if (taps == 3)
            __asm__ volatile("vldmia %[none], {s0-s11}\n\t"
                             "lsrs %[left], #3\n\tbcc 2f\n\t"
                             "vldmia %[x], {s12-s17}\n\tvldmia %[gy]!, {s22-s25}\n\tadd %[x], #16\n\t" FOUR_TIMES_THREE
                             "2:\tcbz %[left], 3f\n"
                             "1:\tvldmia %[x], {s12-s21}\n\tvldmia %[gy]!, {s22-s29}\n\tadd %[x], #32\n\t"
                             FOUR_TIMES_THREE FOUR_MORE "subs %[left], #1\n\tbne 1b\n"
                             "3:\t" END_THREE
                             : [x] "+r"(x), [gy] "+r"(gy), [left] "+l"(left), [gw] "+r"(gw)
                             : [none] "r"(no_sums)
                             : SCRATCH);
        else
            __asm__ volatile("vldmia %[none], {s0-s19}\n"
                             "1:\tvldmia %[gy]!, {s20-s23}\n\tvldmia %[x], {s24-s31}\n\tadd %[x], #16\n\t"
                             PRODUCTS(0, 1, 2, 3, 24, 25, 26, 27, 20, 21, 22, 23)
                             PRODUCTS(4, 5, 6, 7, 25, 26, 27, 28, 20, 21, 22, 23)
                             PRODUCTS(8, 9, 10, 11, 26, 27, 28, 29, 20, 21, 22, 23)
                             PRODUCTS(12, 13, 14, 15, 27, 28, 29, 30, 20, 21, 22, 23)
                             PRODUCTS(16, 17, 18, 19, 28, 29, 30, 31, 20, 21, 22, 23)
                             "subs %[left], #4\n\tbne 1b\n\t" END_FIVE
                             : [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left), [gw] "+r"(gw)
                             : [none] "r"(no_sums)
                             : SCRATCH);
    }
}

#define SHORT_ROW 6 /* of gy, of which three taps are summed up without zeros at its end */

/* The same under a stride of two: `rows` rows of `width` floats of gy, a multiple of four or SHORT_ROW, and of x, `step` floats apart. */
POETC_APART void add_taps_apart(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient, int32_t rows,
                                int32_t width, float *gw, int taps)
{
    const ptrdiff_t next = 4 * (step - 2 * width);
    for (; lines > 0; lines--, line += down) {
        const float *x = line, *gy = gradient;
        int32_t left = rows, quads;
        if (taps == 3 && width == SHORT_ROW) { /* nothing is left of 32 registers */
            __asm__ volatile("vldmia %[none], {s0-s11}\n"
                             "1:\tvldmia %[x], {s12-s24}\n\tvldmia %[gy]!, {s25-s30}\n\tadd %[x], %[x], %[step]\n\t"
                             PRODUCTS(0, 1, 2, 3, 12, 14, 16, 18, 25, 26, 27, 28)
                             PRODUCTS(4, 5, 6, 7, 13, 15, 17, 19, 25, 26, 27, 28)
                             PRODUCTS(8, 9, 10, 11, 14, 16, 18, 20, 25, 26, 27, 28)
                             MLA(0, 20, 29) MLA(1, 22, 30) MLA(4, 21, 29) MLA(5, 23, 30) MLA(8, 22, 29) MLA(9, 24, 30)
                             "subs %[left], #1\n\tbne 1b\n\t" END_THREE
                             : [x] "+&r"(x), [gy] "+&r"(gy), [left] "+&r"(left), [gw] "+&r"(gw)
                             : [none] "r"(no_sums), [step] "r"(4 * step)
                             : SCRATCH);
            continue;
        }
#define ROWS_OF_QUADS(sums, body, end)                                                                                 \
    __asm__ volatile("vldmia %[none], {" sums "}\n"                                                                    \
                     "1:\tmov %[quads], %[width]\n"                                                                    \
                     "2:\tvldmia %[gy]!, {s20-s23}\n\t" body "subs %[quads], #4\n\tbne 2b\n\t"                         \
                     "add %[x], %[x], %[next]\n\tsubs %[left], #1\n\tbne 1b\n\t" end                                   \
                     : [x] "+r"(x), [gy] "+r"(gy), [left] "+r"(left), [gw] "+r"(gw), [quads] "=&r"(quads)              \
                     : [none] "r"(no_sums), [next] "r"(next), [width] "r"(width)                                       \
                     : SCRATCH)
        if (taps == 3)
            ROWS_OF_QUADS("s0-s11",
                          "vldmia %[x]!, {s12-s19}\n\tvldr s24, [%[x]]\n\t"
                          PRODUCTS(0, 1, 2, 3, 12, 14, 16, 18, 20, 21, 22, 23)
                          PRODUCTS(4, 5, 6, 7, 13, 15, 17, 19, 20, 21, 22, 23)
                          PRODUCTS(8, 9, 10, 11, 14, 16, 18, 24, 20, 21, 22, 23),
                          END_THREE);
        else /* s24 to s31, of which s24 to s26 become those beyond */
            ROWS_OF_QUADS("s0-s19",
                          "vldmia %[x]!, {s24-s31}\n\t"
                          PRODUCTS(0, 1, 2, 3, 24, 26, 28, 30, 20, 21, 22, 23)
                          PRODUCTS(4, 5, 6, 7, 25, 27, 29, 31, 20, 21, 22, 23)
                          MLA(8, 26, 20) MLA(9, 28, 21) MLA(10, 30, 22) MLA(12, 27, 20) MLA(13, 29, 21) MLA(14, 31, 22)
                          MLA(16, 28, 20) MLA(17, 30, 21) "vldmia %[x], {s24-s26}\n\t"
                          MLA(11, 24, 23) MLA(15, 25, 23) MLA(18, 24, 22) MLA(19, 26, 23),
                          END_FIVE);
#undef ROWS_OF_QUADS
    }
}

#else

POETC_INLINE void add_taps_in_c(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient, int32_t rows,
                                int32_t width, float *gw, const int taps, const int stride)
{
    for (; lines > 0; lines--, line += down) {
        float sum[MOST_TAPS][4] = {{0.0f}};
        const float *x = line, *gy = gradient;
        int32_t left, at, i, tap;
        for (left = rows; left > 0; left--, x += step, gy += width)
            for (at = 0; at < width; at += 4)
                for (tap = 0; tap < taps; tap++)
                    for (i = 0; i < 4; i++)
                        sum[tap][i] += x[(at + i) * stride + tap] * gy[at + i];
        for (tap = 0; tap < taps; tap++)
            *gw++ += (sum[tap][0] + sum[tap][1]) + (sum[tap][2] + sum[tap][3]);
    }
}

POETC_APART void add_taps_of_row(const float *line, ptrdiff_t down, int32_t lines, const float *gradient, int32_t count, float *gw,
                                 int taps)
{
    if (taps == 3)
        add_taps_in_c(line, down, lines, 0, gradient, 1, count, gw, 3, 1);
    else
        add_taps_in_c(line, down, lines, 0, gradient, 1, count, gw, 5, 1);
}

POETC_APART void add_taps_apart(const float *line, ptrdiff_t down, int32_t lines, ptrdiff_t step, const float *gradient, int32_t rows,
                                int32_t width, float *gw, int taps)
{
    if (taps == 3)
        add_taps_in_c(line, down, lines, step, gradient, rows, width, gw, 3, 2);
    else
        add_taps_in_c(line, down, lines, step, gradient, rows, width, gw, 5, 2);
}

#endif
#endif
