/* Element-wise functions of two or three broadcast operands (poetc/ops/binary.py).
 *
 * Layout: operands are strided, with a stride of 0 where they are broadcast (poetc_walk.h). The result is dense and
 * written in memory order.
 * Order of sums: nothing is added here. */
#include "operators/poetc_walk.h"
#include "poetc_math.h"

/* Dense floats of Cortex-M's FPU, four at a time: from `pa` and `pb` to y. */
#if POETC_FPU_M
#define POETC_FOURS_OF_float_float_float(expression)                                                                   \
    if (step_a == 1 && step_b == 1) {                                                                                  \
        const float *from_a = pa, *from_b = pb;                                                                        \
        for (; i + 4 <= POETC_ROW_COUNT(walk.inner); i += 4) {                                                         \
            float a, b;                                                                                                \
            POETC_QUAD(u);                                                                                             \
            POETC_QUAD(v);                                                                                             \
            POETC_LOAD_QUAD_A(u, from_a);                                                                              \
            POETC_LOAD_QUAD_B(v, from_b);                                                                              \
            a = u0, b = v0, u0 = (expression);                                                                         \
            a = u1, b = v1, u1 = (expression);                                                                         \
            a = u2, b = v2, u2 = (expression);                                                                         \
            a = u3, b = v3, u3 = (expression);                                                                         \
            POETC_STORE_QUAD_A(y, u);                                                                                  \
        }                                                                                                              \
    }
#else
#define POETC_FOURS_OF_float_float_float(expression)
#endif
#define POETC_FOURS_OF_float_float_uint8_t(expression)
#define POETC_FOURS_OF_int32_t_int32_t_int32_t(expression)
#define POETC_FOURS_OF_int32_t_int32_t_uint8_t(expression)
#define POETC_FOURS_OF_uint8_t_float_float(expression)
#define POETC_FOURS_OF_uint8_t_uint8_t_uint8_t(expression)

/* `expression` is in a and b, elements of the types A and B. The output may be an input that is not broadcast. */
#define POETC_BINARY(name, A, B, Y, expression)                                                                        \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const A *first = poetc_in(call, 0);                                                                            \
        const B *second = poetc_in(call, 1);                                                                           \
        Y *y = poetc_out(call, 2);                                                                                     \
        int32_t offsets[2] = {0, 0}, i, step_a, step_b;                                                                \
        poetc_walk walk;                                                                                               \
        poetc_walk_init(&walk, call->ints);                                                                            \
        POETC_THREADED_OVER(poetc_op_##name, call, (int64_t)poetc_walk_rows(&walk) * walk.inner);                      \
        POETC_WALK_SHARE(call, walk, offsets, 2, y)                                                                    \
        POETC_ROW(walk.inner, y)                                                                                       \
        step_a = poetc_step_of(&walk, 0);                                                                              \
        step_b = poetc_step_of(&walk, 1);                                                                              \
        do {                                                                                                           \
            const A *pa = first + offsets[0] + POETC_ROW_BEGIN * step_a;                                               \
            const B *pb = second + offsets[1] + POETC_ROW_BEGIN * step_b;                                              \
            i = 0;                                                                                                     \
            POETC_FOURS_OF_##A##_##B##_##Y(expression) for (; i < POETC_ROW_COUNT(walk.inner); i++)                    \
            {                                                                                                          \
                A a = pa[i * step_a];                                                                                  \
                B b = pb[i * step_b];                                                                                  \
                *y++ = (expression);                                                                                   \
            }                                                                                                          \
        } while (POETC_NEXT_ROW(&walk, offsets, 2));                                                                   \
        return POETC_OK;                                                                                               \
    }

