/* Losses over pairs and triples of the rows of a batch, and their gradients.
 *
 * Both work on the distances d(i, j) = |x[i] - x[j] + epsilon| of all ordered pairs. The gradient first makes the slope
 * of the loss in each distance; for triples that is a difference of two counts, which is exact.
 *
 * Layout: x is [rows, width]; distances and slopes are [rows, rows].
 * Order of sums: pairs and triples in row-major order. Totals and distances carry their rounding error.
 */
#include "poetc_math.h"
#include "simd/poetc_f4.h"

/* ints: rows, width, triplet, has upstream; floats: margin, epsilon. */
static void distances(const poetc_call *call, float *d)
{
    const int32_t rows = call->ints[0], width = call->ints[1];
    const float *x = poetc_in(call, 0), epsilon = call->floats[1];
    int32_t i, j, k;
    for (i = 0; i < rows; i++) {
        for (j = 0; j < rows; j++) {
            const float *a = x + (ptrdiff_t)i * width, *b = x + (ptrdiff_t)j * width;
            poetc_compensated sum = {0.0f, 0.0f};
            for (k = 0; k < width; k++) {
                const float apart = a[k] - b[k] + epsilon;
                poetc_compensated_add(&sum, apart * apart);
            }
            d[(ptrdiff_t)i * rows + j] = poetc_sqrtf(sum.total);
        }
    }
}

/* The loss; into `slope`, unless it is NULL, that of the loss in each distance. */
static float over_triples(const poetc_call *call, const float *d, float *slope)
{
    const int32_t rows = call->ints[0], *classes = poetc_in(call, 1);
    const float margin = call->floats[0];
    poetc_compensated total = {0.0f, 0.0f};
    float count = 0.0f;
    int32_t a, p, n;
    for (a = 0; slope && a < rows * rows; a++)
        slope[a] = 0.0f;
    for (a = 0; a < rows; a++) {
        const ptrdiff_t row = (ptrdiff_t)a * rows;
        for (p = 0; p < rows; p++) {
            for (n = 0; n < rows; n++) {
                float hinge;
                if (p == a || classes[p] != classes[a] || classes[n] == classes[a])
                    continue;
                count += 1.0f;
                hinge = d[row + p] - d[row + n] + margin;
                if (!(hinge <= 0.0f)) { /* NaN counts */
                    poetc_compensated_add(&total, hinge);
                    if (slope)
                        slope[row + p] += 1.0f, slope[row + n] -= 1.0f;
                }
            }
        }
    }
    if (count < 1.0f)
        count = 1.0f;
    for (a = 0; slope && a < rows * rows; a++)
        slope[a] /= count;
    return total.total / count;
}

static float over_pairs(const poetc_call *call, const float *d, float *slope)
{
    const int32_t rows = call->ints[0], *classes = poetc_in(call, 1);
    const float margin = call->floats[0], pairs = 0.5f * (float)rows * (float)(rows - 1);
    const float count = pairs < 1.0f ? 1.0f : pairs;
    poetc_compensated total = {0.0f, 0.0f};
    int32_t i, j;
    for (i = 0; i < rows; i++) {
        for (j = 0; j < rows; j++) {
            const ptrdiff_t at = (ptrdiff_t)i * rows + j;
            float error = 0.0f, sign = 1.0f;
            if (i < j && classes[i] == classes[j])
                error = d[at];
            else if (i < j && !(d[at] >= margin))
                error = margin - d[at], sign = -1.0f;
            poetc_compensated_add(&total, error * error);
            if (slope)
                slope[at] = sign * error / count;
        }
    }
    return total.total / (2.0f * count);
}

/* x, classes -> loss. Workspace: a distance a pair. */
int poetc_op_metric(const poetc_call *call)
{
    float *loss = poetc_out(call, 2), *d = poetc_out(call, 3);
    distances(call, d);
    *loss = call->ints[2] ? over_triples(call, d, NULL) : over_pairs(call, d, NULL);
    return POETC_OK;
}

/* x, classes, upstream? -> gradient. Workspace: a distance and a slope a pair. */
int poetc_op_metric_grad(const poetc_call *call)
{
    const int32_t rows = call->ints[0], width = call->ints[1];
    const int has_upstream = call->ints[3];
    const float *x = poetc_in(call, 0), epsilon = call->floats[1];
    const float factor = has_upstream ? *(const float *)poetc_in(call, 2) : 1.0f;
    float *g = poetc_out(call, has_upstream ? 3 : 2), *d = poetc_out(call, has_upstream ? 4 : 3);
    float *slope = d + (ptrdiff_t)rows * rows;
    int32_t i, j, k;
    distances(call, d);
    if (call->ints[2])
        over_triples(call, d, slope);
    else
        over_pairs(call, d, slope);
    for (i = 0; i < rows; i++) {
        for (k = 0; k < width; k++) {
            const float mine = x[(ptrdiff_t)i * width + k];
            poetc_compensated sum = {0.0f, 0.0f};
            for (j = 0; j < rows; j++) {
                const ptrdiff_t there = (ptrdiff_t)i * rows + j, back = (ptrdiff_t)j * rows + i;
                const float other = x[(ptrdiff_t)j * width + k];
                if (j == i)
                    continue; /* the two cancel */
                poetc_compensated_add(&sum, POETC_FMS(slope[back] / d[back], other - mine + epsilon,
                                                      slope[there] / d[there] * (mine - other + epsilon)));
            }
            g[(ptrdiff_t)i * width + k] = sum.total * factor;
        }
    }
    return POETC_OK;
}
