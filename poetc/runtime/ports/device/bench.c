/* Times every instruction of a program on a real board: in place of train.c, for `poetc profile bench --emit`.
 *
 * The log is the input of `poetc profile fit`: a line of column names, then one for each instruction, the least time of
 * REPEATS runs. Other lines begin with '#'. A pin is high during every other instruction, low while nothing is measured
 * (poetc_bench_power_mark). So the trace of a power meter can be laid beside the times.
 */
#if defined(__linux__)
#define _POSIX_C_SOURCE 200809L
#endif

#include "bench_rows.h"
#include "model.h"
#include "poetc_port.h"

#if defined(__linux__) && __STDC_HOSTED__
#include <time.h>
#endif

enum { INSTRUCTIONS = sizeof poetc_bench_rows / sizeof poetc_bench_rows[0], REPEATS = 7 };

uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(".bss.poetc_arena")));
static poetc_runtime runtime;
static uint32_t least[INSTRUCTIONS], start;

/* A board's own pin: high or low. Give a function of this name to drive it. */
__attribute__((weak)) void poetc_bench_power_mark(int level);
__attribute__((weak)) void poetc_bench_power_mark(int level)
{
    (void)level;
}

#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define DEMCR REGISTER(0xe000edfcu)
#define DWT_CTRL REGISTER(0xe0001000u)
#define DWT_CYCCNT REGISTER(0xe0001004u)
#define SYST_CSR REGISTER(0xe000e010u)
#define SYST_RVR REGISTER(0xe000e014u)
#define SYST_CVR REGISTER(0xe000e018u)

static int counts_cycles;

/* The cycle counter; where there is none (Cortex-M0, emulators), SysTick: 24 bits. */
static void start_clock(void)
{
    uint32_t before;

    SYST_RVR = 0xffffffu;
    SYST_CVR = 0;
    SYST_CSR = 5;
#if __ARM_ARCH >= 7 || defined(__ARM_ARCH_8M_MAIN__)
    DEMCR |= 1u << 24;
    DWT_CYCCNT = 0;
    DWT_CTRL |= 1u;
    before = DWT_CYCCNT;
    __asm__ volatile("nop\n nop\n nop\n nop");
    counts_cycles = DWT_CYCCNT != before;
#else
    (void)before;
#endif
    poetc_port_log(counts_cycles ? "# clock: cycle counter\n" : "# clock: SysTick, steps of at most 2^24 cycles\n");
}

static uint32_t now(void)
{
    return counts_cycles ? DWT_CYCCNT : 0u - SYST_CVR;
}

static uint32_t between(uint32_t from, uint32_t to)
{
    return counts_cycles ? to - from : (to - from) & 0xffffffu;
}

static const uint32_t ticks_hz = POETC_BENCH_CLOCK_HZ;

#elif defined(__linux__) && __STDC_HOSTED__

static const uint32_t ticks_hz = 1000000000u; /* an instruction of at most 4.29 s */

static void start_clock(void)
{
    poetc_port_log("# clock: CLOCK_MONOTONIC\n");
}

static uint32_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint32_t)((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
}

static uint32_t between(uint32_t from, uint32_t to)
{
    return to - from;
}

#else

#define ticks_hz poetc_port_clock_hz

static void start_clock(void)
{
}

static uint32_t now(void)
{
    return poetc_port_clock();
}

static uint32_t between(uint32_t from, uint32_t to)
{
    return to - from;
}

#endif

static int measure(void *context, const poetc_runtime *measured, uint32_t index)
{
    uint32_t ticks = between(start, now());

    (void)context;
    (void)measured;
    if (index > 0 && ticks < least[index - 1u])
        least[index - 1u] = ticks;
    poetc_bench_power_mark(index < INSTRUCTIONS && !(index & 1u));
    start = now();
    return 0;
}

static void log_number(uint64_t value)
{
    char text[21];
    unsigned i = sizeof text - 1u;

    text[i] = 0;
    do {
        text[--i] = (char)('0' + (unsigned)(value % 10u));
        value /= 10u;
    } while (value > 0);
    poetc_port_log(text + i);
}

/* Floats between -1 and 1; indices and targets are 0. */
static void fill_inputs(void)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i, at, random = 1;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        for (at = 0; at < inputs[i].size_bytes / 4u; at++) {
            union {
                float value;
                uint32_t bits;
            } u;
            random = random * 1664525u + 1013904223u;
            u.value = poetc_bench_floats[i] ? (float)(int32_t)random * (1.0f / 2147483648.0f) : 0.0f;
            ((uint32_t *)(void *)(poetc_arena + inputs[i].offset))[at] = u.bits;
        }
    }
}

int main(void)
{
    poetc_config config = {0};
    uint32_t i, repeat;
    int err;

    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.flash = POETC_MODEL_CONSTANTS;
    config.observer = measure;
    err = poetc_port_open(&config.store, POETC_MODEL_BLOCK_BYTES, POETC_MODEL_STORE_BLOCKS, 0);
    if (!err)
        err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
    start_clock();
    for (i = 0; i < INSTRUCTIONS; i++)
        least[i] = UINT32_MAX;
    for (repeat = 0; repeat < REPEATS && !err; repeat++) {
        fill_inputs();
        err = poetc_run(&runtime);
        poetc_bench_power_mark(0);
    }
    if (err) {
        poetc_port_log("# stopped at instruction ");
        log_number(runtime.instruction);
        poetc_port_log(" code ");
        poetc_port_log(err < 0 ? "-" : "");
        log_number((uint64_t)(err < 0 ? -(int64_t)err : err));
        poetc_port_log("\n");
        poetc_port_stop(POETC_PORT_FAILED);
        return POETC_PORT_FAILED;
    }
    poetc_port_log(POETC_BENCH_COLUMNS "\n");
    for (i = 0; i < INSTRUCTIONS; i++) {
        poetc_port_log(poetc_bench_rows[i]);
        log_number((uint64_t)least[i] * 1000000000u / ticks_hz);
        poetc_port_log("\n");
    }
    poetc_port_log("# done\n");
    poetc_port_stop(0);
    return 0;
}
