/* poetc runtime: runs an emitted training step on a caller-provided arena.
 *
 * C99, no malloc, no mutable global state (but for the pool of threads that -DPOETC_THREADS=N asks for), no recursion.
 * Every function that can fail returns 0 or a negative code: one of POETC_E*, or the code of the store's driver or the
 * observer.
 */
#ifndef POETC_H
#define POETC_H

#include "poetc_cold.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "poetc: weights and files are little-endian, and this target is big-endian"
#endif

#ifdef POETC_HOOKS /* a header of the project's: docs/how-to/train-in-c.md#hooks */
#include POETC_HOOKS
#endif
#ifndef POETC_ASSERT
#define POETC_ASSERT(condition) ((void)0) /* holds unless a stray write has damaged the runtime's own memory */
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_VERSION "0.2.0" /* of poetc, whose runtime this is */
#define POETC_TABLES 3        /* version of emitted tables and images: those of another are refused when they compile */
#define POETC_FORMAT 2        /* version of pages, checkpoints and streams of state */

#define POETC_ALIGN 16u   /* bytes; every operand starts at a multiple, and so must the arena and the constants */
#define POETC_TRAILER 16u /* bytes at the end of the last block of a page: page, stamp, size, CRC-32 (little-endian) */

enum poetc_error {
    POETC_OK = 0,
    POETC_ENOENT = -2,     /* no such file, no whole checkpoint on the store */
    POETC_EIO = -5,        /* the store's driver reported an error and no code of its own */
    POETC_EBUSY = -16,     /* a step of the session was begun, and is not complete */
    POETC_EINVAL = -22,    /* a wrong argument: arena, constants or store missing, too small or not aligned */
    POETC_ENUMBER = -33,   /* a NaN or an infinity; the training programs stop with it, poetc_run does not look */
    POETC_ERANGE = -34,    /* data out of range: a class index or a token outside the table */
    POETC_EEXPONENT = -75, /* an integer tensor has an exponent above 100, or f16 a number beyond its range */
    POETC_ENODATA = -61,   /* no whole record of data; of the training programs */
    POETC_ECORRUPT = -84   /* a page is torn, fails its checksum, or is not the one that was written last */
};

/* A reference to an operand: bit 0 tells the space (0 arena, 1 constants), the rest is offset / POETC_ALIGN. */
typedef uint32_t poetc_ref;
#define POETC_REF_FLASH 1u

#ifdef POETC_THREADS
/* Share `part` of `parts` of a kernel's results. 0 parts: the kernel may ask for threads. */
typedef struct poetc_share {
    int32_t part, parts;
} poetc_share;
#endif

/* The arguments of a kernel: its operands (inputs, outputs, then workspace), compile-time constants, and the two memory
 * spaces. */
