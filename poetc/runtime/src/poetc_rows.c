/* Rows of a table on the store, one by one: those that indices name. See poetc_pieces.h.
 *
 * A piece of the table with a checksum of its own is read for each row. The page behind the table has the checksums.
 *
 * A table whose rows move has two slots, as other state has. Version v differs from v - 1 in the rows that its run
 * moved. So the next run brings the slot of v - 1 up to v. It copies the rows that are listed in the page behind the
 * table. Then it writes the rows that it moves.
 *
 * The list of a run is on the store before the first of its rows. Where such a list is there when a run begins, an
 * earlier attempt was cut, and its rows are copied back, too. Where neither list is whole, all rows are copied. Slots
 * of the last run are never written. The checksums follow from those of version v and the rows that move. So a
 * damaged row is found when it is read. */
#include "poetc_crc.h"
#include "poetc_pieces.h"
#include "poetc_instructions.h"

#include <string.h>

/* A frame of its own, so that those of several phases are never on the stack together. */
#define APART __attribute__((noinline)) static

#define ALL UINT32_MAX /* in place of a count: any row may differ */

/* Behind the window of a table: the checksums, and of rows that move their count and numbers. Then come checksums of
 * the parts of each row, old and new. */
typedef struct {
    uint8_t *window, *sums, *list;
    uint32_t *changes;
    uint32_t row, size, listed, length,
        parts; /* bytes of a row and of the table, rows in a list, rows, parts of a row */
    int32_t *index;
    uint32_t begin, end; /* of the block */
} table;

