/* Trains between the turns of a control loop of TICKS cycles of 25 MHz, and counts turns that come too late, for
 * test_slices.py. Takes the place of port/train.c. */
#include "model.h"
#include "poetc_port.h"
#include "poetc_session.h"

#include <string.h>

static void log_hex(const char *label, uint32_t value);
#include "poetc_hex.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define SYSTICK_CONTROL REGISTER(0xe000e010u)
#define SYSTICK_RELOAD REGISTER(0xe000e014u)
#define SYSTICK_VALUE REGISTER(0xe000e018u)
#define VECTORS REGISTER(0xe000ed08u)
#define CYCLES_PER_US 25u

enum { STEPS = 3 };

uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(".bss.poetc_arena")));
static uint32_t table[64] __attribute__((aligned(256)));
static poetc_session session;
static poetc_slice slice;
static volatile uint32_t ticks, missed, waits; /* waits: the loop is ready for its next turn */

static void tick(void)
{
    ticks++;
    missed += !waits;
    waits = 0;
}

static uint32_t now_us(void *context)
{
    uint32_t before, value;

    (void)context;
    do {
        before = ticks;
        value = SYSTICK_VALUE;
    } while (before != ticks);
    return (before * TICKS + (TICKS - value)) / CYCLES_PER_US;
}

static void fill(void)
{
    float *x = poetc_session_input(&session, &session.model->train, 0);
    int32_t *y = poetc_session_input(&session, &session.model->train, 1);
    uint32_t i;

    for (i = 0; i < session.model->train.inputs[0].size_bytes / 4; i++)
        x[i] = (float)(int32_t)(i % 5) - 2.0f;
    for (i = 0; i < session.model->train.inputs[1].size_bytes / 4; i++)
        y[i] = (int32_t)(i % 3);
}

int main(void)
{
    poetc_config config;
    float loss = 0.0f;
    uint32_t step, bits;
    int err;

    memset(&config, 0, sizeof config);
    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    if (poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config))
        return 1;
    session.slice = &slice;
    session.now_us = now_us;
    memcpy(table, (const void *)(uintptr_t)VECTORS, 16 * sizeof table[0]);
    table[15] = (uint32_t)(uintptr_t)tick;
    VECTORS = (uint32_t)(uintptr_t)table;
    waits = 1;
    SYSTICK_RELOAD = TICKS - 1u;
    SYSTICK_VALUE = 0;
    SYSTICK_CONTROL = 7u;
    for (step = 0; step < STEPS; step++) {
        fill();
        if (poetc_session_begin(&session, NULL))
            return 2;
        do {
            err = poetc_session_continue(&session, 0, BUDGET_US, &loss);
            waits = 1;
            while (waits) /* for the tick */
                ;
        } while (err == 0);
        if (err != POETC_COMPLETE)
            return 3;
        memcpy(&bits, &loss, sizeof bits);
        log_hex("bits ", bits);
        poetc_port_log("\n");
    }
    SYSTICK_CONTROL = 0;
    log_hex("ticks ", ticks);
    log_hex(" missed ", missed);
    poetc_port_log("\n");
    return 0;
}
