/* The gradient of a convolution's input as matrix products on packed operands (poetc_gemm.h): convolution.c's kernel, faster, with
 * workspace. */
#include "poetc_convolution_packed.h"
#if defined(POETC_HELIUM)
#define POETC_STRIPS 1
#include "poetc_direct_helium.h"
#endif
#include "poetc_direct_block.h"

static void fill(float *to, int32_t count, float value)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = value;
}

/* to += from */
static inline void add_to(float *to, const float *from, int32_t count)
{
#if POETC_LANES == 1
    for (; count >= 4; count -= 4) {
        const float *old = to;
        POETC_QUAD_A(p);
        POETC_QUAD_B(q);
        POETC_LOAD_QUAD(p, from);
        POETC_LOAD_QUAD(q, old);
        q0 += p0, q1 += p1, q2 += p2, q3 += p3;
        POETC_STORE_QUAD(to, q);
    }
#else
    for (; count >= 4; count -= 4, to += 4, from += 4)
        poetc_f4_store(to, poetc_f4_add(poetc_f4_load(to), poetc_f4_load(from)));
#endif
    for (; count > 0; count--)
        *to++ += *from++;
}

#if defined(POETC_MASKED)

/* As spread, of rows that the output shares with the image: a pixel's sum has the same order. */
POETC_APART void spread_masked(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows, float *gx)
{
    const int32_t taps = c->kernel_h * c->kernel_w, wide = c->width;
    const ptrdiff_t plane = (ptrdiff_t)c->height * wide, width = (ptrdiff_t)rows * wide;
    __mmask16 masks[MASKED_MOST];
    int32_t channel, r, end, kh, kw, i, lane, period = wide;
    while (period % 2 == 0 && wide / period < 16)
        period /= 2; /* masks that follow each other, until they repeat */
    for (kw = 0; kw < c->kernel_w; kw++) {
        const int32_t offset = kw * c->dilation_w - c->pad_left;
        for (i = 0; i < period; i++)
            for (masks[kw * period + i] = 0, lane = 0; lane < 16; lane++)
                if ((uint32_t)((16 * i + lane) % wide + offset) < (uint32_t)wide)
                    masks[kw * period + i] = (__mmask16)(masks[kw * period + i] | 1u << lane);
    }
    for (channel = 0; channel < channels; channel++, products += taps * width) {
        for (r = 0; r < rows; r = end) { /* rows of one image */
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            float *const to = gx + ((ptrdiff_t)image * c->channels + channel) * plane;
            end = poetc_min(rows, r + c->output_height - oh);
            for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                const int32_t down = kh * c->dilation_h - c->pad_top;
                const int32_t low = oh + down < 0 ? -down : oh, high = poetc_min(oh + end - r, c->height - down);
                for (kw = 0; kw < c->kernel_w; kw++) {
                    const __mmask16 *mask = masks + kw * period;
                    const float *from = products + (kh * c->kernel_w + kw) * width + (ptrdiff_t)(r + low - oh) * wide;
                    float *at = to + (ptrdiff_t)(low + down) * wide + kw * c->dilation_w - c->pad_left;
                    int32_t left = (high - low) * wide, next = 0;
                    for (; left > 0; left -= 16, from += 16, at += 16) {
                        const __mmask16 m = left < 16 ? (__mmask16)(mask[next] & ((1u << left) - 1u)) : mask[next];
                        if (++next == period)
                            next = 0;
                        _mm512_mask_storeu_ps(at, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, at), _mm512_maskz_loadu_ps(m, from)));
                    }
                }
            }
        }
    }
}

static inline int spreads_masked(const convolution *c)
{
    return is_shifted(c) && c->kernel_w * c->width <= MASKED_MOST;
}