APART void table_of(const streaming *at, const poetc_instruction *instruction, const stream *s, table *t)
{
    const uint32_t units = (uint32_t)at->ints[AXES + AXIS_NUMBERS * s->inner.axis + UNITS];
    uint32_t sums_bytes;

    t->row = (uint32_t)s->inner.unit;
    t->size = (uint32_t)s->pitch;
    t->length = t->size / t->row;
    t->listed = (uint32_t)s->inner.limit;
    t->parts = (t->row - 1u + POETC_SUMMED_BYTES - 1u) / POETC_SUMMED_BYTES + 1u;
    t->window = address_of(at, instruction->refs[s->operand]);
    t->sums = t->window + (units * t->row + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
    sums_bytes = (t->size + POETC_SUMMED_BYTES - 1u) / POETC_SUMMED_BYTES * 4u;
    t->list = t->sums + sums_bytes;
    t->changes = (void *)(t->sums + (sums_bytes + 4u + 4u * t->listed + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN);
    t->index = (void *)address_of(at, instruction->refs[s->rows]);
    t->begin = (uint32_t)at->slice->block[s->inner.axis] * units;
    t->end = t->begin + pieces_of(at, s).bytes / t->row;
}

static uint32_t version_of(const streaming *at)
{
    return at->runtime->run_count + at->runtime->version_offset;
}

static uint32_t slot_of(const streaming *at, uint32_t page, uint32_t stamp)
{
    const poetc_program *program = at->runtime->program;
    const uint32_t slot = program->pages[page].slots & 2u ? stamp & 1u : 0;

    return program->pages[page].first_block + slot * poetc_page_blocks(program, page);
}

static void make_head(uint8_t trailer[POETC_TRAILER], uint32_t page, uint32_t stamp, uint32_t size)
{
    put_u32(trailer, page);
    put_u32(trailer + 4, stamp);
    put_u32(trailer + 8, size);
}

/* Whether the last block of a page, in the buffer, has the trailer of that version. */
static int has_head(const streaming *at, uint32_t page, uint32_t stamp)
{
    uint8_t head[POETC_TRAILER];

    make_head(head, page, stamp, at->runtime->program->pages[page].size_bytes);
    return memcmp(head, at->buffer + at->runtime->program->block_bytes - POETC_TRAILER, 12) == 0;
}

static int read_last_block(const streaming *at, uint32_t page, uint32_t stamp)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t last = slot_of(at, page, stamp) + poetc_page_blocks(at->runtime->program, page) - 1u;

    return driver_code(store->page_in(store->context, last, 1, at->buffer));
}

/* A page, of which the first `keep` bytes stay. All of it is checked. */
APART int read_behind(const streaming *at, uint32_t page, uint32_t stamp, uint8_t *to, uint32_t keep)
{
    const poetc_program *program = at->runtime->program;
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[page].size_bytes, whole = keep / block;
    const uint32_t count = poetc_page_blocks(program, page), first = slot_of(at, page, stamp);
    uint8_t trailer[POETC_TRAILER];
    uint32_t crc, i;

    if (whole > 0) {
        int err = driver_code(store->page_in(store->context, first, whole, to));

        if (err)
            return err;
    }
    make_head(trailer, page, stamp, size);
    crc = poetc_crc32(poetc_crc32(0, trailer, 12), to, whole * block);
    for (i = whole; i < count; i++) {
        const uint32_t from = i * block, used = from >= size ? 0 : size - from < block ? size - from : block;
        int err = driver_code(store->page_in(store->context, first + i, 1, at->buffer));

        if (err)
            return err;
        crc = poetc_crc32(crc, at->buffer, used);
        if (from < keep)
            memcpy(to + from, at->buffer, keep - from < used ? keep - from : used);
    }
    put_u32(trailer + 12, crc);
    return memcmp(trailer, at->buffer + block - POETC_TRAILER, POETC_TRAILER) == 0 ? POETC_OK : POETC_ECORRUPT;
}

APART int write_behind(const streaming *at, uint32_t page, uint32_t stamp, const uint8_t *from)
{
    const poetc_program *program = at->runtime->program;
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[page].size_bytes, whole = size / block;
    const uint32_t count = poetc_page_blocks(program, page), first = slot_of(at, page, stamp);
    uint8_t *trailer = at->buffer + block - POETC_TRAILER;
    uint32_t i;
    int err = whole > 0 ? driver_code(store->page_out(store->context, first, whole, from)) : POETC_OK;

    for (i = whole; i < count && !err; i++) {
        memset(at->buffer, 0, block);
        if (i == whole)
            memcpy(at->buffer, from + whole * block, size % block);
        if (i == count - 1u) {
            make_head(trailer, page, stamp, size);
            put_u32(trailer + 12, poetc_crc32(poetc_crc32(0, trailer, 12), from, size));
        }
        err = driver_code(store->page_out(store->context, first + i, 1, at->buffer));
    }
    return err;
}

static int barrier(const streaming *at)
{
    const poetc_store *store = &at->runtime->config->store;

    return store->sync != NULL ? driver_code(store->sync(store->context)) : POETC_OK;
}

/* The row that an index names, from the front; ALL: there is none. */
static uint32_t place_of(const table *t, int32_t index)
{
    const uint32_t place = index < 0 ? (uint32_t)index + t->length : (uint32_t)index;

    return place < t->length ? place : ALL;
}

/* Where the same row stands first in the list. */
static uint32_t first_of(const table *t, uint32_t k)
{
    const uint8_t *rows = t->list + 4;
    uint32_t first = 0;

    while (get_u32(rows + 4u * first) != get_u32(rows + 4u * k))
        first++;
    return first;
}

/* The next part of a row that lies within one piece with a checksum: its bytes. */
static uint32_t part_of(uint32_t from, uint32_t left)
{
    const uint32_t here = POETC_SUMMED_BYTES - from % POETC_SUMMED_BYTES;

    return here < left ? here : left;
}

/* A row to its place. `held`: the piece in the buffer. `changes`: the CRC of each part is added to these. */
static int read_row(const streaming *at, const stream *s, const table *t, uint32_t place, uint8_t *to, uint32_t *held,
                    uint32_t *changes)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t block = at->runtime->program->block_bytes;
    uint32_t from = place * t->row, left = t->row, here;

    for (; left > 0; to += here, from += here, left -= here) {
        const uint32_t begin = from / POETC_SUMMED_BYTES * POETC_SUMMED_BYTES, rest = t->size - begin;
        const uint32_t bytes = rest < POETC_SUMMED_BYTES ? rest : POETC_SUMMED_BYTES;

        if (begin != *held) {
            int err = driver_code(store->page_in(store->context, first_block(at, s) + begin / block,
                                                 (bytes + block - 1u) / block, at->buffer));

            if (!err && poetc_crc32(0, at->buffer, bytes) != get_u32(t->sums + begin / POETC_SUMMED_BYTES * 4u))
                err = POETC_ECORRUPT;
            if (err)
                return err;
            *held = begin;
        }
        here = part_of(from, left);
        memcpy(to, at->buffer + (from - begin), here);
        if (changes != NULL)
            *changes++ = poetc_crc32(0, to, here);
    }
    return POETC_OK;
}

