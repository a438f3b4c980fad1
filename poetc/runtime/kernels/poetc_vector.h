/* The widest vectors of the target that are IEEE: POETC_LANES floats; 1 where there are none. */
#ifndef POETC_VECTOR_H
#define POETC_VECTOR_H

#if defined(__GNUC__) && defined(__AVX512F__)
#define POETC_LANES 16
#elif defined(__GNUC__) && defined(__AVX__)
#define POETC_LANES 8
#elif defined(__GNUC__) && (defined(__SSE2__) || defined(__aarch64__))
#define POETC_LANES 4
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

#if defined(__GNUC__)
#define POETC_INLINE static inline __attribute__((always_inline))
#define POETC_UNROLL _Pragma("GCC unroll 16")
#define POETC_UNROLL_3 _Pragma("GCC unroll 3")
#define POETC_UNROLL_9 _Pragma("GCC unroll 9")
#else
#define POETC_INLINE static inline
#define POETC_UNROLL
#define POETC_UNROLL_3
#define POETC_UNROLL_9
#endif

#endif
