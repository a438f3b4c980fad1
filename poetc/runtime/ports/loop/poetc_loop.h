/* The loop of every emitted program, on hosts and boards. It has epochs, an evaluation after each, the best state, the
 * learning-rate schedule, and training that goes on from a checkpoint.
 *
 * A record is the bytes of the inputs, then of the target. The program (main.c, train.c) sets up a poetc_loop of zeros
 * with a session and the fields of the program. It gives the functions at the end of this file.
 *
 *     poetc_loop_begin(&loop);
 *     err = poetc_loop_resume(&loop);           where it saves checkpoints
 *     err = err ? err : poetc_loop_train(&loop);
 */
#ifndef POETC_LOOP_H
#define POETC_LOOP_H

#include "poetc_rate.h"
#include "poetc_session.h"

#if defined(__STDC_HOSTED__) && __STDC_HOSTED__ && (defined(__linux__) || !defined(__arm__))
#define POETC_LOOP_HOSTED /* has room to look at ranges and at the course of the loss, and to validate */
#ifndef POETC_VALIDATES
#define POETC_VALIDATES
#endif
#endif

/* A constant, so that firmware has no code for things that it does not do. */
enum {
#ifdef POETC_VALIDATES
    POETC_LOOP_VALIDATES = 1
#else
    POETC_LOOP_VALIDATES = 0
#endif
};

#ifdef __cplusplus
extern "C" {
#endif

/* The words that a checkpoint holds besides the state. */
typedef struct poetc_progress {
    uint32_t has_begun;
    uint32_t epochs; /* complete */
    uint32_t at_end; /* the state was evaluated: 1 after a complete epoch, 2 within one */
    float best;      /* validation loss; an infinity before the first */
    poetc_plateau plateau;
} poetc_progress;

/* Where a loop has stopped. */
enum poetc_place {
    POETC_AT_DATA = 1,   /* the training data cannot be read, or have ended too early */
    POETC_AT_VALIDATION, /* the same of the validation data */
    POETC_AT_RECORD,     /* a record has a value that the model cannot take: session.flaw */
    POETC_AT_VALIDATION_RECORD,
    POETC_AT_STEP,       /* before the step was complete */
    POETC_AT_LOSS,       /* the step's loss is no number; its state was not saved */
    POETC_AT_CHECKPOINT, /* a checkpoint cannot be written, */
    POETC_AT_RESUME,     /* or read */
    POETC_AT_RATE,       /* the schedule needs the number of steps, which is not known */
    POETC_AT_STATE,      /* poetc_loop_keep has failed */
    POETC_AT_LOOK        /* poetc_loop_look has refused the first record */
};

typedef struct poetc_loop {
    poetc_session session;
    uint32_t steps, epochs;    /* how long to train; one of them is 0 */
    uint32_t records;          /* of the training data; 0: not known */
    uint32_t checkpoint_steps; /* steps between checkpoints; 0: none */
    int validates;             /* there are validation data, and a program to evaluate them */

    /* The loop's own, for the program to read. */
    poetc_progress progress;
    uint32_t record; /* of the data that are read: 1 is the first */
    uint32_t place;  /* enum poetc_place, after an error */
    int is_best;     /* the evaluation before was the best so far */
    float rate;      /* the optimizer's own */
    float validation_loss;
    poetc_hits hits; /* of the evaluation */
    int has_record;  /* the next record is in the arena */
#ifdef POETC_LOOP_HOSTED
    poetc_trend trend;
#endif
} poetc_loop;

/* After the session was initialised. */
void poetc_loop_begin(poetc_loop *loop);

/* Go on from the newest whole checkpoint, with the first record that it has not seen; from the beginning if there is
 * none. Records that were used before it are passed over if the data still begin with them. Other data are new: they
 * are used from their first record, and have epochs of their own. */
int poetc_loop_resume(poetc_loop *loop);

/* Train to the end: 0, or a code, and `place`. */
int poetc_loop_train(poetc_loop *loop);

/* --- given by the program --- */

/* The next `size_bytes` of the data. Returns 1, 0 where there is none left, POETC_ENODATA where there is less, or
 * another code. */
int poetc_loop_read(int is_validation, void *to, uint32_t size_bytes);

/* Back to the first byte of the data. Returns 1, 0 for live data, which go on with the next value, or a code. */
int poetc_loop_rewind(int is_validation);

/* Keep the state, as the best so far. Returns 0 or a code. */
int poetc_loop_keep(poetc_loop *loop);

/* Reports. The first: training goes on after this many steps. The second: the data are not those of before. The last:
 * an epoch is over, or training ends within one. */
void poetc_loop_resumed(const poetc_loop *loop);
void poetc_loop_has_other_data(const poetc_loop *loop);
void poetc_loop_stepped(poetc_loop *loop, float loss);
void poetc_loop_epoch(poetc_loop *loop, int is_complete);

#ifdef POETC_LOOP_HOSTED
/* The first record is in the arena, but for inputs on the store. Returns 0, or a code: it is not to be trained on. */
int poetc_loop_look(const poetc_loop *loop);
void poetc_loop_warn(const char *text);
#endif

#ifdef __cplusplus
}
#endif

#endif
