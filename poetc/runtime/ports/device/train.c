/* The training program of every board: poetc_loop.h over the data of the port. The loss of each step goes to the log,
 * and the state at the end to the port.
 *
 * A record is the bytes of the inputs, then of the target, in the order of the header. The lines of the log:
 *
 *     input x from -0.424213 to 2.821487
 *     resumed step 7
 *     other data than before: from their first record
 *     step 8 loss 2.302585 bits 40135d8e
 *     epoch 1 validation_loss 0.447203 bits 3ee4f7e5 validation_hits 518 of 532 best
 *     done steps 20 page_ins 0 page_outs 0 sequence 20 clock 123
 *     stopped step 3 code -5: a file or the store cannot be read or written
 *
 * POETC_EPOCHS: how often all data are used. POETC_VALIDATES: after each epoch the program `evaluate` runs on the
 * validation data of the port, if it has any. The port gets the state with the least loss. Linux has it always.
 * POETC_CHECKPOINT_STEPS: after how many steps the state is saved to two slots of the store, in turn. Training goes on
 * from there when the board starts again. 0: never. POETC_LOG_GRADIENTS: a checksum of all gradients of the step is
 * logged with its loss. POETC_ANY_RANGE: on Linux, inputs are trained on that look as if nobody had scaled them.
 * POETC_ELASTIC: on Linux, the plan of a bundle follows the memory that is left to this process. $POETC_CGROUP is the
 * directory of another control group.
 */
#include "model.h"
#include "poetc_loop.h"
#include "poetc_port.h"
#include "poetc_use_processors.h"

POETC_COLD static void log_hex(const char *label, uint32_t value);
#include "poetc_hex.h"

#ifdef POETC_ELASTIC
#include "poetc_pressure.h"

#include <stdlib.h>
#endif

#ifndef POETC_EPOCHS
#define POETC_EPOCHS 1
#endif
#ifndef POETC_CHECKPOINT_STEPS
#define POETC_CHECKPOINT_STEPS 0
#endif
#if POETC_CHECKPOINT_STEPS > 0 && !defined(POETC_MODEL_BUFFER_OFFSET)
#error "the arena has no room for a block of the store besides the state: no checkpoints"
#endif

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
static const poetc_model *const model = POETC_MODEL_DESCRIPTION;
#else
#ifndef POETC_MODEL_ARENA_SECTION
#define POETC_MODEL_ARENA_SECTION ".bss.poetc_arena"
#endif
#ifdef POETC_BANKS /* the linker script has its address: it lies in several memories */
extern uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES];
#else
uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(POETC_MODEL_ARENA_SECTION)));
#endif
static const poetc_model *const model = POETC_MODEL_LOOP;
#endif

#ifdef POETC_LOG_GRADIENTS
static const struct {
    uint32_t instruction, offset, size_bytes;
} gradients[] = POETC_MODEL_GRADIENTS;
static uint32_t gradients_crc; /* a sum, since schedules may make them in another order */
#ifdef POETC_QUEUES
#define ADD(counter, value) ((void)__atomic_add_fetch(&(counter), (value), __ATOMIC_RELAXED))
#else
#define ADD(counter, value) ((void)((counter) += (value)))
#endif
#endif

/* Marks the border between two instructions of the program for whatever counts instructions from outside: breakpoint,
 * trace or emulator. */
__attribute__((noinline)) int poetc_port_mark(void *context, const poetc_runtime *marked, uint32_t index)
{
#ifdef POETC_LOG_GRADIENTS
    uint32_t i;

    for (i = 0; i < sizeof gradients / sizeof gradients[0]; i++)
        if (gradients[i].instruction == index)
            ADD(gradients_crc, poetc_crc32(i, poetc_arena + gradients[i].offset, gradients[i].size_bytes));
#endif
    (void)context;
    (void)marked;
    __asm__ volatile("" : : "r"(index));
    return 0;
}

POETC_COLD static void log_number(const char *label, uint32_t value)
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

/* Six decimals of a number below 4000. */
POETC_COLD static void log_decimals(const char *label, float value)
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
static void log_loss(const char *label, float loss)
{
    union {
        float value;
        uint32_t bits;
    } u;

    u.value = loss;
    if (loss >= 0.0f && loss < 4000.0f)
        log_decimals(label, loss);
    log_hex(" bits ", u.bits);
}

int poetc_loop_read(int is_validation, void *to, uint32_t size_bytes)
{
#ifdef POETC_VALIDATES
    if (is_validation)
        return poetc_port_validation(to, size_bytes);
#endif
    (void)is_validation;
    return poetc_port_data(to, size_bytes);
}

