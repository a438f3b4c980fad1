/* The description of a convolution that its kernels share, and which taps of a window lie on the image.
 *
 * Layout: images are [N, C, H, W], weights [O, C / group, kh, kw].
 * Order of sums: nothing is added here. */
#ifndef POETC_CONVOLUTION_H
#define POETC_CONVOLUTION_H

#include "poetc_kernel.h"

/* ints of all kernels. "image" is Conv's x (ConvTranspose's y), "output" Conv's y (ConvTranspose's x). */
typedef struct {
    int32_t batch, channels, height, width;         /* image */
    int32_t outputs, output_height, output_width;   /* output */
    int32_t kernel_h, kernel_w, stride_h, stride_w; /* window */
    int32_t pad_top, pad_left, dilation_h, dilation_w;
    int32_t group, has_bias; /* of the gradient of a weight, in place of the latter: the operators on x before it
                              * (poetc_norm.h), or 0 */
#ifdef POETC_THREADS
    poetc_share share;
#endif
} convolution;

/* Multiply-adds of a convolution or one of its gradients, or enough. */
#define CONVOLUTION_WORK(c)                                                                                            \
    ((int64_t)(c).batch * (c).outputs * (c).output_height * (c).output_width * (c).kernel_h * (c).kernel_w *           \
     ((c).channels / (c).group))

static inline convolution describe(const poetc_call *call)
{
    const int32_t *i = call->ints;
    convolution c = {i[0],
                     i[1],
                     i[2],
                     i[3],
                     i[4],
                     i[5],
                     i[6],
                     i[7],
                     i[8],
                     i[9],
                     i[10],
                     i[11],
                     i[12],
                     i[13],
                     i[14],
                     i[15],
                     i[16]
#ifdef POETC_THREADS
                     ,
                     call->share
#endif
    };
    return c;
}

static inline int32_t floor_div(int32_t a, int32_t b)
{
    if (b == 1)
        return a;
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/* [*low, *high): the outputs whose tap at `offset` (padded) lies inside an image axis of `size`. */
static inline void output_range(int32_t offset, int32_t stride, int32_t size, int32_t outputs, int32_t *low,
                                int32_t *high)
{
    *low = -floor_div(offset, stride);
    *high = floor_div(size - 1 - offset, stride) + 1;
    if (*low < 0)
        *low = 0;
    if (*high > outputs)
        *high = outputs;
}

#endif
