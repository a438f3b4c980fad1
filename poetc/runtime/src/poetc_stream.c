/* An instruction in blocks: operands that lie on the store pass through windows in the instruction's workspace. See
 * poetc_instructions.h.
 *
 * The kernel knows nothing of it: it is called once a block, with references into windows. A page that is read is
 * checked whole, its checksum made of the pieces in whatever order they come. A page that is written gets its trailer
 * last, once all that was read has been found whole. So an instruction that fails, or is cut by a power loss, leaves no
 * page that anybody takes for whole. */
#include "poetc_bytes.h"
#include "poetc_crc.h"
#include "poetc_pieces.h"
#include "poetc_instructions.h"

#include <string.h>

#ifdef __GNUC__
#pragma weak poetc_rows
#endif

/* A frame of its own, so that those of transfers and of the kernel are never on the stack together. */
#define APART __attribute__((noinline)) static

/* `count` bytes from byte `from` of a page on. Whole blocks go straight to their place where they can. */
static int read_piece(const streaming *at, const stream *s, uint32_t from, uint32_t count, uint8_t *to)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = at->runtime->program->block_bytes, page = first_block(at, s);
    const uint32_t whole = from % block == 0 ? count / block : 0, size = whole * block;
    int err = POETC_OK;

    if (whole > 0)
        err = driver_code(store->page_in(store->context, page + from / block, whole, to));
    if (!err && size < count) {
        const uint32_t begin = (from + size) / block, end = (from + count + block - 1) / block;

        err = driver_code(store->page_in(store->context, page + begin, end - begin, at->buffer));
        if (!err)
            memcpy(to + size, at->buffer + (from + size) % block, count - size);
    }
    return err;
}

/* A block of a page into its window, and the CRC of its pieces, moved to their places. Pieces that follow each other
 * from the beginning of a store's block on are read at once. The buffer gets less than such a block of them. */
static int read_block(const streaming *at, const stream *s, uint8_t *window, uint32_t *crc)
{
    const pieces p = pieces_of(at, s);
    const uint32_t pitch = (uint32_t)s->pitch, row = behind(pitch);
    const uint32_t end = p.first + (p.rows - 1u) * pitch + p.bytes;
    const int together = p.bytes == pitch && p.first % at->runtime->program->block_bytes == 0;
    uint32_t sum = 0, i;
    int err = POETC_OK;

    if (p.rows == 0 || p.bytes == 0)
        return POETC_OK;
    if (together)
        err = read_piece(at, s, p.first, p.rows * p.bytes, window);
    for (i = 0; i < p.rows; i++, window += p.bytes) {
        if (!together)
            err = read_piece(at, s, p.first + i * pitch, p.bytes, window);
        if (err)
            return err;
        if (is_sequence(at, s)) {
            *crc = poetc_crc32(*crc, window + p.old, p.bytes - p.old);
            return POETC_OK;
        }
        sum = times(sum, row) ^ poetc_crc32(0, window + p.old, p.bytes - p.old);
    }
    *crc ^= times(sum, behind(size_of(s) - end));
    return POETC_OK;
}

/* A piece that begins or ends within a block of the store, with the bytes around it as they are there. */
int poetc_write_piece(const streaming *at, const stream *s, uint32_t from, uint32_t count, const uint8_t *data)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = at->runtime->program->block_bytes, page = first_block(at, s);
    const uint32_t begin = from / block, blocks = (from + count + block - 1u) / block - begin;
    int err = POETC_OK;

    if (from % block == 0 && count % block == 0)
        return driver_code(store->page_out(store->context, page + begin, blocks, data));
    if (from % block != 0)
        err = store->page_in(store->context, page + begin, 1, at->buffer);
    if (!err && (from + count) % block != 0 && (blocks > 1u || from % block == 0))
        err = store->page_in(store->context, page + begin + blocks - 1u, 1, at->buffer + (blocks - 1u) * block);
    if (err)
        return driver_code(err);
    memcpy(at->buffer + from % block, data, count);
    return driver_code(store->page_out(store->context, page + begin, blocks, at->buffer));
}

/* A window into its page. Of one that is written in sequence only whole blocks of the store: the rest, of the last
 * window, comes with the trailer. */
