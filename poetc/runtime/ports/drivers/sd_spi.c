/* A store on an SD card in SPI mode (SD Physical Layer Simplified Specification, chapter 7). A block of the store is one or more
 * blocks of the card; every wait is bounded. */
#include "sd_spi.h"

#include "poetc_board.h"

enum {
    CARD_BLOCK_BYTES = 512,
    POLLS = 100000,       /* bytes to wait for a card that is busy */
    FIRST_BLOCK = 0,      /* of the card that the store begins at */
    TOKEN_DATA = 0xfe,    /* begins a block of data */
    RESPONSE_IDLE = 0x01,
    DATA_ACCEPTED = 0x05
};

enum {
    GO_IDLE = 0, SEND_IF_COND = 8, SET_BLOCKLEN = 16, READ_BLOCK = 17, WRITE_BLOCK = 24, APP_SEND_OP_COND = 41, APP_COMMAND = 55,
    READ_OCR = 58
};

static struct {
    uint16_t scale;      /* bytes (9) or blocks (0) are what the card addresses, as a shift */
    uint16_t per_block;  /* blocks of the card in one of the store */
    uint32_t blocks;     /* of the store */
} card;

static uint8_t receive(void)
{
    return poetc_spi_transfer(0xff);
}

/* First byte of the response, 0xff if there is none. */
static uint8_t command(uint8_t index, uint32_t argument, uint8_t crc)
{
    uint8_t response = 0xff;
    unsigned i;

    receive();
    poetc_spi_transfer((uint8_t)(0x40u | index));
    for (i = 0; i < 4; i++)
        poetc_spi_transfer((uint8_t)(argument >> (24u - 8u * i)));
    poetc_spi_transfer(crc);
    for (i = 0; i < 16 && (response & 0x80u); i++)
        response = receive();
    return response;
}

static uint32_t receive_word(void)
{
    uint32_t word = 0;
    unsigned i;

    for (i = 0; i < 4; i++)
        word = word << 8 | receive();
    return word;
}

static int open_card(void)
{
    unsigned i;

    for (i = 0; i < 10; i++) /* at least 74 clocks, not selected */
        receive();
    poetc_spi_select(1);
    if (command(GO_IDLE, 0, 0x95) != RESPONSE_IDLE)
        return POETC_EIO;
    if (command(SEND_IF_COND, 0x1aa, 0x87) != RESPONSE_IDLE || (receive_word() & 0xfffu) != 0x1aau)
        return POETC_EIO;
    for (i = 0; i < POLLS; i++) {
        command(APP_COMMAND, 0, 0xff);
        if (command(APP_SEND_OP_COND, 0x40000000u, 0xff) == 0)
            break;
    }
    if (i == POLLS || (command(READ_OCR, 0, 0xff) & ~RESPONSE_IDLE) != 0)
        return POETC_EIO;
    card.scale = receive_word() & 0x40000000u ? 0 : 9;
    if (card.scale != 0 && command(SET_BLOCKLEN, CARD_BLOCK_BYTES, 0xff) != 0)
        return POETC_EIO;
    poetc_spi_select(0);
    receive();
    return POETC_OK;
}

static int wait_for(uint8_t wanted)
{
    unsigned i;

    for (i = 0; i < POLLS; i++)
        if (receive() == wanted)
            return POETC_OK;
    return POETC_EIO;
}

static int finish(int err)
{
    poetc_spi_select(0);
    receive();
    return err;
}

static int read_block(uint32_t block, uint8_t *data)
{
    unsigned i;

    poetc_spi_select(1);
    if (command(READ_BLOCK, block << card.scale, 0xff) != 0 || wait_for(TOKEN_DATA))
        return finish(POETC_EIO);
    for (i = 0; i < CARD_BLOCK_BYTES; i++)
        data[i] = receive();
    receive(); /* CRC, off in SPI mode: pages have their own */
    receive();
    return finish(POETC_OK);
}

static int write_block(uint32_t block, const uint8_t *data)
{
    uint8_t response;
    unsigned i;

    poetc_spi_select(1);
    if (command(WRITE_BLOCK, block << card.scale, 0xff) != 0)
        return finish(POETC_EIO);
    receive();
    poetc_spi_transfer(TOKEN_DATA);
    for (i = 0; i < CARD_BLOCK_BYTES; i++)
        poetc_spi_transfer(data[i]);
    receive();
    receive();
    for (i = 0, response = 0xff; i < 8 && (response & 0x11u) != 0x01u; i++)
        response = receive();
    if ((response & 0x1fu) != DATA_ACCEPTED)
        return finish(POETC_EIO);
    return finish(wait_for(0xff)); /* busy: the line is held low */
}

static int page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    uint32_t i, first = FIRST_BLOCK + first_block * card.per_block, count = block_count * card.per_block;
    int err = POETC_OK;

    (void)context;
    if (first_block > card.blocks || block_count > card.blocks - first_block)
        return POETC_EINVAL;
    for (i = 0; i < count && !err; i++)
        err = write_block(first + i, (const uint8_t *)data + (uint32_t)CARD_BLOCK_BYTES * i);
    return err;
}

static int page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    uint32_t i, first = FIRST_BLOCK + first_block * card.per_block, count = block_count * card.per_block;
    int err = POETC_OK;

    (void)context;
    if (first_block > card.blocks || block_count > card.blocks - first_block)
        return POETC_EINVAL;
    for (i = 0; i < count && !err; i++)
        err = read_block(first + i, (uint8_t *)data + (uint32_t)CARD_BLOCK_BYTES * i);
    return err;
}

int poetc_board_store(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks)
{
    if (block_bytes % CARD_BLOCK_BYTES != 0)
        return POETC_EINVAL;
    card.per_block = (uint16_t)(block_bytes / CARD_BLOCK_BYTES);
    card.blocks = store_blocks;
    store->page_out = page_out;
    store->page_in = page_in;
    poetc_spi_open();
    return open_card();
}
