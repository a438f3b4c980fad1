/* Cuts the power in the middle of switches of a bundle on a board, boots again, and checks what comes back.
 *
 * switches.h: TAKES, one (plan, plan that is asked for, step, blocks that the transition writes) for each switch. Of
 * each switch the first block, the one in the middle and the last one are torn: the first half is new, the rest is old.
 * After that nothing is written or read until the next boot, which begins with garbage in the arena. The card is the
 * board's second memory. The log has the number of cuts, and a line for each that came back otherwise.
 */
#include "model.h"
#include "poetc_checkpoint.h"
#include "poetc_hex.h"
#include "poetc_port.h"
#include "poetc_state.h"
#include "switches.h"

#include <string.h>

enum { STEPS = 3, CUT_STEP = 1, SLOTS = 2, BLOCK_BYTES = POETC_MODEL_BLOCK_BYTES, POWER_IS_OFF = -99 };
enum { CARD_BYTES = 1 << 20 };

uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(32), section(".bss.poetc_arena")));
static uint8_t *const card = (uint8_t *)0x21000000u; /* the PSRAM of the board */
static uint8_t buffer[BLOCK_BYTES];
static poetc_elastic training;
static poetc_checkpoint checkpoint;
static uint32_t now, writes, cut_at; /* blocks that the transition has written; the one that is torn, or 0 */
static int power, is_asked, has_switched;

static void log_line(const char *label, uint32_t value)
{
    log_hex(label, value);
    poetc_port_log("\n");
}

static int page_out(void *context, uint32_t first, uint32_t count, const void *data)
{
    const int in_switch = is_asked && !has_switched && training.runtime.instruction == TAKES[now].at;
    uint32_t i;

    (void)context;
    POETC_PORT_ASSERT((first + count) * BLOCK_BYTES <= CARD_BYTES);
    for (i = 0; i < count; i++) {
        const uint8_t *block = (const uint8_t *)data + i * BLOCK_BYTES;
        const int torn = in_switch && ++writes == cut_at;

        if (torn)
            power = 0;
        if (power || torn)
            memcpy(card + (first + i) * BLOCK_BYTES, block, torn ? BLOCK_BYTES / 2 : BLOCK_BYTES);
        if (!power)
            return POWER_IS_OFF;
    }
    return 0;
}

static int page_in(void *context, uint32_t first, uint32_t count, void *data)
{
    (void)context;
    if (!power)
        return POWER_IS_OFF;
    memcpy(data, card + first * BLOCK_BYTES, count * BLOCK_BYTES);
    return 0;
}

static int before_step(void *context, const poetc_runtime *runtime, uint32_t index)
{
    (void)context;
    if (cut_at && power && !is_asked && runtime->run_count == CUT_STEP && training.plan == TAKES[now].plan &&
        index + 1u == TAKES[now].at) {
        is_asked = 1;
        return poetc_request_budget(&training, digits_bundle.plans[TAKES[now].to]->arena_bytes);
    }
    return 0;
}

static void switched(void *context, uint32_t arena_bytes)
{
    (void)context;
    (void)arena_bytes;
    has_switched = 1;
}

static uint32_t state(void)
{
    uint32_t crc = 0, k;

    for (k = 0; k < POETC_MODEL_REGION_COUNT; k++)
        crc = poetc_crc32(crc, poetc_arena + POETC_MODEL_REGIONS[k].place, POETC_MODEL_REGIONS[k].size_bytes);
    return crc;
}

/* Train from the newest checkpoint until STEPS are complete or the power goes. `crc`: the state after each step. */
static int boot(uint32_t plan, uint32_t *resumed, uint32_t *crc)
{
    poetc_config config;
    uint32_t i;
    int err;

    memset(poetc_arena, 0xa5, sizeof poetc_arena);
    memset(&training, 0xa5, sizeof training);
    memset(&config, 0, sizeof config);
    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.observer = before_step;
    config.store.page_out = page_out;
    config.store.page_in = page_in;
    power = 1;
    is_asked = has_switched = 0;
    writes = 0;
    err = poetc_bundle_init(&training, &digits_bundle, &config, digits_state, digits_bundle.plans[plan]->arena_bytes);
    if (err)
        return err;
    training.switched = switched;
    err = poetc_checkpoint_load(&training.runtime, &checkpoint);
    if (err == POETC_ENOENT)
        err =
            poetc_bundle_init(&training, &digits_bundle, &config, digits_state, digits_bundle.plans[plan]->arena_bytes);
    training.switched = switched;
    *resumed = training.runtime.run_count;
    crc[*resumed] = state();
    while (!err && training.runtime.run_count < STEPS) {
        for (i = 0; i < DIGITS_TRAIN_IN_IMAGE_ELEMENTS; i++)
            digits_train_in_image(poetc_arena)[i] = (float)(int32_t)((i + training.runtime.run_count) % 5) - 2.0f;
        for (i = 0; i < DIGITS_TRAIN_IN_TARGET_ELEMENTS; i++)
            digits_train_in_target(poetc_arena)[i] = (int32_t)((i + training.runtime.run_count) % 3);
        err = poetc_bundle_run(&training);
        if (!err)
            err = poetc_checkpoint_save(&training.runtime, &checkpoint);
        if (!err)
            crc[training.runtime.run_count] = state();
    }
    return err;
}

int main(void)
{
    uint32_t expected[STEPS + 1], crc[STEPS + 1], cuts = 0, resumed, part;

    *(volatile uint32_t *)(uintptr_t)0xe000ed94u = 0; /* the MPU of the start-up code fences the card off */
    checkpoint.first_block = POETC_MODEL_STORE_BLOCKS;
    checkpoint.slots = SLOTS;
    checkpoint.buffer = buffer;
    memset(card, 0, CARD_BYTES);
    if (boot(0, &resumed, expected) || resumed != 0)
        return 1;
    for (now = 0; now < sizeof TAKES / sizeof TAKES[0]; now++) {
        for (part = 0; part < 3u; part++) {
            memset(card, 0, CARD_BYTES);
            cut_at = part == 0 ? 1u : part == 1u ? (TAKES[now].blocks + 1u) / 2u : TAKES[now].blocks;
            if (boot(TAKES[now].plan, &resumed, crc) != POWER_IS_OFF || has_switched)
                log_line("wrong: no cut in switch ", now);
            cuts++;
            cut_at = 0;
            if (boot(TAKES[now].to, &resumed, crc) || resumed != CUT_STEP)
                log_line("wrong: resumed at ", resumed);
            if (memcmp(crc + CUT_STEP, expected + CUT_STEP, (STEPS + 1 - CUT_STEP) * sizeof crc[0]) != 0)
                log_line("wrong: other bits after a cut of switch ", now);
        }
    }
    log_line("cuts ", cuts);
    return 0;
}
