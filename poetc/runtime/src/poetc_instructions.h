/* The parts of a run, for the files of the runtime that do more than run one program from its first instruction to its
 * last.
 */
#ifndef POETC_INSTRUCTIONS_H
#define POETC_INSTRUCTIONS_H

#include "poetc.h"

/* Run one instruction, whether or not it is one of the present program. With a slice only its next block, if it has
 * blocks: slice->is_within tells whether there are more. */
int poetc_execute(poetc_runtime *runtime, const poetc_instruction *instruction, poetc_slice *slice);

/* The same for an instruction of the opcode POETC_STREAM. Only programs with one link its file. */
int poetc_stream(poetc_runtime *runtime, const poetc_instruction *instruction, poetc_slice *slice);

/* One half of an instruction of the opcode POETC_STREAM_AHEAD: all of its transfers, or all of its kernels. */
typedef struct poetc_half {
    int is_of_store;
    /* Until the other half is done with so many blocks of the instruction. 0: it never will be, since its processor
     * failed. */
    int (*wait)(void *context, uint32_t blocks);
    void (*done)(void *context, uint32_t blocks);
    void *context;
} poetc_half;

/* Run that half, while another processor runs the other. Both are over with one block more than there are, once all is
 * written. POETC_COMPLETE: the other half failed, and nothing that is written here has got its trailer. */
int poetc_stream_half(poetc_runtime *runtime, const poetc_instruction *instruction, const poetc_half *half);

/* Bring back to RAM the state that is away at `instruction`, as poetc_recover does for the present program. */
int poetc_bring_back(poetc_runtime *runtime, const poetc_absence *absences, uint32_t count, uint32_t instruction);

/* A page into `data`, whose last blocks go through `buffer`: one block. POETC_ECORRUPT: it is not whole, or not the one
 * that has `stamp`. */
int poetc_read_page(const poetc_runtime *runtime, uint32_t index, uint32_t slot, uint32_t stamp, uint8_t *data,
                    uint8_t *buffer);

#endif
