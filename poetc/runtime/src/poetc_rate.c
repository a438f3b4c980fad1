/* Learning-rate schedules. See poetc_rate.h; every line has its like in poetc/training/rates. */
#include "poetc_rate.h"

#include "poetc_math.h"

#define HALF_PI 0x1.921fb54442d18p+0
#define LEAST_CHANGE 1e-8

enum { SINE_TERMS = 11 };

/* A product that something is added to: through memory, so that no compiler fuses the two. */
static double product(double a, double b)
{
    const volatile double rounded = a * b;

    return rounded;
}

/* By repeated squaring. */
static double power(double base, uint32_t exponent)
{
    double result = 1.0;

    while (exponent > 0) {
        if (exponent & 1u)
            result *= base;
        base *= base;
        exponent >>= 1;
    }
    return result;
}

/* sin(pi / 2 * x) for x from 0 to 1, by its series. */
static double sine(double x)
{
    const double angle = HALF_PI * x, square = angle * angle;
    double term = angle, total = angle;
    uint32_t k;

    for (k = 1; k < SINE_TERMS; k++) {
        term = -(term * square) / (double)(2u * k * (2u * k + 1u));
        total += term;
    }
    return total;
}

static double reduced(const poetc_schedule *schedule, uint32_t reductions, double rate)
{
    uint32_t i;

    for (i = 0; i < reductions; i++) {
        double lower = product(rate, schedule->factor);

        lower = lower < schedule->final_rate ? schedule->final_rate : lower;
        if (!(rate - lower > LEAST_CHANGE))
            break;
        rate = lower;
    }
    return rate;
}

void poetc_plateau_begin(poetc_plateau *plateau)
{
    plateau->best = POETC_INFINITY;
    plateau->worse = plateau->cooling = plateau->reductions = 0;
}

void poetc_rate_observe(const poetc_schedule *schedule, poetc_plateau *plateau, float loss)
{
    const double limit = (double)plateau->best * (1.0 - schedule->threshold);
    const int is_better = (double)loss < limit;

    if (schedule->kind != POETC_RATE_PLATEAU)
        return;
    plateau->worse = is_better || plateau->cooling > 0 ? 0 : plateau->worse + 1u;
    if (is_better)
        plateau->best = loss;
    if (plateau->cooling > 0)
        plateau->cooling--;
    if (plateau->worse > schedule->patience) {
        plateau->worse = 0;
        plateau->cooling = schedule->cooldown;
        plateau->reductions++;
    }
}

float poetc_rate(const poetc_schedule *schedule, const poetc_plateau *plateau, float base, uint32_t step)
{
    const double first = (double)base;
    double share;
    uint32_t length;

    if (step < schedule->warmup) {
        share = (1.0 - schedule->start) * (double)step / (double)schedule->warmup;
        return (float)(first * (schedule->start + share));
    }
    step -= schedule->warmup;
    switch (schedule->kind) {
    case POETC_RATE_STEP: return (float)(first * power(schedule->factor, step / schedule->steps));
    case POETC_RATE_COSINE:
        length = schedule->steps - schedule->warmup;
        share = sine((double)(length - (step < length ? step : length)) / (double)length);
        return (float)(schedule->final_rate + product(first - schedule->final_rate, share * share));
    case POETC_RATE_PLATEAU: return (float)reduced(schedule, plateau->reductions, first);
    default: return base;
    }
}
