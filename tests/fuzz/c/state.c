/* Fuzz target: a stream of trained state. Bit 0 of the first byte: its tag, size and checksum are made right. */
#include "medium.h"

static int give(void *context, uint32_t offset, void *to, uint32_t size_bytes)
{
    const stream *from = context;

    FUZZ_HOLDS(offset <= from->size_bytes && size_bytes <= from->size_bytes - offset);
    memcpy(to, from->bytes + offset, size_bytes);
    return 0;
}

static void mend(stream *at)
{
    uint8_t *trailer;

    if (at->size_bytes < POETC_STATE_TRAILER)
        return;
    trailer = at->bytes + at->size_bytes - POETC_STATE_TRAILER;
    memcpy(trailer, "poetc st", 8);
    store_u32(trailer + 8, session.model->state.identity);
    store_u32(trailer + 16, at->size_bytes - POETC_STATE_TRAILER);
    store_u32(trailer + 20, poetc_crc32(0, at->bytes, at->size_bytes - 4u));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static stream given, before, after;
    float loss;
    int err;

    fresh_medium();
    begin_session();
    FUZZ_HOLDS(step(&loss) == POETC_OK && save_state(&before) == POETC_OK);
    given.size_bytes = 0;
    if (size > 1)
        append(&given, data + 1, size - 1 < sizeof given.bytes ? (uint32_t)size - 1u : (uint32_t)sizeof given.bytes);
    if (size > 0 && (data[0] & 1) != 0)
        mend(&given);
    err = poetc_session_load(&session, given.size_bytes, give, &given);
    FUZZ_HOLDS(err <= 0 && save_state(&after) == POETC_OK);
    if (err) /* a refused stream changes nothing */
        FUZZ_HOLDS(after.size_bytes == before.size_bytes && memcmp(after.bytes, before.bytes, after.size_bytes) == 0);
    err = err ? err : step(&loss);
    FUZZ_HOLDS(err <= 0);
    return 0;
}
