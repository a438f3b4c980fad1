/* Uses the session as a program of a user's would, and prints bits for test_session_in_c.py. Reads data.bin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "poetc_files.h"
#include "poetc_host.h"

enum { RECORD_BYTES = 4 * 2 * 3 * 4 + 4 * 4 };

static uint8_t memory[2][POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16)));
static uint8_t backup[POETC_MODEL_STATE_BYTES + 1u];
static poetc_session a, b;

static void require(int holds, const char *what)
{
    if (!holds) {
        printf("not so: %s\n", what);
        exit(1);
    }
}

static void open_session(poetc_session *session, uint8_t *arena, const char *store)
{
    poetc_config config;

    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = POETC_MODEL_ARENA_BYTES;
    require(!poetc_file_copy("store.img", store) || !POETC_MODEL_STORE_HAS_IMAGE, "a store");
    require(!poetc_host_open(&config.store, store, POETC_MODEL_BLOCK_BYTES), "an open store");
    require(!poetc_session_init(session, POETC_MODEL_DESCRIPTION, &config), "a session");
}

static int read_record(uint8_t *record, FILE *file)
{
    return fread(record, 1, RECORD_BYTES, file) == RECORD_BYTES;
}

static void print_bits(const char *label, const void *data, uint32_t count)
{
    uint32_t i, bits;

    printf("%s", label);
    for (i = 0; i < count; i++) {
        memcpy(&bits, (const uint8_t *)data + 4u * i, 4u);
        printf(" %08lx", (unsigned long)bits);
    }
    printf("\n");
}

static int same_state(void)
{
    poetc_file_save(&a, "a.bin");
    poetc_file_save(&b, "b.bin");
    return system("cmp -s a.bin b.bin") == 0;
}

static poetc_store working;
static long calls_left; /* before the driver fails */

static int failing_page_in(void *context, uint32_t first, uint32_t count, void *data)
{
    return calls_left-- > 0 ? working.page_in(context, first, count, data) : POETC_EIO;
}

/* A driver that fails in each of its calls: nothing goes on from a state that is half of a checkpoint. */
static void resume_with_errors(const void *const *inputs)
{
    static uint8_t block[POETC_MODEL_BLOCK_BYTES];
    uint32_t steps = a.runtime.run_count;
    long calls;
    float loss;
    int err;

    a.checkpoint.buffer = NULL;
    require(poetc_session_resume(&a) == POETC_EINVAL && same_state(), "no buffer: the state as before");
    a.checkpoint.buffer = block;
    require(!poetc_session_checkpoint(&a) && !poetc_session_step(&a, inputs, &loss), "a checkpoint, and a step");
    working = a.config.store;
    a.config.store.page_in = failing_page_in;
    for (calls = 0;; calls++) {
        calls_left = calls;
        err = poetc_session_resume(&a);
        if (!err)
            break;
        calls_left = 1000000;
        require(err == POETC_EIO && poetc_session_step(&a, inputs, &loss) == POETC_EIO, "a step reports it");
        require(poetc_session_checkpoint(&a) == POETC_EIO && poetc_file_save(&a, "lost.bin") == POETC_EIO,
                "so does save");
        require(poetc_session_set_learning_rate(&a, 0.1f) == POETC_EIO, "so does the rate");
        require(a.model->infer.program == NULL || poetc_session_predict(&a, inputs) == POETC_EIO, "so do predictions");
        if (calls == 2)
            require(!poetc_file_load(&a, "b.bin") && same_state(), "a file takes the place of what was lost");
    }
    require(calls > 3 && a.runtime.run_count == steps && same_state(), "the checkpoint, in the end");
    a.config.store.page_in = working.page_in;
}

static uint32_t ticks;

static uint32_t now_us(void *context)
{
    (void)context;
    return ticks += 10u;
}

/* Steps in pieces have the bits of whole ones, and one that is given up leaves the state before it. */
static void in_pieces(const void *const *inputs, const void *const *wrong)
{
    const uint32_t steps = a.runtime.run_count;
    float loss = 0.0f, whole = 0.0f;
    int pieces = 1, calls = 0, err;

    require(poetc_session_continue(&b, 1, 0, &loss) == POETC_EINVAL && poetc_session_cancel(&b) == POETC_EINVAL,
            "none");
    require(poetc_session_begin(&b, wrong) == POETC_ENUMBER && !poetc_session_begin(&b, inputs), "a step begins");
    require(poetc_session_step(&b, inputs, &loss) == POETC_EBUSY && poetc_session_begin(&b, inputs) == POETC_EBUSY &&
                poetc_file_save(&b, "busy.bin") == POETC_EBUSY &&
                poetc_session_set_learning_rate(&b, 0.1f) == POETC_EBUSY,
            "and others wait");
    require(poetc_session_continue(&b, 0, 15, &loss) == POETC_EINVAL, "no clock");
    for (; (err = poetc_session_continue(&b, 1, 0, &loss)) == 0; pieces++)
        ;
    require(err == POETC_COMPLETE && !poetc_session_step(&a, inputs, &whole), "complete");
    require(memcmp(&loss, &whole, sizeof loss) == 0 && same_state() && pieces == (int)b.runtime.instruction + 1,
            "same bits");

    b.now_us = now_us;
    require(!poetc_session_begin(&b, inputs), "by the clock: looks 10 us apart, so that two pieces take 20");
    for (ticks = UINT32_MAX - 45u; (err = poetc_session_continue(&b, 0, 15, &loss)) == 0; calls++)
        ;
    require(err == POETC_COMPLETE && calls == (pieces - 1) / 2, "two pieces a call");
    require(!poetc_session_step(&a, inputs, &whole) && same_state(), "same bits");

    b.backup = backup;
    for (calls = 0; calls < pieces; calls++) {
        require(!poetc_session_begin(&b, inputs), "a step");
        require(calls == 0 || !poetc_session_continue(&b, (uint32_t)calls, 0, &loss), "pieces of it");
        require(!poetc_session_cancel(&b) && same_state() && b.runtime.run_count == steps + 2u, "given up");
    }
    require(!poetc_session_begin(&b, inputs) && !poetc_session_continue(&b, 2, 0, NULL), "a step begins");
    require(!poetc_file_save(&a, "a.bin") && !poetc_file_load(&b, "a.bin") && same_state(), "a file ends it");
    b.backup = NULL;
}

