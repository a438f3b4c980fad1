/* A program on several processors: a queue a processor, and counters as fences.
 *
 * The program itself is a list of instructions, which poetc_run executes on one processor. Here each processor executes
 * its part of the list in order. It waits at an instruction until all instructions of other processors are over that
 * touch the same bytes and come first in the list. So a run gives the same bits, however long the instructions take.
 * The processors decide nothing. A stream that reads ahead is in two queues: the first has its kernels, the other its
 * transfers.
 *
 * The port starts the other processors, each of which calls poetc_queues_serve in a loop. Counters are read and written
 * with the atomic operations of GCC and Clang. A port may define others, and a pause, before it includes this file.
 */
#ifndef POETC_QUEUES_H
#define POETC_QUEUES_H

#include "poetc.h"

#ifndef POETC_FENCE_PAUSE /* between two looks at a counter: a yield, or a wait for an event */
#if defined(__unix__) && __STDC_HOSTED__
#include <sched.h>
#define POETC_FENCE_PAUSE() ((void)sched_yield())
#elif defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' /* the cores' events reach each other */
#define POETC_FENCE_PAUSE() __asm__ volatile("wfe" : : : "memory")
#define POETC_FENCE_SIGNAL() __asm__ volatile("dsb\n sev" : : : "memory")
#elif defined(__aarch64__)
#define POETC_FENCE_PAUSE() __asm__ volatile("yield" : : : "memory")
#else
#define POETC_FENCE_PAUSE() ((void)0)
#endif
#endif
#ifndef POETC_FENCE_SIGNAL
#define POETC_FENCE_SIGNAL() ((void)0) /* after a counter was written: ends a pause */
#endif
#ifndef POETC_FENCE_LOAD
#define POETC_FENCE_LOAD(counter) __atomic_load_n((counter), __ATOMIC_ACQUIRE)
#define POETC_FENCE_STORE(counter, value) __atomic_store_n((counter), (value), __ATOMIC_RELEASE)
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_PROCESSORS 8 /* the most that work together */

/* Of a counter: a line of a cache, where pointers have 64 bits. */
#define POETC_FENCE_WORDS (sizeof(void *) > 4 ? 16 : 1)

/* The queues of a program: const, lives in flash. */
typedef struct poetc_queues {
    const poetc_program *program;
    uint32_t processor_count;
    const uint32_t *counts; /* instructions of each processor */
    /* By processor, a row an instruction: its number in the program, then by processor the instructions that must be
     * over. */
    const uint32_t *const *rows;
} poetc_queues;

/* A counter that one processor writes: the first of these words. */
typedef struct poetc_fence {
    uint32_t words[POETC_FENCE_WORDS];
} poetc_fence;

/* The processors that execute a program together. The main one sets it up with poetc_queues_init. */
typedef struct poetc_team {
    poetc_runtime *runtime;
    const poetc_queues *queues;
    poetc_fence generation;             /* runs begun */
    poetc_fence over[POETC_PROCESSORS]; /* instructions that are over, of all runs; each written by its processor */
    poetc_fence error[POETC_PROCESSORS];
    poetc_fence blocks[2];            /* of streams that read ahead: those over, by kernels and by transfers */
    uint32_t begun[POETC_PROCESSORS]; /* each processor's own: instructions of earlier runs */
} poetc_team;

/* Set up `team` for the program of `queues`, which must be that of `runtime`. POETC_EINVAL: it is not, or there are
 * more processors than POETC_PROCESSORS. */
int poetc_queues_init(poetc_team *team, poetc_runtime *runtime, const poetc_queues *queues);

/* On another processor than the first: wait for the run after `generation` runs, and execute its part of it. Returns
 * the number of runs to wait for next time; begin with 0. */
uint32_t poetc_queues_serve(poetc_team *team, uint32_t processor, uint32_t generation);

/* On the first processor: run the program once, as poetc_run does, while the others serve. Each processor calls the
 * observer before its instructions: all that the instruction reads is there then. So the observer may be called by
 * several at once. On an error every processor stops at its next instruction, and the first error by processor is
 * returned. */
int poetc_queues_run(poetc_team *team);

#ifdef __cplusplus
}
#endif
#endif
