/* Packed operands of products: the sizes of a register block, the panels of b, and functions that fill them.
 *
 * Layout: b is cut into panels of POETC_GEMM_COLUMNS columns, each [depth][POETC_GEMM_COLUMNS], one panel after
 * another. A caller gathers its own operand into them, so that no column matrix of a convolution is made.
 * Order of sums: nothing is added here. */
#ifndef POETC_GEMM_PACK_H
#define POETC_GEMM_PACK_H

#include "simd/poetc_f4.h"
#include "simd/poetc_vector.h"

#if POETC_LANES == 1 /* a block of 4 x 4 scalars */
#define POETC_GEMM_ROWS 4
#define POETC_GEMM_VECTORS 4
#elif defined(POETC_HELIUM) /* 8 vector registers */
#define POETC_GEMM_ROWS 6
#define POETC_GEMM_VECTORS 1
#elif POETC_LANES == 16 || defined(__aarch64__) /* 32 vector registers */
#define POETC_GEMM_ROWS 12
#define POETC_GEMM_VECTORS 2
#else
#define POETC_GEMM_ROWS 6
#define POETC_GEMM_VECTORS 2
#endif

#define POETC_GEMM_COLUMNS (POETC_LANES * POETC_GEMM_VECTORS)

/* Packed b and scratch, carved out of a kernel's workspace. poetc/kernels/gemm/packing.py computes the sizes:
 * keep them in step. */
typedef struct {
    float *rows;     /* POETC_GEMM_ROWS * depth: a block of a, if it is packed */
    float *panels;   /* columns / POETC_GEMM_COLUMNS panels of depth * POETC_GEMM_COLUMNS */
    int32_t columns; /* capacity: a multiple of POETC_GEMM_COLUMNS */
    int32_t depth;   /* capacity: a multiple of the terms of a block */
} poetc_gemm_space;

/* b[k * step + column], contiguous along the columns, into panels; columns beyond the last become zeros. */
void poetc_gemm_pack(const poetc_gemm_space *space, const float *b, ptrdiff_t step, int32_t depth, int32_t columns);

/* b[column * step + k], contiguous along the depth, likewise: `count` terms, from number `first` of panels of `depth`
 * on. */
void poetc_gemm_pack_transposed(const poetc_gemm_space *space, const float *b, ptrdiff_t step, int32_t first,
                                int32_t count, int32_t depth, int32_t columns);

#if POETC_LANES >= 8
/* to[k * to_step + lane] = from[lane * step + k]: all lanes of a vector, `blocks` times as many k. */
void poetc_transpose_lanes(float *to, ptrdiff_t to_step, const float *from, ptrdiff_t step, int32_t blocks);
#endif

#if POETC_LANES == 1
/* Four runs of `count` floats side by side: to[4 * k + i] = run i [k]. */
static inline void poetc_gather_runs(float *to, const float *p, const float *q, const float *r, const float *s,
                                     int32_t count)
{
#if POETC_FPU_M
#define POETC_GATHER_RUN(from, a, b, c, d)                                                                             \
    "vldr s" #a ", [%[" #from "]]\n\tvldr s" #b ", [%[" #from "], #4]\n\tvldr s" #c ", [%[" #from "], #8]\n\t"            \
    "vldr s" #d ", [%[" #from "], #12]\n\t"
    for (; count >= 4; count -= 4)
        __asm__ volatile(
            POETC_GATHER_RUN(p, 16, 20, 24, 28) POETC_GATHER_RUN(q, 17, 21, 25, 29) POETC_GATHER_RUN(r, 18, 22, 26, 30)
                POETC_GATHER_RUN(
                    s, 19, 23, 27,
                    31) "add %[p], #16\n\tadd %[q], #16\n\tadd %[r], #16\n\tadd %[s], #16\n\tvstmia %[to]!, {s16-s31}"
            : [to] "+&r"(to), [p] "+&r"(p), [q] "+&r"(q), [r] "+&r"(r), [s] "+&r"(s)
            :
            : "memory", "cc", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28",
              "s29", "s30", "s31");
#undef POETC_GATHER_RUN
#endif
    for (; count > 0; count--)
        POETC_GATHER_QUAD(to, p, q, r, s);
}
#endif

