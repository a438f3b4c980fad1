/* Depthwise convolution under 3 x 3 filters on Helium: four channels at once.
 *
 * Layout: each lane is a channel, and floats a plane apart are gathered. Taps beyond the border are left out, so no
 * strip is needed.
 * Order of sums: that of depthwise.c; a tap that is left out would have added a product of zero. */
#ifndef POETC_DEPTHWISE_CHANNELS_H
#define POETC_DEPTHWISE_CHANNELS_H

#include "depthwise/poetc_depthwise.h"

/* A 3 x 3 window over planes of `height` x `width` that makes `rows` x `columns`. */
typedef struct {
    int32_t height, width, rows, columns, stride;
    int32_t above, left;  /* rows and columns of zeros before the plane: none or one */
    int32_t below, right; /* or behind it, or -1: a pixel that no window sees */
} window;

/* Whether there are loops for it. */
static int has_lanes_of_channels(const convolution *c, window *w)
{
    const int32_t stride = c->stride_h;
    w->height = c->height, w->width = c->width, w->rows = c->output_height, w->columns = c->output_width,
    w->stride = stride;
    w->above = c->pad_top, w->left = c->pad_left;
    w->below = (c->output_height - 1) * stride + 3 - c->pad_top - c->height;
    w->right = (c->output_width - 1) * stride + 3 - c->pad_left - c->width;
    if (c->kernel_h != 3 || c->kernel_w != 3 || c->dilation_h != 1 || c->dilation_w != 1 || c->stride_w != stride ||
        c->channels < 4)
        return 0;
    if (c->pad_top > 1 || c->pad_left > 1 || w->below > 1 || w->right > 1)
        return 0;
    if (stride == 2 && c->output_width < c->pad_left + w->right) /* a single column between zeros */
        return 0;
    return stride == 2 || (stride == 1 && c->pad_left == 1 && w->right == 1 && c->pad_top == 1 && w->below == 1);
}

/* Addresses of four planes or filters. */
static inline uint32x4_t planes_from(const float *first, int32_t apart)
{
    return vaddq_n_u32(vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)apart), (uint32_t)first);
}

/* The filters of four channels, tap after tap; turned: the last tap first. */
static inline void gather_filters(float *to, const float *weight, int turned)
{
    const uint32x4_t from = planes_from(weight, 9);
    float32x4_t w;
#define TAP_OF(i, step) "vldrw.u32 %q[w], [%q[from], #4*" #i "]\n\tvstrw.32 %q[w], [%[to]], #" step "\n\t"
#define TAPS_OF(step)                                                                                                  \
    TAP_OF(0, step) TAP_OF(1, step) TAP_OF(2, step) TAP_OF(3, step) TAP_OF(4, step) TAP_OF(5, step) TAP_OF(6, step)      \
    TAP_OF(7, step) TAP_OF(8, step)
    if (turned)
        to += 32;
    if (turned)
        __asm__ volatile(TAPS_OF("-16") : [w] "=&w"(w), [to] "+r"(to) : [from] "w"(from) : "memory");
    else
        __asm__ volatile(TAPS_OF("16") : [w] "=&w"(w), [to] "+r"(to) : [from] "w"(from) : "memory");
#undef TAPS_OF
#undef TAP_OF
}

/* All planes of an image, three columns of the result at a time (the last time the rest of them), from the top down.
 * The start values of the sums come before the weights. */
