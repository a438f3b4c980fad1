/* Lanes of two vectors side by side, in each quarter of 16 bytes.
 *
 * Layout: of u and v, LOW is u0 v0 u1 v1 and HIGH u2 v2 u3 v3. Pairs of lanes likewise: u0 u1 v0 v1 and u2 u3 v2 v3.
 * Order of sums: none. */
#ifndef POETC_UNPACK_H
#define POETC_UNPACK_H

#include "simd/poetc_vector.h"

#if POETC_LANES >= 8
#include <immintrin.h>
#endif

#if POETC_LANES == 16
#define POETC_LOW(u, v) (poetc_vector) _mm512_unpacklo_ps(u, v)
#define POETC_HIGH(u, v) (poetc_vector) _mm512_unpackhi_ps(u, v)
#define POETC_LOW_PAIR(u, v) (poetc_vector) _mm512_unpacklo_pd((__m512d)(u), (__m512d)(v))
#define POETC_HIGH_PAIR(u, v) (poetc_vector) _mm512_unpackhi_pd((__m512d)(u), (__m512d)(v))
#elif POETC_LANES == 8
#define POETC_LOW(u, v) (poetc_vector) _mm256_unpacklo_ps(u, v)
#define POETC_HIGH(u, v) (poetc_vector) _mm256_unpackhi_ps(u, v)
#define POETC_LOW_PAIR(u, v) (poetc_vector) _mm256_unpacklo_pd((__m256d)(u), (__m256d)(v))
#define POETC_HIGH_PAIR(u, v) (poetc_vector) _mm256_unpackhi_pd((__m256d)(u), (__m256d)(v))
#elif POETC_LANES == 4
#define POETC_LOW(u, v) POETC_SHUFFLE(u, v, 0, 4, 1, 5)
#define POETC_HIGH(u, v) POETC_SHUFFLE(u, v, 2, 6, 3, 7)
#define POETC_LOW_PAIR(u, v) POETC_SHUFFLE(u, v, 0, 1, 4, 5)
#define POETC_HIGH_PAIR(u, v) POETC_SHUFFLE(u, v, 2, 3, 6, 7)
#endif

#endif