static int write_block(const streaming *at, const stream *s, const uint8_t *window, uint32_t *crc)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = at->runtime->program->block_bytes, pitch = (uint32_t)s->pitch, row = behind(pitch);
    const pieces p = pieces_of(at, s);
    const uint32_t end = p.first + (p.rows - 1u) * pitch + p.bytes;
    uint32_t sum = 0, i;

    if (p.rows == 0 || p.bytes == 0)
        return POETC_OK;
    if (is_sequence(at, s)) {
        *crc = poetc_crc32(*crc, window, p.bytes);
        if (p.bytes / block == 0)
            return POETC_OK;
        return driver_code(
            store->page_out(store->context, first_block(at, s) + p.first / block, p.bytes / block, window));
    }
    for (i = 0; i < p.rows; i++, window += p.bytes) {
        int err = poetc_write_piece(at, s, p.first + i * pitch, p.bytes, window);

        if (err)
            return err;
        sum = times(sum, row) ^ poetc_crc32(0, window, p.bytes);
    }
    *crc ^= times(sum, behind(size_of(s) - end));
    return POETC_OK;
}

/* A block of an operand in RAM or flash into its window. */
static void copy_block(const streaming *at, const stream *s, const uint8_t *whole, uint8_t *window)
{
    const pieces p = pieces_of(at, s);
    uint32_t i;

    for (i = 0; i < p.rows; i++, window += p.bytes)
        memcpy(window, whole + p.first + i * (uint32_t)s->pitch, p.bytes);
}

/* A window into an operand in RAM. */
static void copy_back(const streaming *at, const stream *s, uint8_t *whole, const uint8_t *window)
{
    const pieces p = pieces_of(at, s);
    uint32_t i;

    for (i = 0; i < p.rows; i++, window += p.bytes)
        memcpy(whole + p.first + i * (uint32_t)s->pitch, window, p.bytes);
}

static void head_of(const streaming *at, const stream *s, uint8_t trailer[POETC_TRAILER])
{
    uint32_t slot;

    put_u32(trailer, (uint32_t)s->page);
    put_u32(trailer + 4, stamp_of(at, s, &slot));
    put_u32(trailer + 8, at->runtime->program->pages[s->page].size_bytes);
}

/* Whether a page that has been read has the trailer of its bytes. */
static int check_page(const streaming *at, const stream *s, uint32_t crc)
{
    const poetc_program *program = at->runtime->program;
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t last = first_block(at, s) + poetc_page_blocks(program, (uint32_t)s->page) - 1u;
    uint8_t trailer[POETC_TRAILER];
    int err = driver_code(store->page_in(store->context, last, 1, at->buffer));

    if (err)
        return err;
    head_of(at, s, trailer);
    put_u32(trailer + 12, crc);
    return memcmp(trailer, at->buffer + program->block_bytes - POETC_TRAILER, POETC_TRAILER) == 0 ? POETC_OK
                                                                                                  : POETC_ECORRUPT;
}

/* The rest of a page that is written, and its trailer. `window`: with the last block. */
static int finish_page(const streaming *at, const stream *s, uint32_t crc, const uint8_t *window)
{
    const poetc_program *program = at->runtime->program;
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[s->page].size_bytes;
    const uint32_t rest = size % block, count = poetc_page_blocks(program, (uint32_t)s->page);
    const uint32_t first = first_block(at, s), shares = count - size / block == 1u && rest > 0;
    int err;

    memset(at->buffer, 0, block);
    if (is_sequence(at, s)) {
        memcpy(at->buffer, window + pieces_of(at, s).bytes / block * block, rest);
        if (count - size / block == 2u) {
            err = driver_code(store->page_out(store->context, first + count - 2u, 1, at->buffer));
            if (err)
                return err;
            memset(at->buffer, 0, block);
        }
    } else if (shares) { /* its data are there */
        err = driver_code(store->page_in(store->context, first + count - 1u, 1, at->buffer));
        if (err)
            return err;
        memset(at->buffer + rest, 0, block - rest);
    }
    head_of(at, s, at->buffer + block - POETC_TRAILER);
    put_u32(at->buffer + block - 4u, crc);
    return driver_code(store->page_out(store->context, first + count - 1u, 1, at->buffer));
}

