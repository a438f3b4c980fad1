/* Tensors of floats that are stored in 16 bits, times a power of two (poetc/ops/narrow.py).
 *
 * Layout: dense arrays, read with a step and written without one.
 * Order of sums: nothing is added here. */
#ifndef POETC_NARROW_H
#define POETC_NARROW_H

#include "poetc_kernel.h"

/* A float is stored as it is, or in 16 bits. The last two are floats of 32 bits that are rounded when they are read. */
enum poetc_form {
    POETC_FORM_F32 = 0,
    POETC_FORM_F16 = 1,
    POETC_FORM_BF16 = 2,
    POETC_FORM_TO_F16 = 3,
    POETC_FORM_TO_BF16 = 4
};

/* Two ints of a kernel: the form, and the exponent of the power of two. */
typedef struct {
    int32_t form, scale;
} poetc_stored;

static inline poetc_stored poetc_stored_of(const int32_t *ints)
{
    poetc_stored s = {ints[0], ints[1]};
    return s;
}

/* to[i] = the float at from[first + i * step], for i = 0 .. count - 1. */
void poetc_widen(float *to, const void *from, poetc_stored stored, ptrdiff_t first, ptrdiff_t step, int32_t count);

/* to[first + i] = from[i]. POETC_EEXPONENT: a number is no finite one of f16. */
int poetc_narrow(void *to, poetc_stored stored, ptrdiff_t first, const float *from, int32_t count);

#endif
