/* Convolution and its gradients without packed pixels, for AVX-512 with its 32 registers, for Helium, and for
 * scalars in the FPU of Cortex-M.
 *
 * Where windows overlap and few results share packed pixels, packing costs more than reading a strip of a padded image
 * at one offset a tap.
 *
 * Layout: a strip holds some rows of each channel's plane, with zeros around them; the workspace is that of the packing
 * kernels.
 * Order of sums: that of the packing kernels. */
#ifndef POETC_DIRECT_H
#define POETC_DIRECT_H

#include "convolution/poetc_convolution.h"
#include "gemm/poetc_gemm.h"

#if POETC_LANES == 16
#define POETC_DIRECT 1
#define DIRECT_MOST 24 /* vectors of sums */
#endif

#if defined(POETC_DIRECT) || defined(POETC_STRIPS)
#define DIRECT_LANES POETC_LANES

/* to[0 .. count) = from. */
static inline void copy_line(float *to, const float *from, int32_t count)
{
#if POETC_FPU_M && POETC_LANES == 1
    for (; count >= 4; count -= 4)
        POETC_COPY_QUAD(to, from);
#endif
    poetc_put_piece(to, from, 1, count);
}

/* Rows [first, first + rows) of `channels` planes, and `columns` of them from column `left` on, side by side. Those
 * outside are zeros. Behind them are zeros for a vector that reads on. */
POETC_APART void copy_strip(float *to, const float *from, int32_t channels, int32_t height, int32_t width,
                            int32_t first, int32_t rows, int32_t left, int32_t columns)
{
    const int32_t begin = left < 0 ? poetc_min(-left, columns) : 0;
    const int32_t end = width - left < columns ? (width - left > begin ? width - left : begin) : columns;
    int32_t channel, row;
    for (channel = 0; channel < channels; channel++, from += (ptrdiff_t)height * width) {
        for (row = first; row < first + rows; row++, to += columns) {
            if (row < 0 || row >= height) {
                poetc_put_piece(to, NULL, 1, columns);
                continue;
            }
            poetc_put_piece(to, NULL, 1, begin);
            copy_line(to + begin, from + (ptrdiff_t)row * width + left + begin, end - begin);
            poetc_put_piece(to + end, NULL, 1, columns - end);
        }
    }
    poetc_put_piece(to, NULL, 1, DIRECT_LANES);
}

#endif
#endif
