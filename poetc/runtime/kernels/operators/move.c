/* A tensor from one place in the arena to another, where the two may overlap: ints = { bytes }. It is no operator:
 * packing makes room this way.
 *
 * Layout: one contiguous run of bytes.
 * Order of sums: nothing is added here. */
#include "poetc_kernel.h"

/* The unit of a move, as wide as the processor has it, whatever type the tensor is of. */
typedef struct
#ifdef __GNUC__
    __attribute__((may_alias))
#endif
    unit {
    uint32_t words[POETC_ALIGN / 4u];
} unit;

/* In the direction in which nothing is overwritten before it is read. Small C libraries' memmove goes byte by byte. */
int poetc_op_move(const poetc_call *call)
{
    const uint8_t *from = poetc_in(call, 0);
    uint8_t *to = poetc_out(call, 1);
    const uint32_t bytes = (uint32_t)call->ints[0], whole = bytes / POETC_ALIGN;
    const unit *source = (const unit *)(const void *)from;
    unit *target = (unit *)(void *)to;
    uint32_t i;

    if (to < from) {
        for (i = 0; i < whole; i++)
            target[i] = source[i];
        for (i = whole * POETC_ALIGN; i < bytes; i++)
            to[i] = from[i];
    } else {
        for (i = bytes; i > whole * POETC_ALIGN; i--)
            to[i - 1u] = from[i - 1u];
        for (i = whole; i > 0; i--)
            target[i - 1u] = source[i - 1u];
    }
    return POETC_OK;
}
