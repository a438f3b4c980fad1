/* Weights moved against a gradient that is never stored whole: w -= lr g (poetc/ops/sgd_of.py).
 *
 * Layout: w is [M, N], with g = a' b from a[K, M] and b[K, N]; or w is a table of slices that indices name. A strip or
 * a slice of g is in the workspace at a time, or nothing.
 * Order of sums: an element of g is made by the operations of the gradient's own kernel in their order. The step is
 * that of optimizer.c. */
#include "gemm/poetc_gemm.h"
#include "operators/poetc_descend.h"

#if defined(POETC_HELIUM)
#include "gemm/poetc_descend_helium.h"
#endif

/* to = g, or to += g: a sum begins with zero */
static void add_slice(float *to, const float *g, int begin, int32_t count)
{
    int32_t i;
    for (i = 0; i < count; i++)
        to[i] = (begin ? 0.0f : to[i]) + g[i];
}

/* The index from the front, or -1 if it is outside. */
static int32_t wrap(int32_t index, int32_t length)
{
    if (index < 0)
        index += length;
    return index < length && index >= 0 ? index : -1;
}

/* Where the slice that indices[k] names is named next, or `count`. */
static int32_t next_use(const int32_t *indices, int32_t k, int32_t count, int32_t length)
{
    const int32_t at = wrap(indices[k], length);
    for (k++; k < count && indices[k] != at && indices[k] != at - length; k++)
        ;
    return k;
}

/* w, indices, gy, lr -> w. ints: length, elements of a slice, number of indices. Workspace: a slice. Slices that no
 * index names have gradient zero and stay as they are. */
int poetc_op_gather_grad_sgd(const poetc_call *call);
int poetc_op_gather_grad_sgd(const poetc_call *call)
{
    const int32_t length = call->ints[0], inner = call->ints[1], count = call->ints[2];
    const int32_t *indices = poetc_in(call, 1);
    const float *gy = poetc_in(call, 2), lr = *(const float *)poetc_in(call, 3);
    float *w = poetc_out(call, 4), *sum = poetc_out(call, 5);
    int32_t k, other;
    for (k = 0; k < count; k++) /* all of them before anything is written: state is old or new, never a mixture */
        if (wrap(indices[k], length) < 0)
            return POETC_ERANGE;
    for (k = 0; k < inner; k++)
        sum[k] = 0.0f;
    for (k = 0; k < count; k++) {
        const int32_t at = wrap(indices[k], length);
        for (other = 0; other < k && indices[other] != at && indices[other] != at - length; other++)
            ;
        if (other < k)
            continue; /* done where it was named first */
        for (other = k; other < count; other = next_use(indices, other, count, length))
            add_slice(sum, gy + (ptrdiff_t)other * inner, other == k, inner);
        poetc_descend(w + (ptrdiff_t)at * inner, sum, lr, inner);
    }
    return POETC_OK;
}

#if !defined(POETC_HELIUM)
/* A row of w[.., N] against a column of a, `m` apart, times b[depth, N]. */
static void descend_row(float *w, const float *a, ptrdiff_t m, const float *b, int32_t n, int32_t depth, float lr)
{
    int32_t j = 0, k;
#if POETC_LANES == 1
    for (; j + 4 <= n; j += 4) {
        const float *from = b + j, *old = w;
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
        POETC_QUAD(p);
        POETC_QUAD(q);
        for (k = 0; k < depth; k++, from += n - 4) {
            const float factor = a[k * m];
            POETC_LOAD_QUAD_B(q, from);
            POETC_MULTIPLY_ADD_4(s0, s1, s2, s3, q0, factor, q1, factor, q2, factor, q3, factor);
        }
        POETC_LOAD_QUAD_A(p, old);
        POETC_MULTIPLY_SUBTRACT_4(p0, p1, p2, p3, s0, lr, s1, lr, s2, lr, s3, lr);
        POETC_STORE_QUAD_A(w, p);
    }
#else
    for (; j + POETC_LANES <= n; j += POETC_LANES, w += POETC_LANES) {
        const float *from = b + j;
        poetc_vector sum = {0}, v = poetc_vector_load(w);
        for (k = 0; k < depth; k++, from += n)
            POETC_ADD_SCALED(sum, poetc_vector_load(from), a[k * m]);
        POETC_SUBTRACT_SCALED(v, sum, lr);
        poetc_vector_store(w, v);
    }
#endif
    for (; j < n; j++, w++) {
        float sum = 0.0f;
        for (k = 0; k < depth; k++)
            POETC_MULTIPLY_ADD(sum, b[(ptrdiff_t)k * n + j], a[k * m]);
        POETC_MULTIPLY_SUBTRACT(*w, sum, lr);
    }
}

