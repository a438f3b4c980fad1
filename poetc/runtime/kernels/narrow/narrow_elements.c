/* Sums of two tensors stored in 16 bits.
 *
 * Layout: poetc_narrow_slices.h.
 * Order of sums: that of operators/binary.c. */
#include "narrow/poetc_narrow_slices.h"
#include "operators/binary.h"

POETC_SLICED(add)
