/* Integers of 8 bits on a Cortex-M with Helium: copies, gathers, scans and rounding.
 *
 * The processor masks the lanes beyond the last one (WLSTP and LETP), so that no rest is left to scalars. A loop takes
 * no turn if it has nothing to do.
 *
 * Layout: sums and values lie behind each other or a step apart.
 * Order of sums: nothing is added up here. */
#ifndef POETC_INT8_HELIUM_H
#define POETC_INT8_HELIUM_H

#include "poetc_kernel.h"

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1) && defined(__GNUC__) && !defined(POETC_PLAIN_C)
#include <arm_mve.h>
#define POETC_INT8_HELIUM 1
#else
#define POETC_INT8_HELIUM 0
#endif

#if POETC_INT8_HELIUM
#define POETC_HELIUM_STEP 9362 /* eight numbers a step apart have offsets of 16 bits below it */

static inline void poetc_copy_bytes(const int8_t *from, int32_t count, int8_t *to)
{
    int8x16_t v;
    __asm__ volatile("wlstp.8 lr, %[count], 1f\n"
                     "0: vldrb.8 %q[v], [%[from]], #16\n\t"
                     "vstrb.8 %q[v], [%[to]], #16\n\t"
                     "letp lr, 0b\n"
                     "1:"
                     : [v] "=&w"(v), [from] "+r"(from), [to] "+r"(to)
                     : [count] "r"(count)
                     : "lr", "memory");
}

static inline void poetc_fill_bytes(int8_t *to, int32_t count, int8_t value)
{
    __asm__ volatile("wlstp.8 lr, %[count], 1f\n"
                     "0: vstrb.8 %q[v], [%[to]], #16\n\t"
                     "letp lr, 0b\n"
                     "1:"
                     : [to] "+r"(to)
                     : [v] "w"(vdupq_n_s8(value)), [count] "r"(count)
                     : "lr", "memory");
}

static inline void poetc_fill_sums(int32_t *to, int32_t count, int32_t value)
{
    __asm__ volatile("wlstp.32 lr, %[count], 1f\n"
                     "0: vstrw.32 %q[v], [%[to]], #16\n\t"
                     "letp lr, 0b\n"
                     "1:"
                     : [to] "+r"(to)
                     : [v] "w"(vdupq_n_s32(value)), [count] "r"(count)
                     : "lr", "memory");
}

/* The offsets of eight numbers a step apart, which is below POETC_HELIUM_STEP. */
static inline uint16x8_t poetc_places(size_t step)
{
    return vmulq_n_u16(vidupq_n_u16(0, 1), (uint16_t)step);
}

/* Gathers `count` bytes, whose first eight have these places. */
static inline void poetc_gather_bytes(const int8_t *from, uint16x8_t places, size_t step, int32_t count, int8_t *to)
{
    uint16x8_t v;
    __asm__ volatile("wlstp.16 lr, %[count], 1f\n"
                     "0: vldrb.u16 %q[v], [%[from], %q[places]]\n\t"
                     "add %[from], %[eight]\n\t"
                     "vstrb.16 %q[v], [%[to]], #8\n\t"
                     "letp lr, 0b\n"
                     "1:"
                     : [v] "=&w"(v), [from] "+r"(from), [to] "+l"(to)
                     : [places] "w"(places), [eight] "r"(8 * step), [count] "r"(count)
                     : "lr", "memory");
}

/* Adds the bits of `count` sums to `seen`: the largest magnitude less 1 has as many as all of them. */
static inline uint32_t poetc_see_helium(const int32_t *sums, int32_t count, uint32_t seen)
{
    uint32x4_t most = vdupq_n_u32(0u);
    int32x4_t v;
    uint32_t largest;
    __asm__ volatile("wlstp.32 lr, %[count], 1f\n"
                     "0: vldrw.32 %q[v], [%[sums]], #16\n\t"
                     "vmaxa.s32 %q[most], %q[v]\n\t"
                     "letp lr, 0b\n"
                     "1:"
                     : [most] "+w"(most), [v] "=&w"(v), [sums] "+r"(sums)
                     : [count] "r"(count)
                     : "lr", "memory");
    largest = vmaxvq_u32(0u, most);
    return seen | (largest - (largest > 0u));
}

