/* A store on raw flash. See flash_store.h.
 *
 * A unit begins with a header: tag, sequence number, erasures, checksum. Records follow: the block's bytes, its number,
 * its sequence number, twelve bytes with the checksum in all, and 0xff up to prog_bytes.
 *
 * Blocks are written only where a unit without newest copies is left. Only while copies are moved there may be none:
 * the youngest unit then holds nothing but copies whose originals still stand. So a start that finds none leaves it
 * out. */
#include "flash_store.h"

#include <string.h>

#define NOWHERE 0xffffu
#define MAGIC 0x31534650u /* "PFS1" */

static void put_word(uint8_t *to, uint32_t value)
{
    unsigned i;

    for (i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_word(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static uint32_t record_bytes(const poetc_flash_store *s)
{
    return POETC_FLASH_RECORD_BYTES(s->block_bytes, s->prog_bytes);
}

static uint32_t header_bytes(const poetc_flash_store *s)
{
    return POETC_FLASH_RECORD_BYTES(0u, s->prog_bytes);
}

static uint32_t records_of_unit(const poetc_flash_store *s)
{
    return s->unit_bytes < header_bytes(s) ? 0 : (s->unit_bytes - header_bytes(s)) / record_bytes(s);
}

static uint32_t address_of(const poetc_flash_store *s, uint32_t record)
{
    const uint32_t count = records_of_unit(s);

    return record / count * s->unit_bytes + header_bytes(s) + record % count * record_bytes(s);
}

/* Three words and their checksum, behind `size_bytes` of data that it covers, too; 0xff behind them. */
static void seal(uint8_t *data, uint32_t size_bytes, uint32_t total_bytes, const uint32_t words[3])
{
    unsigned i;

    for (i = 0; i < 3; i++)
        put_word(data + size_bytes + 4 * i, words[i]);
    put_word(data + size_bytes + 12, poetc_crc32(0, data, size_bytes + 12));
    memset(data + size_bytes + POETC_FLASH_TAG, 0xff, total_bytes - size_bytes - POETC_FLASH_TAG);
}

static int is_sealed(const uint8_t *data, uint32_t size_bytes)
{
    return get_word(data + size_bytes) == MAGIC &&
           get_word(data + size_bytes + 12) == poetc_crc32(0, data, size_bytes + 12);
}

/* Program the buffer and read it back: not every flash says that it failed. */
static int program(const poetc_flash_store *s, uint32_t address, uint32_t size_bytes)
{
    uint8_t back[32];
    uint32_t done, piece;
    int err = s->program(s->context, address, s->buffer, size_bytes);

    for (done = 0; done < size_bytes && !err; done += piece) {
        piece = size_bytes - done < sizeof back ? size_bytes - done : (uint32_t)sizeof back;
        err = s->read(s->context, address + done, back, piece);
        if (!err && memcmp(back, s->buffer + done, piece) != 0)
            err = POETC_EIO;
    }
    return err;
}

/* A unit without newest copies, the least worn one, or the most worn one for copies that nobody writes; unit_count:
 * there is none. */
static uint32_t free_unit(const poetc_flash_store *s, int most_worn)
{
    uint32_t found = s->unit_count, unit;

    for (unit = 0; unit < s->unit_count; unit++)
        if (!s->units[unit].is_bad && s->units[unit].live == 0 && unit != s->active &&
            (found == s->unit_count || (s->units[unit].erases > s->units[found].erases) == most_worn))
            found = unit;
    return found;
}

/* Read the buffer's data and their tag. Torn ones are no copy. The same holds where a read fails, since flash with
 * correction codes says so of torn pieces. */
static int has_copy(const poetc_flash_store *s, uint32_t address, uint32_t size_bytes)
{
    return s->read(s->context, address, s->buffer, size_bytes + POETC_FLASH_TAG) == 0 &&
           is_sealed(s->buffer, size_bytes);
}

/* Take in the newest copies in a unit. */
static void scan(poetc_flash_store *s, uint32_t unit)
{
    const uint32_t count = records_of_unit(s), end = (unit + 1u) * count;
    uint32_t record;

    for (record = unit * count; record < end; record++) {
        uint32_t block, sequence;
        uint8_t known[4] = {0};

        if (!has_copy(s, address_of(s, record), s->block_bytes))
            continue;
        block = get_word(s->buffer + s->block_bytes + 4), sequence = get_word(s->buffer + s->block_bytes + 8);
        if (block >= s->block_count)
            continue;
        if (s->map[block] != NOWHERE)
            (void)s->read(s->context, address_of(s, s->map[block]) + s->block_bytes + 8, known, 4);
        if (sequence > get_word(known))
            s->map[block] = (uint16_t)record;
        s->sequence = sequence > s->sequence ? sequence : s->sequence;
    }
}

/* All units but `left_out`; returns the youngest. */
static uint32_t scan_all(poetc_flash_store *s, uint32_t left_out)
{
    const uint32_t count = records_of_unit(s);
    uint32_t youngest = s->unit_count, age = 0, most = 0, unit, block;

    memset(s->map, 0xff, s->block_count * sizeof s->map[0]);
    for (unit = 0; unit < s->unit_count; unit++) {
        s->units[unit].live = 0;
        s->units[unit].erases = UINT32_MAX;
        if (!has_copy(s, unit * s->unit_bytes, 0)) /* new, or cut in its erasure: it was free */
            continue;
        s->units[unit].erases = get_word(s->buffer + 8);
        most = s->units[unit].erases > most ? s->units[unit].erases : most;
        if (get_word(s->buffer + 4) > age)
            age = get_word(s->buffer + 4), youngest = unit;
        if (unit != left_out)
            scan(s, unit);
    }
    s->sequence = age > s->sequence ? age : s->sequence;
    for (unit = 0; unit < s->unit_count; unit++)
        if (s->units[unit].erases == UINT32_MAX) /* its count is lost */
            s->units[unit].erases = most;
    for (block = 0; block < s->block_count; block++)
        if (s->map[block] != NOWHERE)
            s->units[s->map[block] / count].live++;
    return youngest;
}

/* Erase a free unit and make it the active one; those that fail are left out. */
static int begin_unit(poetc_flash_store *s, int most_worn)
{
    uint32_t words[3];

    for (;;) {
        uint32_t unit = free_unit(s, most_worn);

        s->active = s->unit_count;
        if (unit == s->unit_count && s->youngest < s->unit_count) { /* cut while copies were moved, see above */
            (void)scan_all(s, s->youngest);
            unit = free_unit(s, most_worn);
        }
        if (unit == s->unit_count)
            return POETC_EIO;
        words[0] = MAGIC, words[1] = ++s->sequence, words[2] = ++s->units[unit].erases;
        if (s->erase(s->context, unit) == 0) {
            seal(s->buffer, 0, header_bytes(s), words);
            if (program(s, unit * s->unit_bytes, header_bytes(s)) == 0) {
                s->active = unit, s->next = 0, s->youngest = s->unit_count;
                return POETC_OK;
            }
        }
        s->units[unit].is_bad = 1;
    }
}

/* Write the block in the buffer to the next record of the active unit. A unit that fails is left out: its copies are
 * moved by the caller. */
static int append(poetc_flash_store *s, uint32_t block)
{
    const uint32_t count = records_of_unit(s), record = s->active * count + s->next;
    const uint32_t words[3] = {MAGIC, block, s->sequence + 1u};

    seal(s->buffer, s->block_bytes, record_bytes(s), words);
    s->sequence++, s->next++;
    if (program(s, address_of(s, record), record_bytes(s))) {
        s->units[s->active].is_bad = 1;
        s->active = s->unit_count;
        return POETC_EIO;
    }
    if (s->map[block] != NOWHERE)
        s->units[s->map[block] / count].live--;
    s->map[block] = (uint16_t)record;
    s->units[s->active].live++;
    return POETC_OK;
}

/* Move the newest copies of a unit to the active one, as far as it has room. One that cannot be read stays where it is,
 * and its unit is left out. */
static void move(poetc_flash_store *s, uint32_t unit)
{
    const uint32_t count = records_of_unit(s);
    uint32_t block;

    for (block = 0; block < s->block_count && s->active < s->unit_count && s->next < count; block++) {
        if (s->map[block] == NOWHERE || s->map[block] / count != unit)
            continue;
        if (s->read(s->context, address_of(s, s->map[block]), s->buffer, s->block_bytes))
            s->units[unit].is_bad = 1;
        else
            (void)append(s, block); /* after a failure there is no active unit */
    }
}

/* The unit whose copies are moved next: the least worn one, or the one with the fewest copies. */
static uint32_t unit_to_move(const poetc_flash_store *s, int least_worn)
{
    uint32_t found = s->unit_count, unit;

    for (unit = 0; unit < s->unit_count; unit++) {
        const poetc_flash_unit *one = &s->units[unit], *best = &s->units[found % s->unit_count];

        if (unit != s->active && one->live > 0 && !one->is_bad &&
            (found == s->unit_count || (least_worn ? one->erases < best->erases : one->live < best->live)))
            found = unit;
    }
    return found;
}

static int is_uneven(const poetc_flash_store *s)
{
    const uint32_t cold = unit_to_move(s, 1), worn = free_unit(s, 1);

    return cold < s->unit_count && worn < s->unit_count &&
           s->units[worn].erases > s->units[cold].erases + POETC_FLASH_WEAR_GAP;
}

/* Whether there are free units to begin with: two, so that one may go bad, or one where no more are left. */
static int has_free(const poetc_flash_store *s)
{
    uint32_t good = 0, found = 0, unit;

    for (unit = 0; unit < s->unit_count; unit++) {
        good += !s->units[unit].is_bad;
        found += !s->units[unit].is_bad && s->units[unit].live == 0 && unit != s->active;
    }
    return found >= (s->block_count + POETC_FLASH_RESERVE * records_of_unit(s) <= good * records_of_unit(s) ? 2u : 1u);
}

/* See to an active unit with room, and free ones beside it. */
static int make_room(poetc_flash_store *s)
{
    const uint32_t count = records_of_unit(s);
    uint32_t tries = 4u * s->unit_count, unit;
    int levels = is_uneven(s), err;

    while (s->active == s->unit_count || s->next == count || !has_free(s)) {
        if (s->active == s->unit_count || s->next == count) {
            err = tries-- > 0 ? begin_unit(s, levels) : POETC_EIO;
            if (err)
                return err;
        } else
            levels = 0;
        for (unit = 0; unit < s->unit_count; unit++) /* one that went bad: its copies can still be read */
            if (s->units[unit].is_bad && s->units[unit].live > 0)
                move(s, unit);
        unit = levels || !has_free(s) ? unit_to_move(s, levels) : s->unit_count;
        if (unit < s->unit_count)
            move(s, unit);
        else if (!has_free(s))
            return POETC_EIO; /* more units went bad than there was reserve */
        levels = 0;
    }
    return POETC_OK;
}

int poetc_flash_page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    poetc_flash_store *s = context;
    uint32_t i, tries;
    int err = first_block + block_count > s->block_count ? POETC_EINVAL : POETC_OK;

    for (i = 0; i < block_count && !err; i++) {
        for (tries = 0; tries <= s->unit_count; tries++) {
            err = make_room(s);
            if (err)
                break;
            memcpy(s->buffer, (const uint8_t *)data + (size_t)i * s->block_bytes, s->block_bytes);
            err = append(s, first_block + i);
            if (!err)
                break;
        }
    }
    return err;
}

int poetc_flash_page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    const poetc_flash_store *s = context;
    uint32_t i;
    int err = first_block + block_count > s->block_count ? POETC_EINVAL : POETC_OK;

    for (i = 0; i < block_count && !err; i++) {
        uint8_t *to = (uint8_t *)data + (size_t)i * s->block_bytes;

        if (s->map[first_block + i] == NOWHERE)
            memset(to, 0, s->block_bytes);
        else
            err = s->read(s->context, address_of(s, s->map[first_block + i]), to, s->block_bytes);
    }
    return err;
}

int poetc_flash_open(poetc_flash_store *s)
{
    const uint32_t count = records_of_unit(s);

    if (count == 0 || s->unit_count <= POETC_FLASH_RESERVE || s->unit_count > (NOWHERE - 1u) / count ||
        s->block_count > (s->unit_count - POETC_FLASH_RESERVE) * count)
        return POETC_EINVAL;
    memset(s->units, 0, s->unit_count * sizeof s->units[0]);
    s->sequence = 0;
    s->active = s->unit_count; /* a unit that was written before is never gone on with: its end may be torn */
    s->youngest = scan_all(s, s->unit_count);
    return POETC_OK;
}
