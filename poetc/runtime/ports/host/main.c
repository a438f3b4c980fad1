/* Trains on the data of a file and prints the loss of every step.
 *
 *     train [-c] [-r] DATA [STEPS [STATE_OUT]]
 *
 * DATA: records, one a step, each the bytes of the inputs and of the target in the order of the header; read round and
 * round. STEPS: default one pass. STATE_OUT: where to write the state afterwards. Pages go to store.bin in the current
 * directory, which starts as a copy of store.img if the model keeps weights there. -c: after every step a checkpoint
 * goes to store.bin, too, and training goes on from the newest one, if the file has one; STEPS counts those before.
 * Records that were used before it are passed over if DATA still begins with them; other data are used from their first
 * record. -r: inputs of any range are trained on, also those that look as if nobody had scaled them.
 *
 * Exit code 1, and a line on stderr that names file and record, where the data hold no whole records, a NaN, or a class
 * that the model has not, where the first record looks unscaled, and where the loss is no number; 2 for a wrong call.
 * The range of each input in the first record goes to stderr, too.
 */
#include "model.h"
#include "poetc_files.h"
#include "poetc_host.h"

#include <errno.h>
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

/* The data file, and where its records go. */
typedef struct reader {
    FILE *file;
    const char *path;
    uint8_t *arena;
} reader;

static const poetc_binding *const inputs = POETC_MODEL_INPUTS;
static const poetc_limit *const limits = POETC_MODEL_LIMITS;

/* Open the file, which must hold whole records: a size that is none of theirs is another layout, or a copy that was
 * cut. */
static int open_data(reader *data, const char *path)
{
    unsigned long record_bytes = 0;
    long size_bytes;
    uint32_t i;

    data->path = path;
    data->file = fopen(path, "rb");
    if (data->file == NULL)
        return fail("cannot read", path);
    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++)
        record_bytes += inputs[i].size_bytes;
    if (record_bytes == 0 || fseek(data->file, 0, SEEK_END) != 0)
        return 0; /* a pipe */
    size_bytes = ftell(data->file);
    rewind(data->file);
    if (size_bytes > 0 && (unsigned long)size_bytes % record_bytes == 0)
        return 0;
    fprintf(stderr, "%s: %ld bytes, no whole number of records of %lu; a record is", path, size_bytes, record_bytes);
    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++)
        fprintf(stderr, "%s %s (%lu)", i > 0 ? "," : "", inputs[i].name, (unsigned long)inputs[i].size_bytes);
    fprintf(stderr, "\n");
    return 1;
}

/* Fill in the inputs of one step, and count the record: 1 done, 0 the file has no whole record left. */
static int read_record(const reader *data, poetc_checkpoint *used)
{
    uint32_t i;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        if (fread(data->arena + inputs[i].offset, 1, inputs[i].size_bytes, data->file) != inputs[i].size_bytes)
            return 0;
        used->records_crc = poetc_crc32(used->records_crc, data->arena + inputs[i].offset, inputs[i].size_bytes);
    }
    used->records++;
    return 1;
}

static void begin_data(const reader *data, poetc_checkpoint *used)
{
    rewind(data->file);
    used->records = used->records_crc = 0;
}

/* Pass over the records that were used before the checkpoint. Where the data begin with other ones, they are new: none
 * is passed over. */
static void pass_over(const reader *data, poetc_checkpoint *checkpoint)
{
    const uint32_t records = checkpoint->records, crc = checkpoint->records_crc;

    begin_data(data, checkpoint);
    while (checkpoint->records < records && read_record(data, checkpoint))
        continue;
    if (checkpoint->records == records && checkpoint->records_crc == crc)
        return;
    printf("other data than before: from their first record\n");
    begin_data(data, checkpoint);
}

/* What is wrong with a record. */
static int fail_at(const reader *data, uint32_t record, const poetc_flaw *flaw, int code)
{
    fprintf(stderr, "%s: record %lu: %s[%lu] is ", data->path, (unsigned long)record, inputs[flaw->input].name,
            (unsigned long)flaw->element);
    if (code == POETC_ERANGE)
        fprintf(stderr, "%ld, not %ld to %ld (classes and indices count from 0)\n", (long)flaw->value,
                (long)limits[flaw->input].least, (long)limits[flaw->input].most);
    else
        fprintf(stderr, "a NaN or an infinity\n");
    return 1;
}