POETC_APART void correlate_channels(const window *p, const float *x, const float *weight, const float *bias,
                                    int32_t channels, float *y, int turned)
{
    const int32_t plane = p->height * p->width, result = p->rows * p->columns;
    const int32_t line = 4 * p->width, back = -line * (3 - p->stride), y_row = 4 * p->columns,
                  column_step = 12 * p->stride;
    const int32_t last = 3 - (p->below > 0), most = p->rows == 1 ? last : 3, right = p->right > 0;
    const int32_t middle_kind = 12 * p->stride - 4, last_kind = middle_kind - 4 * (2 - (p->columns - 1) % 3) + right;
    const int32_t first_kind = (p->columns > 3 ? middle_kind : last_kind) + 2 * p->left;
    const uint32x4_t planes = planes_from(x - p->left, plane), results = planes_from(y, result);
    float weights[40] = {0.0f}; /* after the start */
    int32_t channel;
    for (channel = 0; channel < channels; channel += 4) {
        uint32x4_t from, to;
        int32_t left, kind = first_kind;
        if (channel > channels - 4) /* some channels twice */
            channel = channels - 4;
        gather_filters(weights + 4, weight + 9 * channel, turned);
        if (bias)
            vst1q_f32(weights, vld1q_f32(bias + channel));
        from = vaddq_n_u32(planes, 4u * (uint32_t)(plane * channel)),
        to = vaddq_n_u32(results, 4u * (uint32_t)(result * channel));
        for (left = p->columns; left > 0; left -= 3) {
            const float *w = weights + 4 + 12 * p->above;
            int32_t rows = p->rows, lines = most - p->above;
            uint32x4_t x_at = from, y_at = to;
            float32x4_t a, b, c, u, v, s, t;
#define X(i) "vldrw.u32 %q[t], [%q[x], #4*" #i "]\n\t"
#define TAKE(sum, weight) "vfma.f32 %q[" #sum "], %q[t], %q[" #weight "]\n\t"
#define START_1 "vldrw.u32 %q[a], [%[weights]]\n\t"
#define START_2 START_1 "vmov %q[b], %q[a]\n\t"
#define START_3 START_2 "vmov %q[c], %q[a]\n\t"
#define STORE_1 "vldrw.u32 %q[t], %[y]\n\tvstrw.32 %q[a], [%q[t]]\n\t"
#define STORE_2 STORE_1 "vstrw.32 %q[b], [%q[t], #4]\n\t"
#define STORE_3 STORE_2 "vstrw.32 %q[c], [%q[t], #8]\n\t"
#define ROWS(number, n, body)                                                                                          \
    case number:                                                                                                       \
        __asm__ volatile("1:\tdls lr, %[lines]\n\t" START_##n                                                          \
                         "2:\tvldrw.u32 %q[u], [%[w]], #16\n\tvldrw.u32 %q[v], [%[w]], #16\n\tvldrw.u32 %q[s], [%[w]], #16\n\t" \
                         body "vadd.i32 %q[x], %q[x], %[line]\n\tle lr, 2b\n\t"                                        \
                         STORE_##n "vadd.i32 %q[t], %q[t], %[y_row]\n\tvstrw.32 %q[t], %[y]\n\t"                        \
                         "cmp %[rows], #2\n\tite eq\n\tmoveq %[lines], %[last]\n\tmovne %[lines], #3\n\t"              \
                         "add %[w], %[weights], #16\n\tvadd.i32 %q[x], %q[x], %[back]\n\tsubs %[rows], #1\n\tbne 1b"    \
                         : [a] "=&w"(a), [b] "=&w"(b), [c] "=&w"(c), [u] "=&w"(u), [v] "=&w"(v), [s] "=&w"(s),         \
                           [t] "=&w"(t), [x] "+w"(x_at), [w] "+&r"(w), [rows] "+&r"(rows), [lines] "+&r"(lines), [y] "+Ux"(y_at) \
                         : [line] "r"(line), [back] "r"(back), [y_row] "r"(y_row), [last] "r"(last), [weights] "r"(weights) \
                         : "lr", "cc", "memory");                                                                      \
        break;
#define FIRST X(0) TAKE(a, u)
#define ONE X(1) TAKE(a, v)
#define ONE_END X(2) TAKE(a, s)
#define TWO X(1) TAKE(a, v) TAKE(b, u) X(2) TAKE(a, s) TAKE(b, v)
#define THREE X(1) TAKE(a, v) TAKE(b, u) X(2) TAKE(a, s) TAKE(b, v) TAKE(c, u) X(3) TAKE(b, s) TAKE(c, v)
#define THREE_END X(4) TAKE(c, s)
#define TWO_APART X(1) TAKE(a, v) X(2) TAKE(a, s) TAKE(b, u) X(3) TAKE(b, v)
#define TWO_APART_END X(4) TAKE(b, s)
#define THREE_APART TWO_APART TWO_APART_END TAKE(c, u) X(5) TAKE(c, v)
#define THREE_APART_END X(6) TAKE(c, s)
            switch (kind) { /* without strides there are zeros on both sides */
                ROWS(1, 1, FIRST ONE)
                ROWS(3, 1, ONE)
                ROWS(5, 2, FIRST TWO)
                ROWS(7, 2, TWO)
                ROWS(8, 3, FIRST THREE THREE_END)
                ROWS(9, 3, FIRST THREE)
                ROWS(10, 3, THREE THREE_END)
                ROWS(11, 3, THREE)
                ROWS(12, 1, FIRST ONE ONE_END)
                ROWS(13, 1, FIRST ONE)
                ROWS(14, 1, ONE ONE_END)
                ROWS(16, 2, FIRST TWO_APART TWO_APART_END)
                ROWS(17, 2, FIRST TWO_APART)
                ROWS(18, 2, TWO_APART TWO_APART_END)
                ROWS(19, 2, TWO_APART)
                ROWS(20, 3, FIRST THREE_APART THREE_APART_END)
                ROWS(21, 3, FIRST THREE_APART)
                ROWS(22, 3, THREE_APART THREE_APART_END)
            default: ROWS(23, 3, THREE_APART)
            }
#undef THREE_APART_END
#undef THREE_APART
#undef TWO_APART_END
#undef TWO_APART
#undef THREE_END
#undef THREE
#undef TWO
#undef ONE_END
#undef ONE
#undef FIRST
#undef ROWS
#undef STORE_3
#undef STORE_2
#undef STORE_1
#undef START_3
#undef START_2
#undef START_1
#undef TAKE
#undef X
            kind = left > 6 ? middle_kind : last_kind;
            from = vaddq_n_u32(from, (uint32_t)column_step), to = vaddq_n_u32(to, 12);
        }
    }
}

