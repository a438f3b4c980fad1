/* The training program of every board: one step for each record of data, the loss of each on the log, the state at the
 * end.
 *
 * A record is the bytes of the inputs, then of the target, in the order of the header. The lines of the log:
 *
 *     resumed step 7
 *     other data than before: from their first record
 *     step 8 loss 2.302585 bits 40135d8e
 *     done steps 20 page_ins 0 page_outs 0 sequence 20 clock 123
 *     stopped step 3 code -5
 *
 * POETC_CHECKPOINT_STEPS: after how many steps the state is saved to two slots of the store, in turn; training goes on
 * from there when the board starts again. 0: never. Records that have been used are passed over if the data still begin
 * with them; other data are used from their first record. POETC_LOG_GRADIENTS: a checksum of all gradients of the step
 * is logged with its loss.
 */
#include "model.h"
#include "poetc_checkpoint.h"
#include "poetc_port.h"
#include "poetc_state.h"

#ifndef POETC_CHECKPOINT_STEPS
#define POETC_CHECKPOINT_STEPS 0
#endif
#ifndef POETC_MODEL_BUFFER_OFFSET
#if POETC_CHECKPOINT_STEPS > 0
#error "the arena has no room for a block of the store besides the state: no checkpoints"
#endif
#define POETC_MODEL_BUFFER_OFFSET 0u
#endif

enum { CHECKPOINT_STEPS = POETC_CHECKPOINT_STEPS, CHECKPOINT_SLOTS = 2 };

#if defined(__linux__) && __STDC_HOSTED__
/* The arena ends where a page ends, whatever the size of pages: the one after it is taken away, and one before it. */
enum {
    GUARD_BYTES = POETC_PORT_GUARD_BYTES,
    SLACK_BYTES = (GUARD_BYTES - POETC_MODEL_ARENA_BYTES % GUARD_BYTES) % GUARD_BYTES
};
struct {
    uint8_t before[GUARD_BYTES + SLACK_BYTES], arena[POETC_MODEL_ARENA_BYTES], after[GUARD_BYTES];
} poetc_guarded __attribute__((aligned(POETC_PORT_GUARD_BYTES)));
#define poetc_arena poetc_guarded.arena
#else
uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(".bss.poetc_arena")));
#endif
static poetc_runtime runtime;

#ifdef POETC_LOG_GRADIENTS
static const struct {
    uint32_t step, offset, size_bytes;
} gradients[] = POETC_MODEL_GRADIENTS;
static uint32_t gradients_crc; /* a sum, since schedules may make them in another order */
#endif

/* Marks the border between two steps of the program for whatever counts instructions from outside: breakpoint, trace or
 * emulator. */
__attribute__((noinline)) int poetc_port_mark(void *context, const poetc_runtime *marked, uint32_t index)
{
#ifdef POETC_LOG_GRADIENTS
    uint32_t i;

    for (i = 0; i < sizeof gradients / sizeof gradients[0]; i++)
        if (gradients[i].step == index)
            gradients_crc += poetc_crc32(i, poetc_arena + gradients[i].offset, gradients[i].size_bytes);
#endif
    (void)context;
    (void)marked;
    __asm__ volatile("" : : "r"(index));
    return 0;
}

static void log_number(const char *label, uint32_t value)
{
    char text[11];
    unsigned i = sizeof text - 1u;

    text[i] = 0;
    do {
        text[--i] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value > 0);
    poetc_port_log(label);
    poetc_port_log(text + i);
}

static void log_code(const char *label, int code)
{
    poetc_port_log(label);
    log_number(code < 0 ? "-" : "", code < 0 ? 0u - (uint32_t)code : (uint32_t)code);
}

static void log_hex(const char *label, uint32_t value)
{
    char text[9];
    unsigned i;

    for (i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[(value >> (28u - 4u * i)) & 15u];
    text[8] = 0;
    poetc_port_log(label);
    poetc_port_log(text);
}

/* Six decimals for people, where they fit, and the bits for comparing. */
static void log_loss(float loss)
{
    char text[8];
    union {
        float value;
        uint32_t bits;
    } u;
    unsigned i;

    u.value = loss;
    if (loss >= 0.0f && loss < 4000.0f) {
        uint32_t millionths = (uint32_t)(loss * 1e6f), digit = 100000u;

        log_number(" loss ", millionths / 1000000u);
        text[0] = '.';
        for (i = 1; i <= 6; i++, digit /= 10u)
            text[i] = (char)('0' + millionths / digit % 10u);
        text[i] = 0;
        poetc_port_log(text);
    }
    log_hex(" bits ", u.bits);
#ifdef POETC_LOG_GRADIENTS
    log_hex(" gradients ", gradients_crc);
    gradients_crc = 0;
#endif
    poetc_port_log("\n");
}

/* Fill in the inputs, and count the record: 1, 0 at the end of the data, or a negative code. */
static int next_record(poetc_checkpoint *used)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i;
    int err = 1;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT && err == 1; i++) {
        err = poetc_port_data(poetc_arena + inputs[i].offset, inputs[i].size_bytes);
        if (CHECKPOINT_STEPS > 0 && err == 1)
            used->records_crc = poetc_crc32(used->records_crc, poetc_arena + inputs[i].offset, inputs[i].size_bytes);
    }
    used->records += err == 1;
    return err;
}

