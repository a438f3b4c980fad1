/* Macros that make element-wise kernels: y = f(x), and gx = f'(saved) gy, over ints[0] elements.
 *
 * Layout: dense arrays, element by element; an output may be the input of the same size.
 * Order of sums: nothing is added here. */
#ifndef POETC_ELEMENTWISE_H
#define POETC_ELEMENTWISE_H

#include "poetc_math.h"
#include "simd/poetc_vector.h"
#include "simd/poetc_vector_math.h"

/* `...` computes `result` from the element `at`, for all of them. Results are stored chunk by chunk, since the output
 * may be the input. A compiler that knows that a chunk is read before it is written can use vectors. */
#if POETC_LANES > 1
#define POETC_CHUNKS(...)                                                                                              \
    for (; i + 16 <= count; i += 16) {                                                                                 \
        float results[16];                                                                                             \
        int32_t lane;                                                                                                  \
        for (lane = 0; lane < 16; lane++) {                                                                            \
            const int32_t at = i + lane;                                                                               \
            float result;                                                                                              \
            __VA_ARGS__                                                                                                \
            results[lane] = result;                                                                                    \
        }                                                                                                              \
        for (lane = 0; lane < 16; lane++)                                                                              \
            output[i + lane] = results[lane];                                                                          \
    }                                                                                                                  \
    POETC_SINGLES(__VA_ARGS__)
#else
#define POETC_CHUNKS(...) POETC_SINGLES(__VA_ARGS__)
#endif
#define POETC_SINGLES(...)                                                                                             \
    for (; i < count; i++) {                                                                                           \
        const int32_t at = i;                                                                                          \
        float result;                                                                                                  \
        __VA_ARGS__                                                                                                    \
        output[i] = result;                                                                                            \
    }

/* `expression` is in x, the element, and p, the kernel's floats. */
#define POETC_UNARY(name, expression)                                                                                  \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const float *input = poetc_in(call, 0), *p = call->floats;                                                     \
        float *output = poetc_out(call, 1);                                                                            \
        int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), count = POETC_END(call->share, call->ints[0], 16);    \
        (void)p;                                                                                                       \
        POETC_THREADED_OVER(poetc_op_##name, call, call->ints[0]);                                                     \
        POETC_CHUNKS({                                                                                                 \
            float x = input[at];                                                                                       \
            result = (expression);                                                                                     \
        })                                                                                                             \
        return POETC_OK;                                                                                               \
    }

/* `expression` is in s, the saved element, g, the gradient that arrives, and p. */
#define POETC_UNARY_GRAD(name, expression)                                                                             \
    int poetc_op_##name##_grad(const poetc_call *call);                                                                \
    int poetc_op_##name##_grad(const poetc_call *call)                                                                 \
    {                                                                                                                  \
        const float *saved = poetc_in(call, 0), *gradient = poetc_in(call, 1), *p = call->floats;                      \
        float *output = poetc_out(call, 2);                                                                            \
        int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), count = POETC_END(call->share, call->ints[0], 16);    \
        (void)p;                                                                                                       \
        POETC_THREADED_OVER(poetc_op_##name##_grad, call, call->ints[0]);                                              \
        POETC_CHUNKS({                                                                                                 \
            float s = saved[at], g = gradient[at];                                                                     \
            result = (expression);                                                                                     \
        })                                                                                                             \
        return POETC_OK;                                                                                               \
    }

/* Of scalars in Cortex-M's FPU, which loads and stores four at once: a mere choice takes little more than that.
 */
#if POETC_FPU_M
#define POETC_FOURS(...)                                                                                               \
    {                                                                                                                  \
        int32_t fours = (count - i) / 4;                                                                               \
        float *to = output + i;                                                                                        \
        __VA_ARGS__                                                                                                    \
        i = count - (count - i) % 4;                                                                                   \
    }
#else
#define POETC_FOURS(...)
#endif
#define POETC_FOURS_FOR_POETC_CHOICE(...) POETC_FOURS(__VA_ARGS__)
#define POETC_FOURS_FOR_POETC_WIDE(...)
#define POETC_FOURS_FOR_POETC_CONSTANTS(...) POETC_FOURS(__VA_ARGS__)

