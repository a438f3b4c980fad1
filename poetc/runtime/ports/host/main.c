/* Trains on the data of a file, evaluates after every epoch, and keeps the best state.
 *
 *     train [-c] [-m] [-r] [-e EPOCHS] [-v VALIDATION] [-o STATE_OUT] DATA [STEPS [STATE_OUT]]
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
 * any range are trained on, also those that look as if nobody had scaled them. Option -m, of a bundle: the plan follows
 * the memory that Linux leaves to this process, or to the control group whose directory is $POETC_CGROUP.
 *
 * Exit code 1, and a line on stderr that names file and record, where data have no whole records, a NaN, or an unknown
 * class. It is 1 as well where the first record looks unscaled, and where the loss is no number; 2 for a wrong call.
 * The range of each input in the first record goes to stderr, too.
 */
#include "model.h"
#include "poetc_files.h"
#include "poetc_host.h"
#include "poetc_loop.h"
#include "poetc_use_processors.h"
#ifdef POETC_MODEL_BUNDLE
#include "poetc_pressure.h"
#endif

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

/* A file of records. */
typedef struct reader {
    FILE *file;
    const char *path;
    const poetc_entry *entry;
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
    if (fgetc(data->file) == EOF && ferror(data->file)) /* a directory can be opened */
        return fail("cannot read", path);
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

static void close_data(reader *data)
{
    if (data->file != NULL)
        fclose(data->file);
}

/* Try a file that is written after the training, before it. */
static int try_output(const char *path)
{
    static poetc_new_file file; /* too large for a stack */

    if (poetc_file_begin(&file, path))
        return fail("cannot write", path);
    poetc_file_abandon(&file);
    return 0;
}

typedef struct run {
    poetc_loop loop;
    reader data, validation; /* the latter without a file: there is none */
    const char *state_out;
    long steps, epochs;                                   /* one of them is 0 */
    int saves, any_range, follows, prints_epochs, copied; /* copied: store.bin is store.img, as this run began */
    double loss_sum;                                      /* of the epoch, */
    uint32_t losses;                                      /* as far as it was run here */
} run;

static run r;

/* --- questions of the loop --- */

static const reader *data_of(int is_validation)
{
    return is_validation ? &r.validation : &r.data;
}

int poetc_loop_read(int is_validation, void *to, uint32_t size_bytes)
{
    FILE *file = data_of(is_validation)->file;
    const size_t read = fread(to, 1, size_bytes, file);

    if (ferror(file))
        return POETC_EIO;
    return read == size_bytes ? 1 : read == 0 ? 0 : POETC_ENODATA;
}

int poetc_loop_rewind(int is_validation)
{
    rewind(data_of(is_validation)->file);
    return 1;
}

int poetc_loop_keep(poetc_loop *loop)
{
    int err = r.state_out != NULL ? poetc_file_save(&loop->session, r.state_out) : POETC_OK;

    if (err)
        fail_with(r.state_out, err);
    return err;
}

void poetc_loop_resumed(const poetc_loop *loop)
{
    printf("resumed step %lu\n", (unsigned long)loop->session.runtime.run_count);
}

void poetc_loop_has_other_data(const poetc_loop *loop)
{
    (void)loop;
    printf("other data than before: from their first record\n");
}

void poetc_loop_stepped(poetc_loop *loop, float loss)
{
    printf("step %lu loss %.9g\n", (unsigned long)loop->session.runtime.run_count, (double)loss);
    fflush(stdout);
    r.loss_sum += (double)loss;
    r.losses++;
}

void poetc_loop_epoch(poetc_loop *loop, int is_complete)
{
    const poetc_hits *hits = &loop->hits;

    if (r.prints_epochs) {
        printf(is_complete ? "epoch %lu" : "in epoch %lu", (unsigned long)loop->progress.epochs + !is_complete);
        if (r.losses > 0)
            printf(" loss %.9g", r.loss_sum / r.losses);
        if (loop->validates)
            printf(" validation_loss %.9g", (double)loop->validation_loss);
        if (loop->validates && hits->samples > 0)
            printf(" validation_accuracy %.6g", (double)hits->hits / (double)hits->samples);
        printf(loop->is_best ? " best\n" : "\n");
        fflush(stdout);
    }
    r.loss_sum = 0.0;
    r.losses = 0;
}

/* Print the range of each input in the first record. An error: one looks as if nobody had scaled it. */
int poetc_loop_look(const poetc_loop *loop)
{
    const poetc_binding *inputs = model->train.inputs;
    const poetc_limit *limits = model->train.limits;
    uint32_t i;

    for (i = 0; i < model->train.input_count; i++) {
        if (limits[i].dtype == POETC_F32 && !(inputs[i].offset & POETC_ON_STORE)) {
            const void *values = poetc_session_input(&loop->session, &model->train, i);
            const poetc_span span = poetc_span_of(values, inputs[i].size_bytes / 4u);

            fprintf(stderr, "input %s from %g to %g\n", inputs[i].name, (double)span.least, (double)span.most);
            if (!r.any_range && limits[i].least > limits[i].most && poetc_span_is_raw(span)) {
                fprintf(
                    stderr,
                    "%s: record 1: %s from %g to %g looks unscaled: scale it as the model was trained, or give -r\n",
                    r.data.path, inputs[i].name, (double)span.least, (double)span.most);
                return POETC_EINVAL;
            }
        }
    }
    return POETC_OK;
}

void poetc_loop_warn(const char *text)
{
    fprintf(stderr, "warning: %s\n", text);
}

/* --- where it has stopped --- */

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

static int fail_at_loop(int err)
{
    const poetc_session *session = &r.loop.session;
    const unsigned long step = (unsigned long)session->runtime.run_count;

    switch (r.loop.place) {
    case POETC_AT_RECORD: return fail_at(&r.data, r.loop.record, &session->flaw, err);
    case POETC_AT_VALIDATION_RECORD: return fail_at(&r.validation, r.loop.record, &session->flaw, err);
    case POETC_AT_DATA:
        return err == POETC_ENODATA && r.loop.record == 0 ? fail("the data file holds no whole record", r.data.path)
                                                          : fail_with(r.data.path, err);
    case POETC_AT_VALIDATION: return fail_with(r.validation.path, err);
    case POETC_AT_RATE:
        return fail("the schedule needs the number of steps, which a pipe does not tell: give STEPS", r.data.path);
    case POETC_AT_CHECKPOINT:
        fprintf(stderr, "step %lu: ", step);
        return fail_with("its checkpoint cannot be saved in store.bin", err);
    case POETC_AT_RESUME: return fail_with("the checkpoint in store.bin", err);
    case POETC_AT_LOSS:
        fprintf(stderr,
                "step %lu: the loss is no number: lower the learning rate, or scale the inputs; this step's state was"
                " not saved\n",
                step);
        return 1;
    case POETC_AT_STEP:
        fprintf(stderr, "step %lu stopped: ", step + 1u);
        if (err != POETC_ECORRUPT)
            return fail_with(r.data.path, err);
        return fail_with(r.copied ? "store.img, or store.bin, its copy" : "store.bin", err);
    default: /* poetc_loop_look and poetc_loop_keep have said why */ return 1;
    }
}

/* A whole number, digits alone: 1 done, 0 it is none. */
static int read_count(const char *text, long *count)
{
    if (text[0] == 0 || strspn(text, "0123456789") != strlen(text))
        return 0;
    errno = 0;
    *count = strtol(text, NULL, 10);
    return errno == 0 && (unsigned long)*count <= UINT32_MAX;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: train [-c] [-m] [-r] [-e EPOCHS] [-v VALIDATION] [-o STATE_OUT] DATA [STEPS [STATE_OUT]]\n");
    return 2;
}

/* The words of the call: 0, or the exit code. */
static int read_call(int argc, char **argv, const char **data, const char **validation)
{
    int i = 1;

    *validation = NULL;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "-m") == 0 || strcmp(argv[i], "-r") == 0) {
            r.saves |= argv[i][1] == 'c';
            r.follows |= argv[i][1] == 'm';
            r.any_range |= argv[i][1] == 'r';
            continue;
        }
        if (argv[i][1] == 0 || argv[i][2] != 0 || strchr("evo", argv[i][1]) == NULL || i + 1 == argc)
            return usage();
        i++;
        if (argv[i - 1][1] == 'v')
            *validation = argv[i];
        else if (argv[i - 1][1] == 'o')
            r.state_out = argv[i];
        else if (!read_count(argv[i], &r.epochs) || r.epochs == 0) {
            fprintf(stderr, "EPOCHS is no whole number above 0: %s\n", argv[i]);
            return 2;
        }
    }
    if (argc - i < 1 || argc - i > 3)
        return usage();
    *data = argv[i];
    if (argc - i > 1 && !read_count(argv[i + 1], &r.steps)) {
        fprintf(stderr, "STEPS is no whole number: %s\n", argv[i + 1]);
        return 2;
    }
    if (argc - i > 2)
        r.state_out = argv[i + 2];
    if (r.steps > 0 && r.epochs > 0) {
        fprintf(stderr, "give STEPS or -e EPOCHS, not both\n");
        return 2;
    }
    if (*validation != NULL && model->evaluate.program == NULL) {
        fprintf(stderr, "-v: the program evaluate was not emitted\n");
        return 2;
    }
