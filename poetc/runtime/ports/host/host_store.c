/* A store in a file, opened and closed from any program: see poetc_files.h for its behaviour. */
#include "poetc_host.h"

#include <stdlib.h>

#include "poetc_files.h"

int poetc_host_open(poetc_store *store, const char *path, uint32_t block_bytes)
{
    poetc_file_store *files;
    int err;

    if (store == NULL || path == NULL || block_bytes == 0)
        return POETC_EINVAL;
    files = malloc(sizeof *files);
    if (files == NULL)
        return POETC_EIO;
    err = poetc_file_store_open(files, store, path, block_bytes);
    if (err)
        free(files);
    return err;
}

int poetc_host_close(poetc_store *store)
{
    poetc_file_store *files = store->context;
    int err = poetc_file_store_close(files);

    free(files);
    store->context = NULL;
    return err;
}
