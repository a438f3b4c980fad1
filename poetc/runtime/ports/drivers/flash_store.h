/* A store on raw flash, NOR or NAND, whose erase units are larger than blocks.
 *
 * Blocks are written one behind the other into an erased unit, each with a tag, and the newest copy of a block counts.
 * A unit is erased when it holds no newest copy any more, and right before it is written. Copies are moved out of the
 * unit with the fewest, or out of the least worn one. A unit that cannot be erased or programmed is left out. A cut at
 * any point leaves each block as it was before or after its write.
 *
 *     static poetc_flash_store flash;       sizes, functions, and the three tables, see below
 *     err = poetc_flash_open(&flash);
 *     config.store.page_out = poetc_flash_page_out, config.store.page_in = poetc_flash_page_in;
 *     config.store.context = &flash;
 */
#ifndef POETC_FLASH_STORE_H
#define POETC_FLASH_STORE_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_FLASH_TAG 16u     /* bytes behind the data of a block */
#define POETC_FLASH_RESERVE 3u  /* units beside those of the blocks: one may go bad; add one for each further one */
#define POETC_FLASH_WEAR_GAP 8u /* erasures between the most and the least worn unit, at which copies are moved */

/* Bytes that a block takes in a unit, and the size of the buffer. */
#define POETC_FLASH_RECORD_BYTES(block_bytes, prog_bytes)                                                              \
    (((block_bytes) + POETC_FLASH_TAG + (prog_bytes)-1u) / (prog_bytes) * (prog_bytes))

typedef struct poetc_flash_unit {
    uint32_t erases;
    uint16_t live; /* newest copies in it */
    uint8_t is_bad;
} poetc_flash_unit;

/* The caller fills in the fields before `sequence`. The functions return 0 or a negative code. `address` is in bytes
 * from the first unit on. `program` is called once for each piece of an erased unit, in whole multiples of prog_bytes.
 * `erase` makes all bytes of a unit 0xff; it returns a code for a unit that the maker marked as bad. */
typedef struct poetc_flash_store {
    int (*read)(void *context, uint32_t address, void *data, uint32_t size_bytes);
    int (*program)(void *context, uint32_t address, const void *data, uint32_t size_bytes);
    int (*erase)(void *context, uint32_t unit);
    void *context;
    uint32_t unit_bytes, unit_count, prog_bytes;
    uint32_t block_bytes, block_count; /* of the store: program->block_bytes; pages and checkpoints */
    uint16_t *map;                     /* block_count */
    poetc_flash_unit *units;           /* unit_count */
    uint8_t *buffer;                   /* POETC_FLASH_RECORD_BYTES */

    uint32_t sequence; /* of the last record or header: the newest copy has the highest */
    uint32_t active;   /* the unit that is written, or unit_count */
    uint32_t next;     /* its next free record */
    uint32_t youngest; /* the unit that was written last before the start, until another is begun, or unit_count */
} poetc_flash_store;

/* Find the newest copy of each block: all of the flash is read. A piece that cannot be read counts as torn.
 * POETC_EINVAL: fewer units than the blocks and the reserve take, or more than 65,534 records. */
int poetc_flash_open(poetc_flash_store *store);

/* Those of a poetc_store, with the poetc_flash_store as the context; `sync` may be NULL. A block that was never written
 * reads as zeros. POETC_EIO: too many units are bad. */
int poetc_flash_page_out(void *context, uint32_t first_block, uint32_t block_count, const void *data);
int poetc_flash_page_in(void *context, uint32_t first_block, uint32_t block_count, void *data);

#ifdef __cplusplus
}
#endif
#endif
