/* The loop of every emitted program. See poetc_loop.h. */
#include "poetc_loop.h"

#include <math.h>
#include <string.h>

#include "model.h"

#if !defined(POETC_CHECKPOINT_STEPS) || POETC_CHECKPOINT_STEPS > 0
#define CHECKPOINTS /* a board without them has no code for them */
#endif

/* A constant, so that firmware has no code for things that it does not do. */
enum {
#if defined(POETC_EPOCHS) && POETC_EPOCHS == 1 && !defined(CHECKPOINTS) && !defined(POETC_VALIDATES)
    ONE_PASS = 1 /* to the end of the data, whatever loop->steps and loop->epochs say */
#else
    ONE_PASS = 0
#endif
};

typedef char progress_fits[sizeof(poetc_progress) <= 4u * POETC_CHECKPOINT_WORDS ? 1 : -1];

static int fail(poetc_loop *loop, uint32_t place, int code)
{
    loop->place = place;
    return code;
}

static void begin_progress(poetc_loop *loop)
{
    memset(&loop->progress, 0, sizeof loop->progress);
    loop->progress.has_begun = 1;
    loop->progress.best = (float)HUGE_VAL;
#ifdef POETC_MODEL_SCHEDULE
    poetc_plateau_begin(&loop->progress.plateau);
#endif
}

void poetc_loop_begin(poetc_loop *loop)
{
#ifdef POETC_MODEL_SCHEDULE
    loop->rate = poetc_session_learning_rate(&loop->session);
#endif
    if (!ONE_PASS)
        begin_progress(loop);
}

/* A piece of a record: 1, 0 at the end of the data, or a negative code. */
static int read_piece(poetc_loop *loop, int is_validation, void *to, uint32_t size_bytes)
{
    const int got = poetc_loop_read(is_validation, to, size_bytes);
#ifdef CHECKPOINTS
    poetc_checkpoint *used = &loop->session.checkpoint;

    if (loop->checkpoint_steps > 0 && !is_validation && got == 1)
        used->records_crc = poetc_crc32(used->records_crc, to, size_bytes);
#else
    (void)loop;
#endif
    return got;
}

#ifdef POETC_MODEL_STORE_INPUTS
typedef struct {
    poetc_loop *loop;
    int is_validation, got;
} record;

static int next_piece(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    record *r = context;

    r->got = read_piece(r->loop, r->is_validation, data, size_bytes);
    if (r->got == 0 && offset > 0)
        r->got = POETC_ENODATA;
    return r->got == 1 ? POETC_OK : r->got < 0 ? r->got : POETC_ENODATA;
}

/* An input that lies on the store. */
static int fill(poetc_loop *loop, int is_validation, const poetc_entry *entry, uint32_t index)
{
    record r = {loop, is_validation, 1};
    const int err = poetc_session_fill(&loop->session, entry, index, next_piece, &r);

    return r.got != 1 || !err ? r.got : err;
}
#else
static int fill(poetc_loop *loop, int is_validation, const poetc_entry *entry, uint32_t index)
{
    (void)loop, (void)is_validation, (void)entry, (void)index;
    return POETC_EINVAL;
}
#endif

/* Fill in the inputs of the next run: 1, 0 at the end of the data, or a negative code. */
static int read_record(poetc_loop *loop, int is_validation)
{
    const poetc_model *model = loop->session.model;
    const poetc_entry *entry = is_validation ? &model->evaluate : &model->train;
    uint32_t i;
    int got = 1;

    for (i = 0; i < entry->input_count && got == 1; i++) {
        void *to = poetc_session_input(&loop->session, entry, i);

        got = to == NULL ? fill(loop, is_validation, entry, i)
                         : read_piece(loop, is_validation, to, entry->inputs[i].size_bytes);
    }
    return got == 0 && i > 1 ? POETC_ENODATA : got;
}

/* The same for training: counted as used. */
static int next_record(poetc_loop *loop)
{
    const int got = read_record(loop, 0);

    loop->session.checkpoint.records += got == 1;
    loop->record = loop->session.checkpoint.records;
    return got;
}

static int begin_data(poetc_loop *loop)
{
    const int got = poetc_loop_rewind(0);

    if (got == 1)
        loop->session.checkpoint.records = loop->session.checkpoint.records_crc = 0;
    return got;
}

#ifdef CHECKPOINTS
/* Pass over the records that were used before the checkpoint. 1 done, 0 live data, or a code. */
static int pass_over(poetc_loop *loop)
{
    const poetc_checkpoint *used = &loop->session.checkpoint;
    const uint32_t records = used->records, crc = used->records_crc;
    int got = begin_data(loop);

    if (got <= 0)
        return got;
    while (got == 1 && used->records < records)
        got = next_record(loop);
    if (got == POETC_ENODATA) /* shorter than before */
        got = 0;
    if (got < 0 || (got == 1 && used->records_crc == crc))
        return got;
    poetc_loop_has_other_data(loop);
    begin_progress(loop);
    return begin_data(loop);
}

