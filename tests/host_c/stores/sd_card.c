/* A card on SPI whose faults can be set, behind the driver of sd_spi.c. Exits with the number of the first check that
 * fails, or 0. */
#include "poetc_board.h"
#include "sd_spi.h"

#include <string.h>

enum { BLOCKS = 4, BYTES = 512, MS = 25000000 / 8 / 1000 /* bytes */ };

static uint8_t medium[BLOCKS][BYTES], frame[6], incoming[BYTES + 2], out[BYTES + 16];
static uint32_t received, sent, queued, busy, block, taken;
static int is_writing, app;
/* The faults: bytes that a write keeps the card busy, writes that are refused, writes that fail after acceptance. */
static uint32_t write_busy, refused, unwritten;
static int status;

static void reply(uint8_t byte)
{
    out[queued++] = byte;
}

static void execute(void)
{
    const uint32_t index = frame[0] & 63u;
    const uint32_t argument = (uint32_t)frame[1] << 24 | (uint32_t)frame[2] << 16 | (uint32_t)frame[3] << 8 | frame[4];
    uint32_t i;

    sent = queued = 0;
    reply(0xff);
    if (index == 0 || index == 55) {
        reply(1);
    } else if (index == 8) {
        reply(1), reply(0), reply(0), reply(1), reply(0xaa);
    } else if (index == 41) {
        reply(app-- > 0);
    } else if (index == 58) {
        reply(0), reply(0x40), reply(0), reply(0), reply(0);
    } else if (index == 13) {
        reply(0), reply((uint8_t)status);
        status = 0;
    } else if (index == 17) {
        reply(0), reply(0xff), reply(0xfe);
        for (i = 0; i < BYTES; i++)
            reply(medium[argument][i]);
        reply(0), reply(0);
    } else if (index == 24) {
        reply(0);
        block = argument;
        is_writing = 1;
        taken = 0;
    } else {
        reply(4);
    }
}

static void take(uint8_t value)
{
    if (taken == 0 && value != 0xfe)
        return;
    if (taken++ > 0)
        incoming[taken - 2] = value;
    if (taken < BYTES + 3)
        return;
    is_writing = 0;
    sent = queued = 0;
    reply(refused > 0 ? 0xeb : 0xe5);
    if (refused > 0) {
        refused--;
        return;
    }
    busy = write_busy;
    if (unwritten > 0)
        unwritten--, status = 4;
    else
        memcpy(medium[block], incoming, BYTES);
}

void poetc_spi_open(void)
{
    received = sent = queued = 0;
}

void poetc_spi_select(int selected)
{
    if (!selected)
        sent = queued = received = 0;
}

uint8_t poetc_spi_transfer(uint8_t value)
{
    const uint8_t answer = sent < queued ? out[sent++] : busy > 0 ? (busy--, 0x00) : 0xff;

    if (is_writing && sent >= queued)
        take(value);
    else if (received > 0 || (value & 0xc0u) == 0x40u) {
        frame[received++] = value;
        if (received == 6) {
            received = 0;
            execute();
        }
    }
    return answer;
}

static int round_trip(const poetc_store *store, uint8_t byte)
{
    uint8_t data[BYTES], back[BYTES];
    int err;

    memset(data, byte, BYTES);
    err = store->page_out(store->context, 1, 1, data);
    if (!err)
        err = store->page_in(store->context, 1, 1, back);
    return err ? err : memcmp(data, back, BYTES) ? -1 : 0;
}

int main(void)
{
    poetc_store store;

    memset(&store, 0, sizeof store);
    app = 100000; /* the start takes long */
    if (poetc_board_store(&store, BYTES, BLOCKS))
        return 1;
    if (round_trip(&store, 1))
        return 2;
    write_busy = 250 * MS;
    if (round_trip(&store, 2))
        return 3;
    write_busy = 2000 * MS; /* the card has died */
    if (round_trip(&store, 3) != POETC_EIO)
        return 4;
    busy = write_busy = 0;
    refused = 2;
    if (round_trip(&store, 4))
        return 5;
    unwritten = 1; /* the status says so */
    if (round_trip(&store, 5))
        return 6;
    unwritten = 3;
    if (round_trip(&store, 6) != POETC_EIO)
        return 7;
    return 0;
}
