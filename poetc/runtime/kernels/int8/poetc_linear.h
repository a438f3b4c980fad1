/* Codes of 8 bits with a scale and a zero point (poetc/ops/_affine.py).
 *
 * Layout: a tensor of int8_t; a code q stands for scale · (q - zero). Order of sums: sums of 32 bits are exact. */
#ifndef POETC_LINEAR_H
#define POETC_LINEAR_H

#include "poetc_kernel.h"

/* Added and taken away again, it rounds a float below 2^22 to nearest, halves to even. */
#define POETC_LINEAR_MAGIC 12582912.0f

static inline float poetc_clipped(float v, float least, float most)
{
    v = v > least ? v : least; /* NaN too */
    return v < most ? v : most;
}

static inline int32_t poetc_nearest(float v)
{
    return (int32_t)((v + POETC_LINEAR_MAGIC) - POETC_LINEAR_MAGIC);
}

/* The code of a number in units of the scale. */
static inline int8_t poetc_requantized(float v, int32_t zero, int32_t low, int32_t high)
{
    return (int8_t)(poetc_nearest(poetc_clipped(v, (float)(low - zero), (float)(high - zero))) + zero);
}

#endif