int main(void)
{
    uint8_t record[RECORD_BYTES], broken[RECORD_BYTES];
    const void *inputs[] = {record, record + RECORD_BYTES - 16};
    const void *wrong[] = {broken, broken + RECORD_BYTES - 16};
    const float not_a_number = (float)strtod("nan", NULL);
    const int32_t class_beyond = 3;
    FILE *file = fopen("data.bin", "rb");
    float loss, other;
    int steps = 0;

    open_session(&a, memory[0], "a.store");
    open_session(&b, memory[1], "b.store");
    require(poetc_session_bytes == sizeof a, "the size of a session");
    while (read_record(record, file)) {
        require(!poetc_session_step(&a, inputs, &loss), "a step");
        print_bits("loss", &loss, 1);
        if (++steps == 2) { /* b goes on with the state of a, in another arena and store */
            require(!poetc_file_save(&a, "two.bin") && !poetc_file_load(&b, "two.bin"), "saved and loaded");
            require(b.runtime.run_count == 2, "the steps of the file");
        } else if (steps > 2) {
            memcpy(poetc_session_input(&b, &b.model->train, 0), inputs[0], RECORD_BYTES - 16);
            memcpy(poetc_session_input(&b, &b.model->train, 1), inputs[1], 16);
            require(!poetc_session_step(&b, NULL, &other) && memcmp(&loss, &other, sizeof loss) == 0, "the same loss");
        }
    }
    require(same_state(), "the same state");

    memcpy(broken, record, sizeof record);
    memcpy(broken + 8, &not_a_number, 4);
    in_pieces(inputs, wrong);
    steps = (int)a.runtime.run_count;
    require(poetc_session_step(&a, wrong, &loss) == POETC_ENUMBER && a.flaw.input == 0 && a.flaw.element == 2, "a NaN");
    memcpy(broken, record, sizeof record);
    memcpy(broken + RECORD_BYTES - 8, &class_beyond, 4);
    require(poetc_session_step(&a, wrong, &loss) == POETC_ERANGE && a.flaw.input == 1 && a.flaw.element == 2 &&
                a.flaw.value == 3,
            "a class out of range");
    require(same_state() && (int)a.runtime.run_count == steps, "refused data change nothing");

    resume_with_errors(inputs);
    a.backup = backup; /* a loss that is no number, undone */
    memcpy(broken, record, sizeof record);
    other = 3e38f;
    for (steps = 0; steps < RECORD_BYTES - 16; steps += 4)
        memcpy(broken + steps, &other, 4);
    require(poetc_session_step(&a, wrong, &loss) == POETC_ENUMBER && a.flaw.input == POETC_NONE, "a loss of no number");
    require(!poetc_is_finite(loss) && same_state(), "the step is undone");
    require(!poetc_session_step(&a, inputs, &loss) && !poetc_session_step(&b, inputs, &other) &&
                memcmp(&loss, &other, sizeof loss) == 0,
            "on after an undone step");

    require(poetc_file_load(&b, "none.bin") == POETC_ENOENT, "no file");
    require(poetc_file_load(&b, "data.bin") == POETC_EINVAL, "no state");
    require(system("cp two.bin torn.bin && printf x | dd of=torn.bin bs=1 seek=70 conv=notrunc 2>/dev/null") == 0,
            "dd");
    require(poetc_file_load(&b, "torn.bin") == POETC_ECORRUPT && same_state(), "a damaged file changes nothing");

    require(poetc_session_learning_rate(&a) == 0.125f, "the rate");
    require(!poetc_session_set_learning_rate(&a, 0.0f) && poetc_session_learning_rate(&a) == 0.0f, "a rate of 0");
    require(poetc_session_evaluate(&a, inputs, &loss) == POETC_EINVAL, "there is no program that evaluates");
    if (a.model->infer.program != NULL) {
        require(!poetc_session_predict(&a, inputs), "a prediction");
        require(poetc_session_output(&a, 1) == NULL, "one output");
        print_bits("logits", poetc_session_output(&a, 0), 12);
    }
    require(!poetc_session_step(&a, inputs, &loss), "a step");
    print_bits("weights", (const uint8_t *)memory[0] + FC1_OFFSET, 120);
    require(!poetc_host_close(&a.config.store) && !poetc_host_close(&b.config.store), "closed");
    fclose(file);
    return 0;
}
