/* Inputs that lie on the store: the caller hands them over piece by piece. See poetc.h and poetc_session.h. */
#include "poetc_bytes.h"
#include "poetc_session.h"

#include <string.h>

/* Stamped as a page of the next run, which is refused to any other. The trailer comes last: a page cut short by an
 * error or a power loss does not have it. */
int poetc_write_input(poetc_runtime *runtime, const poetc_program *program, uint32_t page, poetc_source source,
                      void *context)
{
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[page].size_bytes;
    const uint32_t count = poetc_page_blocks(program, page), first = program->pages[page].first_block;
    uint8_t *buffer = (uint8_t *)runtime->config->arena + program->page_buffer_offset;
    uint8_t trailer[POETC_TRAILER];
    uint32_t done = 0, crc, i;

    put_u32(trailer, page);
    put_u32(trailer + 4, runtime->sequence + 1u);
    put_u32(trailer + 8, size);
    crc = poetc_crc32(0, trailer, 12);
    for (i = 0; i < count; i++) {
        const uint32_t used = size - done < block ? size - done : block;
        int err = used > 0 ? source(context, done, buffer, used) : POETC_OK;

        if (err)
            return err;
        memset(buffer + used, 0, block - used);
        crc = poetc_crc32(crc, buffer, used);
        done += used;
        if (i == count - 1u) {
            put_u32(trailer + 12, crc);
            memcpy(buffer + block - POETC_TRAILER, trailer, POETC_TRAILER);
        }
        err = store->page_out(store->context, first + i, 1, buffer);
        if (err)
            return driver_code(err);
    }
    return POETC_OK;
}

typedef struct {
    poetc_session *session;
    const poetc_entry *entry;
    uint32_t index;
    poetc_source source;
    void *context;
} checked;

static int take_piece(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    const checked *c = context;
    poetc_binding piece = {NULL, 0, size_bytes};
    int err = c->source(c->context, offset, data, size_bytes);

    if (err)
        return err;
    err = poetc_check_inputs(&piece, &c->entry->limits[c->index], 1, data, &c->session->flaw);
    if (err) {
        c->session->flaw.input = c->index;
        c->session->flaw.element += offset / 4u;
    }
    return err;
}

int poetc_session_fill(poetc_session *session, const poetc_entry *entry, uint32_t index, poetc_source source,
                       void *context)
{
    const poetc_binding *input = &entry->inputs[index];
    void *place = poetc_session_input(session, entry, index);
    checked c;

    if (session->is_begun)
        return POETC_EBUSY;
    session->flaw.input = POETC_NONE;
    if (place != NULL)
        return source(context, 0, place, input->size_bytes);
    c.session = session;
    c.entry = entry;
    c.index = index;
    c.source = source;
    c.context = context;
    return poetc_write_input(&session->runtime, entry->program, input->offset / POETC_ALIGN, take_piece, &c);
}
