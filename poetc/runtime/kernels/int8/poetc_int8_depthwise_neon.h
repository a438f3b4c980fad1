/* Planes of depthwise convolutions in 8 bits with Neon: eight sums of a line at a time.
 *
 * Layout: as in int8_depthwise.c, but the taps lie behind a packed plane, so that numbers behind a line may be read.
 * Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#ifndef POETC_INT8_DEPTHWISE_NEON_H
#define POETC_INT8_DEPTHWISE_NEON_H

#include "int8/poetc_int8_product.h"

/* Numbers beyond the first eight of a width below 8, of which a vector with a stride of two reads at most so many. */
#define NEON_TAPS 10

/* Eight sums, in two vectors. */
typedef struct {
    int32x4_t low, high;
} eight;

static inline eight eight_of(int32x4_t start)
{
    const eight s = {start, start};
    return s;
}

/* Adds the products of eight numbers and tap `lane` of eight. */
#define ADD_TAP(s, x, taps, lane)                                                                                      \
    ((s).low = vmlal_laneq_s16((s).low, vget_low_s16(x), taps, lane),                                                  \
     (s).high = vmlal_high_laneq_s16((s).high, x, taps, lane))

/* Three taps of a row: x holds 16 numbers of it. */
#define ADD_ROW(s, x0, x1, x2, taps, lane)                                                                             \
    (ADD_TAP(s, x0, taps, lane), ADD_TAP(s, x1, taps, (lane) + 1), ADD_TAP(s, x2, taps, (lane) + 2))

/* Stores eight sums; behind `end` none. */
static inline void store_eight(int32_t *to, const int32_t *end, eight s)
{
    if (end - to >= 8) {
        poetc_store_sums(to, (poetc_sums)s.low);
        poetc_store_sums(to + 4, (poetc_sums)s.high);
    } else {
        int32_t i, part[8];
        poetc_store_sums(part, (poetc_sums)s.low);
        poetc_store_sums(part + 4, (poetc_sums)s.high);
        for (i = 0; i < (int32_t)(end - to); i++)
            to[i] = part[i];
    }
}

/* Adds a line of 3 x 3 taps, a number apart, to two lines of sums. The first one reads the taps `lane` of w, the second
 * one `lane2` of w2. */
#define ADD_LINE(x, first, w, lane, second, w2, lane2)                                                                 \
    do {                                                                                                               \
        const int16x8x2_t y0 = vld1q_s16_x2(x);                                                                        \
        const int16x8_t y1 = vextq_s16(y0.val[0], y0.val[1], 1), y2 = vextq_s16(y0.val[0], y0.val[1], 2);              \
        ADD_ROW(first, y0.val[0], y1, y2, w, lane);                                                                    \
        ADD_ROW(second, y0.val[0], y1, y2, w2, lane2);                                                                 \
    } while (0)

/* A plane of 3 x 3 taps, a number apart: two lines at a time, the last two once more if one is left. */
static void sums_of_nines(const int16_t *x, int32_t line, const int16_t *w, int32_t height, int32_t width,
                          int32_t *sums)
{
    const int32x4_t start = vdupq_n_s32(sums[0]);
    const int32_t *const end = sums + height * width;
    const int16x8_t none = vdupq_n_s16(0), taps = vld1q_s16(w);
    const int16x8_t last = vcombine_s16(vld1_s16(w + 8), vget_low_s16(none));
    int32_t i, j;
    for (i = 0;; i = at_most(i + 2, height - 2)) {
        int32_t *to = sums + i * width;
        for (j = 0;; j = at_most(j + 8, width - 8)) {
            const int16_t *from = x + i * line + j;
            eight first = eight_of(start), second = first, unused = first;
            ADD_LINE(from, first, taps, 0, unused, none, 0);
            ADD_LINE(from + line, first, taps, 4, second, taps, 0);
            ADD_LINE(from + 2 * line, first, last, 0, second, taps, 4);
            ADD_LINE(from + 3 * line, second, last, 0, unused, none, 0);
            store_eight(to + j, end, first);
            store_eight(to + width + j, end, second);
            if (j + 8 >= width)
                break;
        }
        if (i + 2 >= height)
            break;
    }
}

