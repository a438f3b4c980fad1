/* Bits and scale of a tensor that follow the error of rounding it (poetc/ops/adapted_bits.py).
 *
 * Layout: a dense array, and a state of five floats: bits, power, steps left, mean power, scans.
 * Order of sums: magnitudes in sequence, in double precision; sums of integers are exact there. */
#include "operators/poetc_grid.h"
#include "poetc_kernel.h"

#define MORE 8.0
#define TOLERATED 0.03
#define ALPHA 0.04
#define BETA 0.1
#define GAMMA 2.0
#define DELTA 100.0
#define MOST_STEPS 128.0

/* log2(1 + d) of the relative change d. */
static double error_of(double before, double after)
{
    const double change = before - after, d = (change < 0.0 ? -change : change) / before;
    if (d > 0.25)
        return d * 1.2877123795494;
    return (d - d * d / 2.0 + d * d * d / 3.0 - d * d * d * d / 4.0) * 1.4426950408889634;
}

/* The power of the smallest unit with which integers up to `top` reach the largest magnitude, both normal. */
static int32_t unit_of(float largest, float top)
{
    const int32_t k = poetc_exponent(largest) - poetc_exponent(top);
    const int is_above = (poetc_bits(largest) & 0x7fffffu) > (poetc_bits(top) & 0x7fffffu);
    return k + is_above < -60 ? -60 : k + is_above > 60 ? 60 : k + is_above;
}

/* The sum of the magnitudes as integers, halves to the even number. */
static double sum_of(const float *x, int32_t count, int32_t power, int32_t top)
{
    const float scale = poetc_power_of_two(-power);
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < count; i++) {
        const float v = poetc_from_bits(poetc_bits(x[i]) & 0x7fffffffu) * scale;
        int32_t whole = (int32_t)(v > 0x1p24f ? 0x1p24f : v);
        const float rest = v - (float)whole;
        whole += rest > 0.5f || (rest >= 0.5f && (whole & 1));
        sum += (double)(whole > top ? top : whole);
    }
    return sum;
}

/* ints: elements, most bits. state, x -> state, in place */
int poetc_op_adapt_bits(const poetc_call *call);
int poetc_op_adapt_bits(const poetc_call *call)
{
    const float *x = poetc_in(call, 1);
    float *state = poetc_out(call, 2), largest;
    const int32_t count = call->ints[0];
    double mean = (double)state[3], bits = (double)state[0], before = 0.0, error, moved, steps, away;
    uint32_t size = 0u;
    int32_t i, power;
    if (state[2] > 0.0f) {
        state[2] -= 1.0f;
        state[3] = (float)(ALPHA * (double)state[1] + (1.0 - ALPHA) * mean);
        return POETC_OK;
    }
    for (i = 0; i < count; i++) {
        const uint32_t word = poetc_bits(x[i]) & 0x7fffffffu;
        size = word > size ? word : size;
        before += (double)poetc_from_bits(word);
    }
    if (size >= 0x7f800000u)
        return POETC_EEXPONENT;
    if (size == 0u)
        return POETC_OK;
    largest = poetc_from_bits(size);
    largest = largest > POETC_GRID_MOST ? POETC_GRID_MOST : largest < 0x1p-60f ? 0x1p-60f : largest;
    for (;;) {
        const int32_t top = (int32_t)(1u << ((int32_t)bits - 1)) - 1;
        power = unit_of(largest, (float)top);
        error = error_of(before, sum_of(x, count, power, top) * (double)poetc_power_of_two(power));
        if (error <= TOLERATED || bits + MORE > (double)call->ints[1])
            break;
        bits += MORE, mean -= MORE;
    }
    if (state[4] <= 0.0f)
        mean = (double)power;
    away = (double)power - mean;
    moved = ALPHA * (away < 0.0 ? -away : away);
    moved = DELTA * error * error > moved ? DELTA * error * error : moved;
    steps = moved > 0.0 ? BETA / moved - GAMMA : MOST_STEPS;
    steps = steps + 0.5 < 1.0 ? 1.0 : steps + 0.5 > MOST_STEPS ? MOST_STEPS : (double)(int32_t)(steps + 0.5);
    state[0] = (float)bits, state[1] = (float)power, state[2] = (float)(steps - 1.0);
    state[3] = (float)(ALPHA * (double)power + (1.0 - ALPHA) * mean);
    state[4] = state[4] < 0x1p24f ? state[4] + 1.0f : state[4];
    return POETC_OK;
}
