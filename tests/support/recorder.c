/* Records what a program writes to files, in order, for a medium that is simulated afterwards
 * (tests/support/medium.py).
 *
 * Linked into the program with -Wl,--wrap=NAME for each function below. Where the environment's RECORD names a file,
 * each call is appended to it: a letter, then counted strings and numbers as medium.py reads them.
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "poetc_checkpoint.h"

enum { FILES = 64 };

static char names[FILES][256];

static FILE *record(void)
{
    static FILE *file;
    const char *path = getenv("RECORD");

    if (file == NULL && path != NULL)
        file = fopen(path, "wb");
    return file;
}

static void put(char letter, const char *first, const char *second, uint64_t offset, const void *data, uint64_t size)
{
    FILE *file = record();
    uint64_t head[4] = {strlen(first), strlen(second), offset, size};

    if (file == NULL)
        return;
    fputc(letter, file);
    fwrite(head, sizeof head, 1, file);
    fwrite(first, 1, strlen(first), file);
    fwrite(second, 1, strlen(second), file);
    fwrite(data, 1, size, file);
    fflush(file);
}

static int opened(int file, const char *path, int flags, int existed)
{
    if (file < 0 || file >= FILES)
        return file;
    snprintf(names[file], sizeof names[file], "%s", path);
    if (flags & O_CREAT && !existed)
        put('c', path, "", 0, "", 0);
    else if (flags & O_TRUNC)
        put('t', path, "", 0, "", 0);
    return file;
}

#define OPEN(name)                                              \
    int __real_##name(const char *path, int flags, ...);        \
    int __wrap_##name(const char *path, int flags, ...)         \
    {                                                           \
        int existed = access(path, F_OK) == 0, mode;            \
        va_list arguments;                                      \
        va_start(arguments, flags);                             \
        mode = flags & O_CREAT ? va_arg(arguments, int) : 0;    \
        va_end(arguments);                                      \
        return opened(__real_##name(path, flags, mode), path, flags, existed); \
    }
OPEN(open)
OPEN(open64)

#define PWRITE(name)                                                                    \
    ssize_t __real_##name(int file, const void *data, size_t size, int64_t offset);     \
    ssize_t __wrap_##name(int file, const void *data, size_t size, int64_t offset)      \
    {                                                                                   \
        ssize_t written = __real_##name(file, data, size, offset);                      \
        if (written > 0)                                                                \
            put('w', names[file], "", (uint64_t)offset, data, (uint64_t)written);       \
        return written;                                                                 \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t __real_write(int file, const void *data, size_t size);
ssize_t __wrap_write(int file, const void *data, size_t size)
{
    off_t offset = lseek(file, 0, SEEK_CUR);
    ssize_t written = __real_write(file, data, size);

    if (written > 0 && file > 2)
        put('w', names[file], "", (uint64_t)offset, data, (uint64_t)written);
    return written;
}

#define SYNC(name)                          \
    int __real_##name(int file);            \
    int __wrap_##name(int file)             \
    {                                       \
        int failed = __real_##name(file);   \
        if (!failed)                        \
            put('s', names[file], "", 0, "", 0); \
        return failed;                      \
    }
SYNC(fsync)
SYNC(fdatasync)

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    int failed = __real_rename(from, to);

    if (!failed)
        put('r', from, to, 0, "", 0);
    return failed;
}

int __real_unlink(const char *path);
int __wrap_unlink(const char *path)
{
    int failed = __real_unlink(path);

    if (!failed)
        put('u', path, "", 0, "", 0);
    return failed;
}

int __real_poetc_checkpoint_save(const poetc_runtime *runtime, poetc_checkpoint *checkpoint);
int __wrap_poetc_checkpoint_save(const poetc_runtime *runtime, poetc_checkpoint *checkpoint)
{
    int err = __real_poetc_checkpoint_save(runtime, checkpoint);

    if (!err)
        put('k', "", "", runtime->run_count, "", 0);
    return err;
}
