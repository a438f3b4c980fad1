/* The caches of a Cortex-M7, by its registers (Arm DDI 0403E, B2.2.7 and B3.2). Cores without caches read 0 there, and
 * nothing is done.
 *
 * A driver that moves blocks by DMA calls the two functions in the middle. Both take whole lines, the first and the
 * last too. So operands need no other alignment: nobody else touches the arena while page_in or page_out waits.
 *
 *     page_out:  poetc_cache_clean(data, size); the transfer
 *     page_in:   poetc_cache_drop(data, size); the transfer; poetc_cache_drop(data, size)
 */
#ifndef POETC_CACHE_H
#define POETC_CACHE_H

#include <stddef.h>
#include <stdint.h>

#ifndef POETC_CACHE_REGISTER /* a test records them */
#define POETC_CACHE_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define POETC_CACHE_BARRIER() __asm__ volatile("dsb\n isb" : : : "memory")
#endif

enum { POETC_CACHE_LINE = 32 };

#define POETC_CCR 0xe000ed14u
#define POETC_CLIDR 0xe000ed78u
#define POETC_CCSIDR 0xe000ed80u
#define POETC_CSSELR 0xe000ed84u
#define POETC_ICIALLU 0xe000ef50u
#define POETC_DCISW 0xe000ef60u
#define POETC_DCCMVAC 0xe000ef68u
#define POETC_DCCIMVAC 0xe000ef70u

static inline int poetc_cache_has_data(void)
{
    return (POETC_CACHE_REGISTER(POETC_CLIDR) & 2u) != 0;
}

static inline void poetc_cache_each_line(uint32_t operation, const void *data, size_t size_bytes)
{
    const uintptr_t end = (uintptr_t)data + size_bytes;
    uintptr_t line = (uintptr_t)data & ~(uintptr_t)(POETC_CACHE_LINE - 1);

    if (!poetc_cache_has_data())
        return;
    POETC_CACHE_BARRIER();
    for (; line < end; line += POETC_CACHE_LINE)
        POETC_CACHE_REGISTER(operation) = (uint32_t)line;
    POETC_CACHE_BARRIER();
}

/* Put the core's writes into RAM, for a transfer from there. */
static inline void poetc_cache_clean(const void *data, size_t size_bytes)
{
    poetc_cache_each_line(POETC_DCCMVAC, data, size_bytes);
}

/* The same, and no line stays in the cache: around a transfer to RAM. After it nothing is left to clean, since the core
 * only reads ahead meanwhile. */
static inline void poetc_cache_drop(const void *data, size_t size_bytes)
{
    poetc_cache_each_line(POETC_DCCIMVAC, data, size_bytes);
}

static inline void poetc_cache_switch_on(uint32_t bit)
{
    volatile uint32_t *const control = &POETC_CACHE_REGISTER(POETC_CCR);

    *control = *control | bit;
}

/* Once, after reset: empty caches, which hold anything, and turn them on. */
static inline void poetc_cache_enable(void)
{
    const uint32_t levels = POETC_CACHE_REGISTER(POETC_CLIDR);

    if (levels & 1u) {
        POETC_CACHE_REGISTER(POETC_ICIALLU) = 0;
        POETC_CACHE_BARRIER();
        poetc_cache_switch_on(1u << 17);
    }
    if (levels & 2u) {
        uint32_t size, set, way;

        POETC_CACHE_REGISTER(POETC_CSSELR) = 0; /* data, level 1 */
        POETC_CACHE_BARRIER();
        size = POETC_CACHE_REGISTER(POETC_CCSIDR);
        for (set = 0; set <= (size >> 13 & 0x7fffu); set++)
            for (way = 0; way <= (size >> 3 & 0x3ffu) && way < 4; way++) /* an M7 has four */
                POETC_CACHE_REGISTER(POETC_DCISW) = way << 30 | set << 5;
        POETC_CACHE_BARRIER();
        poetc_cache_switch_on(1u << 16);
    }
    POETC_CACHE_BARRIER();
}

#endif
