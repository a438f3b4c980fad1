/* Max and average pooling in 8 bits, forward and backward (poetc/ops/integer_pool.py).
 *
 * Layout: planes of [N, C, H, W]. Max pooling also stores which tap of the window was the maximum.
 * Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#include "int8/poetc_int8.h"

/* The first ints of all kernels here; then whether places take 32 bits, or the pads that count; then the rounding. */
typedef struct {
    int32_t planes, height, width, output_height, output_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
} pooling;

#define POOLING_INTS 13
#define FRACTION_BITS 20

static pooling describe(const poetc_call *call)
{
    pooling p;
    __builtin_memcpy(&p, call->ints, sizeof p);
    return p;
}

/* x -> y, where (u8 or, with the last int set, i32): the tap of the first maximum. */
int poetc_op_int8_max_pool(const poetc_call *call);
int poetc_op_int8_max_pool(const poetc_call *call)
{
    const pooling p = describe(call);
    const int is_wide = call->ints[POOLING_INTS];
    const int8_t *x = poetc_in(call, 0);
    int8_t *y = poetc_out(call, 1);
    uint8_t *where = poetc_out(call, 2);
    int32_t *wide = poetc_out(call, 2), plane, oh, ow, i, j;
    for (plane = 0; plane < p.planes; plane++, x += p.height * p.width)
        for (oh = 0; oh < p.output_height; oh++)
            for (ow = 0; ow < p.output_width; ow++) {
                const int32_t top = oh * p.stride_h - p.pad_top, left = ow * p.stride_w - p.pad_left;
                int32_t best = -129, tap = 0;
                for (i = 0; i < p.kernel_h; i++) {
                    const int32_t h = top + i * p.dilation_h;
                    for (j = 0; j < p.kernel_w; j++) {
                        const int32_t w = left + j * p.dilation_w;
                        const int is_inside = h >= 0 && h < p.height && w >= 0 && w < p.width;
                        const int32_t value = is_inside ? x[h * p.width + w] : -128;
                        if (value > best) {
                            best = value;
                            tap = i * p.kernel_w + j;
                        }
                    }
                }
                *y++ = (int8_t)best;
                if (is_wide)
                    *wide++ = tap;
                else
                    *where++ = (uint8_t)tap;
            }
    return POETC_OK;
}

/* Adds the errors of a plane of outputs to the pixels of a plane of the image. */
static void spread_max(const pooling *p, const int8_t *gy, const void *places, int is_wide, int32_t first,
                       int32_t *sums)
{
    const uint8_t *where = places;
    const int32_t *wide = places;
    int32_t oh, ow, i = first;
    __builtin_memset(sums, 0, (size_t)p->height * (size_t)p->width * sizeof *sums);
    for (oh = 0; oh < p->output_height; oh++)
        for (ow = 0; ow < p->output_width; ow++, i++) {
            const int32_t tap = is_wide ? wide[i] : where[i];
            const int32_t h = oh * p->stride_h - p->pad_top + tap / p->kernel_w * p->dilation_h;
            const int32_t w = ow * p->stride_w - p->pad_left + tap % p->kernel_w * p->dilation_w;
            if (h >= 0 && h < p->height && w >= 0 && w < p->width)
                sums[h * p->width + w] += gy[i];
        }
}

