/* The functions that a board gives its port. */
#ifndef POETC_BOARD_H
#define POETC_BOARD_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Get the board's storage ready and fill in `store`. Returns 0 or a negative code. */
int poetc_board_store(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks);

#ifdef __cplusplus
}
#endif

#endif
