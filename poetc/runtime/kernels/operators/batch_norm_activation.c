/* Batch normalisation fused with a sum and an activation, and the gradients (poetc/ops/batch_norm_activation.py): z =
 * f(batch norm of x [+ other]).
 *
 * Layout: x, other and z are [N, C, pixels]; parameters and statistics are [C]. The argument of the activation is
 * computed again from x wherever its slope is needed.
 * Order of sums: as in batch_norm.c, so the bits are those of separate kernels. */
#include "operators/poetc_norm.h"
#include "simd/poetc_f4.h"

#define BLOCK 256 /* as in batch_norm.c */
#define CHUNK 16

/* Planes whose sums are made side by side, so that one addition need not wait for another. */
#if POETC_LANES > 1
#define TOGETHER 4
#else
#define TOGETHER 1
#endif

static poetc_channel channel_of(const poetc_call *call, int32_t c)
{
    poetc_norm n;
    n.mean = poetc_in(call, 1), n.var = poetc_in(call, 2), n.scale = poetc_in(call, 3), n.bias = poetc_in(call, 4);
    n.floats = call->floats;
    return poetc_channel_of(&n, c);
}

/* x, mean, var, scale, bias, [other] -> f(batch norm of x [+ other]). All kernels here have the ints N, C, pixels, and
 * whether there is another tensor. The floats are epsilon, and those of the activation. */
