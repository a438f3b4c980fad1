/* Optimizer updates in place, element by element. The learning rate is an operand, so that it can change between steps
 * without new code.
 *
 * Layout: parameters, gradient and optimizer state are dense arrays of the same size.
 * Order of sums: nothing is added here. */
#include "operators/poetc_descend.h"
#include "operators/poetc_gated.h"
#include "poetc_math.h"

/* w, g, lr -> w. ints: elements; floats: weight decay. */
int poetc_op_sgd(const poetc_call *call)
{
    const float *w = poetc_in(call, 0), *g = poetc_in(call, 1);
    const float lr = *(const float *)poetc_in(call, 2), decay = call->floats[0];
    float *next = poetc_out(call, 3);
    const int32_t begin = POETC_BEGIN(call->share, call->ints[0], 16), end = POETC_END(call->share, call->ints[0], 16);
    int32_t i;
    POETC_THREADED_OVER(poetc_op_sgd, call, call->ints[0]);
    if (decay == 0.0f) {
        poetc_descend(next + begin, g + begin, lr, end - begin); /* the result takes the place of w */
        return POETC_OK;
    }
    for (i = begin; i < end; i++)
        next[i] = POETC_FMS(lr, POETC_FMA(decay, w[i], g[i]), w[i]);
    return POETC_OK;
}

/* w, indices, g, lr -> w. ints: outer, length, elements of a slice, number of indices; floats: weight decay.
 * The output is input 0 in place. */
int poetc_op_sgd_slices(const poetc_call *call)
{
    const int32_t *indices = poetc_in(call, 1);
    const float *g = poetc_in(call, 2);
    const float lr = *(const float *)poetc_in(call, 3), decay = call->floats[0];
    float *w = poetc_out(call, 4);
    const int32_t length = call->ints[1], size = call->ints[2], count = call->ints[3];
    int32_t o, k, i;
    for (o = 0; o < call->ints[0]; o++, w += (ptrdiff_t)length * size) {
        for (k = 0; k < count; k++, g += size) {
            float *slice = w + (ptrdiff_t)indices[k] * size;
            if (indices[k] < 0 || indices[k] >= length)
                return POETC_ERANGE;
            if (decay == 0.0f) {
                poetc_descend(slice, g, lr, size);
                continue;
            }
            for (i = 0; i < size; i++)
                slice[i] = POETC_FMS(lr, POETC_FMA(decay, slice[i], g[i]), slice[i]);
        }
    }
    return POETC_OK;
}

/* w, v, g, lr -> w, v. ints: elements, nesterov; floats: momentum, weight decay. */
int poetc_op_momentum(const poetc_call *call)
{
    const float *w = poetc_in(call, 0), *v = poetc_in(call, 1), *g = poetc_in(call, 2);
    const float lr = *(const float *)poetc_in(call, 3), momentum = call->floats[0], decay = call->floats[1];
    const int nesterov = call->ints[1];
    float *next_w = poetc_out(call, 4), *next_v = poetc_out(call, 5);
    int32_t i;
    POETC_THREADED_OVER(poetc_op_momentum, call, call->ints[0]);
    for (i = POETC_BEGIN(call->share, call->ints[0], 16); i < POETC_END(call->share, call->ints[0], 16); i++) {
        const float slope = POETC_FMA(decay, w[i], g[i]), velocity = POETC_FMA(momentum, v[i], slope);
        next_v[i] = velocity;
        next_w[i] = POETC_FMS(lr, nesterov ? POETC_FMA(momentum, velocity, slope) : velocity, w[i]);
    }
    return POETC_OK;
}

/* 1 - (1 - d)^n by repeated squaring, on the complements: without the cancellation of 1 - beta^n. */
static float complement_of_power(float d, int32_t n)
{
    float result = 0.0f;
    for (; n > 0; n >>= 1) {
        if (n & 1)
            result = POETC_FMA(d, 1.0f - result, result);
        d *= 2.0f - d;
    }
    return result;
}

/* w, m, v, g, lr, step -> w, m, v. ints: elements, decoupled; floats: beta1, 1 - beta1, beta2, 1 - beta2, epsilon,
 * weight decay. */
