/* Losses and their gradients in the prediction. All losses are averages; the gradient may overwrite the prediction.
 *
 * Cross-entropy of one sample has target weights t over the classes, best = max x and S = log Σ exp(x - best). Then
 * loss = Σ t * S - Σ t * (x - best), and gradient = softmax(x) * Σ t - t. The kernel computes S as log1p of the sum
 * without the largest term, so a small loss keeps its relative precision.
 *
 * Layout: predictions are [before, classes, after]; a loss of elements sees one dense array.
 * Order of sums: classes in sequence within a sample, then samples in memory order; totals carry their rounding error.
 */
#include "operators/poetc_loss.h"

/* Of the four kernels of classes. ints: before, classes, after, has_upstream, mean_of, part; of the first two also the
 * ignored index. The mean is over `mean_of` samples, 0: over those that count. */
typedef struct {
    int32_t before, classes, after, has_upstream, mean_of, part, ignore;
} task;

static task task_of(const poetc_call *call, int has_ignored)
{
    const int32_t *n = call->ints;
    const task k = {n[0], n[1], n[2], n[3], n[4], n[5], has_ignored ? n[6] : 0};
    return k;
}

/* logits[before,classes,after], target i32[before,after] -> loss. The floats are the weight of the target class beyond
 * that of any class, and the weight of any class (label smoothing). */
int poetc_op_cross_entropy(const poetc_call *call)
{
    const task k = task_of(call, 1);
    const float hit = call->floats[0], any = call->floats[1];
    const float *x = poetc_in(call, 0);
    const int32_t *target = poetc_in(call, 1);
    float *loss = poetc_out(call, 2);
    poetc_loss_sums sums = poetc_loss_begin(call, 3, k.part);
    const int32_t counted = count_targets(target, k.before * k.after, k.classes, k.ignore);
    int32_t b, a, i;
    if (counted < 0)
        return counted;
    sums.counted += counted;
    for (b = 0; b < k.before; b++) {
        for (a = 0; a < k.after; a++) {
            const int32_t t = target[b * k.after + a];
            poetc_compensated sum = {0.0f, 0.0f};
            sample s;
            if (t == k.ignore)
                continue;
            s = look(x + (ptrdiff_t)b * k.classes * k.after + a, k.classes, k.after);
            for (i = 0; any > 0.0f && i < k.classes; i++)
                poetc_compensated_add(&sum, s.x[i * s.step] - s.best);
            poetc_compensated_add(&sums.total,
                                  POETC_FMS(any, sum.total,
                                            POETC_FMS(hit, s.x[t * s.step] - s.best, poetc_log1pf(s.rest))));
        }
    }
    *loss = sums.counted ? sums.total.total / (float)sums.counted : 0.0f;
    poetc_loss_keep(call, 3, k.part, sums);
    return POETC_OK;
}

/* logits, target, upstream? -> gradient. */
int poetc_op_cross_entropy_grad(const poetc_call *call)
{
    const task k = task_of(call, 1);
    const unsigned result = k.has_upstream ? 3 : 2;
    const float hit = call->floats[0], any = call->floats[1];
    const float *x = poetc_in(call, 0);
    const int32_t *target = poetc_in(call, 1);
    float *g = poetc_out(call, result), share;
    poetc_loss_sums sums = poetc_loss_begin(call, result + 1, k.part);
    const int32_t counted = count_targets(target, k.before * k.after, k.classes, k.ignore);
    int32_t b, a, i;
    if (counted < 0)
        return counted;
    if (k.part != LOSS_ADDED)
        sums.counted += counted;
    poetc_loss_keep(call, result + 1, k.part, sums);
    if (k.part == LOSS_FIRST || k.part == LOSS_LATER)
        return POETC_OK;
    if (k.mean_of)
        sums.counted = k.mean_of;
    share = sums.counted ? upstream(call, k.has_upstream) / (float)sums.counted : 0.0f;
    for (b = 0; b < k.before; b++) {
        for (a = 0; a < k.after; a++) {
            const int32_t t = target[b * k.after + a];
            const ptrdiff_t base = (ptrdiff_t)b * k.classes * k.after + a;
            const sample s = look(x + base, k.classes, k.after);
            const float sum = 1.0f + s.rest;
            for (i = 0; i < k.classes; i++) {
                const ptrdiff_t at = base + (ptrdiff_t)i * k.after;
                const float weight = any + (i == t ? hit : 0.0f);
                g[at] = t == k.ignore ? 0.0f : (poetc_expf(x[at] - s.best) / sum - weight) * share;
            }
        }
    }
    return POETC_OK;
}

/* logits, target (both [before,classes,after]) -> loss. Floats: label smoothing's factor of the target and share of any
 * class. */
