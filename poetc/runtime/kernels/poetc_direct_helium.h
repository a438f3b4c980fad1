/* Convolution on Helium without packed pixels: four pixels of a row of the result at a time read an image, with zeros around it where
 * there is padding, at one offset a tap. Sums go over blocks of terms as they do in the packing kernel. */
#ifndef POETC_DIRECT_HELIUM_H
#define POETC_DIRECT_HELIUM_H

#define POETC_STRIPS 1
#include "poetc_direct.h"

typedef struct {
    const float *a, *b; /* packed weights; the first window of four, side by side */
    float *y;
    ptrdiff_t y_row, plane;  /* floats from row to row of the result, from channel to channel of b, less what its lines take */
    int32_t channels, lines; /* of taps */
    int32_t next;            /* bytes from the end of a line to the next one */
    const float *bias;       /* of the first row, or NULL */
    int accumulate;
} direct_task;

/* `rows` x 4 results: constants wherever this is inlined, as are the taps of a line. */
POETC_INLINE void direct_block(const int rows, const int taps, const direct_task *t)
{
    const float *a = t->a, *b = t->b;
    float *y = t->y;
    float32x4_t sum[6], v;
    int32_t channel;
    int i;
    POETC_UNROLL
    for (i = 0; i < rows; i++)
        sum[i] = vdupq_n_f32(t->bias ? t->bias[i] : 0.0f);
    for (channel = t->channels; channel > 0; channel--, b += t->plane) {
#define X "vldrw.u32 %q[v], [%[b]], #4\n\t"
#define TWO "vfma.f32 %q[s0], %q[v], r4\n\tvfma.f32 %q[s1], %q[v], r5\n\t"
#define FOUR TWO "vfma.f32 %q[s2], %q[v], r6\n\tvfma.f32 %q[s3], %q[v], r8\n\t"
#define TAP_1 X "ldr r4, [%[a]], #4\n\tvfma.f32 %q[s0], %q[v], r4\n\t"
#define TAP_2 X "ldmia %[a]!, {r4, r5}\n\t" TWO
#define TAP_4 X "ldmia %[a]!, {r4, r5, r6, r8}\n\t" FOUR
#define TAP_6 X "ldmia %[a]!, {r4, r5, r6, r8, r9, r10}\n\t" FOUR "vfma.f32 %q[s4], %q[v], r9\n\tvfma.f32 %q[s5], %q[v], r10\n\t"
#define S_1 [s0] "+w"(sum[0])
#define S_2 S_1, [s1] "+w"(sum[1])
#define S_4 S_2, [s2] "+w"(sum[2]), [s3] "+w"(sum[3])
#define S_6 S_4, [s4] "+w"(sum[4]), [s5] "+w"(sum[5])
#define LINES(n, text)                                                                                                 \
    __asm__ volatile("dls lr, %[lines]\n1:\t" text "add %[b], %[b], %[next]\n\tle lr, 1b"                               \
                     : S_##n, [v] "=&w"(v), [a] "+r"(a), [b] "+r"(b)                                                   \
                     : [lines] "r"(t->lines), [next] "r"(t->next)                                                      \
                     : "r4", "r5", "r6", "r8", "r9", "r10", "lr", "memory")
#define LINES_OF(n)                                                                                                    \
    do {                                                                                                               \
        if (taps == 3)                                                                                                 \
            LINES(n, TAP_##n TAP_##n TAP_##n);                                                                         \
        else                                                                                                           \
            LINES(n, TAP_##n TAP_##n TAP_##n TAP_##n TAP_##n);                                                         \
    } while (0)
        if (rows == 6)
            LINES_OF(6);
        else if (rows == 4)
            LINES_OF(4);
        else if (rows == 2)
            LINES_OF(2);
        else
            LINES_OF(1);
#undef LINES_OF
#undef LINES
#undef S_6
#undef S_4
#undef S_2
#undef S_1
#undef TAP_6
#undef TAP_4
#undef TAP_2
#undef TAP_1
#undef FOUR
#undef TWO
#undef X
    }
    POETC_UNROLL
    for (i = 0; i < rows; i++, y += t->y_row)
        vst1q_f32(y, t->accumulate ? vaddq_f32(vld1q_f32(y), sum[i]) : sum[i]);
}

#define DEFINE_DIRECT(ROWS)                                                                                            \
    POETC_APART void direct_##ROWS(const direct_task *t, int32_t taps)                                                 \
    {                                                                                                                  \
        if (taps == 3)                                                                                                 \
            direct_block(ROWS, 3, t);                                                                                  \
        else                                                                                                           \
            direct_block(ROWS, 5, t);                                                                                  \
    }
DEFINE_DIRECT(6)
DEFINE_DIRECT(4)
DEFINE_DIRECT(2)
DEFINE_DIRECT(1)
#undef DEFINE_DIRECT

static void run_direct(int32_t rows, int32_t taps, const direct_task *t)
{
    switch (rows) {
    case 6: direct_6(t, taps); break;
    case 4: direct_4(t, taps); break;
    case 2: direct_2(t, taps); break;
    default: direct_1(t, taps); break;
    }
}

/* Conv; returns whether it was done: there must be loops for it, few lanes for nothing, and room for weights and a strip. */
POETC_APART int direct_conv(const convolution *c, const float *x, const float *w, const float *bias, float *y, float *workspace,
                            int32_t size, int32_t depth)
{
    const int32_t inputs = c->channels / c->group, outputs = c->outputs / c->group, taps = c->kernel_h * c->kernel_w;
    const int32_t terms = inputs * taps, width = c->output_width, reach = (c->kernel_h - 1) * c->dilation_h;
    const int is_padded = c->pad_top > 0 || c->pad_left > 0 || (c->output_height - 1) * c->stride_h + reach >= c->height ||
                          width + c->kernel_w - 1 > c->width;
    const int32_t row = is_padded ? width + c->kernel_w - 1 : c->width, most = depth < taps ? 1 : depth / taps;
    const int32_t room = (size - 1 - 6 * terms - DIRECT_LANES) / (inputs * row) - reach - 1;
    const int32_t fit = is_padded ? room < 0 ? 0 : room / c->stride_h + 1 : 6 * terms < size ? c->output_height : 0;
    const int32_t held = poetc_min(c->output_height, fit); /* rows of y at a time */
    float *strip = workspace + 6 * terms;
    int32_t group, n, oh, o, rows, at, r, first;
    if (c->stride_w != 1 || c->dilation_w != 1 || (c->kernel_w != 3 && c->kernel_w != 5) || width < 4)
        return 0;
    if ((width + 3) / 4 * 16 > 5 * width || held * width < 32)
        return 0;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->group; group++) {
            const float *image = x + ((ptrdiff_t)n * c->channels + group * inputs) * c->height * c->width;
            float *result = y + ((ptrdiff_t)n * c->outputs + group * outputs) * c->output_height * width;
            for (oh = 0; oh < c->output_height; oh += held) {
                const int32_t here = poetc_min(held, c->output_height - oh);
                const int32_t plane = is_padded ? ((here - 1) * c->stride_h + reach + 1) * row : c->height * c->width;
                const float *from = is_padded ? strip : image + oh * c->stride_h * row;
                if (is_padded)
                    copy_strip(strip, image, inputs, c->height, c->width, oh * c->stride_h - c->pad_top, plane / row, -c->pad_left, row);
                for (o = 0; o < outputs; o += rows) {
                    direct_task t;
                    rows = outputs - o >= 6 ? 6 : outputs - o >= 4 ? 4 : outputs - o >= 2 ? 2 : 1;
                    poetc_pack_apart(workspace, w + ((ptrdiff_t)group * outputs + o) * terms, terms, rows, terms);
                    t.y_row = (ptrdiff_t)c->output_height * width, t.lines = c->kernel_h;
                    t.next = 4 * (c->dilation_h * row - c->kernel_w), t.plane = plane - (ptrdiff_t)c->kernel_h * c->dilation_h * row;
                    for (r = 0; r < here; r++) {
                        const float *line = from + r * c->stride_h * row;
                        float *to = result + ((ptrdiff_t)o * c->output_height + oh + r) * width;
                        for (at = 0; at < width; at += 4) {
                            const int32_t left = at + 4 > width ? width - 4 : at; /* the last four overlap those before */
                            t.a = workspace, t.b = line + left, t.y = to + left, t.accumulate = 0;
                            t.bias = bias ? bias + group * outputs + o : NULL;
                            for (first = 0; first < inputs; first += most) {
                                t.channels = poetc_min(most, inputs - first);
                                run_direct(rows, c->kernel_w, &t);
                                t.a += (ptrdiff_t)most * taps * rows, t.b += (ptrdiff_t)most * plane, t.accumulate = 1, t.bias = NULL;
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

#endif
