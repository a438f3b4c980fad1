/* Training on samples that arrive one by one. See poetc_task.h. */
#include "poetc_task.h"
#include "poetc_bytes.h"
#include "poetc_math.h"

#include <string.h>

enum { IDLE, FIRST, TRAINS, IN_STEP, JUDGES, MEASURES }; /* phase */

enum { TRAILER = 8 }; /* behind an example on the store: its number, and a CRC */

static const poetc_entry *training(const poetc_task *task)
{
    return &task->session->model->train;
}

static const poetc_entry *evaluation(const poetc_task *task)
{
    return &task->session->model->evaluate;
}

static uint32_t row_bytes(const poetc_task *task, uint32_t input)
{
    return training(task)->inputs[input].size_bytes / task->batch;
}

static uint32_t rows_of(const poetc_task *task, const poetc_entry *entry)
{
    return entry->inputs[0].size_bytes / row_bytes(task, 0);
}

uint32_t poetc_task_example_bytes(const poetc_task *task)
{
    uint32_t bytes = 0, i;

    for (i = 0; i < training(task)->input_count; i++)
        bytes += row_bytes(task, i);
    return bytes;
}

uint32_t poetc_task_blocks(const poetc_task *task)
{
    const uint32_t block = training(task)->program->block_bytes;

    return (poetc_task_example_bytes(task) + TRAILER + block - 1u) / block;
}

/* --- the ring ------------------------------------------------------------------------------------------------------
 */

static uint32_t crc_of(const poetc_task *task, uint32_t number, const uint8_t *data)
{
    uint8_t words[8];

    put_u32(words, task->session->model->state.identity);
    put_u32(words + 4, number);
    return poetc_crc32(poetc_crc32(0, words, sizeof words), data, poetc_task_example_bytes(task));
}

/* Example `number`: where it is in RAM, or the buffer with it; NULL: it is not whole, or the driver failed. */
static const uint8_t *example_at(poetc_task *task, uint32_t number, int *err)
{
    const uint32_t slot = number % task->capacity, bytes = poetc_task_example_bytes(task);
    const poetc_store *store = &task->session->config.store;
    const uint8_t *trailer;
    uint32_t blocks;

    *err = POETC_OK;
    if (task->examples != NULL)
        return (const uint8_t *)task->examples + (size_t)slot * bytes;
    blocks = poetc_task_blocks(task);
    *err = driver_code(store->page_in(store->context, task->first_block + slot * blocks, blocks, task->buffer));
    trailer = (const uint8_t *)task->buffer + (size_t)blocks * training(task)->program->block_bytes - TRAILER;
    if (*err == POETC_OK && (get_u32(trailer) != number || get_u32(trailer + 4) != crc_of(task, number, task->buffer)))
        *err = POETC_ECORRUPT;
    return *err ? NULL : task->buffer;
}

/* The newest whole example on the store, and those before it without a gap. */
static int find_ring(poetc_task *task)
{
    const poetc_store *store = &task->session->config.store;
    const uint32_t blocks = poetc_task_blocks(task);
    uint32_t slot;
    int err;

    for (slot = 0; slot < task->capacity; slot++) {
        const uint8_t *end = (const uint8_t *)task->buffer + (size_t)blocks * training(task)->program->block_bytes;
        uint32_t number;

        err = driver_code(store->page_in(store->context, task->first_block + slot * blocks, blocks, task->buffer));
        if (err)
            return err;
        number = get_u32(end - TRAILER);
        if (number % task->capacity == slot && number >= task->next &&
            get_u32(end - TRAILER + 4) == crc_of(task, number, task->buffer))
            task->next = number + 1u;
    }
    while (task->count < task->capacity && task->count < task->next) {
        if (example_at(task, task->next - 1u - task->count, &err) == NULL)
            return err == POETC_ECORRUPT ? POETC_OK : err;
        task->count++;
    }
    return POETC_OK;
}

int poetc_task_add(poetc_task *task, const void *const *example)
{
    const uint32_t slot = task->next % task->capacity, bytes = poetc_task_example_bytes(task);
    const poetc_store *store = &task->session->config.store;
    uint8_t *place = task->examples != NULL ? (uint8_t *)task->examples + (size_t)slot * bytes : task->buffer;
    uint8_t *to = place;
    uint32_t i;

    for (i = 0; i < training(task)->input_count; i++) {
        memcpy(to, example[i], row_bytes(task, i));
        to += row_bytes(task, i);
    }
    if (task->examples == NULL) {
        const uint32_t blocks = poetc_task_blocks(task), size = blocks * training(task)->program->block_bytes;
        int err;

        memset(to, 0, size - bytes);
        put_u32(place + size - TRAILER, task->next);
        put_u32(place + size - TRAILER + 4, crc_of(task, task->next, place));
        err = driver_code(store->page_out(store->context, task->first_block + slot * blocks, blocks, place));
        if (!err && store->sync != NULL)
            err = driver_code(store->sync(store->context));
        if (err)
            return err;
    }
    task->next++;
    task->added++;
    task->count += task->count < task->capacity;
    return POETC_OK;
}

