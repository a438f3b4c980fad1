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
    ptrdiff_t fours = count / 4;
    if (fours > 0) {
#if POETC_FPU_M
        static const float none[4];
        __asm__ volatile("vldmia %[none], {s16-s19}\n1:\tvstmia %[to]!, {s16-s19}\n\tsubs %[n], #1\n\tbne 1b"
                         : [to] "+&r"(to), [n] "+&r"(fours)
                         : [none] "r"(none)
                         : "cc", "memory", "s16", "s17", "s18", "s19");
#else
        for (; fours > 0; fours--, to += 4)
            to[0] = to[1] = to[2] = to[3] = 0.0f;
#endif
        count %= 4;
    }
#endif
    for (; count > 0; count--)
        *to++ = 0.0f;
}

#endif
