/* A store on an SD card behind a standard host controller (SD Host Controller Simplified Specification), polled, one
 * block at a time. Every wait is bounded. The base address is the Raspberry Pi 3's. */
#include "sd_card.h"

#ifndef SDHCI_BASE
#define SDHCI_BASE 0x3f300000u
#endif

#define REGISTER(offset) (*(volatile uint32_t *)(uintptr_t)(SDHCI_BASE + (offset)))
#define BLOCK_SIZE_COUNT REGISTER(0x04u)
#define ARGUMENT REGISTER(0x08u)
#define TRANSFER_COMMAND REGISTER(0x0cu)
#define RESPONSE REGISTER(0x10u)
#define BUFFER REGISTER(0x20u)
#define HOST_POWER REGISTER(0x28u)
#define CLOCK_TIMEOUT_RESET REGISTER(0x2cu)
#define INTERRUPT_STATUS REGISTER(0x30u)
#define INTERRUPT_ENABLE REGISTER(0x34u)
#define INTERRUPT_SIGNAL REGISTER(0x38u)

enum { POLLS = 1000000 };
enum { COMMAND_DONE = 1u << 0, TRANSFER_DONE = 1u << 1, CAN_WRITE = 1u << 4, CAN_READ = 1u << 5, FAILED = 1u << 15 };
enum {
    NO_RESPONSE = 0u << 16,
    LONG = 1u << 16,
    SHORT = 2u << 16,
    SHORT_BUSY = 3u << 16,
    DATA = 1u << 21,
    FROM_CARD = 1u << 4
};
enum {
    GO_IDLE = 0,
    ALL_SEND_CID = 2,
    SEND_ADDRESS = 3,
    SELECT = 7,
    SEND_IF_COND = 8,
    SET_BLOCKLEN = 16,
    READ_BLOCK = 17,
    WRITE_BLOCK = 24,
    APP_SEND_OP_COND = 41,
    APP_COMMAND = 55
};

static int wait_for(uint32_t flag)
{
    uint32_t i, status;

    for (i = 0; i < POLLS; i++) {
        status = INTERRUPT_STATUS;
        if (status & FAILED)
            return POETC_EIO;
        if (status & flag)
            return POETC_OK;
    }
    return POETC_EIO;
}

static int command(uint32_t index, uint32_t argument, uint32_t flags)
{
    INTERRUPT_STATUS = 0xffffffffu;
    ARGUMENT = argument;
    TRANSFER_COMMAND = index << 24 | flags;
    return wait_for(COMMAND_DONE);
}

static int open_card(void)
{
    uint32_t i, conditions = 0;

    CLOCK_TIMEOUT_RESET = 1u << 24;
    for (i = 0; i < POLLS && (CLOCK_TIMEOUT_RESET & 1u << 24); i++) {
    }
    HOST_POWER |= 0xfu << 8;
    CLOCK_TIMEOUT_RESET |= 1u | 0xeu << 16;
    for (i = 0; i < POLLS && !(CLOCK_TIMEOUT_RESET & 2u); i++) {
    }
    CLOCK_TIMEOUT_RESET |= 0x68u << 8 | 4u;
    INTERRUPT_ENABLE = 0xffffffffu;
    INTERRUPT_SIGNAL = 0;
    if (command(GO_IDLE, 0, NO_RESPONSE) || command(SEND_IF_COND, 0x1aa, SHORT))
        return POETC_EIO;
    for (i = 0; i < 1000 && !(conditions >> 31); i++) {
        if (command(APP_COMMAND, 0, SHORT) || command(APP_SEND_OP_COND, 0x40300000u, SHORT))
            return POETC_EIO;
        conditions = RESPONSE;
    }
    if (!(conditions >> 31))
        return POETC_EIO;
    card.scale = conditions & 0x40000000u ? 0 : 9;
    if (command(ALL_SEND_CID, 0, LONG) || command(SEND_ADDRESS, 0, SHORT))
        return POETC_EIO;
    if (command(SELECT, RESPONSE & 0xffff0000u, SHORT_BUSY))
        return POETC_EIO;
    return command(SET_BLOCKLEN, CARD_BLOCK_BYTES, SHORT);
}

static int read_block(uint32_t block, uint8_t *data)
{
    uint32_t i, word;

    BLOCK_SIZE_COUNT = 1u << 16 | CARD_BLOCK_BYTES;
    if (command(READ_BLOCK, block << card.scale, SHORT | DATA | FROM_CARD) || wait_for(CAN_READ))
        return POETC_EIO;
    for (i = 0; i < CARD_BLOCK_BYTES; i += 4) {
        word = BUFFER;
        data[i] = (uint8_t)word;
        data[i + 1] = (uint8_t)(word >> 8);
        data[i + 2] = (uint8_t)(word >> 16);
        data[i + 3] = (uint8_t)(word >> 24);
    }
    return wait_for(TRANSFER_DONE);
}

static int write_block(uint32_t block, const uint8_t *data)
{
    uint32_t i;

    BLOCK_SIZE_COUNT = 1u << 16 | CARD_BLOCK_BYTES;
    if (command(WRITE_BLOCK, block << card.scale, SHORT | DATA) || wait_for(CAN_WRITE))
        return POETC_EIO;
    for (i = 0; i < CARD_BLOCK_BYTES; i += 4)
        BUFFER =
            (uint32_t)data[i] | (uint32_t)data[i + 1] << 8 | (uint32_t)data[i + 2] << 16 | (uint32_t)data[i + 3] << 24;
    return wait_for(TRANSFER_DONE);
}
