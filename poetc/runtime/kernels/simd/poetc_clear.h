/* Zeros for contiguous floats, a vector or four registers at a time. The memset of small C libraries goes byte by byte.
 *
 * Layout: one contiguous run of floats.
 * Order of sums: nothing is added here. */
#ifndef POETC_CLEAR_H
#define POETC_CLEAR_H

#include "simd/poetc_vector.h"

/* to[0], ..., to[count - 1] */
static void poetc_clear(float *to, ptrdiff_t count)
{
#if POETC_LANES > 1
    for (; count >= POETC_LANES; count -= POETC_LANES, to += POETC_LANES)
        poetc_vector_store(to, (poetc_vector){0});
#else
    POETC_QUAD_B(zero);
    zero0 = zero1 = zero2 = zero3 = 0.0f;
    for (; count >= 4; count -= 4)
        POETC_STORE_QUAD(to, zero);
#endif
    for (; count > 0; count--)
        *to++ = 0.0f;
}

#endif
