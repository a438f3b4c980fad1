/* The widest vectors of the target that are IEEE: POETC_LANES floats, or 1 where there are none. Fused numerics have
 * none where no instruction multiplies and adds with one rounding.
 *
 * Helium (MVE) flushes subnormals. The processor's flags switch it off where all targets are to compute the same bits.
 * It is also off where the compiler does not optimise, because no registers are left then.
 *
 * Layout: lanes lie along contiguous memory.
 * Order of sums: POETC_ADD_SCALED adds one product to each lane; lanes are not added to each other here. */
#ifndef POETC_VECTOR_H
#define POETC_VECTOR_H

#include "poetc_kernel.h"

#if defined(POETC_FUSED) && !defined(POETC_HAS_FMA)
#define POETC_LANES 1
#elif defined(__GNUC__) && defined(__AVX512F__)
#define POETC_LANES 16
#elif defined(__GNUC__) && defined(__AVX__)
#define POETC_LANES 8
#elif defined(__GNUC__) && (defined(__SSE2__) || defined(__aarch64__))
#define POETC_LANES 4
#elif defined(__GNUC__) && defined(__OPTIMIZE__) && defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#include <arm_mve.h>
#define POETC_LANES 4
#define POETC_HELIUM 1
#else
#define POETC_LANES 1
#endif

#if POETC_LANES == 1
typedef float poetc_vector;
typedef float poetc_vector_unaligned;
#else
typedef float poetc_vector __attribute__((vector_size(4 * POETC_LANES)));
typedef float poetc_vector_unaligned __attribute__((vector_size(4 * POETC_LANES), aligned(4), may_alias));
#endif

#define poetc_vector_load(p) ((poetc_vector) * (const poetc_vector_unaligned *)(p))
#define poetc_vector_store(p, v) ((void)(*(poetc_vector_unaligned *)(p) = (v)))

/* Lanes of two vectors of one type, by constant numbers. The lanes of the second are numbered after those of the first.
 */
#if defined(__clang__)
#define POETC_SHUFFLE(u, v, ...) __builtin_shufflevector(u, v, __VA_ARGS__)
#else
#define POETC_SHUFFLE(u, v, ...) \
    __builtin_shuffle(u, v, (int32_t __attribute__((vector_size(sizeof(u))))){__VA_ARGS__})
#endif

/* The next vector, past which the pointer moves. POETC_KEEP: the pointer stays whole, for loads at constant distances
 * from it. GCC would keep many addresses instead, for which Helium's cores have no registers. */
#if defined(POETC_HELIUM)
#define POETC_LOAD_NEXT(v, p) \
    __asm__("vldrw.u32 %q0, [%1], #16" : "=w"(v), "+r"(p) : "m"(*(const float(*)[4])(p)))
#define POETC_KEEP(p) __asm__("" : "+r"(p))
#else
#define POETC_KEEP(p) ((void)0)
#endif

/* c + a * b and c - a * b of vectors, rounded as the numerics say; a scalar stands for a vector of it. */
#if POETC_LANES == 1
#define POETC_FMAV(a, b, c) POETC_FMA(a, b, c)
#elif !defined(POETC_FUSED)
#define POETC_FMAV(a, b, c) ((c) + (a) * (b))
#elif defined(POETC_HELIUM)
#define POETC_FMA_LANES(a, b, c) vfmaq_f32(c, a, b)
#elif defined(__clang__)
#define POETC_FMA_LANES(a, b, c) __builtin_elementwise_fma(a, b, c)
#elif defined(__aarch64__)
#define POETC_FMA_LANES(a, b, c) __builtin_aarch64_fmav4sf(a, b, c)
#elif POETC_LANES == 16 /* all lanes; the rounding that is set */
#define POETC_FMA_LANES(a, b, c) __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)
#elif POETC_LANES == 8
#define POETC_FMA_LANES(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
#endif
#if defined(POETC_FMA_LANES)
#define POETC_FMAV(a, b, c) ((poetc_vector)POETC_FMA_LANES(POETC_SPLAT(a), POETC_SPLAT(b), POETC_SPLAT(c)))
#endif
#if defined(POETC_FUSED) || POETC_LANES == 1
#define POETC_FMSV(a, b, c) POETC_FMAV(-(a), b, c)
#else
#define POETC_FMSV(a, b, c) ((c) - (a) * (b))
#endif