/* The same for three operands. */
#define POETC_TERNARY(name, A, B, C, Y, expression)                                                                    \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_##name(const poetc_call *call)                                                                        \
    {                                                                                                                  \
        const A *first = poetc_in(call, 0);                                                                            \
        const B *second = poetc_in(call, 1);                                                                           \
        const C *third = poetc_in(call, 2);                                                                            \
        Y *y = poetc_out(call, 3);                                                                                     \
        int32_t offsets[3] = {0, 0, 0}, i, step_a, step_b, step_c;                                                     \
        poetc_walk walk;                                                                                               \
        poetc_walk_init(&walk, call->ints);                                                                            \
        POETC_THREADED_OVER(poetc_op_##name, call, (int64_t)poetc_walk_rows(&walk) * walk.inner);                      \
        POETC_WALK_SHARE(call, walk, offsets, 3, y)                                                                    \
        POETC_ROW(walk.inner, y)                                                                                       \
        step_a = poetc_step_of(&walk, 0);                                                                              \
        step_b = poetc_step_of(&walk, 1);                                                                              \
        step_c = poetc_step_of(&walk, 2);                                                                              \
        do {                                                                                                           \
            const A *pa = first + offsets[0] + POETC_ROW_BEGIN * step_a;                                               \
            const B *pb = second + offsets[1] + POETC_ROW_BEGIN * step_b;                                              \
            const C *pc = third + offsets[2] + POETC_ROW_BEGIN * step_c;                                               \
            for (i = 0; i < POETC_ROW_COUNT(walk.inner); i++) {                                                        \
                A a = pa[i * step_a];                                                                                  \
                B b = pb[i * step_b];                                                                                  \
                C c = pc[i * step_c];                                                                                  \
                *y++ = (expression);                                                                                   \
            }                                                                                                          \
        } while (POETC_NEXT_ROW(&walk, offsets, 3));                                                                   \
        return POETC_OK;                                                                                               \
    }

POETC_BINARY(add, float, float, float, a + b)
POETC_BINARY(sub, float, float, float, a - b)
POETC_BINARY(mul, float, float, float, a *b)
POETC_BINARY(div, float, float, float, a / b)
POETC_BINARY(div_or_zero, float, float, float, b == 0.0f ? 0.0f : a / b)
POETC_BINARY(pow, float, float, float, poetc_powf(a, b))
POETC_BINARY(maximum, float, float, float, a > b ? a : b)
POETC_BINARY(minimum, float, float, float, a < b ? a : b)
POETC_BINARY(p_relu, float, float, float, a > 0.0f ? a : a * b)
POETC_BINARY(p_relu_grad_slope, float, float, float, a > 0.0f ? 0.0f : a * b)
POETC_BINARY(mask, uint8_t, float, float, a ? b : 0.0f)
POETC_BINARY(mask_not, uint8_t, float, float, a ? 0.0f : b)

/* by way of uint32_t: signed overflow is undefined */
POETC_BINARY(add_i32, int32_t, int32_t, int32_t, (int32_t)((uint32_t)a + (uint32_t)b))
POETC_BINARY(sub_i32, int32_t, int32_t, int32_t, (int32_t)((uint32_t)a - (uint32_t)b))
POETC_BINARY(mul_i32, int32_t, int32_t, int32_t, (int32_t)((uint32_t)a * (uint32_t)b))
POETC_BINARY(maximum_i32, int32_t, int32_t, int32_t, a > b ? a : b)
POETC_BINARY(minimum_i32, int32_t, int32_t, int32_t, a < b ? a : b)

/* With the sign of the divisor, and 0 where C leaves it open. */
static int32_t modulo(int32_t a, int32_t b)
{
    int32_t rest = b == 0 || b == -1 ? 0 : a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

POETC_BINARY(mod_i32, int32_t, int32_t, int32_t, modulo(a, b))
POETC_BINARY(remainder_i32, int32_t, int32_t, int32_t, b == 0 || b == -1 ? 0 : a % b)

POETC_BINARY(equal_f32, float, float, uint8_t, a == b)
POETC_BINARY(equal_i32, int32_t, int32_t, uint8_t, a == b)
POETC_BINARY(equal_u8, uint8_t, uint8_t, uint8_t, a == b)
POETC_BINARY(less_f32, float, float, uint8_t, a < b)
POETC_BINARY(less_i32, int32_t, int32_t, uint8_t, a < b)
POETC_BINARY(less_or_equal_f32, float, float, uint8_t, a <= b)
POETC_BINARY(less_or_equal_i32, int32_t, int32_t, uint8_t, a <= b)
POETC_BINARY(greater_f32, float, float, uint8_t, a > b)
POETC_BINARY(greater_i32, int32_t, int32_t, uint8_t, a > b)
POETC_BINARY(greater_or_equal_f32, float, float, uint8_t, a >= b)
POETC_BINARY(greater_or_equal_i32, int32_t, int32_t, uint8_t, a >= b)
POETC_BINARY(and, uint8_t, uint8_t, uint8_t, a &&b)
POETC_BINARY(or, uint8_t, uint8_t, uint8_t, a || b)
POETC_BINARY(xor, uint8_t, uint8_t, uint8_t, !a != !b)

POETC_TERNARY(where_f32, uint8_t, float, float, float, a ? b : c)
POETC_TERNARY(where_i32, uint8_t, int32_t, int32_t, int32_t, a ? b : c)
POETC_TERNARY(where_u8, uint8_t, uint8_t, uint8_t, uint8_t, a ? b : c)
POETC_TERNARY(pow_grad_base, float, float, float, float, b == 0.0f ? 0.0f : c * b * poetc_powf(a, b - 1.0f))
POETC_TERNARY(pow_grad_exponent, float, float, float, float, a == 0.0f ? 0.0f : c * b * poetc_logf(a))
POETC_TERNARY(maximum_grad, float, float, float, float, a > b ? c : a == b ? c * 0.5f : 0.0f)
POETC_TERNARY(p_relu_grad_input, float, float, float, float, a > 0.0f ? c : b * c)
