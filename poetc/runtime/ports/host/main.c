/* Trains on the data of a file, evaluates after every epoch, and keeps the best state.
 *
 *     train [-c] [-r] [-e EPOCHS] [-v VALIDATION] [-o STATE_OUT] DATA [STEPS [STATE_OUT]]
 *
 * DATA: records, one a step, each the bytes of the inputs and of the target in the order of the header. Option -e: how
 * many times all of it is used, by default once. STEPS instead: so many steps, round and round. STATE_OUT: the file to
 * write the state to afterwards. Option -v: records of the program `evaluate`. After each epoch its loss and accuracy
 * are printed, and STATE_OUT gets the state with the least loss. The learning rate follows the emitted schedule, if
 * there is one.
 *
 * Pages go to store.bin in the current directory, which starts as a copy of store.img if the model keeps weights there.
 * Option -c: after every step a checkpoint goes to store.bin, too. Training goes on from the newest one, if the file
 * has one; STEPS and EPOCHS count those before. Records that were used before it are passed over if DATA still begins
 * with them. Other data are new, are used from their first record, and have EPOCHS of their own. Option -r: inputs of
 * any range are trained on, also those that look as if nobody had scaled them.
 *
 * Exit code 1, and a line on stderr that names file and record, where data have no whole records, a NaN, or an unknown
 * class. It is 1 as well where the first record looks unscaled, and where the loss is no number; 2 for a wrong call.
 * The range of each input in the first record goes to stderr, too.
 */
#include "model.h"
#include "poetc_files.h"
#include "poetc_host.h"
#include "poetc_rate.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const char *which)
{
    fprintf(stderr, "%s: %s\n", what, which);
    return 1;
}

static int fail_with(const char *what, int code)
{
    fprintf(stderr, "%s: %s (code %d)\n", what, poetc_error_text(code), code);
    return 1;
}

/* A file of records, and where they go: to the arena, or to a buffer with a pointer to each input. */
typedef struct reader {
    FILE *file;
    const char *path;
    const poetc_entry *entry;
    uint8_t *arena, *buffer;
    const void **inputs;
    uint32_t records; /* in the file; 0: unknown */
} reader;

static const poetc_model *const model = POETC_MODEL_DESCRIPTION;

/* Open the file, which must hold whole records: a size that is none of theirs is another layout, or a copy that was
 * cut. */
static int open_data(reader *data, const char *path, const poetc_entry *entry)
{
    const poetc_binding *inputs = entry->inputs;
    unsigned long record_bytes = 0;
    long size_bytes;
    uint32_t i;

    memset(data, 0, sizeof *data);
    data->path = path;
    data->entry = entry;
    data->file = fopen(path, "rb");
    if (data->file == NULL)
        return fail("cannot read", path);
    for (i = 0; i < entry->input_count; i++)
        record_bytes += inputs[i].size_bytes;
    if (record_bytes == 0 || fseek(data->file, 0, SEEK_END) != 0)
        return 0; /* a pipe */
    size_bytes = ftell(data->file);
    rewind(data->file);
    data->records = (uint32_t)((unsigned long)size_bytes / record_bytes);
    if (size_bytes > 0 && (unsigned long)size_bytes % record_bytes == 0)
        return 0;
    fprintf(stderr, "%s: %ld bytes, no whole number of records of %lu; a record is", path, size_bytes, record_bytes);
    for (i = 0; i < entry->input_count; i++)
        fprintf(stderr, "%s %s (%lu)", i > 0 ? "," : "", inputs[i].name, (unsigned long)inputs[i].size_bytes);
    fprintf(stderr, "\n");
    return 1;
}

