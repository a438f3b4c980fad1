/* Element by element in 8 bits (poetc/ops/integer_elements.py).
 *
 * Layout: dense arrays of int8_t, and a scale beside them (int8/poetc_int8.h).
 * Order of sums: nothing is added up here. */
#include "int8/poetc_int8.h"
#include "operators/poetc_philox.h"

/* ints of all kernels: elements, and those that their own comments name. */

#define MOST_APART 22
#define LEAST_BITS (-60)

/* x, floats -> q, scale. */
int poetc_op_int8_quantize(const poetc_call *call);
int poetc_op_int8_quantize(const poetc_call *call)
{
    const float *x = poetc_in(call, 0);
    int8_t *q = poetc_out(call, 1);
    int32_t *scale = poetc_out(call, 2), count = call->ints[0], i, bits = 0, clipped = 0;
    uint32_t largest = 0u, word;
    float factor;
    for (i = 0; i < count; i++) {
        __builtin_memcpy(&word, x + i, sizeof word);
        word &= 0x7fffffffu;
        largest = word > largest ? word : largest;
    }
    if (largest >= 0x7f800000u)
        return POETC_ENUMBER;
    if (largest) { /* ceil(log2): the exponent, and one more unless the mantissa is 1 */
        bits = (int32_t)(largest >> 23) - 127 + ((largest & 0x7fffffu) != 0u);
        bits = bits < LEAST_BITS ? LEAST_BITS : bits;
    }
    if (bits - POETC_INT8_BITS > POETC_INT8_EXPONENT)
        return POETC_EEXPONENT;
    word = (uint32_t)(127 + POETC_INT8_BITS - bits) << 23;
    __builtin_memcpy(&factor, &word, sizeof factor);
    for (i = 0; i < count; i++) {
        const float scaled = x[i] * factor, m = scaled < 0.0f ? -scaled : scaled;
        int32_t whole = (int32_t)m;
        const float rest = m - (float)whole;
        whole += rest > 0.5f || (rest == 0.5f && (whole & 1));
        whole = scaled < 0.0f ? -whole : whole;
        if (whole > 127) {
            whole = 127;
            clipped++;
        }
        q[i] = (int8_t)whole;
    }
    return poetc_scale(scale, bits - POETC_INT8_BITS, clipped, bits, 0);
}

/* q, scale -> floats. */
int poetc_op_int8_dequantize(const poetc_call *call);
int poetc_op_int8_dequantize(const poetc_call *call)
{
    const int8_t *q = poetc_in(call, 0);
    const int32_t *scale = poetc_in(call, 1);
    float *y = poetc_out(call, 2), factor;
    int32_t count = call->ints[0], i;
    uint32_t word;
    if (scale[0] < -POETC_INT8_EXPONENT || scale[0] > POETC_INT8_EXPONENT)
        return POETC_EEXPONENT;
    word = (uint32_t)(127 + scale[0]) << 23;
    __builtin_memcpy(&factor, &word, sizeof factor);
    for (i = 0; i < count; i++)
        y[i] = (float)q[i] * factor;
    return POETC_OK;
}

/* The limit of a ReLU, mantissa ints[1] · 2^ints[2], in units of the tensor. */
static int32_t largest_value(const poetc_call *call, const int32_t *scale)
{
    const int32_t mantissa = call->ints[1], shift = call->ints[2] - scale[0];
    int32_t limit;
    if (!mantissa)
        return 127;
    limit = shift >= 0 ? mantissa << (shift > POETC_INT8_BITS ? POETC_INT8_BITS : shift)
                       : mantissa >> (shift < -31 ? 31 : -shift);
    return limit < 127 ? limit : 127;
}