/* The same where columns are a stride apart: every so many lanes. */
POETC_APART void spread_apart(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows, float *gx)
{
    const int32_t taps = c->kernel_h * c->kernel_w, step = c->stride_w, most = (15 + step) / step;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    const int32_t first_image = row / c->output_height, first_row = row - first_image * c->output_height;
    int32_t channel, kh, kw, oh, ow, i;
    __mmask16 all = 0;
    for (i = 0; i < 16; i += step)
        all = (__mmask16)(all | 1u << i);
    for (channel = 0; channel < channels; channel++, products += taps * width) {
        for (kh = c->kernel_h - 1; kh >= 0; kh--) {
            const int32_t down = kh * c->dilation_h - c->pad_top;
            int32_t top, bottom;
            output_range(down, c->stride_h, c->height, c->output_height, &top, &bottom);
            for (kw = 0; kw < c->kernel_w; kw++) {
                const int32_t across = kw * c->dilation_w - c->pad_left;
                const float *from = products + (kh * c->kernel_w + kw) * width;
                float *to = gx + ((ptrdiff_t)first_image * c->channels + channel) * plane;
                int32_t begin = first_row, rest = rows, left, right;
                output_range(across, step, c->width, c->output_width, &left, &right);
                for (; rest > 0; begin = 0, to += c->channels * plane) { /* an image after the other: what was stored last is not read next */
                    const int32_t here = poetc_min(rest, c->output_height - begin), high = poetc_min(bottom, begin + here);
                    for (oh = top > begin ? top : begin; oh < high; oh++) {
                        const float *products_here = from + (ptrdiff_t)(oh - begin) * c->output_width;
                        float *at = to + (ptrdiff_t)(oh * c->stride_h + down) * c->width + across + left * step;
                        for (ow = left; ow < right; ow += most, at += most * step) {
                            const int32_t beyond = right - ow < most ? 16 - (right - ow) * step : 0;
                            const __mmask16 m = (__mmask16)(all & 0xffffu >> (beyond > 0 ? beyond : 0));
                            const __m512 product = _mm512_maskz_expandloadu_ps(m, products_here + ow);
                            _mm512_mask_storeu_ps(at, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, at), product));
                        }
                    }
                    rest -= here, from += (ptrdiff_t)here * c->output_width;
                }
            }
        }
    }
}

/* A tap of sixteen pixels of one parity: the products that it adds to them. */
typedef struct {
    ptrdiff_t from;
    __mmask16 mask;
} tap_lanes;

/* Where every second column of a row of gx belongs to the same taps: even and odd pixels are summed up apart, sixteen each, then laid side by side.
 * Where rows are short, several of them. */
typedef struct {
    int32_t rows, columns; /* at once, of the pixels of one parity */
    int whole;             /* images: sums begin with the bias, else with what is there */
} halves;

static halves halves_of(const convolution *c, int32_t row, int32_t rows)
{
    halves h = {1, 16, row % c->output_height == 0 && rows % c->output_height == 0};
    if (h.whole && (c->output_width == 4 || c->output_width == 8) && (c->width + 1) / 2 == c->output_width)
        h.columns = c->output_width, h.rows = 16 / h.columns;
    return h;
}

/* Lanes [low, high) of a row, in all rows. */
static inline uint32_t lanes_of_columns(const halves *h, int32_t low, int32_t high)
{
    uint32_t mask = 0, one;
    int32_t i;
    low = clip(low, 0, h->columns), high = clip(high, low, h->columns);
    one = (1u << high) - (1u << low);
    for (i = 0; i < h->rows; i++)
        mask |= one << i * h->columns;
    return mask;
}

/* As spread, with columns of the output two columns of gx apart: a pixel's sum has the same order. */
POETC_APART void spread_halves(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                               const float *bias, float *gx)
{
    const halves h = halves_of(c, row, rows);
    const int32_t taps = c->kernel_h * c->kernel_w, step = c->stride_h;
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    const __m512i low_half = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high_half = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    int32_t r, end, phase, line, column, channel, kh, kw, i;
    for (r = 0; r < rows; r = end) { /* rows of one image */
        const int32_t image = (row + r) / c->output_height, begin = row + r - image * c->output_height;
        float *const pixels = gx + (ptrdiff_t)image * c->channels * plane;
        int32_t stop;
        end = poetc_min(rows, r + c->output_height - begin), stop = begin + end - r;
        for (phase = 0; phase < step; phase++) { /* rows of gx that the same taps reach */
            const int32_t lines = (c->height - phase + step - 1) / step;
            for (line = 0; line < lines; line += h.rows) {
                for (column = 0; 2 * column < c->width; column += h.columns) {
                    tap_lanes list[2][MASKED_MOST];
                    int32_t count[2] = {0, 0};
                    float *const at = pixels + (ptrdiff_t)(line * step + phase) * c->width + 2 * column;
                    const float *from = products;
                    float *to = at;
                    for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                        const int32_t down = kh * c->dilation_h - c->pad_top, first = line - floor_div(down, step);
                        uint32_t there = 0;
                        if (down - floor_div(down, step) * step != phase)
                            continue;
                        for (i = 0; i < h.rows; i++)
                            if (first + i >= begin && first + i < stop)
                                there |= ((1u << h.columns) - 1u) << i * h.columns;
                        for (kw = 0; there && kw < c->kernel_w; kw++) {
                            const int32_t across = kw * c->dilation_w - c->pad_left, shift = floor_div(across, 2);
                            const int odd = across - 2 * shift;
                            const uint32_t mask = there & lanes_of_columns(&h, shift - column, shift + c->output_width - column);
                            tap_lanes *t = &list[odd][count[odd]];
                            if (mask == 0)
                                continue;
                            t->from = (kh * c->kernel_w + kw) * width + (ptrdiff_t)(r + first - begin) * c->output_width + column - shift;
                            t->mask = (__mmask16)mask, count[odd]++;
                        }
                    }
                    if (!h.whole && count[0] + count[1] == 0)
                        continue;
                    for (channel = 0; channel < channels; channel++, to += plane, from += taps * width) {
                        const int32_t most = c->width - 2 * column;
                        const __mmask16 low = (__mmask16)(most < 16 ? (1u << most) - 1u : 0xffffu);
                        const __mmask16 high = (__mmask16)(most < 16 ? 0u : most < 32 ? (1u << (most - 16)) - 1u : 0xffffu);
                        __m512 sum[2], u, v;
                        if (h.whole) {
                            sum[0] = sum[1] = _mm512_set1_ps(bias ? bias[channel] : 0.0f);
                        } else {
                            u = _mm512_maskz_loadu_ps(low, to), v = _mm512_maskz_loadu_ps(high, to + 16);
                            sum[0] = _mm512_permutex2var_ps(u, evens, v), sum[1] = _mm512_permutex2var_ps(u, odds, v);
                        }
                        POETC_UNROLL
                        for (i = 0; i < 2; i++) {
                            const tap_lanes *t = list[i], *const last = t + count[i];
                            for (; t < last; t++)
                                sum[i] = _mm512_mask_add_ps(sum[i], t->mask, sum[i], _mm512_maskz_loadu_ps(t->mask, from + t->from));
                        }
                        u = _mm512_permutex2var_ps(sum[0], low_half, sum[1]), v = _mm512_permutex2var_ps(sum[0], high_half, sum[1]);
                        if (h.rows == 1) {
                            _mm512_mask_storeu_ps(to, low, u);
                            _mm512_mask_storeu_ps(to + 16, high, v);
                        } else {
                            const int32_t wide = 2 * h.columns; /* lanes of a row */
                            for (i = 0; i < h.rows && line + i < lines; i++) {
                                const int32_t lane = i * wide % 16;
                                _mm512_mask_storeu_ps(to + (ptrdiff_t)i * step * c->width - lane, (__mmask16)((uint32_t)low << lane),
                                                      i * wide < 16 ? u : v);
                            }
                        }
                    }
                }
            }
        }
    }
}

