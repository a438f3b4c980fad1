/* Log, clock, data and end through semihosting. Data come from data.bin, the state goes to trained.bin. */
#include "semihosting.h"

#include "poetc_board.h"
#include "poetc_port.h"

static intptr_t data_file; /* handle; 0: not open. Semihosting's handles are not 0. */
#ifdef POETC_VALIDATES
static intptr_t validation_file;
#endif

static intptr_t open_file(const char *name, uintptr_t length, uintptr_t mode)
{
    uintptr_t block[3];

    block[0] = (uintptr_t)name;
    block[1] = mode;
    block[2] = length;
    return semihosting(SEMI_OPEN, block);
}

/* SEMI_READ and SEMI_WRITE return how many bytes were not moved. */
static uintptr_t move(intptr_t operation, intptr_t file, const void *data, uintptr_t size_bytes)
{
    uintptr_t block[3];

    block[0] = (uintptr_t)file;
    block[1] = (uintptr_t)data;
    block[2] = size_bytes;
    return (uintptr_t)semihosting(operation, block);
}

void poetc_port_log(const char *text)
{
    semihosting(SEMI_WRITE0, text);
}

const uint32_t poetc_port_clock_hz = 100;

uint32_t poetc_port_clock(void)
{
    return (uint32_t)semihosting(SEMI_CLOCK, NULL);
}

POETC_COLD int poetc_port_open(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks, uint32_t record_bytes)
{
    uintptr_t handle, size_bytes;

    data_file = open_file("data.bin", 8, SEMI_READ_BINARY);
    if (data_file == -1) {
        poetc_port_log("data.bin: cannot be read; README.md says what it holds\n");
        return POETC_ENOENT;
    }
    handle = (uintptr_t)data_file;
    size_bytes = (uintptr_t)semihosting(SEMI_FLEN, &handle);
    if (record_bytes > 0 && (size_bytes == 0 || size_bytes % record_bytes > 0))
        return POETC_ENODATA;
    return store_blocks > 0 ? poetc_board_store(store, block_bytes, store_blocks) : POETC_OK;
}

static int read_from(intptr_t file, void *to, uint32_t size_bytes)
{
    const uintptr_t missing = move(SEMI_READ, file, to, size_bytes);

    return missing == 0 ? 1 : missing == size_bytes ? 0 : POETC_ENODATA;
}

static int rewind_file(intptr_t file)
{
    uintptr_t block[2];

    block[0] = (uintptr_t)file;
    block[1] = 0;
    return semihosting(SEMI_SEEK, block) == 0 ? 1 : POETC_EIO;
}

int poetc_port_data(void *to, uint32_t size_bytes)
{
    return read_from(data_file, to, size_bytes);
}

int poetc_port_rewind(void)
{
    return rewind_file(data_file);
}

#ifdef POETC_VALIDATES
int poetc_port_validation(void *to, uint32_t size_bytes)
{
    return read_from(validation_file, to, size_bytes);
}

int poetc_port_rewind_validation(void)
{
    if (validation_file == 0)
        validation_file = open_file("validation.bin", 14, SEMI_READ_BINARY);
    return validation_file == -1 ? POETC_ENOENT : rewind_file(validation_file);
}
#endif

POETC_COLD int poetc_port_result(const void *data, uint32_t size_bytes)
{
    static intptr_t file;
    uintptr_t block = 0;

    if (file == 0)
        file = open_file("trained.bin", 11, SEMI_CREATE_BINARY);
    if (file == -1)
        return POETC_EIO;
    if (size_bytes > 0)
        return move(SEMI_WRITE, file, data, size_bytes) == 0 ? POETC_OK : POETC_EIO;
    block = (uintptr_t)file;
    file = 0; /* another one begins anew */
    return semihosting(SEMI_CLOSE, &block) == 0 ? POETC_OK : POETC_EIO;
}

void poetc_port_stop(int status)
{
    uintptr_t block[2];

    block[0] = 0x20026u; /* the application has exited */
    block[1] = (uintptr_t)status;
    for (;;)
        semihosting(SEMI_EXIT_EXTENDED, block);
}
