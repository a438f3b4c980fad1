/* The error of cross-entropy in integers (poetc/ops/integer_loss.py).
 *
 * Layout: the classes lie along the middle of three axes.
 * Order of sums: sums of 64 bits are exact, so that their order changes nothing. */
#include "int8/poetc_int8.h"

#define LOG2_E 47274
#define TAYLOR_FROM (-7)
#define LEAST_EXPONENT (-20)
#define MOST_EXPONENT 20
#define ERROR_SHIFT 4
#define ERROR_EXPONENT (-7)

/* value / 2^shift towards zero. */
static inline int32_t halved(int32_t value, int32_t shift)
{
    return value < 0 ? -(-value >> shift) : value >> shift;
}

/* log2 of e^(q 2^exponent). */
static inline int32_t power_of(int32_t q, int32_t exponent)
{
    const int32_t z = halved(q * LOG2_E, 15);
    return exponent >= 0 ? z * ((int32_t)1 << exponent) : halved(z, -exponent);
}

/* In proportion to e^(q 2^exponent); `most` is the largest power. */
static inline int64_t weight_of(int32_t q, int32_t exponent, int32_t most)
{
    if (exponent > TAYLOR_FROM) {
        const int32_t z = power_of(q, exponent) - (most - 10);
        return ((int64_t)1 << (z > 0 ? z : 0)) - 1;
    }
    return ((int64_t)1 << (1 - 2 * exponent)) + q * ((int64_t)1 << (1 - exponent)) + q * q;
}

/* q, its scale, target -> error, its scale. ints: elements before, along and after the axis of the classes. */
int poetc_op_int8_cross_entropy_error(const poetc_call *call);
int poetc_op_int8_cross_entropy_error(const poetc_call *call)
{
    const int8_t *logits = poetc_in(call, 0);
    const int32_t *scale = poetc_in(call, 1), *target = poetc_in(call, 2);
    int8_t *errors = poetc_out(call, 3);
    const int32_t before = call->ints[0], classes = call->ints[1], after = call->ints[2];
    poetc_rounding rounding = {ERROR_SHIFT, 1, POETC_INT8_MOST, 0};
    int32_t i, j, k, exponent = scale[0], lost = 0;
    if (exponent > MOST_EXPONENT)
        exponent = MOST_EXPONENT;
    if (exponent < LEAST_EXPONENT) {
        lost = LEAST_EXPONENT - exponent > 31 ? 31 : LEAST_EXPONENT - exponent;
        exponent = LEAST_EXPONENT;
    }
    for (i = 0; i < before; i++)
        for (j = 0; j < after; j++) {
            const int8_t *q = logits + (size_t)i * (size_t)classes * (size_t)after + j;
            int8_t *error = errors + (q - logits);
            const int32_t class_of_target = *target++;
            int32_t most = 0, sum = 0;
            int64_t total = 0;
            if (class_of_target < 0 || class_of_target >= classes)
                return POETC_ERANGE;
            for (k = 0; exponent > TAYLOR_FROM && k < classes; k++) {
                const int32_t z = power_of(q[k * after], exponent);
                most = k == 0 || z > most ? z : most;
            }
            for (k = 0; k < classes; k++)
                total += weight_of(halved(q[k * after], lost), exponent, most);
            for (k = 0; k < classes; k++)
                sum += (int32_t)((weight_of(halved(q[k * after], lost), exponent, most) << 11) / total);
            for (k = 0; k < classes; k++) {
                const int64_t p = (weight_of(halved(q[k * after], lost), exponent, most) << 11) / total;
                error[k * after] = poetc_rounded((int32_t)p - (k == class_of_target ? sum : 0), &rounding);
            }
        }
    return poetc_scale(poetc_out(call, 4), ERROR_EXPONENT, rounding.clipped, 11, ERROR_SHIFT);
}