#define FORWARD(name, F)                                                                                               \
    int poetc_op_batch_norm_##name(const poetc_call *call);                                                            \
    int poetc_op_batch_norm_##name(const poetc_call *call)                                                             \
    {                                                                                                                  \
        const int32_t channels = call->ints[1], pixels = call->ints[2];                                                \
        const float *x = poetc_in(call, 0), p[] = POETC_FLOATS(F, call->floats + 1);                                   \
        const float *other = call->ints[3] ? poetc_in(call, 5) : NULL;                                                 \
        float *y = poetc_out(call, call->ints[3] ? 6 : 5);                                                             \
        int32_t n, c;                                                                                                  \
        (void)p;                                                                                                       \
        POETC_THREADED_OVER(poetc_op_batch_norm_##name, call, call->ints[0] * call->ints[1] * call->ints[2]);          \
        for (n = 0; n < call->ints[0]; n++) {                                                                          \
            for (c = 0; c < channels; c++, x += pixels, y += pixels) {                                                 \
                POETC_SKIP(call->share, c, channels, other += other ? pixels : 0)                                      \
                const poetc_channel t = channel_of(call, c);                                                           \
                if (other) {                                                                                           \
                    POETC_ROW({                                                                                        \
                        const poetc_vector sum = normal + poetc_vector_load(other + i);                                \
                        poetc_vector_store(y + i, F##_V(sum, p));                                                      \
                    }, {                                                                                               \
                        const float sum = normal + other[i];                                                           \
                        y[i] = F(sum, p);                                                                              \
                    });                                                                                                \
                    other += pixels;                                                                                   \
                } else {                                                                                               \
                    POETC_ROW(poetc_vector_store(y + i, F##_V(normal, p)), y[i] = F(normal, p));                       \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return POETC_OK;                                                                                               \
    }

/* Sums of (x - centre) g and of g, in the order of batch_norm.c. */
typedef struct {
    poetc_f4 products, sums;
    float product_tail, sum_tail;
} chunk_sums;

/* Of a chunk of `planes` planes, a constant, `pixels` apart; count: whole fours, but for the end of a plane. */
POETC_INLINE void add_chunk(const int planes, chunk_sums *total, const float *x, float g[][CHUNK],
                            const poetc_channel *t, int32_t pixels, int32_t count)
{
    int32_t i;
    int k;
    for (i = 0; i + 4 <= count; i += 4) {
        POETC_UNROLL
        for (k = 0; k < planes; k++) {
            const float centre = t[k].centre;
            const poetc_f4 slope = poetc_f4_load(g[k] + i), v = poetc_f4_load(x + (ptrdiff_t)k * pixels + i);
            const poetc_f4 from_mean = poetc_f4_sub(v, poetc_f4_set(centre, centre, centre, centre));
            total[k].products = poetc_f4_add_product(total[k].products, from_mean, slope);
            total[k].sums = poetc_f4_add(total[k].sums, slope);
        }
    }
    for (; i < count; i++) {
        for (k = 0; k < planes; k++) {
            total[k].product_tail =
                POETC_FMA(x[(ptrdiff_t)k * pixels + i] - t[k].centre, g[k][i], total[k].product_tail);
            total[k].sum_tail += g[k][i];
        }
    }
}

/* The rest of four planes after whole fours. */
#define WIDE_TAIL(G)                                                                                                   \
    for (k = 0; k < 4; k++) {                                                                                          \
        for (i = whole; i < count; i++) {                                                                              \
            const float from = x[(ptrdiff_t)k * pixels + i] - t[k].centre;                                             \
            const float normal = POETC_FMA(from, t[k].factor, t[k].shift);                                                      \
            const float slope = G(normal, g[(ptrdiff_t)k * pixels + i], p);                                            \
            total[k].product_tail = POETC_FMA(from, slope, total[k].product_tail);                                                                     \
            total[k].sum_tail += slope;                                                                                \
        }                                                                                                              \
    }

#if POETC_LANES == 16
#define LOW_QUARTERS 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23
#define HIGH_QUARTERS 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_HALF 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_HALF 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
/* Rows of 4 x 4 quarters of vectors become columns. */
POETC_INLINE void turn_quarters(poetc_vector *v)
{
    const poetc_vector a = POETC_SHUFFLE(v[0], v[1], LOW_QUARTERS), b = POETC_SHUFFLE(v[2], v[3], LOW_QUARTERS);
    const poetc_vector c = POETC_SHUFFLE(v[0], v[1], HIGH_QUARTERS), d = POETC_SHUFFLE(v[2], v[3], HIGH_QUARTERS);
    v[0] = POETC_SHUFFLE(a, b, LOW_HALF), v[1] = POETC_SHUFFLE(a, b, HIGH_HALF);
    v[2] = POETC_SHUFFLE(c, d, LOW_HALF), v[3] = POETC_SHUFFLE(c, d, HIGH_HALF);
}

#define MASKED(lanes, v) ((poetc_vector)_mm512_maskz_mov_ps(lanes, (__m512)(v)))

/* `count` pixels of four planes: a quarter of a vector is the four lanes of a plane's sum. Beyond the last whole four
 * zeros are added, which changes no sum that began with 0. */
#define WIDE(name, G)                                                                                                  \
    static void wide_##name(chunk_sums *total, const float *x, const float *g, const poetc_channel *t, int32_t pixels, \
                            int32_t count, const float *p)                                                             \
    {                                                                                                                  \
        const int32_t whole = count / 4 * 4;                                                                           \
        poetc_vector products = {0}, sums = {0};                                                                       \
        float quarters[2][16];                                                                                         \
        int32_t i;                                                                                                     \
        int k;                                                                                                         \
        (void)p;                                                                                                       \
        for (i = 0; i < whole; i += 16) {                                                                              \
            const __mmask16 lanes = (__mmask16)(whole - i < 16 ? (1u << (whole - i)) - 1u : 0xffffu);                  \
            poetc_vector from_mean[4], slope[4];                                                                       \
            POETC_UNROLL                                                                                               \
            for (k = 0; k < 4; k++) {                                                                                  \
                const ptrdiff_t at = (ptrdiff_t)k * pixels + i;                                                        \
                const poetc_vector from = (poetc_vector)_mm512_maskz_loadu_ps(lanes, x + at) - t[k].centre;            \
                const poetc_vector normal = POETC_FMAV(from, t[k].factor, t[k].shift);                                           \
                const poetc_vector gz = (poetc_vector)_mm512_maskz_loadu_ps(lanes, g + at);                            \
                from_mean[k] = MASKED(lanes, from), slope[k] = MASKED(lanes, G##_V(normal, gz, p));                    \
            }                                                                                                          \
            turn_quarters(from_mean);                                                                                  \
            turn_quarters(slope);                                                                                      \
            POETC_UNROLL                                                                                               \
            for (k = 0; k < 4; k++)                                                                                    \
                products = POETC_FMAV(from_mean[k], slope[k], products), sums += slope[k];                                                 \
        }                                                                                                              \
        poetc_vector_store(quarters[0], products);                                                                     \
        poetc_vector_store(quarters[1], sums);                                                                         \
        for (k = 0; k < 4; k++)                                                                                        \
            total[k].products = poetc_f4_load(quarters[0] + 4 * k), total[k].sums = poetc_f4_load(quarters[1] + 4 * k);\
        WIDE_TAIL(G)                                                                                                   \
    }
#define IF_WIDE(planes) ((planes) == 4)
#elif defined(__aarch64__) /* 32 registers */
#define WIDE(name, G)                                                                                                  \
    static void wide_##name(chunk_sums *total, const float *x, const float *g, const poetc_channel *t, int32_t pixels, \
                            int32_t count, const float *from_p)                                                        \
    {                                                                                                                  \
        const int32_t whole = count / 4 * 4;                                                                           \
        const float p[] = {from_p[0], from_p[1]};                                                                      \
        poetc_f4 products[4] = {{0}}, sums[4] = {{0}};                                                                 \
        int32_t i;                                                                                                     \
        int k;                                                                                                         \
        (void)p;                                                                                                       \
        for (i = 0; i < whole; i += 4) {                                                                               \
            POETC_UNROLL                                                                                               \
            for (k = 0; k < 4; k++) {                                                                                  \
                const ptrdiff_t at = (ptrdiff_t)k * pixels + i;                                                        \
                const poetc_f4 from_mean = poetc_f4_load(x + at) - t[k].centre;                                        \
                const poetc_f4 normal = POETC_FMAV(from_mean, t[k].factor, t[k].shift);                                          \
                const poetc_f4 slope = G##_V(normal, poetc_f4_load(g + at), p);                                        \
                products[k] = POETC_FMAV(from_mean, slope, products[k]), sums[k] += slope;                                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (k = 0; k < 4; k++)                                                                                        \
            total[k].products = products[k], total[k].sums = sums[k];                                                  \
        WIDE_TAIL(G)                                                                                                   \
    }
#define IF_WIDE(planes) ((planes) == 4)
#else
#define WIDE(name, G)                                                                                                  \
    static inline void wide_##name(chunk_sums *total, const float *x, const float *g, const poetc_channel *t,          \
                                   int32_t pixels, int32_t count, const float *p)                                      \
    {                                                                                                                  \
        (void)total, (void)x, (void)g, (void)t, (void)pixels, (void)count, (void)p;                                    \
    }
#define IF_WIDE(planes) 0
#endif

/* x, mean, var, scale, bias, gz -> gradients of scale[C] and bias[C]; and x, mean, var, scale, bias, gscale, gbias, gz
 * -> gx. */
#define BACKWARD(name, F)                                                                                              \
    WIDE(name, F##_GRAD)                                                                                               \
                                                                                                                       \
    static void slopes_##name(float *to, const float *x, const float *g, int32_t pixels, poetc_channel t, const float *p)\
    {                                                                                                                  \
        (void)p;                                                                                                       \
        POETC_ROW(poetc_vector_store(to + i, F##_GRAD_V(normal, poetc_vector_load(g + i), p)), to[i] = F##_GRAD(normal, g[i], p));\
    }                                                                                                                  \
                                                                                                                       \
    POETC_INLINE void params_##name(const int planes, int32_t c, const poetc_call *call)                               \
    {                                                                                                                  \
        const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];                         \
        const float p[] = POETC_FLOATS(F, call->floats + 1);                                                           \
        float *gscale = poetc_out(call, 6), *gbias = poetc_out(call, 7);                                               \
        poetc_compensated products[TOGETHER], sums[TOGETHER];                                                          \
        poetc_channel t[TOGETHER];                                                                                     \
        int32_t n, first, at;                                                                                          \
        int k;                                                                                                         \
        for (k = 0; k < planes; k++) {                                                                                 \
            t[k] = channel_of(call, c + k);                                                                            \
            products[k].total = products[k].lost = sums[k].total = sums[k].lost = 0.0f;                                \
        }                                                                                                              \
        for (n = 0; n < batch; n++) {                                                                                  \
            const float *x = (const float *)poetc_in(call, 0) + ((ptrdiff_t)n * channels + c) * pixels;                \
            const float *g = (const float *)poetc_in(call, 5) + ((ptrdiff_t)n * channels + c) * pixels;                \
            for (first = 0; first < pixels; first += BLOCK) {                                                          \
                const int32_t end = pixels - first > BLOCK ? first + BLOCK : pixels;                                   \
                const chunk_sums none = {POETC_F4_ZERO, POETC_F4_ZERO, 0.0f, 0.0f};                                    \
                chunk_sums part[TOGETHER];                                                                             \
                POETC_UNROLL                                                                                           \
                for (k = 0; k < planes; k++)                                                                           \
                    part[k] = none;                                                                                    \
                if (IF_WIDE(planes))                                                                                   \
                    wide_##name(part, x + first, g + first, t, pixels, end - first, p);                                \
                for (at = first; !IF_WIDE(planes) && at < end; at += CHUNK) {                                          \
                    const int32_t count = end - at > CHUNK ? CHUNK : end - at;                                         \
                    float chunk[IF_WIDE(TOGETHER) ? 1 : TOGETHER][CHUNK];                                              \
                    for (k = 0; k < planes; k++) {                                                                     \
                        const ptrdiff_t plane = (ptrdiff_t)k * pixels + at;                                            \
                        slopes_##name(chunk[k], x + plane, g + plane, count, t[k], p);                                 \
                    }                                                                                                  \
                    add_chunk(planes, part, x + at, chunk, t, pixels, count);                                          \
                }                                                                                                      \
                for (k = 0; k < planes; k++) {                                                                         \
                    poetc_compensated_add(&products[k], poetc_f4_total(part[k].products) + part[k].product_tail);      \
                    poetc_compensated_add(&sums[k], poetc_f4_total(part[k].sums) + part[k].sum_tail);                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (k = 0; k < planes; k++) {                                                                                 \
            gscale[c + k] = products[k].total * t[k].rstd;                                                             \
            gbias[c + k] = sums[k].total;                                                                              \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    int poetc_op_batch_norm_##name##_grad_params(const poetc_call *call);                                              \
    int poetc_op_batch_norm_##name##_grad_params(const poetc_call *call)                                               \
    {                                                                                                                  \
        int32_t c = POETC_BEGIN(call->share, call->ints[1], TOGETHER);                                                 \
        POETC_THREADED_OVER(poetc_op_batch_norm_##name##_grad_params, call,                                            \
                            (int64_t)2 * call->ints[0] * call->ints[1] * call->ints[2]);                               \
        for (; TOGETHER > 1 && c + TOGETHER <= POETC_END(call->share, call->ints[1], TOGETHER); c += TOGETHER)         \
            params_##name(TOGETHER, c, call);                                                                          \
        for (; c < POETC_END(call->share, call->ints[1], TOGETHER); c++)                                               \
            params_##name(1, c, call);                                                                                 \
        return POETC_OK;                                                                                               \
    }                                                                                                                  \
                                                                                                                       \
    int poetc_op_batch_norm_##name##_grad_input(const poetc_call *call);                                               \
    int poetc_op_batch_norm_##name##_grad_input(const poetc_call *call)                                                \
    {                                                                                                                  \
        const int32_t batch = call->ints[0], channels = call->ints[1], pixels = call->ints[2];                         \
        const float *x = poetc_in(call, 0), *gscale = poetc_in(call, 5), *gbias = poetc_in(call, 6);                   \
        const float *g = poetc_in(call, 7), p[] = POETC_FLOATS(F, call->floats + 1);                                   \
        const float elements = (float)batch * (float)pixels;                                                           \
        float *gx = poetc_out(call, 8);                                                                                \
        int32_t n, c;                                                                                                  \
        (void)p;                                                                                                       \
        POETC_THREADED_OVER(poetc_op_batch_norm_##name##_grad_input, call, call->ints[0] * call->ints[1] * call->ints[2]);\
        for (n = 0; n < batch; n++) {                                                                                  \
            for (c = 0; c < channels; c++, x += pixels, g += pixels, gx += pixels) {                                   \
                POETC_SKIP(call->share, c, channels, )                                                                 \
                const poetc_channel t = channel_of(call, c);                                                           \
                const float slope = t.rstd * gscale[c] / elements, shift = gbias[c] / elements;                        \
                POETC_ROW({                                                                                            \
                    const poetc_vector gy = F##_GRAD_V(normal, poetc_vector_load(g + i), p);                           \
                    const poetc_vector from_mean = poetc_vector_load(x + i) - t.centre;                                \
                    poetc_vector_store(gx + i, t.factor * POETC_FMSV(from_mean, slope, gy - shift));                         \
                }, {                                                                                                   \
                    const float gy = F##_GRAD(normal, g[i], p);                                                        \
                    gx[i] = t.factor * POETC_FMS(x[i] - t.centre, slope, gy - shift);                                     \
                });                                                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        return POETC_OK;                                                                                               \
    }

FORWARD(same, POETC_SAME)
FORWARD(relu, POETC_RELU)
FORWARD(leaky_relu, POETC_LEAKY_RELU)
FORWARD(clip, POETC_CLIP)
FORWARD(hard_swish, POETC_HARD_SWISH)
FORWARD(silu, POETC_SILU)
BACKWARD(relu, POETC_RELU)
BACKWARD(leaky_relu, POETC_LEAKY_RELU)
BACKWARD(clip, POETC_CLIP)
BACKWARD(hard_swish, POETC_HARD_SWISH)
BACKWARD(silu, POETC_SILU)
