/* A store in RAM, a model with its session, and checksums made right, for the fuzz targets. */
#ifndef FUZZ_MEDIUM_H
#define FUZZ_MEDIUM_H

#include "model.h"
#include "poetc_session.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store_image.h" /* bytes of store.img */

/* A condition that no input may break. */
#define FUZZ_HOLDS(condition)                                                   \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: " #condition "\n", __FILE__, __LINE__);     \
            abort();                                                            \
        }                                                                       \
    } while (0)

enum { BLOCK_BYTES = 64, STORE_BLOCKS = 512 };

static uint8_t medium[STORE_BLOCKS * BLOCK_BYTES];
static _Alignas(POETC_ALIGN) uint8_t arena[POETC_MODEL_ARENA_BYTES];
static poetc_session session;

/* The card as it was made for the first run. */
static inline void fresh_medium(void)
{
    memset(medium, 0, sizeof medium);
    memcpy(medium, store_image, sizeof store_image);
}

static int write_blocks(void *context, uint32_t first, uint32_t count, const void *data)
{
    (void)context;
    FUZZ_HOLDS(first <= STORE_BLOCKS && count <= STORE_BLOCKS - first);
    memcpy(medium + (size_t)first * BLOCK_BYTES, data, (size_t)count * BLOCK_BYTES);
    return 0;
}

static int read_blocks(void *context, uint32_t first, uint32_t count, void *data)
{
    (void)context;
    FUZZ_HOLDS(first <= STORE_BLOCKS && count <= STORE_BLOCKS - first);
    memcpy(data, medium + (size_t)first * BLOCK_BYTES, (size_t)count * BLOCK_BYTES);
    return 0;
}

static inline void store_u32(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    to[2] = (uint8_t)(value >> 16);
    to[3] = (uint8_t)(value >> 24);
}

static inline void begin_session(void)
{
    poetc_config config;

    memset(&config, 0, sizeof config);
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    config.store.page_out = write_blocks;
    config.store.page_in = read_blocks;
    memset(arena, 0xA5, sizeof arena);
    FUZZ_HOLDS(poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config) == POETC_OK);
}

/* A stream of state, as in trained.bin. */
typedef struct stream {
    uint8_t bytes[POETC_MODEL_ARENA_BYTES + STORE_BLOCKS * BLOCK_BYTES];
    uint32_t size_bytes;
} stream;

static inline int append(void *context, const void *data, uint32_t size_bytes)
{
    stream *to = context;

    FUZZ_HOLDS(size_bytes <= sizeof to->bytes - to->size_bytes);
    memcpy(to->bytes + to->size_bytes, data, size_bytes);
    to->size_bytes += size_bytes;
    return 0;
}

static inline int save_state(stream *to)
{
    to->size_bytes = 0;
    return poetc_session_save(&session, append, to);
}

/* Inputs that the model takes: floats below 1 and the class 0. */
static inline int step(float *loss)
{
    const poetc_entry *entry = &session.model->train;
    uint32_t i, j;

    for (i = 0; i < entry->input_count; i++) {
        uint8_t *to = poetc_session_input(&session, entry, i);

        for (j = 0; j < entry->inputs[i].size_bytes / 4u; j++) {
            const float value = entry->limits[i].dtype == POETC_F32 ? (float)(j % 7u) / 8.0f : 0.0f;

            memcpy(to + 4u * j, &value, sizeof value);
        }
    }
    return poetc_session_step(&session, NULL, loss);
}

#endif
