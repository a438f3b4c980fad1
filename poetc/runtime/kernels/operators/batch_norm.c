/* Batch normalisation: statistics, the normalised tensor, gradients, running statistics (poetc/ops/batch_norm.py).
 *
 * Layout: x is [N, C, pixels]; parameters and statistics are [C].
 * Order of sums: a channel's sum goes over its planes in sequence. In a plane, blocks of 256 pixels have four lanes and
 * a tail. The sum of each block joins a total that carries its rounding error (Kahan). */
#include "poetc_math.h"
#include "simd/poetc_f4.h"
#include "simd/poetc_vector.h"

#define BLOCK 256

/* Planes whose sums are made side by side, so that one addition need not wait for another. */
#if POETC_LANES > 1
#define TOGETHER 4
#else
#define TOGETHER 1
#endif

typedef enum { PLAIN, PRODUCT, SQUARE } term;

/* To sum[k], of plane k of `planes`: the sum of a[i] - shift, times b[i] (PRODUCT) or itself (SQUARE). `planes` and
 * `what` are constants wherever this is inlined. */
POETC_INLINE void add_planes(const int planes, const term what, poetc_compensated *sum, const float *a,
                             const float *shift, const float *b, int32_t count)
{
    int32_t i = 0;
    int k;
    while (i < count) {
        const int32_t end = count - i > BLOCK ? i + BLOCK : count;
        poetc_f4 lanes[TOGETHER], centre[TOGETHER];
        float tail[TOGETHER];
        POETC_UNROLL
        for (k = 0; k < planes; k++) {
            lanes[k] = POETC_F4_ZERO, tail[k] = 0.0f;
            centre[k] = poetc_f4_set(shift[k], shift[k], shift[k], shift[k]);
        }
        for (; i + 4 <= end; i += 4) {
            POETC_UNROLL
            for (k = 0; k < planes; k++) {
                const ptrdiff_t at = (ptrdiff_t)k * count + i;
                const poetc_f4 v = poetc_f4_sub(poetc_f4_load(a + at), centre[k]);
                const poetc_f4 factor = what == PRODUCT ? poetc_f4_load(b + at) : v;
                lanes[k] = what == PLAIN ? poetc_f4_add(lanes[k], v) : poetc_f4_add_product(lanes[k], v, factor);
            }
        }
        for (; i < end; i++) {
            POETC_UNROLL
            for (k = 0; k < planes; k++) {
                const ptrdiff_t at = (ptrdiff_t)k * count + i;
                const float v = a[at] - shift[k], factor = what == PRODUCT ? b[at] : v;
                tail[k] = what == PLAIN ? tail[k] + v : POETC_FMA(v, factor, tail[k]);
            }
        }
        POETC_UNROLL
        for (k = 0; k < planes; k++)
            poetc_compensated_add(&sum[k], poetc_f4_total(lanes[k]) + tail[k]);
    }
}

/* sum[k], for `planes` channels: over the planes of all images, `image` floats apart. */
POETC_INLINE void sum_planes(const int planes, const term what, float *sum, const float *a, const float *shift,
                             const float *b, int32_t batch, ptrdiff_t image, int32_t count)
{
    poetc_compensated totals[TOGETHER];
    int32_t n;
    int k;
    for (k = 0; k < planes; k++)
        totals[k].total = totals[k].lost = 0.0f;
    for (n = 0; n < batch; n++)
        add_planes(planes, what, totals, a + n * image, shift, what == PRODUCT ? b + n * image : b, count);
    for (k = 0; k < planes; k++)
        sum[k] = totals[k].total;
}

static const float zeros[TOGETHER];

POETC_INLINE void stats(const int planes, const float *x, float *mean, float *var, const poetc_call *call)
{
    const int32_t batch = call->ints[0], pixels = call->ints[2];
    const ptrdiff_t image = (ptrdiff_t)call->ints[1] * pixels;
    const float count = (float)batch * (float)pixels;
    int k;
    sum_planes(planes, PLAIN, mean, x, zeros, NULL, batch, image, pixels);
    for (k = 0; k < planes; k++)
        mean[k] = mean[k] / count;
    sum_planes(planes, SQUARE, var, x, mean, NULL, batch, image, pixels);
    for (k = 0; k < planes; k++)
        var[k] = var[k] / count;
}