/* Records go to a buffer of their own, where a run leaves them as they are. */
static int use_buffer(reader *data)
{
    const poetc_entry *entry = data->entry;
    uint32_t size_bytes = 0, i;

    for (i = 0; i < entry->input_count; i++)
        size_bytes += (entry->inputs[i].size_bytes + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
    data->buffer = malloc(size_bytes);
    data->inputs = calloc(entry->input_count, sizeof *data->inputs);
    if (data->buffer == NULL || data->inputs == NULL)
        return fail("not enough memory", data->path);
    for (size_bytes = 0, i = 0; i < entry->input_count; i++) {
        data->inputs[i] = data->buffer + size_bytes;
        size_bytes += (entry->inputs[i].size_bytes + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
    }
    return 0;
}

static void close_data(reader *data)
{
    if (data->file != NULL)
        fclose(data->file);
    free(data->buffer);
    free(data->inputs);
}

/* Fill in the inputs of one run, and count the record: 1 done, 0 the file has no whole record left. */
static int read_record(const reader *data, poetc_checkpoint *used)
{
    uint32_t i;

    for (i = 0; i < data->entry->input_count; i++) {
        const poetc_binding *input = &data->entry->inputs[i];
        uint8_t *to = data->buffer != NULL ? (uint8_t *)data->inputs[i] : data->arena + input->offset;

        if (fread(to, 1, input->size_bytes, data->file) != input->size_bytes)
            return 0;
        used->records_crc = poetc_crc32(used->records_crc, to, input->size_bytes);
    }
    used->records++;
    return 1;
}

static void begin_data(const reader *data, poetc_checkpoint *used)
{
    rewind(data->file);
    used->records = used->records_crc = 0;
}

/* Pass over the records that were used before the checkpoint: 1. Where the data begin with other ones, they are new,
 * and none is passed over: 0. */
static int pass_over(const reader *data, poetc_checkpoint *checkpoint)
{
    const uint32_t records = checkpoint->records, crc = checkpoint->records_crc;

    begin_data(data, checkpoint);
    while (checkpoint->records < records && read_record(data, checkpoint))
        continue;
    if (checkpoint->records == records && checkpoint->records_crc == crc)
        return 1;
    printf("other data than before: from their first record\n");
    begin_data(data, checkpoint);
    return 0;
}

/* The faults of a record. */
static int fail_at(const reader *data, uint32_t record, const poetc_flaw *flaw, int code)
{
    const poetc_limit *limit = &data->entry->limits[flaw->input];

    fprintf(stderr, "%s: record %lu: %s[%lu] is ", data->path, (unsigned long)record,
            data->entry->inputs[flaw->input].name, (unsigned long)flaw->element);
    if (code == POETC_ERANGE)
        fprintf(stderr, "%ld, not %ld to %ld (classes and indices count from 0)\n", (long)flaw->value,
                (long)limit->least, (long)limit->most);
    else
        fprintf(stderr, "a NaN or an infinity\n");
    return 1;
}

/* Print the range of each input in the first record. 1: one looks as if nobody had scaled it, and `any_range` is 0. */
static int check_ranges(const reader *data, int any_range)
{
    const poetc_binding *inputs = data->entry->inputs;
    const poetc_limit *limits = data->entry->limits;
    uint32_t i;

    for (i = 0; i < data->entry->input_count; i++) {
        if (limits[i].dtype == POETC_F32) {
            const poetc_span span = poetc_span_of(data->arena + inputs[i].offset, inputs[i].size_bytes / 4u);

            fprintf(stderr, "input %s from %g to %g\n", inputs[i].name, (double)span.least, (double)span.most);
            if (!any_range && limits[i].least > limits[i].most && poetc_span_is_raw(span)) {
                fprintf(
                    stderr,
                    "%s: record 1: %s from %g to %g looks unscaled: scale it as the model was trained, or give -r\n",
                    data->path, inputs[i].name, (double)span.least, (double)span.most);
                return 1;
            }
        }
    }
    return 0;
}

/* The words that a checkpoint holds besides the state. */
typedef struct progress {
    uint32_t has_begun;
    uint32_t epochs; /* complete */
    uint32_t at_end; /* the state was evaluated: 1 after a complete epoch, 2 within one */
    float best;      /* validation loss */
    poetc_plateau plateau;
} progress;

typedef char progress_fits[sizeof(progress) <= 4u * POETC_CHECKPOINT_WORDS ? 1 : -1];

typedef struct run {
    poetc_session session;
    reader data, validation; /* the latter without a file: there is none */
    const char *state_out;
    long steps, epochs; /* one of them is 0 */
    int saves, any_range, prints_epochs;
    progress progress;
    double loss_sum; /* of the epoch, */
    uint32_t losses; /* as far as it was run here */
    float rate;      /* the optimizer's own */
} run;

static void begin_progress(progress *begun)
{
    memset(begun, 0, sizeof *begun);
    begun->has_begun = 1;
    begun->best = (float)HUGE_VAL;
    poetc_plateau_begin(&begun->plateau);
}

static int checkpoint(run *r)
{
    int err = POETC_OK;

    memcpy(r->session.checkpoint.words, &r->progress, sizeof r->progress);
    if (r->saves)
        err = poetc_session_checkpoint(&r->session);
    if (err) {
        fprintf(stderr, "step %lu: ", (unsigned long)r->session.runtime.run_count);
        return fail_with("its checkpoint cannot be saved in store.bin", err);
    }
    return 0;
}

static int save(const char *path, poetc_session *session)
{
    int err = poetc_file_save(session, path);

    return err ? fail_with(path, err) : 0;
}

/* Add the samples of the last evaluation to those that count, and to those whose class has the highest score. */
static void count_hits(const run *r, unsigned long *hits, unsigned long *samples)
{
#ifdef POETC_MODEL_SCORES_OUTPUT
    const float *scores = poetc_session_output(&r->session, POETC_MODEL_SCORES_OUTPUT);
    const int32_t *target = r->validation.inputs[r->validation.entry->input_count - 1u];
    const uint32_t classes = POETC_MODEL_SCORES_CLASSES, after = POETC_MODEL_SCORES_AFTER;
    uint32_t i, c;

    for (i = 0; i < POETC_MODEL_SCORES_BEFORE * after; i++) {
        const float *row = scores + i / after * classes * after + i % after;
        uint32_t best = 0;

        if (target[i] == POETC_MODEL_SCORES_IGNORED)
            continue;
        for (c = 1; c < classes; c++)
            if (row[c * after] > row[best * after])
                best = c;
        *hits += best == (uint32_t)target[i];
        ++*samples;
    }
#else
    (void)r;
    (void)hits;
    (void)samples;
#endif
}

/* The validation data: prints mean loss and accuracy, and keeps the state if it is the best one. */
static int evaluate(run *r)
{
    poetc_checkpoint used;
    double sum = 0.0;
    float loss = 0.0f;
    unsigned long hits = 0, samples = 0;
    int err = 0;

    begin_data(&r->validation, &used);
    while (!err && read_record(&r->validation, &used)) {
        err = poetc_session_evaluate(&r->session, r->validation.inputs, &loss);
        if (r->session.flaw.input != POETC_NONE)
            return fail_at(&r->validation, used.records, &r->session.flaw, err);
        sum += (double)loss;
        if (!err)
            count_hits(r, &hits, &samples);
    }
    if (err || used.records == 0)
        return err ? fail_with(r->validation.path, err) : fail("cannot read the data file again", r->validation.path);
    loss = (float)(sum / used.records);
    printf(" validation_loss %.9g", (double)loss);
    if (samples > 0)
        printf(" validation_accuracy %.6g", (double)hits / (double)samples);
#ifdef POETC_MODEL_SCHEDULE
    poetc_rate_observe(POETC_MODEL_SCHEDULE, &r->progress.plateau, loss);
#endif
    if (!(loss < r->progress.best))
        return 0;
    r->progress.best = loss;
    printf(" best");
    return r->state_out != NULL ? save(r->state_out, &r->session) : 0;
}

/* All records were used, or the last step is done. */
static int end_epoch(run *r, int is_complete)
{
    int result = 0;

    r->progress.epochs += (uint32_t)is_complete;
    r->progress.at_end = is_complete ? 1 : 2;
    if (r->prints_epochs) {
        printf(is_complete ? "epoch %lu" : "in epoch %lu", (unsigned long)r->progress.epochs + !is_complete);
        if (r->losses > 0)
            printf(" loss %.9g", r->loss_sum / r->losses);
        if (r->validation.file != NULL)
            result = evaluate(r);
        printf("\n");
        fflush(stdout);
    }
    r->loss_sum = 0.0;
    r->losses = 0;
    return result || r->validation.file == NULL ? result : checkpoint(r);
}

static int set_rate(run *r)
{
#ifdef POETC_MODEL_SCHEDULE
    poetc_schedule schedule = *POETC_MODEL_SCHEDULE;
    uint32_t step = r->session.runtime.run_count;

    if (schedule.kind == POETC_RATE_COSINE && schedule.steps == 0) {
        const unsigned long length =
            r->steps > 0 ? (unsigned long)r->steps : (unsigned long)r->epochs * r->data.records;

        const unsigned long updates = length / POETC_MODEL_STEPS_AN_UPDATE;

        if (length == 0)
            return fail("the schedule needs the number of steps, which a pipe does not tell: give STEPS", r->data.path);
        if (r->steps == 0) { /* EPOCHS of these data: the steps on others before do not count */
            const uint32_t own = r->progress.epochs * r->data.records + r->session.checkpoint.records - 1u;

            step = own < step ? own : step;
        }
        schedule.steps = (uint32_t)(updates > schedule.warmup ? updates : schedule.warmup + 1u);
    }
    step /= POETC_MODEL_STEPS_AN_UPDATE; /* a schedule counts updates */
    return poetc_session_set_learning_rate(&r->session, poetc_rate(&schedule, &r->progress.plateau, r->rate, step));
#else
    (void)r;
    return 0;
#endif
}

/* The session's checkpoint counts the records that are used. */
static int train(run *r)
{
    poetc_session *session = &r->session;
    const poetc_entry *entry = &model->train;
    const long first = (long)session->runtime.run_count + 1;
    poetc_checkpoint *used = &session->checkpoint;
    poetc_trend trend = {0};
    float loss;
    long step = first;
    int err;

    while (r->steps > 0 ? step <= r->steps : (long)r->progress.epochs < r->epochs) {
        if (!read_record(&r->data, used)) {
            if (used->records == 0)
                return fail("the data file holds no whole record", r->data.path);
            if (!r->progress.at_end) {
                if (end_epoch(r, 1))
                    return 1;
                continue;
            }
            begin_data(&r->data, used);
            r->progress.at_end = 0;
            if (!read_record(&r->data, used))
                return fail("cannot read the data file again", r->data.path);
        }
        r->progress.at_end = 0;
        if (step == first &&
            !poetc_check_inputs(entry->inputs, entry->limits, entry->input_count, r->data.arena, &session->flaw) &&
            check_ranges(&r->data, r->any_range))
            return 1;
        if (set_rate(r))
            return 1;
        err = poetc_session_step(session, NULL, &loss);
        if (session->flaw.input != POETC_NONE)
            return fail_at(&r->data, used->records, &session->flaw, err);
        if (err == POETC_ECORRUPT && POETC_MODEL_STORE_HAS_IMAGE && session->runtime.run_count == 0)
            fprintf(stderr, "store.bin does not begin with the weights of store.img: remove it, or copy them there\n");
        if (err && err != POETC_ENUMBER) {
            fprintf(stderr, "step %ld stopped: ", step);
            return fail_with(r->data.path, err);
        }
        printf("step %ld loss %.9g\n", step, (double)loss);
        fflush(stdout);
        if (err) {
            fprintf(
                stderr,
                "step %ld: the loss is %g: lower the learning rate, or scale the inputs; this step's state was not saved\n",
                step, (double)loss);
            return 1;
        }
        if (step == 1 && poetc_starts_absurd(loss, entry->limits, entry->input_count))
            fprintf(stderr, "warning: the first loss is more than three times that of guessing: are inputs scaled and"
                            " classes numbered as the model was trained?\n");
        poetc_trend_add(&trend, loss);
        r->loss_sum += (double)loss;
        r->losses++;
        if (checkpoint(r))
            return 1;
        step++;
    }
    if (r->validation.file != NULL && !r->progress.at_end && end_epoch(r, used->records == r->data.records))
        return 1;
    if (poetc_trend_rises(&trend))
        fprintf(
            stderr,
            "warning: the loss rose to more than twice its first value: lower the learning rate, or scale the inputs\n");
    return 0;
}

/* A whole number, digits alone: 1 done, 0 it is none. */
static int read_count(const char *text, long *count)
{
    if (text[0] == 0 || strspn(text, "0123456789") != strlen(text))
        return 0;
    errno = 0;
    *count = strtol(text, NULL, 10);
    return errno == 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: train [-c] [-r] [-e EPOCHS] [-v VALIDATION] [-o STATE_OUT] DATA [STEPS [STATE_OUT]]\n");
    return 2;
}

/* The words of the call: 0, or the exit code. */
static int read_call(run *r, int argc, char **argv, const char **data, const char **validation)
{
    int i = 1;

    *validation = NULL;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "-r") == 0) {
            r->saves |= argv[i][1] == 'c';
            r->any_range |= argv[i][1] == 'r';
            continue;
        }
        if (argv[i][1] == 0 || argv[i][2] != 0 || strchr("evo", argv[i][1]) == NULL || i + 1 == argc)
            return usage();
        i++;
        if (argv[i - 1][1] == 'v')
            *validation = argv[i];
        else if (argv[i - 1][1] == 'o')
            r->state_out = argv[i];
        else if (!read_count(argv[i], &r->epochs) || r->epochs == 0) {
            fprintf(stderr, "EPOCHS is no whole number above 0: %s\n", argv[i]);
            return 2;
        }
    }
    if (argc - i < 1 || argc - i > 3)
        return usage();
    *data = argv[i];
    if (argc - i > 1 && !read_count(argv[i + 1], &r->steps)) {
        fprintf(stderr, "STEPS is no whole number: %s\n", argv[i + 1]);
        return 2;
    }
    if (argc - i > 2)
        r->state_out = argv[i + 2];
    if (r->steps > 0 && r->epochs > 0) {
        fprintf(stderr, "give STEPS or -e EPOCHS, not both\n");
        return 2;
    }
    if (*validation != NULL && model->evaluate.program == NULL) {
        fprintf(stderr, "-v: the program evaluate was not emitted\n");
        return 2;
    }
    r->prints_epochs = r->epochs > 0 || *validation != NULL;
    if (r->steps == 0 && r->epochs == 0)
        r->epochs = 1;
    return 0;
}

