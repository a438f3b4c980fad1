/* Checkpoints: the training state in slots of the store, written in turn, so that a power loss at any moment leaves a
 * whole one.
 *
 * The store's barrier (poetc_store.sync) orders the writes. The state, and every page before it, is on the medium
 * before the trailer that makes the slot valid. The trailer is there before anything writes to the other slot.
 *
 *     err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
 *     err = poetc_checkpoint_load(&runtime, &checkpoint);      POETC_ENOENT: none yet, start from the beginning
 *     for (step = runtime.run_count; step < steps; step++) {
 *         ... inputs ...
 *         err = poetc_run(&runtime);
 *         err = poetc_checkpoint_save(&runtime, &checkpoint);
 *     }
 *
 * After a cut at any point the loop goes on from the last step whose checkpoint is whole: at most one step is lost.
 * Where state lives on the store (pages with two slots), save after every run. Where all state is in RAM, the steps
 * between two saves are those that may be lost.
 */
#ifndef POETC_CHECKPOINT_H
#define POETC_CHECKPOINT_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_CHECKPOINT_TRAILER 24u /* bytes at the end of a slot: version, sequence, records, their CRC-32, size, CRC-32 */

#define POETC_CHECKPOINT_WORDS 8u

typedef struct poetc_checkpoint {
    uint32_t first_block; /* of the store: past the pages of all programs. A checkpoint takes slots *
                             poetc_checkpoint_blocks(). */
    uint32_t slots;       /* at least 2; more spread the wear of the card over more blocks */
    void *buffer;         /* one block (program->block_bytes), used during the calls only */
    uint32_t identity;    /* of the model: a checkpoint of another one is passed over */
    uint32_t records; /* the caller's, saved and restored with the state: how many records of its data it has used, */
    uint32_t records_crc;                   /* and their checksum, which tells whether the data are still the same */
    uint32_t words[POETC_CHECKPOINT_WORDS]; /* the caller's, too, for whatever else it goes on from */
} poetc_checkpoint;

/* Blocks of one slot. */
uint32_t poetc_checkpoint_blocks(const poetc_program *program);

/* Save the state and the counters of the last complete run. 0, POETC_EINVAL (no store, fewer than two slots), or the
 * driver's code; after an error the checkpoint before this one is whole. */
int poetc_checkpoint_save(const poetc_runtime *runtime, const poetc_checkpoint *checkpoint);

/* Restore the newest whole checkpoint, with its `records`, `records_crc` and `words`. Torn, damaged and foreign ones
 * are passed over. After another code the state and `words` may be anything: call poetc_init with `state_image` again.
 */
int poetc_checkpoint_load(poetc_runtime *runtime, poetc_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