/* x[N,C,pixels] -> mean[C], var[C]. ints of all kernels here: N, C, pixels. */
int poetc_op_batch_norm_stats(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    float *mean = poetc_out(call, 1), *var = poetc_out(call, 2);
    int32_t c = POETC_BEGIN(call->share, call->ints[1], TOGETHER);
    POETC_THREADED_OVER(poetc_op_batch_norm_stats, call, (int64_t)2 * call->ints[0] * call->ints[1] * call->ints[2]);
#if TOGETHER > 1
    for (; c + TOGETHER <= POETC_END(call->share, call->ints[1], TOGETHER); c += TOGETHER)
        stats(TOGETHER, x + (ptrdiff_t)c * call->ints[2], mean + c, var + c, call);
#endif
    for (; c < POETC_END(call->share, call->ints[1], TOGETHER); c++)
        stats(1, x + (ptrdiff_t)c * call->ints[2], mean + c, var + c, call);
    return POETC_OK;
}

/* x, mean, var, scale, bias -> y */
int poetc_op_batch_norm_apply(const poetc_call *call)
{
    const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];
    const float *x = poetc_in(call, 0), *mean = poetc_in(call, 1), *var = poetc_in(call, 2);
    const float *scale = poetc_in(call, 3), *bias = poetc_in(call, 4);
    float *y = poetc_out(call, 5);
    int32_t n, c, i;
    POETC_THREADED_OVER(poetc_op_batch_norm_apply, call, call->ints[0] * call->ints[1] * call->ints[2]);
    for (n = 0; n < batch; n++) {
        for (c = 0; c < channels; c++, x += pixels, y += pixels) {
            POETC_SKIP(call->share, c, channels, )
            const float centre = mean[c], shift = bias[c];
            const float factor = scale[c] * (1.0f / poetc_sqrtf(var[c] + call->floats[0]));
            i = 0;
#if POETC_FPU_M
            {
                const float *from = x;
                float *to = y;
                for (; i + 4 <= pixels; i += 4) {
                    POETC_QUAD(v);
                    POETC_LOAD_QUAD_A(v, from);
                    v0 = POETC_FMA(v0 - centre, factor, shift);
                    v1 = POETC_FMA(v1 - centre, factor, shift);
                    v2 = POETC_FMA(v2 - centre, factor, shift);
                    v3 = POETC_FMA(v3 - centre, factor, shift);
                    POETC_STORE_QUAD_A(to, v);
                }
            }
#elif POETC_LANES == 4 /* the compiler makes wider ones, and of the rest too */
            for (; i + POETC_LANES <= pixels; i += POETC_LANES)
                poetc_vector_store(y + i, POETC_FMAV(poetc_vector_load(x + i) - centre, factor, shift));
#endif
            for (; i < pixels; i++)
                y[i] = POETC_FMA(x[i] - centre, factor, shift);
        }
    }
    return POETC_OK;
}

POETC_INLINE void grad_params(const int planes, int32_t c, const poetc_call *call)
{
    const int32_t batch = call->ints[0], pixels = call->ints[2];
    const ptrdiff_t image = (ptrdiff_t)call->ints[1] * pixels, at = (ptrdiff_t)c * pixels;
    const float *x = poetc_in(call, 0), *mean = poetc_in(call, 1), *var = poetc_in(call, 2), *gy = poetc_in(call, 3);
    float *gscale = poetc_out(call, 4), *gbias = poetc_out(call, 5);
    int k;
    sum_planes(planes, PRODUCT, gscale + c, x + at, mean + c, gy + at, batch, image, pixels);
    for (k = 0; k < planes; k++)
        gscale[c + k] = gscale[c + k] * (1.0f / poetc_sqrtf(var[c + k] + call->floats[0]));
    sum_planes(planes, PLAIN, gbias + c, gy + at, zeros, NULL, batch, image, pixels);
}

/* x, mean, var, gy -> gscale[C], gbias[C] */
int poetc_op_batch_norm_grad_params(const poetc_call *call)
{
    int32_t c = POETC_BEGIN(call->share, call->ints[1], TOGETHER);
    POETC_THREADED_OVER(poetc_op_batch_norm_grad_params, call,
                        (int64_t)2 * call->ints[0] * call->ints[1] * call->ints[2]);
#if TOGETHER > 1
    for (; c + TOGETHER <= POETC_END(call->share, call->ints[1], TOGETHER); c += TOGETHER)
        grad_params(TOGETHER, c, call);
#endif
    for (; c < POETC_END(call->share, call->ints[1], TOGETHER); c++)
        grad_params(1, c, call);
    return POETC_OK;
}

