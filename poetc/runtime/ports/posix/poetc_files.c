/* See poetc_files.h. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "poetc_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* pwrite and pread may move less than was asked for, or nothing when a signal comes. 0, or POETC_EIO. */
static int write_at(int file, const uint8_t *data, size_t size_bytes, off_t offset)
{
    while (size_bytes > 0) {
        ssize_t written = pwrite(file, data, size_bytes, offset);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return POETC_EIO;
        data += written;
        offset += written;
        size_bytes -= (size_t)written;
    }
    return POETC_OK;
}

static int page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data)
{
    const poetc_file_store *files = context;

    return write_at(files->file, data, (size_t)block_count * files->block_bytes,
                    (off_t)first_block * (off_t)files->block_bytes);
}

static int page_in(void *context, uint32_t first_block, uint32_t block_count, void *data)
{
    const poetc_file_store *files = context;
    uint8_t *to = data;
    size_t left = (size_t)block_count * files->block_bytes;
    off_t offset = (off_t)first_block * (off_t)files->block_bytes;

    while (left > 0) {
        ssize_t read = pread(files->file, to, left, offset);

        if (read < 0 && errno == EINTR)
            continue;
        if (read < 0)
            return POETC_EIO;
        if (read == 0) {
            memset(to, 0, left);
            break;
        }
        to += read;
        offset += read;
        left -= (size_t)read;
    }
    return POETC_OK;
}

static int sync_file(void *context)
{
    const poetc_file_store *files = context;

    return fdatasync(files->file) == 0 ? POETC_OK : POETC_EIO;
}

/* A new name is on the medium only when its directory is. Some file systems cannot sync a directory and say EINVAL:
 * they need not. */
static int sync_directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path) + 1u;
    char directory[POETC_PATH_BYTES];
    int file, failed;

    if (length >= sizeof directory)
        return POETC_EIO;
    memcpy(directory, length > 0 ? path : ".", length > 0 ? length : 1u);
    directory[length > 0 ? length : 1u] = 0;
    file = open(directory, O_RDONLY);
    if (file < 0)
        return POETC_EIO;
    failed = fsync(file) != 0 && errno != EINVAL;
    return close(file) != 0 || failed ? POETC_EIO : POETC_OK;
}

int poetc_file_store_open(poetc_file_store *files, poetc_store *store, const char *path, uint32_t block_bytes)
{
    files->block_bytes = block_bytes;
    files->file = open(path, O_RDWR);
    if (files->file < 0 && errno == ENOENT) {
        files->file = open(path, O_RDWR | O_CREAT, 0666);
        if (files->file >= 0 && sync_directory_of(path)) {
            close(files->file);
            return POETC_EIO;
        }
    }
    if (files->file < 0)
        return POETC_EIO;
    store->page_out = page_out;
    store->page_in = page_in;
    store->sync = sync_file;
    store->context = files;
    return POETC_OK;
}

int poetc_file_store_close(poetc_file_store *files)
{
    return close(files->file) == 0 ? POETC_OK : POETC_EIO;
}

int poetc_file_begin(poetc_new_file *file, const char *path)
{
    size_t length = strlen(path);
    struct stat found;

    if (length + sizeof ".new" > sizeof file->path)
        return POETC_EIO;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) { /* a rename would put a file in place of a device */
        errno = S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
        return POETC_EIO;
    }
    memcpy(file->path, path, length + 1u);
    memcpy(file->temporary, path, length);
    memcpy(file->temporary + length, ".new", sizeof ".new");
    file->file = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    return file->file < 0 ? POETC_EIO : POETC_OK;
}

int poetc_file_write(poetc_new_file *file, const void *data, size_t size_bytes)
{
    const uint8_t *from = data;

    while (size_bytes > 0) {
        ssize_t written = write(file->file, from, size_bytes);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            poetc_file_abandon(file);
            return POETC_EIO;
        }
        from += written;
        size_bytes -= (size_t)written;
    }
    return POETC_OK;
}

int poetc_file_finish(poetc_new_file *file)
{
    int failed = fsync(file->file) != 0;

    if (close(file->file) != 0 || failed || rename(file->temporary, file->path) != 0) {
        unlink(file->temporary);
        return POETC_EIO;
    }
    return sync_directory_of(file->path);
}

void poetc_file_abandon(poetc_new_file *file)
{
    if (file->file >= 0) {
        close(file->file);
        unlink(file->temporary);
        file->file = -1;
    }
}

int poetc_file_copy(const char *from, const char *to)
{
    static poetc_new_file file; /* too large for a stack; programs copy before they start threads */
    char buffer[4096];
    ssize_t size = -1;
    int source = open(from, O_RDONLY), err;

    if (source < 0)
        return POETC_EIO;
    err = poetc_file_begin(&file, to);
    while (!err && (size = read(source, buffer, sizeof buffer)) != 0) {
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0) {
            poetc_file_abandon(&file);
            err = POETC_EIO;
        } else {
            err = poetc_file_write(&file, buffer, (size_t)size);
        }
    }
    close(source);
    return err ? err : poetc_file_finish(&file);
}

static int write_piece(void *context, const void *data, uint32_t size_bytes)
{
    return poetc_file_write(context, data, size_bytes);
}

int poetc_file_save(poetc_session *session, const char *path)
{
    poetc_new_file file;
    int err = poetc_file_begin(&file, path), why;

    if (err)
        return err;
    errno = 0; /* a store's error need not set it */
    err = poetc_session_save(session, write_piece, &file);
    if (!err)
        return poetc_file_finish(&file);
    why = errno;
    poetc_file_abandon(&file);
    errno = why;
    return err;
}

static int read_piece(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    const int *file = context;
    uint8_t *to = data;

    while (size_bytes > 0) {
        ssize_t read = pread(*file, to, size_bytes, (off_t)offset);

        if (read < 0 && errno == EINTR)
            continue;
        if (read <= 0) /* cut while it was read */
            return POETC_EIO;
        to += read;
        offset += (uint32_t)read;
        size_bytes -= (uint32_t)read;
    }
    return POETC_OK;
}

int poetc_file_load(poetc_session *session, const char *path)
{
    struct stat found;
    int file = open(path, O_RDONLY), err;

    if (file < 0)
        return errno == ENOENT ? POETC_ENOENT : POETC_EIO;
    if (fstat(file, &found) != 0)
        err = POETC_EIO;
    else if (found.st_size < 0 || found.st_size > (off_t)UINT32_MAX)
        err = POETC_EINVAL;
    else
        err = poetc_session_load(session, (uint32_t)found.st_size, read_piece, &file);
    close(file);
    return err;
}
