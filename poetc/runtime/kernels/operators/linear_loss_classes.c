/* linear_loss.c a block of classes at a time, in two passes: w passes through a window, and is read twice.
 *
 * The first pass finds the largest logit of each row and the sum of the exponentials. The second one makes the logits
 * again, and with them the loss, the gradient of the logits and that of x.
 *
 * Layout: w has the columns, or rows, of a block's classes. Blocks begin at multiples of POETC_CLASSES. The workspace
 * stays from block to block. It begins with the number of classes before the block, and with a record of each row.
 * After these there are logits [at once, units] and the gradient of some of them [at once, terms]. The gradient of x
 * from these [at once, features] comes next. The workspace of the products is last.
 * Order of sums: that of linear_loss.c. The gradient of x adds blocks of so many terms as the product does. */
#include "operators/poetc_linear_loss.h"

#include <string.h>

#include "operators/poetc_loss.h"

/* All of a row that is known so far. */
typedef struct {
    poetc_peak peak;
    poetc_compensated all; /* of x - best, for label smoothing */
    float hit;             /* the target's logit */
} row;

#define ALIGNED(floats) (((ptrdiff_t)(floats) + 3) / 4 * 4)

enum {
    ROWS,
    AT_ONCE,
    CLASSES,
    FEATURES,
    IGNORED,
    HAS_BIAS,
    HAS_UPSTREAM,
    WEIGHTS,
    UNITS,
    PASS,
    IS_FIRST,
    TERMS,
    STEPS,
    FORWARD = STEPS + 3,
    BACKWARD = FORWARD + 2,
    INTS = BACKWARD + 2
};

/* Where things lie. */
typedef struct {
    int32_t labels, inputs; /* operands before the target; all inputs */
    int32_t *seen;          /* classes in this pass */
    row *known;
    poetc_ref logits, part, sum, space;
} space;

static void *address_of(const poetc_call *call, poetc_ref ref)
{
    return call->arena + (size_t)(ref >> 1) * POETC_ALIGN;
}

static space space_of(const poetc_call *call)
{
    const int32_t *n = call->ints;
    const int32_t labels = 1 + n[WEIGHTS] + n[HAS_BIAS], inputs = labels + 1 + n[HAS_UPSTREAM];
    const poetc_ref state = call->refs[inputs + 2];
    unsigned char *begin = address_of(call, state);
    space s = {labels, inputs, (void *)begin, (void *)(begin + POETC_ALIGN), 0, 0, 0, 0};
    s.logits = poetc_further(state, 4 + ALIGNED(n[ROWS] * (ptrdiff_t)(sizeof(row) / sizeof(float))));
    s.part = poetc_further(s.logits, ALIGNED((ptrdiff_t)n[AT_ONCE] * n[UNITS]));
    s.sum = poetc_further(s.part, ALIGNED((ptrdiff_t)n[AT_ONCE] * n[TERMS]));
    s.space = poetc_further(s.sum, ALIGNED((ptrdiff_t)n[AT_ONCE] * n[FEATURES]));
    return s;
}

static void see(row *r, const float *x, int32_t units, int is_first)
{
    int32_t i;
    for (i = 0; i < units; i += POETC_CLASSES) {
        const poetc_peak more = poetc_peak_of(x + i, units - i < POETC_CLASSES ? units - i : POETC_CLASSES, 1);
        if (is_first && i == 0)
            r->peak = more;
        else
            poetc_peak_join(&r->peak, &more);
    }
}

/* The gradient of `count` logits, `target` counted from the first one. */
static void turn(row *r, const float *x, float *g, int32_t count, int32_t target, const float *floats, float share)
{
    const float hit = floats[0], any = floats[1], best = r->peak.best, all = 1.0f + r->peak.rest.total;
    int32_t i;
    for (i = 0; any > 0.0f && i < count; i++)
        poetc_compensated_add(&r->all, x[i] - best);
    for (i = 0; i < count; i++)
        g[i] = (poetc_expf(x[i] - best) / all - (any + (i == target ? hit : 0.0f))) * share;
    if (target >= 0 && target < count)
        r->hit = x[target];
}

static float mean_of(const row *r, const int32_t *target, int32_t rows, int32_t ignore, int32_t counted,
                     const float *floats)
{
    poetc_compensated total = {0.0f, 0.0f};
    int32_t i;
    for (i = 0; i < rows; i++, r++)
        if (target[i] != ignore)
            poetc_compensated_add(&total, POETC_FMS(floats[1], r->all.total,
                                                    POETC_FMS(floats[0], r->hit - r->peak.best,
                                                              poetc_log1pf(r->peak.rest.total))));
    return counted ? total.total / (float)counted : 0.0f;
}