/* x, its scale -> y. ints: the mantissa and the power of the limit. */
int poetc_op_int8_relu(const poetc_call *call);
int poetc_op_int8_relu(const poetc_call *call)
{
    const int8_t *x = poetc_in(call, 0);
    const int8_t limit = (int8_t)largest_value(call, poetc_in(call, 1));
    int8_t *y = poetc_out(call, 2);
    int32_t count = call->ints[0], i = 0;
#if defined(POETC_INT8_LANES)
    const poetc_values most = (poetc_values){0} + limit;
    for (; i + 16 <= count; i += 16) {
        const poetc_values v = poetc_load_values(x + i);
        poetc_store_values(y + i, poetc_either(v > most, most, v & (v > 0)));
    }
#endif
    for (; i < count; i++) {
        const int8_t value = x[i];
        y[i] = value < 0 ? 0 : value > limit ? limit : value;
    }
    return POETC_OK;
}

/* gy, y, its scale -> gx. ints: the mantissa and the power of the limit. */
int poetc_op_int8_relu_grad(const poetc_call *call);
int poetc_op_int8_relu_grad(const poetc_call *call)
{
    const int8_t *gy = poetc_in(call, 0), *y = poetc_in(call, 1);
    const int32_t limit = call->ints[1] ? largest_value(call, poetc_in(call, 2)) : 128;
    int8_t *gx = poetc_out(call, 3);
    int32_t count = call->ints[0], i = 0;
#if defined(POETC_INT8_LANES)
    const poetc_values below = (poetc_values){0} + (int8_t)(limit - 1); /* 127 without a limit */
    for (; i + 16 <= count; i += 16) {
        const poetc_values v = poetc_load_values(y + i);
        poetc_store_values(gx + i, poetc_load_values(gy + i) & (v > 0) & ~(v > below));
    }
#endif
    for (; i < count; i++)
        gx[i] = y[i] > 0 && y[i] < limit ? gy[i] : 0;
    return POETC_OK;
}

static inline int32_t shifted(int32_t value, int32_t shift)
{
    const int32_t m = value < 0 ? -value : value, s = shift >= 0 ? m << shift : m >> (shift < -31 ? 31 : -shift);
    return value < 0 ? -s : s;
}

#if defined(POETC_INT8_LANES)
#define SUMS 64 /* at once, on the stack */
#else
#define SUMS 16 /* at once, on the stack */
#endif

/* The sums of at most SUMS numbers, each shifted. Returns how many. */
static int32_t add_some(const int8_t *a, int32_t up_a, const int8_t *b, int32_t up_b, int32_t count, int32_t *sums)
{
    const int32_t some = count < SUMS ? count : SUMS;
    int32_t i = 0;
    if (up_a >= 0 && up_b >= 0) {
        const int32_t times_a = (int32_t)((uint32_t)1 << up_a), times_b = (int32_t)((uint32_t)1 << up_b);
#if defined(POETC_INT8_LANES)
        for (; i + 16 <= some; i += 16)
            poetc_add_values(a + i, times_a, b + i, times_b, sums + i);
#endif
        for (; i < some; i++)
            sums[i] = a[i] * times_a + b[i] * times_b;
    } else
        for (; i < some; i++)
            sums[i] = shifted(a[i], up_a) + shifted(b[i], up_b);
    return some;
}

/* a, its scale, b, its scale -> y, its scale. ints: whether rounding is stochastic. */
int poetc_op_int8_add(const poetc_call *call);
int poetc_op_int8_add(const poetc_call *call)
{
    const int8_t *a = poetc_in(call, 0), *b = poetc_in(call, 2);
    const int32_t *scale_a = poetc_in(call, 1), *scale_b = poetc_in(call, 3);
    int8_t *y = poetc_out(call, 4);
    const int32_t high = scale_a[0] > scale_b[0] ? scale_a[0] : scale_b[0], count = call->ints[0];
    int32_t low = scale_a[0] < scale_b[0] ? scale_a[0] : scale_b[0], up_a, up_b, bits, i;
    int32_t sums[SUMS];
    uint32_t seen = 0u;
    poetc_rounding rounding = {0, call->ints[1], POETC_INT8_MOST, 0};
    low = low < high - MOST_APART ? high - MOST_APART : low;
    up_a = scale_a[0] - low;
    up_b = scale_b[0] - low;
    for (i = 0; i < count; i += SUMS)
        seen = poetc_see(sums, add_some(a + i, up_a, b + i, up_b, count - i, sums), seen);
    bits = poetc_bits_seen(seen);
    rounding.shift = poetc_shift(bits);
    for (i = 0; i < count; i += SUMS)
        poetc_round_small(sums, add_some(a + i, up_a, b + i, up_b, count - i, sums), y + i, 1, &rounding);
    return poetc_scale(poetc_out(call, 5), low + rounding.shift, rounding.clipped, bits, rounding.shift);
}