int poetc_op_soft_cross_entropy(const poetc_call *call)
{
    const task k = task_of(call, 0);
    const float keep = call->floats[0], any = call->floats[1];
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    float *loss = poetc_out(call, 2);
    poetc_loss_sums sums = poetc_loss_begin(call, 3, k.part);
    int32_t b, a, i;
    for (b = 0; b < k.before; b++) {
        for (a = 0; a < k.after; a++) {
            const ptrdiff_t base = (ptrdiff_t)b * k.classes * k.after + a;
            const sample s = look(x + base, k.classes, k.after);
            const float log_sum = poetc_log1pf(s.rest);
            poetc_compensated sum = {0.0f, 0.0f};
            for (i = 0; i < k.classes; i++) {
                const ptrdiff_t at = base + (ptrdiff_t)i * k.after;
                poetc_compensated_add(&sum, POETC_FMA(target[at], keep, any) * (log_sum - (x[at] - s.best)));
            }
            poetc_compensated_add(&sums.total, sum.total);
        }
    }
    *loss = sums.total.total / (float)k.mean_of;
    poetc_loss_keep(call, 3, k.part, sums);
    return POETC_OK;
}

/* logits, target, upstream? -> gradient. */
int poetc_op_soft_cross_entropy_grad(const poetc_call *call)
{
    const task k = task_of(call, 0);
    const float keep = call->floats[0], any = call->floats[1];
    const float share = upstream(call, k.has_upstream) / (float)k.mean_of;
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    float *g = poetc_out(call, k.has_upstream ? 3 : 2);
    int32_t b, a, i;
    for (b = 0; b < k.before; b++) {
        for (a = 0; a < k.after; a++) {
            const ptrdiff_t base = (ptrdiff_t)b * k.classes * k.after + a;
            const sample s = look(x + base, k.classes, k.after);
            const float sum = 1.0f + s.rest;
            poetc_compensated weight = {0.0f, 0.0f};
            for (i = 0; i < k.classes; i++)
                poetc_compensated_add(&weight, POETC_FMA(target[base + (ptrdiff_t)i * k.after], keep, any));
            for (i = 0; i < k.classes; i++) {
                const ptrdiff_t at = base + (ptrdiff_t)i * k.after;
                const float p = poetc_expf(x[at] - s.best) / sum;
                g[at] = POETC_FMA(p, weight.total, -POETC_FMA(target[at], keep, any)) * share;
            }
        }
    }
    return POETC_OK;
}

/* Losses that are a mean over elements: value and slope of one element; `delta` is Huber's. */
typedef float (*pointwise)(float x, float t, float delta);

static float square(float x, float t, float delta)
{
    (void)delta;
    return (x - t) * (x - t);
}

static float square_slope(float x, float t, float delta)
{
    (void)delta;
    return 2.0f * (x - t);
}

static float absolute(float x, float t, float delta)
{
    (void)delta;
    return poetc_fabsf(x - t);
}

static float absolute_slope(float x, float t, float delta)
{
    (void)delta;
    return x > t ? 1.0f : x < t ? -1.0f : x - t;
}

static float huber(float x, float t, float delta)
{
    float d = poetc_fabsf(x - t);
    return d <= delta ? 0.5f * d * d : delta * POETC_FMS(0.5f, delta, d);
}

static float huber_slope(float x, float t, float delta)
{
    float d = x - t;
    return d > delta ? delta : d < -delta ? -delta : d;
}

static float binary(float x, float t, float delta)
{
    (void)delta;
    return POETC_FMS(x, t, x > 0.0f ? x : 0.0f) + poetc_log1pf(poetc_expf(-poetc_fabsf(x)));
}

static float binary_slope(float x, float t, float delta)
{
    (void)delta;
    return poetc_sigmoidf(x) - t;
}

/* prediction, target -> loss. ints, here and in the next one: elements, has_upstream, elements of the mean, part. */
static int mean_over(const poetc_call *call, pointwise value)
{
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    const int32_t part = call->ints[3];
    float *loss = poetc_out(call, 2);
    poetc_loss_sums sums = poetc_loss_begin(call, 3, part);
    int32_t i;
    for (i = 0; i < call->ints[0]; i++)
        poetc_compensated_add(&sums.total, value(x[i], target[i], call->floats[0]));
    *loss = sums.total.total / (float)call->ints[2];
    poetc_loss_keep(call, 3, part, sums);
    return POETC_OK;
}

/* prediction, target, upstream? -> gradient. */
static int slopes(const poetc_call *call, pointwise slope)
{
    const int has_upstream = call->ints[1];
    const float share = upstream(call, has_upstream) / (float)call->ints[2];
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    float *g = poetc_out(call, has_upstream ? 3 : 2);
    int32_t i;
    for (i = 0; i < call->ints[0]; i++)
        g[i] = slope(x[i], target[i], call->floats[0]) * share;
    return POETC_OK;
}

int poetc_op_mean_squared_error(const poetc_call *call)
{
    return mean_over(call, square);
}

int poetc_op_mean_squared_error_grad(const poetc_call *call)
{
    return slopes(call, square_slope);
}

int poetc_op_mean_absolute_error(const poetc_call *call)
{
    return mean_over(call, absolute);
}

int poetc_op_mean_absolute_error_grad(const poetc_call *call)
{
    return slopes(call, absolute_slope);
}

int poetc_op_huber(const poetc_call *call)
{
    return mean_over(call, huber);
}

int poetc_op_huber_grad(const poetc_call *call)
{
    return slopes(call, huber_slope);
}

int poetc_op_bce_with_logits(const poetc_call *call)
{
    return mean_over(call, binary);
}

int poetc_op_bce_with_logits_grad(const poetc_call *call)
{
    return slopes(call, binary_slope);
}
