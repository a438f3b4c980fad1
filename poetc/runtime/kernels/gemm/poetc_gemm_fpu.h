/* Register blocks for scalars in the FPU of Cortex-M, in assembly: four rows, and four of a single column.
 *
 * Layout: as in poetc_gemm_block.h, which includes the file.
 * Order of sums: the terms of a block in sequence, as in the blocks in C. */
#ifndef POETC_GEMM_FPU_H
#define POETC_GEMM_FPU_H

/* The begin and end of four rows in assembly; distances in bytes. */
typedef struct {
    const float *start; /* 16 floats */
    int32_t pairs, odd; /* terms */
    const float *rate;  /* or NULL */
    int32_t accumulate, back, y_back;
} four_rows;

/* The assembly reads the members at these places. */
typedef char four_rows_places[offsetof(four_rows, pairs) == 4 && offsetof(four_rows, odd) == 8 &&
                                      offsetof(four_rows, rate) == 12 && offsetof(four_rows, accumulate) == 16 &&
                                      offsetof(four_rows, back) == 20 && offsetof(four_rows, y_back) == 24
                                  ? 1
                                  : -1];

/* a to d += (q to t) * f. Products are in s28 to s31 before they are added. */
#ifdef POETC_CHAINED
#define MLA(sum, x, w) POETC_VMLA " s" #sum ", s" #x ", s" #w "\n\t"
#define BY_FOUR(a, b, c, d, f, q, r, s, t) MLA(a, q, f) MLA(b, r, f) MLA(c, s, f) MLA(d, t, f)
#else
#define MUL(product, x, w) "vmul.f32 s" #product ", s" #x ", s" #w "\n\t"
#define ADD(sum, x) "vadd.f32 s" #sum ", s" #sum ", s" #x "\n\t"
#define BY_FOUR(a, b, c, d, f, q, r, s, t)                                                                             \
    MUL(28, q, f) MUL(29, r, f) MUL(30, s, f) MUL(31, t, f) ADD(a, 28) ADD(b, 29) ADD(c, 30) ADD(d, 31)
#endif
#define TERM(f, g, h, i, q, r, s, t)                                                                                   \
    BY_FOUR(0, 1, 2, 3, f, q, r, s, t) BY_FOUR(4, 5, 6, 7, g, q, r, s, t) BY_FOUR(8, 9, 10, 11, h, q, r, s, t)            \
        BY_FOUR(12, 13, 14, 15, i, q, r, s, t)
#if defined(POETC_FUSED)
#define DESCEND(a, b, c, d)                                                                                            \
    "vldmia %[y], {s16-s19}\n\tvfms.f32 s16, s" #a ", s31\n\tvfms.f32 s17, s" #b ", s31\n\tvfms.f32 s18, s" #c ", s31\n\t" \
    "vfms.f32 s19, s" #d ", s31\n\tvstmia %[y], {s16-s19}\n\tadd %[y], %[y], %[y_row]\n\t"
#else
#define DESCEND(a, b, c, d)                                                                                            \
    "vldmia %[y], {s16-s19}\n\tvmul.f32 s20, s" #a ", s31\n\tvmul.f32 s21, s" #b ", s31\n\tvmul.f32 s22, s" #c ", s31\n\t" \
    "vmul.f32 s23, s" #d ", s31\n\tvsub.f32 s16, s16, s20\n\tvsub.f32 s17, s17, s21\n\tvsub.f32 s18, s18, s22\n\t"      \
    "vsub.f32 s19, s19, s23\n\tvstmia %[y], {s16-s19}\n\tadd %[y], %[y], %[y_row]\n\t"
#endif
#define ADD_OLD(a, b, c, d)                                                                                            \
    "vldmia %[y], {s16-s19}\n\tvadd.f32 s" #a ", s16, s" #a "\n\tvadd.f32 s" #b ", s17, s" #b "\n\t"                      \
    "vadd.f32 s" #c ", s18, s" #c "\n\tvadd.f32 s" #d ", s19, s" #d "\n\t" PUT(a, d)
