/* Cuts the power at every block that a training run writes, and checks what comes back. Built with the emitted model.
 *
 *     power_loss STEPS CHECKPOINT_SLOTS [CUTS_A_BOOT [PERIOD]]
 *
 * CUTS_A_BOOT: blocks to the next cut of the same run; 0: one cut. PERIOD: steps between two checkpoints. Prints
 * "cuts N steps_lost_at_most M" and exits 0; or says what is wrong and exits 1. The block being written at the cut is
 * torn: its first half is new, the rest old. After it nothing is written or read until the next boot, which
 * starts with garbage in RAM.
 */
#include "model.h"
#include "poetc_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4096, POWER_IS_OFF = -99 };

static uint8_t card[BLOCKS][POETC_MODEL_BLOCK_BYTES], fresh_card[BLOCKS][POETC_MODEL_BLOCK_BYTES];
static uint8_t arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16)));
static uint8_t buffer[POETC_MODEL_BLOCK_BYTES];
static uint32_t period = 1;
static long writes, cut_at; /* blocks written since the beginning; the one that is torn */
static int power = 1;

static int page_out(void *context, uint32_t first, uint32_t count, const void *data)
{
    uint32_t i;

    (void)context;
    for (i = 0; i < count; i++) {
        const uint8_t *block = (const uint8_t *)data + (size_t)i * POETC_MODEL_BLOCK_BYTES;

        if (!power)
            return POWER_IS_OFF;
        if (++writes == cut_at) {
            memcpy(card[first + i], block, POETC_MODEL_BLOCK_BYTES / 2);
            power = 0;
            return POWER_IS_OFF;
        }
        memcpy(card[first + i], block, POETC_MODEL_BLOCK_BYTES);
    }
    return 0;
}

static int page_in(void *context, uint32_t first, uint32_t count, void *data)
{
    (void)context;
    if (!power)
        return POWER_IS_OFF;
    memcpy(data, card[first], (size_t)count * POETC_MODEL_BLOCK_BYTES);
    return 0;
}

/* Inputs that depend on the step alone: small numbers, and zeros for the targets. */
static void fill_inputs(uint32_t step)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i, j;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        memset(arena + inputs[i].offset, 0, inputs[i].size_bytes);
        for (j = 0; i == 0 && j + 4 <= inputs[i].size_bytes; j += 4) {
            float value = (float)((step * 7u + j) % 11u) * 0.125f - 0.5f;
            memcpy(arena + inputs[i].offset + j, &value, 4);
        }
    }
}

static poetc_config config;
static poetc_runtime runtime;
static poetc_checkpoint checkpoint;

/* One boot: load, and train until `steps` are complete or the power goes. Returns 0 or the error; `resumed` is where it
 * began. */
static int boot(uint32_t steps, uint32_t *resumed, uint32_t *saved)
{
    int err;

    memset(arena, 0xa5, sizeof arena);
    memset(&runtime, 0xa5, sizeof runtime);
    checkpoint.saves = checkpoint.next_slot = 0;
    err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
    if (err)
        return err;
    err = poetc_checkpoint_load(&runtime, &checkpoint);
    if (err == POETC_ENOENT)
        err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
    *resumed = runtime.run_count;
    while (!err && runtime.run_count < steps) {
        fill_inputs(runtime.run_count);
        err = poetc_run(&runtime);
        if (err || runtime.run_count % period != 0)
            continue;
        err = poetc_checkpoint_save(&runtime, &checkpoint);
        if (!err)
            *saved = runtime.run_count;
    }
    return err;
}

int main(int argc, char **argv)
{
    static uint8_t expected[POETC_MODEL_STATE_BYTES + 1];
    const uint32_t steps = (uint32_t)atoi(argv[1]);
    const long distance = argc > 3 ? atol(argv[3]) : 0;
    uint32_t resumed, saved = 0, lost, most = 0;
    long total, cuts;
    FILE *image = fopen("store.img", "rb");

    period = argc > 4 ? (uint32_t)atoi(argv[4]) : 1u;
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    config.flash = POETC_MODEL_CONSTANTS;
    config.store.page_out = page_out;
    config.store.page_in = page_in;
    checkpoint.first_block = POETC_MODEL_STORE_BLOCKS;
    checkpoint.slots = (uint32_t)atoi(argv[2]);
    checkpoint.buffer = buffer;
    if (image != NULL) {
        if (fread(fresh_card, 1, sizeof fresh_card, image) == 0)
            return 1;
        fclose(image);
    }
    memcpy(card, fresh_card, sizeof card);
    if (boot(steps, &resumed, &saved) || resumed != 0)
        return printf("the run without a cut failed\n"), 1;
    memcpy(expected, arena, POETC_MODEL_STATE_BYTES);
    total = writes;

    for (cuts = 1; cuts <= total; cuts++) {
        int err;

        memcpy(card, fresh_card, sizeof card);
        writes = 0;
        saved = 0;
        cut_at = cuts;
        power = 1;
        err = boot(steps, &resumed, &saved);
        while (err == POWER_IS_OFF) {
            uint32_t before = saved, reached = runtime.run_count;

            power = 1;
            cut_at = distance > 0 ? writes + distance : 0;
            err = boot(steps, &resumed, &saved);
            if (err && err != POWER_IS_OFF)
                break;
            if (resumed < before)
                return printf("cut %ld: checkpoint %u was lost, resumed from %u\n", cuts, before, resumed), 1;
            lost = reached > resumed ? reached - resumed : 0;
            most = lost > most ? lost : most;
        }
        if (err)
            return printf("cut %ld: error %d\n", cuts, err), 1;
        if (memcmp(expected, arena, POETC_MODEL_STATE_BYTES) != 0)
            return printf("cut %ld: another result\n", cuts), 1;
    }
    printf("cuts %ld steps_lost_at_most %u\n", total, most);
    return 0;
}