#ifndef POETC_MODEL_BUNDLE
    if (r.follows) {
        fprintf(stderr, "-m: this program has one plan; poetc bundle makes several\n");
        return 2;
    }
#endif
    r.prints_epochs = r.epochs > 0 || *validation != NULL;
    if (r.steps == 0 && r.epochs == 0)
        r.epochs = 1;
    return 0;
}

/* Go on from the newest checkpoint, if there is one. */
static int resume(void)
{
    int err = poetc_loop_resume(&r.loop);

    if (err)
        return fail_at_loop(err);
    if (r.loop.validates && r.state_out != NULL && r.loop.progress.best < (float)HUGE_VAL) {
        FILE *best = fopen(r.state_out, "rb"); /* the checkpoint has the last state, not the best one */

        if (best == NULL)
            return fail("the best state so far was written to another file; name that one, or copy it here",
                        r.state_out);
        fclose(best);
    }
    return 0;
}

static int train(void)
{
    int err = poetc_loop_train(&r.loop);

    if (err)
        return fail_at_loop(err);
    if (r.loop.validates)
        return r.loop.progress.best < (float)HUGE_VAL
                   ? 0
                   : fail("no validation loss was a number; no state was saved", r.validation.path);
    return 0;
}

#ifdef POETC_MODEL_BUNDLE
static poetc_pressure pressure;