/* Pass over the records that were used before the checkpoint. Where the data begin with other ones, they are new: none
 * is passed over. */
static int pass_over(poetc_checkpoint *checkpoint)
{
    const uint32_t records = checkpoint->records, crc = checkpoint->records_crc;
    int err = poetc_port_rewind();

    if (err <= 0) /* live data */
        return err;
    checkpoint->records = checkpoint->records_crc = 0;
    while (err == 1 && checkpoint->records < records)
        err = next_record(checkpoint);
    if (err < 0 || (err == 1 && checkpoint->records_crc == crc))
        return err < 0 ? err : POETC_OK;
    poetc_port_log("other data than before: from their first record\n");
    checkpoint->records = checkpoint->records_crc = 0;
    err = poetc_port_rewind();
    return err < 0 ? err : POETC_OK;
}

/* Go on from the newest whole checkpoint, with the first record that it has not seen; from the beginning if there is
 * none. */
static int resume(const poetc_config *config, poetc_checkpoint *checkpoint)
{
    int err = poetc_checkpoint_load(&runtime, checkpoint);

    if (err == POETC_ENOENT)
        return poetc_init(&runtime, POETC_MODEL_PROGRAM, config, POETC_MODEL_STATE);
    if (err)
        return err;
    log_number("resumed step ", runtime.run_count);
    poetc_port_log("\n");
    return pass_over(checkpoint);
}

static int train(poetc_checkpoint *checkpoint, uint32_t *step)
{
    int err;

    for (*step = runtime.run_count + 1u;; (*step)++) {
        err = next_record(checkpoint);
        if (err <= 0)
            return err;
        err = poetc_run(&runtime);
        if (err)
            return err;
        log_number("step ", *step);
        log_loss(poetc_loss(&runtime));
        if (CHECKPOINT_STEPS > 0 && *step % (CHECKPOINT_STEPS > 0 ? CHECKPOINT_STEPS : 1) == 0) {
            err = poetc_checkpoint_save(&runtime, checkpoint);
            if (err)
                return err;
        }
    }
}

static int hand_over(void *context, const void *data, uint32_t size_bytes)
{
    (void)context;
    return poetc_port_result(data, size_bytes);
}

int main(void)
{
    static const poetc_state state = {POETC_MODEL_REGIONS, POETC_MODEL_REGION_COUNT, POETC_MODEL_IDENTITY};
    poetc_config config;
    poetc_checkpoint checkpoint;
    uint32_t step = 0, start = poetc_port_clock(), blocks = POETC_MODEL_STORE_BLOCKS;
    int err;

#if defined(__linux__) && __STDC_HOSTED__
    poetc_port_guard(poetc_guarded.before);
    poetc_port_guard(poetc_guarded.after);
#endif
    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.flash = POETC_MODEL_CONSTANTS;
    config.store.page_out = NULL;
    config.store.page_in = NULL;
    config.store.context = NULL;
    config.store.sync = NULL;
    config.observer = poetc_port_mark;
    config.observer_context = NULL;
    /* Past the pages. Between two steps nothing but the state is needed, so the arena has room for a block. */
    checkpoint.first_block = POETC_MODEL_STORE_BLOCKS;
    checkpoint.slots = CHECKPOINT_SLOTS;
    checkpoint.buffer = poetc_arena + POETC_MODEL_BUFFER_OFFSET;
    checkpoint.identity = POETC_MODEL_IDENTITY;
    checkpoint.records = checkpoint.records_crc = 0;
    if (CHECKPOINT_STEPS > 0)
        blocks += CHECKPOINT_SLOTS * poetc_checkpoint_blocks(POETC_MODEL_PROGRAM);
    err = poetc_port_open(&config.store, POETC_MODEL_BLOCK_BYTES, blocks);
    if (!err)
        err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
    if (!err && CHECKPOINT_STEPS > 0)
        err = resume(&config, &checkpoint);
    if (!err)
        err = train(&checkpoint, &step);
    if (!err && config.store.sync != NULL)
        err = config.store.sync(config.store.context);
    if (!err)
        err = poetc_state_write(&runtime, &state, hand_over, NULL);
    if (!err)
        err = poetc_port_result(NULL, 0);
    if (err) {
        log_number("stopped step ", step);
        log_code(" code ", err);
        poetc_port_log("\n");
        poetc_port_stop(POETC_PORT_FAILED);
        return POETC_PORT_FAILED;
    }
    log_number("done steps ", step - 1u);
    log_number(" page_ins ", runtime.page_ins);
    log_number(" page_outs ", runtime.page_outs);
    log_number(" sequence ", runtime.sequence);
    log_number(" clock ", poetc_port_clock() - start);
    poetc_port_log("\n");
    poetc_port_stop(0);
    return 0;
}