/* A vector whose lanes are all x; x - 0 is x, also of -0. */
#if POETC_LANES == 1
#define POETC_SPLAT(x) (x)
#else
#define POETC_SPLAT(x) ((x) - (poetc_vector){0})
#endif

/* sum += v * s and sum -= v * s for a scalar s; sum += u * v */
#if defined(POETC_HELIUM)
#define POETC_ADD_SCALED(sum, v, s) ((sum) = vfmaq_n_f32(sum, v, s))
#define POETC_SUBTRACT_SCALED(sum, v, s) ((sum) = vfmaq_n_f32(sum, v, -(s)))
#define POETC_ADD_PRODUCT(sum, u, v) ((sum) = vfmaq_f32(sum, u, v))
#elif POETC_LANES == 1
#define POETC_ADD_SCALED(sum, v, s) POETC_MULTIPLY_ADD(sum, v, s)
#define POETC_SUBTRACT_SCALED(sum, v, s) POETC_MULTIPLY_SUBTRACT(sum, v, s)
#define POETC_ADD_PRODUCT(sum, u, v) POETC_MULTIPLY_ADD(sum, u, v)
#elif defined(POETC_FUSED)
#define POETC_ADD_SCALED(sum, v, s) ((sum) = POETC_FMAV(v, s, sum))
#define POETC_SUBTRACT_SCALED(sum, v, s) ((sum) = POETC_FMSV(v, s, sum))
#define POETC_ADD_PRODUCT(sum, u, v) ((sum) = POETC_FMAV(u, v, sum))
#else
#define POETC_ADD_SCALED(sum, v, s) ((sum) += (v) * (s))
#define POETC_SUBTRACT_SCALED(sum, v, s) ((sum) -= (v) * (s))
#define POETC_ADD_PRODUCT(sum, u, v) ((sum) += (u) * (v))
#endif

#if defined(__GNUC__) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' && !defined(__ARM_FP)
#define POETC_SOFT_FLOAT 1 /* every operation is a call: unrolled loops would only be large */
#endif

#if defined(__GNUC__) && defined(POETC_SOFT_FLOAT)
#define POETC_INLINE static inline __attribute__((always_inline))
#define POETC_UNROLL
#define POETC_UNROLL_2
#define POETC_UNROLL_3
#define POETC_UNROLL_4
#define POETC_UNROLL_9
#elif defined(__GNUC__)
#define POETC_INLINE static inline __attribute__((always_inline))
#define POETC_UNROLL _Pragma("GCC unroll 16")
#define POETC_UNROLL_2 _Pragma("GCC unroll 2")
#define POETC_UNROLL_3 _Pragma("GCC unroll 3")
#define POETC_UNROLL_4 _Pragma("GCC unroll 4")
#define POETC_UNROLL_9 _Pragma("GCC unroll 9")
#else
#define POETC_INLINE static inline
#define POETC_UNROLL
#define POETC_UNROLL_2
#define POETC_UNROLL_3
#define POETC_UNROLL_4
#define POETC_UNROLL_9
#endif

/* Keeps the variables of functions that are called in turn from adding up on the stack. */
#if defined(__GNUC__)
#define POETC_APART static __attribute__((noinline))
#else
#define POETC_APART static
#endif

#if defined(POETC_HELIUM)
#define POETC_UNROLL_PAIR POETC_UNROLL_2
#else
#define POETC_UNROLL_PAIR
#endif

#endif
