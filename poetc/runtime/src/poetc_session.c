/* Training as a session. See poetc_session.h. */
#include "poetc_session.h"

#include <string.h>

#ifdef __GNUC__
#pragma weak poetc_session_fill /* only models with an input on the store link its file */
#endif

enum { ON_STORE = 1, LOST = 2 }; /* is_lost */

const uint32_t poetc_session_bytes = sizeof(poetc_session);

static void set_checkpoint(poetc_session *session)
{
    const poetc_model *model = session->model;
    poetc_checkpoint *checkpoint = &session->checkpoint;

    checkpoint->first_block = model->checkpoint_block;
    checkpoint->slots = 2;
    checkpoint->identity = model->state.identity;
    if (model->buffer_offset != POETC_NONE)
        checkpoint->buffer = (uint8_t *)session->config.arena + model->buffer_offset;
}

/* Begin with the initial state. The stamps of pages go on: those of earlier runs may still be on the store. */
static int start(poetc_session *session)
{
    const uint32_t sequence = session->runtime.sequence;
    int err =
        poetc_init(&session->runtime, session->model->train.program, &session->config, session->model->state_image);

    session->is_begun = session->is_lost = 0;
    session->runtime.sequence = sequence;
    return err;
}

POETC_COLD int poetc_session_init(poetc_session *session, const poetc_model *model, const poetc_config *config)
{
    if (session == NULL || model == NULL || config == NULL)
        return POETC_EINVAL;
    memset(session, 0, sizeof *session);
    session->model = model;
    session->config = *config;
    if (session->config.flash == NULL)
        session->config.flash = model->constants;
    session->flaw.input = POETC_NONE;
    set_checkpoint(session);
    return start(session);
}

/* Make `entry` the current program, with all state in its place. */
static int use(poetc_session *session, const poetc_entry *entry)
{
    int err = session->is_begun              ? POETC_EBUSY
              : session->is_lost == LOST     ? POETC_EIO
              : session->is_lost == ON_STORE ? poetc_recover(&session->runtime)
                                             : POETC_OK;

    session->flaw.input = POETC_NONE;
    if (err)
        return err;
    session->is_lost = 0;
    return session->runtime.program == entry->program ? POETC_OK : poetc_select(&session->runtime, entry->program);
}

void *poetc_session_input(const poetc_session *session, const poetc_entry *entry, uint32_t index)
{
    const uint32_t offset = entry->inputs[index].offset;

    return offset & POETC_ON_STORE ? NULL : (uint8_t *)session->config.arena + offset;
}

static int from_memory(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    memcpy(data, (const uint8_t *)context + offset, size_bytes);
    return POETC_OK;
}

/* Copy the inputs to their places, and look at them. */
POETC_COLD static int take(poetc_session *session, const poetc_entry *entry, const void *const *inputs)
{
    poetc_flaw flaw;
    uint32_t i;
    int err = POETC_OK;

    for (i = 0; !err && inputs != NULL && i < entry->input_count; i++) {
        void *place = poetc_session_input(session, entry, i);

        if (place == NULL)
            err = poetc_session_fill(session, entry, i, from_memory, (void *)(uintptr_t)inputs[i]);
        else if (place != inputs[i])
            memcpy(place, inputs[i], entry->inputs[i].size_bytes);
    }
    if (err)
        return err;
    err = poetc_check_inputs(entry->inputs, entry->limits, entry->input_count, session->config.arena, &flaw);
    if (err)
        session->flaw = flaw;
    return err;
}

static void recover(poetc_session *session)
{
    session->is_lost = poetc_recover(&session->runtime) != POETC_OK ? ON_STORE : 0;
}

static int run(poetc_session *session, float *loss)
{
    const int is_step = session->runtime.program == session->model->train.program;
    int err = is_step && session->run != NULL ? session->run(session->run_context, &session->runtime)
                                              : poetc_run(&session->runtime);

    if (err) {
        recover(session);
        return err;
    }
    if (loss != NULL)
        *loss = poetc_loss(&session->runtime);
    return POETC_OK;
}

/* The state in RAM to the caller's copy, region after region, or back: an arena may be in several memories. */
POETC_COLD static void copy_state(const poetc_session *session, int back)
{
    const poetc_program *program = session->model->train.program;
    uint8_t *copy = session->backup;
    uint32_t i;

    for (i = 0; i < program->region_count; i++) {
        const uint32_t size_bytes = program->regions[i].size_bytes;
        uint8_t *place = (uint8_t *)session->config.arena + program->regions[i].place;

        memcpy(back ? place : copy, back ? copy : place, size_bytes);
        copy += size_bytes;
    }
}

