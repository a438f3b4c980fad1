/* Declarations that the packing kernels of convolution share.
 *
 * Layout: panels of poetc_gemm.h, whose columns are pixels numbered over the batch.
 * Order of sums: nothing is added here. */
#ifndef POETC_CONVOLUTION_PACKED_H
#define POETC_CONVOLUTION_PACKED_H

#include "convolution/poetc_convolution.h"
#include "gemm/poetc_gemm.h"

#define COLUMNS POETC_GEMM_COLUMNS

/* Lanes beside the image are masked: a tap of 16 pixels, of several rows where they are short, is one load. */
#if POETC_LANES == 16
#define POETC_MASKED 1
#define MASKED_TAPS 64 /* of a window */
#define MASKED_MOST 64 /* masks of rows */
#endif

#if defined(POETC_HELIUM)
/* DO(n) for the n rows of a register block; a constant wherever it is inlined. */
#define POETC_FOR_ROWS(rows, DO)                                                                                       \
    do {                                                                                                               \
        if ((rows) == 6)                                                                                               \
            DO(6);                                                                                                     \
        else if ((rows) == 4)                                                                                          \
            DO(4);                                                                                                     \
        else if ((rows) == 2)                                                                                          \
            DO(2);                                                                                                     \
        else                                                                                                           \
            DO(1);                                                                                                     \
    } while (0)
#endif

static inline int is_pointwise(const convolution *c)
{
    return c->kernel_h * c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 &&
           c->output_height * c->output_width == c->height * c->width;
}

/* A pixel of the output lies where its tap does, but for a distance that all pixels share. */
static inline int is_shifted(const convolution *c)
{
    return c->stride_h == 1 && c->stride_w == 1 && c->output_width == c->width;
}

static inline int32_t clip(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Rows (channels) [first, first + depth) of planes of `pixels`, `channels` of them an image, and columns (n, oh, ow)
 * [column, column + columns), into panels. */
void poetc_pack_planes(const poetc_gemm_space *space, const float *from, int32_t channels, int32_t pixels,
                       int32_t first, int32_t depth, int32_t column, int32_t columns);

#endif
