/* The store on raw flash beside a simulated one: bits only fall when it is programmed, units may fail, power may be cut
 * in the middle of any operation.
 *
 *     flash_store cuts       every operation of a story is cut, in three ways; prints "cuts N"
 *     flash_store repeated   power is cut again and again, a few operations after each start, later beside a bad
 *                            unit; prints "cuts N"
 *     flash_store bad        units fail to erase, to program, or without a word; prints "bad N"
 *     flash_store wear       one block is written over and over; prints "wear LEAST MOST"
 */
#include "flash_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 8, UNIT = 512, PROG = 8, BLOCK = 64, BLOCKS = 30, WRITES = 120, OFF = -99, BROKEN = -5 };
enum { ERASES_NOT = 1, PROGRAMS_NOT = 2, SAYS_NOTHING = 3 };

static uint8_t flash[UNITS][UNIT], written[UNITS][UNIT / PROG], image[BLOCKS][BLOCK], before[BLOCK];
static uint32_t erased[UNITS], version;
static int broken[UNITS], power = 1, kind;
static long operations, cut_at;
static poetc_flash_store store;
static uint16_t map[BLOCKS];
static poetc_flash_unit units[UNITS];
static uint8_t buffer[POETC_FLASH_RECORD_BYTES(BLOCK, PROG)];

static void fail(const char *what, long a, long b)
{
    printf("%s: %ld, %ld\n", what, a, b);
    exit(1);
}