/* From the newest checkpoint, if there is one. */
static int resume(run *r)
{
    poetc_session *session = &r->session;
    int err = poetc_session_resume(session);

    if (err)
        return fail_with("the checkpoint in store.bin", err);
    printf("resumed step %lu\n", (unsigned long)session->runtime.run_count);
    memcpy(&r->progress, session->checkpoint.words, sizeof r->progress);
    if (!pass_over(&r->data, &session->checkpoint) || !r->progress.has_begun)
        begin_progress(&r->progress);
    if (r->progress.at_end == 1 && session->checkpoint.records < r->data.records) { /* the data have grown */
        r->progress.at_end = 0;
        r->progress.epochs--;
    }
    if (r->validation.file != NULL && r->state_out != NULL && r->progress.best < (float)HUGE_VAL) {
        FILE *best = fopen(r->state_out, "rb"); /* the checkpoint has the last state, not the best one */

        if (best == NULL)
            return fail("the best state so far was written to another file; name that one, or copy it here",
                        r->state_out);
        fclose(best);
    }
    return 0;
}

static int train_in(run *r, uint8_t *arena)
{
    poetc_config config;
    poetc_session *session = &r->session;
    poetc_store *store = &session->config.store;
    int result, fresh = 1;

    r->data.arena = arena;
    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = POETC_MODEL_ARENA_BYTES;
    if (r->saves) {
        FILE *found = fopen("store.bin", "rb");

        fresh = found == NULL;
        if (found != NULL)
            fclose(found);
    }
    if (POETC_MODEL_STORE_HAS_IMAGE && fresh && poetc_file_copy("store.img", "store.bin"))
        return fail("cannot be copied to store.bin; it holds weights of the model", "store.img");
    if ((POETC_MODEL_STORE_BLOCKS > 0 || r->saves) &&
        poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES))
        return fail("cannot open", "store.bin");
    if (poetc_session_init(session, model, &config))
        return fail("cannot initialise", POETC_MODEL_NAME);
    session->checkpoint.buffer = arena + POETC_MODEL_ARENA_BYTES;
    r->rate = poetc_session_learning_rate(session);
    begin_progress(&r->progress);
    result = r->saves ? resume(r) : 0;
    if (result == 0)
        result = train(r);
    if (store->context != NULL && store->sync(store->context))
        result = fail("cannot write", "store.bin");
    if (result == 0 && r->state_out != NULL && r->validation.file == NULL)
        result = save(r->state_out, session);
    if (result == 0 && r->validation.file != NULL && !(r->progress.best < (float)HUGE_VAL))
        result = fail("no validation loss was a number; no state was saved", r->validation.path);
    if (store->context != NULL && poetc_host_close(store))
        result = fail("cannot write", "store.bin");
    return result;
}

int main(int argc, char **argv)
{
    static run r;
    const char *data, *validation;
    uint8_t *memory;
    int result = read_call(&r, argc, argv, &data, &validation);

    if (result)
        return result;
    result = open_data(&r.data, data, &model->train);
    if (result == 0 && validation != NULL)
        result = open_data(&r.validation, validation, &model->evaluate) || use_buffer(&r.validation);
    memory = malloc(POETC_MODEL_ARENA_BYTES + POETC_ALIGN + POETC_MODEL_BLOCK_BYTES);
    if (result == 0 && memory == NULL)
        result = fail("not enough memory", POETC_MODEL_NAME);
    if (result == 0)
        result = train_in(&r, memory + (POETC_ALIGN - (uintptr_t)memory % POETC_ALIGN) % POETC_ALIGN);
    close_data(&r.data);
    close_data(&r.validation);
    free(memory);
    return result;
}
