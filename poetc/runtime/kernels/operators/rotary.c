/* Rotary position embedding: pairs (a, b) of features become (a cos - b sin, b cos + a sin).
 *
 * Layout: x is [batch, before, places, after, size], cosines and sines are [places, pairs] of all samples or of each.
 * Features from 2 pairs on are copied. Both of a pair are read before either is written: it works in place.
 * Order of sums: a product of each feature, then their difference or sum. */
#include <string.h>

#include "poetc_kernel.h"

/* ints: batch, before, places, after, size, pairs, rows of a table for each sample (or 0), interleaved, back. */
int poetc_op_rotary(const poetc_call *call)
{
    const int32_t *n = call->ints;
    const int32_t batch = n[0], before = n[1], places = n[2], after = n[3], size = n[4], pairs = n[5], tables = n[6];
    const int32_t step = n[7] ? 2 : 1, other = n[7] ? 1 : pairs;
    const float sign = n[8] ? -1.0f : 1.0f;
    const float *x = poetc_in(call, 0), *cosines = poetc_in(call, 1), *sines = poetc_in(call, 2);
    float *y = poetc_out(call, 3);
    int32_t s, o, p, r, i;
    for (s = 0; s < batch; s++) {
        for (o = 0; o < before; o++) {
            for (p = 0; p < places; p++) {
                const ptrdiff_t row = ((ptrdiff_t)s * tables + p) * pairs;
                const float *c = cosines + row, *t = sines + row;
                for (r = 0; r < after; r++, x += size, y += size) {
                    for (i = 0; i < pairs; i++) {
                        const float a = x[i * step], b = x[i * step + other], turn = sign * t[i];
                        y[i * step] = POETC_FMS(b, turn, a * c[i]);
                        y[i * step + other] = POETC_FMA(a, turn, b * c[i]);
                    }
                    if (x != y && size > 2 * pairs)
                        memcpy(y + 2 * pairs, x + 2 * pairs, (size_t)(size - 2 * pairs) * sizeof *y);
                }
            }
        }
    }
    return POETC_OK;
}
