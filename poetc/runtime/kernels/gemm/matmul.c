/* y = alpha * op(a) op(b) + bias without workspace, for few rows or few terms. Other products are matmul_packed.c's.
 *
 * Layout: a and b are row-major matrices or their transposes; batch axes are broadcast. Two loops cover the four
 * combinations. `outer` has lanes along a side of the result, where one factor is contiguous along it. `inner` has
 * lanes along the sum, where both factors are.
 * Order of sums: `outer` adds a result's terms in sequence. `inner` adds sixteen lanes (four on Helium), then the rest
 * in sequence. Either way a sum is made of partial sums of BLOCK terms a lane. */
#include "simd/poetc_f4.h"
#include "simd/poetc_vector.h"

#define BLOCK 64

typedef struct {
    int32_t rows, columns, depth; /* of the result as this loop sees it, and terms of a sum */
    const float *p;               /* p[row * p_row + k * p_k] */
    const float *q;               /* outer: q[k * q_step + column]; inner: q[column * q_step + k] */
    ptrdiff_t p_row, p_k, q_step;
    const float *bias; /* bias[row * bias_row + column * bias_column], or NULL */
    ptrdiff_t bias_row, bias_column;
    float *y;
    ptrdiff_t y_row, y_column;
    float alpha;
} product;

static inline void put(const product *t, int32_t row, int32_t column, float sum)
{
    float bias = t->bias ? t->bias[row * t->bias_row + column * t->bias_column] : 0.0f;
    t->y[row * t->y_row + column * t->y_column] = POETC_FMA(t->alpha, sum, bias);
}

/* `count` sums of a row. */
static void put_row(const product *t, int32_t row, int32_t column, const float *sums, int32_t count)
{
    int32_t j = 0;
    if (t->alpha == 1.0f && !t->bias && t->y_column == 1) {
        float *y = t->y + row * t->y_row + column;
        for (; j < count; j++)
            y[j] = sums[j];
    }
    for (; j < count; j++)
        put(t, row, column + j, sums[j]);
}

#if POETC_LANES == 1
#define WIDE 4 /* columns of a block of four rows */
#define LONG 16 /* columns of a block of one row */
#elif defined(POETC_HELIUM)
#define WIDE 4
#define LONG 16
#else
#define WIDE (2 * POETC_LANES)
#define LONG (8 * POETC_LANES)
#endif
#define MOST (4 * WIDE > LONG ? 4 * WIDE : LONG)

/* rows x columns results: constants wherever this is inlined, columns a multiple of 4 on scalars, else of the lanes
 * or 4. */
POETC_INLINE void outer_block(const product *t, const int rows, const int columns, int32_t row, int32_t column)
{
    float total[MOST]; /* of whole blocks of terms */
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    int32_t k = 0;
    int i, j;
    while (k < t->depth) {
        const int32_t first = k, end = t->depth - k > BLOCK ? k + BLOCK : t->depth;
#if POETC_LANES == 1
        float sum[MOST];
        POETC_QUAD(v);
        POETC_UNROLL
        for (i = 0; i < rows; i++) {
            POETC_UNROLL
            for (j = 0; j < columns; j++)
                sum[i * columns + j] = 0.0f;
        }
        for (; k < end; k++, p += t->p_k, q += t->q_step - columns) {
            POETC_UNROLL
            for (j = 0; j < columns; j += 4) {
                POETC_LOAD_QUAD_B(v, q);
                POETC_UNROLL
                for (i = 0; i < rows; i++) {
                    const float factor = p[i * t->p_row];
                    POETC_MULTIPLY_ADD_4(sum[i * columns + j], sum[i * columns + j + 1], sum[i * columns + j + 2],
                                         sum[i * columns + j + 3], v0, factor, v1, factor, v2, factor, v3, factor);
                }
            }
        }
        POETC_UNROLL
        for (i = 0; i < rows * columns; i++)
            total[i] = first ? total[i] + sum[i] : sum[i];
#else
        poetc_vector sum[MOST / POETC_LANES];
        const int vectors = columns / POETC_LANES;
        POETC_UNROLL
        for (i = 0; i < rows; i++) {
            POETC_UNROLL
            for (j = 0; j < vectors; j++)
                sum[i * vectors + j] = (poetc_vector){0};
        }
        for (k = end - k; k > 0; k--, p += t->p_k, q += t->q_step) {
            POETC_KEEP(q);
            POETC_UNROLL
            for (i = 0; i < rows; i++) {
                const float factor = p[i * t->p_row];
                POETC_UNROLL
                for (j = 0; j < vectors; j++)
                    POETC_ADD_SCALED(sum[i * vectors + j], poetc_vector_load(q + j * POETC_LANES), factor);
            }
        }
        POETC_UNROLL
        for (i = 0; i < rows; i++) {
            POETC_UNROLL
            for (j = 0; j < vectors; j++) {
                float *at = total + i * columns + j * POETC_LANES;
                const poetc_vector part = sum[i * vectors + j];
                poetc_vector_store(at, first ? poetc_vector_load(at) + part : part);
            }
        }
        k = end;
#endif
    }
    POETC_UNROLL
    for (i = 0; i < rows; i++)
        put_row(t, row + i, column, total + i * columns, columns);
}

