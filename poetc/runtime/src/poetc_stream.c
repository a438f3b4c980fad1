/* A step in blocks: operands that lie on the store pass through windows in the step's workspace. See poetc_steps.h.
 *
 * The kernel knows nothing of it: it is called once a block, with references into windows. A page that is read is
 * checked whole, its checksum made of the pieces in whatever order they come. A page that is written gets its trailer
 * last, once all that was read has been found whole. So a step that fails, or is cut by a power loss, leaves no page
 * that anybody takes for whole. */
#include "poetc_bytes.h"
#include "poetc_steps.h"

#include <string.h>

#define MOST_STREAMS 12u
#define MOST_REFS 20u
#define MOST_NUMBERS 8 /* of a kernel that gets the block's first unit */
#define PAGE_WRITES 3 /* in place of a source */

/* ints begin with the numbers of references, blocks, streams and of the kernel's own numbers, and the buffer's bytes.
 * There follow the place among the kernel's numbers of the block's first unit, or -1, and the units of a block.
 * Then come a step in units of POETC_ALIGN for each reference, and seven numbers for each stream. The kernel's numbers
 * follow, then those for the last block. The last of the references is the buffer. */
enum { REFS, BLOCKS, STREAMS, NUMBERS, BUFFER, BEGIN, UNITS, STEPS };

/* Rows of a page of `row_bytes`, of which a block has `bytes` each, the last block `last_bytes`. */
typedef struct {
    int32_t operand, page, source, rows, row_bytes, bytes, last_bytes;
} stream;

typedef struct {
    poetc_runtime *runtime;
    uint8_t *buffer;
    uint32_t buffer_bytes;
} streaming;

/* Polynomials over GF(2) modulo that of the CRC, bits reflected: bit 31 is 1. */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0, bit;

    for (bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1u ? b >> 1 ^ 0xedb88320u : b >> 1;
    }
    return product;
}

/* x^(8 count): a CRC times this is that of the same bytes with `count` bytes behind them. */
static uint32_t behind(uint32_t count)
{
    uint32_t result = 0x80000000u, power = 0x00800000u;

    for (; count > 0; count >>= 1) {
        if (count & 1u)
            result = times(result, power);
        power = times(power, power);
    }
    return result;
}

static const stream *stream_at(const int32_t *ints, int32_t index)
{
    return (const void *)(ints + STEPS + ints[REFS] + 7 * index);
}

/* The version that a page must have or gets, and the slot: as page_in and page_out of poetc.c. */
static uint32_t stamp_of(const streaming *at, const stream *s, uint32_t *slot)
{
    const poetc_runtime *runtime = at->runtime;
    uint32_t stamp = runtime->sequence;

    *slot = 0;
    if (s->source == POETC_PAGE_IMAGE)
        return 0;
    if (runtime->program->pages[s->page].slots == 2u) {
        stamp = runtime->run_count + (s->source != POETC_PAGE_LAST_RUN);
        *slot = stamp & 1u;
    }
    return stamp;
}

static uint32_t first_block(const streaming *at, const stream *s)
{
    const poetc_program *program = at->runtime->program;
    uint32_t slot;

    (void)stamp_of(at, s, &slot);
    return program->pages[s->page].first_block + slot * poetc_page_blocks(program, (uint32_t)s->page);
}

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

/* A block of a page into its window, and the CRC of its pieces, moved to their places. */
static int read_block(const streaming *at, const stream *s, uint32_t offset, uint32_t bytes, uint8_t *window,
                      uint32_t *crc)
{
    const uint32_t rows = (uint32_t)s->rows, row_bytes = (uint32_t)s->row_bytes;
    const uint32_t row = rows > 1 ? behind(row_bytes) : 0;
    uint32_t sum = 0, i;

    for (i = 0; i < rows; i++, window += bytes) {
        int err = read_piece(at, s, i * row_bytes + offset, bytes, window);

        if (err)
            return err;
        if (rows == 1) { /* in sequence */
            *crc = poetc_crc32(*crc, window, bytes);
            return POETC_OK;
        }
        sum = times(sum, row) ^ poetc_crc32(0, window, bytes);
    }
    *crc ^= times(sum, behind(row_bytes - offset - bytes));
    return POETC_OK;
}

/* The whole blocks of the store in a window. The rest, of the last window, comes with the trailer. */
static int write_block(const streaming *at, const stream *s, uint32_t offset, uint32_t bytes, const uint8_t *window,
                       uint32_t *crc)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = at->runtime->program->block_bytes, whole = bytes / block;

    *crc = poetc_crc32(*crc, window, bytes);
    if (whole == 0)
        return POETC_OK;
    return driver_code(store->page_out(store->context, first_block(at, s) + offset / block, whole, window));
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