POETC_COLD int poetc_loop_resume(poetc_loop *loop)
{
    poetc_session *session = &loop->session;
    int err = poetc_session_resume(session), got;

#ifdef POETC_FORMATS
    if (!err && session->checkpoint.saves == 0)
        err = poetc_session_format(session);
#endif
    if (err)
        return fail(loop, POETC_AT_RESUME, err);
    poetc_loop_resumed(loop);
    memcpy(&loop->progress, session->checkpoint.words, sizeof loop->progress);
    if (!loop->progress.has_begun)
        begin_progress(loop);
    got = pass_over(loop);
    if (got == 1 && loop->progress.at_end == 1) {
        got = next_record(loop);
        if (got == 1) { /* the data have grown: the epoch is not over */
            loop->progress.at_end = 0;
            loop->progress.epochs--;
            loop->has_record = 1;
        }
    }
    return got < 0 ? fail(loop, loop->session.flaw.input != POETC_NONE ? POETC_AT_RECORD : POETC_AT_DATA, got)
                   : POETC_OK;
}

#endif

static int checkpoint(poetc_loop *loop)
{
#ifdef CHECKPOINTS
    poetc_session *session = &loop->session;
    int err;

    if (loop->checkpoint_steps == 0)
        return POETC_OK;
    memcpy(session->checkpoint.words, &loop->progress, sizeof loop->progress);
    err = poetc_session_checkpoint(session);
    return err ? fail(loop, POETC_AT_CHECKPOINT, err) : POETC_OK;
#else
    (void)loop;
    return POETC_OK;
#endif
}

/* Mean loss and hits of the validation data. */
static int run_evaluation(poetc_loop *loop)
{
#ifdef POETC_MODEL_SCORES
    static const poetc_scores scores[] = POETC_MODEL_SCORES;
#endif
    double sum = 0.0;
    float loss = 0.0f;
    int err = POETC_OK, got = poetc_loop_rewind(1);

    memset(&loop->hits, 0, sizeof loop->hits);
    loop->hits.program = loop->session.model->evaluate.program;
#ifdef POETC_MODEL_SCORES
    loop->hits.scores = scores;
    loop->hits.score_count = sizeof scores / sizeof scores[0];
#endif
    for (loop->record = 0; got == 1; loop->record++) {
        got = read_record(loop, 1);
        if (got < 0 && loop->session.flaw.input != POETC_NONE)
            err = got;
        if (got != 1)
            break;
        err = poetc_session_evaluate(&loop->session, NULL, &loss);
        if (err)
            break;
        sum += (double)loss;
    }
    if (err && loop->session.flaw.input != POETC_NONE) {
        loop->record++;
        return fail(loop, POETC_AT_VALIDATION_RECORD, err);
    }
    if (err || got < 0 || loop->record == 0)
        return fail(loop, POETC_AT_VALIDATION, err ? err : got < 0 ? got : POETC_ENODATA);
    loop->validation_loss = (float)(sum / loop->record);
    return POETC_OK;
}

static int evaluate(poetc_loop *loop)
{
    poetc_config *config = &loop->session.config;
    const poetc_observer observer = config->observer;
    void *const context = config->observer_context;
    int err;

    config->observer = poetc_count_hits;
    config->observer_context = &loop->hits;
    err = run_evaluation(loop);
    config->observer = observer;
    config->observer_context = context;
    if (err)
        return err;
#ifdef POETC_MODEL_SCHEDULE
    poetc_rate_observe(POETC_MODEL_SCHEDULE, &loop->progress.plateau, loop->validation_loss);
#endif
    loop->is_best = loop->validation_loss < loop->progress.best;
    return POETC_OK;
}

/* All records were used, or the last step is done. */
static int end_epoch(poetc_loop *loop, int is_complete)
{
    const int validates = POETC_LOOP_VALIDATES && loop->validates;
    int err;

    loop->progress.epochs += (uint32_t)is_complete;
    loop->progress.at_end = is_complete ? 1 : 2;
    err = validates ? evaluate(loop) : POETC_OK;
    if (err)
        return err;
    poetc_loop_epoch(loop, is_complete);
    if (validates && loop->is_best) {
        loop->progress.best = loop->validation_loss;
        err = poetc_loop_keep(loop);
        if (err)
            return fail(loop, POETC_AT_STATE, err);
    }
    return validates ? checkpoint(loop) : POETC_OK;
}