/* Print the range of each input in the first record. 1: one looks as if nobody had scaled it, and `any_range` is 0. */
static int check_ranges(const reader *data, int any_range)
{
    uint32_t i;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
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

/* The session's checkpoint counts the records that are used; it is saved if `saves`. */
static int train(poetc_session *session, const reader *data, long steps, int saves, int any_range)
{
    const long first = (long)session->runtime.run_count + 1;
    poetc_checkpoint *used = &session->checkpoint;
    poetc_trend trend = {0};
    float loss;
    long step;
    int err;

    for (step = first; steps == 0 || step <= steps; step++) {
        if (!read_record(data, used)) {
            if (used->records == 0)
                return fail("the data file holds no whole record", data->path);
            if (steps == 0)
                break;
            begin_data(data, used);
            if (!read_record(data, used))
                return fail("cannot read the data file again", data->path);
        }
        if (step == first &&
            !poetc_check_inputs(inputs, limits, POETC_MODEL_INPUT_COUNT, data->arena, &session->flaw) &&
            check_ranges(data, any_range))
            return 1;
        err = poetc_session_step(session, NULL, &loss);
        if (session->flaw.input != POETC_NONE)
            return fail_at(data, used->records, &session->flaw, err);
        if (err == POETC_ECORRUPT && POETC_MODEL_STORE_HAS_IMAGE && session->runtime.run_count == 0)
            fprintf(stderr, "store.bin does not begin with the weights of store.img: remove it, or copy them there\n");
        if (err && err != POETC_ENUMBER) {
            fprintf(stderr, "step %ld stopped: ", step);
            return fail_with(data->path, err);
        }
        printf("step %ld loss %.9g\n", step, (double)loss);
        fflush(stdout);
        if (err) {
            fprintf(stderr,
                    "step %ld: the loss is %g: lower the learning rate, or scale the inputs; no state was saved\n",
                    step, (double)loss);
            return 1;
        }
        if (step == 1 && poetc_starts_absurd(loss, limits, POETC_MODEL_INPUT_COUNT))
            fprintf(stderr, "warning: the first loss is more than three times that of guessing: are inputs scaled and"
                            " classes numbered as the model was trained?\n");
        poetc_trend_add(&trend, loss);
        err = saves ? poetc_session_checkpoint(session) : POETC_OK;
        if (err) {
            fprintf(stderr, "step %ld: ", step);
            return fail_with("its checkpoint cannot be saved in store.bin", err);
        }
    }
    if (poetc_trend_rises(&trend))
        fprintf(
            stderr,
            "warning: the loss rose to more than twice what it was: lower the learning rate, or scale the inputs\n");
    return 0;
}

static int save(const char *path, poetc_session *session)
{
    int err = poetc_file_save(session, path);

    return err ? fail_with(path, err) : 0;
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

int main(int argc, char **argv)
{
    poetc_config config;
    poetc_session session;
    poetc_store *store = &session.config.store;
    reader data;
    uint8_t *memory, *arena;
    long steps = 0;
    int result, saves = 0, any_range = 0, fresh = 1;

    for (; argc > 1 && (strcmp(argv[1], "-c") == 0 || strcmp(argv[1], "-r") == 0); argc--, argv++) {
        saves |= argv[1][1] == 'c';
        any_range |= argv[1][1] == 'r';
    }
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: train [-c] [-r] DATA [STEPS [STATE_OUT]]\n");
        return 2;
    }
    if (argc > 2 && !read_count(argv[2], &steps)) {
        fprintf(stderr, "STEPS is no whole number: %s\n", argv[2]);
        return 2;
    }
    if (open_data(&data, argv[1]))
        return 1;
    memory = malloc(POETC_MODEL_ARENA_BYTES + POETC_ALIGN + POETC_MODEL_BLOCK_BYTES);
    if (memory == NULL)
        return fail("not enough memory", POETC_MODEL_NAME);
    arena = memory + (POETC_ALIGN - (uintptr_t)memory % POETC_ALIGN) % POETC_ALIGN;

    data.arena = arena;
    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = POETC_MODEL_ARENA_BYTES;
    if (saves) {
        FILE *found = fopen("store.bin", "rb");

        fresh = found == NULL;
        if (found != NULL)
            fclose(found);
    }
    if (POETC_MODEL_STORE_HAS_IMAGE && fresh && poetc_file_copy("store.img", "store.bin"))
        return fail("cannot be copied to store.bin; it holds weights of the model", "store.img");
    if ((POETC_MODEL_STORE_BLOCKS > 0 || saves) && poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES))
        return fail("cannot open", "store.bin");
    if (poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config))
        return fail("cannot initialise", POETC_MODEL_NAME);
    session.checkpoint.buffer = arena + POETC_MODEL_ARENA_BYTES;
    if (saves) {
        result = poetc_session_resume(&session);
        if (result)
            return fail_with("the checkpoint in store.bin", result);
        printf("resumed step %lu\n", (unsigned long)session.runtime.run_count);
        pass_over(&data, &session.checkpoint);
    }

    result = train(&session, &data, steps, saves, any_range);
    if (store->context != NULL && store->sync(store->context))
        result = fail("cannot write", "store.bin");
    if (result == 0 && argc > 3)
        result = save(argv[3], &session);
    if (store->context != NULL && poetc_host_close(store))
        result = fail("cannot write", "store.bin");
    fclose(data.file);
    free(memory);
    return result;
}
