/* The Dice loss of classes, and its gradient in the logits, which may overwrite them.
 *
 * Layout: logits are [samples, before, classes, after], targets [samples, before, after].
 * Order of sums: classes in sequence within a place, then the places of a sample in memory order. The sums over places
 * carry no error: they are of numbers from 0 to 1. */
#include "operators/poetc_loss.h"

typedef struct {
    int32_t samples, before, classes, after;
    float smooth;
    float *overlap, *size, *slope; /* of one sample, by class; the workspace */
} dice;

static dice dice_of(const poetc_call *call, float *workspace)
{
    dice d;
    d.samples = call->ints[0];
    d.before = call->ints[1];
    d.classes = call->ints[2];
    d.after = call->ints[3];
    d.smooth = call->floats[0];
    d.overlap = workspace;
    d.size = workspace + d.classes;
    d.slope = workspace + 2 * d.classes;
    return d;
}

/* Smoothed overlap and size of one sample, by class. */
static void measure(const dice *d, const float *x, const int32_t *target)
{
    int32_t b, a, i;
    for (i = 0; i < d->classes; i++)
        d->overlap[i] = 0.0f, d->size[i] = 0.0f;
    for (b = 0; b < d->before; b++) {
        for (a = 0; a < d->after; a++) {
            const int32_t t = target[b * d->after + a];
            const sample s = look(x + (ptrdiff_t)b * d->classes * d->after + a, d->classes, d->after);
            for (i = 0; i < d->classes; i++)
                d->size[i] += poetc_expf(s.x[i * s.step] - s.best) / (1.0f + s.rest);
            d->size[t] += 1.0f;
            d->overlap[t] += poetc_expf(s.x[t * s.step] - s.best) / (1.0f + s.rest);
        }
    }
    for (i = 0; i < d->classes; i++) {
        d->overlap[i] = POETC_FMA(2.0f, d->overlap[i], d->smooth);
        d->size[i] += d->smooth;
    }
}

/* logits, target i32 -> loss. ints: samples, before, classes, after, has_upstream; floats: smooth. */
int poetc_op_dice(const poetc_call *call)
{
    const dice d = dice_of(call, poetc_out(call, 3));
    const float *x = poetc_in(call, 0);
    const int32_t *target = poetc_in(call, 1);
    const int32_t places = d.before * d.after, counted = count_targets(target, d.samples * places, d.classes, -1);
    float *loss = poetc_out(call, 2);
    poetc_compensated total = {0.0f, 0.0f};
    int32_t n, i;
    if (counted != d.samples * places)
        return POETC_ERANGE;
    for (n = 0; n < d.samples; n++) {
        measure(&d, x + (ptrdiff_t)n * places * d.classes, target + n * places);
        for (i = 0; i < d.classes; i++)
            poetc_compensated_add(&total, 1.0f - d.overlap[i] / d.size[i]);
    }
    *loss = total.total / ((float)d.samples * (float)d.classes);
    return POETC_OK;
}

/* logits, target, upstream? -> gradient. ints and floats: as above. */
int poetc_op_dice_grad(const poetc_call *call)
{
    const int has_upstream = call->ints[4];
    const unsigned inputs = has_upstream ? 3 : 2;
    const dice d = dice_of(call, poetc_out(call, inputs + 1));
    const float share = upstream(call, has_upstream) / ((float)d.samples * (float)d.classes);
    const float *x = poetc_in(call, 0);
    const int32_t *target = poetc_in(call, 1);
    const int32_t places = d.before * d.after, counted = count_targets(target, d.samples * places, d.classes, -1);
    float *g = poetc_out(call, inputs);
    int32_t n, b, a, i;
    if (counted != d.samples * places)
        return POETC_ERANGE;
    for (n = 0; n < d.samples; n++) {
        measure(&d, x + (ptrdiff_t)n * places * d.classes, target + n * places);
        for (i = 0; i < d.classes; i++)
            d.slope[i] = d.overlap[i] / (d.size[i] * d.size[i]);
        for (b = 0; b < d.before; b++) {
            for (a = 0; a < d.after; a++) {
                const int32_t t = target[n * places + b * d.after + a];
                const ptrdiff_t base = ((ptrdiff_t)n * d.before + b) * d.classes * d.after + a;
                const sample s = look(x + base, d.classes, d.after);
                const float sum = 1.0f + s.rest, of_target = -2.0f / d.size[t];
                float mean = poetc_expf(s.x[t * s.step] - s.best) / sum * of_target;
                for (i = 0; i < d.classes; i++)
                    mean = POETC_FMA(poetc_expf(s.x[i * s.step] - s.best) / sum, d.slope[i], mean);
                for (i = 0; i < d.classes; i++) {
                    const float p = poetc_expf(x[base + (ptrdiff_t)i * d.after] - s.best) / sum;
                    g[base + (ptrdiff_t)i * d.after] = p * (d.slope[i] + (i == t ? of_target : 0.0f) - mean) * share;
                }
            }
        }
    }
    return POETC_OK;
}
