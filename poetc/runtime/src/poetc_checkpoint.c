/* Checkpoints of the training state. See poetc_checkpoint.h.
 *
 * A slot is the data, zeros, and a trailer at the end of its last block. The data are the regions of the state, one
 * behind the other, and the caller's words. The trailer has version (complete runs), sequence, records and their
 * checksum, size, and a CRC-32 over a tag, the model's identity, these five, the data. Version v goes to slot v mod
 * slots; the trailer is in the block that is written last. Nothing says which slot is the newest: the versions do, so
 * that there is no third place that could be torn.
 */
#include "poetc_checkpoint.h"
#include "poetc_bytes.h"

#include <string.h>

static const uint8_t tag[8] = {'p', 'o', 'e', 't', 'c', ' ', 'c', '3'}; /* tells a checkpoint from a page */

enum { SIZE_AT = 16, CRC_AT = 20 };

static int check(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    const poetc_store *store = &runtime->config->store;

    if (checkpoint->slots < 2u || checkpoint->buffer == NULL || store->page_out == NULL || store->page_in == NULL)
        return POETC_EINVAL;
    return POETC_OK;
}

static int barrier(const poetc_store *store)
{
    return store->sync != NULL ? driver_code(store->sync(store->context)) : POETC_OK;
}

static uint32_t data_bytes(const poetc_program *program)
{
    uint32_t size_bytes = 4u * POETC_CHECKPOINT_WORDS, i;

    for (i = 0; i < program->region_count; i++)
        size_bytes += program->regions[i].size_bytes;
    return size_bytes;
}

/* Where byte `offset` of the data lies, and how many bytes from there lie in one piece. */
static uint8_t *piece(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint, uint32_t offset,
                      uint32_t *length)
{
    const poetc_program *program = runtime->program;
    uint32_t i;

    for (i = 0; i < program->region_count; i++) {
        const poetc_region *region = &program->regions[i];

        if (offset < region->size_bytes) {
            *length = region->size_bytes - offset;
            return (uint8_t *)runtime->config->arena + region->place + offset;
        }
        offset -= region->size_bytes;
    }
    *length = 4u * POETC_CHECKPOINT_WORDS - offset;
    return (uint8_t *)checkpoint->words + offset;
}

static uint32_t crc_of_data(uint32_t crc, const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    const uint32_t size = data_bytes(runtime->program);
    uint32_t done, length;

    for (done = 0; done < size; done += length) {
        const uint8_t *data = piece(runtime, checkpoint, done, &length);

        crc = poetc_crc32(crc, data, length);
    }
    return crc;
}

uint32_t poetc_checkpoint_blocks(const poetc_program *program)
{
    return (data_bytes(program) + POETC_CHECKPOINT_TRAILER + program->block_bytes - 1u) / program->block_bytes;
}

/* CRC of the tag, the model's identity and the trailer's five words; that of the data is added to it. */
static uint32_t begin_crc(const poetc_checkpoint *checkpoint, const uint8_t *trailer)
{
    uint8_t identity[4];

    put_u32(identity, checkpoint->identity);
    return poetc_crc32(poetc_crc32(poetc_crc32(0, tag, sizeof tag), identity, sizeof identity), trailer,
                       POETC_CHECKPOINT_TRAILER - 4u);
}

/* Write the data, whole blocks from where they lie, the others through the buffer, in which the rest stays. */
static int write_data(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint, uint32_t first, uint32_t size)
{
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = runtime->program->block_bytes;
    uint8_t *buffer = checkpoint->buffer;
    uint32_t done, length;
    int err = POETC_OK;

    memset(buffer, 0, block);
    for (done = 0; done < size && !err; done += length) {
        const uint8_t *data = piece(runtime, checkpoint, done, &length);
        const uint32_t used = done % block;

        if (used == 0 && length >= block) {
            err = driver_code(store->page_out(store->context, first + done / block, length / block, data));
            length -= length % block;
            continue;
        }
        if (length > block - used)
            length = block - used;
        memcpy(buffer + used, data, length);
        if (used + length == block) {
            err = driver_code(store->page_out(store->context, first + done / block, 1, buffer));
            memset(buffer, 0, block);
        }
    }
    return err;
}

