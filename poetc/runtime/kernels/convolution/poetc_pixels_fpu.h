/* Windows of three columns for the forward convolution, on Cortex-M's FPU: six floats of a row are three taps of four
 * pixels.
 *
 * Layout: a row of a panel is a channel and a tap, a column is one of four pixels side by side.
 * Order of sums: nothing is added here.
 *
 * The file belongs to poetc_pixels.h, which includes it. */
#ifndef POETC_PIXELS_FPU_H
#define POETC_PIXELS_FPU_H

/* Whether the taps of a row are six floats, of which the image has all but the first and the last, or more. */
static inline int has_threes(const four_pixels *f, const convolution *c)
{
    return f->together && c->kernel_w == 3 && c->dilation_w == 1 && f->left[0] >= -1 && f->left[0] + 5 <= c->width;
}

/* `lines` rows of taps from row `kh` on, of each of `channels` channels from the plane at `plane` on; the end in `to`.
 */
POETC_APART float *put_threes(const four_pixels *f, const convolution *c, const float *plane, int32_t kh, int32_t lines,
                              int32_t channels, float *to)
{
    const int32_t top = f->top[0] + kh * c->dilation_h, left = f->left[0], right = left + 5 - c->width;
    float *const end = to + 12 * lines * channels;
    int32_t low = 0, high = lines, n, line, jump, skip;
    while (low < high && top + low * c->dilation_h < 0)
        low++;
    while (high > low && top + (high - 1) * c->dilation_h >= c->height)
        high--;
    if (high - low < lines)
        for (n = 0; to + n < end; n++)
            to[n] = 0.0f;
    if (high == low)
        return end;
    lines = high - low, line = c->dilation_h * c->width;
    jump = 4 * (c->height * c->width - lines * line), skip = (int32_t)(end - to) / channels * 4 - 48 * lines;
    plane += (top + low * c->dilation_h) * c->width + (left < 0 ? 0 : left), to += 12 * low, line *= 4;
    /* clang-format off */
#define THREES(list)                                                                                                   \
    __asm__ volatile("movs %[n], #0\n\tvmov s16, %[n]\n\tvmov s21, %[n]\n"                                             \
                     "1:\tmov %[n], %[lines]\n"                                                                        \
                     "2:\tvldmia %[from], {" list "}\n\tadd %[from], %[from], %[line]\n\tvstmia %[to]!, {s16-s19}\n\t"  \
                     "vstmia %[to]!, {s17-s20}\n\tvstmia %[to]!, {s18-s21}\n\tsubs %[n], #1\n\tbne 2b\n\t"             \
                     "add %[from], %[from], %[jump]\n\tadd %[to], %[to], %[skip]\n\tsubs %[channels], #1\n\tbne 1b"    \
                     : [from] "+&r"(plane), [to] "+&r"(to), [n] "=&l"(n), [channels] "+&l"(channels)                   \
                     : [lines] "r"(lines), [line] "r"(line), [jump] "r"(jump), [skip] "r"(skip)                        \
                     : "cc", "memory", "s16", "s17", "s18", "s19", "s20", "s21")
    /* clang-format on */
    if (left < 0 && right >= 0)
        THREES("s17-s20");
    else if (left < 0)
        THREES("s17-s21");
    else if (right >= 0)
        THREES("s16-s20");
    else
        THREES("s16-s21");
#undef THREES
    return end;
}

/* `count` taps of one row, from column `kw` on. */
static float *put_part(const four_pixels *f, const convolution *c, const float *plane, int32_t kh, int32_t kw,
                       int32_t count, float *to)
{
    float row[12];
    const float *from = row + 4 * kw;
    put_threes(f, c, plane, kh, 1, 1, row);
    for (; count > 0; count--)
        POETC_COPY_QUAD(to, from);
    return to;
}

POETC_APART void pack_threes(const four_pixels *f, tap_run t, float *to)
{
    const convolution *c = t.c;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width;
    const float *image = f->image[0] + t.channel;
    int32_t kh = t.kh, count;
    if (t.kw > 0) {
        count = poetc_min(3 - t.kw, t.left), t.left -= count;
        to = put_part(f, c, image, kh, t.kw, count, to);
        kh++;
    }
    count = poetc_min(c->kernel_h - kh, t.left / 3); /* the rest of a channel */
    if (kh > 0 && count > 0)
        to = put_threes(f, c, image, kh, count, 1, to), t.left -= 3 * count, kh += count;
    if (kh == c->kernel_h)
        kh = 0, image += plane;
    count = t.left / (3 * c->kernel_h);
    if (kh == 0 && count > 0) {
        to = put_threes(f, c, image, 0, c->kernel_h, count, to);
        image += count * plane, t.left -= 3 * c->kernel_h * count;
    }
    count = t.left / 3;
    if (count > 0)
        to = put_threes(f, c, image, kh, count, 1, to), t.left -= 3 * count, kh += count;
    if (t.left > 0)
        put_part(f, c, image, kh, 0, t.left, to);
}

#endif
