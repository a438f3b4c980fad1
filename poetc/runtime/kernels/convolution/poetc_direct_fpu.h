/* Convolution of 3 x 3 by scalars in the FPU of Cortex-M, in assembly: four outputs of four pixels side by side.
 *
 * Layout: a strip holds rows of each channel's plane with zeros around them. Six floats of a row are three taps of four
 * pixels. Weights are read where they are.
 * Order of sums: terms in sequence within a block of terms, blocks in sequence, as in the packing kernel. */
#ifndef POETC_DIRECT_FPU_H
#define POETC_DIRECT_FPU_H

#include <stddef.h>

typedef struct {
    const float *start; /* sixteen first values of sums */
    const float *zeros; /* sixteen */
    float *total;       /* sixteen: the sums of blocks of terms */
    float *y;
    int32_t y_row; /* bytes */
    const int32_t
        *runs;     /* of each block of terms: whole channels; terms of the channel that it ends in, or -1: the end */
    int32_t begun; /* not 0: a block of terms is in `total`. No register is left for it with all compilers' options */
} direct_task;

/* At these places. */
typedef char direct_task_places[offsetof(direct_task, zeros) == 4 && offsetof(direct_task, total) == 8 &&
                                        offsetof(direct_task, y) == 12 && offsetof(direct_task, y_row) == 16 &&
                                        offsetof(direct_task, begun) == 24
                                    ? 1
                                    : -1];

#ifdef POETC_CHAINED
#define MLA(sum, x, w) POETC_VMLA " s" #sum ", s" #x ", s" #w "\n\t"
#define BY_TWO(a, b, x, y, w) MLA(a, x, w) MLA(b, y, w)
#else
#define MUL(product, x, w) "vmul.f32 s" #product ", s" #x ", s" #w "\n\t"
#define ADD_PRODUCT(sum, x) "vadd.f32 s" #sum ", s" #sum ", s" #x "\n\t"
#define BY_TWO(a, b, x, y, w) MUL(30, x, w) MUL(31, y, w) ADD_PRODUCT(a, 30) ADD_PRODUCT(b, 31)
#endif
#define BY_FOUR(a, b, c, d, p, q, r, s, w) BY_TWO(a, b, p, q, w) BY_TWO(c, d, r, s, w)
/* Three taps of a line of four pixels by the weights w to y of an output, whose sums are a to d. */
#define TAPS(a, b, c, d, w, x, y)                                                                                      \
    BY_FOUR(a, b, c, d, 16, 17, 18, 19, w) BY_FOUR(a, b, c, d, 17, 18, 19, 20, x)                                      \
    BY_FOUR(a, b, c, d, 18, 19, 20, 21, y)
#define LOAD(x, from, place) "vldr s" #x ", [%[" #from "], #" #place "]\n\t"
#define LOAD_3(x, y, z, from, p, q, r) LOAD(x, from, p) LOAD(y, from, q) LOAD(z, from, r)
#define PIXELS LOAD_3(16, 17, 18, b, 0, 4, 8) LOAD_3(19, 20, 21, b, 12, 16, 20)
/* Loads side by side take a cycle each. */
#define LINE(p, q, r)                                                                                                  \
    PIXELS LOAD_3(22, 23, 24, a, p, q, r) LOAD_3(25, 26, 27, c, p, q, r) TAPS(0, 1, 2, 3, 22, 23, 24)                  \
        TAPS(4, 5, 6, 7, 25, 26, 27) LOAD_3(22, 23, 24, d, p, q, r) LOAD_3(25, 26, 27, e, p, q, r)                     \
            TAPS(8, 9, 10, 11, 22, 23, 24) TAPS(12, 13, 14, 15, 25, 26, 27)
#define MOVE(by) "add %[a], " by "\n\tadd %[c], " by "\n\tadd %[d], " by "\n\tadd %[e], " by "\n\t"
#define CUT_TAP(place, p, q, r, s)                                                                                     \
    LOAD(22, a, place) LOAD(23, c, place) LOAD(24, d, place) LOAD(25, e, place) BY_FOUR(0, 1, 2, 3, p, q, r, s, 22)    \
        BY_FOUR(4, 5, 6, 7, p, q, r, s, 23) BY_FOUR(8, 9, 10, 11, p, q, r, s, 24)                                      \
            BY_FOUR(12, 13, 14, 15, p, q, r, s, 25) "subs %[m], #1\n\tit eq\n\tbleq 9f\n\t"
#define ADD_OLD(sum, x) "vadd.f32 s" #sum ", s" #x ", s" #sum "\n\t"
#define ADD_EIGHT(a, b, c, d, e, f, g, h)                                                                              \
    "vldmia %[m]!, {s22-s29}\n\t" ADD_OLD(a, 22) ADD_OLD(b, 23) ADD_OLD(c, 24) ADD_OLD(d, 25) ADD_OLD(e, 26)           \
        ADD_OLD(f, 27) ADD_OLD(g, 28) ADD_OLD(h, 29)
