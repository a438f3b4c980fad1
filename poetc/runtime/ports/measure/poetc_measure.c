/* An observer that times the instructions of a run, for `poetc profile bench` and `poetc validate --timing`. */
#define _POSIX_C_SOURCE 199309L
#include "poetc.h"

#include <time.h>

/* In nanoseconds, by the clock that is soon read. The one of processor time needs the kernel, and the instructions
 * after it are slower. */
typedef struct {
    int64_t start;
    int64_t *instruction_ns; /* one for each instruction of the program, given by the caller */
} poetc_measurement;

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int poetc_measure(void *context, poetc_runtime *runtime, uint32_t instruction)
{
    poetc_measurement *measurement = context;

    (void)runtime;
    if (instruction > 0)
        measurement->instruction_ns[instruction - 1] = now_ns() - measurement->start;
    measurement->start = now_ns();
    return 0;
}

/* The time that timing itself adds to an instruction: the least of `count` empty measurements. */
int64_t poetc_measure_overhead(uint32_t count)
{
    int64_t least = INT64_MAX;
    uint32_t i;

    for (i = 0; i < count; i++) {
        int64_t start = now_ns(), spent = now_ns() - start;

        if (spent < least)
            least = spent;
    }
    return least;
}
