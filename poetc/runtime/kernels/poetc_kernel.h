/* Declarations that all kernels share. A kernel sees a poetc_call and nothing else of the runtime.
 *
 * A kernel is `int poetc_op_<kind>(const poetc_call *call)` and returns 0 or a POETC_E* code. Operands are the
 * operator's inputs, its outputs, then the workspace. Sizes are int32_t: a tensor has fewer than 2^31 elements. An
 * operand that may be overwritten in place (OpSpec.may_alias) is never declared restrict.
 *
 * Layout: tensors are dense and in row-major order unless a kernel's own comment says otherwise.
 * Order of sums: poetc_sum adds blocks of POETC_SUM_BLOCK terms in sequence and carries the error from block to block.
 */
#ifndef POETC_KERNEL_H
#define POETC_KERNEL_H

#include "poetc.h"
#include "poetc_fma.h"
#include "poetc_threads.h"

#define POETC_MAX_RANK 16

/* Sums are made of partial sums of at most POETC_SUM_BLOCK terms, so that rounding errors stay near 1e-7 for any
 * length. */
#define POETC_SUM_BLOCK 64

/* The FPU of Cortex-M, which GCC's C reaches only in part. `vmla` is sum += a * b with two roundings, as `vmul` and
 * `vadd` are: the bits are those of every other target with separate numerics. On a Cortex-M4 or M33 it takes three
 * cycles. `vmul` and `vadd` take one each, where the next instruction does not need the result (Arm DDI 0439B, table
 * 7-1), so four products go together. Cores that are POETC_CHAINED have `vmla` in a pipeline. Fused numerics have
 * `vfma`. `vldm` and `vstm` move four floats in one instruction, in registers that follow each other. A named register
 * holds a value for that instruction alone, never from one C statement to the next. Without optimisation (-O0) GCC runs
 * out of registers for assembly: then all is C. -DPOETC_PLAIN_C asks for
 * that on any Cortex-M. A test compares the bits of both. */
#if defined(__GNUC__) && defined(__OPTIMIZE__) && !defined(POETC_PLAIN_C) && defined(__ARM_ARCH_PROFILE) &&            \
    __ARM_ARCH_PROFILE == 'M' && defined(__ARM_FP) && (__ARM_FP & 4)
#define POETC_FPU_M 1
#if !defined(POETC_CHAINED) && (defined(POETC_FUSED) || defined(__ARM_FEATURE_MVE) || (__ARM_FP & 8))
#define POETC_CHAINED 1 /* Cortex-M7, M55, M85; an M7 without doubles is told by its flags */
#endif
#if defined(POETC_FUSED)
#define POETC_VMLA "vfma.f32"
#define POETC_VMLS "vfms.f32"
#else
#define POETC_VMLA "vmla.f32"
#define POETC_VMLS "vmls.f32"
#endif
#define POETC_MULTIPLY_ADD(sum, a, b) __asm__(POETC_VMLA " %0, %1, %2" : "+t"(sum) : "t"(a), "t"(b))
#define POETC_MULTIPLY_SUBTRACT(sum, a, b) __asm__(POETC_VMLS " %0, %1, %2" : "+t"(sum) : "t"(a), "t"(b))
#ifdef POETC_CHAINED
#define POETC_FOUR_SUMS(word, chained, s, t, u, v, a, b, c, d, e, f, g, h)                                                  \
    __asm__(chained " %0, %4, %5\n\t" chained " %1, %6, %7\n\t" chained " %2, %8, %9\n\t" chained " %3, %10, %11"       \
            : "+&t"(s), "+&t"(t), "+&t"(u), "+t"(v)                                                                    \
            : "t"(a), "t"(b), "t"(c), "t"(d), "t"(e), "t"(f), "t"(g), "t"(h))
#else
#define POETC_FOUR_SUMS(word, chained, s, t, u, v, a, b, c, d, e, f, g, h)                                                  \
    do {                                                                                                               \
        float poetc_first, poetc_second;                                                                               \
        __asm__("vmul.f32 %4, %6, %7\n\tvmul.f32 %5, %8, %9\n\t" word " %0, %0, %4\n\tvmul.f32 %4, %10, %11\n\t"        \
                word " %1, %1, %5\n\tvmul.f32 %5, %12, %13\n\t" word " %2, %2, %4\n\t" word " %3, %3, %5"               \
                : "+&t"(s), "+&t"(t), "+&t"(u), "+t"(v), "=&t"(poetc_first), "=&t"(poetc_second)                       \
                : "t"(a), "t"(b), "t"(c), "t"(d), "t"(e), "t"(f), "t"(g), "t"(h));                                     \
    } while (0)
#endif
/* Four sums: s += a * b, t += c * d, u += e * f, v += g * h. */
#define POETC_MULTIPLY_ADD_4(s, t, u, v, a, b, c, d, e, f, g, h) \
    POETC_FOUR_SUMS("vadd.f32", POETC_VMLA, s, t, u, v, a, b, c, d, e, f, g, h)
#define POETC_MULTIPLY_SUBTRACT_4(s, t, u, v, a, b, c, d, e, f, g, h) \
    POETC_FOUR_SUMS("vsub.f32", POETC_VMLS, s, t, u, v, a, b, c, d, e, f, g, h)
