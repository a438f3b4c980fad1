/* Counter-based random numbers (poetc/ops/random.py).
 *
 * Layout: two words from two counters and a key.
 * Order of sums: nothing is added here. */
#ifndef POETC_PHILOX_H
#define POETC_PHILOX_H

#include "poetc_kernel.h"

#define POETC_PHILOX_ROUNDS 10

/* Philox2x32 (Salmon et al. 2011): two words from the counters and the key. */
static inline void poetc_philox(uint32_t *left, uint32_t *right, uint32_t key)
{
    int i;
    for (i = 0; i < POETC_PHILOX_ROUNDS; i++) {
        uint64_t product = (uint64_t)*left * 0xd256d193u;
        *left = (uint32_t)(product >> 32) ^ key ^ *right;
        *right = (uint32_t)product;
        key += 0x9e3779b9u;
    }
}

#endif
