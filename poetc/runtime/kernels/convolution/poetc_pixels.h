/* Packing for the forward convolution: the pixels under the taps of each window, gathered into panels of poetc_gemm.h.
 *
 * Layout: a row of a panel is a channel and a tap, a column is a pixel of the output. Taps beside the image are zeros.
 * Order of sums: nothing is added here. */
#ifndef POETC_PIXELS_H
#define POETC_PIXELS_H

#include "convolution/poetc_convolution_packed.h"

#if defined(POETC_MASKED)
#include <immintrin.h>

/* Bit i becomes bit 2 i. */
static inline __mmask16 spread_bits(uint32_t mask)
{
    mask = (mask | mask << 4) & 0x0f0f, mask = (mask | mask << 2) & 0x3333;
    return (__mmask16)((mask | mask << 1) & 0x5555);
}

/* How sixteen pixels of the output find theirs: */
enum {
    SIDE_BY_SIDE, /* the output shares the image's rows: one load */
    GATHERED,     /* anywhere */
    EVERY_SECOND, /* twice eight, two columns apart each: two loads */
};

/* Sixteen pixels at a time: which taps lie on the image is found out once for all channels. */
POETC_INLINE void pack_sixteen(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                               int32_t depth, int32_t column, int32_t columns, const int how)
{
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, image_floats = c->channels * plane;
    int32_t at, lane, kh, kw, tap, k;
    int32_t offset[MASKED_TAPS];
    __mmask16 mask[MASKED_TAPS], low[MASKED_TAPS], high[MASKED_TAPS];
    for (kh = 0, tap = 0; kh < c->kernel_h; kh++)
        for (kw = 0; kw < c->kernel_w; kw++, tap++)
            offset[tap] = (kh * c->dilation_h - c->pad_top) * c->width + kw * c->dilation_w - c->pad_left;
    for (at = 0; at < columns || at % COLUMNS; at += 16) {
        const int32_t begin = at < columns ? column + at : 0;
        const float *source = x + first / taps * plane;
        float *to = poetc_gemm_panel(space, at, depth) + at % COLUMNS;
        int32_t row[16], across[16], window[16]; /* window: where it lies, of the images, without its padding */
        int32_t image = begin / pixels, oh = (begin - image * pixels) / c->output_width;
        int32_t ow = begin - image * pixels - oh * c->output_width;
        if (how == SIDE_BY_SIDE)
            source += image * image_floats + begin - image * pixels;
        for (lane = 0; lane < 16; lane++) {
            row[lane] = at + lane < columns ? oh * c->stride_h - c->pad_top : INT32_MIN / 2;
            across[lane] = ow * c->stride_w - c->pad_left;
            window[lane] = (int32_t)(image * image_floats) + oh * c->stride_h * c->width + ow * c->stride_w;
            if (++ow == c->output_width) {
                ow = 0;
                if (++oh == c->output_height)
                    oh = 0, image++;
            }
        }
        for (kh = 0, tap = 0; kh < c->kernel_h; kh++) {
            const __m512i down = _mm512_add_epi32(_mm512_loadu_si512(row), _mm512_set1_epi32(kh * c->dilation_h));
            const __mmask16 inside = _mm512_cmplt_epu32_mask(down, _mm512_set1_epi32(c->height));
            for (kw = 0; kw < c->kernel_w; kw++, tap++) {
                const __m512i right =
                    _mm512_add_epi32(_mm512_loadu_si512(across), _mm512_set1_epi32(kw * c->dilation_w));
                mask[tap] = _mm512_mask_cmplt_epu32_mask(inside, right, _mm512_set1_epi32(c->width));
                if (how == EVERY_SECOND)
                    low[tap] = spread_bits(mask[tap] & 0xffu), high[tap] = spread_bits((uint32_t)mask[tap] >> 8);
            }
        }
        for (k = depth, tap = first % taps; k > 0; tap = 0, source += plane) {
            for (; tap < taps && k > 0; tap++, k--, to += COLUMNS) {
                const float *from = source + offset[tap];
                if (how == SIDE_BY_SIDE)
                    _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(mask[tap], from));
                else if (how == EVERY_SECOND)
                    _mm512_storeu_ps(to,
                                     _mm512_permutex2var_ps(_mm512_maskz_loadu_ps(low[tap], from + window[0]), evens,
                                                            _mm512_maskz_loadu_ps(high[tap], from + window[8])));
                else
                    _mm512_storeu_ps(to, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask[tap],
                                                                  _mm512_loadu_si512(window), from, 4));
            }
        }
    }
}

