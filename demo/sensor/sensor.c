/* A sensor that learns the movements of its wearer on the board, and reports the ones that are unlike them.
 *
 * Windows of an accelerometer and a gyroscope arrive one by one. Here they are made up: walking at about 2 Hz, a second
 * gait, and shaking. docs/how-to/train-as-samples-arrive.md has the commands. */
#include "model.h"
#include "poetc_task.h"

#include <string.h>

#ifdef POETC_BOARD
#include "poetc_port.h"
#define SAY(text) poetc_port_log(text)
#else
#include <stdio.h>
#define SAY(text) ((void)fputs(text, stdout))
#endif

enum { SAMPLES = 8, AXES = 6, WINDOW = SAMPLES * AXES, RING = 64, BATCH = 4 };

typedef struct gait {
    int32_t period; /* samples */
    int32_t height; /* of the swings, in thousandths */
} gait;

static uint8_t arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(POETC_ALIGN)));
static uint8_t best[POETC_MODEL_STATE_BYTES];
static float ring[RING][2 * WINDOW]; /* the window, and the target, which is the window too */
static poetc_session session;
static poetc_task task;
static int32_t now;
static uint32_t noise = 1;

static void say(const char *label, uint32_t value)
{
    char text[12];
    unsigned i = sizeof text - 1u;

    text[i] = 0;
    do {
        text[--i] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value > 0);
    SAY(label);
    SAY(text + i);
}

/* Thousandths, and all bits, so that two machines can be compared. */
static void say_loss(const char *label, float value)
{
    uint32_t bits, i;
    char text[] = " bits 00000000";

    memcpy(&bits, &value, sizeof bits);
    for (i = 0; i < 8; i++)
        text[6 + i] = "0123456789abcdef"[(bits >> (28 - 4 * i)) & 15u];
    say(label, value < 4e6f ? (uint32_t)(1000.0f * value) : 4000000000u);
    SAY(text);
}

/* The next window of a movement: a triangular swing for each axis, and noise. */
static void sense(const gait *how, float *window)
{
    int32_t i, axis;

    for (i = 0; i < SAMPLES; i++, now++)
        for (axis = 0; axis < AXES; axis++) {
            const int32_t at = (2000 * ((now + 3 * axis) % how->period)) / how->period;
            const int32_t swing = (at < 1000 ? at : 2000 - at) - 500;

            noise = noise * 1664525u + 1013904223u;
            window[AXES * i + axis] =
                (float)(swing * how->height / 1000 + (int32_t)(noise >> 24) - 128) / 1000.0f + 0.1f * (float)axis;
        }
}

/* Windows of a movement that are unlike all before. */
static uint32_t unlike(const gait *how, uint32_t count)
{
    float window[WINDOW], error;
    const void *const example[] = {window, window};
    uint32_t i, found = 0;

    for (i = 0; i < count; i++) {
        sense(how, window);
        if (poetc_task_score(&task, example, &error) == POETC_OK)
            found += error > task.threshold;
    }
    return found;
}

static int learn(const gait *how, uint32_t windows)
{
    float window[WINDOW];
    const void *const example[] = {window, window};
    uint32_t i;
    int err = POETC_OK;

    for (i = 0; i < windows && err >= 0; i++) {
        sense(how, window);
        err = poetc_task_add(&task, example);
        if (err == POETC_OK)
            err = poetc_task_work(&task, 0, 0);
        if (err == POETC_COMPLETE) {
            say("training ", task.trainings);
            say(" epochs ", task.epoch);
            say_loss(" loss before ", task.loss_before);
            say_loss(" best ", task.best_loss);
            say_loss(" threshold ", task.threshold);
            SAY(task.is_rolled_back ? " rolled back\n" : "\n");
        }
    }
    return err < 0 ? err : POETC_OK;
}

int main(void)
{
    static const gait walking = {25, 1500}, running = {14, 4000}, shaking = {5, 6000};
    poetc_config config;
    int err;

    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    err = poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config);
    task.session = &session;
    task.batch = BATCH;
    task.capacity = RING;
    task.examples = ring;
    task.best = best;
    task.train_every = 48;
    task.epochs = 30;
    if (!err)
        err = poetc_task_init(&task);
    if (!err)
        err = learn(&walking, 96);
    if (!err) {
        say("unlike: walking ", unlike(&walking, 32));
        say(", running ", unlike(&running, 32));
        say(", shaking ", unlike(&shaking, 32));
        SAY(" of 32\n");
        err = learn(&running, 96);
    }
    if (!err) {
        say("unlike: running ", unlike(&running, 32));
        say(", shaking ", unlike(&shaking, 32));
        SAY(" of 32\n");
        err = poetc_session_set_learning_rate(&session, 1000.0f); /* a training that can only fail */
    }
    if (!err) {
        poetc_task_request(&task);
        err = learn(&running, 1);
    }
    if (!err) {
        say("unlike: running ", unlike(&running, 32));
        SAY(" of 32\n");
    }
    return err ? 1 : 0;
}