/* The products of `rows` rows of gy for every other row of the gradient of the input under strides of two. They are of
 * one line of the filter; or more for these rows. Addresses are those of the pixels before the first ones. */
POETC_APART void spread_rows(const window *p, uint32x4_t gy, const float *weights, uint32x4_t gx, int more,
                             int32_t rows)
{
    const int32_t right = p->right > 0, count = p->columns - p->left - right, skip = 4 * p->width;
    const float32x4_t u = vld1q_f32(weights), v = vld1q_f32(weights + 4), s = vld1q_f32(weights + 8);
    float32x4_t g, even, odd;
    if (rows <= 0)
        return;
#define G "vldrw.u32 %q[g], [%q[gy], #4]!\n\t"
#define MAKE(sum, weight) "vmul.f32 %q[" #sum "], %q[g], %q[" #weight "]\n\t"
#define TAKE(sum, weight) "vfma.f32 %q[" #sum "], %q[g], %q[" #weight "]\n\t"
#define LOAD(sum) "vldrw.u32 %q[" #sum "], [%q[gx], #4]\n\t"
#define STORE(sum) "vstrw.32 %q[" #sum "], [%q[gx], #4]!\n\t"
#define ROWS(before, inside, after)                                                                                    \
    __asm__ volatile("1:\t" before "wls lr, %[n], 3f\n2:\t" inside "le lr, 2b\n3:\t" after                             \
                     "subs %[rows], #1\n\tvadd.i32 %q[gx], %q[gx], %[skip]\n\tbne 1b"                                  \
                     : [g] "=&w"(g), [even] "=&w"(even), [odd] "=&w"(odd), [gy] "+w"(gy), [gx] "+w"(gx), [rows] "+&r"(rows) \
                     : [n] "r"(count), [u] "w"(u), [v] "w"(v), [s] "w"(s), [skip] "r"(skip)                            \
                     : "lr", "cc", "memory")
#define FIRST G MAKE(odd, v) STORE(odd) MAKE(even, s)
#define PAIR G TAKE(even, u) STORE(even) MAKE(odd, v) STORE(odd) MAKE(even, s)
#define FIRST_MORE G LOAD(odd) TAKE(odd, v) STORE(odd) LOAD(even) TAKE(even, s)
#define LAST_MORE G TAKE(even, u) STORE(even) LOAD(odd) TAKE(odd, v) STORE(odd)
#define PAIR_MORE LAST_MORE LOAD(even) TAKE(even, s)
#define NONE "vmov.i32 %q[even], #0\n\t"
    switch (4 * more + 2 * p->left + right) {
    case 0: ROWS(NONE, PAIR, STORE(even)); break;
    case 1: ROWS(NONE, PAIR, G TAKE(even, u) STORE(even) MAKE(odd, v) STORE(odd)); break;
    case 2: ROWS(FIRST, PAIR, STORE(even)); break;
    case 3: ROWS(FIRST, PAIR, G TAKE(even, u) STORE(even) MAKE(odd, v) STORE(odd)); break;
    case 4: ROWS(LOAD(even), PAIR_MORE, STORE(even)); break;
    case 5: ROWS(LOAD(even), PAIR_MORE, LAST_MORE); break;
    case 6: ROWS(FIRST_MORE, PAIR_MORE, STORE(even)); break;
    default: ROWS(FIRST_MORE, PAIR_MORE, LAST_MORE); break;
    }
#undef NONE
#undef PAIR_MORE
#undef LAST_MORE
#undef FIRST_MORE
#undef PAIR
#undef FIRST
#undef ROWS
#undef STORE
#undef LOAD
#undef TAKE
#undef MAKE
#undef G
}

