/* Personalises the emitted digits model on the pages of a new writer, on this machine, as a board would.
 *
 *     personalise TRAIN TEST EPOCHS
 *
 * TRAIN, TEST: int32 count, then count images of 64 floats, then count int32 labels. Prints one line a measurement:
 * `before`, `epoch N`, `after` and `memory`, each followed by name=value pairs.
 */
#include "model.h"
#include "poetc_host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 64, CLASSES = 10, BATCH = DIGITS_TRAIN_IN_IMAGE_ELEMENTS / PIXELS, UNTOUCHED = 0xA5 };

typedef struct digits {
    int32_t count;
    float *images;
    int32_t *labels;
} digits;

static void stop(const char *what, const char *which)
{
    fprintf(stderr, "personalise: %s: %s\n", what, which);
    exit(1);
}

static void *memory(size_t bytes)
{
    void *block = malloc(bytes);

    if (block == NULL)
        stop("not enough memory", "malloc");
    return block;
}

static digits read_digits(const char *path)
{
    digits set;
    FILE *file = fopen(path, "rb");
    size_t count;

    if (file == NULL || fread(&set.count, sizeof set.count, 1, file) != 1 || set.count < BATCH)
        stop("cannot read", path);
    count = (size_t)set.count;
    set.images = memory(count * PIXELS * sizeof *set.images);
    set.labels = memory(count * sizeof *set.labels);
    if (fread(set.images, sizeof *set.images * PIXELS, count, file) != count ||
        fread(set.labels, sizeof *set.labels, count, file) != count)
        stop("cannot read", path);
    fclose(file);
    return set;
}

static void run(poetc_runtime *runtime)
{
    int err = poetc_run(runtime);

    if (err) {
        fprintf(stderr, "personalise: the run stopped with code %d\n", err);
        exit(1);
    }
}

/* Prints accuracy and mean cross-entropy on all of `set`; the last batch is filled up with the last image. */
static void test_on(poetc_runtime *runtime, uint8_t *arena, const digits *set, const char *when)
{
    int32_t first, row, at, hits = 0;
    int class, best;
    double loss = 0, sum;

    if (poetc_select(runtime, &digits_infer))
        stop("cannot select", "inference");
    for (first = 0; first < set->count; first += BATCH) {
        float *image = digits_infer_in_image(arena);
        const float *logits = digits_infer_out_logits(arena);

        for (row = 0; row < BATCH; row++) {
            at = first + row < set->count ? first + row : set->count - 1;
            memcpy(image + row * PIXELS, set->images + at * PIXELS, PIXELS * sizeof *image);
        }
        run(runtime);
        for (row = 0; row < BATCH && first + row < set->count; row++) {
            const float *score = logits + row * CLASSES;

            for (best = 0, class = 1; class < CLASSES; class++)
                best = score[class] > score[best] ? class : best;
            for (sum = 0, class = 0; class < CLASSES; class++)
                sum += exp((double)(score[class] - score[best]));
            loss += log(sum) + (double)(score[best] - score[set->labels[first + row]]);
            hits += best == set->labels[first + row];
        }
    }
    printf("%s accuracy=%.4f loss=%.4f\n", when, (double)hits / set->count, loss / set->count);
}

/* One pass over `set` in an order of its own; the mean loss. What does not fill a batch waits for another epoch. */
static double train(poetc_runtime *runtime, uint8_t *arena, const digits *set, uint32_t *random, int32_t *order)
{
    int32_t first, row, at, other;
    double loss = 0;

    if (poetc_select(runtime, &digits_train))
        stop("cannot select", "training");
    for (at = 0; at < set->count; at++)
        order[at] = at;
    for (at = set->count - 1; at > 0; at--) {
        *random = *random * 1664525u + 1013904223u;
        other = (int32_t)((*random >> 8) % (uint32_t)(at + 1));
        row = order[at];
        order[at] = order[other];
        order[other] = row;
    }
    for (first = 0; first + BATCH <= set->count; first += BATCH) {
        float *image = digits_train_in_image(arena);
        int32_t *target = digits_train_in_target(arena);

        for (row = 0; row < BATCH; row++) {
            at = order[first + row];
            memcpy(image + row * PIXELS, set->images + at * PIXELS, PIXELS * sizeof *image);
            target[row] = set->labels[at];
        }
        run(runtime);
        loss += (double)poetc_loss(runtime);
    }
    return loss / (set->count / BATCH);
}

int main(int argc, char **argv)
{
    poetc_config config;
    poetc_runtime runtime;
    uint8_t *block, *arena;
    digits own, test;
    int32_t *order;
    uint32_t random = 1, highest;
    long epoch, epochs;

    if (argc != 4)
        stop("usage", "personalise TRAIN TEST EPOCHS");
    own = read_digits(argv[1]);
    test = read_digits(argv[2]);
    epochs = strtol(argv[3], NULL, 10);
    order = memory((size_t)own.count * sizeof *order);

    /* Twice what it needs: a write past the end would be seen. */
    block = memory(2 * DIGITS_ARENA_BYTES + POETC_ALIGN);
    arena = block + (POETC_ALIGN - (uintptr_t)block % POETC_ALIGN) % POETC_ALIGN;
    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = DIGITS_ARENA_BYTES;
    config.flash = POETC_MODEL_CONSTANTS;
    if (POETC_MODEL_STORE_BLOCKS > 0 && poetc_host_open(&config.store, "store.bin", POETC_MODEL_BLOCK_BYTES))
        stop("cannot open", "store.bin");
    if (poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE))
        stop("cannot initialise", POETC_MODEL_NAME);

    test_on(&runtime, arena, &test, "before");
    memset(arena + DIGITS_STATE_BYTES, UNTOUCHED, 2 * DIGITS_ARENA_BYTES - DIGITS_STATE_BYTES);
    for (epoch = 1; epoch <= epochs; epoch++) {
        double loss = train(&runtime, arena, &own, &random, order);

        printf("epoch %ld loss=%.4f\n", epoch, loss);
    }
    for (highest = 2 * DIGITS_ARENA_BYTES; highest > 0 && arena[highest - 1] == UNTOUCHED; highest--)
        continue;
    printf("memory highest=%lu arena=%lu\n", (unsigned long)highest, (unsigned long)DIGITS_TRAIN_ARENA_BYTES);
    printf("pages out=%lu in=%lu\n", (unsigned long)runtime.page_outs, (unsigned long)runtime.page_ins);
    test_on(&runtime, arena, &test, "after");

    if (config.store.context != NULL && poetc_host_close(&config.store))
        stop("cannot write", "store.bin");
    free(order);
    free(own.images);
    free(own.labels);
    free(test.images);
    free(test.labels);
    free(block);
    return 0;
}
