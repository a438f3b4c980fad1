/* The second Cortex-M33 of Arm's SSE-200, as on the MPS2 with AN521: it stands still until CPUWAIT is cleared. */
#include "poetc_processors.h"

#include <stddef.h>

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define INITSVTOR1 REGISTER(0x50021114u) /* vector table of the second processor, secure */
#define CPUWAIT REGISTER(0x50021118u)    /* bit 1: the second one waits */

/* Of the linker script and of startup.c. */
extern uint8_t poetc_stack_top[], poetc_second_stack_top[];
void poetc_prepare_processor(void);
void poetc_fault(void);

const uint32_t poetc_processors_bytes = sizeof(poetc_processors);

static poetc_team *team;

static void serve(void)
{
    uint32_t generation = 0;

    poetc_prepare_processor();
    for (;;)
        generation = poetc_queues_serve(team, 1, generation);
}

/* The stack ends at a limit that the processor itself guards. */
__attribute__((naked)) static void reset(void)
{
    __asm__ volatile("ldr r0, =poetc_stack_top\n msr msplim, r0\n b %c0\n .ltorg" : : "i"(serve));
}

typedef void (*vector)(void);

/* Aligned to the next power of two of its size. */
static const struct {
    uint8_t *stack_top;
    vector handlers[15];
} vectors __attribute__((aligned(128))) = {
    poetc_second_stack_top,
    {reset, poetc_fault, poetc_fault, poetc_fault, poetc_fault, poetc_fault, NULL, NULL, NULL, NULL, poetc_fault,
     poetc_fault, NULL, poetc_fault, poetc_fault},
};

int poetc_processors_begin(poetc_processors *processors, poetc_runtime *runtime, const poetc_queues *queues)
{
    const int err = poetc_queues_init(&processors->team, runtime, queues);

    if (err || team != NULL) /* it starts once */
        return err ? err : POETC_EINVAL;
    team = &processors->team;
    INITSVTOR1 = (uint32_t)(uintptr_t)&vectors;
    __asm__ volatile("dsb" : : : "memory");
    CPUWAIT = 0;
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
    (void)processors; /* it waits for the next run for ever */
}