static inline int spreads_halves(const convolution *c)
{
    return c->stride_w == 2 && c->kernel_h * c->kernel_w <= MASKED_MOST;
}

static inline int spreads_apart(const convolution *c)
{
    return c->stride_w > 1 && c->stride_w <= 4;
}

#else
#define spreads_masked(c) 0
#define spread_masked(c, products, channels, row, rows, gx) ((void)0)
#define spreads_halves(c) 0
#define spread_halves(c, products, channels, row, rows, bias, gx) ((void)0)
#define spreads_apart(c) 0
#define spread_apart(c, products, channels, row, rows, gx) ((void)0)
#endif

#if defined(POETC_HELIUM)
/* As spread, of columns that follow each other: all rows that a tap reads at once. A pixel's sum has the same order. */
POETC_APART void spread_rows(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows, float *gx)
{
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    int32_t channel, r, end, kh, kw;
    for (channel = 0; channel < channels; channel++, products += c->kernel_h * c->kernel_w * width) {
        for (r = 0; r < rows; r = end) { /* rows of one image */
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            float *const pixels = gx + ((ptrdiff_t)image * c->channels + channel) * plane;
            end = poetc_min(rows, r + c->output_height - oh);
            for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                const int32_t down = kh * c->dilation_h - c->pad_top;
                int32_t top, bottom, offset = -c->pad_left;
                output_range(down, c->stride_h, c->height, c->output_height, &top, &bottom);
                top = top < oh ? oh : top, bottom = poetc_min(bottom, oh + end - r);
                for (kw = 0; kw < c->kernel_w && bottom > top; kw++, offset += c->dilation_w) {
                    const int32_t low = offset < 0 ? -offset : 0;
                    const int32_t count = poetc_min(c->output_width, c->width - offset) - low;
                    const int32_t taken = (count + 3) / 4 * 4;
                    const float *from = products + (kh * c->kernel_w + kw) * width + (r + top - oh) * c->output_width + low;
                    float *to = pixels + (top * c->stride_h + down) * c->width + low + offset;
                    int32_t left = bottom - top;
                    if (count > 0) /* the hardware leaves out the lanes beyond the last */
                        __asm__ volatile("1:\tdlstp.32 lr, %[count]\n"
                                         "2:\tvldrw.u32 q0, [%[from]], #16\n\tvldrw.u32 q1, [%[to]]\n\tvadd.f32 q0, q1, q0\n\t"
                                         "vstrw.32 q0, [%[to]], #16\n\tletp lr, 2b\n\t"
                                         "add %[from], %[from], %[next_from]\n\tadd %[to], %[to], %[next_to]\n\t"
                                         "subs %[left], #1\n\tbne 1b"
                                         : [to] "+&r"(to), [from] "+&r"(from), [left] "+&r"(left)
                                         : [count] "r"(count), [next_from] "r"(4 * (c->output_width - taken)),
                                           [next_to] "r"(4 * (c->stride_h * c->width - taken))
                                         : "lr", "cc", "q0", "q1", "memory");
                }
            }
        }
    }
}
#endif

