/* Fuzz target: the image of a store, with pages of state and checkpoints, as a card brings it to a board.
 *
 * Bit 0 of the first byte: the checksums of checkpoints are made right. Bit 1: those of pages. So mutations reach the
 * code behind a checksum. */
#include "medium.h"

enum { PAGE_TRAILER_BYTES = 16 };

static void mend_pages(void)
{
    const poetc_program *program = session.model->train.program;
    uint32_t i, slot;

    for (i = 0; i < program->page_count; i++)
        for (slot = 0; slot < program->pages[i].slots; slot++) {
            const poetc_page *page = &program->pages[i];
            const uint32_t count = poetc_page_blocks(program, i);
            uint8_t *data = medium + (size_t)(page->first_block + slot * count) * BLOCK_BYTES;
            uint8_t *trailer = data + (size_t)count * BLOCK_BYTES - PAGE_TRAILER_BYTES;

            store_u32(trailer, i);
            store_u32(trailer + 8, page->size_bytes);
            store_u32(trailer + 12, poetc_crc32(poetc_crc32(0, trailer, 12), data, page->size_bytes));
        }
}

static void mend_checkpoints(void)
{
    static const uint8_t tag[8] = {'p', 'o', 'e', 't', 'c', ' ', 'c', '5'};
    const poetc_checkpoint *checkpoint = &session.checkpoint;
    const uint32_t count = poetc_checkpoint_blocks(session.model->train.program);
    uint32_t slot, crc;

    for (slot = 0; slot < checkpoint->slots; slot++) {
        uint8_t *data = medium + (size_t)(checkpoint->first_block + slot * count) * BLOCK_BYTES;
        uint8_t *trailer = data + (size_t)count * BLOCK_BYTES - POETC_CHECKPOINT_TRAILER, identity[4];
        const uint32_t size = (uint32_t)trailer[24] | (uint32_t)trailer[25] << 8;

        trailer[3] &= 0x7f; /* no card lives long enough for its count of saves to wrap */
        store_u32(identity, checkpoint->identity);
        crc = poetc_crc32(poetc_crc32(poetc_crc32(0, tag, sizeof tag), identity, sizeof identity), trailer, 28);
        if (size <= (uint32_t)(trailer - data))
            store_u32(trailer + 28, poetc_crc32(crc, data, size));
    }
}

static int is_same_state(const stream *a, const stream *b)
{
    return a->size_bytes == b->size_bytes && memcmp(a->bytes, b->bytes, a->size_bytes) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static stream before, after;
    float loss;
    int err, i;

    fresh_medium();
    begin_session();
    if (size > 1)
        memcpy(medium, data + 1, size - 1 < sizeof medium ? size - 1 : sizeof medium);
    if (size > 0 && (data[0] & 2) != 0)
        mend_pages();
    if (size > 0 && (data[0] & 1) != 0)
        mend_checkpoints();
    err = poetc_session_resume(&session);
    FUZZ_HOLDS(err <= 0);
    for (i = 0; i < 2 && !err; i++)
        err = step(&loss);
    FUZZ_HOLDS(err <= 0);
    if (err)
        return 0;
    if (save_state(&before) != POETC_OK || poetc_session_checkpoint(&session) != POETC_OK)
        return 0;
    begin_session(); /* the checkpoint that was saved last comes back, whatever lay on the card */
    FUZZ_HOLDS(poetc_session_resume(&session) == POETC_OK);
    FUZZ_HOLDS(save_state(&after) == POETC_OK && is_same_state(&before, &after));
    return 0;
}