int poetc_op_adam(const poetc_call *call)
{
    const float *w = poetc_in(call, 0), *m = poetc_in(call, 1), *v = poetc_in(call, 2), *g = poetc_in(call, 3);
    const float lr = *(const float *)poetc_in(call, 4);
    const int32_t step = *(const int32_t *)poetc_in(call, 5);
    const float beta1 = call->floats[0], new1 = call->floats[1], beta2 = call->floats[2], new2 = call->floats[3];
    const float epsilon = call->floats[4];
    const float coupled = call->ints[1] ? 0.0f : call->floats[5], decoupled = call->ints[1] ? call->floats[5] : 0.0f;
    float *next_w = poetc_out(call, 6), *next_m = poetc_out(call, 7), *next_v = poetc_out(call, 8);
    float rate, root;
    int32_t i;
    if (step < 1)
        return POETC_ERANGE;
    POETC_THREADED_OVER(poetc_op_adam, call, call->ints[0]);
    rate = lr / complement_of_power(new1, step);
    root = 1.0f / poetc_sqrtf(complement_of_power(new2, step));
    for (i = POETC_BEGIN(call->share, call->ints[0], 16); i < POETC_END(call->share, call->ints[0], 16); i++) {
        const float slope = POETC_FMA(coupled, w[i], g[i]);
        const float first = POETC_FMA(new1, slope, beta1 * m[i]);
        const float second = POETC_FMA(new2, slope * slope, beta2 * v[i]);
        next_m[i] = first;
        next_v[i] = second;
        next_w[i] =
            POETC_FMS(lr * decoupled, w[i], w[i]) - rate * first / POETC_FMA(poetc_sqrtf(second), root, epsilon);
    }
    return POETC_OK;
}

/* w, h, g, lr -> w, h. ints: elements; floats: epsilon, weight decay. */
int poetc_op_adagrad(const poetc_call *call)
{
    const float *w = poetc_in(call, 0), *h = poetc_in(call, 1), *g = poetc_in(call, 2);
    const float lr = *(const float *)poetc_in(call, 3), epsilon = call->floats[0], decay = call->floats[1];
    float *next_w = poetc_out(call, 4), *next_h = poetc_out(call, 5);
    int32_t i;
    POETC_THREADED_OVER(poetc_op_adagrad, call, call->ints[0]);
    for (i = POETC_BEGIN(call->share, call->ints[0], 16); i < POETC_END(call->share, call->ints[0], 16); i++) {
        const float slope = POETC_FMA(decay, w[i], g[i]), sum = POETC_FMA(slope, slope, h[i]);
        next_h[i] = sum;
        next_w[i] = w[i] - lr * slope / (poetc_sqrtf(sum) + epsilon);
    }
    return POETC_OK;
}

/* w, s, mean?, v?, g, lr -> w, s, mean?, v?. ints: elements, centered (mean), velocity (v); floats: alpha, 1 - alpha,
 * epsilon, momentum, weight decay. */
int poetc_op_rms_prop(const poetc_call *call)
{
    const unsigned centered = call->ints[1] != 0, moving = call->ints[2] != 0, states = 2 + centered + moving;
    const float *w = poetc_in(call, 0), *s = poetc_in(call, 1), *g = poetc_in(call, states);
    const float *mean = centered ? poetc_in(call, 2) : s, *v = moving ? poetc_in(call, states - 1) : s;
    const float lr = *(const float *)poetc_in(call, states + 1), alpha = call->floats[0], new = call->floats[1];
    const float epsilon = call->floats[2], momentum = call->floats[3], decay = call->floats[4];
    float *next_w = poetc_out(call, states + 2), *next_s = poetc_out(call, states + 3);
    float *next_mean = centered ? poetc_out(call, states + 4) : next_s;
    float *next_v = moving ? poetc_out(call, 2 * states + 1) : next_s;
    int32_t i;
    POETC_THREADED_OVER(poetc_op_rms_prop, call, call->ints[0]);
    for (i = POETC_BEGIN(call->share, call->ints[0], 16); i < POETC_END(call->share, call->ints[0], 16); i++) {
        const float slope = POETC_FMA(decay, w[i], g[i]), second = POETC_FMA(new, slope * slope, alpha * s[i]);
        float variance = second, move;
        if (centered) {
            const float first = POETC_FMA(new, slope, alpha * mean[i]);
            variance = POETC_FMS(first, first, second);
            if (variance < 0.0f)
                variance = 0.0f;
            next_mean[i] = first;
        }
        move = slope / (poetc_sqrtf(variance) + epsilon);
        if (moving)
            next_v[i] = move = POETC_FMA(momentum, v[i], move);
        next_s[i] = second;
        next_w[i] = POETC_FMS(lr, move, w[i]);
    }
    return POETC_OK;
}

