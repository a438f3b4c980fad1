/* Codes with a scale and a zero point, element by element, average pooling, and updates (poetc/ops/qlinear.py,
 * qlinear_layers.py, qlinear_update.py).
 *
 * Layout: dense arrays. Weights have their output channels first, and one scale for each.
 * Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#include "int8/poetc_linear_sgd.h"

#define MOST_BIAS 1073741824 /* 2^30 */

/* The ints of all element-wise kernels: elements, zero, low, high, and those that their own comments name. */
typedef struct {
    int32_t count, zero, low, high;
} coded;

static coded describe(const poetc_call *call)
{
    coded c;
    __builtin_memcpy(&c, call->ints, sizeof c);
    return c;
}

/* x, floats -> codes. floats: scale. */
int poetc_op_qlinear_quantize(const poetc_call *call);
int poetc_op_qlinear_quantize(const poetc_call *call)
{
    const coded c = describe(call);
    const float *x = poetc_in(call, 0), scale = call->floats[0];
    int8_t *q = poetc_out(call, 1);
    int32_t i;
    uint32_t word, largest = 0u;
    for (i = 0; i < c.count; i++) {
        __builtin_memcpy(&word, x + i, sizeof word);
        word &= 0x7fffffffu;
        largest = word > largest ? word : largest;
        q[i] = poetc_requantized(x[i] / scale, c.zero, c.low, c.high);
    }
    return largest >= 0x7f800000u ? POETC_ENUMBER : POETC_OK;
}

/* codes -> floats. floats: scale. */
int poetc_op_qlinear_dequantize(const poetc_call *call);
int poetc_op_qlinear_dequantize(const poetc_call *call)
{
    const coded c = describe(call);
    const int8_t *q = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    const float scale = call->floats[0];
    int32_t i;
    for (i = 0; i < c.count; i++)
        y[i] = (float)(q[i] - c.zero) * scale;
    return POETC_OK;
}

/* w, scale of each output -> floats. ints: elements, those of an output. */
int poetc_op_qlinear_dequantize_channels(const poetc_call *call);
int poetc_op_qlinear_dequantize_channels(const poetc_call *call)
{
    const int8_t *w = poetc_in(call, 0);
    const float *scale = poetc_in(call, 1);
    float *y = poetc_out(call, 2);
    int32_t left = call->ints[0], length = call->ints[1], i;
    for (; left > 0; left -= length, scale++)
        for (i = 0; i < length; i++)
            *y++ = (float)*w++ * *scale;
    return POETC_OK;
}

/* gy, codes y -> gx. */
int poetc_op_qlinear_slope(const poetc_call *call);
int poetc_op_qlinear_slope(const poetc_call *call)
{
    const coded c = describe(call);
    const float *gy = poetc_in(call, 0);
    const int8_t *y = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    int32_t i;
    for (i = 0; i < c.count; i++)
        gx[i] = y[i] > c.low && y[i] < c.high ? gy[i] : 0.0f;
    return POETC_OK;
}

/* codes -> codes. ints: zero of x. floats: scale, that of x. */
int poetc_op_qlinear_rescale(const poetc_call *call);
int poetc_op_qlinear_rescale(const poetc_call *call)
{
    const coded c = describe(call);
    const int32_t zero_x = call->ints[4];
    const int8_t *x = poetc_in(call, 0);
    int8_t *y = poetc_out(call, 1);
    const float scale = call->floats[0], scale_x = call->floats[1];
    int32_t i;
    for (i = 0; i < c.count; i++)
        y[i] = poetc_requantized((float)(x[i] - zero_x) * scale_x / scale, c.zero, c.low, c.high);
    return POETC_OK;
}

/* codes a, codes b -> codes. ints: zeros of a and b. floats: scale, those of a and b. */
int poetc_op_qlinear_add(const poetc_call *call);
int poetc_op_qlinear_add(const poetc_call *call)
{
    const coded c = describe(call);
    const int32_t zero_a = call->ints[4], zero_b = call->ints[5];
    const int8_t *a = poetc_in(call, 0), *b = poetc_in(call, 1);
    int8_t *y = poetc_out(call, 2);
    const float scale = call->floats[0], scale_a = call->floats[1], scale_b = call->floats[2];
    int32_t i;
    for (i = 0; i < c.count; i++) {
        const float first = (float)(a[i] - zero_a) * scale_a;
        const float sum = POETC_FMA((float)(b[i] - zero_b), scale_b, first);
        y[i] = poetc_requantized(sum / scale, c.zero, c.low, c.high);
    }
    return POETC_OK;
}