/* where, gy, its scale -> gx, its scale. */
int poetc_op_int8_max_pool_grad(const poetc_call *call);
int poetc_op_int8_max_pool_grad(const poetc_call *call)
{
    const pooling p = describe(call);
    const int is_wide = call->ints[POOLING_INTS];
    const void *where = poetc_in(call, 0);
    const int8_t *gy = poetc_in(call, 1);
    const int32_t *scale = poetc_in(call, 2), outputs = p.output_height * p.output_width, pixels = p.height * p.width;
    int8_t *gx = poetc_out(call, 3);
    int32_t *sums = poetc_out(call, 5), plane, bits;
    uint32_t seen = 0u;
    poetc_rounding rounding = {0, call->ints[POOLING_INTS + 1], POETC_INT8_MOST, 0};
    for (plane = 0; plane < p.planes; plane++) {
        spread_max(&p, gy, where, is_wide, plane * outputs, sums);
        seen = poetc_see(sums, pixels, seen);
    }
    bits = poetc_bits_seen(seen);
    rounding.shift = poetc_shift(bits);
    for (plane = 0; plane < p.planes; plane++) {
        spread_max(&p, gy, where, is_wide, plane * outputs, sums);
        poetc_round_small(sums, pixels, gx, 1, &rounding);
        gx += pixels;
    }
    return poetc_scale(poetc_out(call, 4), scale[0] + rounding.shift, rounding.clipped, bits, rounding.shift);
}

/* Taps of a window that lie from `low` on and before `high`. */
static int32_t taps_inside(int32_t start, int32_t kernel, int32_t dilation, int32_t low, int32_t high)
{
    int32_t count = 0, i;
#if defined(POETC_INT8_LANES)
    if (dilation == 1) {
        const int32_t first = start > low ? start : low, end = start + kernel < high ? start + kernel : high;
        return end > first ? end - first : 0;
    }
#endif
    for (i = 0; i < kernel; i++)
        count += start + i * dilation >= low && start + i * dilation < high;
    return count;
}

/* round(2^20 / divisor) of an output. */
static int32_t share_of(const pooling *p, const int32_t *counted, int32_t top, int32_t left)
{
    const int32_t rows = taps_inside(top, p->kernel_h, p->dilation_h, -counted[0], p->height + counted[2]);
    const int32_t columns = taps_inside(left, p->kernel_w, p->dilation_w, -counted[1], p->width + counted[3]);
    const int32_t divisor = rows * columns;
    return ((2 << FRACTION_BITS) + divisor) / (2 * divisor);
}

#if defined(POETC_INT8_LANES)
/* The pixels of a window whose taps lie beside each other: `lines` runs of `run` pixels from `first` on, `width` apart.
 */
typedef struct {
    int32_t first, lines, run;
} window;

static window window_of(const pooling *p, int32_t oh, int32_t ow)
{
    const int32_t h = oh * p->stride_h - p->pad_top, w = ow * p->stride_w - p->pad_left;
    const int32_t bottom = h + p->kernel_h < p->height ? h + p->kernel_h : p->height;
    const int32_t right = w + p->kernel_w < p->width ? w + p->kernel_w : p->width;
    const int32_t top = h > 0 ? h : 0, left = w > 0 ? w : 0;
    window found = {top * p->width + left, bottom - top, right - left};
    if (found.run == p->width) { /* its lines are one run */
        found.run *= found.lines;
        found.lines = 1;
    }
    return found;
}
#endif

static int32_t average(const pooling *p, const int32_t *counted, const int8_t *x, int32_t oh, int32_t ow)
{
    const int32_t top = oh * p->stride_h - p->pad_top, left = ow * p->stride_w - p->pad_left;
    int32_t sum = 0, i, j;
#if defined(POETC_INT8_LANES)
    if (p->dilation_h == 1 && p->dilation_w == 1) {
        const window v = window_of(p, oh, ow);
        for (i = 0; i < v.lines && v.run > 0; i++)
            sum += poetc_total_of_values(x + v.first + i * p->width, v.run);
        return sum * share_of(p, counted, top, left);
    }
#endif
    for (i = 0; i < p->kernel_h; i++) {
        const int32_t h = top + i * p->dilation_h;
        for (j = 0; h >= 0 && h < p->height && j < p->kernel_w; j++) {
            const int32_t w = left + j * p->dilation_w;
            if (w >= 0 && w < p->width)
                sum += x[h * p->width + w];
        }
    }
    return sum * share_of(p, counted, top, left);
}

