/* Four floats at once: SIMD where the target has IEEE vectors, four scalars where it has not. Also: sums of rows over
 * sixteen lanes.
 *
 * Layout: four or sixteen lanes lie along contiguous memory. 32-bit Neon is left out because it flushes subnormals.
 * Order of sums: every lane is a single-precision operation of its own, so both forms have the same bits. A row sum
 * adds term i to lane i modulo 16; then halves of the lanes are added, and halves again. After 64 terms a lane, the
 * result joins a total that carries its rounding error (Kahan). */
#ifndef POETC_F4_H
#define POETC_F4_H

#include "poetc_kernel.h"
#include "simd/poetc_vector.h"

#if POETC_LANES > 1

typedef float poetc_f4 __attribute__((vector_size(16)));
typedef float poetc_f4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

#define poetc_f4_load(p) ((poetc_f4) * (const poetc_f4_unaligned *)(p))
#define poetc_f4_store(p, v) ((void)(*(poetc_f4_unaligned *)(p) = (v)))
#define poetc_f4_set(a, b, c, d) ((poetc_f4){(a), (b), (c), (d)})
#define poetc_f4_add(u, v) ((u) + (v))
#define poetc_f4_sub(u, v) ((u) - (v))
#define poetc_f4_mul(u, v) ((u) * (v))
#define poetc_f4_scale(v, s) ((v) * (s))
#define poetc_f4_lane(v, i) ((v)[i])
#if defined(POETC_HELIUM)
#define poetc_f4_add_scaled(sum, v, s) ((poetc_f4)vfmaq_n_f32(sum, v, s))
#define poetc_f4_add_product(sum, u, v) ((poetc_f4)vfmaq_f32(sum, u, v))
#elif !defined(POETC_FUSED)
#define poetc_f4_add_product(sum, u, v) poetc_f4_add(sum, poetc_f4_mul(u, v))
#define poetc_f4_add_scaled(sum, v, s) poetc_f4_add(sum, poetc_f4_scale(v, s)) /* two roundings */
#else
#if defined(__clang__)
#define poetc_f4_add_product(sum, u, v) __builtin_elementwise_fma((poetc_f4)(u), (poetc_f4)(v), (poetc_f4)(sum))
#elif defined(__aarch64__)
#define poetc_f4_add_product(sum, u, v) ((poetc_f4)__builtin_aarch64_fmav4sf(u, v, sum))
#else
#define poetc_f4_add_product(sum, u, v) ((poetc_f4)__builtin_ia32_vfmaddps(u, v, sum))
#endif
#define poetc_f4_add_scaled(sum, v, s) poetc_f4_add_product(sum, v, (s) - (poetc_f4){0})
#endif

/* a0 b0 a1 b1 and a2 b2 a3 b3 */
static inline void poetc_f4_interleave(poetc_f4 *a, poetc_f4 *b)
{
    const poetc_f4 low = POETC_SHUFFLE(*a, *b, 0, 4, 1, 5);
    *b = POETC_SHUFFLE(*a, *b, 2, 6, 3, 7);
    *a = low;
}

/* Rows become columns. */
static inline void poetc_f4_transpose(poetc_f4 *a, poetc_f4 *b, poetc_f4 *c, poetc_f4 *d)
{
    poetc_f4 ab = POETC_SHUFFLE(*a, *b, 0, 4, 1, 5), cd = POETC_SHUFFLE(*c, *d, 0, 4, 1, 5);
    poetc_f4 ef = POETC_SHUFFLE(*a, *b, 2, 6, 3, 7), gh = POETC_SHUFFLE(*c, *d, 2, 6, 3, 7);
    *a = POETC_SHUFFLE(ab, cd, 0, 1, 4, 5);
    *b = POETC_SHUFFLE(ab, cd, 2, 3, 6, 7);
    *c = POETC_SHUFFLE(ef, gh, 0, 1, 4, 5);
    *d = POETC_SHUFFLE(ef, gh, 2, 3, 6, 7);
}

#else

typedef struct {
    float lane[4];
} poetc_f4;

static inline poetc_f4 poetc_f4_set(float a, float b, float c, float d)
{
    poetc_f4 v;
    v.lane[0] = a, v.lane[1] = b, v.lane[2] = c, v.lane[3] = d;
    return v;
}

static inline poetc_f4 poetc_f4_load(const float *p)
{
#if POETC_FPU_M
    POETC_QUAD(v);
    POETC_LOAD_QUAD_A(v, p);
    return poetc_f4_set(v0, v1, v2, v3);
#else
    return poetc_f4_set(p[0], p[1], p[2], p[3]);
#endif
}

