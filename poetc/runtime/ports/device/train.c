/* The training program of every board: one step for each record of data, the loss of each on the log, the state at the end.
 *
 * A record is the bytes of the inputs, then of the target, in the order of the header. The lines of the log:
 *
 *     step 1 loss 2.302585 bits 40135d8e
 *     done steps 20 page_ins 0 page_outs 0 clock 123
 *     stopped step 3 code -5
 */
#include "model.h"
#include "poetc_port.h"

uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(".bss.poetc_arena")));
static poetc_runtime runtime;

/* Marks the border between two steps of the program for whatever counts instructions from outside: breakpoint, trace or emulator. */
__attribute__((noinline)) int poetc_port_mark(void *context, const poetc_runtime *marked, uint32_t index)
{
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

/* Six decimals for people, where they fit, and the bits for comparing. */
static void log_loss(float loss)
{
    char text[10];
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
    for (i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[(u.bits >> (28u - 4u * i)) & 15u];
    text[8] = '\n';
    text[9] = 0;
    poetc_port_log(" bits ");
    poetc_port_log(text);
}

/* Fill in the inputs: 1, 0 at the end of the data, or a negative code. */
static int next_record(void)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i;
    int err = 1;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT && err == 1; i++)
        err = poetc_port_data(poetc_arena + inputs[i].offset, inputs[i].size_bytes);
    return err;
}

static int train(uint32_t *step)
{
    int err;

    for (*step = 1;; (*step)++) {
        err = next_record();
        if (err <= 0)
            return err;
        err = poetc_run(&runtime);
        if (err)
            return err;
        log_number("step ", *step);
        log_loss(poetc_loss(&runtime));
    }
}

int main(void)
{
    poetc_config config;
    uint32_t step = 0, start = poetc_port_clock();
    int err;

    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.flash = POETC_MODEL_CONSTANTS;
    config.store.page_out = NULL;
    config.store.page_in = NULL;
    config.store.context = NULL;
    config.observer = poetc_port_mark;
    config.observer_context = NULL;
    err = poetc_port_open(&config.store, POETC_MODEL_BLOCK_BYTES, POETC_MODEL_STORE_BLOCKS);
    if (!err)
        err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
    if (!err)
        err = train(&step);
    if (!err)
        err = poetc_port_result(poetc_arena, POETC_MODEL_STATE_BYTES);
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
    log_number(" clock ", poetc_port_clock() - start);
    poetc_port_log("\n");
    poetc_port_stop(0);
    return 0;
}