typedef struct poetc_call {
    const poetc_ref *refs;
    const int32_t *ints;
    const float *floats;
    uint8_t *arena;
    const uint8_t *flash;
#ifdef POETC_THREADS
    poetc_share share;
    float *workspace; /* of this thread; NULL: the operand */
#endif
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

enum poetc_opcode {
    POETC_COMPUTE = 0,
    POETC_PAGE_OUT = 1,
    POETC_PAGE_IN = 2,
    POETC_STREAM = 3,
    POETC_STREAM_AHEAD = 4
};

/* Which write of a page a page-in must find; anything else is POETC_ECORRUPT. */
enum poetc_page_source {
    POETC_PAGE_THIS_RUN = 0, /* written earlier in this run */
    POETC_PAGE_LAST_RUN = 1, /* state that lives on the store, as the last complete run left it */
    POETC_PAGE_IMAGE = 2     /* never written by the program: frozen weights that live on the store */
};

/* One instruction of a program. Page-out: refs[0] is the tensor, ints = { page }. Page-in: ints = { page, source }. A
 * stream is a computation in blocks, some of whose operands are on the store (src/poetc_stream.c). One that reads ahead
 * has two windows for each, so that its transfers can overlap its kernels (poetc_queues.h). */
typedef struct poetc_instruction {
    poetc_kernel kernel; /* NULL in a page instruction; of each block in a stream */
    const poetc_ref *refs;
    const int32_t *ints;
    const float *floats;
    uint8_t opcode;
} poetc_instruction;

/* A region of the store. A slot is size_bytes of data and the trailer, in whole blocks. State that lives on the store
 * has two slots, which successive runs write in turn. A run that fails leaves the slot of the last complete run whole.
 */
typedef struct poetc_page {
    uint32_t first_block;
    uint32_t size_bytes;
    uint32_t slots; /* 1 or 2; 0: the checksums of the page before it, one for each POETC_SUMMED_BYTES. 3: the same with
                       two slots, and the rows that the last run moved: their count and numbers. */
} poetc_page;

#define POETC_SUMMED_BYTES 8192u /* of a table of which single rows are read */

/* State that lives in RAM is not in its place while instructions begin .. end - 1 run: the schedule has other data
 * there. */
typedef struct poetc_absence {
    uint32_t begin;
    uint32_t end;
    uint32_t page;   /* The page that has it then, written earlier in the run. */
    uint32_t offset; /* bytes: of the state's place in the arena */
} poetc_absence;

/* A part of the state: a range of the arena, or a page of the store. */
typedef struct poetc_region {
    uint32_t place;      /* offset in the arena, in bytes; or, if size_bytes is 0, the page */
    uint32_t size_bytes; /* a multiple of POETC_ALIGN, or 0 */
} poetc_region;

/* An emitted program: const, lives in flash. */
typedef struct poetc_program {
    const poetc_instruction *instructions;
    uint32_t instruction_count;
    const poetc_page *pages; /* NULL if it does not page */
    uint32_t page_count;
    const poetc_absence *absences; /* NULL if no state leaves RAM for a while */
    uint32_t absence_count;
    uint32_t block_bytes;        /* of the store: a multiple of 16, at least 32 */
    uint32_t page_buffer_offset; /* bytes: of one block in the arena; used only if page_count > 0 */
    uint32_t arena_bytes;        /* RAM that a run needs, with the state */
    uint32_t state_bytes;        /* the bottom of the arena, in which the state lies */
    const poetc_region *regions; /* where it lies, by name; everything else of the arena is free between two runs */
    uint32_t region_count;
    uint32_t flash_bytes;  /* of the constants */
    uint32_t loss_offset;  /* bytes: of the first output (training: the loss, a float) in the arena */
    uint8_t updates_state; /* 1: a complete run makes a new version of the state (training); 0: inference */
} poetc_program;

/* A tensor that the caller reaches by name, in the arena; or an input on the store, whose offset has POETC_ON_STORE. */
#define POETC_ON_STORE 1u /* and besides it the page times POETC_ALIGN */
typedef struct poetc_binding {
    const char *name;
    uint32_t offset; /* bytes */
    uint32_t size_bytes;
} poetc_binding;

/* Takes bytes, piece by piece. Returns 0 or a negative code, which ends the transfer. */
typedef int (*poetc_sink)(void *context, const void *data, uint32_t size_bytes);

/* Fills `data` with the `size_bytes` that begin at `offset`. Returns 0 or a negative code, which ends the transfer. */
typedef int (*poetc_source)(void *context, uint32_t offset, void *data, uint32_t size_bytes);

/* Secondary storage. All calls return 0 or a negative code; the first two move whole blocks of program->block_bytes.
 *
 * `sync` is a barrier: when it returns, all that was written before is on the medium and survives a loss of power.
 * Without it (NULL) page_out must itself return only then, as a driver does that waits for its card. Checkpoints call
 * it; a run does not. */
typedef struct poetc_store {
    int (*page_out)(void *context, uint32_t first_block, uint32_t block_count, const void *data);
    int (*page_in)(void *context, uint32_t first_block, uint32_t block_count, void *data);
    void *context;
    int (*sync)(void *context);
} poetc_store;

struct poetc_runtime;

/* Called before each instruction (index = 0 .. instruction_count - 1) and once after the last (index =
 * instruction_count); a negative return value ends the run with it. For progress, watchdogs, measurement and
 * validation. */
typedef int (*poetc_observer)(void *context, const struct poetc_runtime *runtime, uint32_t index);

/* Settings and memory that the caller provides. Must outlive the runtime; may be const and live in flash. */
typedef struct poetc_config {
    void *arena;             /* POETC_ALIGN-aligned RAM. Required. */
    size_t arena_bytes;      /* size of it: at least that of the largest program that is run. Required. */
    const void *flash;       /* the constants, POETC_ALIGN-aligned. Default NULL: the program has none. */
    poetc_store store;       /* Default all NULL: the program does not page. */
    poetc_observer observer; /* Default NULL: none. */
    void *observer_context;  /* handed to the observer. Default NULL. */
} poetc_config;

/* All the memory that the runtime itself needs, besides the arena and the stack. That is 32 bytes where a pointer has
 * 4, and 40 where it has 8. */
typedef struct poetc_runtime {
    const poetc_config *config;
    const poetc_program *program;
    uint32_t run_count; /* complete runs of a training program */
    uint32_t sequence;  /* runs begun, complete or not: stamps pages, so that a page of an earlier run is not taken for
                           this one's */
    uint32_t instruction; /* where the last run stopped: the instruction that failed, or instruction_count */
    uint32_t page_ins;    /* transfers so far */
    uint32_t page_outs;
    uint32_t version_offset; /* to run_count: the version of the state, with which its pages are stamped. 0 until state
                                is taken over from a stream, which makes a new version whatever its run_count. */
} poetc_runtime;

/* Check the configuration against `program` and set up `runtime`. `state_image` is the emitted initial state, which
 * goes to its place: pieces of the arena, and zeros between them in the regions of the state. NULL leaves the arena as
 * it is. POETC_EINVAL: see there. */
int poetc_init(poetc_runtime *runtime, const poetc_program *program, const poetc_config *config,
               const void *state_image);

/* Go on with another program of the same emitted model (from training to inference and back): state and counters stay.
 */
int poetc_select(poetc_runtime *runtime, const poetc_program *program);

/* Run the program once: one training step, or one prediction. Write the inputs to the arena before each run, or with
 * poetc_write_input; they need not survive it.
 *
 * On an error the run stops at that instruction (runtime->instruction) and returns the code of the first error. Each
 * tensor of state then holds the old or the new version, since an update is one instruction of the program. It is never
 * a mixture, and never has data from a bad page. State that was only on the store at that moment is brought back by
 * poetc_recover, which poetc_run calls once. State that lives on the store is that of the last complete run. To undo
 * the half step, restore a saved copy of the state. To go on regardless, call poetc_run again. */
int poetc_run(poetc_runtime *runtime);

/* Where an instruction in blocks has stopped, between two pieces of a run: the caller's memory, of which it writes
 * nothing. */
#define POETC_STREAMS 12 /* operands of an instruction that pass through windows, at most */
typedef struct poetc_slice {
    int32_t block[2];
    uint32_t crc[POETC_STREAMS], again[POETC_STREAMS];
    uint32_t rows;     /* of a table's rows that move: those that are copied before the first block */
    uint8_t is_within; /* an instruction: some of its blocks are over */
} poetc_slice;

#define POETC_COMPLETE 1 /* poetc_advance: the run is complete */

/* The same run in pieces: poetc_begin, then poetc_advance until it returns POETC_COMPLETE, or a code as poetc_run. A
 * piece is an instruction of the program. With a `slice`, the same in all calls, it is one block of an instruction in
 * blocks, or a row that is copied before. Between two pieces the arena belongs to the run. */
void poetc_begin(poetc_runtime *runtime, poetc_slice *slice);
int poetc_advance(poetc_runtime *runtime, poetc_slice *slice);

/* After a run that failed, bring state back to RAM that the schedule had moved to the store. A page that cannot be
 * read, or is not whole, is left out, and its data are not in their place. The other pages are brought back all the
 * same, and the first error is returned. Call it again once the store works, before the next poetc_run. There is
 * nothing to do after a run that went well. */
int poetc_recover(poetc_runtime *runtime);

/* The loss of the last run: a copy of the float at program->loss_offset. */
float poetc_loss(const poetc_runtime *runtime);

/* Read or write a float in the arena between runs, such as the learning rate: `offset` in bytes, from the emitted
 * header. */
float poetc_get_float(const poetc_runtime *runtime, uint32_t offset);
void poetc_set_float(poetc_runtime *runtime, uint32_t offset, float value);

/* Blocks of one slot of a page. */
uint32_t poetc_page_blocks(const poetc_program *program, uint32_t page);

/* Put the initial value of a page on the store, for state that lives there: `data` has size_bytes of it. The emitted
 * store image has the same bytes. */
int poetc_load_page(poetc_runtime *runtime, uint32_t page, const void *data);

/* Hand the data of a page of state to `sink`, as the last complete run left it. They go a block at a time through the
 * page buffer, between two runs only. POETC_ECORRUPT: the page is not whole, and nothing was handed over. */
int poetc_read_state_page(poetc_runtime *runtime, uint32_t page, poetc_sink sink, void *context);

/* The other way: write a page of state from `offset` of `source` on, as that of `version` (run_count and version_offset
 * of the runtime, together). A page with two slots keeps its other version. A page with one slot that has these data
 * already is not written. The data go a block at a time through the page buffer, between two runs only. */
int poetc_write_state_page(poetc_runtime *runtime, uint32_t page, uint32_t version, uint32_t offset,
                           poetc_source source, void *context);

/* Write an input that lies on the store, for the next run of `program`. `source` gives all its bytes, in order. They
 * go a block at a time through the page buffer, between two runs only. A run without it returns POETC_ECORRUPT. Only
 * programs with such inputs link it (src/poetc_input.c). */
int poetc_write_input(poetc_runtime *runtime, const poetc_program *program, uint32_t page, poetc_source source,
                      void *context);

/* CRC-32 (IEEE 802.3, reflected), continued from `crc`; start with 0. */
uint32_t poetc_crc32(uint32_t crc, const void *data, size_t size_bytes);

#ifdef __cplusplus
}
#endif
#endif
