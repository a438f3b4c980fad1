/* The training program of every board: one step for each record of data, the loss of each on the log, the state at the
 * end.
 *
 * A record is the bytes of the inputs, then of the target, in the order of the header. The lines of the log:
 *
 *     input x from -0.424213 to 2.821487
 *     resumed step 7
 *     other data than before: from their first record
 *     step 8 loss 2.302585 bits 40135d8e
 *     done steps 20 page_ins 0 page_outs 0 sequence 20 clock 123
 *     stopped step 3 code -5: a file or the store cannot be read or written
 *
 * POETC_CHECKPOINT_STEPS: after how many steps the state is saved to two slots of the store, in turn. Training goes on
 * from there when the board starts again. 0: never. Records that have been used are passed over if the data still begin
 * with them; other data are used from their first record. POETC_LOG_GRADIENTS: a checksum of all gradients of the step
 * is logged with its loss. POETC_ANY_RANGE: on Linux, inputs are trained on that look as if nobody had scaled them.
 */
#include "model.h"
#include "poetc_checkpoint.h"
#include "poetc_data.h"
#include "poetc_port.h"
#include "poetc_state.h"

#include <string.h>

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
#ifndef POETC_MODEL_ARENA_SECTION
#define POETC_MODEL_ARENA_SECTION ".bss.poetc_arena"
#endif
uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(POETC_MODEL_ARENA_SECTION)));
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

__attribute__((noinline)) static void log_code(const char *label, int code)
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

/* Six decimals of a number below 4000. */
static void log_decimals(const char *label, float value)
{
    char text[8];
    uint32_t millionths = (uint32_t)(value * 1e6f), digit = 100000u;
    unsigned i;

    log_number(label, millionths / 1000000u);
    text[0] = '.';
    for (i = 1; i <= 6; i++, digit /= 10u)
        text[i] = (char)('0' + millionths / digit % 10u);
    text[i] = 0;
    poetc_port_log(text);
}

/* For people, where it fits, and the bits for comparing. */
static void log_loss(float loss)
{
    union {
        float value;
        uint32_t bits;
    } u;

    u.value = loss;
    if (loss >= 0.0f && loss < 4000.0f)
        log_decimals(" loss ", loss);
    log_hex(" bits ", u.bits);
#ifdef POETC_LOG_GRADIENTS
    log_hex(" gradients ", gradients_crc);
    gradients_crc = 0;
#endif
    poetc_port_log("\n");
}

static const poetc_binding *const inputs = POETC_MODEL_INPUTS;

/* Fill in the inputs, and count the record: 1, 0 at the end of the data, or a negative code. */
static int next_record(poetc_checkpoint *used)
{
    uint32_t i;
    int err = 1;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT && err == 1; i++) {
        err = poetc_port_data(poetc_arena + inputs[i].offset, inputs[i].size_bytes);
        if (CHECKPOINT_STEPS > 0 && err == 1)
            used->records_crc = poetc_crc32(used->records_crc, poetc_arena + inputs[i].offset, inputs[i].size_bytes);
    }
    used->records += err == 1;
    return err == 0 && i > 1 ? POETC_ENODATA : err;
}

/* Is there anything in this record that no kernel can use? */
static int check_record(uint32_t record)
{
    static const poetc_limit *const limits = POETC_MODEL_LIMITS;
    poetc_flaw flaw;
    int err = poetc_check_inputs(inputs, limits, POETC_MODEL_INPUT_COUNT, poetc_arena, &flaw);

    if (!err)
        return err;
    log_number("record ", record);
    poetc_port_log(": ");
    poetc_port_log(inputs[flaw.input].name);
    log_number(" element ", flaw.element);
    if (err == POETC_ERANGE) {
        log_code(" is ", flaw.value);
        log_code(", not ", limits[flaw.input].least);
        log_code(" to ", limits[flaw.input].most);
    }
    poetc_port_log("\n");
    return err;
}

#if defined(__linux__) && __STDC_HOSTED__
static void log_float(const char *label, float value)
{
    const float size = value < 0.0f ? -value : value;

    poetc_port_log(label);
    if (size < 4000.0f)
        log_decimals(value < 0.0f ? "-" : "", size);
    else
        log_number(value < 0.0f ? "-" : "", size < 4e9f ? (uint32_t)size : 4000000000u);
}

#ifdef POETC_ANY_RANGE
enum { ANY_RANGE = 1 };
#else
enum { ANY_RANGE = 0 };
#endif

