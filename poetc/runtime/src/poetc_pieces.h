/* An instruction in blocks: its numbers, and the pieces of its operands that a block has. For poetc_stream.c and
 * poetc_rows.c.
 */
#ifndef POETC_PIECES_H
#define POETC_PIECES_H

#include "poetc_bytes.h"

#define MOST_REFS 16u
#define MOST_NUMBERS 8 /* of a kernel that gets the block's first unit */

/* In place of a source. ROWS: of a table, rows that indices name. OLD_ROWS, NEW_ROWS: those that an instruction moves,
 * in the slot of the last run and in the other one. */
enum { ROWS = -1, OLD_ROWS = -2, NEW_ROWS = -3, WRITES = 3, FROM_RAM = 4, TO_RAM = 5 };

/* ints begin with the numbers of references, streams and of the kernel's own numbers, and the buffer's bytes. There
 * follows the place among the kernel's numbers of the block's first unit, or -1. For the outer and the inner axis come
 * blocks, units of a block, and units. Nine numbers say which list of the kernel's numbers a block has: a first one,
 * one in between or a last one along each axis. Then come two strides in units of POETC_ALIGN for each reference, the
 * streams, and the lists. The references are those of the operands, of the kernel's workspace if there is one, and of
 * the buffer. Those of operands in RAM that have windows follow, in the order of their streams. */
enum { REFS, STREAMS, NUMBERS, BUFFER, BEGIN, AXES, LISTS = AXES + 6, STRIDES = LISTS + 9 };
enum { BLOCKS, UNITS, EXTENT, AXIS_NUMBERS };

/* The rows of an operand that units of an axis need. The first block begins with row 0, the last one ends with the last
 * row. No axis: -1. */
typedef struct {
    int32_t axis, limit, mul, div, low, high, unit; /* unit: bytes */
} dimension;

/* A page has rows of `pitch` bytes: `rows` of them, or as many for each row of the outer dimension. A block has of each
 * row the piece that the inner dimension names, or all. A table has `pitch` bytes, and rows of `inner.unit` bytes.
 * `rows` is the operand with its indices then, and the inner dimension says how many of them a block has. `second`:
 * how far behind its window it has another one, in units of POETC_ALIGN; 0: it has none. Blocks go to both in turn. */
typedef struct {
    int32_t operand, page, source, rows, pitch, second;
    dimension outer, inner;
} stream;
#define STREAM_NUMBERS ((int32_t)(sizeof(stream) / sizeof(int32_t)))

/* A block of a stream: pieces, bytes of each, and where the first one begins. `old`: bytes of each that were in the
 * block before. */
typedef struct {
    uint32_t rows, bytes, first, old;
} pieces;

typedef struct {
    poetc_runtime *runtime;
    const int32_t *ints;
    uint8_t *buffer;
    poetc_slice *slice; /* with the number of the block along each axis */
    uint32_t parts;     /* of a block that are done here, as follows */
} streaming;

enum { OF_STORE = 1, OF_KERNEL = 2 }; /* its transfers; its kernel, and copies within RAM */

/* Rows of the tables of an instruction: read those of a block, write those that it has moved, or finish all that is
 * written. Before the first row moves, others are copied. Reading returns POETC_COMPLETE where it has done a part of
 * that. `at`: a streaming. Only programs with tables link its file. */
enum { READ_ROWS, WRITE_ROWS, FINISH_ROWS };
int poetc_rows(const void *at, const poetc_instruction *instruction, int32_t phase);

/* A piece of a page that begins or ends within a block of the store, with the bytes around it as they are there. */
int poetc_write_piece(const streaming *at, const stream *s, uint32_t from, uint32_t count, const uint8_t *data);

POETC_MAY_BE_UNUSED static const stream *stream_at(const int32_t *ints, int32_t index)
{
    return (const void *)(ints + STRIDES + 2 * ints[REFS] + STREAM_NUMBERS * index);
}

