/* Runs a program step by step on one processor and as queues on threads, and compares every bit of state and loss. With
 * DELAYS a thread now and then waits at a fence. Usage: ./queues RUNS; prints "RUNS runs, the same bits". */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

static uint8_t memory[2][POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16)));
static poetc_runtime alone, together;
static poetc_team team;
static uint32_t runs;

static void *serve(void *argument)
{
    uint32_t generation = 0;

    while (generation < runs)
        generation = poetc_queues_serve(&team, (uint32_t)(uintptr_t)argument, generation);
    return NULL;
}

static void fail(const char *what, unsigned run)
{
    printf("run %u: %s\n", run, what);
    exit(1);
}

static void compare(unsigned run)
{
    const poetc_program *program = &model_train;
    uint32_t i;

    for (i = 0; i < program->region_count; i++) {
        const poetc_region *region = &program->regions[i];

        if (memcmp(memory[0] + region->place, memory[1] + region->place, region->size_bytes))
            fail("other state", run);
    }
    if (memcmp(memory[0] + program->loss_offset, memory[1] + program->loss_offset, sizeof(float)))
        fail("another loss", run);
}

int main(int argc, char **argv)
{
    static const poetc_config configs[2] = {
        {.arena = memory[0], .arena_bytes = sizeof memory[0], .flash = FLASH},
        {.arena = memory[1], .arena_bytes = sizeof memory[1], .flash = FLASH},
    };
    pthread_t threads[POETC_PROCESSORS];
    const poetc_queues *queues = &model_train_queues;
    uint32_t i, run, seed = 1;

    runs = argc > 1 ? (uint32_t)atoi(argv[1]) : 1u;
    if (poetc_init(&alone, &model_train, &configs[0], model_state) ||
        poetc_init(&together, &model_train, &configs[1], model_state) || poetc_queues_init(&team, &together, queues))
        fail("not set up", 0);
    for (i = 1; i < queues->processor_count; i++)
        pthread_create(&threads[i], NULL, serve, (void *)(uintptr_t)i);
    for (run = 0; run < runs; run++) {
        for (i = 0; i < X_BYTES / 4; i++) {
            float value;

            seed = seed * 1664525u + 1013904223u;
            value = (float)(int32_t)seed / 2147483648.0f;
            memcpy(memory[0] + X_OFFSET + 4u * i, &value, 4u);
            memcpy(memory[1] + X_OFFSET + 4u * i, &value, 4u);
        }
        for (i = 0; i < TARGET_BYTES / 4; i++) {
            const int32_t label = (int32_t)((run + i) % 3u);

            memcpy(memory[0] + TARGET_OFFSET + 4u * i, &label, 4u);
            memcpy(memory[1] + TARGET_OFFSET + 4u * i, &label, 4u);
        }
        if (poetc_run(&alone) || poetc_queues_run(&team))
            fail("an error", run);
        compare(run);
    }
    for (i = 1; i < queues->processor_count; i++)
        pthread_join(threads[i], NULL);
    printf("%lu runs, the same bits\n", (unsigned long)runs);
    return 0;
}