static uint8_t *window_of(const streaming *at, const poetc_instruction *instruction, const stream *s)
{
    return address_of(at, instruction->refs[s->operand] + second_window(at, s));
}

static const uint8_t *source_of(const streaming *at, poetc_ref ref)
{
    if (ref & POETC_REF_FLASH)
        return (const uint8_t *)at->runtime->config->flash + (size_t)(ref >> 1) * POETC_ALIGN;
    return address_of(at, ref);
}

/* The CRC of a page before its first byte. */
static uint32_t begin_crc(const streaming *at, const stream *s)
{
    uint8_t head[POETC_TRAILER];
    uint32_t crc;

    head_of(at, s, head);
    crc = poetc_crc32(0, head, 12);
    return is_sequence(at, s) ? crc : times(crc, behind(at->runtime->program->pages[s->page].size_bytes));
}

/* Bring windows that are read up to date. A page that is read once for each outer block must have the same CRC each
 * time. `again` is that of the passes after the first one. */
APART int read_windows(const streaming *at, const poetc_instruction *instruction, uint32_t *crc, uint32_t *again)
{
    const int32_t *ints = at->ints;
    int32_t i, place = ints[REFS] + 1;

    for (i = 0; i < ints[STREAMS]; i++) {
        const stream *s = stream_at(ints, i);
        uint8_t *window = window_of(at, instruction, s);
        const int is_new =
            depends_on(s, 1) || (at->slice->block[1] == 0 && (depends_on(s, 0) || at->slice->block[0] == 0));
        const int repeats = at->slice->block[0] > 0 && !depends_on(s, 0);
        int err = POETC_OK;

        if (s->source == FROM_RAM && is_new && at->parts & OF_KERNEL)
            copy_block(at, s, source_of(at, instruction->refs[place]), window);
        else if (s->source >= 0 && s->source < WRITES && is_new && at->parts & OF_STORE) {
            if (at->slice->block[1] == 0 && repeats)
                again[i] = begin_crc(at, s);
            err = read_block(at, s, window, repeats ? &again[i] : &crc[i]);
            if (!err && repeats && at->slice->block[1] == ints[AXES + AXIS_NUMBERS + BLOCKS] - 1 && again[i] != crc[i])
                err = POETC_ECORRUPT;
        }
        if (err)
            return err;
        place += s->source >= FROM_RAM;
    }
    return POETC_OK;
}

APART int write_windows(const streaming *at, const poetc_instruction *instruction, uint32_t *crc)
{
    const int32_t *ints = at->ints;
    const int is_inner_last = at->slice->block[1] == ints[AXES + AXIS_NUMBERS + BLOCKS] - 1;
    const int is_outer_last = at->slice->block[0] == ints[AXES + BLOCKS] - 1;
    int32_t i, place = ints[REFS] + 1;

    for (i = 0; i < ints[STREAMS]; i++) {
        const stream *s = stream_at(ints, i);
        uint8_t *window = window_of(at, instruction, s);
        int err = POETC_OK;

        if (s->source >= WRITES && ((!depends_on(s, 1) && !is_inner_last) || (!depends_on(s, 0) && !is_outer_last)))
            err = POETC_OK; /* a result that blocks fill, or that a later pass makes: not whole yet */
        else if (s->source == TO_RAM && at->parts & OF_KERNEL)
            copy_back(at, s, address_of(at, instruction->refs[place]), window);
        else if (s->source == WRITES && at->parts & OF_STORE)
            err = write_block(at, s, window, &crc[i]);
        if (err)
            return err;
        place += s->source >= FROM_RAM;
    }
    return POETC_OK;
}

static int32_t third(int32_t block, int32_t blocks)
{
    return block == blocks - 1 ? 2 : block > 0;
}

