/* The gradient of weights of three columns by scalars in the FPU of Cortex-M, in assembly: three taps of four outputs.
 *
 * Layout: a strip holds the rows of a channel's plane with zeros around them; gradients of outputs are read where they
 * are. Ten floats of a row are three taps of eight pixels.
 * Order of sums: pixels in sequence within a block of terms, blocks in sequence, as in the packing kernel. */
#ifndef POETC_DIRECT_TAPS_FPU_H
#define POETC_DIRECT_TAPS_FPU_H

#include <stddef.h>

typedef struct {
    const float *zeros;  /* twelve */
    float *total;        /* twelve: the sums of blocks of terms, output by output */
    int32_t rows, parts; /* of a block of terms; eight pixels each, of a row */
} taps_task;

/* At these places. */
typedef char taps_task_places
    [offsetof(taps_task, total) == 4 && offsetof(taps_task, rows) == 8 && offsetof(taps_task, parts) == 12 ? 1 : -1];

/* Three sums += x, y and z times g. */
#ifdef POETC_CHAINED
#define MLA(sum, x, g) POETC_VMLA " s" #sum ", s" #x ", s" #g "\n\t"
#define PIXEL(a, b, c, x, y, z, g) MLA(a, x, g) MLA(b, y, g) MLA(c, z, g)
#else
#define MUL(product, x, g) "vmul.f32 s" #product ", s" #x ", s" #g "\n\t"
#define ADD_PRODUCT(sum, x) "vadd.f32 s" #sum ", s" #sum ", s" #x "\n\t"
#define PIXEL(a, b, c, x, y, z, g)                                                                                     \
    MUL(26, x, g) MUL(27, y, g) MUL(28, z, g) ADD_PRODUCT(a, 26) ADD_PRODUCT(b, 27) ADD_PRODUCT(c, 28)
#endif
#define LOAD(x, from, place) "vldr s" #x ", [%[" #from "], #" #place "]\n\t"
#define LOAD_4(w, x, y, z, from, p, q, r, s) LOAD(w, from, p) LOAD(x, from, q) LOAD(y, from, r) LOAD(z, from, s)
/* Four pixels, whose six floats are u to z, of one output: its gradients are in s`g` and behind. */
#define FOUR(a, b, c, u, v, w, x, y, z, g, h, i, j)                                                                    \
    PIXEL(a, b, c, u, v, w, g) PIXEL(a, b, c, v, w, x, h) PIXEL(a, b, c, w, x, y, i) PIXEL(a, b, c, x, y, z, j)
#define FOUR_OUTPUTS(u, v, w, x, y, z, p, q, r, s)                                                                     \
    LOAD_4(18, 19, 20, 21, g0, p, q, r, s) LOAD_4(22, 23, 24, 25, g1, p, q, r, s)                                      \
    FOUR(0, 1, 2, u, v, w, x, y, z, 18, 19, 20, 21) FOUR(3, 4, 5, u, v, w, x, y, z, 22, 23, 24, 25)                    \
    LOAD_4(18, 19, 20, 21, g2, p, q, r, s) LOAD_4(22, 23, 24, 25, g3, p, q, r, s)                                      \
    FOUR(6, 7, 8, u, v, w, x, y, z, 18, 19, 20, 21) FOUR(9, 10, 11, u, v, w, x, y, z, 22, 23, 24, 25)
#define ADD_OLD(sum, x) "vadd.f32 s" #sum ", s" #x ", s" #sum "\n\t"

#pragma GCC diagnostic push /* C99 promises strings of 4,095 characters; compilers with this assembly take more */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* All `rows` rows: the windows of the first row begin at `x`, the first output's gradients at `g0`, the others `pixels`
 * floats apart. `jump`: bytes from the end of a row to the next one in x. */
POETC_APART void direct_taps(const taps_task *t, const float *x, const float *g0, int32_t pixels, int32_t rows,
                             int32_t jump)
{
    const float *g1 = g0 + pixels, *g2 = g1 + pixels, *g3 = g2 + pixels;
    int32_t n, m, f;
    /* clang-format off */
    __asm__ volatile("ldr %[m], [%[t]]\n\tvldmia %[m], {s0-s11}\n\tmovs %[f], #0\n"
                     "1:\tldr %[m], [%[t], #8]\n\tcmp %[m], %[rows]\n\tit gt\n\tmovgt %[m], %[rows]\n\tsubs %[rows], %[rows], %[m]\n"
                     "2:\tldr %[n], [%[t], #12]\n"
                     "3:\t" LOAD_4(12, 13, 14, 15, x, 0, 4, 8, 12) LOAD(16, x, 16) LOAD(17, x, 20)
                     FOUR_OUTPUTS(12, 13, 14, 15, 16, 17, 0, 4, 8, 12) LOAD_4(12, 13, 14, 15, x, 24, 28, 32, 36)
                     FOUR_OUTPUTS(16, 17, 12, 13, 14, 15, 16, 20, 24, 28) "add %[x], #32\n\tadd %[g0], #32\n\tadd %[g1], #32\n\t"
                     "add %[g2], #32\n\tadd %[g3], #32\n\tsubs %[n], #1\n\tbne 3b\n\t"
                     "add %[x], %[x], %[jump]\n\tsubs %[m], #1\n\tbne 2b\n\t"
                     "cmp %[f], #0\n\tldr %[f], [%[t], #4]\n\tbeq 4f\n\tvldmia %[f], {s12-s23}\n\t"
                     ADD_OLD(0, 12) ADD_OLD(1, 13) ADD_OLD(2, 14) ADD_OLD(3, 15) ADD_OLD(4, 16) ADD_OLD(5, 17)
                     ADD_OLD(6, 18) ADD_OLD(7, 19) ADD_OLD(8, 20) ADD_OLD(9, 21) ADD_OLD(10, 22) ADD_OLD(11, 23)
                     "4:\tvstmia %[f], {s0-s11}\n\tcmp %[rows], #0\n\tbeq 5f\n\tldr %[m], [%[t]]\n\tvldmia %[m], {s0-s11}\n\tb 1b\n5:"
                     : [x] "+&r"(x), [g0] "+&r"(g0), [g1] "+&r"(g1), [g2] "+&r"(g2), [g3] "+&r"(g3), [n] "=&r"(n),
                       [m] "=&r"(m), [f] "=&r"(f), [rows] "+&r"(rows)
                     : [t] "r"(t), [jump] "r"(jump)
                     : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12",
                       "s13", "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26",
                       "s27", "s28");
    /* clang-format on */
}

#pragma GCC diagnostic pop

#undef ADD_OLD
#undef FOUR_OUTPUTS
#undef FOUR
#undef LOAD_4
#undef LOAD
#undef PIXEL
#undef ADD_PRODUCT
#undef MUL
#undef MLA

#endif
