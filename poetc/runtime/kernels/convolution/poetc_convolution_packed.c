/* Functions that the packing kernels of convolution share: panels of whole planes and, on Helium, register blocks that
 * read images directly.
 *
 * Layout: planes of [N, C, pixels] into panels of poetc_gemm.h; a direct block has 1, 2, 4 or 6 rows of four pixels.
 * Order of sums: a direct block adds channel by channel, tap row by tap row, tap by tap, as the packing kernel does. */
#include "convolution/poetc_convolution_packed.h"
#if defined(POETC_HELIUM)
#include "convolution/poetc_direct_helium.h"
#endif

void poetc_pack_planes(const poetc_gemm_space *space, const float *from, int32_t channels, int32_t pixels,
                       int32_t first, int32_t depth, int32_t column, int32_t columns)
{
    int32_t at, k, run;
    for (at = 0; at < columns; at += run) {
        const int32_t image = (column + at) / pixels, pixel = column + at - image * pixels;
        const float *row = from + ((ptrdiff_t)image * channels + first) * pixels + pixel;
        run = poetc_min(pixels - pixel, columns - at);
        for (k = 0; k < depth; k++, row += pixels)
            poetc_gemm_put(space, depth, k, at, row, 1, run);
    }
    poetc_gemm_put_end(space, depth, columns);
}

#if defined(POETC_HELIUM)

/* `rows` x 4 results: constants wherever this is inlined, as are the taps of a line. */
POETC_INLINE void direct_block(const int rows, const int taps, const direct_task *t)
{
    const float *from = t->b;
    float *to = t->y;
    float32x4_t sum[6], v;
    int32_t blocks = t->blocks;
    int i;
#define TAP(n) POETC_STEP_##n("vldrw.u32 %q[v], [%[b]], #4\n\t", "a")
#define LINES(n, text)                                                                                                 \
    __asm__ volatile("1:\tldrd r4, r5, [%[t], %[lines]]\n\tdls lr, r4\n\tadd %[a], %[a], r5, lsl #2\n"                  \
                     "2:\t" text "add %[b], %[b], %[next]\n\tle lr, 2b\n\t"                                            \
                     "ldr r4, [%[t], %[plane]]\n\tsubs %[channels], #1\n\tadd %[b], %[b], r4, lsl #2\n\tbne 1b"           \
                     : POETC_SUMS_##n, [v] "=&w"(v), [a] "+&r"(a), [b] "+&r"(b), [channels] "+&r"(channels)            \
                     : [next] "r"(t->next), [t] "r"(t), [lines] "i"(offsetof(direct_task, lines)), [plane] "i"(offsetof(direct_task, plane)) \
                     : POETC_FACTORS, "lr", "cc", "memory")
#define LINES_OF(n)                                                                                                    \
    do {                                                                                                               \
        if (taps == 3)                                                                                                 \
            LINES(n, TAP(n) TAP(n) TAP(n));                                                                            \
        else                                                                                                           \
            LINES(n, TAP(n) TAP(n) TAP(n) TAP(n) TAP(n));                                                              \
    } while (0)
    do {
        const float *a = t->a - t->skip, *b = from;
        float *y = to;
        int32_t channels = t->channels;
        if (t->bias) {
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                sum[i] = vdupq_n_f32(t->bias[i]);
        } else {
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                sum[i] = vdupq_n_f32(0.0f);
        }
        if (channels > 0)
            POETC_FOR_ROWS(rows, LINES_OF);
        if (t->accumulate) {
            const mve_pred16_t lanes = vctp32q((uint32_t)t->lanes);
            POETC_UNROLL
            for (i = 0; i < rows; i++, y += t->y_row)
                vstrwq_p_f32(y, vaddq_f32(vldrwq_z_f32(y, lanes), sum[i]), lanes);
        } else {
            POETC_UNROLL
            for (i = 0; i < rows; i++, y += t->y_row)
                vst1q_f32(y, sum[i]);
        }
        from += 4, to += 4;
    } while (--blocks > 0);
#undef LINES_OF
#undef LINES
#undef TAP
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

void poetc_direct_run(int32_t rows, int32_t taps, const direct_task *t)
{
    switch (rows) {
    case 6: direct_6(t, taps); break;
    case 4: direct_4(t, taps); break;
    case 2: direct_2(t, taps); break;
    default: direct_1(t, taps); break;
    }
}

#endif
