#include "poetc_convolution_packed.h"

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