/* The same with whole vectors: `wide` is the expression in vectors, `vectors` where there are any. That is POETC_WIDE
 * for elementary functions, and POETC_CONSTANTS for those in line, whose constants four scalars share. It is
 * POETC_CHOICE where a lane is only chosen, which Helium can too. */
#if POETC_LANES > 1
#define POETC_CHOICE(...)                                                                                              \
    for (; i + POETC_LANES <= count; i += POETC_LANES) {                                                               \
        poetc_vector result;                                                                                           \
        __VA_ARGS__                                                                                                    \
        poetc_vector_store(output + i, result);                                                                        \
    }
#else
#define POETC_CHOICE(...)
#endif
#if defined(POETC_WIDE_MATH)
#define POETC_WIDE(...) POETC_CHOICE(__VA_ARGS__)
#else
#define POETC_WIDE(...)
#endif
#define POETC_CONSTANTS(...) POETC_WIDE(__VA_ARGS__)

#define POETC_UNARY_WIDE(name, vectors, expression, wide)                                                               \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const float *input = poetc_in(call, 0), *p = call->floats;                                                     \
        float *output = poetc_out(call, 1);                                                                            \
        int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), count = POETC_END(call->share, call->ints[0], 16);    \
        (void)p;                                                                                                       \
        POETC_THREADED_OVER(poetc_op_##name, call, call->ints[0]);                                                     \
        vectors({                                                                                                      \
            const poetc_vector x = poetc_vector_load(input + i);                                                       \
            result = (wide);                                                                                           \
        })                                                                                                             \
        POETC_FOURS_FOR_##vectors({                                                                                    \
            const float *from = input + i;                                                                             \
            for (; fours > 0; fours--) {                                                                               \
                POETC_QUAD(v);                                                                                       \
                float x;                                                                                               \
                POETC_LOAD_QUAD_A(v, from);                                                                              \
                x = v0, v0 = (expression);                                                                             \
                x = v1, v1 = (expression);                                                                             \
                x = v2, v2 = (expression);                                                                             \
                x = v3, v3 = (expression);                                                                             \
                POETC_STORE_QUAD_A(to, v);                                                                               \
            }                                                                                                          \
        })                                                                                                             \
        POETC_SINGLES({                                                                                                \
            const float x = input[at];                                                                                 \
            result = (expression);                                                                                     \
        })                                                                                                             \
        return POETC_OK;                                                                                               \
    }

#define POETC_UNARY_GRAD_WIDE(name, vectors, expression, wide)                                                          \
    int poetc_op_##name##_grad(const poetc_call *call);                                                                \
    int poetc_op_##name##_grad(const poetc_call *call)                                                                 \
    {                                                                                                                  \
        const float *saved = poetc_in(call, 0), *gradient = poetc_in(call, 1), *p = call->floats;                      \
        float *output = poetc_out(call, 2);                                                                            \
        int32_t i = POETC_BEGIN(call->share, call->ints[0], 16), count = POETC_END(call->share, call->ints[0], 16);    \
        (void)p;                                                                                                       \
        POETC_THREADED_OVER(poetc_op_##name##_grad, call, call->ints[0]);                                              \
        vectors({                                                                                                      \
            const poetc_vector s = poetc_vector_load(saved + i), g = poetc_vector_load(gradient + i);                  \
            result = (wide);                                                                                           \
        })                                                                                                             \
        POETC_FOURS_FOR_##vectors({                                                                                    \
            const float *from = gradient + i, *of = saved + i;                                                         \
            for (; fours > 0; fours--) {                                                                               \
                POETC_QUAD(v);                                                                                       \
                POETC_QUAD(u);                                                                                       \
                float s, g;                                                                                            \
                POETC_LOAD_QUAD_A(v, from);                                                                              \
                POETC_LOAD_QUAD_B(u, of);                                                                                \
                s = u0, g = v0, v0 = (expression);                                                                     \
                s = u1, g = v1, v1 = (expression);                                                                     \
                s = u2, g = v2, v2 = (expression);                                                                     \
                s = u3, g = v3, v3 = (expression);                                                                     \
                POETC_STORE_QUAD_A(to, v);                                                                               \
            }                                                                                                          \
        })                                                                                                             \
        POETC_SINGLES({                                                                                                \
            const float s = saved[at], g = gradient[at];                                                               \
            result = (expression);                                                                                     \
        })                                                                                                             \
        return POETC_OK;                                                                                               \
    }

#endif
