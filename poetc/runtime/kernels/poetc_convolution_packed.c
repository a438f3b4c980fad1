#include "poetc_convolution_packed.h"
#if defined(POETC_HELIUM)
#include "poetc_direct_helium.h"
#endif

void poetc_pack_planes(const poetc_gemm_space *space, const float *from, int32_t channels, int32_t pixels, int32_t first,
                       int32_t depth, int32_t column, int32_t columns)
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
    const float *a = t->a, *b = t->b;
    float *y = t->y;
    float32x4_t sum[6], v;
    int32_t channel;
    int i;
    POETC_UNROLL
    for (i = 0; i < rows; i++)
        sum[i] = vdupq_n_f32(t->bias ? t->bias[i] : 0.0f);
    for (channel = t->channels; channel > 0; channel--, b += t->plane, a += t->skip) {
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
    if (t->accumulate) {
        const mve_pred16_t lanes = vctp32q((uint32_t)t->lanes);
        POETC_UNROLL
        for (i = 0; i < rows; i++, y += t->y_row)
            vstrwq_p_f32(y, vaddq_f32(vldrwq_z_f32(y, lanes), sum[i]), lanes);
        return;
    }
    POETC_UNROLL
    for (i = 0; i < rows; i++, y += t->y_row)
        vst1q_f32(y, sum[i]);
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
