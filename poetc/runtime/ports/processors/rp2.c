/* The second core of an RP2040 or RP2350, in a project of the Raspberry Pi Pico SDK that links pico_multicore. */
#ifdef LIB_PICO_MULTICORE
#include "poetc_processors.h"

#include "pico/multicore.h"

const uint32_t poetc_processors_bytes = sizeof(poetc_processors);

static poetc_team *team;

static void serve(void)
{
    uint32_t generation = 0;

    for (;;)
        generation = poetc_queues_serve(team, 1, generation);
}

/* The SDK gives the core its stack: PICO_CORE1_STACK_SIZE, by default 2048 bytes. */
int poetc_processors_begin(poetc_processors *processors, poetc_runtime *runtime, const poetc_queues *queues)
{
    const int err = poetc_queues_init(&processors->team, runtime, queues);

    if (err || team != NULL || queues->processor_count > 2u)
        return err ? err : POETC_EINVAL;
    team = &processors->team;
    multicore_launch_core1(serve);
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
    (void)processors;
    multicore_reset_core1();
    team = NULL;
}

#else
typedef int poetc_without_pico_multicore; /* a C file must have something in it */
#endif
