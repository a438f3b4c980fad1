/* Classes of one sample, as the cross-entropies see them.
 *
 * Layout: predictions are [before, classes, after]; a sample's classes are `step` elements apart.
 * Order of sums: classes in sequence; the sum carries its rounding error. */
#ifndef POETC_LOSS_H
#define POETC_LOSS_H

#include "poetc_math.h"
#include "simd/poetc_f4.h"

typedef struct {
    const float *x; /* of class 0 */
    int32_t classes;
    ptrdiff_t step;   /* from class to class */
    int32_t where;    /* the class of the largest logit */
    float best, rest; /* that logit; Σ exp(x - best) over the others */
} sample;

static inline sample look(const float *x, int32_t classes, ptrdiff_t step)
{
    sample s = {x, classes, step, 0, x[0], 0.0f};
    poetc_compensated rest = {0.0f, 0.0f};
    int32_t i;
    for (i = 1; i < classes; i++)
        if (x[i * step] > s.best)
            s.best = x[i * step], s.where = i;
    for (i = 0; i < classes; i++)
        if (i != s.where)
            poetc_compensated_add(&rest, poetc_expf(x[i * step] - s.best));
    s.rest = rest.total;
    return s;
}

static inline float upstream(const poetc_call *call, int has_upstream)
{
    return has_upstream ? *(const float *)poetc_in(call, 2) : 1.0f;
}

/* How many targets count, or POETC_ERANGE if one is neither a class nor `ignore`. */
static inline int32_t count_targets(const int32_t *target, int32_t samples, int32_t classes, int32_t ignore)
{
    int32_t counted = 0, i;
    for (i = 0; i < samples; i++) {
        if (target[i] == ignore)
            continue;
        if (target[i] < 0 || target[i] >= classes)
            return POETC_ERANGE;
        counted++;
    }
    return counted;
}

#endif
