/* Weights moved by a product of few terms on Helium: w[M, N] -= lr a[K, M]' b[K, N].
 *
 * Layout: up to seven vectors of a row of b are in registers, and rows of w pass.
 * Order of sums: the terms of one element in sequence, each with a fused multiply-add. */
#ifndef POETC_DESCEND_HELIUM_H
#define POETC_DESCEND_HELIUM_H

#include "gemm/poetc_gemm.h"

#define RATES 128 /* rows whose -lr a is made before their weights move */

/* `rows` rows of w, `step` bytes apart, of some columns of b in registers: a load, a multiply-add and a store for four
 * weights. Four rows at a time. `last` holds the rest of the last four columns. */
static void descend_columns(float *w, int32_t step, const float *rates, const float *b, int32_t rows, int32_t vectors,
                            int32_t last)
{
#define MOVE(j, at, f) "vldrw.u32 q7, [%[w], #" at "]\n\tvfma.f32 q7, q" #j ", " f "\n\tvstrw.32 q7, [%[w], #" at "]\n\t"
#define MOVE_LAST(f) "vpsttt\n\tvldrwt.u32 q7, [%[w]]\n\tvfmat.f32 q7, q0, " f "\n\tvstrwt.32 q7, [%[w]]\n\t"
#define MOVE_2(f) MOVE(0, "0", f) MOVE(1, "16", f)
#define MOVE_4(f) MOVE_2(f) MOVE(2, "32", f) MOVE(3, "48", f)
#define MOVE_7(f) MOVE_4(f) MOVE(4, "64", f) MOVE(5, "80", f) MOVE(6, "96", f)
#define LOAD(j, at) "vldrw.u32 q" #j ", [%[b], #" at "]\n\t"
#define LOAD_2 LOAD(0, "0") LOAD(1, "16")
#define LOAD_4 LOAD_2 LOAD(2, "32") LOAD(3, "48")
#define LOAD_7 LOAD_4 LOAD(4, "64") LOAD(5, "80") LOAD(6, "96")
#define NEXT "add %[w], %[w], %[step]\n\t"
#define ROWS(load, move)                                                                                               \
    __asm__ volatile(load "lsr lr, %[rows], #2\n\twls lr, lr, 2f\n"                                                       \
                     "1:\tldmia %[rates]!, {r4, r5, r6, r8}\n\t" move("r4") NEXT move("r5") NEXT move("r6") NEXT move("r8") NEXT \
                     "le lr, 1b\n"                                                                                     \
                     "2:\tand lr, %[rows], #3\n\twls lr, lr, 4f\n3:\tldr r4, [%[rates]], #4\n\t" move("r4") NEXT "le lr, 3b\n4:"            \
                     : [w] "+r"(w), [rates] "+r"(rates)                                                                \
                     : [b] "r"(b), [step] "r"(step), [rows] "r"(rows), [last] "m"(last)                                \
                     : "lr", "r4", "r5", "r6", "r8", "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "memory")
    switch (vectors) {
    case 7: ROWS(LOAD_7, MOVE_7); break;
    case 4: ROWS(LOAD_4, MOVE_4); break;
    case 2: ROWS(LOAD_2, MOVE_2); break;
    default: ROWS("ldr r4, %[last]\n\tvctp.32 r4\n\tvpst\n\tvldrwt.u32 q0, [%[b]]\n\t", MOVE_LAST); break;
    }
#undef ROWS
#undef NEXT
#undef LOAD_7
#undef LOAD_4
#undef LOAD_2
#undef LOAD
#undef MOVE_7
#undef MOVE_4
#undef MOVE_2
#undef MOVE_LAST
#undef MOVE
}

/* One term, which is no sum: w += (-lr a) b. */
POETC_APART void poetc_descend_by_one(float *w, const float *a, const float *b, int32_t m, int32_t n, float lr)
{
    float rates[RATES];
    for (; m > 0; m -= RATES, a += RATES, w += (ptrdiff_t)RATES * n) {
        const int32_t rows = m < RATES ? m : RATES;
        int32_t i, column, vectors;
        for (i = 0; i < rows; i += 4) {
            const mve_pred16_t there = vctp32q((uint32_t)(rows - i));
            vstrwq_p_f32(rates + i, vmulq_n_f32(vldrwq_z_f32(a + i, there), -lr), there);
        }
        for (column = 0; column < n; column += 4 * vectors) {
            const int32_t left = n - column;
            vectors = left >= 28 ? 7 : left >= 16 ? 4 : left >= 8 ? 2 : 1;
            descend_columns(w + column, 4 * n, rates, b + column, rows, vectors, left);
        }
    }
}

/* How blocks of rows move by sums of a few terms. */
typedef struct {
    int32_t a_step, b_step; /* bytes from term to term, less those that are read of a */
    const float *a;         /* of the first term */
    int32_t next_b, next_w; /* bytes from the end of a block to the next one's beginning */
    int32_t row;            /* bytes from row to row of w */
    int32_t depth, there;   /* terms; which of the four columns move: four bits each */
    float lr;
} few_terms;

/* One, two, four or six rows (a constant) of four columns, `blocks` times. */
POETC_INLINE void descend_blocks(const few_terms *t, const int rows, const float *b, float *w, int32_t blocks)
{
    const float *a = t->a;
    poetc_vector sum[6], v;
#define ZERO(i) "vmov.i32 %q[s" #i "], #0\n\t"
#define MOVE(i)                                                                                                        \
    "vldrw.u32 %q[v], [%[w]]\n\tvmul.f32 %q[s" #i "], %q[s" #i "], r4\n\tvsub.f32 %q[v], %q[v], %q[s" #i "]\n\t"           \
    "vpst\n\tvstrwt.32 %q[v], [%[w]]\n\t"
#define THEN(i) "add %[w], %[w], r5\n\t" MOVE(i)
#define ZERO_1 ZERO(0)
#define ZERO_2 ZERO_1 ZERO(1)
#define ZERO_4 ZERO_2 ZERO(2) ZERO(3)
#define ZERO_6 ZERO_4 ZERO(4) ZERO(5)
#define MOVE_1 "vpstttt\n\tvldrwt.u32 %q[v], [%[w]]\n\tvmult.f32 %q[s0], %q[s0], r4\n\tvsubt.f32 %q[v], %q[v], %q[s0]\n\tvstrwt.32 %q[v], [%[w]]\n\t"
#define MOVE_2 MOVE(0) THEN(1)
#define MOVE_4 MOVE_2 THEN(2) THEN(3)
#define MOVE_6 MOVE_4 THEN(4) THEN(5)
#define OUT_1 [s0] "=&w"(sum[0])
#define OUT_2 OUT_1, [s1] "=&w"(sum[1])
#define OUT_4 OUT_2, [s2] "=&w"(sum[2]), [s3] "=&w"(sum[3])
#define OUT_6 OUT_4, [s4] "=&w"(sum[4]), [s5] "=&w"(sum[5])
#define BLOCKS(n, load)                                                                                                \
    __asm__ volatile("ldr r4, %[there]\n\tvmsr p0, r4\n1:\tldr lr, %[depth]\n\t" ZERO_##n                               \
                     "2:\t" POETC_STEP_##n(load "%q[v], [%[b]]\n\t", "a")                                               \
                     "add %[a], %[a], %[a_step]\n\tadd %[b], %[b], %[b_step]\n\tle lr, 2b\n\t"                          \
                     "ldr r4, %[lr]\n\tldr r5, %[row]\n\t" MOVE_##n                                                    \
                     "ldr r4, %[next_b]\n\tldr r5, %[next_w]\n\tldr %[a], %[first]\n\tadd %[b], %[b], r4\n\tadd %[w], %[w], r5\n\t" \
                     "subs %[blocks], #1\n\tbne 1b"                                                                    \
                     : OUT_##n, [v] "=&w"(v), [a] "+&r"(a), [b] "+&r"(b), [w] "+&r"(w), [blocks] "+&r"(blocks)         \
                     : [a_step] "r"(t->a_step), [b_step] "r"(t->b_step), [first] "m"(t->a), [next_b] "m"(t->next_b),   \
                       [next_w] "m"(t->next_w), [row] "m"(t->row), [depth] "m"(t->depth), [there] "m"(t->there), [lr] "m"(t->lr) \
                     : "lr", "cc", POETC_FACTORS, "memory")
    if (rows == 6)
        BLOCKS(6, "vldrw.u32 ");
    else if (rows == 4)
        BLOCKS(4, "vldrw.u32 ");
    else if (rows == 2)
        BLOCKS(2, "vldrw.u32 ");
    else
        BLOCKS(1, "vpst\n\tvldrwt.u32 ");
#undef BLOCKS
#undef OUT_6
#undef OUT_4
#undef OUT_2
#undef OUT_1
#undef MOVE_6
#undef MOVE_4
#undef MOVE_2
#undef MOVE_1
#undef ZERO_6
#undef ZERO_4
#undef ZERO_2
#undef ZERO_1
#undef THEN
#undef MOVE
#undef ZERO
}

/* Sums of a few terms, by each of which its weight moves at once. The rest of a row is the end of its last four
 * columns, or a row of fewer, one at a time. */
POETC_APART void poetc_descend_by_few(float *w, const float *a, const float *b, int32_t m, int32_t n, int32_t depth,
                                      float lr)
{
    few_terms t = {0, 4 * n, a, 16 - 4 * n * depth, 0, 4 * n, depth, 0, lr};
    int32_t row, rows;
    for (row = 0; row < m && depth > 0; row += rows, t.a += rows, w += (ptrdiff_t)rows * n) {
        const float *from = b;
        float *to = w;
        int32_t blocks = n / 4;
        rows = n < 4 ? 1 : m - row >= 6 ? 6 : m - row >= 4 ? 4 : m - row >= 2 ? 2 : 1;
        t.a_step = 4 * (m - rows), t.next_w = 16 - 4 * n * (rows - 1), t.there = 0xffff;
        if (n < 4)
            blocks = 1, t.there >>= 16 - 4 * n;
        for (;;) {
            switch (rows) {
            case 6: descend_blocks(&t, 6, from, to, blocks); break;
            case 4: descend_blocks(&t, 4, from, to, blocks); break;
            case 2: descend_blocks(&t, 2, from, to, blocks); break;
            default: descend_blocks(&t, 1, from, to, blocks); break;
            }
            if (t.there != 0xffff || n % 4 == 0)
                break;
            t.there = 0xffff << (16 - 4 * (n % 4)) & 0xffff, from = b + n - 4, to = w + n - 4, blocks = 1;
        }
    }
}

#endif