/* The gradient of all planes under strides of two, a line of the filters after the other. First comes the middle one,
 * which alone makes its rows, then the first. The last adds to the rows of the first but for one behind them. */
POETC_APART void spread_channels(const window *p, const float *gy, const float *weight, int32_t channels, float *gx)
{
    const int32_t plane = p->height * p->width, result = p->rows * p->columns;
    const uint32_t row = 4u * (uint32_t)p->width, line = 4u * (uint32_t)p->columns;
    const uint32x4_t planes = planes_from(gx - 1 - p->above * p->width, plane), results = planes_from(gy - 1, result);
    float weights[36];
    int32_t channel;
    for (channel = 0; channel < channels; channel += 4) {
        uint32x4_t to, from;
        if (channel > channels - 4) /* some channels twice */
            channel = channels - 4;
        gather_filters(weights, weight + 9 * channel, 0);
        to = vaddq_n_u32(planes, 4u * (uint32_t)(plane * channel)),
        from = vaddq_n_u32(results, 4u * (uint32_t)(result * channel));
        spread_rows(p, from, weights + 12, vaddq_n_u32(to, row), 0, p->rows);
        spread_rows(p, vaddq_n_u32(from, (uint32_t)p->above * line), weights,
                    vaddq_n_u32(to, 2 * (uint32_t)p->above * row), 0, p->rows - p->above);
        spread_rows(p, from, weights + 24, vaddq_n_u32(to, 2 * row), 1, p->rows - 1);
        if (p->below <= 0)
            spread_rows(p, vaddq_n_u32(from, (uint32_t)(p->rows - 1) * line), weights + 24,
                        vaddq_n_u32(to, (uint32_t)(2 * p->rows) * row), 0, 1);
    }
}

static void add_sums(float *totals, float32x4_t a, float32x4_t b, float32x4_t c, int more)
{
    vst1q_f32(totals, more ? vaddq_f32(vld1q_f32(totals), a) : a);
    vst1q_f32(totals + 4, more ? vaddq_f32(vld1q_f32(totals + 4), b) : b);
    vst1q_f32(totals + 8, more ? vaddq_f32(vld1q_f32(totals + 8), c) : c);
}

#define MOST_TERMS 512 /* about as many follow each other in a sum, so that its rounding error does not grow with the planes */

