/* Fuzz target: the bytes of a serial line, as they come to a board of a fleet.
 *
 * An even first byte: the bytes as they are. An odd one: each frame has a right head and checksum, and the input gives
 * kind, sequence, size and payload. */
#include "poetc.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define main board_main
#include "fleet.c"
#undef main

#include "poetc_port.h"

static const uint8_t *input;
static size_t input_size, input_at;
static uint8_t line[1u << 16];
static size_t line_size, line_at;
static jmp_buf end;
static uint32_t records_left;

const uint32_t poetc_port_clock_hz = 1000000;

void poetc_port_log(const char *text)
{
    (void)text;
}

int poetc_port_open(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks, uint32_t record_bytes)
{
    (void)store;
    (void)block_bytes;
    (void)store_blocks;
    (void)record_bytes;
    return 0;
}

int poetc_port_rewind(void)
{
    records_left = 2u * POETC_MODEL_INPUT_COUNT;
    return 1;
}

int poetc_port_data(void *to, uint32_t size_bytes)
{
    if (records_left == 0)
        return 0;
    records_left--;
    memset(to, 0, size_bytes);
    return 1;
}

void poetc_port_stop(int status)
{
    (void)status;
    longjmp(end, 1);
}

void poetc_serial_open(void)
{
}

void poetc_serial_put(uint8_t byte)
{
    (void)byte;
}

/* The next frame of the input, with a right head and checksum. */
static void fill_line(void)
{
    size_t size = 0;

    if (input_size - input_at < 4)
        longjmp(end, 1);
    size = (size_t)(input[input_at + 2] | input[input_at + 3] << 8) % 4096u;
    if (size > input_size - input_at - 4)
        size = input_size - input_at - 4;
    line[0] = 'p';
    line[1] = 't';
    line[2] = input[input_at] % 9u;
    line[3] = input[input_at + 1];
    put_u32(line + 4, (uint32_t)size | (~(uint32_t)size << 16));
    memcpy(line + 8, input + input_at + 4, size);
    if (line[2] == TRAIN && size >= 4) /* some epochs end in time */
        put_u32(line + 8, get_u32(line + 8) % 3u);
    put_u32(line + 8 + size, poetc_crc32(0, line, 8 + size));
    input_at += 4 + size;
    line_at = 0;
    line_size = size + 12;
}

uint8_t poetc_serial_get(void)
{
    if (input[0] % 2u == 0) {
        if (input_at == input_size)
            longjmp(end, 1);
        return input[input_at++];
    }
    if (line_at == line_size)
        fill_line();
    return line[line_at++];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    input = data;
    input_size = size;
    input_at = 1;
    line_at = line_size = 0;
    if (setjmp(end) == 0)
        board_main();
    return 0;
}