/* The second product of `count` rows from row `first` on: y of `units` classes, `terms` of them at a time. */
static int turn_block(const poetc_call *call, const space *s, int32_t first, int32_t count, int32_t seen, float share)
{
    const int32_t *n = call->ints, *target = poetc_in(call, (unsigned)s->labels);
    const int32_t units = n[UNITS], features = n[FEATURES];
    const ptrdiff_t from = (ptrdiff_t)first * features, elements = (ptrdiff_t)count * features;
    const float one = 1.0f, alpha = call->floats[2], *x = address_of(call, s->logits);
    float *g = address_of(call, s->part), *more = address_of(call, s->sum);
    float *gx = (float *)poetc_out(call, (unsigned)s->inputs + 1) + from;
    int32_t begin, r, w;
    ptrdiff_t i;
    for (begin = 0; begin < units; begin += n[TERMS]) {
        const int32_t terms = units - begin < n[TERMS] ? units - begin : n[TERMS];
        const int is_first = seen + begin == 0;
        poetc_ref refs[POETC_LINEAR_OPERANDS];
        int code;
        for (r = 0; r < count; r++) {
            const int32_t t = target[first + r];
            float *own = g + (ptrdiff_t)r * terms;
            if (t == n[IGNORED])
                memset(own, 0, (size_t)terms * sizeof *own);
            else
                turn(s->known + first + r, x + (ptrdiff_t)r * units + begin, own, terms, t - seen - begin, call->floats,
                     share);
        }
        refs[0] = s->part;
        for (w = 0; w < n[WEIGHTS]; w++)
            refs[1 + w] = poetc_further(call->refs[1 + w], (ptrdiff_t)begin * n[STEPS + w] / (ptrdiff_t)sizeof(float));
        refs[1 + w] = is_first ? poetc_further(call->refs[s->inputs + 1], from) : s->sum, refs[2 + w] = s->space;
        code = poetc_multiply(call, &one, n + BACKWARD, n + INTS + n[FORWARD + 1], refs, count, terms);
        if (code != POETC_OK)
            return code;
        for (i = 0; !is_first && i < elements; i++)
            gx[i] += more[i];
    }
    if (seen + units == n[CLASSES] && alpha != 1.0f)
        for (i = 0; i < elements; i++)
            gx[i] = n[BACKWARD] == POETC_PLAIN ? POETC_FMA(alpha, gx[i], 0.0f) : alpha * gx[i];
    return POETC_OK;
}

/* The operands of linear_loss.c, of w and the bias the block's part. The ints are the same, but classes are those of
 * all blocks. Then come the block's classes, the pass (0 or 1), and whether the block is its first one. There follow
 * the terms of a block of the second product, and the bytes from class to class of up to three operands of w. The
 * products are last, as in linear_loss.c, the second one of so many terms. */
int poetc_op_linear_cross_entropy_classes(const poetc_call *call);
int poetc_op_linear_cross_entropy_classes(const poetc_call *call)
{
    const int32_t *n = call->ints;
    const int32_t rows = n[ROWS], at_once = n[AT_ONCE], classes = n[CLASSES], units = n[UNITS];
    const space s = space_of(call);
    const int32_t *target = poetc_in(call, (unsigned)s.labels);
    const float factor = n[HAS_UPSTREAM] ? *(const float *)poetc_in(call, (unsigned)s.labels + 1) : 1.0f;
    const int32_t counted = count_targets(target, rows, classes, n[IGNORED]);
    const float share = counted > 0 ? factor / (float)counted : 0.0f;
    float *loss = poetc_out(call, (unsigned)s.inputs), *x = address_of(call, s.logits);
    int32_t first, r, seen;
    if (counted < 0)
        return counted;
    seen = n[IS_FIRST] ? 0 : *s.seen;
    if (n[IS_FIRST] && n[PASS])
        for (r = 0; r < rows; r++)
            s.known[r].all.total = s.known[r].all.lost = s.known[r].hit = 0.0f;
    for (first = 0; first < rows; first += at_once) {
        const int32_t count = rows - first < at_once ? rows - first : at_once;
        poetc_ref refs[POETC_LINEAR_OPERANDS];
        int code;
        memcpy(refs, call->refs, (size_t)s.labels * sizeof *refs);
        refs[0] = poetc_further(refs[0], (ptrdiff_t)first * n[FEATURES]);
        refs[s.labels] = s.logits, refs[s.labels + 1] = s.space;
        code = poetc_multiply(call, call->floats + 2, n + FORWARD, n + INTS, refs, count, 0);
        if (code == POETC_OK && n[PASS])
            code = turn_block(call, &s, first, count, seen, share);
        if (code != POETC_OK)
            return code;
        for (r = 0; !n[PASS] && r < count; r++)
            see(s.known + first + r, x + (ptrdiff_t)r * units, units, n[IS_FIRST]);
    }
    *s.seen = seen + units;
    *loss =
        n[PASS] && seen + units == classes ? mean_of(s.known, target, rows, n[IGNORED], counted, call->floats) : 0.0f;
    return POETC_OK;
}
