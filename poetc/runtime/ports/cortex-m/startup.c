/* Cortex-M: vectors, reset, the memory protection unit as the guard of the budget, faults. */
#include <stddef.h>
#include <stdint.h>

#include "poetc_cache.h"
#include "poetc_hex.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define CPACR REGISTER(0xe000ed88u)
#define MPU_TYPE REGISTER(0xe000ed90u)
#define MPU_CTRL REGISTER(0xe000ed94u)
#define MPU_RNR REGISTER(0xe000ed98u)
#define MPU_RBAR REGISTER(0xe000ed9cu)
#define MPU_RASR REGISTER(0xe000eda0u) /* RLAR in version 8 */
#define MPU_MAIR0 REGISTER(0xe000edc0u)

/* Of the linker script. */
extern uint8_t poetc_stack_top[], poetc_data[], poetc_data_end[], poetc_bss[], poetc_bss_end[];
extern const uint8_t poetc_data_load[], poetc_code[], poetc_code_end[], poetc_ram[], poetc_ram_end[];

#ifdef POETC_BANKS
extern const struct poetc_bank {
    uint32_t first, end;
} poetc_banks[], poetc_banks_end[]; /* the other memories of the arena, as far as they may be accessed */
#endif

int main(void);
void poetc_reset(void);
void poetc_fault(void);

/* Nothing but code, the budget and peripherals can be accessed: no background region. (The private peripheral bus
 * always can.) */
#if defined(__ARM_ARCH_8M_BASE__) || defined(__ARM_ARCH_8M_MAIN__) || defined(__ARM_ARCH_8_1M_MAIN__)

static void allow(uint32_t region, uintptr_t first, uintptr_t end, uint32_t base_flags, uint32_t attribute)
{
    MPU_RNR = region;
    MPU_RBAR = (uint32_t)first | base_flags;
    MPU_RASR = (((uint32_t)end - 1u) & ~31u) | attribute << 1 | 1u;
}

static void protect(void)
{
    enum { READ_WRITE = 1u << 1, READ_ONLY = 3u << 1, NEVER_EXECUTE = 1u };

#if defined(__ARM_ARCH_8M_BASE__)
    if ((MPU_TYPE & 0xff00u) == 0) /* it has no regions */
        return;
#endif
    MPU_MAIR0 = 0x0044u; /* attribute 0: normal memory, not cached; 1: device */
    allow(0, (uintptr_t)poetc_code, (uintptr_t)poetc_code_end, READ_ONLY, 0);
    allow(1, (uintptr_t)poetc_ram, (uintptr_t)poetc_ram_end, READ_WRITE | NEVER_EXECUTE, 0);
    allow(2, 0x40000000u, 0x60000000u, READ_WRITE | NEVER_EXECUTE, 1);
#ifdef POETC_BANKS
    {
        const struct poetc_bank *bank;
        uint32_t region = 3;

        POETC_PORT_ASSERT((uint32_t)(poetc_banks_end - poetc_banks) + region <= (MPU_TYPE >> 8 & 0xffu));
        for (bank = poetc_banks; bank < poetc_banks_end; bank++)
            allow(region++, bank->first, bank->end, READ_WRITE | NEVER_EXECUTE, 0);
    }
#endif
    MPU_CTRL = 1;
}

#elif defined(__ARM_ARCH_7M__) || defined(__ARM_ARCH_7EM__)

#define READ_ONLY (6u << 24 | 1u << 17)               /* normal memory */
/* Normal memory, never executed; caches write it back: revisions of the M7 have an erratum where they write through. */
#define READ_WRITE (1u << 28 | 3u << 24 | 1u << 19 | 3u << 16)
#define DEVICE (1u << 28 | 3u << 24 | 1u << 16)

/* A region is a power of two, and each eighth of it can be switched off. */
static void allow(uint32_t region, uintptr_t base, uint32_t size_log2, uint32_t eighths, uint32_t flags)
{
    MPU_RNR = region;
    MPU_RBAR = (uint32_t)base;
    MPU_RASR = flags | (0xffu & ~eighths) << 8 | (size_log2 - 1u) << 1 | 1u;
}

/* The eighths that fit come first. The rest is less than one of them and goes to the next region, an eighth as large.
 * So six regions end exactly at any budget up to 8 MiB that is a multiple of 32. (256 bytes is the smallest region that
 * has eighths.) */