static int is_held_out(const poetc_task *task, uint32_t number)
{
    return number % task->held_out == task->held_out - 1u;
}

static uint32_t oldest(const poetc_task *task)
{
    return task->next - task->count;
}

/* Held-out examples in the ring, and the number of the first one. */
static uint32_t held_out(const poetc_task *task, uint32_t *first)
{
    uint32_t number = oldest(task);

    while (!is_held_out(task, number))
        number++;
    *first = number;
    return (int32_t)(task->next - number) > 0 ? (task->next - number - 1u) / task->held_out + 1u : 0;
}

static uint32_t common_factor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        const uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* The next example to train on: the ring in steps that have no factor in common with its length. */
static uint32_t next_of_training(poetc_task *task)
{
    uint32_t step = task->count * 5u / 8u | 1u, number;

    while (common_factor(step, task->count) != 1u)
        step++;
    do
        number = oldest(task) + task->cursor++ % task->count * step % task->count;
    while (is_held_out(task, number));
    return number;
}

/* --- batches -------------------------------------------------------------------------------------------------------
 */

/* An example as row `row` of an entry's inputs. */
static void put_row(const poetc_task *task, const poetc_entry *entry, uint32_t row, const uint8_t *example)
{
    uint32_t i;

    for (i = 0; i < entry->input_count; i++) {
        const uint32_t bytes = row_bytes(task, i);

        memcpy((uint8_t *)poetc_session_input(task->session, entry, i) + row * bytes, example, bytes);
        example += bytes;
    }
}

/* The next batch for a step, straight into the arena. */
static int begin_step(poetc_task *task)
{
    uint32_t row;
    int err;

    for (row = 0; row < task->batch; row++) {
        const uint8_t *example = example_at(task, next_of_training(task), &err);

        if (example == NULL)
            return err;
        put_row(task, training(task), row, example);
    }
    return poetc_session_begin(task->session, NULL);
}

/* Batch `batch` of the held-out examples, the last one filled up from the beginning; adds to the sum of the losses. */
static int judge(poetc_task *task, uint32_t batch, uint32_t held, uint32_t first)
{
    const poetc_entry *entry = evaluation(task);
    const uint32_t rows = rows_of(task, entry);
    uint32_t row;
    float loss;
    int err;

    for (row = 0; row < rows; row++) {
        const uint32_t index = (batch * rows + row) % held;
        const uint8_t *example = example_at(task, first + index * task->held_out, &err);

        if (example == NULL)
            return err;
        put_row(task, entry, row, example);
    }
    err = poetc_session_evaluate(task->session, NULL, &loss);
    if (!err)
        task->sum += loss;
    return err;
}

int poetc_task_score(poetc_task *task, const void *const *example, float *error)
{
    const poetc_entry *entry = evaluation(task);
    const uint32_t rows = rows_of(task, entry);
    uint32_t i, row;

    if (task->session->is_begun)
        return POETC_EBUSY;
    for (i = 0; i < entry->input_count; i++)
        for (row = 0; row < rows; row++)
            memcpy((uint8_t *)poetc_session_input(task->session, entry, i) + row * row_bytes(task, i), example[i],
                   row_bytes(task, i));
    return poetc_session_evaluate(task->session, NULL, error);
}

/* The error of one example of the ring, for the threshold: mean and variance after Welford. */
static int measure(poetc_task *task, uint32_t index)
{
    const poetc_entry *entry = evaluation(task);
    const uint32_t rows = rows_of(task, entry);
    uint32_t row;
    float error, from_mean;
    int err;
    const uint8_t *example = example_at(task, oldest(task) + index, &err);

    if (example == NULL)
        return err;
    for (row = 0; row < rows; row++)
        put_row(task, entry, row, example);
    err = poetc_session_evaluate(task->session, NULL, &error);
    if (err)
        return err;
    from_mean = error - task->sum;
    task->sum += from_mean / (float)(index + 1u);
    task->squares += from_mean * (error - task->sum);
    return POETC_OK;
}

/* --- a training ----------------------------------------------------------------------------------------------------
 */

/* The state to the copy of the best, or back. */
static void copy_state(poetc_task *task, int back)
{
    const poetc_program *program = training(task)->program;
    uint8_t *copy = task->best;
    uint32_t i;

    for (i = 0; i < program->region_count; i++) {
        const uint32_t size_bytes = program->regions[i].size_bytes;
        uint8_t *place = (uint8_t *)task->session->config.arena + program->regions[i].place;

        memcpy(back ? place : copy, back ? copy : place, size_bytes);
        copy += size_bytes;
    }
    if (back)
        task->session->is_lost = 0;
}

static void go_to(poetc_task *task, uint32_t phase)
{
    task->phase = phase;
    task->steps = 0;
    task->sum = task->squares = 0.0f;
}

/* An epoch is over: its weights are the best, or one of the worse ones. */
static void decide(poetc_task *task, float loss)
{
    if (loss < task->best_loss) {
        task->best_loss = loss;
        task->is_rolled_back = 0;
        task->worse = 0;
        copy_state(task, 0);
    } else
        task->worse++;
    task->epoch++;
    if (task->worse < task->patience && task->epoch < task->epochs) {
        go_to(task, TRAINS);
        return;
    }
    copy_state(task, 1);
    go_to(task, MEASURES);
}

