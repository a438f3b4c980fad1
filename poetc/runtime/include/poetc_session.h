/* Training as a session: one value with everything that a training loop needs. Optional; the emitted training programs
 * use it.
 *
 *     poetc_config config = {0};
 *     config.arena = arena;                                     POETC_MODEL_ARENA_BYTES, aligned to POETC_ALIGN
 *     config.arena_bytes = sizeof arena;
 *     err = poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config);
 *     for (...) {
 *         const void *inputs[] = {images, labels};              in the order of model.h
 *         err = poetc_session_step(&session, inputs, &loss);
 *     }
 *     err = poetc_session_predict(&session, inputs);
 *     logits = poetc_session_output(&session, 0);
 *
 * No heap and no globals: the caller provides the session, the arena and the optional buffers. Functions that can fail
 * return 0 or a negative code, as in poetc.h. One thread at a time may use a session.
 */
#ifndef POETC_SESSION_H
#define POETC_SESSION_H

#include "poetc_checkpoint.h"
#include "poetc_data.h"
#include "poetc_state.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_NONE UINT32_MAX /* no such offset, no such input */

/* A program, and the tensors that its caller reaches. `program` is NULL where the program was not emitted. */
typedef struct poetc_entry {
    const poetc_program *program;
    const poetc_binding *inputs; /* inputs, then the target */
    const poetc_limit *limits;   /* of each input */
    const poetc_binding *outputs;
    uint32_t input_count, output_count;
} poetc_entry;

/* The emitted tables of one model: const, in flash. */
typedef struct poetc_model {
    poetc_entry train;             /* one step; its first output is the loss */
    poetc_entry infer;             /* one prediction */
    poetc_entry evaluate;          /* model and loss in inference mode; its first output is the loss */
    const void *state_image;       /* the initial state; NULL: there is no state in RAM */
    const void *constants;         /* NULL: there are none */
    poetc_state state;             /* for trained.bin */
    uint32_t emission;             /* tells these programs, constants and images from others */
    uint32_t store_blocks;         /* up to the end of the last page, from block 0 */
    uint32_t checkpoint_block;     /* the first of two slots: 0 where all state is in RAM, else behind the pages */
    uint32_t buffer_offset;        /* of a block in the arena that is free between two runs, or POETC_NONE */
    uint32_t learning_rate_offset; /* of the rate in the arena, or POETC_NONE */
    const void *initial_pages;     /* the data of `formatted`, each filled up to POETC_ALIGN; NULL: not in flash */
    const uint32_t *formatted;     /* pages that must be on the store before the first run, */
    uint32_t formatted_count;      /* and their number */
} poetc_model;

/* Set up by poetc_session_init. The caller may read all of it, and write only fields whose comment says so. */
typedef struct poetc_session {
    poetc_config config;
    poetc_runtime runtime; /* run_count: complete steps; page_ins, page_outs: transfers */
    const poetc_model *model;
    poetc_checkpoint
        checkpoint; /* two slots from model->checkpoint_block on. The caller may write first_block, slots,
                       buffer, records and records_crc; more slots begin at model->store_blocks or later. */
    void *backup;   /* the caller's, NULL at first: *_STATE_BYTES of the model for a copy of the state. See step. */
    /* The caller's, NULL at first: runs a training step instead of poetc_run, as poetc_bundle_run does. It may leave
     * another program of the same state in the runtime: poetc_session_output has then nothing. */
    int (*run)(void *context, poetc_runtime *runtime);
    void *run_context;
    /* The caller's, NULL at first: a step that was begun goes on block by block where it has blocks. */
    poetc_slice *slice;
    uint32_t (*now_us)(void *context); /* the caller's, NULL at first: any clock that may wrap around */
    void *now_context;
    poetc_flaw flaw;  /* the input value that the last call refused; flaw.input is POETC_NONE if it refused none */
    uint8_t is_begun; /* a step, between poetc_session_begin and its end */
    uint8_t is_lost;  /* 1: state is on the store alone, where a failed run left it; 2: a failed resume has lost it */
} poetc_session;

/* sizeof(poetc_session), for callers that cannot see the type. */
extern const uint32_t poetc_session_bytes;

/* Check `config` and start from the initial state. `config` is copied; its `flash` may be NULL, the emitted constants
 * are taken then. Its arena must be large enough for every program that is called: POETC_MODEL_ARENA_BYTES is.
 * POETC_EINVAL as from poetc_init. */
int poetc_session_init(poetc_session *session, const poetc_model *model, const poetc_config *config);

/* Where input `index` of an entry lies in the arena: write it there before a call whose `inputs` is NULL. After a call,
 * the values there are undefined. NULL: it lies on the store, and poetc_session_fill writes it. */
void *poetc_session_input(const poetc_session *session, const poetc_entry *entry, uint32_t index);