/* A line of 3 x 3 taps, two numbers apart. */
static inline eight line_of_nine_by_two(const int16_t *x, int32_t line, int16x8_t w, int16x8_t w2, int32x4_t start)
{
    eight s = eight_of(start);
    int16x8x2_t y = vld2q_s16(x), next = vld2q_s16(x + 2);
    ADD_ROW(s, y.val[0], y.val[1], next.val[0], w, 0);
    y = vld2q_s16(x + line), next = vld2q_s16(x + line + 2);
    ADD_ROW(s, y.val[0], y.val[1], next.val[0], w, 4);
    y = vld2q_s16(x + 2 * (size_t)line), next = vld2q_s16(x + 2 * (size_t)line + 2);
    ADD_ROW(s, y.val[0], y.val[1], next.val[0], w2, 0);
    return s;
}

/* A line of any taps, one or two numbers apart. */
static inline eight line_of_any(const int16_t *x, int32_t line, const int16_t *w, int32_t kernel_h, int32_t kernel_w,
                                int32_t stride, int32x4_t start)
{
    eight s = eight_of(start);
    int32_t a, b;
    for (a = 0; a < kernel_h; a++, x += line, w += round_up(kernel_w, 2))
        for (b = 0; b < kernel_w; b++) {
            const int16x8_t y = stride == 1 ? vld1q_s16(x + b) : vld2q_s16(x + b).val[0];
            s.low = vmlal_n_s16(s.low, vget_low_s16(y), w[b]);
            s.high = vmlal_high_n_s16(s.high, y, w[b]);
        }
    return s;
}

/* Whether numbers behind a line suffice for vectors of windows `stride` apart. */
static inline int has_eights(int32_t kernel_h, int32_t kernel_w, int32_t stride, int32_t width)
{
    return stride == 1 || (stride == 2 && (width >= 8 || kernel_h * round_up(kernel_w, 2) >= NEON_TAPS));
}

/* The sums of a plane, all of which start from the first. Vectors of lines below eight sums reach into the next lines,
 * which are stored later; the last vector of a longer one begins earlier. */
static void sums_of_plane(const int16_t *x, int32_t line, const int16_t *w, int32_t kernel_h, int32_t kernel_w,
                          int32_t stride_h, int32_t stride_w, int32_t height, int32_t width, int32_t *sums)
{
    const int32x4_t start = vdupq_n_s32(sums[0]);
    const int32_t is_nine = kernel_h == 3 && kernel_w == 3, *const end = sums + height * width;
    const int16x8_t taps = is_nine ? vld1q_s16(w) : vdupq_n_s16(0);
    const int16x8_t last = is_nine ? vcombine_s16(vld1_s16(w + 8), vdup_n_s16(0)) : taps;
    int32_t i, j;
    if (is_nine && stride_h == 1 && stride_w == 1 && height > 1) {
        sums_of_nines(x, line, w, height, width, sums);
        return;
    }
    for (i = 0; i < height; i++, x += stride_h * line, sums += width)
        for (j = 0;; j = at_most(j + 8, width - 8)) {
            const int16_t *from = x + j * stride_w;
            if (is_nine && stride_w == 2)
                store_eight(sums + j, end, line_of_nine_by_two(from, line, taps, last, start));
            else if (stride_w == 1)
                store_eight(sums + j, end, line_of_any(from, line, w, kernel_h, kernel_w, 1, start));
            else
                store_eight(sums + j, end, line_of_any(from, line, w, kernel_h, kernel_w, 2, start));
            if (j + 8 >= width)
                break;
        }
}

/* The products of `count` errors with the numbers 0, 1 and 2 of three lines behind their own; `count` is a multiple of
 * 4. */
