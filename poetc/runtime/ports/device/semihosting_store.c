/* A store in a file of the debugger's or emulator's machine: block b is at byte b * block_bytes of store.bin. Past its
 * end it reads as zeros, as a fresh card does. */
#include "semihosting.h"

#include <string.h>

#include "poetc_board.h"

typedef struct file_store {
    intptr_t file;
    uint32_t block_bytes;
} file_store;

static file_store the_store;

static int transfer(const file_store *store, intptr_t operation, uint32_t first_block, uint32_t block_count, void *data)
{
    uintptr_t block[3], size_bytes, not_moved;

    block[0] = (uintptr_t)store->file;
    block[1] = (uintptr_t)first_block * store->block_bytes;
    if (semihosting(SEMI_SEEK, block) != 0)
        return POETC_EIO;
    block[1] = (uintptr_t)data;
    block[2] = (uintptr_t)block_count * store->block_bytes;
    size_bytes = block[2];
    not_moved = (uintptr_t)semihosting(operation, block);
    if (operation == SEMI_READ && not_moved > 0 && not_moved <= size_bytes) {
        memset((uint8_t *)data + size_bytes - not_moved, 0, not_moved);
        return POETC_OK;
    }
    return not_moved == 0 ? POETC_OK : POETC_EIO;
}

static int page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    return transfer(context, SEMI_WRITE, first_block, block_count, (void *)(uintptr_t)data);
}

static int page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    return transfer(context, SEMI_READ, first_block, block_count, data);
}

int poetc_board_store(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks)
{
    uintptr_t block[3];

    (void)store_blocks;
    block[0] = (uintptr_t)"store.bin";
    block[1] = SEMI_UPDATE_BINARY;
    block[2] = 9;
    the_store.file = semihosting(SEMI_OPEN, block);
    if (the_store.file == -1) {
        block[1] = SEMI_CREATE_BINARY;
        the_store.file = semihosting(SEMI_OPEN, block);
    }
    if (the_store.file == -1)
        return POETC_EIO;
    the_store.block_bytes = block_bytes;
    store->page_out = page_out;
    store->page_in = page_in;
    store->context = &the_store;
    return POETC_OK;
}
