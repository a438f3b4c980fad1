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
 * Where state lives on the store (pages with two slots), save after every run, and after poetc_state_read. Where all
 * state is in RAM, the steps between two saves are those that may be lost.
 *
 * The data are in the order of poetc_state.h. Where all state is in RAM, firmware with another schedule of the same
 * model finds the checkpoint of earlier firmware. It goes on with the same bits. Where state is on the store, its pages
 * have other places there: write a stream with the firmware before, and read it with the next.
 *
 * The newest checkpoint is the one that was saved last, whatever its step. So a state that was read from a stream lasts
 * once it is saved.
 */
#ifndef POETC_CHECKPOINT_H
#define POETC_CHECKPOINT_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes at the end of a slot: number of the save, version offset, complete runs, sequence, records, their CRC-32, size,
 * CRC-32. */
#define POETC_CHECKPOINT_TRAILER 32u

#define POETC_CHECKPOINT_WORDS 8u

typedef struct poetc_checkpoint {
    uint32_t first_block; /* of the store: that of the model for two slots, or any past the pages of all programs. They
                             take slots * poetc_checkpoint_blocks(). */
    uint32_t slots;       /* at least 2; more spread the wear of the card over more blocks */
    void *buffer;         /* one block (program->block_bytes), used during the calls only */
    uint32_t identity;    /* of the state: a checkpoint of another one is passed over */
    uint32_t records; /* the caller's, saved and restored with the state: how many records of its data it has used, */
    uint32_t records_crc;                   /* and their checksum, which tells whether the data are still the same */
    uint32_t words[POETC_CHECKPOINT_WORDS]; /* the caller's, too, for whatever else it goes on from */
    uint32_t saves;     /* kept by save and load, 0 at first: the number of the newest save; 0: not known yet */
    uint32_t next_slot; /* kept by them, too: where the next save goes, */
    uint32_t version;   /* and the version of the state in the newest one: its pages must stay */
} poetc_checkpoint;

/* Blocks of one slot. */
uint32_t poetc_checkpoint_blocks(const poetc_program *program);

/* Save the state and the counters of the last complete run, in the slot behind the newest one. 0, POETC_EINVAL (no
 * store, fewer than two slots, or slots that reach the first page), or the driver's code. After an error the checkpoint
 * before this one is whole. Without a load before it, the first save reads all slots. */
int poetc_checkpoint_save(const poetc_runtime *runtime, poetc_checkpoint *checkpoint);

/* Restore the newest whole checkpoint, with its `records`, `records_crc` and `words`. Torn, damaged, foreign and
 * unreadable ones are passed over. POETC_ENOENT: no slot has one. The driver's code: none is whole, and some slot
 * cannot be read. After either the state and `words` may be anything: call poetc_init with `state_image` again. */
int poetc_checkpoint_load(poetc_runtime *runtime, poetc_checkpoint *checkpoint);

/* Go back to the checkpoint before the newest one, which becomes void. POETC_ENOENT: there is no other. POETC_ECORRUPT:
 * state on the store has been overwritten since. After these two the newest one is loaded. Other codes: the driver's,
 * as after a load that failed. After a cut one of the two is the newest. */
int poetc_checkpoint_rollback(poetc_runtime *runtime, poetc_checkpoint *checkpoint);

/* Make all slots void, so that a load finds none. 0, POETC_EINVAL (no store, fewer than two slots), or the driver's
 * code. */
int poetc_checkpoint_erase(const poetc_runtime *runtime, poetc_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