#if defined(POETC_HELIUM)
/* `rows` rows of `depth` floats, `step` apart, side by side: to[k * rows + row]. */
static inline void poetc_pack_apart(float *to, const float *from, ptrdiff_t step, int32_t rows, int32_t depth)
{
    const uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), 4u * (uint32_t)rows);
    int32_t i, k;
    for (i = 0; i < rows; i++, from += step) {
        const float *source = from;
        uint32x4_t put = vaddq_n_u32(apart, (uint32_t)(to + i));
        /* clang-format off */
        __asm__ volatile("wls lr, %[n], 2f\n1:\tvldrw.u32 q0, [%[from]], #16\n\tvstrw.32 q0, [%q[put]]\n\t"
                         "vadd.i32 %q[put], %q[put], %[step]\n\tle lr, 1b\n2:"
                         : [from] "+r"(source), [put] "+w"(put)
                         : [n] "r"(depth / 4), [step] "r"(16 * rows)
                         : "lr", "q0", "memory");
        /* clang-format on */
        for (k = depth / 4 * 4; k < depth; k++)
            to[k * rows + i] = from[k];
    }
}
#endif

static inline float *poetc_gemm_panel(const poetc_gemm_space *space, int32_t column, int32_t depth)
{
    return space->panels + (ptrdiff_t)(column / POETC_GEMM_COLUMNS) * depth * POETC_GEMM_COLUMNS;
}

static inline int32_t poetc_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* to[0 .. count) = from[0, step, ...], or zeros if there is no `from`. */
static inline void poetc_put_piece(float *to, const float *from, int32_t step, int32_t count)
{
    int32_t i = 0;
    if (!from) {
        for (; i < count; i++)
            to[i] = 0.0f;
    } else if (step == 1) {
#if POETC_LANES > 1
        for (; i + POETC_LANES <= count; i += POETC_LANES)
            poetc_vector_store(to + i, poetc_vector_load(from + i));
#endif
#if POETC_LANES > 4
        for (; i + 4 <= count; i += 4)
            poetc_f4_store(to + i, poetc_f4_load(from + i));
#endif
        for (; i < count; i++)
            to[i] = from[i];
    } else {
        for (; i < count; i++, from += step)
            to[i] = *from;
    }
}

/* Columns [column, column + count) of row k of b, `step` floats apart, into their panels; zeros if there is no `from`.
 */
static inline void poetc_gemm_put(const poetc_gemm_space *space, int32_t depth, int32_t k, int32_t column,
                                  const float *from, int32_t step, int32_t count)
{
    const ptrdiff_t panel = (ptrdiff_t)depth * POETC_GEMM_COLUMNS;
    int32_t lane = column % POETC_GEMM_COLUMNS, piece;
    float *to = poetc_gemm_panel(space, column, depth) + (ptrdiff_t)k * POETC_GEMM_COLUMNS;
    for (; count > 0; count -= piece, to += panel, lane = 0) {
#if POETC_GEMM_COLUMNS == 4
        if (lane == 0 && step == 1 && from) { /* whole panels */
            for (; count >= 4; count -= 4, to += panel) {
                float *at = to;
                POETC_COPY_FOUR(at, from);
            }
            if (count == 0)
                return;
        }
#endif
        piece = poetc_min(count, POETC_GEMM_COLUMNS - lane);
        poetc_put_piece(to + lane, from, step, piece);
        if (from)
            from += (ptrdiff_t)piece * step;
    }
}

/* Zeros in the columns beyond the last, up to a whole panel. */
static inline void poetc_gemm_put_end(const poetc_gemm_space *space, int32_t depth, int32_t columns)
{
    const int32_t left = -columns & (POETC_GEMM_COLUMNS - 1);
    int32_t k;
    for (k = 0; left && k < depth; k++)
        poetc_gemm_put(space, depth, k, columns, NULL, 1, left);
}

#endif