/* One piece of a training. POETC_COMPLETE: it is over. */
static int go_on(poetc_task *task)
{
    uint32_t first;
    const uint32_t held = held_out(task, &first), trained = task->count - held;
    int err = POETC_OK;
    float loss;

    switch (task->phase) {
    case FIRST:
    case JUDGES:
        err = judge(task, task->steps, held, first);
        if (err || ++task->steps * rows_of(task, evaluation(task)) < held)
            break;
        loss = task->sum / (float)task->steps;
        if (task->phase == JUDGES)
            decide(task, loss);
        else {
            task->loss_before = task->best_loss = loss;
            copy_state(task, 0);
            go_to(task, TRAINS);
        }
        break;
    case TRAINS:
        if (task->steps > 0 && task->steps * task->batch + task->batch > trained) {
            go_to(task, JUDGES);
            break;
        }
        err = begin_step(task);
        if (!err)
            task->phase = IN_STEP;
        break;
    case IN_STEP:
        err = poetc_session_continue(task->session, 1, 0, NULL);
        if (err == POETC_COMPLETE) {
            err = POETC_OK;
            task->steps++;
            task->phase = TRAINS;
        }
        break;
    default:
        err = measure(task, task->steps);
        if (err || ++task->steps < task->count)
            break;
        task->threshold = task->sum + task->deviations * poetc_sqrtf(task->squares / (float)task->count);
        task->trainings++;
        task->phase = IDLE;
        return POETC_COMPLETE;
    }
    if (err && task->phase != FIRST)
        copy_state(task, 1);
    if (err)
        task->phase = IDLE;
    return err;
}

static int is_due(const poetc_task *task)
{
    uint32_t first;
    const uint32_t held = held_out(task, &first);

    if (!task->is_requested && (task->train_every == 0 || task->added < task->train_every))
        return 0;
    return held > 0 && task->count - held > 0 && task->count >= task->least_examples;
}

void poetc_task_request(poetc_task *task)
{
    task->is_requested = 1;
}

int poetc_task_work(poetc_task *task, uint32_t pieces, uint32_t microseconds)
{
    poetc_session *session = task->session;
    uint32_t begin = 0;
    int err;

    if (microseconds > 0 && session->now_us == NULL)
        return POETC_EINVAL;
    if (session->is_begun && task->phase != IN_STEP) /* a step of the caller's */
        return POETC_EBUSY;
    if (task->phase == IDLE) {
        if (!is_due(task))
            return POETC_OK;
        task->added = 0;
        task->is_requested = 0;
        task->epoch = task->worse = 0;
        task->is_rolled_back = 1;
        go_to(task, FIRST);
    }
    if (microseconds > 0)
        begin = session->now_us(session->now_context);
    do
        err = go_on(task);
    while (err == POETC_OK && (pieces == 0 || --pieces > 0) &&
           (microseconds == 0 || session->now_us(session->now_context) - begin < microseconds));
    return err;
}

/* Whether examples are whole rows of all inputs, and of both programs. */
static int has_rows(const poetc_task *task)
{
    const poetc_binding *trained = training(task)->inputs, *judged = evaluation(task)->inputs;
    uint32_t i;

    for (i = 0; i < training(task)->input_count; i++)
        if (((trained[i].offset | judged[i].offset) & POETC_ON_STORE) || trained[i].size_bytes < task->batch ||
            trained[i].size_bytes % task->batch != 0 ||
            judged[i].size_bytes != rows_of(task, evaluation(task)) * row_bytes(task, i))
            return 0;
    return 1;
}

POETC_COLD int poetc_task_init(poetc_task *task)
{
    const poetc_session *session = task->session;
    const uint32_t infinity = 0x7f800000u;
    const poetc_program *program;
    uint32_t i;

    if (session == NULL || session->model == NULL || task->batch == 0 || task->capacity == 0 || task->best == NULL ||
        evaluation(task)->program == NULL || evaluation(task)->input_count != training(task)->input_count ||
        !has_rows(task))
        return POETC_EINVAL;
    program = training(task)->program;
    for (i = 0; i < program->page_count; i++)
        if (program->pages[i].slots == 2u)
            return POETC_EINVAL;
    if (task->examples == NULL &&
        (task->buffer == NULL || program->block_bytes == 0 || session->config.store.page_in == NULL))
        return POETC_EINVAL;
    task->held_out = task->held_out ? task->held_out : 5u;
    task->epochs = task->epochs ? task->epochs : 10u;
    task->patience = task->patience ? task->patience : 2u;
    task->least_examples = task->least_examples ? task->least_examples : task->batch;
    if (task->deviations <= 0.0f)
        task->deviations = 3.0f;
    if (task->held_out < 2u || task->held_out > task->capacity)
        return POETC_EINVAL;
    memcpy(&task->threshold, &infinity, sizeof infinity);
    return task->examples == NULL ? find_ring(task) : POETC_OK;
}