/* --- average pooling ---------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t planes, height, width, output_height, output_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t counted[4]; /* how far the image that counts reaches beyond the real one: top, left, bottom, right */
    int32_t zero_x, zero, low, high;
} pooling;

static int32_t taps_inside(int32_t start, int32_t kernel, int32_t dilation, int32_t low, int32_t high)
{
    int32_t i, count = 0;
    for (i = 0; i < kernel; i++)
        count += start + i * dilation >= low && start + i * dilation < high;
    return count;
}

/* x -> y. floats: scale, that of x. */
int poetc_op_int8_qlinear_average_pool(const poetc_call *call);
int poetc_op_int8_qlinear_average_pool(const poetc_call *call)
{
    const int8_t *x = poetc_in(call, 0);
    int8_t *y = poetc_out(call, 1);
    const float scale = call->floats[0], scale_x = call->floats[1];
    pooling p;
    int32_t plane, oh, ow, i, j;
    __builtin_memcpy(&p, call->ints, sizeof p);
    for (plane = 0; plane < p.planes; plane++, x += p.height * p.width)
        for (oh = 0; oh < p.output_height; oh++)
            for (ow = 0; ow < p.output_width; ow++) {
                const int32_t top = oh * p.stride_h - p.pad_top, left = ow * p.stride_w - p.pad_left;
                int32_t sum = 0, taps;
                for (i = 0; i < p.kernel_h; i++) {
                    const int32_t h = top + i * p.dilation_h;
                    for (j = 0; h >= 0 && h < p.height && j < p.kernel_w; j++) {
                        const int32_t w = left + j * p.dilation_w;
                        if (w >= 0 && w < p.width)
                            sum += x[h * p.width + w] - p.zero_x;
                    }
                }
                taps = taps_inside(top, p.kernel_h, p.dilation_h, -p.counted[0], p.height + p.counted[2]) *
                       taps_inside(left, p.kernel_w, p.dilation_w, -p.counted[1], p.width + p.counted[3]);
                *y++ = poetc_requantized((float)sum * scale_x / (float)taps / scale, p.zero, p.low, p.high);
            }
    return POETC_OK;
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

/* w, count, g, scale of each output, lr, step -> w, count. ints: elements, those of an output, whether rounding is
 * stochastic, seed. */
int poetc_op_qlinear_sgd(const poetc_call *call);
int poetc_op_qlinear_sgd(const poetc_call *call)
{
    const int8_t *w = poetc_in(call, 0);
    const int32_t *count = poetc_in(call, 1), *step = poetc_in(call, 5);
    const float *g = poetc_in(call, 2), *scale = poetc_in(call, 3), *rate = poetc_in(call, 4);
    int8_t *q = poetc_out(call, 6);
    int32_t *total = poetc_out(call, 7), i, next = 0;
    const int32_t elements = call->ints[0], length = call->ints[1];
    poetc_moving moving = poetc_moving_of(call->ints[2], (uint32_t)call->ints[3], (uint32_t)*step, *count);
    float factor = 0.0f;
    for (i = 0; i < elements; i++) {
        if (i == next) {
            factor = *rate / *scale++;
            next += length;
        }
        q[i] = poetc_moved(&moving, w[i], g[i] * factor, i);
    }
    *total = moving.clipped;
    return POETC_OK;
}

/* b, g, scale of each output, lr -> b. floats: scale of x. */
int poetc_op_qlinear_bias_sgd(const poetc_call *call);
int poetc_op_qlinear_bias_sgd(const poetc_call *call)
{
    const int32_t *b = poetc_in(call, 0);
    const float *g = poetc_in(call, 1), *scale = poetc_in(call, 2), *rate = poetc_in(call, 3);
    int32_t *moved = poetc_out(call, 4), i;
    for (i = 0; i < call->ints[0]; i++) {
        float v = g[i] * (*rate / (call->floats[0] * scale[i]));
        int32_t next;
        v = poetc_clipped(v, -(float)MOST_BIAS, (float)MOST_BIAS);
        next = b[i] - (int32_t)(v + (v < 0.0f ? -0.5f : 0.5f)); /* both are within 2^30 */
        moved[i] = next > MOST_BIAS ? MOST_BIAS : next < -MOST_BIAS ? -MOST_BIAS : next;
    }
    return POETC_OK;
}
