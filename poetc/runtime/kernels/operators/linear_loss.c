/* The cross-entropy of a product's result, and the gradient of the product's left operand, some rows at a time.
 *
 * Layout: x and its gradient are [rows, features]. The workspace has logits [at once, classes], and then that of the
 * products. The gradient of the logits is made in their place.
 * Order of sums: that of the products and of the losses apart, whose kernels and functions these are. */
#include "operators/poetc_linear_loss.h"

#include <string.h>

#include "operators/poetc_loss.h"

/* Logits of a row become their gradient; returns the row's loss. */
static float turn(float *x, int32_t classes, int32_t target, int32_t ignore, const float *floats, float share)
{
    const float hit = floats[0], any = floats[1];
    poetc_compensated sum = {0.0f, 0.0f};
    sample s;
    float loss, all;
    int32_t i = 0;
    if (target == ignore) {
        memset(x, 0, (size_t)classes * sizeof *x);
        return 0.0f;
    }
    s = look(x, classes, 1);
    for (i = 0; any > 0.0f && i < classes; i++)
        poetc_compensated_add(&sum, x[i] - s.best);
    i = 0;
    loss = POETC_FMS(any, sum.total, POETC_FMS(hit, x[target] - s.best, poetc_log1pf(s.rest)));
    all = 1.0f + s.rest;
#if defined(POETC_WIDE_LOSS)
    {
        const float logit = x[target];
        for (i = 0; i + POETC_LANES <= classes; i += POETC_LANES)
            poetc_vector_store(x + i, (poetc_expv(poetc_vector_load(x + i) - s.best) / all - any) * share);
        if (target < i)
            x[target] = (poetc_expf(logit - s.best) / all - (any + hit)) * share;
    }
#endif
    for (; i < classes; i++)
        x[i] = (poetc_expf(x[i] - s.best) / all - (any + (i == target ? hit : 0.0f))) * share;
    return loss;
}

/* Some rows of logits become their gradient. The loss of a row goes to the beginning of its gradient of x, which the
 * next product makes. The ints are first row, rows, classes, features, ignored, and the operands of target, gradient
 * and logits. */
static int turn_rows(const poetc_call *call)
{
    const int32_t *n = call->ints, first = n[0], rows = n[1], classes = n[2], features = n[3];
    const int32_t *target = (const int32_t *)poetc_in(call, (unsigned)n[5]) + first;
    float *losses = (float *)poetc_out(call, (unsigned)n[6]) + (ptrdiff_t)first * features;
    float *x = poetc_out(call, (unsigned)n[7]);
    int32_t r;
    POETC_THREADED_OVER(turn_rows, call, (int64_t)rows * classes);
    for (r = 0; r < rows; r++) {
        POETC_SKIP(call->share, r, rows, (void)0)
        losses[(ptrdiff_t)r * features] =
            turn(x + (ptrdiff_t)r * classes, classes, target[r], n[4], call->floats, call->floats[2]);
    }
    return POETC_OK;
}

/* x, w (or its codes), bias?, target, upstream? -> loss, gradient of x. The ints are rows, at once, classes, features,
 * ignored, has_bias, has_upstream and operands of w. Then each product has two. They are 0 for that without workspace,
 * 1 for that which packs, 2 for that with codes, and the number of its ints. Those of both follow. */
int poetc_op_linear_cross_entropy(const poetc_call *call)
{
    const int32_t *n = call->ints;
    const int32_t rows = n[0], at_once = n[1], classes = n[2], features = n[3], ignore = n[4];
    const int has_bias = n[5], has_upstream = n[6], weights = n[7], labels = 1 + weights + has_bias;
    const int inputs = labels + 1 + has_upstream;
    const int32_t *target = poetc_in(call, (unsigned)labels);
    const float factor = has_upstream ? *(const float *)poetc_in(call, (unsigned)labels + 1) : 1.0f;
    const poetc_ref logits = call->refs[inputs + 2];
    const poetc_ref space = poetc_further(logits, ((ptrdiff_t)at_once * classes + 3) / 4 * 4);
    const int32_t counted = count_targets(target, rows, classes, ignore);
    float *loss = poetc_out(call, (unsigned)inputs), *losses = poetc_out(call, (unsigned)inputs + 1), share;
    poetc_compensated total = {0.0f, 0.0f};
    int32_t first, r;
    if (counted < 0)
        return counted;
    share = counted ? factor / (float)counted : 0.0f;
    for (first = 0; first < rows; first += at_once) {
        const int32_t count = rows - first < at_once ? rows - first : at_once;
        const ptrdiff_t from = (ptrdiff_t)first * features;
        poetc_ref refs[POETC_LINEAR_OPERANDS];
        int code;
        memcpy(refs, call->refs, (size_t)labels * sizeof *refs);
        refs[0] = poetc_further(refs[0], from), refs[labels] = logits, refs[labels + 1] = space;
        code = poetc_multiply(call, call->floats + 2, n + 8, n + 12, refs, count, 0);
        if (code != POETC_OK)
            return code;
        {
            const int32_t ints[] = {first, count, classes, features, ignore, labels, inputs + 1, inputs + 2};
            const float floats[] = {call->floats[0], call->floats[1], share};
            poetc_call part = *call;
            part.ints = ints, part.floats = floats;
            (void)turn_rows(&part);
        }
        for (r = first; r < first + count; r++)
            if (target[r] != ignore)
                poetc_compensated_add(&total, losses[(ptrdiff_t)r * features]);
        refs[0] = logits, refs[1 + weights] = poetc_further(call->refs[inputs + 1], from), refs[2 + weights] = space;
        code = poetc_multiply(call, call->floats + 2, n + 10, n + 12 + n[9], refs, count, 0);
        if (code != POETC_OK)
            return code;
    }
    *loss = counted ? total.total / (float)counted : 0.0f;
    return POETC_OK;
}
