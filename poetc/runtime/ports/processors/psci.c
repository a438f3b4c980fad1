/* The other processors of a 64-bit board without an operating system: PSCI's CPU_ON starts each, with a stack of its
 * own.
 *
 * As on QEMU's virt machine: the program runs in EL1, and PSCI is called with hvc. The processors are 0, 1, 2, ... in
 * the lowest byte of MPIDR. Atomic operations ask for cached memory: the board's `poetc_map_memory` turns the memory
 * management unit on, on each processor.
 */
#include "poetc_processors.h"

#include <stddef.h>

#define CPU_ON UINT64_C(0xc4000003)

/* Of the linker script: the main stack, and the top of the second one. The others follow, as large as the main one. */
extern uint8_t poetc_stack[], poetc_stack_top[], poetc_second_stack_top[];

void poetc_begin_processor(void);
void poetc_serve_processor(uint64_t number);

const uint32_t poetc_processors_bytes = sizeof(poetc_processors);

static poetc_team *team;

static struct start {
    uint8_t *stack_top;
    uint64_t vectors, number;
} starts[POETC_PROCESSORS];

/* The assembly reads the members at these places. */
typedef char start_places[offsetof(struct start, stack_top) == 0 && offsetof(struct start, vectors) == 8 &&
                                  offsetof(struct start, number) == 16
                              ? 1
                              : -1];

/* x0: its `start`. */
__asm__("    .text\n"
        "    .balign 4\n"
        "    .globl poetc_begin_processor\n"
        "    .weak poetc_map_memory\n"
        "poetc_begin_processor:\n"
        "    mov x1, #(3 << 20)\n" /* floating point */
        "    msr cpacr_el1, x1\n"
        "    ldr x1, [x0, #8]\n"
        "    msr vbar_el1, x1\n"
        "    isb\n"
        "    ldr x1, [x0]\n"
        "    mov sp, x1\n"
        "    ldr x19, [x0, #16]\n"
        "    ldr x1, =poetc_map_memory\n"
        "    cbz x1, 1f\n"
        "    blr x1\n"
        "1:  mov x0, x19\n"
        "    b poetc_serve_processor\n"
        "    .ltorg\n");

void poetc_serve_processor(uint64_t number)
{
    uint32_t generation = 0;

    for (;;)
        generation = poetc_queues_serve(team, (uint32_t)number, generation);
}

static int64_t turn_on(uint64_t number, const struct start *start)
{
    register uint64_t x0 __asm__("x0") = CPU_ON;
    register uint64_t x1 __asm__("x1") = number;
    register uint64_t x2 __asm__("x2") = (uint64_t)(uintptr_t)&poetc_begin_processor;
    register uint64_t x3 __asm__("x3") = (uint64_t)(uintptr_t)start;

    /* The other one reads it before it has a cache. */
    __asm__ volatile("dc cvac, %0\n dc cvac, %1" : : "r"(start), "r"((const uint8_t *)(start + 1) - 1) : "memory");
    __asm__ volatile("dsb sy\n hvc #0" : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3) : : "memory");
    return (int64_t)x0;
}

int poetc_processors_begin(poetc_processors *processors, poetc_runtime *runtime, const poetc_queues *queues)
{
    const int err = poetc_queues_init(&processors->team, runtime, queues);
    const size_t stack_bytes = (size_t)(poetc_stack_top - poetc_stack);
    uint64_t vectors;
    uint32_t k;

    if (err || team != NULL) /* they start once */
        return err ? err : POETC_EINVAL;
    team = &processors->team;
    __asm__ volatile("mrs %0, vbar_el1" : "=r"(vectors));
    for (k = 1; k < queues->processor_count; k++) {
        starts[k].stack_top = poetc_second_stack_top + (k - 1u) * stack_bytes;
        starts[k].vectors = vectors;
        starts[k].number = k;
        if (turn_on(k, &starts[k]) != 0)
            return POETC_EIO;
    }
    return POETC_OK;
}

int poetc_processors_run(void *context, poetc_runtime *runtime)
{
    poetc_processors *processors = context;

    return runtime->program == processors->team.queues->program ? poetc_queues_run(&processors->team)
                                                                : poetc_run(runtime);
}

void poetc_processors_end(poetc_processors *processors)
{
    (void)processors; /* they wait for the next run for ever */
}