/* Log the range of each input in the first record. 1: one looks as if nobody had scaled it. */
static int check_ranges(void)
{
    static const poetc_limit *const limits = POETC_MODEL_LIMITS;
    uint32_t i;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        if (limits[i].dtype == POETC_F32) {
            const poetc_span span = poetc_span_of(poetc_arena + inputs[i].offset, inputs[i].size_bytes / 4u);

            poetc_port_log("input ");
            poetc_port_log(inputs[i].name);
            log_float(" from ", span.least);
            log_float(" to ", span.most);
            poetc_port_log("\n");
            if (!ANY_RANGE && limits[i].least > limits[i].most && poetc_span_is_raw(span)) {
                poetc_port_log("data.bin: record 1: ");
                poetc_port_log(inputs[i].name);
                poetc_port_log(" looks unscaled: scale it as the model was trained, or make ANY_RANGE=1\n");
                return 1;
            }
        }
    }
    return 0;
}
#else
#define check_ranges() 0 /* no room for it in small flash */
#endif

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
    if (err == POETC_ENODATA) /* shorter than before */
        err = 0;
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

#ifdef POETC_MODEL_SCHEDULE
static float base_rate; /* the optimizer's own */

/* The rate of the step that is next. Without validation losses there is no plateau. */
static void set_rate(void)
{
    const uint32_t updates = runtime.run_count / POETC_MODEL_STEPS_AN_UPDATE; /* which a schedule counts */
    const float rate = poetc_rate(POETC_MODEL_SCHEDULE, NULL, base_rate, updates);

    poetc_set_float(&runtime, POETC_MODEL_LEARNING_RATE_OFFSET, rate);
}
#else
#define set_rate() (void)0
#endif

static int train(poetc_checkpoint *checkpoint, uint32_t *step)
{
    const uint32_t first = runtime.run_count + 1u;
#if defined(__linux__) && __STDC_HOSTED__
    poetc_trend trend = {0};
#endif
    float loss;
    int err;

    for (*step = first;; (*step)++) {
        err = next_record(checkpoint);
        if (err == 0 && *step == 1u)
            err = POETC_ENODATA;
#if defined(__linux__) && __STDC_HOSTED__
        if (err == 0 && poetc_trend_rises(&trend))
            poetc_port_log(
                "the loss rose to more than twice its first value: lower the learning rate, or scale the inputs\n");
#endif
        if (err <= 0)
            return err;
        err = check_record(checkpoint->records);
        if (!err && *step == first && check_ranges()) {
            poetc_port_stop(POETC_PORT_FAILED);
            return POETC_EINVAL;
        }
        if (!err) {
            set_rate();
            err = poetc_run(&runtime);
        }
        if (err)
            return err;
        log_number("step ", *step);
        loss = poetc_loss(&runtime);
        log_loss(loss);
        if (!poetc_is_finite(loss)) {
            poetc_port_log("the loss is no number: lower the learning rate, or scale the inputs\n");
            return POETC_ENUMBER;
        }
#if defined(__linux__) && __STDC_HOSTED__
        if (*step == 1u && poetc_starts_absurd(loss, POETC_MODEL_LIMITS, POETC_MODEL_INPUT_COUNT))
            poetc_port_log("the first loss is more than three times that of guessing: are inputs scaled and classes"
                           " numbered as the model was trained?\n");
        poetc_trend_add(&trend, loss);
#endif
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
    uint32_t step = 0, start = poetc_port_clock(), blocks = POETC_MODEL_STORE_BLOCKS, record_bytes = 0, i;
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
    memset(checkpoint.words, 0, sizeof checkpoint.words);
    if (CHECKPOINT_STEPS > 0)
        blocks += CHECKPOINT_SLOTS * poetc_checkpoint_blocks(POETC_MODEL_PROGRAM);
    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++)
        record_bytes += inputs[i].size_bytes;
    err = poetc_port_open(&config.store, POETC_MODEL_BLOCK_BYTES, blocks, record_bytes);
    if (!err)
        err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
#ifdef POETC_MODEL_SCHEDULE
    base_rate = err ? 0.0f : poetc_get_float(&runtime, POETC_MODEL_LEARNING_RATE_OFFSET);
#endif
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
    if (err == POETC_ENODATA) {
        log_number("a record of data is ", record_bytes);
        poetc_port_log(" bytes\n");
    }
    if (err == POETC_ECORRUPT && POETC_MODEL_STORE_HAS_IMAGE && runtime.run_count == 0)
        poetc_port_log("the store does not begin with store.img: copy it there\n");
    if (err) {
        log_number("stopped step ", step);
        log_code(" code ", err);
        poetc_port_log(": ");
        poetc_port_log(poetc_error_text(err));
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
