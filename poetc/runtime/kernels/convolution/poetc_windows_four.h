/* Windows of the image in panels of four columns: for targets without vectors, and for Helium.
 *
 * Layout: a row of a panel holds four taps of the window of one pixel. Windows come straight from the image, or from
 * strips of it with zeros around them. Three columns on Cortex-M's FPU mostly go by poetc_direct_taps_fpu.h.
 * Order of sums: nothing is added here.
 *
 * The file belongs to poetc_windows.h, which includes it. */
#ifndef POETC_WINDOWS_FOUR_H
#define POETC_WINDOWS_FOUR_H

/* Four taps: their part of a row of the output. */
typedef struct {
    int32_t offset[4];         /* floats, from where the window would begin without padding */
    int32_t down[4];           /* rows, likewise */
    int32_t low[4], length[4]; /* of a row of the output: the pixels whose tap lies on the image, if its row does */
    int32_t now[4];            /* length, or 0 */
} four_taps;

/* Pixels [ow, end) of a row of the output, with zeros beside the image. */
POETC_APART void pack_checked(const four_taps *t, const float *from, int32_t step, int32_t ow, int32_t end, float *to)
{
#if defined(POETC_HELIUM)
    const uint32x4_t offsets = vshlq_n_u32(vld1q_u32((const uint32_t *)t->offset), 2);
    const uint32x4_t low = vld1q_u32((const uint32_t *)t->low), now = vld1q_u32((const uint32_t *)t->now);
    for (from += ow * step; ow < end; ow++, from += step, to += 4) {
        const mve_pred16_t there = vcmphiq_u32(now, vsubq_u32(vdupq_n_u32((uint32_t)ow), low));
        vst1q_f32(to, vldrwq_gather_offset_z_f32(from, offsets, there));
    }
#else
    int lane;
    for (from += ow * step; ow < end; ow++, from += step, to += 4) {
        POETC_UNROLL_4
        for (lane = 0; lane < 4; lane++)
            to[lane] = (uint32_t)(ow - t->low[lane]) < (uint32_t)t->now[lane] ? from[t->offset[lane]] : 0.0f;
    }
#endif
}

/* `count` pixels of taps whose columns all lie on the image. */
POETC_APART void pack_four(const four_taps *t, const float *from, int32_t step, int32_t count, float *to)
{
#if defined(POETC_HELIUM)
    const uint32x4_t offsets = vshlq_n_u32(vld1q_u32((const uint32_t *)t->offset), 2);
    const mve_pred16_t there = vcmphiq_u32(vld1q_u32((const uint32_t *)t->now), vdupq_n_u32(0));
    for (; count > 0; count--, from += step, to += 4)
        vst1q_f32(to, vldrwq_gather_offset_z_f32(from, offsets, there));
#else
    static const float zero = 0.0f;
    const float *p0 = t->now[0] ? from + t->offset[0] : &zero, *p1 = t->now[1] ? from + t->offset[1] : &zero;
    const float *p2 = t->now[2] ? from + t->offset[2] : &zero, *p3 = t->now[3] ? from + t->offset[3] : &zero;
    if (step == 1 && t->now[0] && t->now[1] && t->now[2] && t->now[3]) {
        poetc_gather_runs(to, p0, p1, p2, p3, count);
    } else {
        const ptrdiff_t s0 = t->now[0] ? step : 0, s1 = t->now[1] ? step : 0;
        const ptrdiff_t s2 = t->now[2] ? step : 0, s3 = t->now[3] ? step : 0;
        for (; count > 0; count--, p0 += s0, p1 += s1, p2 += s2, p3 += s3, to += 4)
            to[0] = *p0, to[1] = *p1, to[2] = *p2, to[3] = *p3;
    }
#endif
}

