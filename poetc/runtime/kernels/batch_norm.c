/* Batch normalisation of [N, C, pixels]. Sums over N and the pixels go in blocks of four lanes and carry compensation. */
#include "poetc_f4.h"
#include "poetc_math.h"

#define BLOCK 256

/* Σ (a[i] - shift) * (b ? b[i] : 1) over one plane, added to `sum`. */
static void add_plane(poetc_compensated *sum, const float *a, float shift, const float *b, int32_t count)
{
    const poetc_f4 centre = poetc_f4_set(shift, shift, shift, shift);
    int32_t i = 0;
    while (i < count) {
        int32_t end = count - i > BLOCK ? i + BLOCK : count;
        poetc_f4 lanes = POETC_F4_ZERO;
        float tail = 0.0f;
        for (; i + 4 <= end; i += 4) {
            poetc_f4 v = poetc_f4_sub(poetc_f4_load(a + i), centre);
            lanes = poetc_f4_add(lanes, b ? poetc_f4_mul(v, poetc_f4_load(b + i)) : v);
        }
        for (; i < end; i++)
            tail += b ? (a[i] - shift) * b[i] : a[i] - shift;
        poetc_compensated_add(sum, poetc_f4_total(lanes) + tail);
    }
}

/* Σ (a[i] - shift)², likewise. */
static void add_squares(poetc_compensated *sum, const float *a, float shift, int32_t count)
{
    const poetc_f4 centre = poetc_f4_set(shift, shift, shift, shift);
    int32_t i = 0;
    while (i < count) {
        int32_t end = count - i > BLOCK ? i + BLOCK : count;
        poetc_f4 lanes = POETC_F4_ZERO;
        float tail = 0.0f;
        for (; i + 4 <= end; i += 4) {
            poetc_f4 v = poetc_f4_sub(poetc_f4_load(a + i), centre);
            lanes = poetc_f4_add(lanes, poetc_f4_mul(v, v));
        }
        for (; i < end; i++)
            tail += (a[i] - shift) * (a[i] - shift);
        poetc_compensated_add(sum, poetc_f4_total(lanes) + tail);
    }
}

/* x[N,C,pixels] -> mean[C], var[C]. ints of all kernels here: N, C, pixels. */
int poetc_op_batch_norm_stats(const poetc_call *call)
{
    const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];
    const float *x = poetc_in(call, 0);
    float *mean = poetc_out(call, 1), *var = poetc_out(call, 2);
    const float count = (float)batch * (float)pixels;
    int32_t n, c;
    for (c = 0; c < channels; c++) {
        poetc_compensated sum = {0.0f, 0.0f}, squares = {0.0f, 0.0f};
        for (n = 0; n < batch; n++)
            add_plane(&sum, x + ((ptrdiff_t)n * channels + c) * pixels, 0.0f, NULL, pixels);
        mean[c] = sum.total / count;
        for (n = 0; n < batch; n++)
            add_squares(&squares, x + ((ptrdiff_t)n * channels + c) * pixels, mean[c], pixels);
        var[c] = squares.total / count;
    }
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
    for (n = 0; n < batch; n++) {
        for (c = 0; c < channels; c++, x += pixels, y += pixels) {
            const float centre = mean[c], shift = bias[c];
            const float factor = scale[c] * (1.0f / poetc_sqrtf(var[c] + call->floats[0]));
            for (i = 0; i < pixels; i++)
                y[i] = (x[i] - centre) * factor + shift;
        }
    }
    return POETC_OK;
}

/* x, mean, var, gy -> gscale[C], gbias[C] */
int poetc_op_batch_norm_grad_params(const poetc_call *call)
{
    const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];
    const float *x = poetc_in(call, 0), *mean = poetc_in(call, 1), *var = poetc_in(call, 2), *gy = poetc_in(call, 3);
    float *gscale = poetc_out(call, 4), *gbias = poetc_out(call, 5);
    int32_t n, c;
    for (c = 0; c < channels; c++) {
        poetc_compensated products = {0.0f, 0.0f}, sum = {0.0f, 0.0f};
        for (n = 0; n < batch; n++) {
            ptrdiff_t at = ((ptrdiff_t)n * channels + c) * pixels;
            add_plane(&products, x + at, mean[c], gy + at, pixels);
            add_plane(&sum, gy + at, 0.0f, NULL, pixels);
        }
        gscale[c] = products.total * (1.0f / poetc_sqrtf(var[c] + call->floats[0]));
        gbias[c] = sum.total;
    }
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
    for (n = 0; n < batch; n++) {
        for (c = 0; c < channels; c++, x += pixels, gy += pixels, gx += pixels) {
            const float rstd = 1.0f / poetc_sqrtf(var[c] + call->floats[0]);
            const float factor = scale[c] * rstd, slope = rstd * gscale[c] / count, shift = gbias[c] / count;
            const float centre = mean[c];
            for (i = 0; i < pixels; i++)
                gx[i] = factor * ((gy[i] - shift) - (x[i] - centre) * slope);
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
    for (n = 0; n < batch; n++) {
        for (c = 0; c < channels; c++, gy += pixels, gx += pixels) {
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
        new_mean[c] = mean[c] * keep + batch_mean[c] * take;
        new_var[c] = var[c] * keep + batch_var[c] * take;
    }
    return POETC_OK;
}
