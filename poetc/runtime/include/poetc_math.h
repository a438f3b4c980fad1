/* The runtime's own mathematics: single precision, the same bits on every target.
 *
 * Only IEEE single-precision + - * / and 32/64-bit integers are used, so that a soft-float Cortex-M0+, an FPU and a
 * desktop agree bit for bit. Compile with -ffp-contract=off: a fused multiply-add would round differently. The largest
 * errors, measured against float64 and held by the tests, are in poetc_math.c beside each function.
 */
#ifndef POETC_MATH_H
#define POETC_MATH_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline uint32_t poetc_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float poetc_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float poetc_fabsf(float x)
{
    return poetc_from_bits(poetc_bits(x) & 0x7fffffffu);
}

static inline float poetc_copysignf(float x, float sign)
{
    return poetc_from_bits((poetc_bits(x) & 0x7fffffffu) | (poetc_bits(sign) & 0x80000000u));
}

static inline int poetc_isnan(float x)
{
    return (poetc_bits(x) & 0x7fffffffu) > 0x7f800000u;
}

#define POETC_INFINITY poetc_from_bits(0x7f800000u)
#define POETC_NAN poetc_from_bits(0x7fc00000u)

float poetc_sqrtf(float x); /* correctly rounded */
float poetc_expf(float x);
float poetc_expm1f(float x);
float poetc_logf(float x);
float poetc_log1pf(float x);
float poetc_tanhf(float x);
float poetc_sigmoidf(float x); /* 1 / (1 + exp(-x)), without overflow */
float poetc_erff(float x);
float poetc_sinf(float x); /* any finite argument */
float poetc_cosf(float x);
float poetc_atanf(float x);
float poetc_powf(float x, float y); /* special cases as in C99 Annex F */
float poetc_floorf(float x);
float poetc_ceilf(float x);
float poetc_roundf(float x); /* halves to even, as ONNX and numpy do */

#ifdef __cplusplus
}
#endif

#endif
