/* One step of plain gradient descent: w -= lr g.
 *
 * Layout: dense arrays.
 * Order of sums: nothing is added here. */
#ifndef POETC_DESCEND_H
#define POETC_DESCEND_H

#include "simd/poetc_vector.h"

/* w -= lr * g */
static inline void poetc_descend(float *w, const float *g, float lr, int32_t count)
{
#if POETC_LANES > 1
    for (; count >= POETC_LANES; count -= POETC_LANES, w += POETC_LANES, g += POETC_LANES) {
        poetc_vector v = poetc_vector_load(w);
        POETC_SUBTRACT_SCALED(v, poetc_vector_load(g), lr);
        poetc_vector_store(w, v);
    }
#else
    for (; count >= 4; count -= 4) {
        const float *from = w;
        POETC_QUAD(a);
        POETC_QUAD(b);
        POETC_LOAD_QUAD_A(a, from);
        POETC_LOAD_QUAD_B(b, g);
        POETC_MULTIPLY_SUBTRACT_4(a0, a1, a2, a3, b0, lr, b1, lr, b2, lr, b3, lr);
        POETC_STORE_QUAD_A(w, a);
    }
#endif
    for (; count > 0; count--, w++, g++)
        POETC_MULTIPLY_SUBTRACT(*w, *g, lr);
}

#endif