/* Fill input `index`, wherever it lies, before a call whose `inputs` is NULL. `source` is asked for all its bytes in
 * order: at once, or a block of the store at a time. Numbers of an input on the store are checked here, as a step does
 * with the others. Only models with such an input have it (src/poetc_input.c). */
int poetc_session_fill(poetc_session *session, const poetc_entry *entry, uint32_t index, poetc_source source,
                       void *context);

/* One training step. `inputs`: a pointer to the bytes of each input, then of the target, which are copied to their
 * places; NULL: they are there already. `loss` gets the loss; NULL: it is not wanted.
 *
 * Inputs are checked first. POETC_ENUMBER (a NaN or an infinity) and POETC_ERANGE (a class or an index out of range)
 * leave the state as it was. session->flaw says where. POETC_ENUMBER without a flaw: the step is complete, and its
 * loss is no finite number. Other codes as from poetc_run.
 *
 * With session->backup a step that returns a code leaves state and step count as they were before it, a loss that is no
 * number included. It costs a copy of the state a step. Without it, state after a code of poetc_run is as poetc_run
 * says. */
int poetc_session_step(poetc_session *session, const void *const *inputs, float *loss);

/* The same step in pieces, between the turns of a control loop. Begin checks the inputs and copies them. Continue runs
 * one piece, and goes on until there were `pieces`, or `microseconds` of session->now_us are over. 0: no such limit.
 * It returns 0 while the step goes on, POETC_COMPLETE at its end with `loss`, or a code as step.
 *
 * A piece is an operator, a page that moves, or with session->slice one block of an operator in blocks. The report of
 * poetc solve names the longest. Until the step is complete the arena belongs to it, and other calls return
 * POETC_EBUSY. Cancel gives it up, and undoes it where there is a session->backup; else state is as after an error.
 * Load, resume and init end a step, too. POETC_EINVAL from begin: session->run is set; from continue: no step was
 * begun, or microseconds without a clock. */
int poetc_session_begin(poetc_session *session, const void *const *inputs);
int poetc_session_continue(poetc_session *session, uint32_t pieces, uint32_t microseconds, float *loss);
int poetc_session_cancel(poetc_session *session);

/* One prediction; poetc_session_output has its outputs. POETC_EINVAL: the program was not emitted. */
int poetc_session_predict(poetc_session *session, const void *const *inputs);

/* Loss of a batch in inference mode; no state changes. POETC_EINVAL: the program was not emitted. */
int poetc_session_evaluate(poetc_session *session, const void *const *inputs, float *loss);

/* Output `index` of the last call's program, in the arena: valid until the next call. NULL: there is none. */
const void *poetc_session_output(const poetc_session *session, uint32_t index);

/* The learning rate of the next step. POETC_EINVAL: the optimizer has no such state tensor; get returns 0 then. */
float poetc_session_learning_rate(const poetc_session *session);
int poetc_session_set_learning_rate(poetc_session *session, float rate);

/* The state as one stream: see poetc_state.h. Where checkpoints are saved, resume first. State on the store then takes
 * the place that the newest checkpoint does not need, and a cut leaves that checkpoint. The next checkpoint makes the
 * load last, whatever its step: save it before the next step. */
int poetc_session_save(poetc_session *session, poetc_sink sink, void *context);
int poetc_session_load(poetc_session *session, uint32_t size_bytes, poetc_source source, void *context);

/* Save a checkpoint to the store, with session->checkpoint.records and records_crc. The second function goes on from
 * the newest whole one, or from the initial state where there is none. See poetc_checkpoint.h.
 *
 * After POETC_EINVAL from resume (no store, no buffer) the state is as before. After another code, of the driver, the
 * state is lost: every call that needs it returns POETC_EIO, until resume, load or init succeeds. */
int poetc_session_checkpoint(poetc_session *session);
int poetc_session_resume(poetc_session *session);

/* Go back to the checkpoint before the newest one, as to the weights before a training on the device that made them
 * worse. The newest becomes void. State on the store has a checkpoint before only until the next step; state in RAM
 * always. POETC_ENOENT, POETC_ECORRUPT: it has none, and the session is as resume leaves it. Other codes: as from
 * resume. */
int poetc_session_rollback(poetc_session *session);

/* Set up an empty store, or begin anew on any. All checkpoints become void. The initial pages are written from flash,
 * and a checkpoint of the initial state is saved. So a board needs no image on its card. After a cut in the middle
 * there is no checkpoint, session->checkpoint.saves is 0 after resume, and the store is to be formatted again.
 *
 * POETC_EINVAL: no store, no buffer, or initial pages that are not in flash. The driver's code: as after a cut. */
int poetc_session_format(poetc_session *session);

#ifdef __cplusplus
}
#endif
#endif