/* Rows that the indices of a block name, into the window. */
APART int read_named(const streaming *at, const stream *s, const table *t)
{
    uint32_t held = t->size, k;
    int err = POETC_OK;

    if (at->slice->block[0] == 0 && at->slice->block[1] == 0)
        err =
            read_behind(at, (uint32_t)s->page + 1u, version_of(at) * (at->runtime->program->pages[s->page].slots > 1u),
                        t->sums, (uint32_t)(t->list - t->sums));
    for (k = 0; k < t->end - t->begin && !err; k++) {
        const uint32_t place = place_of(t, t->index[k]);

        if (place == ALL)
            return POETC_ERANGE;
        err = read_row(at, s, t, place, t->window + k * t->row, &held, NULL);
    }
    return err;
}

/* Blocks of the table from the slot of the last run to the other one. */
static int copy_blocks(const streaming *at, uint32_t page, uint32_t from, uint32_t end)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t most = POETC_SUMMED_BYTES / at->runtime->program->block_bytes;
    const uint32_t old = slot_of(at, page, version_of(at)), other = slot_of(at, page, version_of(at) + 1u);
    uint32_t count;
    int err = POETC_OK;

    for (; from < end && !err; from += count) {
        count = end - from < most ? end - from : most;
        err = driver_code(store->page_in(store->context, old + from, count, at->buffer));
        if (!err)
            err = driver_code(store->page_out(store->context, other + from, count, at->buffer));
    }
    return err;
}

/* `rows` of a slice is 1 more than the rows of the list that are copied. AGAIN: they are those of an attempt that was
 * cut, and are copied back; then lists are read again. */
#define AGAIN 0x80000000u
#define ROWS_BEGUN UINT32_MAX
#define ALL_COPIED (ROWS_BEGUN - 1u)

/* The next row of the list becomes that of the last run in the other slot. Where any may differ, so do as many as take
 * a piece. */
APART int copy_listed(const streaming *at, uint32_t page, const table *t)
{
    const uint32_t block = at->runtime->program->block_bytes, count = get_u32(t->list), again = at->slice->rows & AGAIN;
    uint32_t k = (at->slice->rows & ~AGAIN) - 1u, from, end = (t->size + block - 1u) / block, next;

    if (count == ALL) {
        from = k;
        next = k + POETC_SUMMED_BYTES / block;
        if (next < end)
            end = next;
        else
            next = ALL;
    } else {
        while (k < count && first_of(t, k) != k)
            k++;
        next = k + 1u < count ? k + 1u : ALL;
        from = k < count ? get_u32(t->list + 4 + 4u * k) * t->row : 0;
        end = k < count ? (from + t->row + block - 1u) / block : 0;
        from /= block;
    }
    at->slice->rows = next != ALL ? again | (next + 1u) : again ? again : ALL_COPIED;
    return copy_blocks(at, page, from, end);
}

