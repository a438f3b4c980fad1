/* The memory management unit of AArch64 as QEMU's virt machine needs it: vectors at any address, and caches.
 *
 * Addresses are as they were. Devices are in the first GiB, and RAM is in the second and third. Other addresses trap.
 * The program runs in EL1. */
#include <stddef.h>
#include <stdint.h>

#include "arm64_mmu.h"

#define GIB (UINT64_C(1) << 30)
#define NEVER_RUN (UINT64_C(3) << 53)

/* Constant, so that each processor takes it as it is. 32 bits of address: the walk begins with blocks of a GiB. */
static const uint64_t blocks[4] __attribute__((aligned(64))) = {
    NEVER_RUN | ACCESSED | SHARED | DEVICE | BLOCK,
    1 * GIB | ACCESSED | SHARED | BLOCK,
    2 * GIB | ACCESSED | SHARED | BLOCK,
    0,
};

ALIGNED_ACCESS void poetc_map_memory(void)
{
    enable_mmu(1u, blocks, 32u, CACHED, CACHES);
}
