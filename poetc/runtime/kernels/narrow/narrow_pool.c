/* Max and average pooling of tensors stored in 16 bits.
 *
 * Layout: poetc_narrow_slices.h; a unit is a plane.
 * Order of sums: that of operators/pool.c. */
#include "narrow/poetc_narrow_slices.h"
#include "operators/pool.h"

POETC_SLICED(max_pool)
POETC_SLICED(max_pool_grad)
POETC_SLICED(average_pool)
POETC_SLICED(average_pool_grad)