/* The state as it was before the step; pages of the version after it are in the other slot. */
POETC_COLD static void undo(poetc_session *session, uint32_t steps)
{
    if (session->backup == NULL)
        return;
    copy_state(session, 1);
    session->runtime.run_count = steps;
    session->is_lost = 0;
}

/* All is there for a step, and the copy of the state. */
static int prepare(poetc_session *session, const void *const *inputs)
{
    const poetc_entry *entry = &session->model->train;
    int err = use(session, entry);

    if (!err)
        err = take(session, entry, inputs);
    if (!err && session->backup != NULL)
        copy_state(session, 0);
    return err;
}

/* The end of a step that returned `err`, its loss `value` otherwise. */
static int end_step(poetc_session *session, uint32_t steps, int err, float value, float *loss)
{
    if (!err && loss != NULL)
        *loss = value;
    if (!err && !poetc_is_finite(value))
        err = POETC_ENUMBER;
    if (err)
        undo(session, steps);
    return err;
}

POETC_COLD int poetc_session_step(poetc_session *session, const void *const *inputs, float *loss)
{
    const uint32_t steps = session->runtime.run_count;
    float value = 0.0f;
    int err = prepare(session, inputs);

    if (err)
        return err;
    err = run(session, &value);
    return end_step(session, steps, err, value, loss);
}

POETC_COLD int poetc_session_begin(poetc_session *session, const void *const *inputs)
{
    int err = session->run != NULL ? POETC_EINVAL : prepare(session, inputs);

    if (err)
        return err;
    poetc_begin(&session->runtime, session->slice);
    session->is_begun = 1;
    return POETC_OK;
}

POETC_COLD int poetc_session_continue(poetc_session *session, uint32_t pieces, uint32_t microseconds, float *loss)
{
    const uint32_t steps = session->runtime.run_count;
    uint32_t begin = 0;
    int err;

    if (!session->is_begun || (microseconds > 0 && session->now_us == NULL))
        return POETC_EINVAL;
    if (microseconds > 0)
        begin = session->now_us(session->now_context);
    do
        err = poetc_advance(&session->runtime, session->slice);
    while (err == POETC_OK && (pieces == 0 || --pieces > 0) &&
           (microseconds == 0 || session->now_us(session->now_context) - begin < microseconds));
    if (err == POETC_OK)
        return POETC_OK;
    session->is_begun = 0;
    if (err < 0)
        recover(session);
    err = end_step(session, steps, err < 0 ? err : POETC_OK, poetc_loss(&session->runtime), loss);
    return err ? err : POETC_COMPLETE;
}

/* End a step that was begun, with all state that was moved to the store left there. */
static void abandon(poetc_session *session)
{
    if (session->is_begun) {
        session->is_begun = 0;
        session->is_lost = ON_STORE;
    }
}

POETC_COLD int poetc_session_cancel(poetc_session *session)
{
    if (!session->is_begun)
        return POETC_EINVAL;
    abandon(session);
    recover(session);
    undo(session, session->runtime.run_count);
    return session->is_lost ? POETC_EIO : POETC_OK;
}

static int run_other(poetc_session *session, const poetc_entry *entry, const void *const *inputs, float *loss)
{
    int err = use(session, entry); /* POETC_EINVAL where there is no program */

    if (!err)
        err = take(session, entry, inputs);
    return err ? err : run(session, loss);
}

int poetc_session_predict(poetc_session *session, const void *const *inputs)
{
    return run_other(session, &session->model->infer, inputs, NULL);
}

int poetc_session_evaluate(poetc_session *session, const void *const *inputs, float *loss)
{
    return run_other(session, &session->model->evaluate, inputs, loss);
}

const void *poetc_session_output(const poetc_session *session, uint32_t index)
{
    const poetc_model *model = session->model;
    const poetc_program *program = session->runtime.program;
    const poetc_entry *entry = program == model->train.program      ? &model->train
                               : program == model->infer.program    ? &model->infer
                               : program == model->evaluate.program ? &model->evaluate
                                                                    : NULL;

    return entry != NULL && index < entry->output_count
               ? (const uint8_t *)session->config.arena + entry->outputs[index].offset
               : NULL;
}

float poetc_session_learning_rate(const poetc_session *session)
{
    const uint32_t offset = session->model->learning_rate_offset;

    return offset == POETC_NONE ? 0.0f : poetc_get_float(&session->runtime, offset);
}