static inline void poetc_f4_store(float *p, poetc_f4 v)
{
    p[0] = v.lane[0], p[1] = v.lane[1], p[2] = v.lane[2], p[3] = v.lane[3];
}

static inline poetc_f4 poetc_f4_add(poetc_f4 u, poetc_f4 v)
{
    return poetc_f4_set(u.lane[0] + v.lane[0], u.lane[1] + v.lane[1], u.lane[2] + v.lane[2], u.lane[3] + v.lane[3]);
}

static inline poetc_f4 poetc_f4_sub(poetc_f4 u, poetc_f4 v)
{
    return poetc_f4_set(u.lane[0] - v.lane[0], u.lane[1] - v.lane[1], u.lane[2] - v.lane[2], u.lane[3] - v.lane[3]);
}

static inline poetc_f4 poetc_f4_mul(poetc_f4 u, poetc_f4 v)
{
    return poetc_f4_set(u.lane[0] * v.lane[0], u.lane[1] * v.lane[1], u.lane[2] * v.lane[2], u.lane[3] * v.lane[3]);
}

static inline poetc_f4 poetc_f4_scale(poetc_f4 v, float s)
{
    return poetc_f4_set(v.lane[0] * s, v.lane[1] * s, v.lane[2] * s, v.lane[3] * s);
}

#define poetc_f4_lane(v, i) ((v).lane[i])

static inline poetc_f4 poetc_f4_add_scaled(poetc_f4 sum, poetc_f4 v, float s)
{
    POETC_MULTIPLY_ADD_4(sum.lane[0], sum.lane[1], sum.lane[2], sum.lane[3], v.lane[0], s, v.lane[1], s, v.lane[2], s,
                         v.lane[3], s);
    return sum;
}

static inline poetc_f4 poetc_f4_add_product(poetc_f4 sum, poetc_f4 u, poetc_f4 v)
{
    POETC_MULTIPLY_ADD_4(sum.lane[0], sum.lane[1], sum.lane[2], sum.lane[3], u.lane[0], v.lane[0], u.lane[1], v.lane[1],
                         u.lane[2], v.lane[2], u.lane[3], v.lane[3]);
    return sum;
}

static inline void poetc_f4_transpose(poetc_f4 *a, poetc_f4 *b, poetc_f4 *c, poetc_f4 *d)
{
    const poetc_f4 p = *a, q = *b, r = *c, s = *d;
    *a = poetc_f4_set(p.lane[0], q.lane[0], r.lane[0], s.lane[0]);
    *b = poetc_f4_set(p.lane[1], q.lane[1], r.lane[1], s.lane[1]);
    *c = poetc_f4_set(p.lane[2], q.lane[2], r.lane[2], s.lane[2]);
    *d = poetc_f4_set(p.lane[3], q.lane[3], r.lane[3], s.lane[3]);
}

#endif

/* Four floats; both pointers move on. */
#if POETC_LANES > 1
#define POETC_COPY_FOUR(to, from) (poetc_f4_store(to, poetc_f4_load(from)), (to) += 4, (from) += 4)
#else
#define POETC_COPY_FOUR(to, from) POETC_COPY_QUAD(to, from)
#endif

#define POETC_F4_ZERO poetc_f4_set(0.0f, 0.0f, 0.0f, 0.0f)

/* The sum of the lanes, in the reference order. */
#define poetc_f4_total(v) \
    ((poetc_f4_lane(v, 0) + poetc_f4_lane(v, 1)) + (poetc_f4_lane(v, 2) + poetc_f4_lane(v, 3)))

/* A sum that carries its rounding error along (Kahan). */
typedef struct {
    float total, lost;
} poetc_compensated;

static inline void poetc_compensated_add(poetc_compensated *sum, float x)
{
    float term = x - sum->lost, next = sum->total + term;
    sum->lost = (next - sum->total) - term;
    sum->total = next;
}

/* result = the sum over `at` = 0 .. count - 1 of `term`, in the reference order. `wide` is the term in vectors. Or it
 * is the sum of a product, of `a` and `b`. There are 16 lanes, whose sum is that of their halves, halves again and so
 * on. After each 64 terms a lane joins the total, with compensation. */
#define POETC_SUM_LANES 16
#define POETC_LANE_SUM(result, count, term, wide) POETC_LANES_OF(result, count, lanes[lane] + (term), sums[lane] + (wide))
#define POETC_LANE_DOT(result, count, a, b, wide_a, wide_b)                                                            \
    POETC_LANES_OF(result, count, POETC_FMA(a, b, lanes[lane]), POETC_FMAV(wide_a, wide_b, sums[lane]))