static void add_nine_taps(const int16_t *errors, const int16_t *x, int32_t line, int32_t count, int32_t *sums)
{
    const int32x4_t zero = vdupq_n_s32(0);
    int32x4_t s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero, s7 = zero, s8 = zero;
    const int16_t *x1 = x + line, *x2 = x1 + line;
    for (; count > 0; count -= 8, errors += 8, x += 8, x1 += 8, x2 += 8) {
        const int16x8_t e = count >= 8 ? vld1q_s16(errors) : vcombine_s16(vld1_s16(errors), vdup_n_s16(0));
        int16x8x2_t y = vld1q_s16_x2(x);
        int16x8_t y1 = vextq_s16(y.val[0], y.val[1], 1), y2 = vextq_s16(y.val[0], y.val[1], 2);
        MULTIPLY_ADD_SHORTS(s0, e, y.val[0]);
        MULTIPLY_ADD_SHORTS(s1, e, y1);
        MULTIPLY_ADD_SHORTS(s2, e, y2);
        y = vld1q_s16_x2(x1);
        y1 = vextq_s16(y.val[0], y.val[1], 1), y2 = vextq_s16(y.val[0], y.val[1], 2);
        MULTIPLY_ADD_SHORTS(s3, e, y.val[0]);
        MULTIPLY_ADD_SHORTS(s4, e, y1);
        MULTIPLY_ADD_SHORTS(s5, e, y2);
        y = vld1q_s16_x2(x2);
        y1 = vextq_s16(y.val[0], y.val[1], 1), y2 = vextq_s16(y.val[0], y.val[1], 2);
        MULTIPLY_ADD_SHORTS(s6, e, y.val[0]);
        MULTIPLY_ADD_SHORTS(s7, e, y1);
        MULTIPLY_ADD_SHORTS(s8, e, y2);
    }
    sums[0] += total(s0), sums[1] += total(s1), sums[2] += total(s2);
    sums[3] += total(s3), sums[4] += total(s4), sums[5] += total(s5);
    sums[6] += total(s6), sums[7] += total(s7), sums[8] += total(s8);
}

/* The products of `count` errors, a multiple of 4, with as many numbers. */
static int32_t sum_of_tap(const int16_t *errors, const int16_t *x, int32_t count)
{
    int32x4_t s = vdupq_n_s32(0);
    for (; count >= 8; count -= 8, errors += 8, x += 8)
        MULTIPLY_ADD_SHORTS(s, vld1q_s16(errors), vld1q_s16(x));
    if (count)
        s = vmlal_s16(s, vld1_s16(errors), vld1_s16(x));
    return total(s);
}

/* --- planes ------------------------------------------------------------------------------------------------------- */

static void fill_shorts(int16_t *to, int32_t count, int32_t value)
{
    const int16x8_t v = vdupq_n_s16((int16_t)value);
    for (; count >= 8; count -= 8, to += 8)
        vst1q_s16(to, v);
    for (; count > 0; count--)
        *to++ = (int16_t)value;
}

/* `rows` rows of a plane: `count` numbers that lie beside each other, a row `step` bytes after the one before, and
 * `line` numbers. The last numbers of a row are stored with pads behind them where the bytes until `end` and the
 * numbers until `room` allow it. The next row overwrites them. */
static void widen_rows(const int8_t *x, int32_t step, const int8_t *end, int32_t rows, int32_t count, int16_t *to,
                       int32_t line, const int16_t *room, int32_t pad)
{
    static const int16_t places[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32_t whole = count / 8 * 8, rest = count % 8;
    const uint16x8_t is_number = vcltq_s16(vld1q_s16(places), vdupq_n_s16((int16_t)rest));
    const int16x8_t pads = vdupq_n_s16((int16_t)pad);
    int32_t j;
    for (; rows > 0; rows--, x += step, to += line) {
        for (j = 0; j < whole; j += 8)
            vst1q_s16(to + j, vmovl_s8(vld1_s8(x + j)));
        if (rest && end - x >= whole + 8 && room - to >= whole + 8)
            vst1q_s16(to + j, vbslq_s16(is_number, vmovl_s8(vld1_s8(x + j)), pads));
        else
            for (; j < count; j++)
                to[j] = x[j];
    }
}

#endif