/* The kernel on the windows of a block. */
APART int call_kernel(const streaming *at, const poetc_instruction *instruction)
{
    const int32_t *ints = at->ints, *axes = ints + AXES;
    const int32_t *lists = ints + STRIDES + 2 * ints[REFS] + STREAM_NUMBERS * ints[STREAMS];
    const int32_t which =
        3 * third(at->slice->block[0], axes[BLOCKS]) + third(at->slice->block[1], axes[AXIS_NUMBERS + BLOCKS]);
    poetc_ref refs[MOST_REFS];
    int32_t own[MOST_NUMBERS], i;
    poetc_call call;

    for (i = 0; i < ints[REFS]; i++) {
        const int32_t *strides = ints + STRIDES + 2 * i;

        refs[i] =
            instruction->refs[i] + 2u * (uint32_t)(at->slice->block[0] * strides[0] + at->slice->block[1] * strides[1]);
    }
    for (i = 0; i < ints[STREAMS]; i++) {
        const stream *s = stream_at(ints, i);

        refs[s->operand] += second_window(at, s);
    }
    call.refs = refs;
    call.ints = lists + ints[NUMBERS] * ints[LISTS + which];
    call.floats = instruction->floats;
    call.arena = at->runtime->config->arena;
    call.flash = at->runtime->config->flash;
#ifdef POETC_THREADS
    call.share.part = call.share.parts = 0;
    call.workspace = NULL;
#endif
    if (ints[BEGIN] >= 0) {
        memcpy(own, call.ints, (size_t)ints[NUMBERS] * sizeof own[0]);
        own[ints[BEGIN]] = at->slice->block[0] * axes[UNITS];
        call.ints = own;
    }
    return instruction->kernel(&call);
}

/* Whether single rows of an operand are read or written. Such an instruction has one window for each operand. */
static int has_tables(const streaming *at)
{
    int32_t i = 0;

    while (i < at->ints[STREAMS] && stream_at(at->ints, i)->source >= 0)
        i++;
    return i < at->ints[STREAMS];
}

/* The next block. It ends with the instruction where it is the last one. POETC_COMPLETE: one more row is copied for it,
 * and it has not run. */
static int run_block(const streaming *at, const poetc_instruction *instruction)
{
    int err = at->slice->rows == 0 ? read_windows(at, instruction, at->slice->crc, at->slice->again) : POETC_OK;

    if (!err && has_tables(at))
        err = poetc_rows(at, instruction, READ_ROWS);
    if (!err)
        err = call_kernel(at, instruction);
    if (!err && has_tables(at))
        err = poetc_rows(at, instruction, WRITE_ROWS);
    return err ? err : write_windows(at, instruction, at->slice->crc);
}

/* Pages that were read have the trailers of their bytes; only then those that were written get theirs. `at` is at the
 * last block, whose windows are there. */
APART int finish(const streaming *at, const poetc_instruction *instruction, const uint32_t *crc)
{
    const int32_t streams = at->ints[STREAMS];
    int32_t k;

    for (k = 0; k < 2 * streams; k++) {
        const stream *s = stream_at(at->ints, k % streams);
        int err = POETC_OK;

        if (k < streams && s->source >= 0 && s->source < WRITES)
            err = check_page(at, s, crc[k]);
        else if (k >= streams && s->source == WRITES)
            err = finish_page(at, s, crc[k - streams], window_of(at, instruction, s));
        if (err)
            return err;
    }
    return POETC_OK;
}

/* Whether the tables of this file have room for the instruction. */
static int has_room(const int32_t *ints)
{
    return ints[REFS] <= (int32_t)MOST_REFS && ints[STREAMS] <= POETC_STREAMS &&
           (ints[BEGIN] < 0 || ints[NUMBERS] <= MOST_NUMBERS);
}

/* Before the first block. */
static void begin(const streaming *at, poetc_slice *slice)
{
    int32_t k;

    at->buffer[at->ints[BUFFER] - 1] = 0; /* so that the memory that is touched does not depend on the pieces */
    slice->block[0] = slice->block[1] = 0;
    slice->rows = 0;
    for (k = 0; k < at->ints[STREAMS]; k++) {
        const stream *s = stream_at(at->ints, k);

        slice->crc[k] = slice->again[k] = s->source < FROM_RAM ? begin_crc(at, s) : 0;
    }
}

