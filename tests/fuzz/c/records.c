/* Fuzz target: training and validation data, through the loop of every emitted program.
 *
 * The first bytes say how long to train, how many records the loop is told of, and how the data are divided. */
#include "medium.h"
#include "poetc_loop.h"

#include <math.h>

typedef struct records {
    const uint8_t *data;
    size_t size, at;
} records;

static records training, validation;
static poetc_loop loop;
static int has_bad_loss;

int poetc_loop_read(int is_validation, void *to, uint32_t size_bytes)
{
    records *from = is_validation ? &validation : &training;

    if (from->at == from->size)
        return 0;
    if (from->size - from->at < size_bytes)
        return POETC_ENODATA;
    memcpy(to, from->data + from->at, size_bytes);
    from->at += size_bytes;
    return 1;
}

int poetc_loop_rewind(int is_validation)
{
    (is_validation ? &validation : &training)->at = 0;
    return 1;
}

int poetc_loop_keep(poetc_loop *kept)
{
    FUZZ_HOLDS(kept->validates && isfinite(kept->validation_loss));
    return 0;
}

void poetc_loop_resumed(const poetc_loop *resumed)
{
    (void)resumed;
}

void poetc_loop_has_other_data(const poetc_loop *other)
{
    (void)other;
}

void poetc_loop_stepped(poetc_loop *stepped, float loss)
{
    (void)stepped;
    FUZZ_HOLDS(!has_bad_loss); /* it was the last */
    has_bad_loss = !isfinite(loss);
}

void poetc_loop_epoch(poetc_loop *ended, int is_complete)
{
    (void)ended;
    (void)is_complete;
}

int poetc_loop_look(const poetc_loop *looked)
{
    (void)looked;
    return 0;
}

void poetc_loop_warn(const char *text)
{
    FUZZ_HOLDS(text[0] != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { HEAD_BYTES = 5 };
    int err, again;

    if (size < HEAD_BYTES)
        return 0;
    fresh_medium();
    training.data = data + HEAD_BYTES;
    training.size = (size - HEAD_BYTES) * data[3] / 255u;
    validation.data = training.data + training.size;
    validation.size = size - HEAD_BYTES - training.size;
    for (again = 0; again < 2; again++) { /* the second goes on from the checkpoint of the first */
        training.at = validation.at = 0;
        has_bad_loss = 0;
        begin_session();
        memset(&loop, 0, sizeof loop);
        loop.session = session;
        loop.steps = data[0] % 8u;
        loop.epochs = loop.steps > 0 ? 0 : 1 + data[1] % 3u;
        loop.records = data[2];
        loop.checkpoint_steps = data[4] % 4u;
        loop.validates = validation.size > 0 && loop.session.model->evaluate.program != NULL;
        poetc_loop_begin(&loop);
        err = loop.checkpoint_steps > 0 ? poetc_loop_resume(&loop) : POETC_OK;
        err = err ? err : poetc_loop_train(&loop);
        FUZZ_HOLDS(err <= 0 && loop.place <= POETC_AT_LOOK && (err == 0 || loop.place > 0));
        FUZZ_HOLDS(!has_bad_loss || loop.place == POETC_AT_LOSS);
    }
    return 0;
}
