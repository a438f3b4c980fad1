/* Files of a POSIX system that survive a loss of power: a store, and files that are whole or not there. No heap. */
#ifndef POETC_FILES_H
#define POETC_FILES_H

#include "poetc_session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A store in a file: block b is at byte b * block_bytes. Past its end it reads as zeros, as a fresh card does. */
typedef struct poetc_file_store {
    int file;
    uint32_t block_bytes;
} poetc_file_store;

/* Fill in `store` to page to the file `path`, created if it does not exist; `files` must outlive it. The file's name is
 * on the medium when this returns. Returns 0 or POETC_EIO. */
int poetc_file_store_open(poetc_file_store *files, poetc_store *store, const char *path, uint32_t block_bytes);

/* Close the file. Pages that are to survive a loss of power need a call of the store's sync before. Returns 0 or
 * POETC_EIO.
 */
int poetc_file_store_close(poetc_file_store *files);

enum { POETC_PATH_BYTES = 4096 };

/* A file that is written under the name PATH.new and gets its own when all of it is on the medium. */
typedef struct poetc_new_file {
    int file;
    char path[POETC_PATH_BYTES], temporary[POETC_PATH_BYTES];
} poetc_new_file;

/* Each returns 0 or POETC_EIO, which is also for a path that is a device or a directory. After an error, and after
 * poetc_file_abandon, the older file of that name is as it was. */
int poetc_file_begin(poetc_new_file *file, const char *path);
int poetc_file_write(poetc_new_file *file, const void *data, size_t size_bytes);
int poetc_file_finish(poetc_new_file *file);
void poetc_file_abandon(poetc_new_file *file);

/* Make `to` a copy of `from`, whole or not at all. Returns 0 or POETC_EIO. */
int poetc_file_copy(const char *from, const char *to);

/* The state of a session as a file, such as trained.bin: written whole or not at all, and read back. They return the
 * codes of poetc_session_save and poetc_session_load; POETC_ENOENT: there is no such file; POETC_EIO: `errno` says
 * why. */
int poetc_file_save(poetc_session *session, const char *path);
int poetc_file_load(poetc_session *session, const char *path);

#ifdef __cplusplus
}
#endif

#endif