static uint32_t random_number(uint32_t below)
{
    static uint32_t state = 1;

    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

/* How far an operation comes: the whole of it, or where it is cut nothing, a part, or all of it. */
static uint32_t reached(uint32_t size)
{
    if (++operations != cut_at)
        return size;
    power = 0;
    return kind == 0 ? 0 : kind == 1 ? size / 2 + 1 : size;
}

static int read_flash(void *context, uint32_t address, void *data, uint32_t size)
{
    (void)context;
    if (!power)
        return OFF;
    memcpy(data, (uint8_t *)flash + address, size);
    return 0;
}

static int program_flash(void *context, uint32_t address, const void *data, uint32_t size)
{
    const uint32_t unit = address / UNIT;
    uint32_t i, end;

    (void)context;
    if (!power)
        return OFF;
    if (address % PROG != 0 || size % PROG != 0 || address % UNIT + size > UNIT)
        fail("a piece that cannot be programmed", (long)address, (long)size);
    end = reached(size);
    if (broken[unit] == PROGRAMS_NOT)
        return BROKEN;
    for (i = 0; i < end; i++) {
        uint8_t *to = (uint8_t *)flash + address + i;

        if (power && i % PROG == 0 && written[unit][(address % UNIT + i) / PROG]++)
            fail("programmed twice", (long)address, (long)i);
        *to = (uint8_t)(*to & ((const uint8_t *)data)[i]);
        if (i + 1 == end && !power)
            *to |= (uint8_t)(0x55u & ~((const uint8_t *)data)[i]); /* some bits have not fallen yet */
    }
    if (broken[unit] == SAYS_NOTHING && power)
        flash[unit][address % UNIT + size / 3] ^= 0x10;
    return power ? 0 : OFF;
}

static int erase_flash(void *context, uint32_t unit)
{
    uint32_t end, i;

    (void)context;
    if (!power)
        return OFF;
    if (unit >= UNITS)
        fail("no such unit", (long)unit, 0);
    end = reached(UNIT);
    erased[unit]++;
    if (broken[unit] == ERASES_NOT)
        return BROKEN;
    memset(written[unit], power ? 0 : 1, sizeof written[unit]);
    for (i = 0; i < end; i++) /* from either end */
        flash[unit][unit % 2 ? i : UNIT - 1 - i] = 0xff;
    return power ? 0 : OFF;
}

static int start(void)
{
    memset(&store, 0xa5, sizeof store);
    memset(map, 0xa5, sizeof map);
    memset(units, 0xa5, sizeof units);
    store.read = read_flash, store.program = program_flash, store.erase = erase_flash, store.context = NULL;
    store.unit_bytes = UNIT, store.unit_count = UNITS, store.prog_bytes = PROG;
    store.block_bytes = BLOCK, store.block_count = BLOCKS;
    store.map = map, store.units = units, store.buffer = buffer;
    return poetc_flash_open(&store);
}

static void begin(void)
{
    memset(flash, 0x5a, sizeof flash); /* never erased */
    memset(written, 1, sizeof written);
    memset(image, 0, sizeof image);
    memset(erased, 0, sizeof erased);
    memset(broken, 0, sizeof broken);
    version = 0;
    operations = 0;
    cut_at = 0;
    power = 1;
    if (start())
        fail("cannot be opened", 0, 0);
}

/* Write one block, some of them more often. Returns its number; `image` has it unless the write fails. */
static uint32_t put(int *err)
{
    const uint32_t block = version < BLOCKS ? version : random_number(4) ? random_number(4) : random_number(BLOCKS);
    uint8_t data[BLOCK];
    uint32_t i;

    version++;
    for (i = 0; i < BLOCK; i++)
        data[i] = (uint8_t)(version * 31u + i * 7u);
    memcpy(before, image[block], BLOCK);
    memcpy(image[block], data, BLOCK);
    *err = poetc_flash_page_out(&store, block, 1, data);
    return block;
}

/* All blocks are as they were written; `open` may also be as before. */
static void compare(uint32_t open, long a, long b)
{
    uint8_t data[BLOCK];
    uint32_t block;

    for (block = 0; block < BLOCKS; block++) {
        if (poetc_flash_page_in(&store, block, 1, data))
            fail("a block cannot be read", a, b);
        if (block == open && memcmp(data, before, BLOCK) == 0)
            memcpy(image[block], before, BLOCK);
        if (memcmp(data, image[block], BLOCK) != 0)
            fail("another block", a, (long)block);
    }
}

static void cuts(void)
{
    long total, cut, count = 0;
    int i, err;

    begin();
    for (i = 0; i < WRITES; i++)
        if ((put(&err), err))
            fail("a write", i, err);
    compare(BLOCKS, 0, 0);
    if (start())
        fail("cannot be opened again", 0, 0);
    compare(BLOCKS, 0, 1);
    total = operations;
    for (kind = 0; kind < 3; kind++) {
        for (cut = 1; cut <= total; cut++, count++) {
            uint32_t open = BLOCKS;

            begin();
            cut_at = cut;
            for (i = 0, err = 0; i < WRITES && !err; i++)
                open = put(&err);
            power = 1;
            cut_at = 0;
            if (start())
                fail("cannot be opened after the cut", cut, kind);
            compare(err ? open : BLOCKS, cut, kind);
            for (i = 0; i < 30; i++)
                if ((put(&err), err))
                    fail("a write after the cut", cut, err);
            compare(BLOCKS, cut, kind);
        }
    }
    printf("cuts %ld\n", count);
}

static void repeated(void)
{
    long count;
    int err = 0;

    begin();
    for (count = 0; count < 4000; count++) {
        uint32_t open = BLOCKS;

        broken[3] = count > 2000 ? ERASES_NOT : 0; /* then free units are scarce */
        kind = (int)random_number(3);
        cut_at = operations + 1 + (long)random_number(count % 2 ? 4 : 40);
        do
            open = put(&err);
        while (!err);
        if (power)
            fail("a write that was not cut", count, err);
        power = 1;
        if (start())
            fail("cannot be opened", count, kind);
        compare(open, count, kind);
    }
    printf("cuts %ld\n", count);
}

static void bad(void)
{
    long tries = 0;
    uint32_t unit;
    int how, when, i, err;

    for (how = ERASES_NOT; how <= SAYS_NOTHING; how++) {
        for (unit = 0; unit < UNITS; unit++) {
            for (when = 0; when < WRITES; when += 9, tries++) {
                begin();
                for (i = 0; i < 2 * WRITES; i++) {
                    broken[unit] = i >= when ? how : 0;
                    put(&err);
                    if (err)
                        fail("a write beside a bad unit", when, how);
                    if (i % 40 == 39) {
                        if (start())
                            fail("cannot be opened", when, how);
                        compare(BLOCKS, when, how);
                    }
                }
                compare(BLOCKS, when, how);
            }
        }
    }
    begin();
    for (unit = 0; unit < UNITS; unit++)
        broken[unit] = ERASES_NOT;
    if (put(&err), err != POETC_EIO)
        fail("nothing can be erased", err, 0);
    printf("bad %ld\n", tries);
}

static void wear(void)
{
    uint8_t data[BLOCK] = {0};
    uint32_t least = UINT32_MAX, most = 0, unit;
    int i, err;

    begin();
    for (i = 0; i < BLOCKS; i++)
        put(&err);
    for (i = 0; i < 4000; i++)
        if (poetc_flash_page_out(&store, 0, 1, data))
            fail("a write", i, 0);
    memcpy(image[0], data, BLOCK);
    compare(BLOCKS, 0, 0);
    for (unit = 0; unit < UNITS; unit++) {
        least = erased[unit] < least ? erased[unit] : least;
        most = erased[unit] > most ? erased[unit] : most;
    }
    printf("wear %lu %lu\n", (unsigned long)least, (unsigned long)most);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "cuts") == 0)
        cuts();
    else if (strcmp(what, "repeated") == 0)
        repeated();
    else if (strcmp(what, "bad") == 0)
        bad();
    else
        wear();
    return 0;
}
