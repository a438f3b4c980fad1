/* Steps of recurrent layers behind their matrix products, and their gradients (poetc/ops/recurrent.py).
 *
 * Layout: a row holds the gates of a sample one after another, each of `hidden` floats. ints of all kernels: batch,
 * hidden.
 * Order of sums: the operations of binary.c and activation.c in their order, so the bits are those of separate kernels.
 */
#include "poetc_math.h"
#include "simd/poetc_vector.h"
#include "simd/poetc_vector_math.h"

#define FLOAT_LOAD(p) (*(p))
#define FLOAT_STORE(p, v) (*(p) = (v))

/* body(type, load, store, sigmoid, tanh) for the units j of a row, in vectors and the rest in floats. */
#if defined(POETC_WIDE_MATH)
#define OVER_UNITS(body)                                                                                               \
    for (j = 0; j + POETC_LANES <= hidden; j += POETC_LANES)                                                           \
        body(poetc_vector, poetc_vector_load, poetc_vector_store, poetc_sigmoidv, poetc_tanhv);                        \
    for (; j < hidden; j++)                                                                                            \
    body(float, FLOAT_LOAD, FLOAT_STORE, poetc_sigmoidf, poetc_tanhf)
#else
#define OVER_UNITS(body)                                                                                               \
    for (j = 0; j < hidden; j++)                                                                                       \
    body(float, FLOAT_LOAD, FLOAT_STORE, poetc_sigmoidf, poetc_tanhf)
#endif

#define SIGMOID_SLOPE(s) ((s) * (1.0f - (s)))
#define TANH_SLOPE(s) ((1.0f - (s)) * (1.0f + (s)))

/* row, [product, the cell before] -> h, cell, gates. ints[2]: whether there is a step before. */
int poetc_op_lstm_cell(const poetc_call *call);
int poetc_op_lstm_cell(const poetc_call *call)
{
    const int32_t batch = call->ints[0], hidden = call->ints[1], before = call->ints[2];
    const unsigned first = before ? 3 : 1;
    int32_t n, j;
    POETC_THREADED_OVER(poetc_op_lstm_cell, call, 4 * batch * hidden);
    for (n = 0; n < batch; n++) {
        const ptrdiff_t at = (ptrdiff_t)n * hidden;
        const float *row = (const float *)poetc_in(call, 0) + 4 * at;
        const float *product = before ? (const float *)poetc_in(call, 1) + 4 * at : NULL;
        const float *old = before ? (const float *)poetc_in(call, 2) + at : NULL;
        float *h = (float *)poetc_out(call, first) + at, *cell = (float *)poetc_out(call, first + 1) + at;
        float *gates = (float *)poetc_out(call, first + 2) + 4 * at;
        POETC_SKIP(call->share, n, batch, )
#define LSTM(T, LOAD, STORE, SIGMOID, TANH)                                                                            \
    {                                                                                                                  \
        T i = LOAD(row + j), o = LOAD(row + hidden + j);                                                               \
        T f = LOAD(row + 2 * hidden + j), g = LOAD(row + 3 * hidden + j), c;                                           \
        if (before) {                                                                                                  \
            i = i + LOAD(product + j), o = o + LOAD(product + hidden + j);                                             \
            f = f + LOAD(product + 2 * hidden + j), g = g + LOAD(product + 3 * hidden + j);                            \
        }                                                                                                              \
        i = SIGMOID(i), o = SIGMOID(o), f = SIGMOID(f), g = TANH(g);                                                   \
        c = i * g;                                                                                                     \
        if (before)                                                                                                    \
            c = f * LOAD(old + j) + c;                                                                                 \
        STORE(gates + j, i), STORE(gates + hidden + j, o);                                                             \
        STORE(gates + 2 * hidden + j, f), STORE(gates + 3 * hidden + j, g);                                            \
        STORE(cell + j, c);                                                                                            \
        STORE(h + j, o *TANH(c));                                                                                      \
    }
        OVER_UNITS(LSTM)
    }
    return POETC_OK;
}

/* gates, cell, [the cell before], gradients of h, [gradient of the cell] -> gradient of the row, [of the cell before].
 * The ints: [2] is whether there is a step before, [3] the number of gradients of h, [4] that of the cell. */
