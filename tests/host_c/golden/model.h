/* tiny: sizes, offsets and programs. Made by poetc. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include "poetc_session.h"

#if POETC_TABLES != 3
#error "the runtime beside this model is of another version: emit both again"
#endif

#ifdef __cplusplus
extern "C" {
#endif

extern const poetc_program tiny_train;
extern const uint8_t tiny_state[]; /* the initial state, for poetc_init */
extern const poetc_limit tiny_limits[]; /* of the inputs, for poetc_check_inputs */
extern const poetc_region tiny_regions[]; /* where state lives, for poetc_state_write */
extern const poetc_model tiny_model; /* all of it, for poetc_session_init */
extern const poetc_model tiny_loop; /* the programs that firmware calls: evaluate only with POETC_VALIDATES */

#define TINY_ARENA_BYTES 704u /* RAM for poetc_config.arena, enough for every program */
#define TINY_STATE_BYTES 304u /* the bottom of it, kept from run to run */
#define TINY_FLASH_BYTES 0u /* constants */
#define TINY_BLOCK_BYTES 64u /* a block of the store */
#define TINY_STORE_BLOCKS 14u /* blocks of the store in use, from block 0 */

/* train: 15 instructions */

#define TINY_TRAIN_ARENA_BYTES 704u
#define TINY_TRAIN_INPUT_COUNT 2u
extern const poetc_binding tiny_train_inputs[]; /* inputs, then the target */
extern const poetc_binding tiny_train_outputs[];

/* x [4, 2, 3] */
#define TINY_TRAIN_IN_X_ELEMENTS 24u
static inline float *tiny_train_in_x(void *arena)
{
    return (float *)(void *)((uint8_t *)arena + 304u);
}

/* target [4] */
#define TINY_TRAIN_IN_TARGET_ELEMENTS 4u
static inline int32_t *tiny_train_in_target(void *arena)
{
    return (int32_t *)(void *)((uint8_t *)arena + 464u);
}

/* loss [] */
#define TINY_TRAIN_OUT_LOSS_ELEMENTS 1u
static inline float *tiny_train_out_loss(void *arena)
{
    return (float *)(void *)((uint8_t *)arena + 624u);
}

/* State: offset in the arena and size, in bytes. */
#define TINY_STATE_FC1_WEIGHT_OFFSET 0u /* fc1.weight [4, 6] */
#define TINY_STATE_FC1_WEIGHT_BYTES 96u
#define TINY_STATE_FC2_WEIGHT_OFFSET 96u /* fc2.weight [3, 4] */
#define TINY_STATE_FC2_WEIGHT_BYTES 48u
#define TINY_STATE_LEARNING_RATE_OFFSET 144u /* learning_rate [1] */
#define TINY_STATE_LEARNING_RATE_BYTES 4u
#define TINY_STATE_FC2_WEIGHT_VELOCITY_OFFSET 160u /* fc2.weight:velocity [3, 4] */
#define TINY_STATE_FC2_WEIGHT_VELOCITY_BYTES 48u
#define TINY_STATE_FC1_WEIGHT_VELOCITY_OFFSET 208u /* fc1.weight:velocity [4, 6] */
#define TINY_STATE_FC1_WEIGHT_VELOCITY_BYTES 96u

#define TINY_LEARNING_RATE_OFFSET 144u
static inline void tiny_set_learning_rate(poetc_runtime *runtime, float value)
{
    poetc_set_float(runtime, TINY_LEARNING_RATE_OFFSET, value);
}

/* The main program under names that do not depend on the model. */
#define POETC_MODEL_NAME "tiny"
#define POETC_MODEL_PROGRAM (&tiny_train)
#define POETC_MODEL_INPUTS tiny_train_inputs
#define POETC_MODEL_INPUT_COUNT TINY_TRAIN_INPUT_COUNT
#define POETC_MODEL_LIMITS tiny_limits
#define POETC_MODEL_STATE tiny_state
#define POETC_MODEL_CONSTANTS NULL
#define POETC_MODEL_ARENA_BYTES TINY_ARENA_BYTES
#define POETC_MODEL_STATE_BYTES TINY_STATE_BYTES
#define POETC_MODEL_REGIONS tiny_regions
#define POETC_MODEL_REGION_COUNT 5u
#define POETC_MODEL_BLOCK_BYTES TINY_BLOCK_BYTES
#define POETC_MODEL_STORE_BLOCKS TINY_STORE_BLOCKS
#define POETC_MODEL_STORE_HAS_IMAGE 0
#define POETC_MODEL_CHECKPOINT_BLOCK 0u
#define POETC_MODEL_IDENTITY 0xdd83483bu
#define POETC_MODEL_EMISSION 0xe94daff8u
#define POETC_MODEL_DESCRIPTION (&tiny_model)
#define POETC_MODEL_LOOP (&tiny_loop)
#define POETC_MODEL_BUFFER_OFFSET 640u

/* Gradients: before which instruction they are whole, offset in the arena, bytes. */
#define POETC_MODEL_GRADIENTS { \
    {14u, 400u, 96u}, \
    {10u, 576u, 48u}, \
}

#ifdef __cplusplus
}
#endif

#endif
