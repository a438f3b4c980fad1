/* Trains on the data of a file and prints the loss of every step.
 *
 *     train [-c] DATA [STEPS [STATE_OUT]]
 *
 * DATA: records, one a step, each the bytes of the inputs and of the target in the order of the header; read round and
 * round. STEPS: default one pass. STATE_OUT: where to write the state afterwards. Pages go to store.bin in the current
 * directory, which starts as a copy of store.img if the model keeps weights there. -c: after every step a checkpoint
 * goes to store.bin, too, and training goes on from the newest one, if the file has one; STEPS counts those before.
 * Records that were used before it are passed over if DATA still begins with them; other data are used from their first
 * record.
 */
#include "model.h"
#include "poetc_checkpoint.h"
#include "poetc_files.h"
#include "poetc_host.h"
#include "poetc_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const char *which)
{
    fprintf(stderr, "%s: %s\n", what, which);
    return 1;
}

/* Fill in the inputs of one step, and count the record: 1 done, 0 the file has no whole record left. */
static int read_record(FILE *data, uint8_t *arena, poetc_checkpoint *used)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        if (fread(arena + inputs[i].offset, 1, inputs[i].size_bytes, data) != inputs[i].size_bytes)
            return 0;
        used->records_crc = poetc_crc32(used->records_crc, arena + inputs[i].offset, inputs[i].size_bytes);
    }
    used->records++;
    return 1;
}

static void begin_data(FILE *data, poetc_checkpoint *used)
{
    rewind(data);
    used->records = used->records_crc = 0;
}

/* Pass over the records that were used before the checkpoint. Where the data begin with other ones, they are new: none
 * is passed over. */
static void pass_over(FILE *data, uint8_t *arena, poetc_checkpoint *checkpoint)
{
    const uint32_t records = checkpoint->records, crc = checkpoint->records_crc;

    begin_data(data, checkpoint);
    while (checkpoint->records < records && read_record(data, arena, checkpoint))
        continue;
    if (checkpoint->records == records && checkpoint->records_crc == crc)
        return;
    printf("other data than before: from their first record\n");
    begin_data(data, checkpoint);
}

/* `checkpoint` counts the records that are used; it is saved if `saves`. */
static int train(poetc_runtime *runtime, FILE *data, long steps, uint8_t *arena, poetc_checkpoint *checkpoint,
                 int saves)
{
    long step;
    int err;

    for (step = (long)runtime->run_count + 1; steps == 0 || step <= steps; step++) {
        if (!read_record(data, arena, checkpoint)) {
            if (checkpoint->records == 0)
                return fail("the data file holds no whole record", POETC_MODEL_NAME);
            if (steps == 0)
                break;
            begin_data(data, checkpoint);
            if (!read_record(data, arena, checkpoint))
                return fail("cannot read the data file again", POETC_MODEL_NAME);
        }
        err = poetc_run(runtime);
        if (err) {
            fprintf(stderr, "step %ld stopped with code %d\n", step, err);
            return 1;
        }
        printf("step %ld loss %.9g\n", step, (double)poetc_loss(runtime));
        err = saves ? poetc_checkpoint_save(runtime, checkpoint) : POETC_OK;
        if (err) {
            fprintf(stderr, "step %ld: its checkpoint stopped with code %d\n", step, err);
            return 1;
        }
    }
    return 0;
}

static int write_piece(void *context, const void *data, uint32_t size_bytes)
{
    return poetc_file_write(context, data, size_bytes);
}

static int save(const char *path, poetc_runtime *runtime)
{
    static const poetc_state state = {POETC_MODEL_REGIONS, POETC_MODEL_REGION_COUNT, POETC_MODEL_IDENTITY};
    static poetc_new_file file;
    int err = poetc_file_begin(&file, path);

    if (!err) {
        err = poetc_state_write(runtime, &state, write_piece, &file);
        if (err)
            poetc_file_abandon(&file);
    }
    return err || poetc_file_finish(&file) ? fail("cannot write", path) : 0;
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
    poetc_runtime runtime;
    FILE *data;
    poetc_checkpoint checkpoint;
    uint8_t *memory, *arena;
    long steps = 0;
    int result, saves = argc > 1 && strcmp(argv[1], "-c") == 0, fresh = 1;

    argc -= saves;
    argv += saves;
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: train [-c] DATA [STEPS [STATE_OUT]]\n");
        return 2;
    }
    if (argc > 2 && !read_count(argv[2], &steps)) {
        fprintf(stderr, "STEPS is no whole number: %s\n", argv[2]);
        return 2;
    }
    data = fopen(argv[1], "rb");
    if (data == NULL)
        return fail("cannot read", argv[1]);
    memory = malloc(POETC_MODEL_ARENA_BYTES + POETC_ALIGN + POETC_MODEL_BLOCK_BYTES);
    if (memory == NULL)
        return fail("not enough memory", POETC_MODEL_NAME);
    arena = memory + (POETC_ALIGN - (uintptr_t)memory % POETC_ALIGN) % POETC_ALIGN;

    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = POETC_MODEL_ARENA_BYTES;
    config.flash = POETC_MODEL_CONSTANTS;
    if (saves) {
        FILE *store = fopen("store.bin", "rb");

        fresh = store == NULL;
        if (store != NULL)
            fclose(store);
    }
    if (POETC_MODEL_STORE_HAS_IMAGE && fresh && poetc_file_copy("store.img", "store.bin"))
        return fail("cannot copy store.img to", "store.bin");
    if ((POETC_MODEL_STORE_BLOCKS > 0 || saves) && poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES))
        return fail("cannot open", "store.bin");
    if (poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE))
        return fail("cannot initialise", POETC_MODEL_NAME);
    checkpoint.first_block = POETC_MODEL_STORE_BLOCKS;
    checkpoint.slots = 2;
    checkpoint.buffer = arena + POETC_MODEL_ARENA_BYTES;
    checkpoint.identity = POETC_MODEL_IDENTITY;
    checkpoint.records = checkpoint.records_crc = 0;
    if (saves) {
        result = poetc_checkpoint_load(&runtime, &checkpoint);
        if (result == POETC_ENOENT)
            result = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
        if (result)
            return fail("cannot read the checkpoint in", "store.bin");
        printf("resumed step %lu\n", (unsigned long)runtime.run_count);
        pass_over(data, arena, &checkpoint);
    }

    result = train(&runtime, data, steps, arena, &checkpoint, saves);
    if (config.store.context != NULL && config.store.sync(config.store.context))
        result = fail("cannot write", "store.bin");
    if (result == 0 && argc > 3)
        result = save(argv[3], &runtime);
    if (config.store.context != NULL && poetc_host_close(&config.store))
        result = fail("cannot write", "store.bin");
    fclose(data);
    free(memory);
    return result;
}
