/* Checkpoints of the training state. See poetc_checkpoint.h.
 *
 * A slot is the data, zeros, and a trailer at the end of its last block. The data are the regions of the state, one
 * behind the other, and the caller's words. The trailer has the number of the save, version offset, complete runs,
 * sequence, records and their checksum, size, and a CRC-32. That covers a tag, the state's identity, the words before,
 * and the data. The trailer is in the block that is written last. Saves take the slots in turn, beginning behind the
 * newest whole one. Nothing says which slot is the newest: the numbers of the saves do, so that there is no third place
 * that could be torn.
 *
 * Checkpoints of older runtimes, with state in the order of its places, are passed over; poetc export reads them.
 */
#include "poetc_checkpoint.h"
#include "poetc_bytes.h"

#include <string.h>

static const uint8_t tag[8] = {'p', 'o', 'e', 't', 'c', ' ', 'c', '5'}; /* tells a checkpoint from a page */

enum { SAVE_AT = 0, OFFSET_AT = 4, RUNS_AT = 8, SEQUENCE_AT = 12, RECORDS_AT = 16, RECORDS_CRC_AT = 20 };
enum { SIZE_AT = 24, CRC_AT = 28 };

static int check(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    const poetc_store *store = &runtime->config->store;
    const poetc_program *program = runtime->program;
    const uint32_t end = checkpoint->first_block + checkpoint->slots * poetc_checkpoint_blocks(program);

    if (program->page_count > 0 && checkpoint->first_block < program->pages[0].first_block &&
        end > program->pages[0].first_block) /* pages begin with the first one */
        return POETC_EINVAL;
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

/* CRC of the tag, the identity of the state and the trailer's words before it; that of the data is added to it. */
static uint32_t begin_crc(const poetc_checkpoint *checkpoint, const uint8_t *trailer)
{
    uint8_t identity[4];

    put_u32(identity, checkpoint->identity);
    return poetc_crc32(poetc_crc32(poetc_crc32(0, tag, sizeof tag), identity, sizeof identity), trailer, CRC_AT);
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

static uint8_t *trailer_in(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    return (uint8_t *)checkpoint->buffer + runtime->program->block_bytes - POETC_CHECKPOINT_TRAILER;
}

static uint32_t first_block_of(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint, uint32_t slot)
{
    return checkpoint->first_block + slot * poetc_checkpoint_blocks(runtime->program);
}

/* The number of the save in a trailer, and the slot. */
typedef struct age {
    uint32_t save, slot;
} age;

static int is_newer(const age *a, const age *b)
{
    return a->save != b->save ? a->save > b->save : a->slot > b->slot;
}

/* Read the trailer of a slot into the buffer. 0, POETC_ENOENT where it cannot be one of ours, or the driver's code. */
static int read_trailer(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint, uint32_t slot)
{
    const poetc_store *store = &runtime->config->store;
    const uint32_t last = first_block_of(runtime, checkpoint, slot + 1u) - 1u;
    int err = driver_code(store->page_in(store->context, last, 1, checkpoint->buffer));

    if (!err && get_u32(trailer_in(runtime, checkpoint) + SIZE_AT) != data_bytes(runtime->program))
        err = POETC_ENOENT;
    return err;
}

/* Read the data of a slot with that trailer, to their place or, without `keeps`, block after block to the buffer alone.
 * POETC_ENOENT if the checksum does not hold. */
static int read_data(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint, uint32_t slot,
                     const uint8_t *trailer, int keeps)
{
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = runtime->program->block_bytes, size = data_bytes(runtime->program);
    const uint32_t first = first_block_of(runtime, checkpoint, slot);
    uint8_t *buffer = checkpoint->buffer;
    uint32_t crc = begin_crc(checkpoint, trailer), done, length;

    for (done = 0; done < size; done += length) {
        uint8_t *data = piece(runtime, checkpoint, done, &length);
        const uint32_t used = done % block, whole = keeps && used == 0 ? length / block : 0;
        int err = POETC_OK;

        if (used == 0)
            err = driver_code(store->page_in(store->context, first + done / block, whole > 0 ? whole : 1u,
                                             whole > 0 ? data : buffer));
        if (err)
            return err;
        if (whole > 0) {
            length = whole * block;
        } else {
            if (length > block - used)
                length = block - used;
            if (keeps)
                memcpy(data, buffer + used, length);
            else
                data = buffer + used;
        }
        crc = poetc_crc32(crc, data, length);
    }
    return get_u32(trailer + CRC_AT) == crc ? POETC_OK : POETC_ENOENT;
}

/* Find the newest whole slot that is older than `below`, and copy its trailer. With `keeps`, its data are then in their
 * place. A slot that cannot be read is none; the driver's code is returned only where no slot is whole. */
static int find(const poetc_runtime *runtime, poetc_checkpoint *checkpoint, age below, uint8_t *trailer, int keeps)
{
    const uint8_t *found = trailer_in(runtime, checkpoint);
    int result = POETC_ENOENT;

    for (;;) {
        age newest = {0, checkpoint->slots}, one;
        int err;

        for (one.slot = 0; one.slot < checkpoint->slots; one.slot++) {
            err = read_trailer(runtime, checkpoint, one.slot);
            one.save = get_u32(found + SAVE_AT);
            if (err && err != POETC_ENOENT)
                result = err;
            if (!err && is_newer(&below, &one) && (newest.slot == checkpoint->slots || is_newer(&one, &newest))) {
                newest = one;
                memcpy(trailer, found, POETC_CHECKPOINT_TRAILER);
            }
        }
        if (newest.slot == checkpoint->slots)
            return result;
        err = read_data(runtime, checkpoint, newest.slot, trailer, keeps);
        if (!err) {
            /* Higher than that of any slot that cannot be read, should it be readable again some day. */
            checkpoint->saves = newest.save + checkpoint->slots - 1u;
            checkpoint->next_slot = (newest.slot + 1u) % checkpoint->slots;
            checkpoint->version = get_u32(trailer + RUNS_AT) + get_u32(trailer + OFFSET_AT);
            return POETC_OK;
        }
        if (err != POETC_ENOENT)
            result = err;
        below = newest;
    }
}

static const age any_age = {UINT32_MAX, UINT32_MAX};

/* Stamps go on beyond those of all pages on the store: runs that a cut, a rollback or a format undid have left some. So
 * none of them passes for a page that a bad store did not write. */
static void pass_stamps(poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint8_t *head = trailer_in(runtime, checkpoint) + POETC_CHECKPOINT_TRAILER - POETC_TRAILER;
    uint32_t page;

    for (page = 0; page < program->page_count; page++) {
        const uint32_t end = program->pages[page].first_block + poetc_page_blocks(program, page);

        if (program->pages[page].slots == 1u && !store->page_in(store->context, end - 1u, 1, checkpoint->buffer) &&
            get_u32(head) == page && get_u32(head + 8) == program->pages[page].size_bytes &&
            get_u32(head + 4) > runtime->sequence)
            runtime->sequence = get_u32(head + 4);
    }
}

static void take_trailer(poetc_runtime *runtime, poetc_checkpoint *checkpoint, const uint8_t *trailer)
{
    runtime->version_offset = get_u32(trailer + OFFSET_AT);
    runtime->run_count = get_u32(trailer + RUNS_AT);
    if (runtime->sequence <= get_u32(trailer + SEQUENCE_AT))
        runtime->sequence = get_u32(trailer + SEQUENCE_AT) + 1u; /* pages of the run that was cut carry the next one */
    checkpoint->records = get_u32(trailer + RECORDS_AT);
    checkpoint->records_crc = get_u32(trailer + RECORDS_CRC_AT);
}

static int save(const poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = data_bytes(program), count = poetc_checkpoint_blocks(program);
    const uint32_t first = first_block_of(runtime, checkpoint, checkpoint->next_slot);
    uint8_t *trailer = trailer_in(runtime, checkpoint);
    int err = write_data(runtime, checkpoint, first, size);

    if (!err && count - size / block == 2u) { /* the trailer has no room beside the rest of the data */
        err = driver_code(store->page_out(store->context, first + size / block, 1, checkpoint->buffer));
        memset(checkpoint->buffer, 0, block);
    }
    if (err)
        return err;
    put_u32(trailer + SAVE_AT, checkpoint->saves + 1u);
    put_u32(trailer + OFFSET_AT, runtime->version_offset);
    put_u32(trailer + RUNS_AT, runtime->run_count);
    put_u32(trailer + SEQUENCE_AT, runtime->sequence);
    put_u32(trailer + RECORDS_AT, checkpoint->records);
    put_u32(trailer + RECORDS_CRC_AT, checkpoint->records_crc);
    put_u32(trailer + SIZE_AT, size);
    put_u32(trailer + CRC_AT, crc_of_data(begin_crc(checkpoint, trailer), runtime, checkpoint));
    err = barrier(store); /* the trailer vouches for pages of this run, too, which have no other */
    if (!err)
        err = driver_code(store->page_out(store->context, first + count - 1u, 1, checkpoint->buffer));
    return err ? err : barrier(store); /* the next bytes overwrite the version before */
}

int poetc_checkpoint_save(const poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    uint8_t trailer[POETC_CHECKPOINT_TRAILER];
    int err = check(runtime, checkpoint);

    if (err)
        return err;
    if (checkpoint->saves == 0) /* nothing was loaded: which slot must not be touched? */
        (void)find(runtime, checkpoint, any_age, trailer, 0);
    err = save(runtime, checkpoint);
    if (!err) { /* else the next save takes the same slot: the others are whole */
        checkpoint->saves++;
        checkpoint->version = runtime->run_count + runtime->version_offset;
        checkpoint->next_slot = (checkpoint->next_slot + 1u) % checkpoint->slots;
    }
    return err;
}

int poetc_checkpoint_load(poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    uint8_t trailer[POETC_CHECKPOINT_TRAILER];
    int err = check(runtime, checkpoint);

    if (err)
        return err;
    pass_stamps(runtime, checkpoint);
    err = find(runtime, checkpoint, any_age, trailer, 1);
    if (!err)
        take_trailer(runtime, checkpoint, trailer);
    return err;
}

/* Whether the pages of the state are whole, as of the version that the runtime has. */
static int check_pages(poetc_runtime *runtime)
{
    const poetc_program *program = runtime->program;
    uint32_t page;
    int err = POETC_OK;

    for (page = 0; page < program->page_count && !err; page++)
        if (program->pages[page].slots & 2u)
            err = poetc_read_state_page(runtime, page, NULL, NULL);
    return err;
}

/* Pages of the undone version are none: the next run writes that version, too, perhaps with other data. */
static int void_undone_pages(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint)
{
    const poetc_program *program = runtime->program;
    const uint32_t slot = (runtime->run_count + runtime->version_offset + 1u) & 1u;
    uint32_t i;
    int err = POETC_OK;

    for (i = 0; i < program->page_count && !err; i++) {
        const uint32_t end = program->pages[i].first_block + (slot + 1u) * poetc_page_blocks(program, i);

        if (program->pages[i].slots & 2u)
            err = driver_code(
                runtime->config->store.page_out(runtime->config->store.context, end - 1u, 1, checkpoint->buffer));
    }
    return err;
}

int poetc_checkpoint_rollback(poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    const poetc_store *store = &runtime->config->store;
    uint8_t trailer[POETC_CHECKPOINT_TRAILER];
    age newest = {0, 0};
    uint32_t saves;
    int err = poetc_checkpoint_load(runtime, checkpoint);

    if (err)
        return err;
    saves = checkpoint->saves;
    newest.slot = (checkpoint->next_slot + checkpoint->slots - 1u) % checkpoint->slots;
    err = read_trailer(runtime, checkpoint, newest.slot);
    newest.save = get_u32(trailer_in(runtime, checkpoint) + SAVE_AT);
    if (!err)
        err = find(runtime, checkpoint, newest, trailer, 1);
    if (!err) {
        take_trailer(runtime, checkpoint, trailer);
        err = check_pages(runtime);
    }
    if (!err) {
        checkpoint->saves = saves; /* the next save is newer than the one that goes */
        memset(checkpoint->buffer, 0, runtime->program->block_bytes);
        err = driver_code(store->page_out(store->context, first_block_of(runtime, checkpoint, newest.slot + 1u) - 1u, 1,
                                          checkpoint->buffer));
        if (!err)
            err = barrier(store);
        if (!err)
            err = void_undone_pages(runtime, checkpoint);
        return err ? err : barrier(store);
    }
    {
        const int again = poetc_checkpoint_load(runtime, checkpoint); /* as it was */

        return again ? again : err;
    }
}
int poetc_checkpoint_erase(const poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    const poetc_store *store = &runtime->config->store;
    const uint32_t last = poetc_checkpoint_blocks(runtime->program) - 1u;
    uint32_t slot;
    int err = check(runtime, checkpoint);

    if (err)
        return err;
    memset(checkpoint->buffer, 0, runtime->program->block_bytes);
    for (slot = 0; slot < checkpoint->slots && !err; slot++) /* the block of the trailer */
        err = driver_code(
            store->page_out(store->context, first_block_of(runtime, checkpoint, slot) + last, 1, checkpoint->buffer));
    checkpoint->saves = checkpoint->next_slot = checkpoint->version = 0;
    return err ? err : barrier(store);
}
