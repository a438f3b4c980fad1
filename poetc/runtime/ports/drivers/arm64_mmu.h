/* Turns on the memory management unit of AArch64, for the drivers that have a map of the memory. Pages have 4 KiB. */
#ifndef ARM64_MMU_H
#define ARM64_MMU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called once on each processor, before main(): before it, the core refuses unaligned access to memory. */
void poetc_map_memory(void);

#ifdef __cplusplus
}
#endif

#define ALIGNED_ACCESS __attribute__((target("strict-align")))

enum { BLOCK = 1u << 0, DEVICE = 1u << 2, SHARED = 3u << 8, ACCESSED = 1u << 10 }; /* of an entry */
enum { NOT_CACHED = 0x0044, CACHED = 0x00ff };       /* MAIR: memory without and with DEVICE in its entry */
enum { MMU = 1u << 0, CACHES = 1u << 2 | 1u << 12 }; /* SCTLR */

static inline unsigned exception_level(void)
{
    uint64_t level;

    __asm__ volatile("mrs %0, CurrentEL" : "=r"(level));
    return (unsigned)(level >> 2) & 3u;
}

#define WRITE_REGISTER(name, value) __asm__ volatile("msr " name ", %0" : : "r"((uint64_t)(value)))
#define ENABLE(level)                                                                       \
    do {                                                                                    \
        uint64_t system;                                                                    \
        WRITE_REGISTER("mair_el" level, attributes);                                        \
        WRITE_REGISTER("tcr_el" level, control);                                            \
        WRITE_REGISTER("ttbr0_el" level, (uintptr_t)table);                                 \
        __asm__ volatile("dsb sy\n isb\n tlbi vmalle1\n dsb sy\n isb" : : : "memory");      \
        __asm__ volatile("mrs %0, sctlr_el" level : "=r"(system));                          \
        WRITE_REGISTER("sctlr_el" level, system | MMU | more);                              \
        __asm__ volatile("isb" : : : "memory");                                             \
    } while (0)

/* Of this processor, at its exception level: addresses have `bits` bits, and `table` is where the walk begins. `more`:
 * bits of SCTLR. */
static inline void enable_mmu(unsigned level, const uint64_t *table, unsigned bits, unsigned attributes, unsigned more)
{
    const uint64_t control = (64u - bits) | (level > 1u ? 1u << 31 | 1u << 23 : 1u << 23);

    if (level == 1u)
        ENABLE("1");
    else if (level == 2u)
        ENABLE("2");
    else
        ENABLE("3");
}

#endif
