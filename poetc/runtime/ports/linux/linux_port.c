/* Linux on Cortex-A: log, clock, data, store in files of the current directory; the arena is static, no heap. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "poetc_files.h"
#include "poetc_port.h"

static FILE *data_file, *validation_file;
static poetc_file_store files;

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

int poetc_port_open(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks, uint32_t record_bytes)
{
    struct stat found;

    data_file = fopen("data.bin", "rb");
    if (data_file == NULL) {
        poetc_port_log("data.bin: cannot be read; README.md says what it holds\n");
        return POETC_ENOENT;
    }
    if (fstat(fileno(data_file), &found) != 0)
        return POETC_EIO;
    if (record_bytes > 0 && S_ISREG(found.st_mode) && (found.st_size == 0 || found.st_size % record_bytes > 0)) {
        printf("data.bin: %llu bytes, no whole number of records of %lu\n", (unsigned long long)found.st_size,
               (unsigned long)record_bytes);
        return POETC_ENODATA;
    }
    if (store_blocks == 0)
        return POETC_OK;
    if (access("store.bin", F_OK) != 0 && access("store.img", R_OK) == 0 && poetc_file_copy("store.img", "store.bin")) {
        poetc_port_log("store.bin: cannot be made of store.img\n");
        return POETC_EIO;
    }
    if (poetc_file_store_open(&files, store, "store.bin", block_bytes)) {
        poetc_port_log("store.bin: cannot be opened and written\n");
        return POETC_EIO;
    }
    return POETC_OK;
}

static int read_from(FILE *file, void *to, uint32_t size_bytes)
{
    const size_t read = fread(to, 1, size_bytes, file);

    if (ferror(file))
        return POETC_EIO;
    return read == size_bytes ? 1 : read == 0 ? 0 : POETC_ENODATA;
}

int poetc_port_data(void *to, uint32_t size_bytes)
{
    return read_from(data_file, to, size_bytes);
}

int poetc_port_rewind(void)
{
    return fseek(data_file, 0, SEEK_SET) == 0 ? 1 : POETC_EIO;
}

int poetc_port_validation(void *to, uint32_t size_bytes)
{
    return read_from(validation_file, to, size_bytes);
}

int poetc_port_rewind_validation(void)
{
    if (validation_file == NULL)
        validation_file = fopen("validation.bin", "rb");
    if (validation_file == NULL)
        return POETC_ENOENT;
    return fseek(validation_file, 0, SEEK_SET) == 0 ? 1 : POETC_EIO;
}

int poetc_port_result(const void *data, uint32_t size_bytes)
{
    static poetc_new_file file;
    static int begun;
    int err = begun ? POETC_OK : poetc_file_begin(&file, "trained.bin");

    begun = size_bytes > 0; /* another one begins anew */
    if (err)
        return err;
    return size_bytes > 0 ? poetc_file_write(&file, data, size_bytes) : poetc_file_finish(&file);
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
