/* Connectionist temporal classification (Graves et al. 2006) and its gradient in the logits, in log space.
 *
 * A path has a place for each label of a sample and for the blanks before, between and after them. `forward` of a time
 * step and a place sums all beginnings of paths that end there. `backward` sums all endings that begin there. Both are
 * logs of probabilities, and count the class of that step. A place follows itself, the one before, and the one before
 * the blank between two different labels.
 *
 * Layout: logits are [samples, steps, classes] or [steps, samples, classes]; labels are [samples, most].
 * Order of sums: at most three terms by place; places in sequence; samples in sequence, with the rounding error
 * carried.
 */
#include "operators/poetc_loss.h"

#define NEVER (-1e30f) /* log of a probability of zero */

/* ints: samples, steps, classes, most labels, blank, time first, has upstream. */
typedef struct {
    const float *x; /* step 0 */
    ptrdiff_t step; /* from time step to time step */
    const int32_t *labels;
    int32_t steps, classes, count, blank;
} line;

/* The labels of sample n, or POETC_ERANGE in `count`. */
static line line_of(const poetc_call *call, int32_t n)
{
    const int32_t *ints = call->ints;
    const int32_t samples = ints[0], steps = ints[1], classes = ints[2], most = ints[3];
    const float *x = poetc_in(call, 0);
    line l;
    l.step = (ptrdiff_t)(ints[5] ? samples : 1) * classes;
    l.x = x + (ptrdiff_t)n * (ints[5] ? 1 : steps) * classes;
    l.labels = (const int32_t *)poetc_in(call, 1) + (ptrdiff_t)n * most;
    l.steps = steps, l.classes = classes, l.blank = ints[4];
    for (l.count = 0; l.count < most; l.count++) {
        const int32_t label = l.labels[l.count];
        if (label == l.blank || label == -1)
            break;
        if (label < 0 || label >= classes) {
            l.count = POETC_ERANGE;
            break;
        }
    }
    return l;
}

static int32_t class_at(const line *l, int32_t place)
{
    return place % 2 ? l->labels[place / 2] : l->blank;
}

/* Whether `place` follows the one two before. */
static int skips(const line *l, int32_t place)
{
    return place % 2 && place >= 3 && l->labels[place / 2] != l->labels[place / 2 - 1];
}

static float log_sum(float a, float b, float c)
{
    const float ab = a > b ? a : b, top = ab > c ? ab : c;
    if (a != a || b != b || c != c)
        return a + b + c; /* NaN stays */
    if (!(top > NEVER / 2))
        return NEVER;
    return top + poetc_logf(poetc_expf(a - top) + poetc_expf(b - top) + poetc_expf(c - top));
}

static float later(float emitted, float sum)
{
    return sum <= NEVER / 2 ? NEVER : emitted + sum; /* NaN stays */
}

/* One time step of `forward`, in place unless `before` is another row. */
static void go_on(const line *l, const float *x, const float *before, float *row, int is_first)
{
    const sample s = look(x, l->classes, 1);
    const float log_all = s.best + poetc_log1pf(s.rest);
    int32_t place;
    for (place = 2 * l->count; place >= 0; place--) {
        const float emitted = x[class_at(l, place)] - log_all;
        if (is_first)
            row[place] = place < 2 ? emitted : NEVER;
        else
            row[place] = later(emitted, log_sum(before[place], place > 0 ? before[place - 1] : NEVER,
                                                skips(l, place) ? before[place - 2] : NEVER));
    }
}

/* The log of the probability of all paths, of the last row of `forward`. */
static float all_paths(const line *l, const float *row)
{
    return log_sum(row[2 * l->count], l->count > 0 ? row[2 * l->count - 1] : NEVER, NEVER);
}

int poetc_op_ctc(const poetc_call *call)
{
    const int32_t samples = call->ints[0], most = call->ints[3];
    float *loss = poetc_out(call, 2), *row = poetc_out(call, 3);
    poetc_compensated total = {0.0f, 0.0f};
    int32_t n, t, place;
    for (n = 0; n < samples; n++) {
        const line l = line_of(call, n);
        float paths;
        if (l.count < 0)
            return l.count;
        for (place = 0; place < 2 * most + 1; place++)
            row[place] = NEVER;
        for (t = 0; t < l.steps; t++)
            go_on(&l, l.x + t * l.step, row, row, t == 0);
        paths = all_paths(&l, row);
        if (!(paths <= NEVER / 2)) /* NaN counts */
            poetc_compensated_add(&total, -paths / (float)(l.count > 0 ? l.count : 1));
    }
    *loss = total.total / (float)samples;
    return POETC_OK;
}

/* Workspace: `forward` of every step, then a row of `backward`. A row of `forward` becomes the share of the paths that
 * pass through each place, before the gradient of its step may overwrite the logits. */
int poetc_op_ctc_grad(const poetc_call *call)
{
    const int32_t samples = call->ints[0], most = call->ints[3];
    const int has_upstream = call->ints[6];
    const float factor = upstream(call, has_upstream) / (float)samples;
    const float *start = poetc_in(call, 0);
    float *gradient = poetc_out(call, has_upstream ? 3 : 2), *forward = poetc_out(call, has_upstream ? 4 : 3);
    const ptrdiff_t places = 2 * (ptrdiff_t)most + 1;
    int32_t n, t, i, place;
    for (n = 0; n < samples; n++) {
        const line l = line_of(call, n);
        const int32_t last = 2 * l.count;
        float *backward = forward + l.steps * places, paths, share;
        if (l.count < 0)
            return l.count;
        for (place = 0; place < places; place++)
            backward[place] = NEVER;
        for (t = 0; t < l.steps; t++)
            go_on(&l, l.x + t * l.step, forward + (t ? t - 1 : 0) * places, forward + t * places, t == 0);
        paths = all_paths(&l, forward + (l.steps - 1) * places);
        share = !(paths <= NEVER / 2) ? factor / (float)(l.count > 0 ? l.count : 1) : 0.0f;
        for (t = l.steps - 1; t >= 0; t--) {
            const float *x = l.x + t * l.step;
            const sample s = look(x, l.classes, 1);
            const float log_all = s.best + poetc_log1pf(s.rest), all = 1.0f + s.rest;
            float *row = forward + t * places, *g = gradient + (x - start);
            for (place = 0; place <= last; place++) {
                const float emitted = x[class_at(&l, place)] - log_all;
                if (t == l.steps - 1)
                    backward[place] = place >= last - 1 ? emitted : NEVER;
                else
                    backward[place] =
                        later(emitted,
                              log_sum(backward[place], place < last ? backward[place + 1] : NEVER,
                                      place + 2 <= last && skips(&l, place + 2) ? backward[place + 2] : NEVER));
                row[place] = row[place] > NEVER / 2 && backward[place] > NEVER / 2 && share != 0.0f
                                 ? poetc_expf(row[place] + backward[place] - emitted - paths)
                                 : 0.0f;
            }
            for (i = 0; i < l.classes; i++)
                g[i] = share != 0.0f ? poetc_expf(x[i] - s.best) / all : 0.0f;
            for (place = 0; place <= last; place++)
                g[class_at(&l, place)] -= row[place];
            for (i = 0; i < l.classes; i++)
                g[i] *= share;
        }
    }
    return POETC_OK;
}
