/* Cross-entropy with weights of classes and focal loss (Lin et al. 2017), and their gradients in the prediction.
 *
 * One sample with target t and p = softmax(x) has the loss (1 - p[t])^gamma * Σ weight[c] * share[c] * -log p[c]. The
 * share of c is label smoothing's: `hit` for t, and `any` for every class. The mean is over the weights of the targets.
 * The probability 1 - p[t] is the sum of the others, so that it keeps its precision where p[t] is near 1.
 *
 * Layout: predictions are [before, classes, after].
 * Order of sums: classes in sequence within a sample, then samples in memory order; totals carry their rounding error.
 */
#include "operators/poetc_loss.h"

/* Of both kernels. ints: those of loss.c, then whether classes are weighted; floats: hit, any, gamma, then
 * the weights of the classes, if weighted. */
typedef struct {
    int32_t before, classes, after, has_upstream, mean_of, part, ignore;
    const int32_t *target;
    const float *x, *weights; /* NULL: all are 1 */
    float hit, any, gamma;
} task;

static task task_of(const poetc_call *call)
{
    const int32_t *ints = call->ints;
    const float *floats = call->floats;
    task k = {ints[0],   ints[1],   ints[2],           ints[3],           ints[4],
              ints[5],   ints[6],   poetc_in(call, 1), poetc_in(call, 0), ints[7] ? floats + 3 : NULL,
              floats[0], floats[1], floats[2]};
    return k;
}

static float weight_of(const task *k, int32_t class)
{
    return k->weights ? k->weights[class] : 1.0f;
}

/* The weights of the targets that count. */
static void add_weights(const task *k, poetc_compensated *sum)
{
    int32_t i;
    for (i = 0; i < k->before * k->after; i++)
        if (k->target[i] != k->ignore)
            poetc_compensated_add(sum, weight_of(k, k->target[i]));
}

/* 1 - p of class t, exact where p is near 1. */
static float rest_of(const sample *s, int32_t t)
{
    const float all = 1.0f + s->rest;
    return t == s->where ? s->rest / all : (1.0f + (s->rest - poetc_expf(s->x[t * s->step] - s->best))) / all;
}

/* logits[before,classes,after], target i32[before,after] -> loss. */
int poetc_op_weighted_cross_entropy(const poetc_call *call)
{
    const task k = task_of(call);
    float *loss = poetc_out(call, 2);
    poetc_loss_sums sums = poetc_loss_begin(call, 3, k.part);
    const int32_t counted = count_targets(k.target, k.before * k.after, k.classes, k.ignore);
    int32_t b, a, i;
    if (counted < 0)
        return counted;
    add_weights(&k, &sums.weights);
    for (b = 0; b < k.before; b++) {
        for (a = 0; a < k.after; a++) {
            const int32_t t = k.target[b * k.after + a];
            float log_sum, term;
            sample s;
            if (t == k.ignore)
                continue;
            s = look(k.x + (ptrdiff_t)b * k.classes * k.after + a, k.classes, k.after);
            log_sum = poetc_log1pf(s.rest);
            term = weight_of(&k, t) * k.hit * (log_sum - (s.x[t * s.step] - s.best));
            if (k.gamma > 0.0f)
                term *= poetc_powf(rest_of(&s, t), k.gamma);
            if (k.any > 0.0f) {
                poetc_compensated sum = {0.0f, 0.0f};
                for (i = 0; i < k.classes; i++)
                    poetc_compensated_add(&sum, weight_of(&k, i) * (log_sum - (s.x[i * s.step] - s.best)));
                term = POETC_FMA(k.any, sum.total, term);
            }
            poetc_compensated_add(&sums.total, term);
        }
    }
    *loss = sums.weights.total > 0.0f ? sums.total.total / sums.weights.total : 0.0f;
    poetc_loss_keep(call, 3, k.part, sums);
    return POETC_OK;
}

/* The slope of the loss of one sample in log p[t], without weight: (1 - p)^gamma * (gamma p log p / (1 - p) - 1). */
static float focus(const sample *s, int32_t t, float gamma)
{
    const float rest = rest_of(s, t), log_p = (s->x[t * s->step] - s->best) - poetc_log1pf(s->rest);
    return rest > 0.0f ? poetc_powf(rest, gamma) * (gamma * poetc_expf(log_p) * log_p / rest - 1.0f) : 0.0f;
}

/* logits, target, upstream? -> gradient. */
int poetc_op_weighted_cross_entropy_grad(const poetc_call *call)
{
    const task k = task_of(call);
    const unsigned result = k.has_upstream ? 3 : 2;
    float *g = poetc_out(call, result), share;
    poetc_loss_sums sums = poetc_loss_begin(call, result + 1, k.part);
    const int32_t counted = count_targets(k.target, k.before * k.after, k.classes, k.ignore);
    int32_t b, a, i;
    if (counted < 0)
        return counted;
    if (!k.mean_of && k.part != LOSS_ADDED)
        add_weights(&k, &sums.weights);
    poetc_loss_keep(call, result + 1, k.part, sums);
    if (k.part == LOSS_FIRST || k.part == LOSS_LATER)
        return POETC_OK;
    share = k.mean_of ? (float)k.mean_of : sums.weights.total;
    share = share > 0.0f ? upstream(call, k.has_upstream) / share : 0.0f;
    for (b = 0; b < k.before; b++) {
        for (a = 0; a < k.after; a++) {
            const int32_t t = k.target[b * k.after + a];
            const ptrdiff_t base = (ptrdiff_t)b * k.classes * k.after + a;
            const sample s = look(k.x + base, k.classes, k.after);
            const float sum = 1.0f + s.rest;
            if (t == k.ignore) {
                for (i = 0; i < k.classes; i++)
                    g[base + (ptrdiff_t)i * k.after] = 0.0f;
            } else if (k.gamma > 0.0f) {
                const float slope = weight_of(&k, t) * focus(&s, t, k.gamma) * share, rest = rest_of(&s, t);
                for (i = 0; i < k.classes; i++) {
                    const ptrdiff_t at = base + (ptrdiff_t)i * k.after;
                    g[at] = slope * (i == t ? rest : -(poetc_expf(k.x[at] - s.best) / sum));
                }
            } else {
                poetc_compensated mass = {0.0f, 0.0f};
                for (i = 0; i < k.classes; i++)
                    poetc_compensated_add(&mass, weight_of(&k, i) * (k.any + (i == t ? k.hit : 0.0f)));
                for (i = 0; i < k.classes; i++) {
                    const ptrdiff_t at = base + (ptrdiff_t)i * k.after;
                    const float weight = weight_of(&k, i) * (k.any + (i == t ? k.hit : 0.0f));
                    g[at] = POETC_FMA(poetc_expf(k.x[at] - s.best) / sum, mass.total, -weight) * share;
                }
            }
        }
    }
    return POETC_OK;
}