/* x, its scale -> y, its scale. */
int poetc_op_int8_average_pool(const poetc_call *call);
int poetc_op_int8_average_pool(const poetc_call *call)
{
    const pooling p = describe(call);
    const int32_t *counted = call->ints + POOLING_INTS, *scale = poetc_in(call, 1);
    int8_t *y = poetc_out(call, 2);
    int32_t pass, plane, oh, ow, bits = 0;
    uint32_t largest = 0u;
    poetc_rounding rounding = {0, counted[4], POETC_INT8_MOST, 0};
    for (pass = 0; pass < 2; pass++) {
        const int8_t *x = poetc_in(call, 0);
        for (plane = 0; plane < p.planes; plane++, x += p.height * p.width)
            for (oh = 0; oh < p.output_height; oh++)
                for (ow = 0; ow < p.output_width; ow++) {
                    const int32_t sum = average(&p, counted, x, oh, ow);
                    const uint32_t m = poetc_magnitude(sum);
                    if (pass)
                        *y++ = poetc_rounded(sum, &rounding);
                    else
                        largest = m > largest ? m : largest;
                }
        bits = poetc_bits(largest);
        rounding.shift = poetc_shift(bits);
    }
    return poetc_scale(poetc_out(call, 3), scale[0] - FRACTION_BITS + rounding.shift, rounding.clipped, bits,
                       rounding.shift);
}

static void spread_average(const pooling *p, const int32_t *counted, const int8_t *gy, int32_t *sums)
{
    int32_t oh, ow, i, j;
    __builtin_memset(sums, 0, (size_t)p->height * (size_t)p->width * sizeof *sums);
    for (oh = 0; oh < p->output_height; oh++)
        for (ow = 0; ow < p->output_width; ow++) {
            const int32_t top = oh * p->stride_h - p->pad_top, left = ow * p->stride_w - p->pad_left;
            const int32_t share = *gy++ * share_of(p, counted, top, left);
#if defined(POETC_INT8_LANES)
            if (p->dilation_h == 1 && p->dilation_w == 1) {
                const window v = window_of(p, oh, ow);
                for (i = 0; i < v.lines && v.run > 0; i++)
                    poetc_add_to_sums(sums + v.first + i * p->width, v.run, share);
                continue;
            }
#endif
            for (i = 0; i < p->kernel_h; i++) {
                const int32_t h = top + i * p->dilation_h;
                for (j = 0; h >= 0 && h < p->height && j < p->kernel_w; j++) {
                    const int32_t w = left + j * p->dilation_w;
                    if (w >= 0 && w < p->width)
                        sums[h * p->width + w] += share;
                }
            }
        }
}

/* gy, its scale -> gx, its scale. */
int poetc_op_int8_average_pool_grad(const poetc_call *call);
int poetc_op_int8_average_pool_grad(const poetc_call *call)
{
    const pooling p = describe(call);
    const int32_t *counted = call->ints + POOLING_INTS, *scale = poetc_in(call, 1);
    const int32_t outputs = p.output_height * p.output_width, pixels = p.height * p.width;
    const int8_t *gy = poetc_in(call, 0);
    int8_t *gx = poetc_out(call, 2);
    int32_t *sums = poetc_out(call, 4), plane, bits;
    uint32_t seen = 0u;
    poetc_rounding rounding = {0, counted[4], POETC_INT8_MOST, 0};
    for (plane = 0; plane < p.planes; plane++) {
        spread_average(&p, counted, gy + (size_t)plane * (size_t)outputs, sums);
        seen = poetc_see(sums, pixels, seen);
    }
    bits = poetc_bits_seen(seen);
    rounding.shift = poetc_shift(bits);
    for (plane = 0; plane < p.planes; plane++) {
        spread_average(&p, counted, gy + (size_t)plane * (size_t)outputs, sums);
        poetc_round_small(sums, pixels, gx, 1, &rounding);
        gx += pixels;
    }
    return poetc_scale(poetc_out(call, 3), scale[0] - FRACTION_BITS + rounding.shift, rounding.clipped, bits,
                       rounding.shift);
}
