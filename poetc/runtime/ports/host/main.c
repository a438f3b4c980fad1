/* Trains on the data of a file and prints the loss of every step.
 *
 *     train [-c] DATA [STEPS [STATE_OUT]]
 *
 * DATA: records, one a step, each the bytes of the inputs and of the target in the order of the header; read round and round.
 * STEPS: default one pass. STATE_OUT: where to write the state afterwards. Pages go to store.bin in the current directory, which
 * starts as a copy of store.img if the model keeps weights there. -c: after every step a checkpoint goes to store.bin, too, and
 * training goes on from the newest one, if the file has one; STEPS counts those before.
 */
#include "model.h"
#include "poetc_checkpoint.h"
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

static int copy_file(const char *from, const char *to)
{
    FILE *source = fopen(from, "rb"), *target = fopen(to, "wb");
    int byte, failed = source == NULL || target == NULL;

    while (!failed && (byte = getc(source)) != EOF)
        failed = putc(byte, target) == EOF;
    if (source != NULL)
        fclose(source);
    if (target != NULL && fclose(target) != 0)
        failed = 1;
    return failed;
}

/* Fill in the inputs of one step: 1 done, 0 the file has no whole record left. */
static int read_record(FILE *data, uint8_t *arena)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        if (fread(arena + inputs[i].offset, 1, inputs[i].size_bytes, data) != inputs[i].size_bytes)
            return 0;
    }
    return 1;
}

static int train(poetc_runtime *runtime, FILE *data, long steps, uint8_t *arena, const poetc_checkpoint *checkpoint)
{
    long step;
    int err;

    for (step = 1; steps == 0 || step <= steps; step++) {
        if (!read_record(data, arena)) {
            if (step == 1)
                return fail("the data file holds no whole record", POETC_MODEL_NAME);
            if (steps == 0)
                break;
            rewind(data);
            if (!read_record(data, arena))
                return fail("cannot read the data file again", POETC_MODEL_NAME);
        }
        if (step <= (long)runtime->run_count) /* done before the checkpoint */
            continue;
        err = poetc_run(runtime);
        if (err) {
            fprintf(stderr, "step %ld stopped with code %d\n", step, err);
            return 1;
        }
        printf("step %ld loss %.9g\n", step, (double)poetc_loss(runtime));
        err = checkpoint != NULL ? poetc_checkpoint_save(runtime, checkpoint) : POETC_OK;
        if (err) {
            fprintf(stderr, "step %ld: its checkpoint stopped with code %d\n", step, err);
            return 1;
        }
    }
    return 0;
}

static int save(const char *path, const uint8_t *arena)
{
    FILE *file = fopen(path, "wb");
    size_t bytes = POETC_MODEL_STATE_BYTES;
    int failed;

    if (file == NULL)
        return fail("cannot write", path);
    failed = fwrite(arena, 1, bytes, file) != bytes;
    return fclose(file) != 0 || failed ? fail("cannot write", path) : 0;
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
    if (POETC_MODEL_STORE_HAS_IMAGE && fresh && copy_file("store.img", "store.bin"))
        return fail("cannot copy store.img to", "store.bin");
    if ((POETC_MODEL_STORE_BLOCKS > 0 || saves) && poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES))
        return fail("cannot open", "store.bin");
    if (poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE))
        return fail("cannot initialise", POETC_MODEL_NAME);
    checkpoint.first_block = POETC_MODEL_STORE_BLOCKS;
    checkpoint.slots = 2;
    checkpoint.buffer = arena + POETC_MODEL_ARENA_BYTES;
    checkpoint.identity = POETC_MODEL_IDENTITY;
    if (saves) {
        result = poetc_checkpoint_load(&runtime, &checkpoint);
        if (result == POETC_ENOENT)
            result = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
        if (result)
            return fail("cannot read the checkpoint in", "store.bin");
        printf("resumed step %lu\n", (unsigned long)runtime.run_count);
    }

    result = train(&runtime, data, steps, arena, saves ? &checkpoint : NULL);
    if (result == 0 && argc > 3)
        result = save(argv[3], arena);
    if (config.store.context != NULL && poetc_host_close(&config.store))
        result = fail("cannot write", "store.bin");
    fclose(data);
    free(memory);
    return result;
}