int poetc_loop_rewind(int is_validation)
{
#ifdef POETC_VALIDATES
    if (is_validation)
        return poetc_port_rewind_validation();
#endif
    (void)is_validation;
    return poetc_port_rewind();
}

static int hand_over(void *context, const void *data, uint32_t size_bytes)
{
    (void)context;
    return poetc_port_result(data, size_bytes);
}

int poetc_loop_keep(poetc_loop *loop)
{
    int err = poetc_session_save(&loop->session, hand_over, NULL);

    return err ? err : poetc_port_result(NULL, 0);
}

#if POETC_CHECKPOINT_STEPS > 0
void poetc_loop_resumed(const poetc_loop *loop)
{
    if (loop->session.runtime.run_count == 0)
        return;
    log_number("resumed step ", loop->session.runtime.run_count);
    poetc_port_log("\n");
}

void poetc_loop_has_other_data(const poetc_loop *loop)
{
    (void)loop;
    poetc_port_log("other data than before: from their first record\n");
}
#endif

POETC_COLD void poetc_loop_stepped(poetc_loop *loop, float loss)
{
    log_number("step ", loop->session.runtime.run_count);
    log_loss(" loss ", loss);
#ifdef POETC_LOG_GRADIENTS
    log_hex(" gradients ", gradients_crc);
    gradients_crc = 0;
#endif
    poetc_port_log("\n");
}

void poetc_loop_epoch(poetc_loop *loop, int is_complete)
{
#ifdef POETC_VALIDATES
    if (!loop->validates)
        return;
    log_number(is_complete ? "epoch " : "in epoch ", loop->progress.epochs + !is_complete);
    log_loss(" validation_loss ", loop->validation_loss);
    if (loop->hits.samples > 0) {
        log_number(" validation_hits ", loop->hits.hits);
        log_number(" of ", loop->hits.samples);
    }
    poetc_port_log(loop->is_best ? " best\n" : "\n");
#else
    (void)loop;
    (void)is_complete;
#endif
}

#ifdef POETC_LOOP_HOSTED
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

/* Log the range of each input in the first record. An error: one looks as if nobody had scaled it. */
int poetc_loop_look(const poetc_loop *loop)
{
    const poetc_entry *entry = &loop->session.model->train;
    uint32_t i;

    for (i = 0; i < entry->input_count; i++) {
        const poetc_limit *limit = &entry->limits[i];

        if (limit->dtype == POETC_F32 && !(entry->inputs[i].offset & POETC_ON_STORE)) {
            const poetc_span span =
                poetc_span_of(poetc_arena + entry->inputs[i].offset, entry->inputs[i].size_bytes / 4u);

            poetc_port_log("input ");
            poetc_port_log(entry->inputs[i].name);
            log_float(" from ", span.least);
            log_float(" to ", span.most);
            poetc_port_log("\n");
            if (!ANY_RANGE && limit->least > limit->most && poetc_span_is_raw(span)) {
                poetc_port_log("data.bin: record 1: ");
                poetc_port_log(entry->inputs[i].name);
                poetc_port_log(" looks unscaled: scale it as the model was trained, or make ANY_RANGE=1\n");
                return POETC_EINVAL;
            }
        }
    }
    return POETC_OK;
}

void poetc_loop_warn(const char *text)
{
    poetc_port_log(text);
    poetc_port_log("\n");
}
#endif

#ifdef POETC_ELASTIC
static poetc_pressure pressure;

static void log_arena(void *context, uint32_t arena_bytes)
{
    (void)context;
    log_number("arena ", arena_bytes);
    log_number(" bytes in step ", pressure.elastic.runtime.run_count + 1u);
    poetc_port_log("\n");
}

static int follow_memory(poetc_session *session)
{
    const int err = poetc_pressure_begin(&pressure, session, POETC_MODEL_BUNDLE, getenv("POETC_CGROUP"));

    if (err)
        poetc_port_log("the control group tells nothing of memory\n");
    pressure.switched = log_arena;
    return err;
}
#endif