static void print_budget(void *context, uint32_t arena_bytes)
{
    (void)context;
    printf("arena %lu bytes in step %lu\n", (unsigned long)arena_bytes,
           (unsigned long)pressure.elastic.runtime.run_count + 1u);
}

static int follow_memory(void)
{
    const char *group = getenv("POETC_CGROUP");
    const int err = poetc_pressure_begin(&pressure, &r.loop.session, POETC_MODEL_BUNDLE, group);

    if (err)
        return fail("-m: it tells nothing of memory", group != NULL ? group : "the control group of this process");
    pressure.switched = print_budget;
    return 0;
}
#else
static int follow_memory(void)
{
    return 0;
}
#endif

static int train_in(uint8_t *arena)
{
    poetc_config config;
    poetc_session *session = &r.loop.session;
    poetc_store *store = &session->config.store;
    int result, fresh = 1;

    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = POETC_MODEL_ARENA_BYTES;
    if (r.saves) {
        FILE *found = fopen("store.bin", "rb");

        fresh = found == NULL;
        if (found != NULL)
            fclose(found);
    }
    r.copied = POETC_MODEL_STORE_HAS_IMAGE && fresh;
    if (r.copied && poetc_file_copy("store.img", "store.bin"))
        return fail("cannot be copied to store.bin; it holds weights of the model", "store.img");
    if ((POETC_MODEL_STORE_BLOCKS > 0 || r.saves) &&
        poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES))
        return fail("cannot open", "store.bin");
    if (poetc_session_init(session, model, &config) || use_processors(session))
        return fail("cannot initialise", POETC_MODEL_NAME);
    if (r.follows && follow_memory())
        return 1;
    if (r.state_out == NULL && !r.saves)
        fprintf(stderr, "note: the trained weights are not kept; -o STATE_OUT writes them\n");
    session->checkpoint.buffer = arena + POETC_MODEL_ARENA_BYTES;
    r.loop.steps = (uint32_t)r.steps;
    r.loop.epochs = (uint32_t)r.epochs;
    r.loop.records = r.data.records;
    r.loop.checkpoint_steps = r.saves ? 1 : 0;
    r.loop.validates = r.validation.file != NULL;
    poetc_loop_begin(&r.loop);
    result = r.saves ? resume() : 0;
    if (result == 0)
        result = train();
    if (store->context != NULL && store->sync(store->context))
        result = fail("cannot write", "store.bin");
    if (result == 0 && !r.loop.validates)
        result = poetc_loop_keep(&r.loop) ? 1 : 0;
    if (store->context != NULL && poetc_host_close(store))
        result = fail("cannot write", "store.bin");
    return result;
}

int main(int argc, char **argv)
{
    const char *data, *validation;
    uint8_t *memory;
    int result = read_call(argc, argv, &data, &validation);

    if (result)
        return result;
    result = open_data(&r.data, data, &model->train);
    if (result == 0 && validation != NULL)
        result = open_data(&r.validation, validation, &model->evaluate);
    if (result == 0 && r.state_out != NULL)
        result = try_output(r.state_out);
    memory = malloc(POETC_MODEL_ARENA_BYTES + POETC_ALIGN + POETC_MODEL_BLOCK_BYTES);
    if (result == 0 && memory == NULL)
        result = fail("not enough memory", POETC_MODEL_NAME);
    if (result == 0)
        result = train_in(memory + (POETC_ALIGN - (uintptr_t)memory % POETC_ALIGN) % POETC_ALIGN);
    close_data(&r.data);
    close_data(&r.validation);
    free(memory);
    return result;
}