/* Reads the list of an attempt that was cut, or that of the last run. The other slot is then one version behind; or any
 * row may differ. */
APART int read_lists(const streaming *at, const stream *s, const table *t)
{
    const uint32_t behind = (uint32_t)s->page + 1u, version = version_of(at);
    const uint32_t size = at->runtime->program->pages[behind].size_bytes;
    int is_known = at->slice->rows != 0, err = POETC_OK; /* then it is that version again */
    uint32_t k;

    for (k = 0; k < t->listed; k++)
        if (place_of(t, t->index[k]) == ALL)
            return POETC_ERANGE;
    if (!is_known) {
        err = read_last_block(at, behind, version + 1u);
        is_known = !err && has_head(at, behind, version - 1u);
        if (!err && has_head(at, behind, version + 1u)) {
            err = read_behind(at, behind, version + 1u, t->sums, size);
            at->slice->rows = AGAIN | 1u;
            if (err != POETC_ECORRUPT)
                return err;
            err = POETC_OK;
        }
    }
    if (!err)
        err = read_behind(at, behind, version, t->sums, size);
    if (!err && !is_known)
        put_u32(t->list, ALL);
    at->slice->rows = 1u;
    return err;
}

/* Before any row moves, the rows of this run are listed. The window of the indices then says where the row that each of
 * them names was named first. */
APART int list_rows(const streaming *at, const stream *s, const table *t)
{
    int err = barrier(at);
    uint32_t k;

    if (err)
        return err;
    put_u32(t->list, t->listed);
    for (k = 0; k < t->listed; k++)
        put_u32(t->list + 4 + 4u * k, place_of(t, t->index[k]));
    err = write_behind(at, (uint32_t)s->page + 1u, version_of(at) + 1u, t->sums);
    if (!err)
        err = barrier(at);
    for (k = 0; k < t->listed; k++)
        t->index[k] = (int32_t)first_of(t, k);
    at->slice->rows = ROWS_BEGUN;
    return err;
}

/* The next part of that. */
static int begin_moving(const streaming *at, const stream *s, const table *t)
{
    if ((at->slice->rows & ~AGAIN) == 0)
        return read_lists(at, s, t);
    return at->slice->rows == ALL_COPIED ? list_rows(at, s, t) : copy_listed(at, (uint32_t)s->page, t);
}

/* The rows of a block that will move, each where it is named first. */
APART int read_old(const streaming *at, const stream *s, const table *t)
{
    uint32_t held = t->size, k;
    int err = POETC_OK;

    for (k = t->begin; k < t->end && !err; k++)
        if (t->index[k] == (int32_t)k)
            err = read_row(at, s, t, get_u32(t->list + 4 + 4u * k), t->window + (k - t->begin) * t->row, &held,
                           t->changes + k * t->parts);
    return err;
}

APART int write_new(const streaming *at, const stream *s, const table *t)
{
    uint32_t k;

    for (k = t->begin; k < t->end; k++) {
        const uint8_t *data = t->window + (k - t->begin) * t->row;
        uint32_t *changes = t->changes + k * t->parts;
        uint32_t from = get_u32(t->list + 4 + 4u * k) * t->row, left = t->index[k] == (int32_t)k ? t->row : 0, here;

        for (; left > 0; data += here, from += here, left -= here) {
            int err;

            here = part_of(from, left);
            err = poetc_write_piece(at, s, from, here, data);
            if (err)
                return err;
            *changes++ ^= poetc_crc32(0, data, here);
        }
    }
    return POETC_OK;
}