/* x, its scale, other scales -> y, its scale. ints: whether rounding is stochastic, the number of scales. */
int poetc_op_int8_align(const poetc_call *call);
int poetc_op_int8_align(const poetc_call *call)
{
    const int8_t *x = poetc_in(call, 0);
    const int32_t own = *(const int32_t *)poetc_in(call, 1), count = call->ints[0];
    const uint32_t scales = (uint32_t)call->ints[2];
    int8_t *y = poetc_out(call, 1 + scales);
    int32_t high = own, i, j;
    uint32_t k;
    int32_t values[SUMS];
    poetc_rounding rounding = {0, call->ints[1], POETC_INT8_MOST, 0};
    for (k = 2; k <= scales; k++) {
        const int32_t other = *(const int32_t *)poetc_in(call, k);
        high = other > high ? other : high;
    }
    rounding.shift = high - own < 31 ? high - own : 31; /* of eight bits none is left */
    for (i = 0; i < count; i += SUMS) {
        const int32_t some = count - i < SUMS ? count - i : SUMS;
        for (j = 0; j < some; j++)
            values[j] = x[i + j];
        poetc_round_small(values, some, y + i, 1, &rounding);
    }
    return poetc_scale(poetc_out(call, 2 + scales), high, 0, POETC_INT8_BITS + high - own, high - own);
}

/* x, its scale, step -> y, its scale. ints: the seed. */
int poetc_op_int8_dropout(const poetc_call *call);
int poetc_op_int8_dropout(const poetc_call *call)
{
    const int8_t *x = poetc_in(call, 0);
    const int32_t *scale = poetc_in(call, 1), *step = poetc_in(call, 2);
    int8_t *y = poetc_out(call, 3);
    const int32_t count = call->ints[0];
    const uint32_t seed = (uint32_t)call->ints[1];
    int32_t i;
    for (i = 0; i < count; i += 2) {
        uint32_t left = (uint32_t)i / 2u, right = (uint32_t)*step;
        poetc_philox(&left, &right, seed);
        y[i] = left >> 31 ? x[i] : 0;
        if (i + 1 < count)
            y[i + 1] = right >> 31 ? x[i + 1] : 0;
    }
    return poetc_scale(poetc_out(call, 4), scale[0] + 1, 0, POETC_INT8_BITS, 0);
}

/* w, count, g -> w, count. */
int poetc_op_int8_update(const poetc_call *call);
int poetc_op_int8_update(const poetc_call *call)
{
    int8_t *w = poetc_out(call, 3);
    int32_t *total = poetc_out(call, 4), clipped = 0, i = 0;
    const int8_t *g = poetc_in(call, 2);
    const int32_t count = call->ints[0];
#if defined(POETC_INT8_LANES)
    while (i + 16 <= count) {
        const int32_t end = count - i > 127 * 16 ? i + 127 * 16 : i + (count - i) / 16 * 16; /* a lane counts to 127 */
        poetc_values over = {0};
        for (; i < end; i += 16)
            poetc_store_values(w + i, poetc_subtract_values(poetc_load_values(w + i), poetc_load_values(g + i), &over));
        clipped += poetc_clipped_of_values(over);
    }
#endif
    for (; i < count; i++) {
        int32_t moved = w[i] - g[i];
        if (moved > 127 || moved < -127) {
            moved = moved > 0 ? 127 : -127;
            clipped++;
        }
        w[i] = (int8_t)moved;
    }
    *total = *total > INT32_MAX - clipped ? INT32_MAX : *total + clipped;
    return POETC_OK;
}

