/* Classes of one sample, as the cross-entropies see them.
 *
 * Layout: predictions are [before, classes, after]; a sample's classes are `step` elements apart.
 * Order of sums: classes in sequence within a part of POETC_CLASSES, then parts in sequence; sums carry their rounding
 * errors. So a sample can be seen a part at a time. */
#ifndef POETC_LOSS_H
#define POETC_LOSS_H

#include "poetc_math.h"
#include "simd/poetc_f4.h"
#include "simd/poetc_vector_math.h"

#define POETC_CLASSES 1024 /* CLASSES of ops/linear_loss.py */

/* The largest logit of those seen, and the sum of exp(x - best) over the others. */
typedef struct {
    float best;
    int32_t where; /* the class of that logit, from the first one of its part */
    poetc_compensated rest;
} poetc_peak;

/* Of at most POETC_CLASSES classes. Logits of -infinity, of classes that are left out, add nothing. */
static inline poetc_peak poetc_peak_of(const float *x, int32_t classes, ptrdiff_t step)
{
    poetc_peak p = {x[0], 0, {0.0f, 0.0f}};
    int32_t i;
    float from;
    for (i = 1; i < classes; i++)
        if (x[i * step] > p.best)
            p.best = x[i * step], p.where = i;
    from = p.best == -POETC_INFINITY ? 0.0f : p.best;
    for (i = 0; i < classes; i++)
        if (i != p.where)
            poetc_compensated_add(&p.rest, poetc_expf(x[i * step] - from));
    return p;
}

/* Classes that were seen before, and those of the next part. A part's largest logit that is no number makes the sum
 * none, even where the part has no other. */
static inline void poetc_peak_join(poetc_peak *p, const poetc_peak *more)
{
    if (more->best > p->best) {
        const float share = poetc_expf(p->best - more->best);
        poetc_compensated_add(&p->rest, 1.0f);
        p->best = more->best;
        p->rest.total *= share, p->rest.lost *= share;
        poetc_compensated_add(&p->rest, more->rest.total);
    } else {
        const float share = more->best == p->best ? 1.0f : poetc_expf(more->best - p->best);
        poetc_compensated_add(&p->rest, share * (1.0f + more->rest.total));
    }
}

#if defined(POETC_WIDE_MATH) && POETC_LANES >= 8 /* prices of Cortex-A are counts of the loops without it */
#define POETC_WIDE_LOSS 1
#define POETC_PEAKS 4   /* parts at once: an addition waits for the one before it, so that four hardly take longer */
#define POETC_PEAK_X 64 /* logits of a part at once */

/* The first of the largest logits. As in poetc_peak_of, nothing is larger than a first one that is no number. */
static inline poetc_peak poetc_largest_of_part(const float *x)
{
    poetc_vector most = (poetc_vector){0} + x[0];
    float lanes[POETC_LANES], best;
    poetc_peak p = {x[0], 0, {0.0f, 0.0f}};
    int32_t i;
    if (!(x[0] == x[0]))
        return p;
    for (i = 0; i < POETC_CLASSES; i += POETC_LANES) {
        const poetc_vector v = poetc_vector_load(x + i);
        most = poetc_choose_less(most, v, v, most);
    }
    poetc_vector_store(lanes, most);
    for (best = lanes[0], i = 1; i < POETC_LANES; i++)
        best = lanes[i] > best ? lanes[i] : best;
    while (x[p.where] != best)
        p.where++;
    p.best = x[p.where];
    return p;
}

