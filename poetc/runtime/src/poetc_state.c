/* The trained state as one stream. See poetc_state.h. */
#include "poetc_state.h"

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

__attribute__((noinline)) static void put_u32(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    to[2] = (uint8_t)(value >> 16);
    to[3] = (uint8_t)(value >> 24);
}

int poetc_state_write(poetc_runtime *runtime, const poetc_state *state, poetc_sink sink, void *context)
{
    static const uint8_t zeros[POETC_ALIGN] = {0};
    uint8_t trailer[POETC_STATE_TRAILER] = {'p', 'o', 'e', 't', 'c', ' ', 's', 't'};
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
    put_u32(trailer + 8, state->identity);
    put_u32(trailer + 12, runtime->run_count);
    put_u32(trailer + 16, to.size_bytes);
    put_u32(trailer + 20, poetc_crc32(to.crc, trailer, POETC_STATE_TRAILER - 4u));
    return sink(context, trailer, POETC_STATE_TRAILER);
}