#endif

#if POETC_FPU_M && !defined(POETC_HELIUM)
/* For the assembly below, which has few registers left: factors of four rows; columns in twelves, fours and ones. */
typedef struct {
    const float *factors;
    int32_t twelves, quads, ones;
} rows_by_one;

/* At these places. */
typedef char rows_by_one_places[offsetof(rows_by_one, twelves) == 4 && offsetof(rows_by_one, quads) == 8 &&
                                        offsetof(rows_by_one, ones) == 12
                                    ? 1
                                    : -1];

/* Four rows of w at a time: `factors` times a row b, which is loaded once for all four. Columns go in twelves, then in
 * fours, then one by one. */
static void descend_fours_by_one(float *w, const float *factors, const float *b, int32_t fours, int32_t n, float lr)
{
    rows_by_one t = {factors, n / 12, n % 12 / 4, n % 4};
    float *x, *y, *z;
    int32_t left;
#if defined(POETC_FUSED)
#define MOVE(f, b, c, w, x)                                                                                            \
    "vmul.f32 s24, s" #b ", " f "\n\tvmul.f32 s25, s" #c ", " f "\n\tvfms.f32 s" #w ", s24, %[lr]\n\tvfms.f32 s" #x ", s25, %[lr]\n\t"
#else
#define MOVE(f, b, c, w, x)                                                                                            \
    "vmul.f32 s24, s" #b ", " f "\n\tvmul.f32 s25, s" #c ", " f "\n\tvmul.f32 s24, s24, %[lr]\n\tvmul.f32 s25, s25, %[lr]\n\t" \
    "vsub.f32 s" #w ", s" #w ", s24\n\tvsub.f32 s" #x ", s" #x ", s25\n\t"
#endif
#define FOUR(f) MOVE(f, 0, 1, 12, 13) MOVE(f, 2, 3, 14, 15)
#define TWELVE(f) FOUR(f) MOVE(f, 4, 5, 16, 17) MOVE(f, 6, 7, 18, 19) MOVE(f, 8, 9, 20, 21) MOVE(f, 10, 11, 22, 23)
#define ONE(f) "vmul.f32 s24, s0, " f "\n\t" POETC_VMLS " s12, s24, %[lr]\n\t"
#define ROW(w, f, last, move) "vldmia %[" w "], {s12" last "}\n\t" move(f) "vstmia %[" w "]!, {s12" last "}\n\t"
#define COLUMNS(count, b_last, last, move, loop, end)                                                                  \
    "ldr %[left], [%[t], #" count "]\n\tcmp %[left], #0\n\tbeq " end "f\n"                                                                     \
    loop ":\tvldmia %[b]!, {s0" b_last "}\n\t" ROW("w", "s26", last, move) ROW("x", "s27", last, move)                 \
    ROW("y", "s28", last, move) ROW("z", "s29", last, move) "subs %[left], #1\n\tbne " loop "b\n" end ":\t"
    for (; fours > 0; fours--, t.factors += 4, w = z) {
        const float *from = b;
        x = w + n, y = x + n, z = y + n;
        /* clang-format off */
        __asm__ volatile("ldr %[left], [%[t]]\n\tvldmia %[left], {s26-s29}\n\t"
                         COLUMNS("4", "-s11", "-s23", TWELVE, "1", "2")
                         COLUMNS("8", "-s3", "-s15", FOUR, "3", "4")
                         COLUMNS("12", "", "", ONE, "5", "6")
                         : [w] "+r"(w), [x] "+r"(x), [y] "+r"(y), [z] "+r"(z), [b] "+r"(from), [left] "=&r"(left)
                         : [t] "r"(&t), [lr] "t"(lr)
                         : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13",
                           "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27",
                           "s28", "s29");
        /* clang-format on */
    }
#undef COLUMNS
#undef ROW
#undef ONE
#undef TWELVE
#undef FOUR
#undef MOVE
}
#endif