#define MORE_BITS 16 /* of a stored weight, below the 8 that products read */
#define MOST_STORED (127 * (1 << MORE_BITS))

/* The upper 8 of 24 bits, rounded to nearest, halves upwards. Stored weights give -127 to 127. */
static int32_t upper(int32_t stored)
{
    return (int32_t)((uint32_t)(stored + (1 << (MORE_BITS - 1)) + MOST_STORED + (1 << MORE_BITS)) >> MORE_BITS) - 128;
}

/* w, stored, count, g, rate -> w, stored, count. The rate is mantissa * 2^(exponent - 150); a product with it has 31
 * bits. */
int poetc_op_int8_stored_update(const poetc_call *call);
int poetc_op_int8_stored_update(const poetc_call *call)
{
    const int8_t *g = poetc_in(call, 3);
    int8_t *w = poetc_out(call, 5);
    int32_t *stored = poetc_out(call, 6), *total = poetc_out(call, 7), clipped = 0, shift, i;
    const int32_t count = call->ints[0];
    uint32_t word, mantissa;
    __builtin_memcpy(&word, poetc_in(call, 4), sizeof word);
    shift = 150 - MORE_BITS - (int32_t)(word >> 23);
    mantissa = (word & 0x7fffffu) | 0x800000u;
    for (i = 0; i < count; i++) {
        const int32_t was = upper(stored[i]) == w[i] ? stored[i] : w[i] * (1 << MORE_BITS);
        const uint32_t product = (uint32_t)(g[i] < 0 ? -g[i] : g[i]) * mantissa;
        uint64_t step = 0;
        int64_t moved;
        if (shift > 31)
            step = 0;
        else if (shift > 0)
            step = ((uint64_t)product + ((uint64_t)1 << (shift - 1))) >> shift;
        else
            step = (uint64_t)product << (shift < -31 ? 31 : -shift);
        moved = g[i] < 0 ? was + (int64_t)step : was - (int64_t)step;
        if (moved > MOST_STORED || moved < -MOST_STORED) {
            moved = moved > 0 ? MOST_STORED : -MOST_STORED;
            clipped++;
        }
        stored[i] = (int32_t)moved;
        w[i] = (int8_t)upper(stored[i]);
    }
    *total = *total > INT32_MAX - clipped ? INT32_MAX : *total + clipped;
    return POETC_OK;
}

/* history, scale -> history. ints: the steps of a window. A history holds four numbers. They are bits, the steps that
 * are left of a window, the most bits that a step of it needed, and the scans so far. */
int poetc_op_int8_rescale(const poetc_call *call);
int poetc_op_int8_rescale(const poetc_call *call)
{
    const int32_t *scale = poetc_in(call, 1);
    const int32_t needed = (scale[3] > 0 ? scale[3] : 0) + scale[5];
    int32_t *history = poetc_out(call, 2);
    if (!scale[4]) {
        if (needed > history[2])
            history[2] = needed;
        if (--history[1] > 0)
            return POETC_OK;
        if (history[2] < history[0])
            history[0] = history[2];
    } else {
        history[0] = scale[2];
        if (history[3] < INT32_MAX)
            history[3]++;
    }
    history[1] = call->ints[0];
    history[2] = 0;
    return POETC_OK;
}

/* count, scales... -> count. ints: the scales. */
int poetc_op_int8_clipped_count(const poetc_call *call);
int poetc_op_int8_clipped_count(const poetc_call *call)
{
    const int32_t scales = call->ints[0];
    int32_t *count = poetc_out(call, (unsigned)scales + 1u), i;
    for (i = 1; i <= scales; i++) {
        const int32_t *scale = poetc_in(call, (unsigned)i);
        *count = *count > INT32_MAX - scale[1] ? INT32_MAX : *count + scale[1];
    }
    return POETC_OK;
}