/* Add rows (c, kh, kw) of products, columns (n, oh, ow), to the pixels that they belong to: rows of the output in ascending
 * order, taps in ascending order, so that the order of a pixel's sum does not depend on the size of the block. */
POETC_APART void spread(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows, float *gx)
{
    const ptrdiff_t plane = (ptrdiff_t)c->height * c->width, width = (ptrdiff_t)rows * c->output_width;
    int32_t channel, r, kh, kw, ow;
    for (channel = 0; channel < channels; channel++) {
        for (r = 0; r < rows; r++) {
            const int32_t image = (row + r) / c->output_height, oh = row + r - image * c->output_height;
            const float *from = products + channel * c->kernel_h * c->kernel_w * width + r * c->output_width;
            for (kh = 0; kh < c->kernel_h; kh++) {
                const int32_t ih = oh * c->stride_h - c->pad_top + kh * c->dilation_h;
                float *to = gx + ((ptrdiff_t)image * c->channels + channel) * plane + (ptrdiff_t)ih * c->width;
                if (ih < 0 || ih >= c->height) {
                    from += c->kernel_w * width;
                    continue;
                }
                for (kw = 0; kw < c->kernel_w; kw++, from += width) {
                    const int32_t offset = kw * c->dilation_w - c->pad_left;
                    int32_t low, high;
                    if (c->stride_w == 1) {
                        low = offset < 0 ? -offset : 0;
                        high = poetc_min(c->output_width, c->width - offset);
                        add_to(to + low + offset, from + low, high - low);
                    } else {
                        output_range(offset, c->stride_w, c->width, c->output_width, &low, &high);
                        for (ow = low; ow < high; ow++)
                            to[ow * c->stride_w + offset] += from[ow];
                    }
                }
            }
        }
    }
}

/* Whether what is spread of blocks of so many rows is the whole of gx: it need not be filled before. */
static inline int spread_is_all(const convolution *c, int32_t block_rows)
{
    return spreads_halves(c) && block_rows % c->output_height == 0;
}

static void spread_somehow(const convolution *c, const float *products, int32_t channels, int32_t row, int32_t rows,
                           const float *bias, float *gx)
{
    (void)bias;
#if defined(POETC_HELIUM)
    if (c->stride_w == 1) {
        spread_rows(c, products, channels, row, rows, gx);
        return;
    }
#endif
    if (spreads_halves(c))
        spread_halves(c, products, channels, row, rows, bias, gx);
    else if (spreads_masked(c))
        spread_masked(c, products, channels, row, rows, gx);
    else if (spreads_apart(c))
        spread_apart(c, products, channels, row, rows, gx);
    else
        spread(c, products, channels, row, rows, gx);
}

#if defined(POETC_DIRECT)

typedef int32_t direct_mask __attribute__((vector_size(4 * POETC_LANES)));

/* ConvGradInput with strides of 1: every pixel's products of one tap are a sum over the outputs, which is added to the
 * pixel, rows of the output in ascending order, taps in ascending order. Adding -0 where a tap has no output changes
 * nothing. */