#define ADD_TOTAL ADD_EIGHT(0, 1, 2, 3, 4, 5, 6, 7) ADD_EIGHT(8, 9, 10, 11, 12, 13, 14, 15)

#pragma GCC diagnostic push /* C99 promises strings of 4,095 characters; compilers with this assembly take more */
#pragma GCC diagnostic ignored "-Woverlength-strings"

#ifdef __clang__
#define FOR_SPEED
#else
#define FOR_SPEED __attribute__((optimize("O2"))) /* with -Os, GCC finds no registers for the operands */
#endif

/* Tiles of 4 x 4 results along a row of `width` pixels, whose windows begin at `from`. The weights of an output are
 * `terms` floats from `w` on. `line` and `jump` are bytes from a line to the next, and from a channel's last line to
 * the next channel. The last tile overlaps the one before. */
FOR_SPEED POETC_APART void direct_row(direct_task *t, const float *from, const float *w, int32_t terms, float *to,
                                      int32_t width, int32_t line, int32_t jump)
{
    int32_t at;
    for (at = 0; at < width; at += 4) {
        const int32_t left = poetc_min(at, width - 4);
        const float *a = w, *c = a + terms, *d = c + terms, *e = d + terms, *b = from + left;
        const int32_t *runs = t->runs;
        int32_t n, m;
        t->y = to + left, t->begun = 0;
        /* clang-format off */
        __asm__ volatile("ldr %[n], [%[t]]\n\tvldmia %[n], {s0-s15}\n"
                         "1:\tldrd %[n], %[m], [%[runs]], #8\n\tcmp %[n], #0\n\tbeq 3f\n"
                         "2:\t" LINE(0, 4, 8) "add %[b], %[b], %[line]\n\t" LINE(12, 16, 20) "add %[b], %[b], %[line]\n\t"
                         LINE(24, 28, 32) "add %[b], %[b], %[jump]\n\tsubs %[n], #1\n\t" MOVE("#36") "bne 2b\n"
                         "3:\tcmp %[m], #0\n\tblt 7f\n\tbne 4f\n\tbl 9f\n\tb 1b\n"
                         "4:\tmovs %[n], #3\n" /* the channel in which a block of terms ends */
                         "5:\t" PIXELS CUT_TAP(0, 16, 17, 18, 19) CUT_TAP(4, 17, 18, 19, 20) CUT_TAP(8, 18, 19, 20, 21)
                         MOVE("#12") "subs %[n], #1\n\tbeq 6f\n\tadd %[b], %[b], %[line]\n\tb 5b\n"
                         "6:\tadd %[b], %[b], %[jump]\n\tb 1b\n"
                         "9:\tldr %[m], [%[t], #24]\n\tcmp %[m], #0\n\tldr %[m], [%[t], #8]\n\tbeq 10f\n\t" ADD_TOTAL "sub %[m], #64\n"
                         "10:\tvstmia %[m], {s0-s15}\n\tstr %[m], [%[t], #24]\n\tldr %[m], [%[t], #4]\n\tvldmia %[m], {s0-s15}\n\tmovs %[m], #0\n\tbx lr\n"
                         "7:\tldr %[m], [%[t], #24]\n\tcmp %[m], #0\n\tbeq 8f\n\tldr %[m], [%[t], #8]\n\t" ADD_TOTAL
                         "8:\tldrd %[n], %[m], [%[t], #12]\n\tvstmia %[n], {s0-s3}\n\tadd %[n], %[n], %[m]\n\tvstmia %[n], {s4-s7}\n\t"
                         "add %[n], %[n], %[m]\n\tvstmia %[n], {s8-s11}\n\tadd %[n], %[n], %[m]\n\tvstmia %[n], {s12-s15}"
                         : [a] "+&r"(a), [c] "+&r"(c), [d] "+&r"(d), [e] "+&r"(e), [b] "+&r"(b), [runs] "+&r"(runs),
                           [n] "=&r"(n), [m] "=&r"(m)
                         : [t] "r"(t), [line] "r"(line), [jump] "r"(jump)
                         : "cc", "memory", "lr", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11",
                           "s12", "s13", "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24",
                           "s25", "s26", "s27", "s28", "s29", "s30", "s31");
        /* clang-format on */
    }
}

#pragma GCC diagnostic pop

#undef FOR_SPEED
#undef ADD_TOTAL
#undef ADD_EIGHT
#undef ADD_OLD
#undef CUT_TAP
#undef MOVE
#undef LINE
#undef PIXELS
#undef LOAD_3
#undef LOAD
#undef TAPS
#undef BY_FOUR
#undef BY_TWO
#undef ADD_PRODUCT
#undef MUL
#undef MLA

/* Where the blocks of terms end; the numbers of direct_task. */
static inline void find_runs(int32_t *runs, int32_t inputs, int32_t depth)
{
    int32_t channel = 0, end;
    for (end = depth; end < 9 * inputs; end += depth, runs += 2) {
        runs[0] = end / 9 - channel, runs[1] = end % 9;
        channel = (end + 8) / 9;
    }
    runs[0] = inputs - channel, runs[1] = -1;
}

#endif
