/* A store on an SD card in SPI mode (SD Physical Layer Simplified Specification, chapter 7).
 *
 * Every wait is bounded by time, which the bus counts: a byte takes at least 8 / POETC_SPI_HZ seconds. A card may be
 * busy for 250 ms with a block, and for a second with its start. One of the class SDXC may take 500 ms for a block. */
#include "sd_spi.h"

#include "sd_card.h"

#ifndef POETC_SPI_HZ
#define POETC_SPI_HZ 25000000 /* the fastest clock of a card in SPI mode */
#endif

enum {
    BUSY_BYTES = POETC_SPI_HZ / 16,      /* half a second */
    START_POLLS = POETC_SPI_HZ / 8 / 16, /* a second: a poll is two commands, of at least eight bytes each */
    TOKEN_DATA = 0xfe,                   /* begins a block of data */
    RESPONSE_IDLE = 0x01,
    DATA_ACCEPTED = 0x05
};

enum {
    GO_IDLE = 0,
    SEND_IF_COND = 8,
    SEND_STATUS = 13,
    SET_BLOCKLEN = 16,
    READ_BLOCK = 17,
    WRITE_BLOCK = 24,
    APP_SEND_OP_COND = 41,
    APP_COMMAND = 55,
    READ_OCR = 58
};

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

    poetc_spi_open();
    for (i = 0; i < 10; i++) /* at least 74 clocks, not selected */
        receive();
    poetc_spi_select(1);
    if (command(GO_IDLE, 0, 0x95) != RESPONSE_IDLE)
        return POETC_EIO;
    if (command(SEND_IF_COND, 0x1aa, 0x87) != RESPONSE_IDLE || (receive_word() & 0xfffu) != 0x1aau)
        return POETC_EIO;
    for (i = 0; i < START_POLLS; i++) {
        command(APP_COMMAND, 0, 0xff);
        if (command(APP_SEND_OP_COND, 0x40000000u, 0xff) == 0)
            break;
    }
    if (i == START_POLLS || (command(READ_OCR, 0, 0xff) & ~RESPONSE_IDLE) != 0)
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

    for (i = 0; i < BUSY_BYTES; i++)
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
    if (wait_for(0xff)) /* busy: the line is held low */
        return finish(POETC_EIO);
    response = command(SEND_STATUS, 0, 0xff); /* the card accepted the bytes: did it write them, too? */
    return finish(receive() == 0 && response == 0 ? POETC_OK : POETC_EIO);
}