/* Values of `count` sums of at most 2^30 in magnitude, `step` apart. Pseudo-stochastic rounding adds 1 where the upper
 * half of the bits that go, h, is above the lower half l. That is the carry of h + (all ones - l). Returns how many
 * values were clipped. */
#define POETC_ROUND(HALVES, STORE)                                                                                     \
    __asm__ volatile("wlstp.32 lr, %[count], 1f\n"                                                                     \
                     "0: vldrw.32 %q[v], [%[sums]], #16\n\t"                                                           \
                     "vabs.s32 %q[m], %q[v]\n\t" HALVES "vpt.u32 hi, %q[m], %q[mosts]\n\t"                            \
                     "vaddt.i32 %q[clipped], %q[clipped], %[one]\n\t"                                                 \
                     "vmin.u32 %q[m], %q[m], %q[mosts]\n\t"                                                           \
                     "vpt.s32 lt, %q[v], zr\n\t"                                                                      \
                     "vnegt.s32 %q[m], %q[m]\n\t" STORE "letp lr, 0b\n"                                               \
                     "1:"                                                                                              \
                     : [v] "=&w"(v), [m] "=&w"(m), [l] "=&w"(l), [clipped] "+w"(clipped), [sums] "+r"(sums),           \
                       [to] "+l"(to)                                                                                   \
                     : [places] "w"(places), [mosts] "w"(mosts), [lows] "w"(lows), [first] "r"(first), [up] "r"(up),   \
                       [odd] "r"(odd), [down] "r"(down), [one] "r"(1), [four] "r"(4 * step), [count] "r"(count)        \
                     : "lr", "memory")
#define POETC_NEAREST "vrshl.u32 %q[m], %[first]\n\t"
#define POETC_STOCHASTIC                                                                                               \
    "vbic %q[l], %q[lows], %q[m]\n\t"                                                                                 \
    "vshl.u32 %q[m], %[first]\n\t"                                                                                    \
    "vmla.s32 %q[m], %q[l], %[up]\n\t"                                                                                \
    "vadd.i32 %q[m], %q[m], %[odd]\n\t"                                                                               \
    "vshl.u32 %q[m], %[down]\n\t"
#define POETC_TOGETHER "vstrb.32 %q[m], [%[to]], #4\n\t"
#define POETC_STEPPED                                                                                                    \
    "vstrb.32 %q[m], [%[to], %q[places]]\n\t"                                                                         \
    "add %[to], %[four]\n\t"

static inline int32_t poetc_round_helium(const int32_t *sums, int32_t count, int8_t *to, int32_t step, int32_t shift,
                                         int32_t is_stochastic, uint32_t most)
{
    const int32_t half = shift / 2, odd = shift & 1, first = is_stochastic ? -half : -shift, down = half - shift;
    const int32_t up = 1 << odd;
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0u, 1), (uint32_t)step), mosts = vdupq_n_u32(most);
    const uint32x4_t lows = vdupq_n_u32(((uint32_t)1 << half) - 1u);
    uint32x4_t clipped = vdupq_n_u32(0u), v, m, l;
    if (is_stochastic && step == 1)
        POETC_ROUND(POETC_STOCHASTIC, POETC_TOGETHER);
    else if (is_stochastic)
        POETC_ROUND(POETC_STOCHASTIC, POETC_STEPPED);
    else if (step == 1)
        POETC_ROUND(POETC_NEAREST, POETC_TOGETHER);
    else
        POETC_ROUND(POETC_NEAREST, POETC_STEPPED);
    return (int32_t)vaddvq_u32(clipped);
}
#endif

#endif
