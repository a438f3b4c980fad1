/* The factor that limits the norm of all gradients.
 *
 * Layout: norms are single numbers, each an operand of its own.
 * Order of sums: squares in the order of the operands; the total carries its rounding error. */
#include "poetc_math.h"
#include "simd/poetc_f4.h"

/* (scale of this step)?, norms ... -> scale. ints: operands before the norms, norms; floats: largest norm, epsilon. */
int poetc_op_clip_scale(const poetc_call *call)
{
    const uint32_t first = (uint32_t)call->ints[0], count = (uint32_t)call->ints[1];
    float *scale = poetc_out(call, first + count);
    poetc_compensated squares = {0.0f, 0.0f};
    float ratio;
    uint32_t i;
    for (i = 0; i < count; i++) {
        const float norm = *(const float *)poetc_in(call, first + i);
        poetc_compensated_add(&squares, norm * norm);
    }
    ratio = call->floats[0] / (poetc_sqrtf(squares.total) + call->floats[1]);
    *scale = ratio > 1.0f ? 1.0f : ratio; /* NaN stays */
    return POETC_OK;
}
