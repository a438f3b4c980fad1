/* A store on an SD card, whatever it is wired to: for a driver, which defines the three functions that are declared
 * here. A block of the store is one or more blocks of the card. */
#ifndef POETC_SD_CARD_H
#define POETC_SD_CARD_H

#include <stddef.h>
#include <stdint.h>

#include "poetc_board.h"

enum { CARD_BLOCK_BYTES = 512, FIRST_BLOCK = 0 /* of the card that the store begins at */ };
enum { TRIES = 3 }; /* of a block: a disturbed line may not end a training */

static struct {
    uint16_t scale;     /* the card addresses bytes (9) or blocks (0), as a shift */
    uint16_t per_block; /* blocks of the card in one of the store */
    uint32_t blocks;    /* of the store */
} card;

static int open_card(void);
static int read_block(uint32_t block, uint8_t *data);
static int write_block(uint32_t block, const uint8_t *data);

/* Reads blocks of the store into `in`, or writes them from `out`: the other one is NULL. */
static int transfer(uint32_t first_block, uint32_t block_count, uint8_t *in, const uint8_t *out)
{
    uint32_t i, tries, first = FIRST_BLOCK + first_block * card.per_block, count = block_count * card.per_block;
    int err = POETC_OK;

    if (first_block > card.blocks || block_count > card.blocks - first_block)
        return POETC_EINVAL;
    for (i = 0; i < count && !err; i++) {
        size_t offset = (size_t)CARD_BLOCK_BYTES * i;

        err = POETC_EIO;
        for (tries = 0; tries < TRIES && err; tries++)
            err = in ? read_block(first + i, in + offset) : write_block(first + i, out + offset);
    }
    return err;
}

static int page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    (void)context;
    return transfer(first_block, block_count, NULL, (const uint8_t *)data);
}

static int page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    (void)context;
    return transfer(first_block, block_count, (uint8_t *)data, NULL);
}

int poetc_board_store(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks)
{
    if (block_bytes % CARD_BLOCK_BYTES != 0)
        return POETC_EINVAL;
    card.per_block = (uint16_t)(block_bytes / CARD_BLOCK_BYTES);
    card.blocks = store_blocks;
    store->page_out = page_out;
    store->page_in = page_in;
    return open_card();
}

#endif