/* x, mean, var, scale, gscale, gbias, gy -> gx */
int poetc_op_batch_norm_grad_input(const poetc_call *call)
{
    const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];
    const float *x = poetc_in(call, 0), *mean = poetc_in(call, 1), *var = poetc_in(call, 2), *scale = poetc_in(call, 3);
    const float *gscale = poetc_in(call, 4), *gbias = poetc_in(call, 5), *gy = poetc_in(call, 6);
    float *gx = poetc_out(call, 7);
    const float count = (float)batch * (float)pixels;
    int32_t n, c, i;
    POETC_THREADED_OVER(poetc_op_batch_norm_grad_input, call, call->ints[0] * call->ints[1] * call->ints[2]);
    for (n = 0; n < batch; n++) {
        for (c = 0; c < channels; c++, x += pixels, gy += pixels, gx += pixels) {
            POETC_SKIP(call->share, c, channels, )
            const float rstd = 1.0f / poetc_sqrtf(var[c] + call->floats[0]);
            const float factor = scale[c] * rstd, slope = rstd * gscale[c] / count, shift = gbias[c] / count;
            const float centre = mean[c];
            i = 0;
#if POETC_FPU_M
            {
                const float *from = x, *of = gy;
                float *to = gx;
                for (; i + 4 <= pixels; i += 4) {
                    POETC_QUAD(g);
                    POETC_QUAD(v);
                    POETC_LOAD_QUAD_A(g, of);
                    POETC_LOAD_QUAD_B(v, from);
                    g0 = g0 - shift, g1 = g1 - shift, g2 = g2 - shift, g3 = g3 - shift;
                    v0 = v0 - centre, v1 = v1 - centre, v2 = v2 - centre, v3 = v3 - centre;
                    POETC_MULTIPLY_SUBTRACT_4(g0, g1, g2, g3, v0, slope, v1, slope, v2, slope, v3, slope);
                    g0 = factor * g0, g1 = factor * g1, g2 = factor * g2, g3 = factor * g3;
                    POETC_STORE_QUAD_A(to, g);
                }
            }
#elif POETC_LANES == 4 /* the compiler makes wider ones, and of the rest too */
            for (; i + POETC_LANES <= pixels; i += POETC_LANES) {
                const poetc_vector from_mean = poetc_vector_load(x + i) - centre;
                poetc_vector_store(gx + i, factor * POETC_FMSV(from_mean, slope, poetc_vector_load(gy + i) - shift));
            }
#endif
            for (; i < pixels; i++)
                gx[i] = factor * POETC_FMS(x[i] - centre, slope, gy[i] - shift);
        }
    }
    return POETC_OK;
}

/* var, scale, gy -> gx */
int poetc_op_batch_norm_grad_input_frozen(const poetc_call *call)
{
    const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];
    const float *var = poetc_in(call, 0), *scale = poetc_in(call, 1), *gy = poetc_in(call, 2);
    float *gx = poetc_out(call, 3);
    int32_t n, c, i;
    POETC_THREADED_OVER(poetc_op_batch_norm_grad_input_frozen, call, call->ints[0] * call->ints[1] * call->ints[2]);
    for (n = 0; n < batch; n++) {
        for (c = 0; c < channels; c++, gy += pixels, gx += pixels) {
            POETC_SKIP(call->share, c, channels, )
            const float factor = scale[c] * (1.0f / poetc_sqrtf(var[c] + call->floats[0]));
            for (i = 0; i < pixels; i++)
                gx[i] = gy[i] * factor;
        }
    }
    return POETC_OK;
}

/* running_mean, running_var, mean, var -> the first two, in place. floats: momentum, 1 - momentum. */
int poetc_op_batch_norm_update(const poetc_call *call)
{
    const float *mean = poetc_in(call, 0), *var = poetc_in(call, 1);
    const float *batch_mean = poetc_in(call, 2), *batch_var = poetc_in(call, 3);
    float *new_mean = poetc_out(call, 4), *new_var = poetc_out(call, 5);
    const float keep = call->floats[0], take = call->floats[1];
    int32_t c;
    for (c = 0; c < call->ints[0]; c++) {
        new_mean[c] = POETC_FMA(batch_mean[c], take, mean[c] * keep);
        new_var[c] = POETC_FMA(batch_var[c], take, var[c] * keep);
    }
    return POETC_OK;
}
