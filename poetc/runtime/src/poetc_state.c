/* The trained state as one stream. See poetc_state.h. */
#include "poetc_state.h"
#include "poetc_bytes.h"

#include <string.h>

static const uint8_t tag[8] = {'p', 'o', 'e', 't', 'c', ' ', 's', '2'};

enum { IDENTITY_AT = 8, STEPS_AT = 12, SIZE_AT = 16, CRC_AT = 20, PIECE_BYTES = 256 };

typedef struct stream {
    poetc_sink sink;
    void *context;
    uint32_t crc, size_bytes;
} stream;

static int put(void *context, const void *data, uint32_t size_bytes)
{
    stream *to = context;

    to->crc = poetc_crc32(to->crc, data, size_bytes);
    to->size_bytes += size_bytes;
    return to->sink(to->context, data, size_bytes);
}

POETC_COLD int poetc_state_write(poetc_runtime *runtime, const poetc_state *state, poetc_sink sink, void *context)
{
    static const uint8_t zeros[POETC_ALIGN] = {0};
    uint8_t trailer[POETC_STATE_TRAILER];
    stream to;
    uint32_t i;
    int err = POETC_OK;

    to.sink = sink;
    to.context = context;
    to.crc = to.size_bytes = 0;
    for (i = 0; i < state->region_count && !err; i++) {
        const poetc_region *region = &state->regions[i];

        if (region->size_bytes > 0)
            err = put(&to, (const uint8_t *)runtime->config->arena + region->place, region->size_bytes);
        else
            err = poetc_read_state_page(runtime, region->place, put, &to);
        if (!err && to.size_bytes % POETC_ALIGN > 0)
            err = put(&to, zeros, POETC_ALIGN - to.size_bytes % POETC_ALIGN);
    }
    if (err)
        return err;
    memcpy(trailer, tag, sizeof tag);
    put_u32(trailer + IDENTITY_AT, state->identity);
    put_u32(trailer + STEPS_AT, runtime->run_count);
    put_u32(trailer + SIZE_AT, to.size_bytes);
    put_u32(trailer + CRC_AT, poetc_crc32(to.crc, trailer, CRC_AT));
    return sink(context, trailer, POETC_STATE_TRAILER);
}

/* Bytes that a region takes in the stream. */
static uint32_t region_bytes(const poetc_program *program, const poetc_region *region)
{
    uint32_t size = region->size_bytes > 0 ? region->size_bytes : program->pages[region->place].size_bytes;

    return (size + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
}

/* Read the trailer, and all that it vouches for. */
static int check(const poetc_state *state, uint32_t data_bytes, poetc_source source, void *context, uint8_t *trailer)
{
    uint64_t piece[PIECE_BYTES / 8]; /* aligned for the checksum */
    uint32_t crc = 0, offset, size;
    int err = source(context, data_bytes, trailer, POETC_STATE_TRAILER);

    if (err)
        return err;
    if (memcmp(trailer, tag, sizeof tag) != 0 || get_u32(trailer + IDENTITY_AT) != state->identity ||
        get_u32(trailer + SIZE_AT) != data_bytes)
        return POETC_EINVAL;
    for (offset = 0; offset < data_bytes; offset += size) {
        size = data_bytes - offset < PIECE_BYTES ? data_bytes - offset : PIECE_BYTES;
        err = source(context, offset, piece, size);
        if (err)
            return err;
        crc = poetc_crc32(crc, piece, size);
    }
    return poetc_crc32(crc, trailer, CRC_AT) == get_u32(trailer + CRC_AT) ? POETC_OK : POETC_ECORRUPT;
}

int poetc_state_read(poetc_runtime *runtime, const poetc_state *state, uint32_t size_bytes, poetc_source source,
                     void *context)
{
    uint8_t trailer[POETC_STATE_TRAILER];
    uint32_t data_bytes = 0, offset, version, steps, round, i;
    int err;

    for (i = 0; i < state->region_count; i++)
        data_bytes += region_bytes(runtime->program, &state->regions[i]);
    if (size_bytes != data_bytes + POETC_STATE_TRAILER)
        return POETC_EINVAL;
    err = check(state, data_bytes, source, context, trailer);
    if (err)
        return err;
    steps = get_u32(trailer + STEPS_AT);
    version = runtime->run_count + runtime->version_offset + 1u;
    /* Pages first: they take their other slots, so that the last checkpoint stands until the next one. */
    for (round = 0; round < 2 && !err; round++)
        for (i = offset = 0; i < state->region_count && !err; i++) {
            const poetc_region *region = &state->regions[i];

            if (region->size_bytes == 0 && round == 0)
                err = poetc_write_state_page(runtime, region->place, version, offset, source, context);
            else if (region->size_bytes > 0 && round == 1)
                err = source(context, offset, (uint8_t *)runtime->config->arena + region->place, region->size_bytes);
            offset += region_bytes(runtime->program, region);
        }
    if (!err) {
        runtime->run_count = steps;
        runtime->version_offset = version - steps;
    }
    return err;
}