POETC_APART int direct_grad_input(const convolution *c, const float *gy, const float *w, const float *bias, float *gx,
                                  float *workspace, int32_t size, int32_t depth)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pieces = direct_pieces(c->width), wide = (c->kernel_w - 1) * c->dilation_w;
    const int32_t row = c->width + wide, reach = (c->kernel_h - 1) * c->dilation_h;
    const int32_t room = (size - 1 - outputs - DIRECT_LANES) / (outputs * row) - reach;
    const int32_t held = poetc_min(c->height, room > 2 ? room & ~1 : room); /* rows of gx at a time */
    int32_t *offset = (int32_t *)workspace;
    float *strip = workspace + outputs, tile[DIRECT_MOST * DIRECT_LANES], total[DIRECT_MOST * DIRECT_LANES];
    int32_t group, n, top, ch, rows, at, i, j, k, kh, kw;
    direct_mask lanes, there[4];
    if (c->stride_h != 1 || c->stride_w != 1 || held < 1 || outputs > depth || !direct_pays(c->width, channels * 2))
        return 0;
    for (i = 0; i < DIRECT_LANES; i++)
        lanes[i] = i;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *from = gy + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * c->output_width;
            const float *filters = w + (ptrdiff_t)group * outputs * channels * taps;
            float *result = gx + ((ptrdiff_t)n * c->channels + group * channels) * c->height * c->width;
            for (top = POETC_BEGIN(c->share, c->height, 1); top < POETC_END(c->share, c->height, 1); top += held) {
                const int32_t here = poetc_min(held, POETC_END(c->share, c->height, 1) - top), plane = here + reach;
                const int32_t first = top + c->pad_top - reach; /* the strip's first row of gy */
                copy_strip(strip, from, outputs, c->output_height, c->output_width, first, plane, c->pad_left - wide, row);
                for (k = 0; k < outputs; k++)
                    offset[k] = k * plane * row;
                for (ch = 0; ch < channels; ch += rows) {
                    int vectors;
                    direct_task t = {NULL, taps, (ptrdiff_t)channels * taps, {0}, offset, outputs, depth, NULL, tile};
                    rows = direct_shape(channels - ch, &vectors);
                    for (at = 0; at < here * pieces; at += vectors) {
                        for (i = 0; i < rows; i++) {
                            const float begin = bias ? bias[group * channels + ch + i] : 0.0f;
                            for (j = 0; j < vectors; j++)
                                poetc_vector_store(total + (i * vectors + j) * DIRECT_LANES, (poetc_vector){0} + begin);
                        }
                        for (kh = c->kernel_h - 1; kh >= 0; kh--) {
                            for (kw = 0; kw < c->kernel_w; kw++) {
                                int any = 0;
                                for (j = 0; j < vectors; j++) {
                                    const int32_t piece = poetc_min(at + j, here * pieces - 1), r = piece / pieces;
                                    const int32_t left = (piece - r * pieces) * DIRECT_LANES;
                                    const int32_t oh = top + r + c->pad_top - kh * c->dilation_h;
                                    const int32_t ow = left + c->pad_left - kw * c->dilation_w;
                                    const int valid = oh >= 0 && oh < c->output_height;
                                    any |= valid;
                                    there[j] = valid ? (lanes + ow >= 0) & (lanes + ow < c->output_width) : lanes < 0;
                                    t.b[j] = strip + (oh - first) * row + left + wide - kw * c->dilation_w;
                                }
                                if (!any)
                                    continue;
                                t.a = filters + (ptrdiff_t)ch * taps + kh * c->kernel_w + kw;
                                direct_run(rows, &t);
                                for (i = 0; i < rows * vectors; i++) {
                                    const direct_mask here_too = there[i % vectors];
                                    const direct_mask nothing = lanes * 0 + INT32_MIN; /* -0 */
                                    const direct_mask bits = (direct_mask)poetc_vector_load(tile + i * DIRECT_LANES);
                                    float *sum = total + i * DIRECT_LANES;
                                    poetc_vector_store(sum, poetc_vector_load(sum) + (poetc_vector)((bits & here_too) |
                                                                                                    (nothing & ~here_too)));
                                }
                            }
                        }
                        for (j = 0; j < vectors && at + j < here * pieces; j++) {
                            const int32_t r = (at + j) / pieces, left = (at + j - r * pieces) * DIRECT_LANES;
                            float *to = result + ((ptrdiff_t)ch * c->height + top + r) * c->width + left;
                            for (i = 0; i < rows; i++, to += (ptrdiff_t)c->height * c->width)
                                poetc_put_piece(to, total + (i * vectors + j) * DIRECT_LANES, 1,
                                                poetc_min(DIRECT_LANES, c->width - left));
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f;
    return 1;
}

#elif defined(POETC_HELIUM)

/* to[(o * taps + tap) * rows + row]: the filters of `rows` channels, turned, from those of each of `outputs` outputs, `step` floats apart. */
static void pack_turned(float *to, const float *from, ptrdiff_t step, int32_t rows, int32_t taps, int32_t outputs)
{
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)rows);
    int32_t row, k;
    for (; outputs > 0; outputs--, to += taps * rows, from += step) {
        const float *source = from;
        for (row = 0; row < rows; row++) {
            uint32x4_t put = vsubq_u32(vdupq_n_u32((uint32_t)(to + (taps - 1) * rows + row)), apart);
            __asm__ volatile("wls lr, %[n], 2f\n1:\tvldrw.u32 q0, [%[from]], #16\n\tvstrw.32 q0, [%q[put]]\n\t"
                             "vsub.i32 %q[put], %q[put], %[step]\n\tle lr, 1b\n2:"
                             : [from] "+&r"(source), [put] "+w"(put)
                             : [n] "r"(taps / 4), [step] "r"(16 * rows)
                             : "lr", "q0", "memory");
            for (k = taps % 4; k > 0; k--)
                to[(k - 1) * rows + row] = *source++;
        }
    }
}

/* ConvGradInput with strides of one: a convolution of gy, zeros around it, by the turned filters of some outputs at a time; lines of them that
 * meet nothing but zeros are left out. Whether it was done: there must be loops for it, and room for filters and a strip. */
POETC_APART int direct_grad_input(const convolution *c, const float *gy, const float *w, const float *bias, float *gx, float *workspace,
                                  int32_t size, int32_t depth)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t width = c->width, reach = c->kernel_h - 1, row = width + c->kernel_w - 1, vectors = (width + 3) / 4;
    const int32_t most = taps > 64 ? 1 : taps > 16 ? 150 / taps : 64 / taps; /* outputs, of about as many terms */
    const int32_t room = (size - 1 - 6 * most * taps - POETC_LANES) / (most * row); /* rows of gy */
    const int32_t held = room >= c->output_height ? c->height : poetc_min(c->height, room - reach);
    const ptrdiff_t plane_of_gy = (ptrdiff_t)c->output_height * c->output_width;
    float *strip = workspace + 6 * most * taps;
    int32_t group, n, top, o, ch, rows, r, at;
    direct_task t;
    (void)depth;
    if (c->stride_h != 1 || c->stride_w != 1 || c->dilation_h != 1 || c->dilation_w != 1 || (c->kernel_w != 3 && c->kernel_w != 5))
        return 0;
    if (channels < 4 || width < 4 || 16 * vectors > 5 * width || 40 * vectors > 17 * c->output_width || held * width < 16)
        return 0;
    t.next = 4 * (row - c->kernel_w), t.y_row = (ptrdiff_t)c->height * width;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *from = gy + ((ptrdiff_t)n * c->outputs + group * outputs) * plane_of_gy;
            const float *filters = w + (ptrdiff_t)group * outputs * channels * taps;
            float *result = gx + ((ptrdiff_t)n * c->channels + group * channels) * c->height * width;
            for (top = 0; top < c->height; top += held) {
                const int32_t here = poetc_min(held, c->height - top), first = top + c->pad_top - reach; /* row of gy */
                const int32_t begin = first < 0 ? 0 : first, end = poetc_min(c->output_height, first + here + reach);
                const int32_t plane = end > begin ? (end - begin) * row : 0;
                for (o = 0; o < outputs; o += most) {
                    const int32_t count = poetc_min(most, outputs - o);
                    copy_strip(strip, from + o * plane_of_gy, count, c->output_height, c->output_width, begin, end - begin,
                               c->pad_left - c->kernel_w + 1, row);
                    for (ch = 0; ch < channels; ch += rows) {
                        rows = direct_rows(channels - ch);
                        pack_turned(workspace, filters + ((ptrdiff_t)o * channels + ch) * taps, (ptrdiff_t)channels * taps, rows, taps, count);
                        t.accumulate = o > 0, t.bias = bias && o == 0 ? bias + group * channels + ch : NULL;
                        for (r = 0; r < here; r++) {
                            const int32_t low = first + r < 0 ? -(first + r) : 0;
                            const int32_t lines = poetc_min(c->kernel_h, c->output_height - (first + r)) - low;
                            const float *line = strip + (first + r + low - begin) * row;
                            float *to = result + ((ptrdiff_t)ch * c->height + top + r) * width;
                            t.lines = lines, t.channels = lines > 0 ? count : 0;
                            t.skip = (c->kernel_h - lines) * c->kernel_w * rows, t.plane = plane - (ptrdiff_t)lines * row;
                            for (at = 0; at < width; at += 4) {
                                const int32_t left = at + 4 > width && o == 0 ? width - 4 : at; /* overlaps those before */
                                t.lanes = poetc_min(4, width - left), t.a = workspace + low * c->kernel_w * rows, t.b = line + left, t.y = to + left;
                                poetc_direct_run(rows, c->kernel_w, &t);
                            }
                        }
                    }
                }
            }
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

#else
#define direct_grad_input(c, gy, w, bias, gx, workspace, size, depth) 0
#endif

#if defined(POETC_AHEAD)

#define STREAM_TERMS 32 /* rows of weights at once: so many streams the processor foresees */
#define STREAM_ROWS (POETC_LANES == 16 ? 8 : 4)

/* Some terms of products of pixels' gradients, `a_k` floats from term to term, with rows of weights where they are. `sums` of a block of
 * terms begin with 0 or what is there; with the last terms of a block they go to `total`, else NULL. */
typedef struct {
    const float *a, *b;
    float *sums, *total;
    ptrdiff_t a_k, b_k, row; /* row: of sums and total */
    int32_t depth;
    int begins, accumulate; /* begins: a block of terms; accumulate: to the total */
} stream_task;

POETC_APART void stream(const stream_task *t)
{
    const ptrdiff_t a_k = t->a_k, b_k = t->b_k, row = t->row;
    const float *a = t->a, *b = t->b;
    float *const to = t->total ? t->total : t->sums;
    const int accumulate = t->total && t->accumulate;
    poetc_vector sum[STREAM_ROWS][2];
    int32_t k;
    int i, j;
    POETC_UNROLL
    for (i = 0; i < STREAM_ROWS; i++) {
        POETC_UNROLL
        for (j = 0; j < 2; j++)
            sum[i][j] = t->begins ? (poetc_vector){0} : poetc_vector_load(t->sums + i * row + j * POETC_LANES);
    }
    for (k = t->depth; k > 0; k--, a += a_k, b += b_k) {
        POETC_UNROLL
        for (i = 0; i < STREAM_ROWS; i++) {
            POETC_UNROLL
            for (j = 0; j < 2; j++)
                POETC_ADD_SCALED(sum[i][j], poetc_vector_load(b + j * POETC_LANES), a[i]);
        }
    }
    POETC_UNROLL
    for (i = 0; i < STREAM_ROWS; i++) {
        POETC_UNROLL
        for (j = 0; j < 2; j++) {
            float *const at = to + i * row + j * POETC_LANES;
            poetc_vector_store(at, accumulate ? poetc_vector_load(at) + sum[i][j] : sum[i][j]);
        }
    }
}

/* ConvGradInput for few pixels, where weights are what there is to read: once, where they are. Lanes lie along the channels'
 * taps, pixels are rows of the register block; sums have the same terms in the same order. Whether it was done. */
POETC_APART int stream_weights(const convolution *c, const float *gy, const float *w, const float *bias, float *gx,
                               float *workspace, int32_t size, int32_t terms)
{
    const int32_t channels = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t pixels = c->output_height * c->output_width, plane = c->height * c->width;
    const ptrdiff_t row = (ptrdiff_t)channels * taps;
    float *const turned = workspace + (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
    int32_t unit = 1, most, channel, count, group, first, column, i, k;
    while (unit * taps % COLUMNS)
        unit *= 2;
    most = (size - 16) / (3 * pixels * taps) / unit * unit; /* channels at once: products, sums of a block of terms, products turned */
    if (c->batch != 1 || pixels > 2 * POETC_GEMM_ROWS || pixels % POETC_LANES || channels % unit || most <= 0)
        return 0;
    for (group = 0; group < c->group; group++) {
        const float *from = gy + (ptrdiff_t)group * outputs * pixels, *filters = w + group * outputs * row;
        const int32_t end = POETC_END(c->share, channels, unit);
        for (channel = POETC_BEGIN(c->share, channels, unit); channel < end; channel += count) {
            const float *const channel_bias = bias ? bias + (ptrdiff_t)group * channels + channel : NULL;
            float *to = gx + ((ptrdiff_t)group * channels + channel) * plane, *total, *sums;
            int32_t columns;
            count = poetc_min(most, end - channel), columns = count * taps;
            total = turned + pixels * columns, sums = total + pixels * columns;
            for (i = 0; i < count && !spread_is_all(c, c->output_height); i++)
                fill(to + (ptrdiff_t)i * plane, plane, bias ? channel_bias[i] : 0.0f);
            for (first = 0; first < outputs; first += terms) {
                const int32_t depth = poetc_min(terms, outputs - first);
                for (k = 0; k < depth; k += STREAM_TERMS) {
                    const int ends = k + STREAM_TERMS >= depth;
                    stream_task t;
                    t.a_k = pixels, t.b_k = row, t.row = columns, t.depth = poetc_min(STREAM_TERMS, depth - k);
                    t.begins = k == 0, t.accumulate = first > 0;
                    t.b = filters + (first + k) * row + (ptrdiff_t)channel * taps;
                    for (column = 0; column < columns; column += COLUMNS, t.b += COLUMNS) {
                        t.a = from + (ptrdiff_t)(first + k) * pixels;
                        t.sums = sums + column, t.total = ends ? total + column : NULL;
                        for (i = 0; i < pixels; i += STREAM_ROWS, t.a += STREAM_ROWS) {
                            stream(&t);
                            t.sums += STREAM_ROWS * columns;
                            if (ends)
                                t.total += STREAM_ROWS * columns;
                        }
                    }
                }
            }
            for (i = 0; i < pixels; i += POETC_LANES)
                poetc_transpose_lanes(turned + i, pixels, total + (ptrdiff_t)i * columns, columns, columns / POETC_LANES);
            spread_somehow(c, turned, count, 0, c->output_height, channel_bias, to);
        }
    }
    workspace[size - 1] = 0.0f; /* so that the memory that is touched is that of the packing kernel */
    return 1;
}

#else
#define stream_weights(c, gy, w, bias, gx, workspace, size, terms) 0
#endif

/* As poetc_op_conv_grad_input. Products w' gy of some channels' taps and some rows of the output are made in the workspace
 * and added to the pixels they belong to. The last ints: as above, the part of the workspace that holds products (floats; 0
 * for a pointwise convolution, which needs none), and its rows of the output and channels. */
int poetc_op_conv_grad_input_packed(const poetc_call *call)
{
    const convolution c = describe(call);
    const float *gy = poetc_in(call, 0), *w = poetc_in(call, 1), *bias = c.has_bias ? poetc_in(call, 2) : NULL;
    float *gx = poetc_out(call, c.has_bias ? 3 : 2), *workspace = POETC_WORKSPACE(call, c.has_bias ? 4 : 3);
    const int32_t size = call->ints[17], terms = call->ints[18], held = call->ints[19];
    const int32_t block_rows = call->ints[20], block = call->ints[21];
    const int32_t pixels = c.output_height * c.output_width, plane = c.height * c.width;
    const int32_t taps = c.kernel_h * c.kernel_w, channels = c.channels / c.group, outputs = c.outputs / c.group;
    const int32_t all_rows = c.batch * c.output_height;
    poetc_gemm_space space = poetc_gemm_carve(workspace + held, size - held, terms, (outputs + terms - 1) / terms,
                                              block_rows * c.output_width, 1);
    float *const packed = space.panels;
    const int pointwise = held == 0;
    int32_t group, channel, row, column, first, n, i;
    POETC_THREADED(poetc_op_conv_grad_input_packed, call, CONVOLUTION_WORK(c), size);
    if (!pointwise && stream_weights(&c, gy, w, bias, gx, workspace, size, terms))
        return POETC_OK;
    if (!pointwise && direct_grad_input(&c, gy, w, bias, gx, workspace, size, terms))
        return POETC_OK;
    if (!pointwise && !spread_is_all(&c, block_rows)) {
        float *to = gx;
        for (n = 0; n < c.batch; n++)
            for (i = 0; i < c.channels; i++, to += plane)
                if (!POETC_SKIPS(c.share, i % channels, channels))
                    fill(to, plane, bias ? bias[i] : 0.0f);
    }
    for (group = 0; group < c.group; group++) {
        const float *g_gy = gy + (ptrdiff_t)group * outputs * pixels;
        const float *g_w = w + (ptrdiff_t)group * outputs * channels * taps;
        float *g_gx = gx + (ptrdiff_t)group * channels * plane;
        poetc_gemm g;
        g.a_row = 1, g.a_k = (ptrdiff_t)channels * taps, g.terms = terms, g.a_block = terms * g.a_k;
        g.column_bias = NULL;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        for (row = 0; row < all_rows; row += block_rows) {
            const int32_t rows = poetc_min(block_rows, all_rows - row);
            const int32_t start = row * c.output_width, end = start + rows * c.output_width;
            const int32_t panels = (end - start + COLUMNS - 1) / COLUMNS * COLUMNS;
            /* What is packed serves all channels: each block of terms stays where it is. */
            const int once = (int64_t)((outputs + terms - 1) / terms) * panels <= space.columns;
            for (channel = POETC_BEGIN(c.share, channels, 1); channel < POETC_END(c.share, channels, 1); channel += block) {
                const int32_t count = poetc_min(block, POETC_END(c.share, channels, 1) - channel);
                g.rows = count * taps;
                g.row_bias = pointwise && bias ? bias + (ptrdiff_t)group * channels + channel : NULL;
                for (column = start; column < end; column += space.columns) {
                    g.columns = poetc_min(space.columns, end - column);
                    if (pointwise) {
                        g.y = g_gx + (ptrdiff_t)channel * plane, g.y_row = plane, g.column = column;
                        g.segment = pixels, g.segment_step = (ptrdiff_t)c.channels * plane;
                    } else {
                        g.y = workspace, g.y_row = end - start, g.column = column - start;
                        g.segment = end - start, g.segment_step = 0;
                    }
                    for (first = 0; first < outputs; first += space.depth) {
                        g.depth = poetc_min(space.depth, outputs - first);
                        space.panels = packed + (once ? (ptrdiff_t)first * panels : 0);
                        if (channel == POETC_BEGIN(c.share, channels, 1) || !once)
                            poetc_pack_planes(&space, g_gy, c.outputs, pixels, first, g.depth, column, g.columns);
                        g.a = g_w + (first * (ptrdiff_t)channels + channel) * taps, g.accumulate = first > 0;
                        poetc_gemm_run(&g, &space);
                    }
                }
                if (!pointwise)
                    spread_somehow(&c, workspace, count, row, rows, bias ? bias + (ptrdiff_t)group * channels + channel : NULL,
                                   g_gx + (ptrdiff_t)channel * plane);
            }
        }
    }
    return POETC_OK;
}