POETC_APART void pack_windows(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                              int32_t depth, int32_t column, int32_t columns)
{
    const int32_t pixels = c->output_height * c->output_width, per_channel = c->kernel_h * c->kernel_w;
    const int32_t first_image = first / pixels, first_row = (first - first_image * pixels) / c->output_width;
    const int32_t first_pixel = first - first_image * pixels - first_row * c->output_width;
    const int32_t plane = c->height * c->width;
    int32_t channel = column / per_channel, kh = (column - channel * per_channel) / c->kernel_w, at, lane;
    int32_t kw = column - channel * per_channel - kh * c->kernel_w;
    float *to = space->panels;
    for (at = 0; at < columns; at += 4) {
        int32_t low = 0, high = c->output_width, top = c->height, bottom = -c->height, left, run;
        int32_t image = first_image, oh = first_row, ow = first_pixel;
        four_taps t;
        for (lane = 0; lane < 4; lane++) {
            const int32_t down = kh * c->dilation_h - c->pad_top, across = kw * c->dilation_w - c->pad_left;
            int32_t tap_low, tap_high;
            t.down[lane] = down, t.offset[lane] = channel * plane + down * c->width + across;
            output_range(across, c->stride_w, c->width, c->output_width, &tap_low, &tap_high);
            t.low[lane] = tap_low, t.length[lane] = t.now[lane] = tap_high > tap_low ? tap_high - tap_low : 0;
#if defined(POETC_SOFT_FLOAT)
            if (at + lane >= columns) /* zeros take least time */
                t.length[lane] = t.now[lane] = 0;
#endif
            low = tap_low > low ? tap_low : low, high = poetc_min(tap_high, high);
            top = poetc_min(down, top), bottom = down > bottom ? down : bottom;
            if (at + lane + 1 >= columns) /* results that nobody reads: again the last tap */
                continue;
            if (++kw == c->kernel_w) {
                kw = 0;
                if (++kh == c->kernel_h)
                    kh = 0, channel++;
            }
        }
        for (left = depth; left > 0; left -= run, ow = 0) {
            const int32_t row = oh * c->stride_h;
            const float *from = x + image * (ptrdiff_t)c->channels * plane + (ptrdiff_t)row * c->width;
            const int clipped = row + top < 0 || row + bottom >= c->height;
            int32_t last, begin, end;
            run = poetc_min(c->output_width - ow, left), last = ow + run;
            begin = clip(low, ow, last), end = clip(high, begin, last);
            if (clipped)
                for (lane = 0; lane < 4; lane++)
                    t.now[lane] = (uint32_t)(row + t.down[lane]) < (uint32_t)c->height ? t.length[lane] : 0;
            if (begin > ow)
                pack_checked(&t, from, c->stride_w, ow, begin, to);
            if (end > begin)
                pack_four(&t, from + begin * c->stride_w, c->stride_w, end - begin, to + 4 * (begin - ow));
            if (last > end)
                pack_checked(&t, from, c->stride_w, end, last, to + 4 * (end - ow));
            if (clipped)
                for (lane = 0; lane < 4; lane++)
                    t.now[lane] = t.length[lane];
            to += 4 * run;
            if (++oh == c->output_height)
                oh = 0, image++;
        }
    }
}

/* Windows are packed from rows with zeros around them. These are rows of the image itself where nothing is padded or
 * changed, else a strip to which they are copied. It has as many slots as four taps reach over channels. */