/* The same for one term, which is no sum: nothing is added to zero, as in matmul.c. */
#if !defined(POETC_HELIUM)
static void descend_row_by_one(float *w, float factor, const float *b, int32_t n, float lr)
{
#if POETC_LANES == 1
    int32_t j;
    POETC_UNROLL_4
    for (j = n / 4; j > 0; j--) {
        const float *old = w;
        POETC_QUAD(p);
        POETC_QUAD(q);
        POETC_LOAD_QUAD_B(q, b);
        POETC_LOAD_QUAD_A(p, old);
        q0 *= factor, q1 *= factor, q2 *= factor, q3 *= factor;
        POETC_MULTIPLY_SUBTRACT_4(p0, p1, p2, p3, q0, lr, q1, lr, q2, lr, q3, lr);
        POETC_STORE_QUAD_A(w, p);
    }
    n %= 4;
#else
    for (; n >= POETC_LANES; n -= POETC_LANES, w += POETC_LANES, b += POETC_LANES) {
        const poetc_vector product = poetc_vector_load(b) * factor;
        poetc_vector_store(w, POETC_FMSV(product, lr, poetc_vector_load(w)));
    }
#endif
    for (; n > 0; n--, w++, b++) {
        const float product = *b * factor;
        POETC_MULTIPLY_SUBTRACT(*w, product, lr);
    }
}
#endif

/* w[M,N], a[K,M], b[K,N], lr -> w - lr a' b. ints: M, N, K, where K is at most the terms of one block of matmul.c. */
int poetc_op_matmul_sgd(const poetc_call *call);
int poetc_op_matmul_sgd(const poetc_call *call)
{
    const int32_t m = call->ints[0], n = call->ints[1];
    const float *a = poetc_in(call, 1), *b = poetc_in(call, 2), lr = *(const float *)poetc_in(call, 3);
    float *w = poetc_out(call, 4);
    int32_t row;
    POETC_THREADED(poetc_op_matmul_sgd, call, (int64_t)m * n * (8 + call->ints[2]), 0);
#if defined(POETC_HELIUM)
    if (call->ints[2] == 1)
        poetc_descend_by_one(w, a, b, m, n, lr);
    else
        poetc_descend_by_few(w, a, b, m, n, call->ints[2], lr);
    (void)row;
    return POETC_OK;
#else
    for (row = 0; row < m; row++, w += n) {
        POETC_SKIP(call->share, row, m, )
#if POETC_FPU_M && !defined(POETC_HELIUM)
        if (call->ints[2] == 1 && row + 4 <= m) {
            const int32_t fours = (m - row) / 4;
            descend_fours_by_one(w, a + row, b, fours, n, lr);
            row += 4 * fours - 1, w += (ptrdiff_t)(4 * fours - 1) * n;
            continue;
        }
#endif
        if (call->ints[2] == 1)
            descend_row_by_one(w, a[row], b, n, lr);
        else
            descend_row(w, a + row, m, b, n, call->ints[2], lr);
    }
    return POETC_OK;
#endif
}

#define STRIP_ROWS 48