/* The checksums of pieces become those of the new version. Returns the difference of the CRC of the whole table. */
APART uint32_t change_sums(const table *t)
{
    uint32_t crc = 0, k;

    for (k = 0; k < t->listed; k++) {
        const uint32_t *changes = t->changes + k * t->parts;
        uint32_t from = get_u32(t->list + 4 + 4u * k) * t->row, left = t->index[k] == (int32_t)k ? t->row : 0, here;

        for (; left > 0; from += here, left -= here, changes++) {
            const uint32_t piece = from / POETC_SUMMED_BYTES, rest = t->size - piece * POETC_SUMMED_BYTES;
            const uint32_t bytes = rest < POETC_SUMMED_BYTES ? rest : POETC_SUMMED_BYTES;
            uint8_t *sum = t->sums + 4u * piece;

            here = part_of(from, left);
            put_u32(sum, get_u32(sum) ^ times(*changes, behind(bytes - from % POETC_SUMMED_BYTES - here)));
            crc ^= times(*changes, behind(t->size - from - here));
        }
    }
    return crc;
}

/* The trailer of the table's new version, in the buffer's last block. `crc`: the difference of that of the data. */
APART int write_trailer(const streaming *at, uint32_t page, const table *t, uint32_t crc)
{
    const poetc_store *store = &at->runtime->config->store;
    const uint32_t version = version_of(at), block = at->runtime->program->block_bytes;
    uint8_t *trailer = at->buffer + block - POETC_TRAILER;
    uint8_t head[POETC_TRAILER];
    int err = read_last_block(at, page, version);

    if (!err && !has_head(at, page, version))
        err = POETC_ECORRUPT;
    if (err)
        return err;
    make_head(head, page, version + 1u, t->size);
    crc ^= get_u32(trailer + 12) ^ times(poetc_crc32(0, trailer, 12) ^ poetc_crc32(0, head, 12), behind(t->size));
    put_u32(head + 12, crc);
    err = read_last_block(at, page, version + 1u);
    if (err)
        return err;
    memcpy(trailer, head, POETC_TRAILER);
    return driver_code(
        store->page_out(store->context,
                        slot_of(at, page, version + 1u) + poetc_page_blocks(at->runtime->program, page) - 1u, 1,
                        at->buffer));
}

/* The new version of both pages. */
static int finish_moving(const streaming *at, const stream *s, const table *t)
{
    const uint32_t page = (uint32_t)s->page, crc = change_sums(t);
    const int err = write_behind(at, page + 1u, version_of(at) + 1u, t->sums);

    return err ? err : write_trailer(at, page, t, crc);
}

int poetc_rows(const void *streaming_instruction, const poetc_instruction *instruction, int32_t phase)
{
    const streaming *at = streaming_instruction;
    const int32_t streams = at->ints[STREAMS];
    int32_t i;
    uint32_t k;
    int err = POETC_OK;

    for (i = 0; i < streams && !err; i++) {
        const stream *s = stream_at(at->ints, i);
        table t;

        if (s->source >= 0)
            continue;
        table_of(at, instruction, s, &t);
        if (s->source == ROWS && phase == READ_ROWS)
            err = read_named(at, s, &t);
        else if (s->source == OLD_ROWS && phase == READ_ROWS) {
            if (t.begin == 0 && at->slice->rows != ROWS_BEGUN) {
                err = begin_moving(at, s, &t);
                return err ? err : POETC_COMPLETE;
            }
            at->slice->rows = 0;
            err = read_old(at, s, &t);
        } else if (s->source == NEW_ROWS && phase == WRITE_ROWS)
            err = write_new(at, s, &t);
        else if (s->source == NEW_ROWS && phase == FINISH_ROWS)
            err = finish_moving(at, s, &t);
    }
    for (i = 0; i < streams && phase == READ_ROWS && !err; i++) { /* once all tables have been read */
        const stream *s = stream_at(at->ints, i);
        table t;

        if (s->source == ROWS) { /* the kernel finds that the rows follow each other */
            table_of(at, instruction, s, &t);
            for (k = 0; k < t.end - t.begin; k++)
                t.index[k] = (int32_t)k;
        }
    }
    return err;
}
