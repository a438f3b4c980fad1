/* Fields that poetc_task_init refuses, and calls while a step of the caller's is in the middle; for test_task.py. */
#include "poetc_task.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 4 };

static poetc_program program;
static poetc_binding inputs[2] = {{"x", 0u, 12u * ROWS}, {"t", 64u, 4u * ROWS}};
static poetc_model model;
static poetc_session session;
static uint8_t ring[64], best[16];

static int init(poetc_task *task, uint32_t batch)
{
    memset(task, 0, sizeof *task);
    task->session = &session;
    task->batch = batch;
    task->capacity = 5u; /* as long as the interval of held-out examples */
    task->examples = ring;
    task->best = best;
    return poetc_task_init(task);
}

static int give(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    (void)context, (void)offset;
    memset(data, 0, size_bytes);
    return POETC_OK;
}

static int failed(const char *what)
{
    puts(what);
    return 1;
}

int main(void)
{
    poetc_task task;

    model.train.program = model.evaluate.program = &program;
    model.train.inputs = model.evaluate.inputs = inputs;
    model.train.input_count = model.evaluate.input_count = 2u;
    session.model = &model;
    if (init(&task, ROWS))
        return failed("init");
    session.is_begun = 1; /* by the caller */
    task.phase = 2u;      /* the task is between two of its steps */
    memset(best, 1, sizeof best);
    if (poetc_task_work(&task, 1, 0) != POETC_EBUSY || task.phase != 2u)
        return failed("work");
    if (poetc_session_fill(&session, &model.train, 0, give, NULL) != POETC_EBUSY)
        return failed("fill");
    session.is_begun = 0;
    if (init(&task, 3u) != POETC_EINVAL || init(&task, 5u * ROWS) != POETC_EINVAL)
        return failed("rows");
    inputs[1].offset = 16u | POETC_ON_STORE;
    if (init(&task, ROWS) != POETC_EINVAL)
        return failed("store");
    return 0;
}