POETC_APART void pack_masked(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns)
{
    pack_sixteen(space, c, x, first, depth, column, columns, SIDE_BY_SIDE);
}

POETC_APART void pack_gathered(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                               int32_t depth, int32_t column, int32_t columns)
{
    pack_sixteen(space, c, x, first, depth, column, columns, GATHERED);
}

POETC_APART void pack_halves(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns)
{
    pack_sixteen(space, c, x, first, depth, column, columns, EVERY_SECOND);
}

/* Share the columns that are packed with masks: that costs less than unaligned loads. */
#define MANY_OUTPUTS(k) ((k) <= 64 ? 32 : 64)

/* No sixteen pixels of a block are of two images. */
static inline int packs_masked(const convolution *c)
{
    return is_shifted(c) && c->kernel_h * c->kernel_w <= MASKED_TAPS &&
           (c->batch == 1 || c->output_height * c->output_width % 16 == 0);
}

/* Rows of the output are no runs of the image, or short ones. */
static inline int packs_gathered(const convolution *c)
{
    const int64_t floats = (int64_t)c->batch * c->channels * c->height * c->width;
    return (c->stride_w > 1 || c->output_width < 16) && c->kernel_h * c->kernel_w <= MASKED_TAPS && floats < INT32_MAX;
}

/* Of those, the pixels come in eights of one row. */
static inline int packs_halves(const convolution *c)
{
    return c->stride_w == 2 && c->output_width % 8 == 0;
}

#else
#define MANY_OUTPUTS(k) 0
#define packs_masked(c) 0
#define pack_masked(space, c, x, first, depth, column, columns) ((void)0)
#define packs_gathered(c) 0
#define packs_halves(c) 0
#define pack_halves(space, c, x, first, depth, column, columns) ((void)0)
#define pack_gathered(space, c, x, first, depth, column, columns) ((void)0)
#endif

/* Conv's b: rows (c, kh, kw) [first, first + depth), columns (n, oh, ow) [column, column + columns). `x` is the image
 * of the group's first channel. */
#if POETC_GEMM_COLUMNS == 4

/* Four pixels: where their windows begin. */
typedef struct {
    const float *image[4];
    int32_t top[4], left[4];
    int together; /* side by side: a tap reads four floats in a row, and the first pixel tells the others */
    int inside;   /* all windows lie on the image */
} four_pixels;