/* The same by packed operands, in strips of STRIP_ROWS results. After the sizes come the floats of a block of terms of
 * the workspace, and the terms of a block. The last ints are the columns of a strip, and the floats from a term of a to
 * the next. */
int poetc_op_matmul_sgd_packed(const poetc_call *call);
int poetc_op_matmul_sgd_packed(const poetc_call *call)
{
    const int32_t *ints = call->ints, m = ints[0], n = ints[1], k = ints[2], size = ints[3], depth = ints[4];
    const int32_t width = ints[5], a_step = ints[6], blocks = (k + depth - 1) / depth;
    const float *a = poetc_in(call, 1), *b = poetc_in(call, 2), lr = *(const float *)poetc_in(call, 3);
    float *w = poetc_out(call, 4), *workspace = POETC_WORKSPACE(call, 5), *strip = workspace + (ptrdiff_t)blocks * size;
    int32_t column, row, i, block;
    poetc_gemm g;
    POETC_THREADED(poetc_op_matmul_sgd_packed, call, (int64_t)m * n * k, blocks * size + STRIP_ROWS * width);
    POETC_SPLIT(split, call->share, 1, m, n)
    POETC_NOTHING_AHEAD(g);
    POETC_ALL_ROWS(g);
    g.a_row = 1, g.a_k = a_step, g.row_bias = NULL, g.column_bias = NULL, g.terms = depth, g.a_block = 0;
    g.y = strip, g.y_row = width, g.column = 0, g.segment = width, g.segment_step = 0;
    strip[STRIP_ROWS * width - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    for (column = POETC_BEGIN(split.columns, n, POETC_GEMM_COLUMNS);
         column < POETC_END(split.columns, n, POETC_GEMM_COLUMNS); column += width) {
        g.columns = poetc_min(width, POETC_END(split.columns, n, POETC_GEMM_COLUMNS) - column);
        for (block = 0; block < blocks; block++) {
            const poetc_gemm_space space =
                poetc_gemm_carve(workspace + (ptrdiff_t)block * size, size, depth, 1, width, 1);
            poetc_gemm_pack(&space, b + (ptrdiff_t)block * depth * n + column, n, poetc_min(depth, k - block * depth),
                            g.columns);
        }
#if defined(POETC_AT_ONCE)
        if (blocks == 1) { /* sums that are whole move the weights at once */
            const poetc_gemm_space space = poetc_gemm_carve(workspace, size, depth, 1, width, 1);
            g.depth = k, g.a = a, g.rows = m, g.accumulate = 0;
            g.y = w + column, g.y_row = n, g.segment = g.columns;
            POETC_SET_RATE(g, &lr);
            POETC_SPLIT_ROWS(g, split);
            poetc_gemm_run(&g, &space);
            continue;
        }
#endif
        for (row = POETC_BEGIN(split.rows, m, POETC_GEMM_PART); row < POETC_END(split.rows, m, POETC_GEMM_PART);
             row += STRIP_ROWS) {
            g.rows = poetc_min(STRIP_ROWS, POETC_END(split.rows, m, POETC_GEMM_PART) - row);
            for (block = 0; block < blocks; block++) {
                const poetc_gemm_space space =
                    poetc_gemm_carve(workspace + (ptrdiff_t)block * size, size, depth, 1, width, 1);
                g.depth = poetc_min(depth, k - block * depth);
                g.a = a + (ptrdiff_t)block * depth * a_step + row, g.accumulate = block > 0;
                i = g.rows * block / blocks; /* the weights that the strip moves, a part with every block */
                POETC_SET_AHEAD(g, w + (ptrdiff_t)(row + i) * n + column, n, g.rows * (block + 1) / blocks - i,
                                g.columns);
                poetc_gemm_run(&g, &space);
            }
            for (i = 0; i < g.rows; i++)
                poetc_descend(w + (ptrdiff_t)(row + i) * n + column, strip + i * width, lr, g.columns);
        }
    }
    return POETC_OK;
}