#define POETC_LANES_OF(result, count, one, all)                                                                        \
    do {                                                                                                               \
        poetc_compensated sum_of_blocks = {0.0f, 0.0f};                                                                \
        int32_t at = 0;                                                                                                \
        while (at < (count)) {                                                                                         \
            const int32_t most = POETC_SUM_LANES * POETC_SUM_BLOCK;                                                    \
            const int32_t end = (count) - at > most ? at + most : (count);                                             \
            float lanes[POETC_SUM_LANES];                                                                              \
            poetc_vector sums[POETC_SUM_LANES / POETC_LANES];                                                          \
            int32_t lane;                                                                                              \
            POETC_UNROLL                                                                                               \
            for (lane = 0; lane < POETC_SUM_LANES / POETC_LANES; lane++)                                               \
                sums[lane] = (poetc_vector){0};                                                                        \
            while (at + POETC_SUM_LANES <= end) {                                                                      \
                POETC_UNROLL                                                                                           \
                for (lane = 0; lane < POETC_SUM_LANES / POETC_LANES; lane++, at += POETC_LANES)                        \
                    sums[lane] = (all);                                                                                \
            }                                                                                                          \
            POETC_UNROLL                                                                                               \
            for (lane = 0; lane < POETC_SUM_LANES / POETC_LANES; lane++)                                               \
                poetc_vector_store(lanes + lane * POETC_LANES, sums[lane]);                                            \
            for (lane = 0; at < end; at++, lane++)                                                                     \
                lanes[lane] = (one);                                                                                   \
            poetc_compensated_add(&sum_of_blocks, poetc_sum_lanes(lanes));                                             \
        }                                                                                                              \
        (result) = sum_of_blocks.total;                                                                                \
    } while (0)

static inline float poetc_sum_lanes(const float *lanes)
{
    const poetc_f4 low = poetc_f4_add(poetc_f4_load(lanes), poetc_f4_load(lanes + 8));
    const poetc_f4 high = poetc_f4_add(poetc_f4_load(lanes + 4), poetc_f4_load(lanes + 12));
    const poetc_f4 sum = poetc_f4_add(low, high);
    return poetc_f4_total(sum);
}

#if POETC_FPU_M
/* To each lane one of 16 floats, `times` times. */
static inline void poetc_add_lanes(float *lanes, const float **x, int32_t times)
{
#define ADD(s, v) "vadd.f32 " s ", " s ", " v "\n\t"
    /* clang-format off */
    __asm__ volatile("vldmia %[lanes], {s0-s15}\n"
                     "1:\tvldmia %[x]!, {s16-s31}\n\t"
                     "subs %[times], #1\n\t"
                     ADD("s0", "s16") ADD("s1", "s17") ADD("s2", "s18") ADD("s3", "s19")
                     ADD("s4", "s20") ADD("s5", "s21") ADD("s6", "s22") ADD("s7", "s23")
                     ADD("s8", "s24") ADD("s9", "s25") ADD("s10", "s26") ADD("s11", "s27")
                     ADD("s12", "s28") ADD("s13", "s29") ADD("s14", "s30") ADD("s15", "s31")
                     "bne 1b\n\t"
                     "vstmia %[lanes], {s0-s15}"
                     : [x] "+l"(*x), [times] "+l"(times)
                     : [lanes] "l"(lanes)
                     : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13",
                       "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28",
                       "s29", "s30", "s31");
    /* clang-format on */
#undef ADD
}
#endif

/* x[0] + ... + x[count - 1] */
static inline float poetc_row_sum(const float *x, int32_t count)
{
    float total;
#if POETC_FPU_M /* all lanes in registers */
    poetc_compensated sum_of_blocks = {0.0f, 0.0f};
    while (count > 0) {
        const int32_t most = POETC_SUM_LANES * POETC_SUM_BLOCK, block = count > most ? most : count;
        int32_t left = block / POETC_SUM_LANES, lane;
        float lanes[POETC_SUM_LANES];
        for (lane = 0; lane < POETC_SUM_LANES; lane++)
            lanes[lane] = 0.0f;
        if (left > 0)
            poetc_add_lanes(lanes, &x, left);
        for (lane = 0; lane < block % POETC_SUM_LANES; lane++)
            lanes[lane] += *x++;
        poetc_compensated_add(&sum_of_blocks, poetc_sum_lanes(lanes));
        count -= block;
    }
    total = sum_of_blocks.total;
#else
    POETC_LANE_SUM(total, count, x[at], poetc_vector_load(x + at));
#endif
    return total;
}

#endif
