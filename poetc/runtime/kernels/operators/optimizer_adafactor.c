/* Adafactor: the mean square of the gradients as a number a row and a number a column of each matrix.
 *
 * Layout: dense matrices, one after the other; ints: matrices, rows, columns. A vector has 0 columns, and a mean square
 * for each of its elements.
 * Order of sums: along a row, then over the rows, so that a sum has few terms. */
#include "operators/poetc_gated.h"
#include "poetc_math.h"

#define BETA2_DECAY call->floats[0]
#define LIMIT call->floats[1]
#define DECAY call->floats[2]
#define EPSILON call->floats[3]
#define LEAST_SCALE call->floats[4]

/* The root of the mean of the squares of `x`, rows · columns elements. */
static float root_mean_square(const float *x, int32_t rows, int32_t columns)
{
    float total = 0.0f;
    int32_t i, k;
    for (i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (k = 0; k < columns; k++)
            sum = POETC_FMA(x[i * columns + k], x[i * columns + k], sum);
        total += sum;
    }
    return poetc_sqrtf(total / (float)rows / (float)columns);
}

/* The mean squares of a matrix, moved by `fresh` towards those of `g`. */
static void move_means(float *row, float *column, const float *g, int32_t rows, int32_t columns, float fresh)
{
    const float of_column = fresh / (float)rows;
    int32_t i, k;
    for (k = 0; k < columns; k++)
        column[k] = POETC_FMS(fresh, column[k], column[k]);
    for (i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (k = 0; k < columns; k++) {
            const float one = g[i * columns + k];
            sum = POETC_FMA(one, one, sum);
            column[k] = POETC_FMA(of_column, one * one, column[k]);
        }
        row[i] = POETC_FMA(fresh, sum / (float)columns - row[i], row[i]);
    }
}

/* The mean of the row means of a matrix, which both factors have. */
static float whole_mean(const float *row, int32_t rows, float epsilon)
{
    float sum = 0.0f;
    int32_t i;
    for (i = 0; i < rows; i++)
        sum += row[i];
    sum /= (float)rows;
    return sum > epsilon ? sum : epsilon;
}

static float divided(float g, float square, float epsilon)
{
    const float least = epsilon * epsilon;
    return g / poetc_sqrtf(square > least ? square : least);
}

/* w, row, column, g, lr, step -> w, row, column. Of a vector: w, v, g, lr, step -> w, v. The ints are matrices, rows,
 * columns. The floats are power of the step, limit of an update, weight decay, epsilon, least scale. The pass over the
 * elements is made twice: for the root mean square of the update, and for the weights. */
int poetc_op_adafactor(const poetc_call *call)
{
    const int32_t matrices = call->ints[0], rows = call->ints[1], is_vector = call->ints[2] == 0;
    const int32_t columns = is_vector ? 1 : call->ints[2];
    const unsigned inputs = is_vector ? 5 : 6;
    const float *old = poetc_in(call, 0), *g = poetc_in(call, inputs - 3);
    const float lr = *(const float *)poetc_in(call, inputs - 2);
    const int32_t step = *(const int32_t *)poetc_in(call, inputs - 1);
    float *w = poetc_out(call, inputs), *row = poetc_out(call, inputs + 1);
    float *column = is_vector ? 0 : poetc_out(call, inputs + 2);
    float fresh, rate, total = 0.0f, scale;
    int32_t m, i, k, pass;
    if (step < 1)
        return POETC_ERANGE;
    fresh = poetc_powf((float)step, BETA2_DECAY);
    rate = 1.0f / poetc_sqrtf((float)step);
    rate = lr < rate ? lr : rate;
    scale = root_mean_square(old, matrices * rows, columns);
    rate *= scale > LEAST_SCALE ? scale : LEAST_SCALE;
    if (is_vector) {
        for (i = 0; i < rows; i++)
            row[i] = POETC_FMA(fresh, POETC_FMA(g[i], g[i], -row[i]), row[i]);
    }
    for (m = 0; m < matrices && !is_vector; m++)
        move_means(row + m * rows, column + m * columns, g + m * rows * columns, rows, columns, fresh);
    for (pass = 0; pass < 2; pass++) {
        for (m = 0; m < matrices; m++) {
            const float whole = is_vector ? 1.0f : whole_mean(row + m * rows, rows, EPSILON);
            for (i = 0; i < rows; i++) {
                const int32_t begin = (m * rows + i) * columns;
                float sum = 0.0f;
                for (k = 0; k < columns; k++) {
                    const float mean = is_vector ? row[i] : row[m * rows + i] * column[m * columns + k] / whole;
                    const float move = divided(g[begin + k], mean, EPSILON);
                    if (pass == 0)
                        sum = POETC_FMA(move, move, sum);
                    else
                        w[begin + k] = POETC_FMS(rate, move, POETC_FMS(lr * DECAY, old[begin + k], old[begin + k]));
                }
                total += sum;
            }
        }
        if (pass == 0) {
            const float root = poetc_sqrtf(total / (float)(matrices * rows) / (float)columns) / LIMIT;
            rate /= root > 1.0f ? root : 1.0f;
        }
    }
    return POETC_OK;
}

POETC_GATED(adafactor)