static void find_pixels(four_pixels *f, const convolution *c, const float *x, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width;
    const int32_t lowest = c->height - (c->kernel_h - 1) * c->dilation_h;
    const int32_t rightmost = c->width - (c->kernel_w - 1) * c->dilation_w;
    int32_t lane, image = column / pixels, oh = (column - image * pixels) / c->output_width;
    int32_t ow = column - image * pixels - oh * c->output_width;
    f->together = c->stride_w == 1 && columns >= 4 && ow + 4 <= c->output_width;
    f->inside = columns >= 4;
    if (f->together) {
        f->image[0] = x + image * (ptrdiff_t)c->channels * c->height * c->width;
        f->top[0] = oh * c->stride_h - c->pad_top, f->left[0] = ow - c->pad_left;
        f->inside = f->top[0] >= 0 && f->top[0] < lowest && f->left[0] >= 0 && f->left[0] + 3 < rightmost;
        return;
    }
#if defined(POETC_HELIUM)
    if (columns >= 4 && ow + 4 <= c->output_width) { /* in one row */
        const int32_t left = ow * c->stride_w - c->pad_left, top = oh * c->stride_h - c->pad_top;
        f->image[0] = x + image * (ptrdiff_t)c->channels * c->height * c->width;
        f->image[1] = f->image[2] = f->image[3] = f->image[0];
        vst1q_s32(f->top, vdupq_n_s32(top));
        vst1q_s32(f->left, vaddq_n_s32(vmulq_n_s32((int32x4_t)vidupq_n_u32(0, 1), c->stride_w), left));
        f->inside = top >= 0 && top < lowest && left >= 0 && left + 3 * c->stride_w < rightmost;
        return;
    }
#endif
    for (lane = 0; lane < 4; lane++, ow++) {
        if (ow == c->output_width) {
            ow = 0;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
        f->image[lane] = x + image * (ptrdiff_t)c->channels * c->height * c->width;
        f->top[lane] = oh * c->stride_h - c->pad_top, f->left[lane] = ow * c->stride_w - c->pad_left;
        if (lane >= columns) /* beyond the last column: above the image are only zeros */
            f->top[lane] = -(1 << 24), f->image[lane] = x;
        f->inside &= f->top[lane] >= 0 && f->top[lane] < lowest && f->left[lane] >= 0 && f->left[lane] < rightmost;
    }
}

/* `left` taps from (channel, kh, kw) on. */
typedef struct {
    const convolution *c;
    ptrdiff_t channel; /* floats: its plane */
    int32_t kh, kw, left;
} tap_run;

/* The taps of a row that are left: how many; the run is moved to the next row. */
static inline int32_t next_row(tap_run *t)
{
    const int32_t count = poetc_min(t->c->kernel_w - t->kw, t->left);
    t->left -= count, t->kw = 0;
    if (++t->kh == t->c->kernel_h)
        t->kh = 0, t->channel += (ptrdiff_t)t->c->height * t->c->width;
    return count;
}

/* Four pixels side by side, all windows on the image: the usual case. */
POETC_APART void pack_inside(const four_pixels *f, tap_run t, float *to)
{
    const int32_t step = t.c->dilation_w, line = t.c->dilation_h * t.c->width, width = t.c->kernel_w;
    const ptrdiff_t jump = (ptrdiff_t)t.c->height * t.c->width - (ptrdiff_t)t.c->kernel_h * line;
    const float *row = f->image[0] + t.channel + (f->top[0] + t.kh * t.c->dilation_h) * t.c->width + f->left[0];
    const float *at = row + t.kw * step;
    int32_t rows = t.c->kernel_h - t.kh, count = width - t.kw, left = t.left;
    while (left > 0) {
        if (count > left)
            count = left;
        left -= count;
#if defined(POETC_HELIUM)
        if (step == 1) {
            /* clang-format off */
            __asm__ volatile("dls lr, %[n]\n1:\tvldrw.u32 q0, [%[at]], #4\n\tvstrw.32 q0, [%[to]], #16\n\tle lr, 1b"
                             : [at] "+r"(at), [to] "+r"(to)
                             : [n] "r"(count)
                             : "lr", "q0", "memory");
            /* clang-format on */
            count = 0;
        }
#endif
        for (; count > 0; count--, at += step) {
            const float *source = at;
            POETC_COPY_FOUR(to, source);
        }
        row += line, count = width;
        if (--rows == 0)
            rows = t.c->kernel_h, row += jump;
        at = row;
    }
}

/* Four pixels side by side, anywhere. */
POETC_APART void pack_clipped(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    const int32_t step = c->dilation_w, most = c->width - 4;
#if defined(POETC_HELIUM)
    const uint32x4_t widths = vdupq_n_u32((uint32_t)c->width);
#endif
    while (t.left > 0) {
        const int32_t ih = f->top[0] + t.kh * c->dilation_h;
        const float *from = f->image[0] + t.channel + ih * c->width;
        int32_t position = f->left[0] + t.kw * step, count = next_row(&t);
        if ((uint32_t)ih >= (uint32_t)c->height) {
            for (count *= 4; count > 0; count--)
                *to++ = 0.0f;
        }
#if defined(POETC_HELIUM)
        if (count > 0) { /* pixels beside the image are not read and become zero */
            uint32x4_t columns = vaddq_n_u32(vidupq_n_u32(0, 1), (uint32_t)position);
            from += position;
            /* clang-format off */
            __asm__ volatile("dls lr, %[n]\n"
                             "1:\tvcmp.u32 hi, %q[widths], %q[columns]\n\tvpst\n\tvldrwt.u32 q0, [%[from]]\n\t"
                             "vstrw.32 q0, [%[to]], #16\n\tvadd.i32 %q[columns], %q[columns], %[step]\n\t"
                             "add %[from], %[from], %[step], lsl #2\n\tle lr, 1b"
                             : [from] "+r"(from), [to] "+r"(to), [columns] "+w"(columns)
                             : [n] "r"(count), [widths] "w"(widths), [step] "r"(step)
                             : "lr", "q0", "memory");
            /* clang-format on */
            count = 0;
        }
#endif
        for (; count > 0; count--, position += step) {
            const float *source = from + position;
            if (position >= 0 && position <= most) {
                POETC_COPY_FOUR(to, source);
            } else {
                const uint32_t width = (uint32_t)c->width, first = (uint32_t)position;
                to[0] = first < width ? source[0] : 0.0f;
                to[1] = first + 1u < width ? source[1] : 0.0f;
                to[2] = first + 2u < width ? source[2] : 0.0f;
                to[3] = first + 3u < width ? source[3] : 0.0f;
                to += 4;
            }
        }
    }
}

#if defined(POETC_HELIUM)
/* Four pixels anywhere: gathered. */
POETC_APART void pack_scattered(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    const int32_t step = 4 * c->dilation_w, line = 4 * c->dilation_h * c->width, lines = c->kernel_h;
    const uint32x4_t tops = vld1q_u32((const uint32_t *)f->top), lefts = vld1q_u32((const uint32_t *)f->left);
    uint32x4_t windows;
    const uint32x4_t heights = vdupq_n_u32((uint32_t)c->height), widths = vdupq_n_u32((uint32_t)c->width);
    __builtin_memcpy(&windows, f->image, sizeof windows); /* addresses as lanes */
    windows = vaddq_u32(windows, vshlq_n_u32(vaddq_u32(vmulq_n_u32(tops, (uint32_t)c->width), lefts), 2));
    if (f->inside && step == 4 && c->kernel_w == 3 && t.kh == 0 && t.kw == 0 && t.left % (3 * lines) == 0 &&
        t.left > 0) {
        uint32x4_t at = vaddq_n_u32(windows, 4u * (uint32_t)t.channel);
        int32_t left = t.left / (3 * lines); /* whole filters */
        /* clang-format off */
        __asm__ volatile("1:\tdls lr, %[lines]\n"
                         "2:\tvldrw.u32 q0, [%q[at]]\n\tvldrw.u32 q1, [%q[at], #4]\n\tvldrw.u32 q2, [%q[at], #8]\n\t"
                         "vadd.i32 %q[at], %q[at], %[line]\n\tvstrw.32 q0, [%[to]], #16\n\tvstrw.32 q1, [%[to]], #16\n\t"
                         "vstrw.32 q2, [%[to]], #16\n\tle lr, 2b\n\t"
                         "subs %[left], #1\n\tvadd.i32 %q[at], %q[at], %[jump]\n\tbne 1b"
                         : [at] "+w"(at), [to] "+r"(to), [left] "+r"(left)
                         : [lines] "r"(lines), [line] "r"(line), [jump] "r"(4 * c->height * c->width - lines * line)
                         : "lr", "cc", "q0", "q1", "q2", "memory");
        /* clang-format on */
        return;
    }
    while (t.left > 0) {
        const uint32x4_t rows = vaddq_n_u32(tops, (uint32_t)(t.kh * c->dilation_h));
        uint32x4_t columns = vaddq_n_u32(lefts, (uint32_t)(t.kw * c->dilation_w));
        uint32x4_t at = vaddq_n_u32(windows, (uint32_t)(4 * t.channel + t.kh * line + t.kw * step));
        const int32_t count = next_row(&t);
        if (f->inside) {
            /* clang-format off */
            __asm__ volatile("dls lr, %[n]\n1:\tvldrw.u32 q0, [%q[at]]\n\tvadd.i32 %q[at], %q[at], %[step]\n\t"
                             "vstrw.32 q0, [%[to]], #16\n\tle lr, 1b"
                             : [at] "+w"(at), [to] "+r"(to)
                             : [n] "r"(count), [step] "r"(step)
                             : "lr", "q0", "memory");
            /* clang-format on */
            continue;
        }
        /* Pixels beside the image are not read and become zero: rows beside it have no columns on it. */
        columns = vpselq_u32(columns, vdupq_n_u32(1u << 30), vcmphiq_u32(heights, rows));
        /* clang-format off */
        __asm__ volatile("dls lr, %[n]\n"
                         "1:\tvcmp.u32 hi, %q[widths], %q[columns]\n\tvpst\n\tvldrwt.u32 q0, [%q[at]]\n\t"
                         "vstrw.32 q0, [%[to]], #16\n\tvadd.i32 %q[columns], %q[columns], %[across]\n\t"
                         "vadd.i32 %q[at], %q[at], %[step]\n\tle lr, 1b"
                         : [at] "+w"(at), [to] "+r"(to), [columns] "+w"(columns)
                         : [n] "r"(count), [widths] "w"(widths), [step] "r"(step), [across] "r"(c->dilation_w)
                         : "lr", "q0", "memory");
        /* clang-format on */
    }
}
#else
/* Four pixels apart, all windows on the image. */
POETC_APART void pack_apart(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    const float *p0 = f->image[0] + f->top[0] * c->width + f->left[0];
    const float *p1 = f->image[1] + f->top[1] * c->width + f->left[1];
    const float *p2 = f->image[2] + f->top[2] * c->width + f->left[2];
    const float *p3 = f->image[3] + f->top[3] * c->width + f->left[3];
    const int32_t step = c->dilation_w;
    while (t.left > 0) {
        ptrdiff_t at = t.channel + t.kh * c->dilation_h * c->width + t.kw * step;
        int32_t count = next_row(&t);
        for (; count > 0; count--, at += step, to += 4)
            to[0] = p0[at], to[1] = p1[at], to[2] = p2[at], to[3] = p3[at];
    }
}

/* Four pixels anywhere. */
POETC_APART void pack_any(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    while (t.left > 0) {
        const int32_t kh = t.kh;
        const ptrdiff_t channel = t.channel;
        int32_t across = t.kw * c->dilation_w, count = next_row(&t), lane;
        for (; count > 0; count--, across += c->dilation_w) {
            for (lane = 0; lane < 4; lane++) {
                const int32_t ih = f->top[lane] + kh * c->dilation_h, iw = f->left[lane] + across;
                const int there = (uint32_t)ih < (uint32_t)c->height && (uint32_t)iw < (uint32_t)c->width;
                *to++ = there ? f->image[lane][channel + ih * c->width + iw] : 0.0f;
            }
        }
    }
}
#endif

POETC_APART void pack_pixels(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns)
{
    const int32_t taps = c->kernel_h * c->kernel_w, start = first % taps;
    float *to = space->panels;
    int32_t at;
    tap_run t;
    t.c = c, t.channel = first / taps * ((ptrdiff_t)c->height * c->width);
    t.kh = start / c->kernel_w, t.kw = start - t.kh * c->kernel_w, t.left = depth;
    for (at = 0; at < columns; at += 4, to += 4 * depth) {
        four_pixels f;
        find_pixels(&f, c, x, column + at, columns - at);
        if (f.together && f.inside)
            pack_inside(&f, t, to);
        else if (f.together)
            pack_clipped(&f, t, to);
#if defined(POETC_HELIUM)
        else
            pack_scattered(&f, t, to);
#else
        else if (f.inside)
            pack_apart(&f, t, to);
        else
            pack_any(&f, t, to);
#endif
    }
}

#else

/* Facts that hold for all channels are found out once: tap by tap, output row by output row. */
POETC_APART void pack_pixels(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    int32_t tap, kh = 0, kw = 0, channel, at;
    for (tap = 0; tap < taps; tap++, kw++) {
        const int32_t from = first <= tap ? 0 : (first - tap + taps - 1) / taps;
        const int32_t to = first + depth <= tap ? 0 : (first + depth - tap + taps - 1) / taps;
        int32_t image = column / pixels, oh = (column - image * pixels) / c->output_width;
        int32_t ow = column - image * pixels - oh * c->output_width, low, high, run;
        if (kw == c->kernel_w)
            kw = 0, kh++;
        output_range(kw * c->dilation_w - c->pad_left, c->stride_w, c->width, c->output_width, &low, &high);
        for (at = 0; from < to && at < columns; at += run) { /* a part of one output row */
            const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
            const int inside = ih >= 0 && ih < c->height;
            int32_t begin, end, k = from * taps + tap - first;
            const float *source;
            run = poetc_min(c->output_width - ow, columns - at);
            begin = inside ? clip(low - ow, 0, run) : run;
            end = clip(high - ow, begin, run);
            source = x + (image * (ptrdiff_t)c->channels + from) * plane;
            if (end > begin)
                source += (ptrdiff_t)ih * c->width + (ow + begin) * c->stride_w + kw * c->dilation_w - c->pad_left;
            for (channel = from; channel < to; channel++, k += taps, source += plane) {
                if (begin > 0)
                    poetc_gemm_put(space, depth, k, at, NULL, 1, begin);
                poetc_gemm_put(space, depth, k, at + begin, source, c->stride_w, end - begin);
                if (end < run)
                    poetc_gemm_put(space, depth, k, at + end, NULL, 1, run - end);
            }
            ow = 0;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
    }
    poetc_gemm_put_end(space, depth, columns);
}

#endif

#endif