/* The value of a record that the model cannot take. */
static void log_flaw(const poetc_loop *loop, int code)
{
    const int is_validation = POETC_LOOP_VALIDATES && loop->place == POETC_AT_VALIDATION_RECORD;
    const poetc_entry *entry = is_validation ? &model->evaluate : &model->train;
    const poetc_flaw *flaw = &loop->session.flaw;

    log_number(is_validation ? "validation.bin: record " : "data.bin: record ", loop->record);
    poetc_port_log(": ");
    poetc_port_log(entry->inputs[flaw->input].name);
    log_number(" element ", flaw->element);
    if (code == POETC_ERANGE) {
        log_code(" is ", flaw->value);
        log_code(", not ", entry->limits[flaw->input].least);
        log_code(" to ", entry->limits[flaw->input].most);
    } else
        poetc_port_log(" is a NaN or an infinity");
    poetc_port_log("\n");
}

/* Say where the loop has stopped, and stop. */
static int fail(const poetc_loop *loop, int err, uint32_t record_bytes)
{
    const poetc_runtime *runtime = &loop->session.runtime;
    const uint32_t place = loop->place;

    if (place == POETC_AT_RECORD || place == POETC_AT_VALIDATION_RECORD)
        log_flaw(loop, err);
    if (POETC_LOOP_VALIDATES && place == POETC_AT_VALIDATION)
        poetc_port_log("validation.bin: cannot be read, or holds no whole record\n");
    else if (err == POETC_ENODATA) {
        log_number("data.bin: a record is ", record_bytes);
        poetc_port_log(" bytes\n");
    }
    if (place == POETC_AT_LOSS)
        poetc_port_log("the loss is no number: lower the learning rate, or scale the inputs\n");
    if (err == POETC_ECORRUPT && POETC_MODEL_STORE_HAS_IMAGE && runtime->run_count == 0)
        poetc_port_log("the store does not begin with store.img: copy it there\n");
    if (place != POETC_AT_LOOK) {
        /* The step that was to be complete; after a loss that is no number it is. */
        log_number("stopped step ", runtime->run_count + (place > 0 && place != POETC_AT_LOSS));
        log_code(" code ", err);
        poetc_port_log(": ");
        poetc_port_log(poetc_error_text(err));
        poetc_port_log("\n");
    }
    poetc_port_stop(POETC_PORT_FAILED);
    return POETC_PORT_FAILED;
}

POETC_COLD int main(void)
{
    poetc_config config = {0};
    poetc_loop loop = {0};
    poetc_session *session = &loop.session;
    const poetc_entry *entry = &model->train;
    const poetc_runtime *runtime = &session->runtime;
    poetc_store *store = &session->config.store;
    uint32_t start = poetc_port_clock(), blocks = POETC_MODEL_STORE_BLOCKS, record_bytes = 0, i;
    int err;

#if defined(__linux__) && __STDC_HOSTED__
    poetc_port_guard(poetc_guarded.before);
    poetc_port_guard(poetc_guarded.after);
#endif
    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.observer = poetc_port_mark;
    if (POETC_CHECKPOINT_STEPS > 0) { /* two slots, before or behind the pages */
        const uint32_t end = POETC_MODEL_CHECKPOINT_BLOCK + 2u * poetc_checkpoint_blocks(entry->program);

        blocks = end > blocks ? end : blocks;
    }
    for (i = 0; i < entry->input_count; i++)
        record_bytes += entry->inputs[i].size_bytes;
    err = poetc_port_open(&config.store, POETC_MODEL_BLOCK_BYTES, blocks, record_bytes);
    if (!err)
        err = poetc_session_init(session, model, &config);
    if (!err)
        err = use_processors(session);
#ifdef POETC_ELASTIC
    if (!err)
        err = follow_memory(session);
#endif
    loop.epochs = POETC_EPOCHS;
    loop.checkpoint_steps = POETC_CHECKPOINT_STEPS;
#ifdef POETC_VALIDATES
    loop.validates = !err && model->evaluate.program != NULL && poetc_port_rewind_validation() == 1;
#endif
    if (!err)
        poetc_loop_begin(&loop);
#if POETC_CHECKPOINT_STEPS > 0
    if (!err)
        err = poetc_loop_resume(&loop);
#endif
    if (!err)
        err = poetc_loop_train(&loop);
    if (!err && store->sync != NULL)
        err = store->sync(store->context);
    if (!err && !loop.validates)
        err = poetc_loop_keep(&loop);
    if (err)
        return fail(&loop, err, record_bytes);
    log_number("done steps ", runtime->run_count);
    log_number(" page_ins ", runtime->page_ins);
    log_number(" page_outs ", runtime->page_outs);
    log_number(" sequence ", runtime->sequence);
    log_number(" clock ", poetc_port_clock() - start);
    poetc_port_log("\n");
    poetc_port_stop(0);
    return 0;
}