/* w, m, g, lr -> w, m. ints: elements; floats: beta1, 1 - beta1, beta2, 1 - beta2, weight decay. */
int poetc_op_lion(const poetc_call *call)
{
    const float *w = poetc_in(call, 0), *m = poetc_in(call, 1), *g = poetc_in(call, 2);
    const float lr = *(const float *)poetc_in(call, 3), decay = call->floats[4];
    const float beta1 = call->floats[0], new1 = call->floats[1], beta2 = call->floats[2], new2 = call->floats[3];
    float *next_w = poetc_out(call, 4), *next_m = poetc_out(call, 5);
    int32_t i;
    POETC_THREADED_OVER(poetc_op_lion, call, call->ints[0]);
    for (i = POETC_BEGIN(call->share, call->ints[0], 16); i < POETC_END(call->share, call->ints[0], 16); i++) {
        const float blend = POETC_FMA(new1, g[i], beta1 * m[i]);
        const float sign = blend > 0.0f ? 1.0f : blend < 0.0f ? -1.0f : blend; /* NaN stays */
        next_m[i] = POETC_FMA(new2, g[i], beta2 * m[i]);
        next_w[i] = POETC_FMS(lr, sign, POETC_FMS(lr * decay, w[i], w[i]));
    }
    return POETC_OK;
}

/* The momentum of NAdam's step `n`. */
static float nadam_momentum(float beta1, float exponent, float n)
{
    return beta1 * POETC_FMS(0.5f, poetc_expf(n * exponent), 1.0f);
}

/* w, m, v, g, lr, step, product -> w, m, v. The int is elements. The floats are beta1, 1 - beta1, beta2, 1 - beta2,
 * epsilon, weight decay, and the exponent a step of the momentum's schedule. */
int poetc_op_nadam(const poetc_call *call)
{
    const float *w = poetc_in(call, 0), *m = poetc_in(call, 1), *v = poetc_in(call, 2), *g = poetc_in(call, 3);
    const float lr = *(const float *)poetc_in(call, 4), product = *(const float *)poetc_in(call, 6);
    const int32_t step = *(const int32_t *)poetc_in(call, 5);
    const float beta1 = call->floats[0], new1 = call->floats[1], beta2 = call->floats[2], new2 = call->floats[3];
    const float epsilon = call->floats[4], decay = call->floats[5];
    float *next_w = poetc_out(call, 7), *next_m = poetc_out(call, 8), *next_v = poetc_out(call, 9);
    float now, following, rate_now, rate_mean, root;
    int32_t i;
    if (step < 1)
        return POETC_ERANGE;
    POETC_THREADED_OVER(poetc_op_nadam, call, call->ints[0]);
    now = nadam_momentum(beta1, call->floats[6], (float)step);
    following = nadam_momentum(beta1, call->floats[6], (float)step + 1.0f);
    rate_now = lr * (1.0f - now) / (1.0f - product);
    rate_mean = lr * following / POETC_FMS(product, following, 1.0f);
    root = 1.0f / poetc_sqrtf(complement_of_power(new2, step));
    for (i = POETC_BEGIN(call->share, call->ints[0], 16); i < POETC_END(call->share, call->ints[0], 16); i++) {
        const float slope = POETC_FMA(decay, w[i], g[i]);
        const float first = POETC_FMA(new1, slope, beta1 * m[i]);
        const float second = POETC_FMA(new2, slope * slope, beta2 * v[i]);
        next_m[i] = first;
        next_v[i] = second;
        next_w[i] =
            w[i] - POETC_FMA(rate_mean, first, rate_now * slope) / POETC_FMA(poetc_sqrtf(second), root, epsilon);
    }
    return POETC_OK;
}

/* product, step -> the product of the momentums up to this step. floats: beta1, exponent a step. */
int poetc_op_nadam_schedule(const poetc_call *call)
{
    const float *product = poetc_in(call, 0);
    const int32_t step = *(const int32_t *)poetc_in(call, 1);
    float *next = poetc_out(call, 2);
    *next = *product * nadam_momentum(call->floats[0], call->floats[1], (float)step);
    return POETC_OK;
}

/* step -> step + 1; the counter stops at the largest int rather than overflow. */
int poetc_op_step_count(const poetc_call *call)
{
    const int32_t *step = poetc_in(call, 0);
    int32_t *next = poetc_out(call, 1);
    *next = *step < INT32_MAX ? *step + 1 : *step;
    return POETC_OK;
}

POETC_GATED(sgd)
POETC_GATED(momentum)
POETC_GATED(adam)
POETC_GATED(nadam)
POETC_GATED(nadam_schedule)
POETC_GATED(adagrad)
POETC_GATED(rms_prop)
POETC_GATED(lion)
POETC_GATED(step_count)