POETC_MAY_BE_UNUSED static int32_t clip(int32_t value, int32_t most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

POETC_MAY_BE_UNUSED static int32_t floor_of(int32_t value, int32_t by)
{
    return value >= 0 ? value / by : -((by - 1 - value) / by);
}

/* The first row, and the one behind the last, of a block. */
POETC_MAY_BE_UNUSED static int32_t first_row(const streaming *at, const dimension *d, int32_t block)
{
    const int32_t begin = block * at->ints[AXES + AXIS_NUMBERS * d->axis + UNITS];

    return block == 0 ? 0 : clip(floor_of(begin * d->mul + d->low, d->div), d->limit);
}

POETC_MAY_BE_UNUSED static int32_t end_row(const streaming *at, const dimension *d, int32_t block)
{
    const int32_t *axis = at->ints + AXES + AXIS_NUMBERS * d->axis;
    const int32_t last = (block + 1) * axis[UNITS] - 1;

    return block == axis[BLOCKS] - 1 ? d->limit : clip(floor_of(last * d->mul + d->high, d->div) + 1, d->limit);
}

POETC_MAY_BE_UNUSED static pieces pieces_of(const streaming *at, const stream *s)
{
    pieces p = {(uint32_t)s->rows, (uint32_t)s->pitch, 0, 0};

    if (s->outer.axis >= 0) {
        const int32_t block = at->slice->block[s->outer.axis], first = first_row(at, &s->outer, block);

        p.rows *= (uint32_t)(end_row(at, &s->outer, block) - first);
        p.first = (uint32_t)first * (uint32_t)s->outer.unit;
    }
    if (s->inner.axis >= 0) {
        const int32_t block = at->slice->block[s->inner.axis], first = first_row(at, &s->inner, block);

        p.bytes = (uint32_t)(end_row(at, &s->inner, block) - first) * (uint32_t)s->inner.unit;
        p.first += (uint32_t)first * (uint32_t)s->inner.unit;
        if (block > 0 && s->outer.axis < 0) { /* its halo */
            const int32_t before = end_row(at, &s->inner, block - 1);

            p.old = before > first ? (uint32_t)(before - first) * (uint32_t)s->inner.unit : 0;
        }
    }
    return p;
}

/* Whether a block follows the one before in one piece; of a page that is written, in whole blocks of the store. */
POETC_MAY_BE_UNUSED static int is_sequence(const streaming *at, const stream *s)
{
    const int32_t *axis = at->ints + AXES + AXIS_NUMBERS * s->inner.axis;

    if (s->outer.axis >= 0 || s->rows != 1)
        return 0;
    if (s->source != WRITES || s->inner.axis < 0 || axis[BLOCKS] == 1)
        return 1;
    return s->inner.mul == s->inner.div && /* units are rows */
           (uint32_t)(s->inner.unit * axis[UNITS]) % at->runtime->program->block_bytes == 0;
}

POETC_MAY_BE_UNUSED static uint32_t size_of(const stream *s)
{
    return (uint32_t)s->rows * (uint32_t)s->pitch * (uint32_t)(s->outer.axis >= 0 ? s->outer.limit : 1);
}

/* Whether another block along an axis is another block of this operand. */
POETC_MAY_BE_UNUSED static int depends_on(const stream *s, int32_t axis)
{
    return s->outer.axis == axis || s->inner.axis == axis;
}

/* The second window of an operand adds this to a reference to its first one. 0: the block is in the first one. */
POETC_MAY_BE_UNUSED static uint32_t second_window(const streaming *at, const stream *s)
{
    uint32_t number = depends_on(s, 0) ? (uint32_t)at->slice->block[0] : 0;

    if (depends_on(s, 1)) /* another one in each block of the inner axis */
        number = (uint32_t)(at->slice->block[0] * at->ints[AXES + AXIS_NUMBERS + BLOCKS] + at->slice->block[1]);
    return number & 1u ? 2u * (uint32_t)s->second : 0;
}

POETC_MAY_BE_UNUSED static int is_of_last_run(const stream *s)
{
    return s->source == POETC_PAGE_LAST_RUN || s->source == ROWS || s->source == OLD_ROWS;
}

/* The version that a page must have or gets, and the slot: as page_in and page_out of poetc.c. */
POETC_MAY_BE_UNUSED static uint32_t stamp_of(const streaming *at, const stream *s, uint32_t *slot)
{
    const poetc_runtime *runtime = at->runtime;
    uint32_t stamp = runtime->sequence;

    *slot = 0;
    if (s->source == POETC_PAGE_IMAGE)
        return 0;
    if (runtime->program->pages[s->page].slots & 2u) {
        stamp = runtime->run_count + runtime->version_offset + !is_of_last_run(s);
        *slot = stamp & 1u;
    }
    return stamp;
}

POETC_MAY_BE_UNUSED static uint32_t first_block(const streaming *at, const stream *s)
{
    const poetc_program *program = at->runtime->program;
    uint32_t slot;

    (void)stamp_of(at, s, &slot);
    return program->pages[s->page].first_block + slot * poetc_page_blocks(program, (uint32_t)s->page);
}

POETC_MAY_BE_UNUSED static uint8_t *address_of(const streaming *at, poetc_ref ref)
{
    return (uint8_t *)at->runtime->config->arena + (size_t)(ref >> 1) * POETC_ALIGN;
}

#endif