static int is_padded(const convolution *c)
{
    return c->has_bias || c->pad_top > 0 || c->pad_left > 0 ||
           (c->output_height - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h >= c->height ||
           (c->output_width - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w >= c->width;
}

static int32_t strip_width(const convolution *c)
{
    return is_padded(c) ? (c->output_width - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1 : c->width;
}

static int32_t strip_slots(const convolution *c)
{
    const int32_t taps = c->kernel_h * c->kernel_w;
    return poetc_min((taps + 2) / taps + 1, c->channels / c->group);
}

/* Of one slot, that holds `rows` rows of the output. */
static int32_t slot_floats(const convolution *c, int32_t rows)
{
    return ((rows - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1) * strip_width(c);
}

/* Floats of a strip for blocks of `terms` pixels, of a workspace of `size`; 0: there is no need or no room for one.
 * That is so for a single pixel: there a panel of Helium, with its rows, leaves less than half. */
static int32_t strip_floats(const convolution *c, int32_t terms, int32_t size)
{
    const int32_t rows = poetc_min((terms - 2) / c->output_width + 2, c->output_height);
    const int32_t floats = is_padded(c) ? strip_slots(c) * slot_floats(c, rows) + 4 : 0;
    return terms < 2 || 2 * floats > size ? 0 : floats;
}

/* Rows of the output whose windows a strip of `size` floats holds. */
static int32_t strip_rows(const convolution *c, int32_t size)
{
    const int32_t room = (size - 4) / strip_slots(c);
    int32_t rows = is_padded(c) ? 0 : c->output_height;
    while (rows < c->output_height && slot_floats(c, rows + 1) <= room)
        rows++;
    return rows;
}

/* Windows of four taps of `pixels` pixels, of which the first is column `ow` of its row. */
typedef struct {
    const float *from; /* the first row's first window */
    ptrdiff_t offset[4];
    int32_t width, ow, pixels; /* width: of a row */
} four_windows;

POETC_APART void put_windows(const convolution *c, const four_windows *s, float *to)
{
    const int32_t step = c->stride_w;
    const float *row = s->from;
    int32_t ow = s->ow, left = s->pixels, count;
#if defined(POETC_HELIUM)
    const uint32x4_t offsets = vshlq_n_u32(vld1q_u32((const uint32_t *)s->offset), 2);
#endif
    for (; left > 0; row += (ptrdiff_t)c->stride_h * s->width, ow = 0) {
        const float *from = row + ow * step;
        count = poetc_min(c->output_width - ow, left), left -= count;
#if defined(POETC_HELIUM)
        {
            uint32x4_t at = vaddq_n_u32(offsets, (uint32_t)(from - step));
#define PUT_PIXEL(bytes) "vldrw.u32 q0, [%q[at], #" bytes "]!\n\tvstrw.32 q0, [%[to]], #16\n\t"
#define PUT_LOOP(times, pixels)                                                                                        \
    __asm__ volatile("dls lr, %[n]\n1:\t" pixels "le lr, 1b"                                                           \
                     : [at] "+w"(at), [to] "+r"(to)                                                                    \
                     : [n] "r"(times)                                                                                  \
                     : "lr", "q0", "memory")
#define PUT_ALL(pixel)                                                                                                 \
    do {                                                                                                               \
        if (count >= 4)                                                                                                \
            PUT_LOOP(count / 4, pixel pixel pixel pixel);                                                              \
        if (count % 4)                                                                                                 \
            PUT_LOOP(count % 4, pixel);                                                                                \
    } while (0)
            if (step == 1)
                PUT_ALL(PUT_PIXEL("4"));
            else if (step == 2)
                PUT_ALL(PUT_PIXEL("8"));
            else
                for (; count > 0; count--, from += step, to += 4)
                    vst1q_f32(to, vldrwq_gather_offset_f32(from, offsets));
#undef PUT_ALL
#undef PUT_LOOP
#undef PUT_PIXEL
        }
#else
        {
            const float *p0 = from + s->offset[0], *p1 = from + s->offset[1];
            const float *p2 = from + s->offset[2], *p3 = from + s->offset[3];
            if (step == 1) {
                poetc_gather_runs(to, p0, p1, p2, p3, count);
                to += 4 * count;
            } else {
                for (; count > 0; count--, p0 += step, p1 += step, p2 += step, p3 += step, to += 4)
                    to[0] = *p0, to[1] = *p1, to[2] = *p2, to[3] = *p3;
            }
        }
#endif
    }
}

/* By a strip with room for `held` rows of the output. */
POETC_APART void pack_strips(const poetc_gemm_space *space, const convolution *c, const float *x, int32_t first,
                             int32_t depth, int32_t column, int32_t columns, float *strip, int32_t held,
                             const prologue *n)
{
    const int32_t pixels = c->output_height * c->output_width, taps = c->kernel_h * c->kernel_w;
    const int32_t inputs = c->channels / c->group, plane = c->height * c->width, channel = column / taps;
    const int32_t first_kh = (column - channel * taps) / c->kernel_w;
    const int32_t first_kw = column - channel * taps - first_kh * c->kernel_w;
    const int padded = is_padded(c);
    const int32_t slots = padded ? strip_slots(c) : inputs + 1, slot = padded ? slot_floats(c, held) : plane;
    four_windows s;
    const int32_t width = strip_width(c), down = c->dilation_h * width;
    int32_t k, at, lane;
    s.width = width;
    for (k = 0; k < depth; k += s.pixels) {
        const int32_t image = (first + k) / pixels, pixel = first + k - image * pixels, oh = pixel / c->output_width;
        const float *planes = x + (image * (ptrdiff_t)c->channels + channel) * plane;
        int32_t kh = first_kh, kw = first_kw, base = 0, line = kh * down, number = 0, to_copy = padded,
                copied = channel, rows;
        s.ow = pixel - oh * c->output_width;
        s.pixels = poetc_min(poetc_min(depth - k, pixels - pixel), held * c->output_width - s.ow);
        rows = ((s.ow + s.pixels - 1) / c->output_width) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1;
        s.from = padded ? strip : planes + (ptrdiff_t)oh * c->stride_h * c->width;
        for (at = 0; at < columns; at += 4) {
            float *to = poetc_gemm_panel(space, at, depth) + (ptrdiff_t)k * 4;
            for (lane = 0; lane < 4; lane++) {
                if (to_copy) {
                    if (n)
                        n->strip(n, copied++, strip + base, planes, c, oh * c->stride_h - c->pad_top, rows, s.width);
                    else
                        copy_padded(strip + base, planes, c, oh * c->stride_h - c->pad_top, rows, s.width);
                    planes += plane, to_copy = 0;
                }
                s.offset[lane] = line + kw * c->dilation_w;
                if (at + lane + 1 >= columns) /* results that nobody reads: again the last tap */
                    continue;
                if (++kw == c->kernel_w) {
                    kw = 0, line += down;
                    if (++kh == c->kernel_h) {
                        kh = 0, base += slot, to_copy = padded;
                        if (++number == slots)
                            number = base = 0;
                        line = base;
                    }
                }
            }
            put_windows(c, &s, to);
#if defined(POETC_SOFT_FLOAT) /* zeros take least time */
            for (lane = columns - at; lane < 4; lane++) {
                int32_t i;
                for (i = 0; i < s.pixels; i++)
                    to[4 * i + lane] = 0.0f;
            }
#endif
        }
    }
}

#endif