static void protect(void)
{
    uintptr_t base = (uintptr_t)poetc_ram;
    uint32_t left = (uint32_t)(poetc_ram_end - poetc_ram), log2 = 8, region = 2, end = 8;

    while ((1u << log2) < left)
        log2++;
    allow(0, 0x00000000u, 29, 0xff, READ_ONLY); /* code */
    allow(1, 0x40000000u, 29, 0xff, DEVICE);
#ifdef POETC_BANKS
    {
        const struct poetc_bank *bank;
        const uint32_t code = (uint32_t)(uintptr_t)poetc_code;
        uint32_t code_log2 = 8;

        while ((code >> code_log2) != ((uint32_t)(uintptr_t)poetc_code_end - 1u) >> code_log2)
            code_log2++;
        allow(0, code & ~((1u << code_log2) - 1u), code_log2, 0xff, READ_ONLY); /* a bank may be near it */
        for (bank = poetc_banks; bank < poetc_banks_end; bank++) {              /* some eighths of one region each */
            const uint32_t size = bank->end - bank->first;
            uint32_t bank_log2 = 8;

            while ((1u << bank_log2) < size)
                bank_log2++;
            allow(--end, bank->first, bank_log2, (1u << (size >> (bank_log2 - 3u))) - 1u, READ_WRITE);
        }
    }
#endif
    for (; left >= 32u && region < end; region++) {
        uint32_t eighth = 1u << (log2 - 3u), count = left / eighth;
        uint32_t skipped = (uint32_t)(base & ((1u << log2) - 1u)) / eighth;

        POETC_PORT_ASSERT(skipped + count <= 8u);
        allow(region, base & ~(uintptr_t)((1u << log2) - 1u), log2, ((1u << count) - 1u) << skipped, READ_WRITE);
        base += (uintptr_t)count * eighth;
        left -= count * eighth;
        log2 = log2 > 11u ? log2 - 3u : 8u;
    }
    POETC_PORT_ASSERT(left < 32u);
    MPU_CTRL = 1;
}

#else /* ARMv6-M: the linker puts the budget at the end of RAM, where the bus ends it */

static void protect(void)
{
}

#endif

static void enable_fpu(void)
{
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    CPACR |= 0xfu << 20;
    __asm__ volatile("dsb\n isb" : : : "memory");
#endif
}

#ifdef POETC_QUEUES
/* Each processor has an FPU and a protection unit of its own. */
void poetc_prepare_processor(void)
{
    enable_fpu();
    protect();
    __asm__ volatile("dsb\n isb" : : : "memory");
}
#endif

void poetc_reset(void)
{
    const uint8_t *from = poetc_data_load;
    uint8_t *to;

    enable_fpu();
    for (to = poetc_data; to < poetc_data_end; to++)
        *to = *from++;
    for (to = poetc_bss; to < poetc_bss_end; to++)
        *to = 0;
    protect();
    __asm__ volatile("dsb\n isb" : : : "memory");
#if defined(__ARM_ARCH_7EM__) && !defined(POETC_QUEUES) && !defined(POETC_NO_CACHES)
    poetc_cache_enable(); /* of an M7; another processor would not see its writes */
#endif
    poetc_port_stop(main());
}

/* On a fresh stack: the old one may have overflowed. */
__attribute__((used)) POETC_COLD static void report_fault(void)
{
#if defined(__ARM_ARCH_6M__) || defined(__ARM_ARCH_8M_BASE__)
    log_hex("fault", 0);
#else
    log_hex("fault cfsr ", REGISTER(0xe000ed28u));
    log_hex(" memory ", REGISTER(0xe000ed34u));
    log_hex(" bus ", REGISTER(0xe000ed38u));
#endif
    poetc_port_log("\n");
    poetc_port_stop(POETC_PORT_FAULT);
}

__attribute__((naked)) void poetc_fault(void)
{
    __asm__ volatile("ldr r0, =poetc_stack_top\n mov sp, r0\n bl report_fault\n .ltorg");
}

typedef void (*poetc_vector)(void);

__attribute__((section(".vectors"), used)) static const struct {
    uint8_t *stack_top;
    poetc_vector handlers[15];
} vectors = {
    poetc_stack_top,
    {poetc_reset, poetc_fault, poetc_fault, poetc_fault, poetc_fault, poetc_fault, NULL, NULL, NULL, NULL, poetc_fault,
     poetc_fault, NULL, poetc_fault, poetc_fault},
};