/* The rest of a page that is written, and its trailer. */
static int finish_page(const streaming *at, const stream *s, uint32_t crc, const uint8_t *window)
{
    const poetc_program *program = at->runtime->program;
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[s->page].size_bytes;
    const uint32_t rest = size % block, count = poetc_page_blocks(program, (uint32_t)s->page);
    const uint32_t first = first_block(at, s);
    int err;

    memset(at->buffer, 0, block);
    memcpy(at->buffer, window + (uint32_t)s->last_bytes / block * block, rest);
    if (count - size / block == 2u) {
        err = driver_code(store->page_out(store->context, first + count - 2u, 1, at->buffer));
        if (err)
            return err;
        memset(at->buffer, 0, block);
    }
    head_of(at, s, at->buffer + block - POETC_TRAILER);
    put_u32(at->buffer + block - 4u, crc);
    return driver_code(store->page_out(store->context, first + count - 1u, 1, at->buffer));
}

static uint8_t *window_of(const streaming *at, const poetc_ref *refs, const stream *s)
{
    return (uint8_t *)at->runtime->config->arena + (size_t)(refs[s->operand] >> 1) * POETC_ALIGN;
}

int poetc_stream(poetc_runtime *runtime, const poetc_step *step)
{
    const int32_t *ints = step->ints, count = ints[REFS], blocks = ints[BLOCKS], streams = ints[STREAMS];
    const int32_t *numbers = ints + STEPS + count + 7 * streams;
    uint8_t *arena = runtime->config->arena, head[POETC_TRAILER];
    streaming at = {runtime, arena + (size_t)(step->refs[count] >> 1) * POETC_ALIGN, (uint32_t)ints[BUFFER]};
    poetc_ref refs[MOST_REFS];
    int32_t own[MOST_NUMBERS];
    uint32_t crc[MOST_STREAMS];
    poetc_call call;
    int32_t b, i;
    int err;

    if (count > (int32_t)MOST_REFS || streams > (int32_t)MOST_STREAMS ||
        (ints[BEGIN] >= 0 && ints[NUMBERS] > MOST_NUMBERS))
        return POETC_EINVAL;
    at.buffer[at.buffer_bytes - 1u] = 0; /* so that the memory that is touched does not depend on the pieces */
    memcpy(refs, step->refs, (size_t)count * sizeof refs[0]);
    for (i = 0; i < streams; i++) {
        const stream *s = stream_at(ints, i);

        head_of(&at, s, head);
        crc[i] = poetc_crc32(0, head, 12);
        if (s->rows > 1)
            crc[i] = times(crc[i], behind(runtime->program->pages[s->page].size_bytes));
    }
    call.refs = refs;
    call.floats = step->floats;
    call.arena = arena;
    call.flash = runtime->config->flash;
#ifdef POETC_THREADS
    call.share.part = call.share.parts = 0;
    call.workspace = NULL;
#endif
    for (b = 0; b < blocks; b++) {
        const int is_last = b == blocks - 1;

        for (i = 0; i < streams; i++) {
            const stream *s = stream_at(ints, i);

            if (s->source != PAGE_WRITES) {
                err = read_block(&at, s, (uint32_t)(b * s->bytes), (uint32_t)(is_last ? s->last_bytes : s->bytes),
                                 window_of(&at, refs, s), &crc[i]);
                if (err)
                    return err;
            }
        }
        call.ints = is_last ? numbers + ints[NUMBERS] : numbers;
        if (ints[BEGIN] >= 0) {
            memcpy(own, call.ints, (size_t)ints[NUMBERS] * sizeof own[0]);
            own[ints[BEGIN]] = b * ints[UNITS];
            call.ints = own;
        }
        err = step->kernel(&call);
        if (err)
            return err;
        for (i = 0; i < streams; i++) {
            const stream *s = stream_at(ints, i);

            if (s->source == PAGE_WRITES) {
                err = write_block(&at, s, (uint32_t)(b * s->bytes), (uint32_t)(is_last ? s->last_bytes : s->bytes),
                                  window_of(&at, refs, s), &crc[i]);
                if (err)
                    return err;
            }
        }
        for (i = 0; i < count; i++)
            refs[i] += 2u * (uint32_t)ints[STEPS + i];
    }
    for (i = 0; i < streams; i++) {
        const stream *s = stream_at(ints, i);

        err = s->source != PAGE_WRITES ? check_page(&at, s, crc[i]) : POETC_OK;
        if (err)
            return err;
    }
    for (i = 0; i < streams; i++) {
        const stream *s = stream_at(ints, i);

        err = s->source == PAGE_WRITES ? finish_page(&at, s, crc[i], window_of(&at, step->refs, s)) : POETC_OK;
        if (err)
            return err;
    }
    return POETC_OK;
}