#define PUT(a, d) "vstmia %[y], {s" #a "-s" #d "}\n\tadd %[y], %[y], %[y_row]\n\t"
/* The floats of a panel for a term. */
#define NEXT "vldmia %[b]!, {s24-s27}\n\t"
/* Two terms a loop. */
#define PANELS(pair, odd, back)                                                                                        \
    __asm__ volatile("1:\tldrd %[n], %[m], [%[t]]\n\tvldmia %[n], {s0-s15}\n\tcmp %[m], #0\n\tbeq 3f\n"                          \
                     "2:\t" pair "subs %[m], #1\n\tbne 2b\n"                               \
                     "3:\tldrd %[m], %[n], [%[t], #8]\n\tcmp %[m], #0\n\tbeq 4f\n\t" odd               \
                     "4:\tldr %[m], [%[t], #16]\n\tcmp %[n], #0\n\tbne 6f\n\tcmp %[m], #0\n\tbne 5f\n\t"                                 \
                     PUT(0, 3) PUT(4, 7) PUT(8, 11) PUT(12, 15) "b 7f\n"                                               \
                     "5:\t" ADD_OLD(0, 1, 2, 3) ADD_OLD(4, 5, 6, 7) ADD_OLD(8, 9, 10, 11) ADD_OLD(12, 13, 14, 15) "b 7f\n" \
                     "6:\tvldr s31, [%[n]]\n\t"                                                                       \
                     DESCEND(0, 1, 2, 3) DESCEND(4, 5, 6, 7) DESCEND(8, 9, 10, 11) DESCEND(12, 13, 14, 15)             \
                     "7:\tldrd %[m], %[n], [%[t], #20]\n\tsub %[y], %[y], %[n]\n\t" back                                \
                     "subs %[panels], #1\n\tbne 1b"                                                                   \
                     : [a] "+r"(a), [c] "+r"(c), [d] "+r"(d), [e] "+r"(e), [b] "+r"(b), [y] "+r"(y), [n] "=&l"(n), [m] "=&l"(m), \
                       [panels] "+r"(panels)                                                                           \
                     : [t] "r"(&four), [y_row] "r"(4 * t->y_row)                                                       \
                     : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", \
                       "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28", \
                       "s29", "s30", "s31")

/* Four rows by panels whose sums do not begin with a bias for each column. */
static void block_of_four(const block_task *t)
{
    static const float none[16];
    const float *a = t->a, *c = a + t->a_row, *d = c + t->a_row, *e = d + t->a_row, *b = t->b;
    four_rows four = {none, t->depth / 2, t->depth % 2, t->rate, t->accumulate, 4 * t->depth, 16 * t->y_row - 16};
    float *y = t->y, first[16];
    int32_t panels = t->panels, n, m, i;
    if (t->row_bias) {
        for (i = 0; i < 16; i++)
            first[i] = 0.0f + t->row_bias[i / 4];
        four.start = first;
    }
    if (t->packed) {
        four.back *= 4;
        /* clang-format off */
        PANELS("vldmia %[a]!, {s16-s23}\n\t" NEXT TERM(16, 17, 18, 19, 24, 25, 26, 27)
               NEXT TERM(20, 21, 22, 23, 24, 25, 26, 27),
               "vldmia %[a]!, {s16-s19}\n\t" NEXT TERM(16, 17, 18, 19, 24, 25, 26, 27), "sub %[a], %[a], %[m]\n\t");
    } else {
        PANELS("vldmia %[a]!, {s16-s17}\n\tvldmia %[c]!, {s18-s19}\n\tvldmia %[d]!, {s20-s21}\n\tvldmia %[e]!, {s22-s23}\n\t"
               NEXT TERM(16, 18, 20, 22, 24, 25, 26, 27) NEXT TERM(17, 19, 21, 23, 24, 25, 26, 27),
               "vldmia %[a]!, {s16}\n\tvldmia %[c]!, {s17}\n\tvldmia %[d]!, {s18}\n\tvldmia %[e]!, {s19}\n\t"
               NEXT TERM(16, 17, 18, 19, 24, 25, 26, 27),
               "sub %[a], %[a], %[m]\n\tsub %[c], %[c], %[m]\n\tsub %[d], %[d], %[m]\n\tsub %[e], %[e], %[m]\n\t");
        /* clang-format on */
    }
}
#undef PANELS
#undef NEXT
#undef PUT
#undef ADD_OLD
#undef DESCEND
#undef TERM
#undef BY_FOUR

/* Four rows by the only column of a panel, which are wanted where planes have nine pixels. */
static void single_column(const block_task *t)
{
    const float *a = t->a, *c = a + t->a_row, *d = c + t->a_row, *e = d + t->a_row, *b = t->b;
    const float first = t->column_bias ? *t->column_bias : 0.0f;
    float sum[4], *y = t->y;
    int32_t k = t->depth, i;
    POETC_UNROLL_4
    for (i = 0; i < 4; i++)
        sum[i] = t->row_bias ? 0.0f + t->row_bias[i] : first; /* as in start: -0 becomes 0 */
    if (t->packed) {
        POETC_UNROLL_4
        for (; k > 0; k--, b += COLUMNS) {
            const float factor = *b;
            POETC_QUAD_A(p);
            POETC_LOAD_QUAD(p, a);
            POETC_MULTIPLY_ADD_4(sum[0], sum[1], sum[2], sum[3], p0, factor, p1, factor, p2, factor, p3, factor);
        }
    } else {
#if defined(POETC_FUSED)
#define ADD_TERM(b, p, q, r, s)                                                                                        \
    "vfma.f32 %[u], " p ", " b "\n\tvfma.f32 %[v], " q ", " b "\n\tvfma.f32 %[w], " r ", " b "\n\tvfma.f32 %[x], " s ", " b "\n\t"
#else
#define TIMES(p, b) "vmul.f32 " p ", " p ", " b "\n\t"
#define ADD_TERM(b, p, q, r, s)                                                                                        \
    TIMES(p, b) TIMES(q, b) TIMES(r, b) TIMES(s, b) "vadd.f32 %[u], %[u], " p "\n\tvadd.f32 %[v], %[v], " q "\n\t"     \
        "vadd.f32 %[w], %[w], " r "\n\tvadd.f32 %[x], %[x], " s "\n\t"
#endif
        for (; k >= 4; k -= 4)
            /* clang-format off */
            __asm__ volatile("vldmia %[a]!, {s16-s19}\n\tvldmia %[c]!, {s20-s23}\n\t"
                             "vldmia %[d]!, {s24-s27}\n\tvldmia %[e]!, {s28-s31}\n\t"
                             "vldr s12, [%[b]]\n\tvldr s13, [%[b], #16]\n\tvldr s14, [%[b], #32]\n\tvldr s15, [%[b], #48]\n\t"
                             ADD_TERM("s12", "s16", "s20", "s24", "s28") ADD_TERM("s13", "s17", "s21", "s25", "s29")
                             ADD_TERM("s14", "s18", "s22", "s26", "s30") ADD_TERM("s15", "s19", "s23", "s27", "s31")
                             "add %[b], %[b], #64"
                             : [a] "+r"(a), [c] "+r"(c), [d] "+r"(d), [e] "+r"(e), [b] "+r"(b), [u] "+t"(sum[0]),
                               [v] "+t"(sum[1]), [w] "+t"(sum[2]), [x] "+t"(sum[3])
                             :
                             : "memory", "s12", "s13", "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23",
                               "s24", "s25", "s26", "s27", "s28", "s29", "s30", "s31");
        /* clang-format on */
#undef ADD_TERM
#undef TIMES
        for (; k > 0; k--, b += COLUMNS) {
            const float f = *a++, g = *c++, h = *d++, l = *e++, factor = *b;
            POETC_MULTIPLY_ADD_4(sum[0], sum[1], sum[2], sum[3], f, factor, g, factor, h, factor, l, factor);
        }
    }
    POETC_UNROLL_4
    for (i = 0; i < 4; i++, y += t->y_row)
        *y = t->rate ? POETC_FMS(sum[i], *t->rate, *y) : t->accumulate ? *y + sum[i] : sum[i];
}

#endif