static int set_rate(poetc_loop *loop)
{
#ifdef POETC_MODEL_SCHEDULE
    poetc_schedule schedule = *POETC_MODEL_SCHEDULE;
    uint32_t step = loop->session.runtime.run_count;
    float rate;

    if (schedule.kind == POETC_RATE_COSINE && schedule.steps == 0) {
        const uint32_t steps = loop->steps > 0 ? loop->steps : loop->epochs * loop->records;
        const uint32_t length = steps / POETC_MODEL_STEPS_AN_UPDATE;

        if (steps == 0)
            return fail(loop, POETC_AT_RATE, POETC_EINVAL);
        if (loop->steps == 0) { /* epochs of these data: the steps on others before do not count */
            const uint32_t own = loop->progress.epochs * loop->records + loop->session.checkpoint.records - 1u;

            step = own < step ? own : step;
        }
        schedule.steps = length > schedule.warmup ? length : schedule.warmup + 1u;
    }
    step /= POETC_MODEL_STEPS_AN_UPDATE; /* a schedule counts updates */
    rate = poetc_rate(&schedule, &loop->progress.plateau, loop->rate, step);
    return poetc_session_set_learning_rate(&loop->session, rate);
#else
    (void)loop;
    return POETC_OK;
#endif
}

/* One step on the record that is in the arena. */
static int step_on(poetc_loop *loop, int is_first)
{
    poetc_session *session = &loop->session;
    float loss = 0.0f;
    int err = POETC_OK;

#ifdef POETC_LOOP_HOSTED
    const poetc_entry *entry = &session->model->train;

    if (is_first &&
        !poetc_check_inputs(entry->inputs, entry->limits, entry->input_count, session->config.arena, &session->flaw))
        err = poetc_loop_look(loop);
    if (err)
        return fail(loop, POETC_AT_LOOK, err);
#else
    (void)is_first;
#endif
    err = set_rate(loop);
    if (err)
        return err;
    err = poetc_session_step(session, NULL, &loss);
    if (session->flaw.input != POETC_NONE)
        return fail(loop, POETC_AT_RECORD, err);
    if (err && err != POETC_ENUMBER)
        return fail(loop, POETC_AT_STEP, err);
    poetc_loop_stepped(loop, loss);
    if (err)
        return fail(loop, POETC_AT_LOSS, err);
#ifdef POETC_LOOP_HOSTED
    if (session->runtime.run_count == 1u && poetc_starts_absurd(loss, entry->limits, entry->input_count))
        poetc_loop_warn("the first loss is more than three times that of guessing: are inputs scaled and classes"
                        " numbered as the model was trained?");
    poetc_trend_add(&loop->trend, loss);
#endif
    if (loop->checkpoint_steps > 0 && session->runtime.run_count % loop->checkpoint_steps == 0)
        err = checkpoint(loop);
    return err;
}

POETC_COLD int poetc_loop_train(poetc_loop *loop)
{
    const poetc_checkpoint *used = &loop->session.checkpoint;
    const uint32_t *run_count = &loop->session.runtime.run_count, first = *run_count;
    poetc_progress *progress = &loop->progress;
    int err = POETC_OK, got;

    while (ONE_PASS || (loop->steps > 0 ? *run_count < loop->steps : progress->epochs < loop->epochs)) {
        got = !ONE_PASS && loop->has_record ? 1 : next_record(loop);
        if (got == 0 && used->records == 0)
            return fail(loop, POETC_AT_DATA, POETC_ENODATA);
        if (got == 0 && ONE_PASS)
            break;
        if (got == 0 && !progress->at_end) {
            err = end_epoch(loop, 1);
            if (err)
                return err;
            continue;
        }
        if (got == 0) {
            got = begin_data(loop);
            if (got == 0) /* live data, which have ended */
                break;
            got = got == 1 ? next_record(loop) : got;
            got = got == 0 ? POETC_EIO : got;
        }
        if (got < 0)
            return fail(loop, loop->session.flaw.input != POETC_NONE ? POETC_AT_RECORD : POETC_AT_DATA, got);
        loop->has_record = 0;
        progress->at_end = 0;
        err = step_on(loop, *run_count == first);
        if (err)
            return err;
    }
    if (POETC_LOOP_VALIDATES && loop->validates && !progress->at_end)
        err = end_epoch(loop, used->records == loop->records);
#ifdef POETC_LOOP_HOSTED
    if (!err && poetc_trend_rises(&loop->trend))
        poetc_loop_warn(
            "the loss rose to more than twice its first value: lower the learning rate, or scale the inputs");
#endif
    return err;
}
