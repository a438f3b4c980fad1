/* A store in a file: block b is at byte b * block_bytes. Past its end it reads as zeros, as a fresh card does. */
#include "poetc_host.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_store {
    FILE *file;
    uint32_t block_bytes;
} host_store;

static int seek_block(const host_store *host, uint32_t block)
{
    uint64_t offset = (uint64_t)block * host->block_bytes;

    if (offset > (uint64_t)LONG_MAX)
        return POETC_EIO;
    return fseek(host->file, (long)offset, SEEK_SET) == 0 ? POETC_OK : POETC_EIO;
}

static int host_page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    host_store *host = context;

    if (seek_block(host, first_block))
        return POETC_EIO;
    if (fwrite(data, host->block_bytes, block_count, host->file) != block_count)
        return POETC_EIO;
    return fflush(host->file) == 0 ? POETC_OK : POETC_EIO;
}

static int host_page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    host_store *host = context;
    size_t size = (size_t)block_count * host->block_bytes, read;

    if (seek_block(host, first_block))
        return POETC_EIO;
    read = fread(data, 1, size, host->file);
    memset((uint8_t *)data + read, 0, size - read);
    return ferror(host->file) ? POETC_EIO : POETC_OK;
}

int poetc_host_open(poetc_store *store, const char *path, uint32_t block_bytes)
{
    host_store *host;

    if (store == NULL || path == NULL || block_bytes == 0)
        return POETC_EINVAL;
    host = malloc(sizeof *host);
    if (host == NULL)
        return POETC_EIO;
    host->block_bytes = block_bytes;
    host->file = fopen(path, "r+b");
    if (host->file == NULL)
        host->file = fopen(path, "w+b");
    if (host->file == NULL) {
        free(host);
        return POETC_EIO;
    }
    store->page_out = host_page_out;
    store->page_in = host_page_in;
    store->context = host;
    return POETC_OK;
}

int poetc_host_close(poetc_store *store)
{
    host_store *host = store->context;
    int failed = fclose(host->file);

    free(host);
    store->context = NULL;
    return failed ? POETC_EIO : POETC_OK;
}