static int save(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = data_bytes(program), count = poetc_checkpoint_blocks(program);
    const uint32_t first = checkpoint->first_block + runtime->run_count % checkpoint->slots * count;
    uint8_t *buffer = checkpoint->buffer, *trailer = buffer + block - POETC_CHECKPOINT_TRAILER;
    int err = write_data(runtime, checkpoint, first, size);

    if (!err && count - size / block == 2u) { /* the trailer has no room beside the rest of the data */
        err = driver_code(store->page_out(store->context, first + size / block, 1, buffer));
        memset(buffer, 0, block);
    }
    if (err)
        return err;
    put_u32(trailer, runtime->run_count);
    put_u32(trailer + 4, runtime->sequence);
    put_u32(trailer + 8, checkpoint->records);
    put_u32(trailer + 12, checkpoint->records_crc);
    put_u32(trailer + SIZE_AT, size);
    put_u32(trailer + CRC_AT, crc_of_data(begin_crc(checkpoint, trailer), runtime, checkpoint));
    err = barrier(store); /* the trailer vouches for pages of this run, too, which have no other */
    if (!err)
        err = driver_code(store->page_out(store->context, first + count - 1u, 1, buffer));
    return err ? err : barrier(store); /* the next bytes overwrite the version before */
}

int poetc_checkpoint_save(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    int err = check(runtime, checkpoint);

    return err ? err : save(runtime, checkpoint);
}

/* Read the trailer of a slot into the buffer. 0, POETC_ENOENT where it cannot be one of ours, or the driver's code. */
static int read_trailer(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint, uint32_t slot)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t count = poetc_checkpoint_blocks(program);
    uint8_t *buffer = checkpoint->buffer, *trailer = buffer + program->block_bytes - POETC_CHECKPOINT_TRAILER;
    int err =
        driver_code(store->page_in(store->context, checkpoint->first_block + (slot + 1u) * count - 1u, 1, buffer));

    if (err)
        return err;
    if (get_u32(trailer + SIZE_AT) != data_bytes(program) || get_u32(trailer) % checkpoint->slots != slot)
        return POETC_ENOENT;
    return POETC_OK;
}

/* Read the data of the slot whose trailer is in the buffer; POETC_ENOENT if its checksum does not hold. */
static int read_data(poetc_runtime *runtime, poetc_checkpoint *checkpoint, uint32_t slot)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = data_bytes(program);
    const uint32_t first = checkpoint->first_block + slot * poetc_checkpoint_blocks(program);
    uint8_t *buffer = checkpoint->buffer, trailer[POETC_CHECKPOINT_TRAILER];
    uint32_t done, length;

    memcpy(trailer, buffer + block - POETC_CHECKPOINT_TRAILER, POETC_CHECKPOINT_TRAILER);
    for (done = 0; done < size; done += length) {
        uint8_t *data = piece(runtime, checkpoint, done, &length);
        const uint32_t used = done % block, whole = used == 0 ? length / block : 0;
        int err = POETC_OK;

        if (used == 0)
            err = driver_code(store->page_in(store->context, first + done / block, whole > 0 ? whole : 1u,
                                             whole > 0 ? data : buffer));
        if (err)
            return err;
        if (whole > 0) {
            length = whole * block;
            continue;
        }
        if (length > block - used)
            length = block - used;
        memcpy(data, buffer + used, length);
    }
    if (get_u32(trailer + CRC_AT) != crc_of_data(begin_crc(checkpoint, trailer), runtime, checkpoint))
        return POETC_ENOENT;
    runtime->run_count = get_u32(trailer);
    runtime->sequence = get_u32(trailer + 4) + 1u; /* pages of the run that was cut carry the next one */
    checkpoint->records = get_u32(trailer + 8);
    checkpoint->records_crc = get_u32(trailer + 12);
    return POETC_OK;
}

/* From the newest trailer to the oldest, until one has its data. */
static int load(poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    const uint8_t *trailer =
        (const uint8_t *)checkpoint->buffer + runtime->program->block_bytes - POETC_CHECKPOINT_TRAILER;
    uint32_t slot, below = UINT32_MAX;

    for (;;) {
        uint32_t newest = 0, newest_slot = checkpoint->slots;
        int err;

        for (slot = 0; slot < checkpoint->slots; slot++) {
            err = read_trailer(runtime, checkpoint, slot);
            if (err && err != POETC_ENOENT)
                return err;
            if (!err && get_u32(trailer) < below && (newest_slot == checkpoint->slots || get_u32(trailer) > newest)) {
                newest = get_u32(trailer);
                newest_slot = slot;
            }
        }
        if (newest_slot == checkpoint->slots)
            return POETC_ENOENT;
        err = read_trailer(runtime, checkpoint, newest_slot);
        if (!err)
            err = read_data(runtime, checkpoint, newest_slot);
        if (err != POETC_ENOENT)
            return err;
        below = newest;
    }
}

int poetc_checkpoint_load(poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    int err = check(runtime, checkpoint);

    return err ? err : load(runtime, checkpoint);
}
