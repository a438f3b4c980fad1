/* Losses of boxes by their overlap (IoU, GIoU, CIoU), and their gradients in the boxes, which may overwrite them.
 *
 * The formulas are those of poetc/ops/losses/boxes.py. Where two edges coincide, each has half the slope.
 *
 * Layout: boxes are [boxes, 4].
 * Order of sums: boxes in sequence; the total carries its rounding error. */
#include "operators/poetc_loss.h"

/* ints: boxes, measure, format, has upstream; floats: epsilon. */
enum { IOU, GIOU, CIOU };
enum { XYXY, XYWH, CXCYWH };

typedef struct {
    float low[2], high[2], size[2];
} box;

static box read_box(const float *p, int32_t format)
{
    box b;
    int k;
    for (k = 0; k < 2; k++) {
        b.low[k] = format == CXCYWH ? POETC_FMS(0.5f, p[2 + k], p[k]) : p[k];
        b.high[k] = format == XYXY ? p[2 + k] : format == XYWH ? p[k] + p[2 + k] : POETC_FMA(0.5f, p[2 + k], p[k]);
        b.size[k] = b.high[k] - b.low[k];
    }
    return b;
}

/* The slope of the larger of a and b in a. */
static float above(float a, float b)
{
    return a > b ? 1.0f : a == b ? 0.5f : 0.0f;
}

static float larger(float a, float b)
{
    return a > b ? a : b;
}

/* The loss of one box; into `slope`, unless it is NULL, that of the loss in its corners. */
static float overlap(const box *a, const box *b, int32_t measure, float epsilon, float *slope)
{
    float shared[2], hull[2], apart[2], meet, area, whole, ratio, loss, in_overlap, in_union;
    int k;
    for (k = 0; k < 2; k++) {
        shared[k] = -larger(-a->high[k], -b->high[k]) - larger(a->low[k], b->low[k]);
        hull[k] = larger(a->high[k], b->high[k]) + larger(-a->low[k], -b->low[k]);
        apart[k] = 0.5f * ((a->low[k] - b->low[k]) + (a->high[k] - b->high[k]));
    }
    if (!(shared[0] > 0.0f && shared[1] > 0.0f))
        shared[0] = shared[1] = 0.0f;
    meet = shared[0] * shared[1];
    area = POETC_FMA(a->size[0], a->size[1], b->size[0] * b->size[1]) - meet;
    whole = area + epsilon;
    ratio = meet / whole;
    loss = 1.0f - ratio;
    in_overlap = -1.0f / whole;
    in_union = ratio / whole;
    if (measure == GIOU) {
        const float around = hull[0] * hull[1];
        loss += (around - area) / (around + epsilon);
        in_union -= 1.0f / (around + epsilon);
    }
    for (k = 0; slope && k < 2; k++) {
        const float in_meet = (in_overlap - in_union) * shared[1 - k];
        slope[k] = POETC_FMS(in_union, a->size[1 - k], -in_meet * above(a->low[k], b->low[k]));
        slope[2 + k] = POETC_FMA(in_union, a->size[1 - k], in_meet * above(b->high[k], a->high[k]));
    }
    if (measure == GIOU && slope) {
        const float around = POETC_FMA(hull[0], hull[1], epsilon), in_hull = whole / around / around;
        for (k = 0; k < 2; k++) {
            slope[k] -= in_hull * hull[1 - k] * above(b->low[k], a->low[k]);
            slope[2 + k] += in_hull * hull[1 - k] * above(a->high[k], b->high[k]);
        }
    }
    if (measure == CIOU) {
        const float diagonal = POETC_FMA(hull[0], hull[0], hull[1] * hull[1]) + epsilon;
        const float distance = POETC_FMA(apart[0], apart[0], apart[1] * apart[1]);
        const float lean = poetc_atanf(b->size[0] / b->size[1]) - poetc_atanf(a->size[0] / a->size[1]);
        const float scale = 0.40528473f, shape = scale * lean * lean; /* 4 / pi^2 */
        const float alpha = shape / (loss + shape + epsilon);
        const float square = POETC_FMA(a->size[0], a->size[0], a->size[1] * a->size[1]);
        const float steep = square > 0.0f ? 2.0f * alpha * scale * lean / square : 0.0f;
        loss += distance / diagonal + alpha * shape;
        for (k = 0; slope && k < 2; k++) {
            const float in_size = steep * (k == 0 ? -a->size[1] : a->size[0]);
            const float in_hull = 2.0f * distance / diagonal * hull[k];
            slope[k] += POETC_FMA(in_hull, above(b->low[k], a->low[k]), apart[k]) / diagonal - in_size;
            slope[2 + k] += POETC_FMS(in_hull, above(a->high[k], b->high[k]), apart[k]) / diagonal + in_size;
        }
    }
    return loss;
}

/* boxes, target -> loss. */
int poetc_op_boxes(const poetc_call *call)
{
    const int32_t boxes = call->ints[0], measure = call->ints[1], format = call->ints[2];
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    float *loss = poetc_out(call, 2);
    poetc_compensated sum = {0.0f, 0.0f};
    int32_t i;
    for (i = 0; i < boxes; i++) {
        const box a = read_box(x + 4 * (ptrdiff_t)i, format), b = read_box(target + 4 * (ptrdiff_t)i, format);
        poetc_compensated_add(&sum, overlap(&a, &b, measure, call->floats[0], NULL));
    }
    *loss = sum.total / (float)boxes;
    return POETC_OK;
}

/* boxes, target, upstream? -> gradient. */
int poetc_op_boxes_grad(const poetc_call *call)
{
    const int32_t boxes = call->ints[0], measure = call->ints[1], format = call->ints[2];
    const int has_upstream = call->ints[3];
    const float share = upstream(call, has_upstream) / (float)boxes;
    const float *x = poetc_in(call, 0), *target = poetc_in(call, 1);
    float *g = poetc_out(call, has_upstream ? 3 : 2);
    int32_t i, k;
    for (i = 0; i < boxes; i++) {
        const box a = read_box(x + 4 * (ptrdiff_t)i, format), b = read_box(target + 4 * (ptrdiff_t)i, format);
        float slope[4], *at = g + 4 * (ptrdiff_t)i;
        overlap(&a, &b, measure, call->floats[0], slope);
        for (k = 0; k < 2; k++) {
            const float low = slope[k], high = slope[2 + k];
            at[k] = (format == XYXY ? low : low + high) * share;
            at[2 + k] = (format == CXCYWH ? 0.5f * (high - low) : high) * share;
        }
    }
    return POETC_OK;
}