/* The gradient of all weights. */
POETC_APART void add_taps_of_channels(const window *p, const float *x, const float *gy, int32_t batch, int32_t channels,
                                      float *gw)
{
    const int32_t plane = p->height * p->width, result = p->rows * p->columns, right = p->right > 0;
    const int32_t is_single = p->stride == 1 && p->columns == 1;
    const int32_t count = is_single ? 0 : p->columns - p->left - right;
    const int32_t kind = p->stride == 1 ? 4 + is_single : 2 * p->left + right;
    const int32_t skip = 4 * (p->stride * p->width - ((p->columns - 1) * p->stride + 3 - p->left - right));
    uint32_t planes[4], gradients[4], filters[4], first_x[3], first_gy[3];      /* addresses, and distances in bytes */
    const int32_t most = p->columns < MOST_TERMS ? MOST_TERMS / p->columns : 1; /* rows */
    float totals[12];
    int32_t rows_of[3], channel, n, kh;
    vst1q_u32(planes, planes_from(x - 1, plane)), vst1q_u32(gradients, planes_from(gy - 1, result)),
        vst1q_u32(filters, planes_from(gw, 9));
    for (kh = 0; kh < 3; kh++) {
        const int32_t first = kh < p->above; /* rows of gy */
        rows_of[kh] = p->rows - first - (kh == 2 && p->below > 0);
        first_x[kh] = 4u * (uint32_t)((first * p->stride + kh - p->above) * p->width);
        first_gy[kh] = 4u * (uint32_t)(first * p->columns);
    }
    for (channel = 0; channel < channels; channel += 4) {
        if (channel > channels - 4) /* some channels twice */
            channel = channels - 4;
        for (kh = 0; kh < 3; kh++) {
            uint32x4_t to;
            uint32_t from = first_x[kh] + 4u * (uint32_t)(channel * plane);
            uint32_t gradient = first_gy[kh] + 4u * (uint32_t)(channel * result);
            float32x4_t a = (float32x4_t)vdupq_n_u32(0), b = (float32x4_t)vdupq_n_u32(0),
                        c = (float32x4_t)vdupq_n_u32(0);
            int32_t held = 0, blocks = 0, left; /* rows in the sums; sums in the totals */
            for (n = rows_of[kh] > 0 ? batch : 0; n > 0; n--) {
                uint32x4_t at = vaddq_n_u32(vld1q_u32(planes), from),
                           gy_at = vaddq_n_u32(vld1q_u32(gradients), gradient);
                int32_t rows;
                float32x4_t g, u, v;
#define X(to) "vldrw.u32 %q[" #to "], [%q[x], #4]!\n\t"
#define G "vldrw.u32 %q[g], [%q[gy], #4]!\n\t"
#define TAKE(sum, from) "vfma.f32 %q[" #sum "], %q[g], %q[" #from "]\n\t"
#define ROWS(first, middle, last)                                                                                      \
    __asm__ volatile("1:\t" first "wls lr, %[n], 3f\n\t"                                                                \
                     "2:\t" middle "le lr, 2b\n3:\t" last "subs %[rows], #1\n\tvadd.i32 %q[x], %q[x], %[skip]\n\tbne 1b"   \
                     : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [g] "=&w"(g), [u] "=&w"(u), [v] "=&w"(v), [x] "+w"(at),    \
                       [gy] "+w"(gy_at), [rows] "+&r"(rows)                                                            \
                     : [n] "r"(count), [skip] "r"(skip)                                                                \
                     : "lr", "cc", "memory")
#define APART_LAST G TAKE(a, u) X(v) TAKE(b, v)
#define APART APART_LAST X(u) TAKE(c, u)
#define APART_FIRST G X(v) TAKE(b, v) X(u) TAKE(c, u)
                for (left = rows_of[kh]; left > 0; left -= most) {
                    rows = left < most ? left : most, held += rows;
                    switch (kind) {
                    case 0: ROWS(X(u), APART, ""); break;
                    case 1: ROWS(X(u), APART, APART_LAST); break;
                    case 2: ROWS(APART_FIRST, APART, ""); break;
                    case 3: ROWS(APART_FIRST, APART, APART_LAST); break;
                    case 5: ROWS("", "", X(u) G TAKE(b, u)); break;
                    default:
                        /* clang-format off */
                        ROWS(X(u) G TAKE(b, u) X(v) TAKE(c, v), G TAKE(a, u) "vmov %q[u], %q[v]\n\t" TAKE(b, u) X(v) TAKE(c, v),
                             G TAKE(a, u) TAKE(b, v));
                        /* clang-format on */
                    }
                    if (held >= most) {
                        add_sums(totals, a, b, c, blocks++ > 0);
                        a = b = c = (float32x4_t)vdupq_n_u32(0), held = 0;
                    }
                }
                from += 4u * (uint32_t)(channels * plane), gradient += 4u * (uint32_t)(channels * result);
#undef APART_FIRST
#undef APART
#undef APART_LAST
#undef ROWS
#undef TAKE
#undef G
#undef X
            }
            if (blocks > 0)
                a = vaddq_f32(vld1q_f32(totals), a), b = vaddq_f32(vld1q_f32(totals + 4), b),
                c = vaddq_f32(vld1q_f32(totals + 8), c);
            to = vaddq_n_u32(vld1q_u32(filters), (uint32_t)(36 * channel + 12 * kh));
            vstrwq_scatter_base_f32(to, 0, a), vstrwq_scatter_base_f32(to, 4, b), vstrwq_scatter_base_f32(to, 8, c);
        }
    }
}

#endif
