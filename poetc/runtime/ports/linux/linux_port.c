/* Linux on Cortex-A: log, clock, data, store in files of the current directory; the arena is static, no heap. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "poetc_port.h"

static FILE *data_file, *store_file;
static uint32_t store_block_bytes;

const uint32_t poetc_port_clock_hz = 1000;

void poetc_port_log(const char *text)
{
    fputs(text, stdout);
    fflush(stdout);
}

uint32_t poetc_port_clock(void)
{
    return (uint32_t)((uint64_t)clock() * poetc_port_clock_hz / CLOCKS_PER_SEC);
}

static int seek_block(uint32_t block)
{
    return fseek(store_file, (long)block * (long)store_block_bytes, SEEK_SET) == 0 ? POETC_OK : POETC_EIO;
}

static int page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    (void)context;
    if (seek_block(first_block) || fwrite(data, store_block_bytes, block_count, store_file) != block_count)
        return POETC_EIO;
    return fflush(store_file) == 0 ? POETC_OK : POETC_EIO;
}

static int page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    size_t size = (size_t)block_count * store_block_bytes, read;

    (void)context;
    if (seek_block(first_block))
        return POETC_EIO;
    read = fread(data, 1, size, store_file);
    memset((uint8_t *)data + read, 0, size - read); /* past the end, as a fresh card reads */
    return ferror(store_file) ? POETC_EIO : POETC_OK;
}

int poetc_port_open(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks)
{
    data_file = fopen("data.bin", "rb");
    if (data_file == NULL)
        return POETC_EIO;
    if (store_blocks == 0)
        return POETC_OK;
    store_file = fopen("store.bin", "r+b");
    if (store_file == NULL)
        store_file = fopen("store.bin", "w+b");
    if (store_file == NULL)
        return POETC_EIO;
    store_block_bytes = block_bytes;
    store->page_out = page_out;
    store->page_in = page_in;
    return POETC_OK;
}

int poetc_port_data(void *to, uint32_t size_bytes)
{
    return fread(to, 1, size_bytes, data_file) == size_bytes;
}

int poetc_port_skip(size_t size_bytes)
{
    return fseek(data_file, (long)size_bytes, SEEK_SET) == 0 ? POETC_OK : POETC_EIO;
}

int poetc_port_result(const void *state, uint32_t size_bytes)
{
    FILE *file = fopen("trained.bin", "wb");
    int failed;

    if (file == NULL)
        return POETC_EIO;
    failed = fwrite(state, 1, size_bytes, file) != size_bytes;
    return fclose(file) != 0 || failed ? POETC_EIO : POETC_OK;
}

static void on_fault(int signal)
{
    static const char text[] = "fault\n";

    (void)signal;
    if (write(STDOUT_FILENO, text, sizeof text - 1u) < 0)
        _Exit(POETC_PORT_FAILED);
    _Exit(POETC_PORT_FAULT);
}

void poetc_port_guard(void *page)
{
    signal(SIGSEGV, on_fault);
    POETC_PORT_ASSERT(mprotect(page, POETC_PORT_GUARD_BYTES, PROT_NONE) == 0);
}

void poetc_port_stop(int status)
{
    exit(status);
}
