/* Included before everything else: fences that now and then make a thread wait at random. */
#ifndef __ASSEMBLER__
#include <sched.h>
#include <stdint.h>

static inline uint32_t delayed_load(const uint32_t *counter)
{
    static _Thread_local uint32_t seed = 0;
    volatile uint32_t turns;

    seed = (seed ? seed : (uint32_t)(uintptr_t)&seed) * 1664525u + 1013904223u;
    if (seed >> 29 == 0u)
        sched_yield();
    for (turns = seed >> 24; turns > 200u; turns--) {
    }
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

#define POETC_FENCE_LOAD(counter) delayed_load(counter)
#define POETC_FENCE_STORE(counter, value) __atomic_store_n((counter), (value), __ATOMIC_RELEASE)
#define POETC_FENCE_PAUSE() sched_yield()
#endif