int poetc_stream(poetc_runtime *runtime, const poetc_instruction *instruction, poetc_slice *slice)
{
    const int32_t *ints = instruction->ints;
    const int32_t outer = ints[AXES + BLOCKS], inner = ints[AXES + AXIS_NUMBERS + BLOCKS];
    const int is_whole = slice == NULL;
    poetc_slice own;
    streaming at = {runtime, ints, NULL, NULL, OF_STORE | OF_KERNEL};
    int err;

    if (!has_room(ints))
        return POETC_EINVAL;
    if (is_whole) {
        own.is_within = 0;
        slice = &own;
    }
    at.slice = slice;
    at.buffer = address_of(&at, instruction->refs[ints[REFS]]);
    if (!slice->is_within)
        begin(&at, slice);
    do {
        err = run_block(&at, instruction);
        slice->is_within = err == POETC_COMPLETE;
        if (slice->is_within) {
            err = POETC_OK;
            continue;
        }
        slice->is_within = !err && (slice->block[0] < outer - 1 || slice->block[1] < inner - 1);
        if (slice->is_within && ++slice->block[1] == inner) {
            slice->block[1] = 0;
            slice->block[0]++;
        }
    } while (is_whole && slice->is_within);
    if (!err && !slice->is_within)
        err = finish(&at, instruction, slice->crc);
    return err || slice->is_within || !has_tables(&at) ? err : poetc_rows(&at, instruction, FINISH_ROWS);
}

static void go_to(poetc_slice *slice, int32_t block, int32_t inner)
{
    slice->block[0] = block / inner;
    slice->block[1] = block % inner;
}

/* All transfers. Those of a block wait until the kernel is done with the block two before, whose window they get. */
static int transfer_blocks(const streaming *at, const poetc_instruction *instruction, poetc_slice *slice,
                           const poetc_half *half)
{
    const int32_t inner = at->ints[AXES + AXIS_NUMBERS + BLOCKS], count = at->ints[AXES + BLOCKS] * inner;
    int32_t k;
    int err = POETC_OK;

    for (k = 0; k < count + 2 && !err; k++) {
        if (k >= 2) {
            if (!half->wait(half->context, (uint32_t)k - 1u))
                return POETC_COMPLETE;
            go_to(slice, k - 2, inner);
            err = write_windows(at, instruction, slice->crc);
        }
        if (k < count && !err) {
            go_to(slice, k, inner);
            err = read_windows(at, instruction, slice->crc, slice->again);
            if (!err)
                half->done(half->context, (uint32_t)k + 1u);
        }
    }
    if (!err)
        err = finish(at, instruction, slice->crc);
    if (!err)
        half->done(half->context, (uint32_t)count + 1u);
    return err;
}

/* All kernels, each once its windows have been read. The instruction is over once all transfers are. */
static int compute_blocks(const streaming *at, const poetc_instruction *instruction, poetc_slice *slice,
                          const poetc_half *half)
{
    const int32_t inner = at->ints[AXES + AXIS_NUMBERS + BLOCKS], count = at->ints[AXES + BLOCKS] * inner;
    int32_t k;

    slice->rows = 0;
    for (k = 0; k < count; k++) {
        int err;

        if (!half->wait(half->context, (uint32_t)k + 1u))
            return POETC_COMPLETE;
        go_to(slice, k, inner);
        err = run_block(at, instruction);
        if (err)
            return err;
        half->done(half->context, (uint32_t)k + 1u);
    }
    half->done(half->context, (uint32_t)count + 1u);
    return half->wait(half->context, (uint32_t)count + 1u) ? POETC_OK : POETC_COMPLETE;
}

int poetc_stream_half(poetc_runtime *runtime, const poetc_instruction *instruction, const poetc_half *half)
{
    poetc_slice own;
    streaming at = {runtime, instruction->ints, NULL, &own, half->is_of_store ? OF_STORE : OF_KERNEL};

    if (!has_room(instruction->ints))
        return POETC_EINVAL;
    at.buffer = address_of(&at, instruction->refs[instruction->ints[REFS]]);
    if (half->is_of_store) {
        begin(&at, &own);
        return transfer_blocks(&at, instruction, &own, half);
    }
    return compute_blocks(&at, instruction, &own, half);
}
