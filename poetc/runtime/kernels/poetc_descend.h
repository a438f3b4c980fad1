/* A step of plain gradient descent, as in optimizer.c. */
#ifndef POETC_DESCEND_H
#define POETC_DESCEND_H

#include "poetc_vector.h"

/* w -= lr * g */
static inline void poetc_descend(float *w, const float *g, float lr, int32_t count)
{
#if POETC_LANES > 1
    for (; count >= POETC_LANES; count -= POETC_LANES, w += POETC_LANES, g += POETC_LANES)
        poetc_vector_store(w, poetc_vector_load(w) - poetc_vector_load(g) * lr);
#endif
    for (; count > 0; count--, w++, g++)
        POETC_MULTIPLY_SUBTRACT(*w, *g, lr);
}

#endif