int poetc_op_lstm_cell_grad(const poetc_call *call);
int poetc_op_lstm_cell_grad(const poetc_call *call)
{
    const int32_t batch = call->ints[0], hidden = call->ints[1], before = call->ints[2];
    const unsigned first = before ? 3 : 2, count = (unsigned)call->ints[3],
                   end = first + count + (unsigned)call->ints[4];
    int32_t n, j;
    unsigned k;
    POETC_THREADED_OVER(poetc_op_lstm_cell_grad, call, 2 * batch * hidden);
    for (n = 0; n < batch; n++) {
        const ptrdiff_t at = (ptrdiff_t)n * hidden;
        const float *gates = (const float *)poetc_in(call, 0) + 4 * at, *cell = (const float *)poetc_in(call, 1) + at;
        const float *old = before ? (const float *)poetc_in(call, 2) + at : NULL;
        const float *gcell = call->ints[4] ? (const float *)poetc_in(call, first + count) + at : NULL;
        float *grow = (float *)poetc_out(call, end) + 4 * at;
        float *gold = before ? (float *)poetc_out(call, end + 1) + at : NULL;
        POETC_SKIP(call->share, n, batch, )
#define LSTM_GRAD(T, LOAD, STORE, SIGMOID, TANH)                                                                       \
    {                                                                                                                  \
        const T i = LOAD(gates + j), o = LOAD(gates + hidden + j);                                                     \
        const T f = LOAD(gates + 2 * hidden + j), g = LOAD(gates + 3 * hidden + j);                                    \
        const T t = TANH(LOAD(cell + j));                                                           \
        T gh = {0}, gf = {0}, d;                                                                                     \
        for (k = 0; k < count; k++) {                                                                                  \
            const T more = LOAD((const float *)poetc_in(call, first + k) + at + j);                                    \
            gh = k ? gh + more : more;                                                                                 \
        }                                                                                                              \
        d = TANH_SLOPE(t) * (gh * o);                                                                                  \
        if (gcell)                                                                                                     \
            d = LOAD(gcell + j) + d;                                                                              \
        if (before) {                                                                                                  \
            gf = SIGMOID_SLOPE(f) * (d * LOAD(old + j));                                                          \
            STORE(gold + j, d * f);                                                                               \
        }                                                                                                              \
        STORE(grow + j, SIGMOID_SLOPE(i) * (d * g)), STORE(grow + hidden + j, SIGMOID_SLOPE(o) * (gh * t));            \
        STORE(grow + 2 * hidden + j, gf), STORE(grow + 3 * hidden + j, TANH_SLOPE(g) * (d * i));                       \
    }
        OVER_UNITS(LSTM_GRAD)
    }
    return POETC_OK;
}

/* row, product, h -> the next h, gates with the product's candidate. */
int poetc_op_gru_cell(const poetc_call *call);
int poetc_op_gru_cell(const poetc_call *call)
{
    const int32_t batch = call->ints[0], hidden = call->ints[1];
    int32_t n, j;
    POETC_THREADED_OVER(poetc_op_gru_cell, call, 3 * batch * hidden);
    for (n = 0; n < batch; n++) {
        const ptrdiff_t at = (ptrdiff_t)n * hidden;
        const float *row = (const float *)poetc_in(call, 0) + 3 * at,
                    *product = (const float *)poetc_in(call, 1) + 3 * at;
        const float *h = (const float *)poetc_in(call, 2) + at;
        float *y = (float *)poetc_out(call, 3) + at, *gates = (float *)poetc_out(call, 4) + 4 * at;
        POETC_SKIP(call->share, n, batch, )
#define GRU(T, LOAD, STORE, SIGMOID, TANH)                                                                             \
    {                                                                                                                  \
        const T z = SIGMOID(LOAD(row + j) + LOAD(product + j));                                                        \
        const T r = SIGMOID(LOAD(row + hidden + j) + LOAD(product + hidden + j));                                      \
        const T rest = LOAD(product + 2 * hidden + j);                                                                 \
        const T g = TANH(LOAD(row + 2 * hidden + j) + r * rest);                                                       \
        STORE(gates + j, z), STORE(gates + hidden + j, r);                                                             \
        STORE(gates + 2 * hidden + j, g), STORE(gates + 3 * hidden + j, rest);                                         \
        STORE(y + j, g + z * (LOAD(h + j) - g));                                                                       \
    }
        OVER_UNITS(GRU)
    }
    return POETC_OK;
}

/* gates, h, gradients of the next h -> gradients of the row, the product, h. ints[2]: how many arrive. */
int poetc_op_gru_cell_grad(const poetc_call *call);
int poetc_op_gru_cell_grad(const poetc_call *call)
{
    const int32_t batch = call->ints[0], hidden = call->ints[1];
    const unsigned count = (unsigned)call->ints[2];
    int32_t n, j;
    unsigned k;
    POETC_THREADED_OVER(poetc_op_gru_cell_grad, call, 2 * batch * hidden);
    for (n = 0; n < batch; n++) {
        const ptrdiff_t at = (ptrdiff_t)n * hidden;
        const float *gates = (const float *)poetc_in(call, 0) + 4 * at, *h = (const float *)poetc_in(call, 1) + at;
        float *grow = (float *)poetc_out(call, 2 + count) + 3 * at,
              *gproduct = (float *)poetc_out(call, 3 + count) + 3 * at;
        float *gh = (float *)poetc_out(call, 4 + count) + at;
        POETC_SKIP(call->share, n, batch, )
#define GRU_GRAD(T, LOAD, STORE, SIGMOID, TANH)                                                                        \
    {                                                                                                                  \
        const T z = LOAD(gates + j), r = LOAD(gates + hidden + j);                                                     \
        const T g = LOAD(gates + 2 * hidden + j), rest = LOAD(gates + 3 * hidden + j);                                 \
        T gy = LOAD((const float *)poetc_in(call, 2) + at + j), kept, gz, gr, candidate;                               \
        for (k = 1; k < count; k++)                                                                                    \
            gy = gy + LOAD((const float *)poetc_in(call, 2 + k) + at + j);                                             \
        kept = gy * z;                                                                                                 \
        gz = SIGMOID_SLOPE(z) * (gy * (LOAD(h + j) - g));                                                         \
        candidate = TANH_SLOPE(g) * (gy - kept);                                                                       \
        gr = SIGMOID_SLOPE(r) * (candidate * rest);                                                                    \
        STORE(grow + j, gz), STORE(grow + hidden + j, gr), STORE(grow + 2 * hidden + j, candidate);                    \
        STORE(gproduct + j, gz), STORE(gproduct + hidden + j, gr), STORE(gproduct + 2 * hidden + j, candidate * r);    \
        STORE(gh + j, kept);                                                                                      \
    }
        OVER_UNITS(GRU_GRAD)
    }
    return POETC_OK;
}