#define POETC_QUAD(v) float v##0, v##1, v##2, v##3
#define POETC_LOAD_QUAD(v, p, first, second, third, fourth)                                                            \
    do {                                                                                                               \
        register float poetc_0 __asm__(first), poetc_1 __asm__(second), poetc_2 __asm__(third), poetc_3 __asm__(fourth); \
        __asm__("vldmia %4!, {%0, %1, %2, %3}"                                                                         \
                : "=t"(poetc_0), "=t"(poetc_1), "=t"(poetc_2), "=t"(poetc_3), "+r"(p)                                  \
                : "m"(*(const float(*)[4])(p)));                                                                       \
        v##0 = poetc_0, v##1 = poetc_1, v##2 = poetc_2, v##3 = poetc_3;                                                \
    } while (0)
#define POETC_STORE_QUAD(p, v, first, second, third, fourth)                                                           \
    do {                                                                                                               \
        register float poetc_0 __asm__(first) = v##0, poetc_1 __asm__(second) = v##1, poetc_2 __asm__(third) = v##2,   \
                               poetc_3 __asm__(fourth) = v##3;                                                         \
        __asm__("vstmia %0!, {%2, %3, %4, %5}"                                                                         \
                : "+r"(p), "=m"(*(float(*)[4])(p))                                                                     \
                : "t"(poetc_0), "t"(poetc_1), "t"(poetc_2), "t"(poetc_3));                                             \
    } while (0)
#define POETC_LOAD_QUAD_A(v, p) POETC_LOAD_QUAD(v, p, "s16", "s17", "s18", "s19")
#define POETC_LOAD_QUAD_B(v, p) POETC_LOAD_QUAD(v, p, "s20", "s21", "s22", "s23")
#define POETC_STORE_QUAD_A(p, v) POETC_STORE_QUAD(p, v, "s16", "s17", "s18", "s19")
#define POETC_STORE_QUAD_B(p, v) POETC_STORE_QUAD(p, v, "s20", "s21", "s22", "s23")
/* Whole blocks, whose registers are theirs alone; pointers move on. Four floats go to `to`: from p, or from q, r, s
 * and t. */
#define POETC_COPY_QUAD(to, p)                                                                                         \
    __asm__ volatile("vldmia %1!, {s16-s19}\n\tvstmia %0!, {s16-s19}"                                                  \
                     : "+&r"(to), "+&r"(p)                                                                             \
                     :                                                                                                 \
                     : "s16", "s17", "s18", "s19", "memory")
#define POETC_GATHER_QUAD(to, q, r, s, t)                                                                              \
    __asm__ volatile("vldmia %1!, {s16}\n\tvldmia %2!, {s17}\n\tvldmia %3!, {s18}\n\tvldmia %4!, {s19}\n\t"             \
                     "vstmia %0!, {s16-s19}"                                                                           \
                     : "+&r"(to), "+&r"(q), "+&r"(r), "+&r"(s), "+&r"(t)                                               \
                     :                                                                                                 \
                     : "s16", "s17", "s18", "s19", "memory")
#else
#define POETC_FPU_M 0
#define POETC_MULTIPLY_ADD(sum, a, b) ((sum) = POETC_FMA(a, b, sum))
#define POETC_MULTIPLY_SUBTRACT(sum, a, b) ((sum) = POETC_FMS(a, b, sum))
#define POETC_MULTIPLY_ADD_4(s, t, u, v, a, b, c, d, e, f, g, h)                                                       \
    (POETC_MULTIPLY_ADD(s, a, b), POETC_MULTIPLY_ADD(t, c, d), POETC_MULTIPLY_ADD(u, e, f), POETC_MULTIPLY_ADD(v, g, h))
#define POETC_MULTIPLY_SUBTRACT_4(s, t, u, v, a, b, c, d, e, f, g, h)                                                  \
    (POETC_MULTIPLY_SUBTRACT(s, a, b), POETC_MULTIPLY_SUBTRACT(t, c, d), POETC_MULTIPLY_SUBTRACT(u, e, f),             \
     POETC_MULTIPLY_SUBTRACT(v, g, h))
#define POETC_QUAD(v) float v##0, v##1, v##2, v##3
#define POETC_LOAD_QUAD_A(v, p) (v##0 = (p)[0], v##1 = (p)[1], v##2 = (p)[2], v##3 = (p)[3], (p) += 4)
#define POETC_STORE_QUAD_A(p, v) ((p)[0] = v##0, (p)[1] = v##1, (p)[2] = v##2, (p)[3] = v##3, (p) += 4)
#define POETC_LOAD_QUAD_B(v, p) POETC_LOAD_QUAD_A(v, p)
#define POETC_STORE_QUAD_B(p, v) POETC_STORE_QUAD_A(p, v)
#define POETC_COPY_QUAD(to, p)                                                                                         \
    ((to)[0] = (p)[0], (to)[1] = (p)[1], (to)[2] = (p)[2], (to)[3] = (p)[3], (to) += 4, (p) += 4)
#define POETC_GATHER_QUAD(to, q, r, s, t)                                                                              \
    ((to)[0] = *(q)++, (to)[1] = *(r)++, (to)[2] = *(s)++, (to)[3] = *(t)++, (to) += 4)
#endif

/* x[0] + x[stride] + ... + x[(count - 1) * stride] in the reference order: blocks in sequence, and their sums carried
 * with compensation (Kahan). It bounds the error independently of the number of blocks. */
static inline float poetc_sum(const float *x, int32_t count, int32_t stride)
{
    float total = 0.0f, lost = 0.0f;
    int32_t i = 0;
    while (i < count) {
        int32_t end = count - i > POETC_SUM_BLOCK ? i + POETC_SUM_BLOCK : count;
        float part = 0.0f, term, next;
        for (; i < end; i++)
            part += x[(size_t)i * (size_t)stride];
        term = part - lost;
        next = total + term;
        lost = (next - total) - term;
        total = next;
    }
    return total;
}

#endif