static void outer_single(const product *t, int32_t row, int32_t column)
{
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    float y = 0.0f;
    int32_t k = 0;
    while (k < t->depth) {
        int32_t first = k, end = t->depth - k > BLOCK ? k + BLOCK : t->depth;
        float sum = 0.0f;
        for (; k < end; k++, p += t->p_k, q += t->q_step)
            sum = POETC_FMA(q[0], p[0], sum);
        y = first ? y + sum : sum;
    }
    put(t, row, column, y);
}

/* Columns from `column` on in blocks of `block`; returns the first column that is left. The last block may overlap the
 * one before (it writes the same values again). */
#define OUTER_COLUMNS(block, rows)                                                                                     \
    if (t->columns - column >= (block)) {                                                                              \
        for (; column + (block) <= t->columns; column += (block))                                                      \
            outer_block(t, rows, block, row, column);                                                                  \
    }

#if defined(POETC_HELIUM)
/* Results that need nothing done to their sums. */
static inline int is_plain(const product *t)
{
    return t->alpha == 1.0f && !t->bias && t->y_column == 1;
}

/* Four rows and columns. Factors of a row or of a term follow each other. */
static void outer_four(const product *t, int32_t row, int32_t column)
{
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    float sums[16];
    const int in_place = is_plain(t);
    float *const y = in_place ? t->y + row * t->y_row + column : sums;
    const ptrdiff_t y_row = in_place ? t->y_row : 4;
    int32_t left = t->depth, i;
    do {
        const int32_t count = left > BLOCK ? BLOCK : left;
        float32x4_t a = vdupq_n_f32(0.0f), b = a, c = a, d = a, v;
#define LOAD "vldrw.u32 %q[v], [%[q]]\n\tadd %[q], %[q], %[step]\n\t"
        if (t->p_k == 1) {
            const float *second = p + t->p_row, *third = second + t->p_row, *fourth = third + t->p_row, *first = p;
#define TAKE_PAIR(sum, from) "ldrd r4, r5, [%[" #from "]], #8\n\tvfma.f32 %q[" #sum "], %q[v], r4\n\tvfma.f32 %q[" #sum "], q7, r5\n\t"
#define TAKE(sum, from) "ldr r4, [%[" #from "]], #4\n\tvfma.f32 %q[" #sum "], %q[v], r4\n\t"
            /* clang-format off */
            __asm__ volatile("lsr lr, %[n], #1\n\twls lr, lr, 2f\n1:\t" LOAD "vldrw.u32 q7, [%[q]]\n\tadd %[q], %[q], %[step]\n\t"
                             TAKE_PAIR(a, e) TAKE_PAIR(b, f) TAKE_PAIR(c, g) TAKE_PAIR(d, h) "le lr, 1b\n"
                             "2:\tlsls r4, %[n], #31\n\tbeq 3f\n\t" LOAD TAKE(a, e) TAKE(b, f) TAKE(c, g) TAKE(d, h) "3:"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [d] "+w"(d), [v] "=&w"(v), [q] "+r"(q), [e] "+r"(first),
                               [f] "+r"(second), [g] "+r"(third), [h] "+r"(fourth)
                             : [n] "r"(count), [step] "r"(4 * t->q_step)
                             : "lr", "cc", "r4", "r5", "q7", "memory");
            /* clang-format on */
#undef TAKE
#undef TAKE_PAIR
            p += count;
        } else {
            /* clang-format off */
            __asm__ volatile("wls lr, %[n], 2f\n1:\t" LOAD
                             "ldmia %[p], {r4, r5, r6, r8}\n\tadd %[p], %[p], %[next]\n\t"
                             "vfma.f32 %q[a], %q[v], r4\n\tvfma.f32 %q[b], %q[v], r5\n\tvfma.f32 %q[c], %q[v], r6\n\t"
                             "vfma.f32 %q[d], %q[v], r8\n\tle lr, 1b\n2:"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [d] "+w"(d), [v] "=&w"(v), [q] "+r"(q), [p] "+r"(p)
                             : [n] "r"(count), [step] "r"(4 * t->q_step), [next] "r"(4 * t->p_k)
                             : "lr", "r4", "r5", "r6", "r8", "memory");
            /* clang-format on */
        }
#undef LOAD
        if (left < t->depth) { /* more of a sum */
            a = vaddq_f32(vld1q_f32(y), a), b = vaddq_f32(vld1q_f32(y + y_row), b);
            c = vaddq_f32(vld1q_f32(y + 2 * y_row), c), d = vaddq_f32(vld1q_f32(y + 3 * y_row), d);
        }
        vst1q_f32(y, a), vst1q_f32(y + y_row, b), vst1q_f32(y + 2 * y_row, c), vst1q_f32(y + 3 * y_row, d);
        left -= count;
    } while (left > 0);
    for (i = 0; i < 4 && !in_place; i++)
        put_row(t, row + i, column, sums + 4 * i, 4);
}
#endif

