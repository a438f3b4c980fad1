/* The addition of a hosted system (Linux on x86-64 or Cortex-A) to the runtime: a store in a file. */
#ifndef POETC_HOST_H
#define POETC_HOST_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fill in `store` to page to the file `path`, created if it does not exist. Returns 0, POETC_EIO or POETC_EINVAL. */
int poetc_host_open(poetc_store *store, const char *path, uint32_t block_bytes);

/* Close the file. Pages that are to survive a loss of power need a call of store->sync before. Returns 0, or POETC_EIO.
 */
int poetc_host_close(poetc_store *store);

#ifdef __cplusplus
}
#endif

#endif
