/* A look at training data before they are used. It finds values that no kernel can use, and suspicious ones. Optional.
 */
#ifndef POETC_DATA_H
#define POETC_DATA_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

enum poetc_dtype { POETC_F32 = 0, POETC_I32 = 1, POETC_U8 = 2, POETC_I8 = 3 };

/* The values that an input may hold; the emitted table has one entry for each input. */
typedef struct poetc_limit {
    uint32_t dtype;
    int32_t least, most; /* of integers; least > most: anything. Of floats 0, 0: the model itself scales them */
    int32_t ignored;     /* is allowed, too: the target that does not count. Of floats 1: the model replaces a NaN */
} poetc_limit;

/* The first element that is not allowed. `value`: of an integer. */
typedef struct poetc_flaw {
    uint32_t input, element;
    int32_t value;
} poetc_flaw;

/* Look at the inputs in the arena, not at those on the store. 0; POETC_ERANGE: an integer outside its limit;
 * POETC_ENUMBER: a NaN or an infinity.
 */
int poetc_check_inputs(const poetc_binding *inputs, const poetc_limit *limits, uint32_t count, const void *arena,
                       poetc_flaw *flaw);

/* Of `count` numbers: the smallest and the largest, and whether all are whole, as bytes are that nobody scaled. None is
 * a NaN. */
typedef struct poetc_span {
    float least, most;
    int is_whole;
} poetc_span;
poetc_span poetc_span_of(const void *floats, uint32_t count);

/* 1: the numbers look as if nobody had scaled them. They go beyond 16, and are whole or of one sign. */
static inline int poetc_span_is_raw(poetc_span span)
{
    const int is_large = span.least < -16.0f || span.most > 16.0f;

    return is_large && (span.is_whole || span.least >= 0.0f || span.most <= 0.0f);
}

/* The cross-entropy of guessing among `classes`: their natural logarithm, up to 6 % less. */
static inline float poetc_chance_loss(uint32_t classes)
{
    float loss = 0.0f, rest = (float)classes;

    for (; rest >= 2.0f; rest /= 2.0f)
        loss += 0.6931472f;
    return loss + (rest > 1.0f ? (rest - 1.0f) * 0.6931472f : 0.0f);
}

/* 1: `loss`, the first one, is above three times that of guessing, where the inputs hold classes. Theirs are limits
 * from 0 on. */
static inline int poetc_starts_absurd(float loss, const poetc_limit *limits, uint32_t count)
{
    uint32_t i;

    for (i = 0; i < count; i++)
        if (limits[i].dtype == POETC_I32 && limits[i].least == 0 && limits[i].most > 0)
            return loss > 3.0f * poetc_chance_loss((uint32_t)limits[i].most + 1u);
    return 0;
}

/* 1: a finite number. */
int poetc_is_finite(float value);

/* Whether losses rise: the mean of the last four beside that of the first four. Start with zeros. */
typedef struct poetc_trend {
    float first, last[4]; /* sum of the first four; the last ones */
    uint32_t count;
} poetc_trend;
void poetc_trend_add(poetc_trend *trend, float loss);

/* 1: of sixteen losses or more the last four are more than twice the first four. */
int poetc_trend_rises(const poetc_trend *trend);

/* The scores of a cross-entropy of a program. Before instruction `instruction` its scores and labels are in the arena:
 * `before` x `classes` x `after` floats and `before` x `after` classes. */
typedef struct poetc_scores {
    uint32_t instruction, scores, labels; /* the last two: offsets in the arena */
    uint32_t before, classes, after;
    int32_t ignored; /* the label that does not count */
} poetc_scores;

/* Counts the samples that count, and those whose class has the highest score. Start with zeros. */
typedef struct poetc_hits {
    const poetc_program *program; /* other ones are not looked at */
    const poetc_scores *scores;
    uint32_t score_count;
    uint32_t hits, samples;
} poetc_hits;

/* The observer (poetc_config) that does so; `context` is a poetc_hits. It changes no bit of the run. */
int poetc_count_hits(void *context, const poetc_runtime *runtime, uint32_t index);

/* One sentence on a code of `enum poetc_error`, without a full stop. Never NULL. */
const char *poetc_error_text(int code);

#ifdef __cplusplus
}
#endif
#endif