static void outer_4(const product *t, int32_t row)
{
    int32_t column = 0;
#if defined(POETC_HELIUM)
    for (; column < t->columns && t->columns >= 4; column += 4) /* the last four may overlap those before */
        outer_four(t, row, column + 4 > t->columns ? t->columns - 4 : column);
#else
    OUTER_COLUMNS(WIDE, 4)
#if WIDE > POETC_LANES && POETC_LANES > 1
    OUTER_COLUMNS(POETC_LANES, 4)
#endif
    if (column < t->columns && t->columns >= WIDE) {
        outer_block(t, 4, WIDE, row, t->columns - WIDE);
        return;
    }
#if WIDE > POETC_LANES && POETC_LANES > 1
    if (column < t->columns && t->columns >= POETC_LANES) {
        outer_block(t, 4, POETC_LANES, row, t->columns - POETC_LANES);
        return;
    }
#endif
#endif
    for (; column < t->columns; column++) {
        int i;
        for (i = 0; i < 4; i++)
            outer_single(t, row + i, column);
    }
}

#if defined(POETC_HELIUM)
#define HELIUM_COLUMNS 24

/* HELIUM_COLUMNS of a row whose factors follow each other: GCC would keep an address for each vector. */
static void outer_long(const product *t, int32_t row, int32_t column)
{
    const float *p = t->p + row * t->p_row, *q = t->q + column;
    float sums[HELIUM_COLUMNS], *const total = is_plain(t) ? t->y + row * t->y_row + column : sums;
    int32_t left = t->depth;
    do {
        const int32_t count = left > BLOCK ? BLOCK : left;
        /* clang-format off */
        __asm__ volatile("dls lr, %[n]\n\t"
                         "vmov.i32 q0, #0\n\tvmov q1, q0\n\tvmov q2, q0\n\tvmov q3, q0\n\tvmov q4, q0\n\tvmov q5, q0\n"
                         "1:\tldr r12, [%[p]], #4\n\t"
                         "vldrw.u32 q6, [%[q]]\n\tvldrw.u32 q7, [%[q], #16]\n\tvfma.f32 q0, q6, r12\n\t"
                         "vldrw.u32 q6, [%[q], #32]\n\tvfma.f32 q1, q7, r12\n\tvldrw.u32 q7, [%[q], #48]\n\tvfma.f32 q2, q6, r12\n\t"
                         "vldrw.u32 q6, [%[q], #64]\n\tvfma.f32 q3, q7, r12\n\tvldrw.u32 q7, [%[q], #80]\n\tvfma.f32 q4, q6, r12\n\t"
                         "add %[q], %[q], %[step]\n\tvfma.f32 q5, q7, r12\n\t"
                         "le lr, 1b\n\t"
                         "cbz %[first], 2f\n\t"
                         "vldrw.u32 q6, [%[total]]\n\tvadd.f32 q0, q0, q6\n\tvldrw.u32 q6, [%[total], #16]\n\tvadd.f32 q1, q1, q6\n\t"
                         "vldrw.u32 q6, [%[total], #32]\n\tvadd.f32 q2, q2, q6\n\tvldrw.u32 q6, [%[total], #48]\n\tvadd.f32 q3, q3, q6\n\t"
                         "vldrw.u32 q6, [%[total], #64]\n\tvadd.f32 q4, q4, q6\n\tvldrw.u32 q6, [%[total], #80]\n\tvadd.f32 q5, q5, q6\n"
                         "2:\tvstrw.32 q0, [%[total]]\n\tvstrw.32 q1, [%[total], #16]\n\tvstrw.32 q2, [%[total], #32]\n\t"
                         "vstrw.32 q3, [%[total], #48]\n\tvstrw.32 q4, [%[total], #64]\n\tvstrw.32 q5, [%[total], #80]"
                         : [p] "+r"(p), [q] "+r"(q)
                         : [n] "r"(count), [step] "r"(4 * t->q_step), [first] "l"(left < t->depth), [total] "r"(total)
                         : "lr", "r12", "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "memory");
        /* clang-format on */
        left -= count;
    } while (left > 0);
    if (total == sums)
        put_row(t, row, column, total, HELIUM_COLUMNS);
}
#endif

#if POETC_FPU_M && !defined(POETC_HELIUM)
#include "gemm/poetc_matmul_fpu.h"
#endif

static void outer_1(const product *t, int32_t row)
{
#if POETC_FPU_M && !defined(POETC_HELIUM)
    int32_t column;
    if (t->columns >= 4 && t->depth > 0) {
        outer_row(t, row);
        return;
    }
    for (column = 0; column < t->columns; column++)
        outer_single(t, row, column);
#else
    const int narrow = POETC_LANES > 4 ? POETC_LANES : 4;
    int32_t column = 0;
#if defined(POETC_HELIUM)
    for (; t->p_k == 1 && t->depth > 0 && column + HELIUM_COLUMNS <= t->columns; column += HELIUM_COLUMNS)
        outer_long(t, row, column);
#endif
    OUTER_COLUMNS(LONG, 1)
    OUTER_COLUMNS(narrow, 1)
    if (column < t->columns && t->columns >= narrow)
        outer_block(t, 1, narrow, row, t->columns - narrow);
    else
        for (; column < t->columns; column++)
            outer_single(t, row, column);
#endif
}

/* y[i][j] = p[i] q[j] */
static void rank_one(const product *t)
{
    const int32_t columns = t->columns;
    int32_t i, j;
    for (i = 0; i < t->rows; i++) {
        const float factor = t->p[i * t->p_row], *q = t->q;
        float *y = t->y + i * t->y_row;
#if POETC_LANES == 1
        POETC_UNROLL_4
        for (j = columns / 4; j > 0; j--) {
            POETC_QUAD(a);
            POETC_QUAD(b);
            POETC_LOAD_QUAD_A(a, q);
            b0 = a0 * factor, b1 = a1 * factor, b2 = a2 * factor, b3 = a3 * factor;
            POETC_STORE_QUAD_B(y, b);
        }
        j = columns % 4;
#else
        POETC_UNROLL_PAIR
        for (j = columns / POETC_LANES; j > 0; j--, q += POETC_LANES, y += POETC_LANES)
            poetc_vector_store(y, poetc_vector_load(q) * factor);
        j = columns % POETC_LANES;
#endif
        for (; j > 0; j--)
            *y++ = *q++ * factor;
    }
}

static void outer(const product *t)
{
    int32_t row = 0;
    if (t->depth == 1 && t->alpha == 1.0f && !t->bias && t->y_column == 1) {
        rank_one(t);
        return;
    }
    for (; row + 4 <= t->rows; row += 4)
        outer_4(t, row);
    for (; row < t->rows; row++)
        outer_1(t, row);
}

/* Lanes of a sum: few on Helium, which is not to have the bits of other targets. */
#if defined(POETC_HELIUM)
#define LANES 4
#define INNER_ROWS 1
#define INNER_COLUMNS 4
#define LOAD_AT(v, p, offset) POETC_LOAD_NEXT(v, p)
#else
#define LOAD_AT(v, p, offset) ((v) = poetc_vector_load((p) + (offset)))
#define LANES 16
#if POETC_LANES == 16
#define INNER_ROWS 4
#define INNER_COLUMNS 4
#elif POETC_LANES == 8 || defined(__aarch64__)
#define INNER_ROWS 2
#define INNER_COLUMNS 2
#elif POETC_LANES == 4
#define INNER_ROWS 1
#define INNER_COLUMNS 2
#else
#define INNER_ROWS 1
#define INNER_COLUMNS 1
#endif
#endif

static inline float sum_lanes(const float *lanes)
{
#if LANES == 4
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
#else
    return poetc_sum_lanes(lanes);
#endif
}

#if !POETC_FPU_M || defined(POETC_HELIUM)
POETC_INLINE void inner_block(const product *t, const int rows, const int columns, int32_t row, int32_t column)
{
    float total[INNER_ROWS][INNER_COLUMNS];
    const float *p[INNER_ROWS], *q[INNER_COLUMNS];
    const int32_t whole = t->depth - t->depth % LANES;
    int32_t k = 0;
    int i, j, v;
    POETC_UNROLL
    for (i = 0; i < rows; i++)
        p[i] = t->p + (row + i) * t->p_row;
    POETC_UNROLL
    for (j = 0; j < columns; j++)
        q[j] = t->q + (column + j) * t->q_step;
    POETC_UNROLL
    for (i = 0; i < rows; i++) {
        POETC_UNROLL
        for (j = 0; j < columns; j++)
            total[i][j] = 0.0f;
    }
    while (k < whole) {
        const int32_t end = whole - k > LANES * BLOCK ? k + LANES * BLOCK : whole;
        poetc_vector sum[INNER_ROWS][INNER_COLUMNS][LANES / POETC_LANES];
        POETC_UNROLL
        for (i = 0; i < rows; i++) {
            POETC_UNROLL
            for (j = 0; j < columns; j++) {
                POETC_UNROLL
                for (v = 0; v < LANES / POETC_LANES; v++)
                    sum[i][j][v] = (poetc_vector){0};
            }
        }
        for (; k < end; k += LANES) {
#if POETC_LANES == 1
            POETC_QUAD(a);
            POETC_QUAD(b);
            POETC_UNROLL
            for (v = 0; v < LANES; v += 4) {
                POETC_LOAD_QUAD_A(a, p[0]);
                POETC_LOAD_QUAD_B(b, q[0]);
                POETC_MULTIPLY_ADD_4(sum[0][0][v], sum[0][0][v + 1], sum[0][0][v + 2], sum[0][0][v + 3], a0, b0, a1, b1,
                                     a2, b2, a3, b3);
            }
#else
            POETC_UNROLL
            for (v = 0; v < LANES / POETC_LANES; v++) {
                poetc_vector factor[INNER_ROWS];
                POETC_UNROLL
                for (i = 0; i < rows; i++)
                    LOAD_AT(factor[i], p[i], k + v * POETC_LANES);
                POETC_UNROLL
                for (j = 0; j < columns; j++) {
                    poetc_vector other;
                    LOAD_AT(other, q[j], k + v * POETC_LANES);
                    POETC_UNROLL
                    for (i = 0; i < rows; i++)
                        POETC_ADD_PRODUCT(sum[i][j][v], factor[i], other);
                }
            }
#endif
        }
        POETC_UNROLL
        for (i = 0; i < rows; i++) {
            POETC_UNROLL
            for (j = 0; j < columns; j++) {
                float lanes[LANES];
                POETC_UNROLL
                for (v = 0; v < LANES / POETC_LANES; v++)
                    poetc_vector_store(lanes + v * POETC_LANES, sum[i][j][v]);
                total[i][j] += sum_lanes(lanes);
            }
        }
    }
    POETC_UNROLL
    for (i = 0; i < rows; i++) {
        POETC_UNROLL
        for (j = 0; j < columns; j++) {
            const float *a = t->p + (row + i) * t->p_row, *b = t->q + (column + j) * t->q_step;
            float sum = total[i][j];
            for (k = whole; k < t->depth; k++)
                sum = POETC_FMA(a[k], b[k], sum);
            put(t, row + i, column + j, sum);
        }
    }
}
#endif

#if defined(POETC_HELIUM)
/* A row of four columns at least, four at a time; the last four may overlap those before. Terms beyond the last whole
 * vector are left out by the hardware. */
POETC_APART void inner_row(const product *t, int32_t row)
{
    const ptrdiff_t step = t->q_step;
    const int is_plain = t->y_column == 1 && t->alpha == 1.0f && (!t->bias || t->bias_column == 1);
    float *const y = t->y + row * t->y_row;
    int32_t column = 0;
    for (;;) {
        const float *p = t->p + row * t->p_row, *q = t->q + column * step, *r = q + step, *u = r + step, *v = u + step;
        float32x4_t total = vdupq_n_f32(0.0f);
        float sums[16];
        int32_t left;
        for (left = t->depth; left > 0; left -= LANES * BLOCK) {
            float32x4_t a = vdupq_n_f32(0.0f), b = a, c = a, d = a;
            float32x4x4_t lanes;
            /* clang-format off */
            __asm__ volatile("dlstp.32 lr, %[n]\n"
                             "1:\tvldrw.u32 q0, [%[p]], #16\n\t"
                             "vldrw.u32 q1, [%[q]], #16\n\tvfma.f32 %q[a], q0, q1\n\tvldrw.u32 q1, [%[r]], #16\n\t"
                             "vfma.f32 %q[b], q0, q1\n\tvldrw.u32 q1, [%[u]], #16\n\tvfma.f32 %q[c], q0, q1\n\t"
                             "vldrw.u32 q1, [%[v]], #16\n\tvfma.f32 %q[d], q0, q1\n\t"
                             "letp lr, 1b"
                             : [a] "+w"(a), [b] "+w"(b), [c] "+w"(c), [d] "+w"(d), [p] "+r"(p), [q] "+r"(q), [r] "+r"(r), [u] "+r"(u),
                               [v] "+r"(v)
                             : [n] "r"(left > LANES * BLOCK ? LANES * BLOCK : left)
                             : "lr", "q0", "q1", "memory");
            /* clang-format on */
            vst1q_f32(sums, a), vst1q_f32(sums + 4, b), vst1q_f32(sums + 8, c), vst1q_f32(sums + 12, d);
            lanes = vld4q_f32(sums); /* the first lane of all columns, the second ... */
            total = vaddq_f32(total,
                              vaddq_f32(vaddq_f32(lanes.val[0], lanes.val[1]), vaddq_f32(lanes.val[2], lanes.val[3])));
        }
        if (is_plain) {
            if (t->bias)
                total = vaddq_f32(total, vld1q_f32(t->bias + row * t->bias_row + column));
            vst1q_f32(y + column, total);
        } else {
            vst1q_f32(sums, total);
            put_row(t, row, column, sums, 4);
        }
        if (column + 4 >= t->columns)
            return;
        column = column + 8 > t->columns ? t->columns - 4 : column + 4;
    }
}
#endif

static void inner(const product *t)
{
#if POETC_FPU_M && !defined(POETC_HELIUM)
    int32_t row;
    for (row = 0; row < t->rows; row++)
        inner_row(t, row);
#else
    int32_t row = 0, column;
#if INNER_ROWS > 1
    for (; row + INNER_ROWS <= t->rows; row += INNER_ROWS) {
        for (column = 0; column + INNER_COLUMNS <= t->columns; column += INNER_COLUMNS)
            inner_block(t, INNER_ROWS, INNER_COLUMNS, row, column);
        for (; column < t->columns; column++)
            inner_block(t, INNER_ROWS, 1, row, column);
    }
#endif
    for (; row < t->rows; row++) {
        column = 0;
#if defined(POETC_HELIUM)
        if (t->columns >= 4) {
            inner_row(t, row);
            continue;
        }
#elif INNER_COLUMNS > 1
        for (; column + INNER_COLUMNS <= t->columns; column += INNER_COLUMNS)
            inner_block(t, 1, INNER_COLUMNS, row, column);
#endif
        for (; column < t->columns; column++)
            inner_block(t, 1, 1, row, column);
    }
#endif
}

/* a[..., M, K] or its transpose, b[..., K, N] or its transpose, bias[N]? -> y[..., M, N]. The ints are M, N, K,
 * trans_a, trans_b, has_bias, batch axes, then for each of them extent, step in a, step in b (floats).
 */
int poetc_op_matmul(const poetc_call *call)
{
    const int32_t *ints = call->ints, m = ints[0], n = ints[1], k = ints[2], axes = ints[6];
    const int trans_a = ints[3], trans_b = ints[4], has_bias = ints[5];
    const float *a = poetc_in(call, 0), *b = poetc_in(call, 1), *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, has_bias ? 3 : 2);
    int32_t batches = 1, batch, axis;
    for (axis = 0; axis < axes; axis++)
        batches *= ints[7 + 3 * axis];
    for (batch = 0; batch < batches; batch++) {
        const float *p = a, *q = b;
        int32_t rest = batch;
        product t;
        for (axis = axes - 1; axis >= 0; axis--) {
            const int32_t *loop = ints + 7 + 3 * axis;
            p += (ptrdiff_t)(rest % loop[0]) * loop[1];
            q += (ptrdiff_t)(rest % loop[0]) * loop[2];
            rest /= loop[0];
        }
        t.rows = m, t.columns = n, t.depth = k, t.alpha = call->floats[0];
        t.p = p, t.p_row = trans_a ? 1 : k, t.p_k = trans_a ? m : 1;
        t.q = q, t.q_step = trans_b ? k : n;
        t.bias = bias, t.bias_row = 0, t.bias_column = 1;
        t.y = y + (ptrdiff_t)batch * m * n, t.y_row = n, t.y_column = 1;
        if (!trans_b) {
            outer(&t);
        } else if (!trans_a) {
            inner(&t);
        } else { /* the transposed result: op(b)' op(a)', where a is the factor that is contiguous */
            t.rows = n, t.columns = m;
            t.p = q, t.p_row = k, t.p_k = 1;
            t.q = p, t.q_step = m;
            t.bias_row = 1, t.bias_column = 0;
            t.y_row = 1, t.y_column = n;
            outer(&t);
        }
    }
    return POETC_OK;
}