/* poetc_peak_of of so many whole parts that follow each other. */
static inline void poetc_peaks_of(const float *x, poetc_peak *p)
{
    float from[POETC_PEAKS], terms[POETC_PEAKS][POETC_PEAK_X];
    int32_t first, i, q;
    for (q = 0; q < POETC_PEAKS; q++) {
        p[q] = poetc_largest_of_part(x + q * POETC_CLASSES);
        from[q] = p[q].best == -POETC_INFINITY ? 0.0f : p[q].best;
    }
    for (first = 0; first < POETC_CLASSES; first += POETC_PEAK_X) {
        int has_best = 0;
        for (q = 0; q < POETC_PEAKS; q++) {
            const float *own = x + q * POETC_CLASSES + first;
            has_best |= p[q].where >= first && p[q].where < first + POETC_PEAK_X;
            for (i = 0; i < POETC_PEAK_X; i += POETC_LANES)
                poetc_vector_store(terms[q] + i, poetc_expv(poetc_vector_load(own + i) - from[q]));
        }
        if (has_best) {
            for (q = 0; q < POETC_PEAKS; q++)
                for (i = 0; i < POETC_PEAK_X; i++)
                    if (first + i != p[q].where)
                        poetc_compensated_add(&p[q].rest, terms[q][i]);
            continue;
        }
        for (i = 0; i < POETC_PEAK_X; i++)
            for (q = 0; q < POETC_PEAKS; q++)
                poetc_compensated_add(&p[q].rest, terms[q][i]);
    }
}
#endif

typedef struct {
    const float *x; /* of class 0 */
    int32_t classes;
    ptrdiff_t step;   /* from class to class */
    int32_t where;    /* the class of the largest logit */
    float best, rest; /* that logit; the sum of exp(x - best) over the others */
} sample;

static inline sample look(const float *x, int32_t classes, ptrdiff_t step)
{
    poetc_peak all = poetc_peak_of(x, classes < POETC_CLASSES ? classes : POETC_CLASSES, step);
    sample s = {x, classes, step, all.where, 0.0f, 0.0f};
    int32_t first = POETC_CLASSES;
#if defined(POETC_WIDE_LOSS)
    for (; step == 1 && first + POETC_PEAKS * POETC_CLASSES <= classes; first += POETC_PEAKS * POETC_CLASSES) {
        poetc_peak more[POETC_PEAKS];
        int32_t q;
        poetc_peaks_of(x + first, more);
        for (q = 0; q < POETC_PEAKS; q++) {
            if (more[q].best > all.best)
                s.where = first + q * POETC_CLASSES + more[q].where;
            poetc_peak_join(&all, more + q);
        }
    }
#endif
    for (; first < classes; first += POETC_CLASSES) {
        const int32_t left = classes - first;
        const poetc_peak more = poetc_peak_of(x + first * step, left < POETC_CLASSES ? left : POETC_CLASSES, step);
        if (more.best > all.best)
            s.where = first + more.where;
        poetc_peak_join(&all, &more);
    }
    s.best = all.best, s.rest = all.rest.total;
    return s;
}

static inline float upstream(const poetc_call *call, int has_upstream)
{
    return has_upstream ? *(const float *)poetc_in(call, 2) : 1.0f;
}

/* Sums of a loss so far. Blocks of one have it in their workspace (ops/losses/_means.py). */
typedef struct {
    poetc_compensated total, weights;
    int32_t counted;
} poetc_loss_sums;

#define POETC_LOSS_FLOATS 8 /* that they take in the workspace */

/* Which part of a loss a block is. LOSS_ADDED: of the second pass of a gradient, which has the sums of the first. */
enum { LOSS_WHOLE, LOSS_FIRST, LOSS_LATER, LOSS_ADDED };

static inline poetc_loss_sums poetc_loss_begin(const poetc_call *call, unsigned workspace, int32_t part)
{
    const poetc_loss_sums none = {{0.0f, 0.0f}, {0.0f, 0.0f}, 0};
    return part <= LOSS_FIRST ? none : *(const poetc_loss_sums *)poetc_out(call, workspace);
}

static inline void poetc_loss_keep(const poetc_call *call, unsigned workspace, int32_t part, poetc_loss_sums sums)
{
    if (part != LOSS_WHOLE)
        *(poetc_loss_sums *)poetc_out(call, workspace) = sums;
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
