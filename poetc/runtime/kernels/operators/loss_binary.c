/* Cross-entropy of a sigmoid with weights of positive targets, and focal loss (Lin et al. 2017), and their gradients.
 *
 * One element with the target t has the loss balance * miss^gamma * entropy. With p = sigmoid(x) the miss is
 * p (1 - t) + (1 - p) t. The entropy is (1 - t) x + (1 + (w - 1) t) softplus(-x); w is the weight of its column. The
 * balance is alpha t + (1 - alpha) (1 - t), or 1 where alpha is below 0.
 *
 * Layout: predictions and targets are [before, columns, after].
 * Order of sums: elements in memory order; the total carries its rounding error.
 */
#include "operators/poetc_loss.h"

/* Of both kernels. ints: elements, columns, after, begin, weights, has_upstream, elements of the mean, part. `begin` is
 * the number of the first element. floats: gamma, alpha, the weights. */
typedef struct {
    float entropy, slope; /* of the cross-entropy */
    float balance, miss;
    float spread; /* p (1 - p) */
} element;

static element look_at(const poetc_call *call, int32_t at, float x, float t)
{
    const float alpha = call->floats[1], p = poetc_sigmoidf(x), q = poetc_sigmoidf(-x);
    const int32_t weights = call->ints[4];
    const int32_t column = weights > 1 ? (call->ints[3] + at) / call->ints[2] % call->ints[1] : 0;
    const float weight = weights == 0 ? 1.0f : call->floats[2 + column];
    const float share = POETC_FMA(weight - 1.0f, t, 1.0f);
    const float soft = poetc_log1pf(poetc_expf(-poetc_fabsf(x))) + (x < 0.0f ? -x : 0.0f);
    element e;
    e.entropy = POETC_FMA(1.0f - t, x, share * soft);
    e.slope = POETC_FMS(share, q, 1.0f - t);
    e.balance = alpha < 0.0f ? 1.0f : POETC_FMA(alpha, t, (1.0f - alpha) * (1.0f - t));
    e.miss = POETC_FMA(p, 1.0f - t, q * t);
    e.spread = p * q;
    return e;
}

/* logits, target -> loss. */
int poetc_op_weighted_bce(const poetc_call *call)
{
    const float gamma = call->floats[0];
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    const int32_t part = call->ints[7];
    float *loss = poetc_out(call, 2);
    poetc_loss_sums sums = poetc_loss_begin(call, 3, part);
    int32_t at;
    for (at = 0; at < call->ints[0]; at++) {
        const element e = look_at(call, at, x[at], target[at]);
        const float focus = gamma > 0.0f ? poetc_powf(e.miss, gamma) : 1.0f;
        poetc_compensated_add(&sums.total, e.balance * focus * e.entropy);
    }
    *loss = sums.total.total / (float)call->ints[6];
    poetc_loss_keep(call, 3, part, sums);
    return POETC_OK;
}

/* logits, target, upstream? -> gradient. */
int poetc_op_weighted_bce_grad(const poetc_call *call)
{
    const int has_upstream = call->ints[5];
    const float gamma = call->floats[0];
    const float share = upstream(call, has_upstream) / (float)call->ints[6];
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    float *g = poetc_out(call, has_upstream ? 3 : 2);
    int32_t at;
    for (at = 0; at < call->ints[0]; at++) {
        const float t = target[at];
        const element e = look_at(call, at, x[at], t);
        float slope = e.slope;
        if (gamma > 0.0f) {
            const float steep = gamma * e.spread * POETC_FMS(2.0f, t, 1.0f) * e.entropy;
            slope = poetc_powf(e.miss, gamma) * (e.miss > 0.0f ? steep / e.miss + slope : slope);
        }
        g[at] = e.balance * slope * share;
    }
    return POETC_OK;
}
