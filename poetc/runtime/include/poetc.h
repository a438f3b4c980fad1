/* poetc runtime: runs an emitted training step on a caller-provided arena.
 *
 * C99, no malloc, no global state. Every function that can fail returns 0 or a negative POETC_E* code.
 */
#ifndef POETC_H
#define POETC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_ALIGN 16u /* bytes; every operand starts at a multiple, and so must the arena and the constants */

enum poetc_error {
    POETC_OK = 0,
    POETC_EINVAL = -22,  /* a wrong argument: arena missing, too small or not aligned */
    POETC_EIO = -5,      /* the store's driver reported an error */
    POETC_ECORRUPT = -84, /* a page failed its checksum, or is not the one that was written in this step */
    POETC_ERANGE = -34   /* data out of range: a class index or a token outside the table */
};

/* A reference to an operand: bit 0 tells the space (0 arena, 1 constants), the rest is offset / POETC_ALIGN. */
typedef uint32_t poetc_ref;
#define POETC_REF_FLASH 1u

/* What a kernel sees: its operands (inputs, outputs, then workspace), compile-time constants, and the two memory spaces. */
typedef struct poetc_call {
    const poetc_ref *refs;
    const int32_t *ints;
    const float *floats;
    uint8_t *arena;
    const uint8_t *flash;
} poetc_call;

typedef int (*poetc_kernel)(const poetc_call *call);

static inline const void *poetc_in(const poetc_call *call, unsigned operand)
{
    poetc_ref ref = call->refs[operand];
    size_t offset = (size_t)(ref >> 1) * POETC_ALIGN;
    return (ref & POETC_REF_FLASH) ? (const void *)(call->flash + offset) : (const void *)(call->arena + offset);
}

static inline void *poetc_out(const poetc_call *call, unsigned operand)
{
    return call->arena + (size_t)(call->refs[operand] >> 1) * POETC_ALIGN;
}

enum poetc_opcode { POETC_COMPUTE = 0, POETC_PAGE_OUT = 1, POETC_PAGE_IN = 2 };

/* One step of a program. For a page step refs[0] is the tensor and ints = { page index }. */
typedef struct poetc_step {
    poetc_kernel kernel;
    const poetc_ref *refs;
    const int32_t *ints;
    const float *floats;
    uint8_t opcode;
} poetc_step;

/* A region of the store: size_bytes of data and a 16-byte trailer, in whole blocks. */
typedef struct poetc_page {
    uint32_t first_block;
    uint32_t size_bytes;
} poetc_page;

/* An emitted program: const, lives in flash. */
typedef struct poetc_program {
    const poetc_step *steps;
    uint32_t step_count;
    const poetc_page *pages; /* NULL if it does not page */
    uint32_t page_count;
    uint32_t block_bytes;        /* of the store */
    uint32_t page_buffer_offset; /* of one block in the arena; used only if page_count > 0 */
    size_t arena_bytes;          /* what the step needs, state included */
    size_t state_bytes;          /* the bottom of the arena, kept from step to step */
    uint32_t loss_offset;        /* of the loss, a float, in the arena */
} poetc_program;

/* Secondary storage. Both calls move whole blocks and return 0 or a negative code. */
typedef struct poetc_store {
    int (*page_out)(void *context, uint32_t first_block, uint32_t block_count, const void *data);
    int (*page_in)(void *context, uint32_t first_block, uint32_t block_count, void *data);
    void *context;
} poetc_store;

struct poetc_runtime;

/* Called before each step (index = 0 .. step_count - 1) and once after the last (index = step_count); a negative return value
 * ends the run with it. For progress, watchdogs, measurement and validation. */
typedef int (*poetc_observer)(void *context, const struct poetc_runtime *runtime, uint32_t index);

/* All the memory that the runtime itself needs. Zero it, or use poetc_init. */
typedef struct poetc_runtime {
    const poetc_program *program;
    uint8_t *arena;       /* POETC_ALIGN-aligned, at least program->arena_bytes */
    const uint8_t *flash; /* constants, POETC_ALIGN-aligned; may be NULL if there are none */
    poetc_store store;    /* may be all NULL if the program does not page */
    poetc_observer observer; /* may be NULL */
    void *observer_context;
    uint32_t run_count; /* complete runs since poetc_init: marks pages, so that a stale page is detected */
    uint32_t page_ins;  /* transfers since poetc_init */
    uint32_t page_outs;
} poetc_runtime;

/* Check the arguments and set up `runtime`. state_image (state_bytes) is copied to the bottom of the arena; NULL leaves the arena as it is. */
int poetc_init(poetc_runtime *runtime, const poetc_program *program, void *arena, size_t arena_bytes,
               const void *flash, const void *state_image);

/* Run the program once: one training step. On an error the run stops at that step. */
int poetc_run(poetc_runtime *runtime);

/* The loss of the last run. */
float poetc_loss(const poetc_runtime *runtime);

#ifdef __cplusplus
}
#endif
#endif