int poetc_session_set_learning_rate(poetc_session *session, float rate)
{
    const uint32_t offset = session->model->learning_rate_offset;

    if (offset == POETC_NONE)
        return POETC_EINVAL;
    if (session->is_begun || session->is_lost == LOST)
        return session->is_begun ? POETC_EBUSY : POETC_EIO;
    poetc_set_float(&session->runtime, offset, rate);
    return POETC_OK;
}

POETC_COLD int poetc_session_save(poetc_session *session, poetc_sink sink, void *context)
{
    int err = use(session, &session->model->train);

    return err ? err : poetc_state_write(&session->runtime, &session->model->state, sink, context);
}

int poetc_session_load(poetc_session *session, uint32_t size_bytes, poetc_source source, void *context)
{
    poetc_runtime *runtime = &session->runtime;
    const poetc_checkpoint *checkpoint = &session->checkpoint;
    const poetc_program *before = runtime->program;
    const uint32_t offset = runtime->version_offset;
    int err = poetc_select(runtime, session->model->train.program);

    abandon(session);
    /* The next version takes the slots of the pages that the newest checkpoint does not need. */
    if (checkpoint->saves > 0)
        runtime->version_offset += (runtime->run_count + offset - checkpoint->version) & 1u;
    if (!err)
        err = poetc_state_read(runtime, &session->model->state, size_bytes, source, context);
    if (!err)
        session->is_lost = 0; /* all of it is replaced */
    else {
        runtime->version_offset = offset;
        if (session->is_lost)
            runtime->program = before; /* whose state is to be recovered */
    }
    return err;
}

int poetc_session_checkpoint(poetc_session *session)
{
    int err = use(session, &session->model->train);

    return err ? err : poetc_checkpoint_save(&session->runtime, &session->checkpoint);
}

int poetc_session_resume(poetc_session *session)
{
    const poetc_program *before = session->runtime.program;
    int err = poetc_select(&session->runtime, session->model->train.program);

    abandon(session);
    if (!err)
        err = poetc_checkpoint_load(&session->runtime, &session->checkpoint);
    if (!err)
        session->is_lost = 0; /* all of it is replaced */
    else if (err == POETC_EINVAL)
        session->runtime.program = before; /* nothing was read */
    else
        session->is_lost = LOST;
    if (err == POETC_ENOENT) { /* it may have read part of a damaged one */
        session->checkpoint.records = session->checkpoint.records_crc = 0;
        memset(session->checkpoint.words, 0, sizeof session->checkpoint.words);
        err = start(session);
    }
    return err;
}

int poetc_session_rollback(poetc_session *session)
{
    const poetc_program *before = session->runtime.program;
    int err = poetc_select(&session->runtime, session->model->train.program);

    abandon(session);
    if (!err)
        err = poetc_checkpoint_rollback(&session->runtime, &session->checkpoint);
    if (err == POETC_ENOENT && session->checkpoint.saves == 0) { /* there is none at all */
        const int again = poetc_session_resume(session);

        return again ? again : err;
    }
    if (err == POETC_EINVAL)
        session->runtime.program = before; /* nothing was read */
    else
        session->is_lost = err == POETC_OK || err == POETC_ENOENT || err == POETC_ECORRUPT ? 0 : LOST;
    return err;
}

int poetc_session_format(poetc_session *session)
{
    const poetc_model *model = session->model;
    const uint8_t *from = model->initial_pages;
    uint32_t i;
    int err = start(session);

    if (!err && poetc_checkpoint_load(&session->runtime, &session->checkpoint) != POETC_EINVAL) /* for its stamps */
        err = start(session); /* counters, too: pages of the initial state have version 0 */
    if (!err && model->formatted_count > 0 && from == NULL)
        err = POETC_EINVAL;
    if (!err)
        err = poetc_checkpoint_erase(&session->runtime, &session->checkpoint);
    session->is_lost = err && err != POETC_EINVAL ? LOST : 0;
    for (i = 0; i < model->formatted_count && !err; i++) {
        const uint32_t page = model->formatted[i], size = model->train.program->pages[page].size_bytes;

        err = poetc_load_page(&session->runtime, page, from);
        from += (size + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
    }
    session->checkpoint.records = session->checkpoint.records_crc = 0;
    memset(session->checkpoint.words, 0, sizeof session->checkpoint.words);
    return err ? err : poetc_checkpoint_save(&session->runtime, &session->checkpoint);
}
