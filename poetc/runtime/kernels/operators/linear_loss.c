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
    int32_t i;
    if (target == ignore) {
        memset(x, 0, (size_t)classes * sizeof *x);
        return 0.0f;
    }
    s = look(x, classes, 1);
    for (i = 0; any > 0.0f && i < classes; i++)
        poetc_compensated_add(&sum, x[i] - s.best);
    loss = POETC_FMS(any, sum.total, POETC_FMS(hit, x[target] - s.best, poetc_log1pf(s.rest)));
    all = 1.0f + s.rest;
    for (i = 0; i < classes; i++)
        x[i] = (poetc_expf(x[i] - s.best) / all - (any + (i == target ? hit : 0.0f))) * share;
    return loss;
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
    float *loss = poetc_out(call, (unsigned)inputs), *x = poetc_out(call, (unsigned)inputs + 2), share;
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
        for (r = 0; r < count; r++) {
            const int32_t t = target[first + r];
            const float own = turn(x + (ptrdiff_t)r * classes, classes, t, ignore, call->floats, share);
            if (t != ignore)
                poetc_compensated_add(&total, own);
        }
        refs[0] = logits, refs[1 + weights] = poetc_further(call->refs[inputs + 1], from), refs[2 + weights] = space;
        code = poetc_multiply(call, call->floats + 2, n + 10, n + 12 + n[9], refs, count, 0);
        if (code != POETC_OK)
            return code;
    }
    *loss = counted ? total.total / (float)counted : 0.0f;
    return POETC_OK;
}
