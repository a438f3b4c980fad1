/* For test_memory_unit.py: each processor says SCTLR of its exception level, and loads a vector at an odd address. */
#include "poetc_port.h"
#include "poetc_processors.h"
#include "semihosting.h"

typedef uint32_t vector __attribute__((vector_size(16), aligned(1), may_alias));

int main(void);

static poetc_processors processors;
static poetc_runtime runtime;
static const poetc_queues queues = {0, COUNT, 0, 0};
static const uint8_t bytes[20] = {0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
static volatile uint32_t sums[POETC_PROCESSORS], on[POETC_PROCESSORS];

static void look(uint32_t number)
{
    uint64_t level, system;
    volatile vector loaded = *(const vector *)(bytes + 1);

    __asm__ volatile("mrs %0, CurrentEL" : "=r"(level));
    if (level >> 2 == 1)
        __asm__ volatile("mrs %0, sctlr_el1" : "=r"(system));
    else if (level >> 2 == 2)
        __asm__ volatile("mrs %0, sctlr_el2" : "=r"(system));
    else
        __asm__ volatile("mrs %0, sctlr_el3" : "=r"(system));
    on[number] = (uint32_t)system;
    sums[number] = loaded[0] + loaded[1] + loaded[2] + loaded[3];
}

/* In place of the runtime's, which the ports call. */
int poetc_queues_init(poetc_team *team, poetc_runtime *r, const poetc_queues *q)
{
    (void)team, (void)r, (void)q;
    return POETC_OK;
}
uint32_t poetc_queues_serve(poetc_team *team, uint32_t processor, uint32_t generation)
{
    (void)team;
    if (generation == 0)
        look(processor);
    return 1;
}
int poetc_queues_run(poetc_team *team)
{
    (void)team;
    return POETC_OK;
}
int poetc_run(poetc_runtime *r)
{
    (void)r;
    return POETC_OK;
}

int main(void)
{
    uint32_t number;
    char line[] = "0 mmu=0 caches=0 sum=00\n";

    look(0);
#if COUNT > 1
    if (poetc_processors_begin(&processors, &runtime, &queues) != POETC_OK)
        return 1;
#else
    (void)processors, (void)runtime, (void)queues;
#endif
    for (number = 0; number < COUNT; number++) {
        while (sums[number] == 0)
            continue;
        line[0] = (char)('0' + number);
        line[6] = (char)('0' + (on[number] & 1u));
        line[15] = (char)('0' + (on[number] >> 2 & 1u));
        line[21] = (char)('0' + sums[number] / 10);
        line[22] = (char)('0' + sums[number] % 10);
        poetc_port_log(line);
    }
    poetc_port_stop(0);
    return 0;
}
