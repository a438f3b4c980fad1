/* The Dice loss of classes, and its gradient in the logits, which may overwrite them.
 *
 * Layout: logits are [samples, before, classes, after], targets [samples, before, after].
 * Order of sums: classes in sequence within a place, then the places of a sample in memory order. The sums over places
 * carry no error: they are of numbers from 0 to 1. */
#include "operators/poetc_loss.h"

typedef struct {
    int32_t samples, before, classes, after;
    float smooth;
    int32_t part;
    float *overlap, *size, *slope; /* of one sample, by class; in the workspace behind the sums of blocks */
} dice;

/* ints: samples, before, classes, after, has_upstream, samples of the mean, part; floats: smooth. A block of one sample
 * has its overlap and its size so far in the workspace. */
static dice dice_of(const poetc_call *call, unsigned place)
{
    dice d;
    float *workspace = poetc_out(call, place);
    d.samples = call->ints[0];
    d.before = call->ints[1];
    d.classes = call->ints[2];
    d.after = call->ints[3];
    d.smooth = call->floats[0];
    d.part = call->ints[6];
    if (d.part != LOSS_WHOLE)
        workspace += POETC_LOSS_FLOATS;
    d.overlap = workspace;
    d.size = workspace + d.classes;
    d.slope = workspace + 2 * d.classes;
    return d;
}

/* Adds to overlap and size of one sample, by class. */
static void measure(const dice *d, const float *x, const int32_t *target, int goes_on)
{
    int32_t b, a, i;
    for (i = 0; !goes_on && i < d->classes; i++)
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
}

static float smooth_overlap(const dice *d, int32_t i)
{
    return POETC_FMA(2.0f, d->overlap[i], d->smooth);
}

static float smooth_size(const dice *d, int32_t i)
{
    return d->size[i] + d->smooth;
}

/* logits, target i32 -> loss. */
int poetc_op_dice(const poetc_call *call)
{
    const dice d = dice_of(call, 3);
    const float *x = poetc_in(call, 0);
    const int32_t *target = poetc_in(call, 1);
    const int32_t places = d.before * d.after, counted = count_targets(target, d.samples * places, d.classes, -1);
    float *loss = poetc_out(call, 2);
    const int is_of_one = call->ints[5] == 1; /* then its blocks have some of its places */
    poetc_loss_sums sums = poetc_loss_begin(call, 3, is_of_one ? LOSS_WHOLE : d.part);
    int32_t n, i;
    if (counted != d.samples * places)
        return POETC_ERANGE;
    for (n = 0; n < d.samples; n++) {
        measure(&d, x + (ptrdiff_t)n * places * d.classes, target + n * places, is_of_one && d.part == LOSS_LATER);
        for (i = 0; i < d.classes; i++)
            poetc_compensated_add(&sums.total, 1.0f - smooth_overlap(&d, i) / smooth_size(&d, i));
    }
    *loss = sums.total.total / ((float)call->ints[5] * (float)d.classes);
    poetc_loss_keep(call, 3, d.part, sums);
    return POETC_OK;
}

/* logits, target, upstream? -> gradient. */
int poetc_op_dice_grad(const poetc_call *call)
{
    const int has_upstream = call->ints[4];
    const unsigned inputs = has_upstream ? 3 : 2;
    const dice d = dice_of(call, inputs + 1);
    const float share = upstream(call, has_upstream) / ((float)call->ints[5] * (float)d.classes);
    const float *x = poetc_in(call, 0);
    const int32_t *target = poetc_in(call, 1);
    const int32_t places = d.before * d.after, counted = count_targets(target, d.samples * places, d.classes, -1);
    float *g = poetc_out(call, inputs);
    int32_t n, b, a, i;
    if (counted != d.samples * places)
        return POETC_ERANGE;
    for (n = 0; n < d.samples; n++) {
        if (d.part != LOSS_ADDED)
            measure(&d, x + (ptrdiff_t)n * places * d.classes, target + n * places, d.part == LOSS_LATER);
        if (d.part == LOSS_FIRST || d.part == LOSS_LATER)
            return POETC_OK;
        for (i = 0; i < d.classes; i++)
            d.slope[i] = smooth_overlap(&d, i) / (smooth_size(&d, i) * smooth_size(&d, i));
        for (b = 0; b < d.before; b++) {
            for (a = 0; a < d.after; a++) {
                const int32_t t = target[n * places + b * d.after + a];
                const ptrdiff_t base = ((ptrdiff_t)n * d.before + b) * d.classes * d.after + a;
                const sample s = look(x + base, d.classes, d.after);
                const float sum = 1.0f + s.rest, of_target = -2.0f / smooth_size(&d, t);
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
