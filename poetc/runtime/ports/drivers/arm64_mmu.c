/* The memory management unit as the guard of the budget, on AArch64 without an operating system. Code, the budget and
 * peripherals can be accessed, nothing else. The budget ends at the end of a page, so that the guard is exact to the
 * byte there. The tables lie behind it, a page further, where the program cannot reach them. They take 4 KiB for 1 GiB,
 * and 4 KiB for each 2 MiB that are allowed in part, at most four.
 *
 * Addresses are as they were, and memory is not cached: that is for the board's own start-up. */
#include <stddef.h>
#include <stdint.h>

#include "arm64_mmu.h"
#include "poetc_port.h"

#ifndef PERIPHERALS
#define PERIPHERALS 0x3f000000u /* of the Raspberry Pi 3, to the end of the first GiB */
#endif

/* Of the linker script. */
extern uint8_t poetc_code[], poetc_code_used[], poetc_ram[], poetc_ram_end[];

enum { ENTRIES = 512, PAGE_BYTES = 4096, BLOCK_BYTES = ENTRIES * PAGE_BYTES };
enum { TABLE_OR_PAGE = 3u << 0, ALWAYS_SET = 1u << 6 /* above level 1 */ };

static int is_allowed(uintptr_t page)
{
    const uintptr_t mask = ~(uintptr_t)(PAGE_BYTES - 1);

    if (page >= ((uintptr_t)poetc_code & mask) && page < (uintptr_t)poetc_code_used)
        return 1;
    return page >= ((uintptr_t)poetc_ram & mask) && page < (uintptr_t)poetc_ram_end;
}

ALIGNED_ACCESS void poetc_map_memory(void)
{
    const unsigned level = exception_level();
    const uint64_t flags = SHARED | ACCESSED | (level > 1u ? (uint64_t)ALWAYS_SET : 0u);
    uint64_t *blocks = (uint64_t *)(void *)(poetc_ram_end + PAGE_BYTES), *pages = blocks + ENTRIES;
    uintptr_t block, page;

    for (block = 0; block < ENTRIES; block++) {
        uintptr_t base = block * BLOCK_BYTES;
        unsigned allowed = 0;

        if (base >= PERIPHERALS) {
            blocks[block] = base | flags | DEVICE | BLOCK;
            continue;
        }
        for (page = 0; page < ENTRIES; page++)
            allowed += (unsigned)is_allowed(base + page * PAGE_BYTES);
        blocks[block] = allowed == ENTRIES ? base | flags | BLOCK : 0u;
        if (allowed == 0 || allowed == ENTRIES)
            continue;
        for (page = 0; page < ENTRIES; page++) {
            uintptr_t address = base + page * PAGE_BYTES;

            pages[page] = is_allowed(address) ? address | flags | TABLE_OR_PAGE : 0u;
        }
        blocks[block] = (uintptr_t)pages | TABLE_OR_PAGE;
        pages += ENTRIES;
    }
    /* 30 bits of address: the walk begins with the table of blocks. */
    enable_mmu(level, blocks, 30u, NOT_CACHED, 0u);
}
