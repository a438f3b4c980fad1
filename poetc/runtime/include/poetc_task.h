/* Training on samples that arrive one by one: a task beside a control loop, for whole models. Optional.
 *
 *     task.session = &session;   task.batch = 4;             rows of a training batch
 *     task.examples = memory;    task.capacity = 64;         a ring of the newest examples
 *     task.best = best;          *_STATE_BYTES of the model, for the best weights
 *     err = poetc_task_init(&task);
 *     for (;;) {                                             each turn
 *         const void *const example[] = {window, label};     one row of each input, then of the target
 *         err = poetc_task_add(&task, example);
 *         err = poetc_task_work(&task, 0, 300);              300 us of training, where there is any to do
 *         err = poetc_task_score(&task, example, &error);    error > task.threshold: unlike all before
 *     }
 *
 * A training goes through the ring in an order that mixes old and new. Some examples are held out. After each epoch
 * their loss decides: the best weights are kept, and training stops where they get no better. It goes back to the best
 * ones, which may be those from before it. No heap and no globals. The model needs its program `evaluate`, and its
 * state and inputs in RAM.
 */
#ifndef POETC_TASK_H
#define POETC_TASK_H

#include "poetc_session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Set all to zeros, then the caller's fields; poetc_task_init takes the numbers in brackets for zeros. */
typedef struct poetc_task {
    poetc_session *session; /* initialised. Required. */
    uint32_t batch;         /* rows of a training batch. Required. */
    uint32_t capacity;      /* examples in the ring. Required. */
    /* Of the ring: `capacity` times poetc_task_example_bytes in RAM. NULL: it is on session->config.store from
     * `first_block` on, poetc_task_blocks, and goes on after a restart. `buffer` holds one example in whole blocks. */
    void *examples;
    void *buffer;
    uint32_t first_block;
    void *best;                /* the best weights: *_STATE_BYTES of the model. Required. */
    uint32_t train_every;      /* a training begins after so many new examples; 0: on request alone */
    uint32_t least_examples;   /* and where there are so many [batch] */
    uint32_t held_out;         /* one example in so many is held out [5] */
    uint32_t epochs, patience; /* of a training [10]; it ends after so many that are not better [2] */
    float deviations;          /* of the errors of all examples above their mean: the threshold [3] */

    /* The task's own, for the caller to read. */
    float threshold;              /* of an anomaly; an infinity before the first training */
    float loss_before, best_loss; /* of held-out examples, before the last training and of its best weights */
    uint32_t trainings, epoch;    /* complete; of the last training */
    int is_rolled_back;           /* its best weights were those from before it */
    uint32_t next;                /* the number of the next example: examples since the first */
    uint32_t count;               /* examples in the ring */
    /* Not for the caller. */
    uint32_t added, cursor, steps, worse, phase;
    float sum, squares;
    int is_requested;
} poetc_task;

/* Bytes of one row of all inputs and the target, whose rows lie along the first axis. */
uint32_t poetc_task_example_bytes(const poetc_task *task);

/* Blocks of the store that one example takes, of block_bytes each. */
uint32_t poetc_task_blocks(const poetc_task *task);

/* Check the caller's fields, and read the ring of a store. POETC_EINVAL: a required one is missing, no program
 * `evaluate`, or state or inputs on the store. The same of a batch that does not divide the inputs. Other codes are the
 * driver's. */
int poetc_task_init(poetc_task *task);

/* Put an example into the ring, in place of the oldest one where it is full. May come at any time. */
int poetc_task_add(poetc_task *task, const void *const *example);

/* Ask for a training that begins with the next work. */
void poetc_task_request(poetc_task *task);

/* Go on with a training, or begin one that is due. `pieces` and `microseconds` as poetc_session_continue has them; an
 * evaluation of one batch is one piece. Returns 0, POETC_COMPLETE once at the end of a training, or a code of the
 * session. A code ends the training, with the best weights so far; but not POETC_EBUSY, of a step that the caller has
 * begun. */
int poetc_task_work(poetc_task *task, uint32_t pieces, uint32_t microseconds);

/* The loss of one example in inference mode. POETC_EBUSY: a step was begun. */
int poetc_task_score(poetc_task *task, const void *const *example, float *error);

#ifdef __cplusplus
}
#endif
#endif
