/* Register blocks for scalars in the FPU of Cortex-M, in assembly: four rows, six, and four of a single column.
 *
 * Layout: as in poetc_gemm_block.h, which includes the file.
 * Order of sums: the terms of a block in sequence, as in the blocks in C. */
#ifndef POETC_GEMM_FPU_H
#define POETC_GEMM_FPU_H

/* The begin and end of four rows in assembly; distances in bytes. Offsets of the members stand in the assembly. */
typedef struct {
    const float *start; /* 16 floats */
    int32_t pairs, odd; /* terms */
    const float *rate;  /* or NULL */
    int32_t accumulate, back, y_back;
} four_rows;

#define MLA(sum, x, w) "vmla.f32 s" #sum ", s" #x ", s" #w "\n\t"
#define BY_FOUR(a, b, c, d, f, q, r, s, t) MLA(a, q, f) MLA(b, r, f) MLA(c, s, f) MLA(d, t, f)
#define TERM(f, g, h, i, q, r, s, t)                                                                                   \
    BY_FOUR(0, 1, 2, 3, f, q, r, s, t) BY_FOUR(4, 5, 6, 7, g, q, r, s, t) BY_FOUR(8, 9, 10, 11, h, q, r, s, t)            \
        BY_FOUR(12, 13, 14, 15, i, q, r, s, t)
#define DESCEND(a, b, c, d)                                                                                            \
    "vldmia %[y], {s16-s19}\n\tvmls.f32 s16, s" #a ", s31\n\tvmls.f32 s17, s" #b ", s31\n\tvmls.f32 s18, s" #c ", s31\n\t" \
    "vmls.f32 s19, s" #d ", s31\n\tvstmia %[y], {s16-s19}\n\tadd %[y], %[y], %[y_row]\n\t"
#define ADD_OLD(a, b, c, d)                                                                                            \
    "vldmia %[y], {s16-s19}\n\tvadd.f32 s" #a ", s16, s" #a "\n\tvadd.f32 s" #b ", s17, s" #b "\n\t"                      \
    "vadd.f32 s" #c ", s18, s" #c "\n\tvadd.f32 s" #d ", s19, s" #d "\n\t" PUT(a, d)
#define PUT(a, d) "vstmia %[y], {s" #a "-s" #d "}\n\tadd %[y], %[y], %[y_row]\n\t"
/* Two terms a loop. */
#define PANELS(pair, odd, back)                                                                                        \
    __asm__ volatile("1:\tldrd %[n], %[m], [%[t]]\n\tvldmia %[n], {s0-s15}\n\tcmp %[m], #0\n\tbeq 3f\n"                          \
                     "2:\tvldmia %[b]!, {s24-s31}\n\t" pair "subs %[m], #1\n\tbne 2b\n"                               \
                     "3:\tldrd %[m], %[n], [%[t], #8]\n\tcmp %[m], #0\n\tbeq 4f\n\tvldmia %[b]!, {s24-s27}\n\t" odd               \
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
        PANELS("vldmia %[a]!, {s16-s23}\n\t" TERM(16, 17, 18, 19, 24, 25, 26, 27) TERM(20, 21, 22, 23, 28, 29, 30, 31),
               "vldmia %[a]!, {s16-s19}\n\t" TERM(16, 17, 18, 19, 24, 25, 26, 27), "sub %[a], %[a], %[m]\n\t");
    } else {
        PANELS("vldmia %[a]!, {s16-s17}\n\tvldmia %[c]!, {s18-s19}\n\tvldmia %[d]!, {s20-s21}\n\tvldmia %[e]!, {s22-s23}\n\t"
               TERM(16, 18, 20, 22, 24, 25, 26, 27) TERM(17, 19, 21, 23, 28, 29, 30, 31),
               "vldmia %[a]!, {s16}\n\tvldmia %[c]!, {s17}\n\tvldmia %[d]!, {s18}\n\tvldmia %[e]!, {s19}\n\t"
               TERM(16, 17, 18, 19, 24, 25, 26, 27),
               "sub %[a], %[a], %[m]\n\tsub %[c], %[c], %[m]\n\tsub %[d], %[d], %[m]\n\tsub %[e], %[e], %[m]\n\t");
        /* clang-format on */
    }
}
#undef PANELS
#undef PUT
#undef ADD_OLD
#undef DESCEND
#undef TERM
#undef BY_FOUR
#undef MLA

#define SUMS(s, p, q, r, t)                                                                                            \
    register float s##0 __asm__(p), s##1 __asm__(q), s##2 __asm__(r), s##3 __asm__(t)
#define ADD_ROW(s, row)                                                                                                \
    __asm__("vldmia %4!, {%5}\n\tvmla.f32 %0, %6, %5\n\tvmla.f32 %1, %7, %5\n\tvmla.f32 %2, %8, %5\n\tvmla.f32 %3, %9, %5"  \
            : "+t"(s##0), "+t"(s##1), "+t"(s##2), "+t"(s##3), "+r"(row), "=&t"(factor)                                 \
            : "t"(q0), "t"(q1), "t"(q2), "t"(q3), "m"(*row))
#define START(s, i)                                                                                                    \
    do {                                                                                                               \
        poetc_vector first[4];                                                                                         \
        start(first, 4, row_bias ? row_bias + (i) : NULL, column_bias);                                                \
        s##0 = first[0], s##1 = first[1], s##2 = first[2], s##3 = first[3];                                            \
    } while (0)
#define FINISH(s)                                                                                                      \
    do {                                                                                                               \
        if (t->rate) {                                                                                                 \
            const float *old = put;                                                                                    \
            POETC_LOAD_QUAD(q, old);                                                                                   \
            POETC_MULTIPLY_SUBTRACT(q0, s##0, *t->rate);                                                               \
            POETC_MULTIPLY_SUBTRACT(q1, s##1, *t->rate);                                                               \
            POETC_MULTIPLY_SUBTRACT(q2, s##2, *t->rate);                                                               \
            POETC_MULTIPLY_SUBTRACT(q3, s##3, *t->rate);                                                               \
            put[0] = q0, put[1] = q1, put[2] = q2, put[3] = q3, put += t->y_row;                                       \
            break;                                                                                                     \
        }                                                                                                              \
        if (accumulate)                                                                                                \
            s##0 = put[0] + s##0, s##1 = put[1] + s##1, s##2 = put[2] + s##2, s##3 = put[3] + s##3;                    \
        put[0] = s##0, put[1] = s##1, put[2] = s##2, put[3] = s##3;                                                    \
        put += t->y_row;                                                                                               \
    } while (0)

static void block_6(const block_task *t)
{
    const float *const row_bias = t->row_bias, *column_bias = t->column_bias, *b = t->b;
    const int accumulate = t->accumulate;
    float *y = t->y;
    int32_t column, k;
    SUMS(u, "s0", "s1", "s2", "s3");
    SUMS(v, "s4", "s5", "s6", "s7");
    SUMS(w, "s8", "s9", "s10", "s11");
    SUMS(x, "s12", "s13", "s14", "s15");
    SUMS(n, "s24", "s25", "s26", "s27");
    SUMS(m, "s28", "s29", "s30", "s31");
    register float factor __asm__("s16");
    POETC_QUAD_B(q);
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *a = t->a, *c = a + t->a_row, *d = c + t->a_row;
        const float *e = d + t->a_row, *f = e + t->a_row, *g = f + t->a_row;
        float *put = y;
        START(u, 0);
        START(v, 1);
        START(w, 2);
        START(x, 3);
        START(n, 4);
        START(m, 5);
        if (column_bias)
            column_bias += COLUMNS;
        for (k = t->depth; k > 0; k--) {
            POETC_LOAD_QUAD(q, b);
            ADD_ROW(u, a);
            ADD_ROW(v, c);
            ADD_ROW(w, d);
            ADD_ROW(x, e);
            ADD_ROW(n, f);
            ADD_ROW(m, g);
        }
        FINISH(u);
        FINISH(v);
        FINISH(w);
        FINISH(x);
        FINISH(n);
        FINISH(m);
    }
}

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
            POETC_MULTIPLY_ADD(sum[0], p0, factor);
            POETC_MULTIPLY_ADD(sum[1], p1, factor);
            POETC_MULTIPLY_ADD(sum[2], p2, factor);
            POETC_MULTIPLY_ADD(sum[3], p3, factor);
        }
    } else {
#define ADD_TERM(b, p, q, r, s)                                                                                        \
    "vmla.f32 %[u], " p ", " b "\n\tvmla.f32 %[v], " q ", " b "\n\tvmla.f32 %[w], " r ", " b "\n\tvmla.f32 %[x], " s ", " b "\n\t"
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
        for (; k > 0; k--, b += COLUMNS) {
            POETC_MULTIPLY_ADD(sum[0], *a++, *b);
            POETC_MULTIPLY_ADD(sum[1], *c++, *b);
            POETC_MULTIPLY_ADD(sum[2], *d++, *b);
            POETC_MULTIPLY_ADD(sum[3], *e++, *b);
        }
    }
    POETC_UNROLL_4
    for (i = 0; i < 4; i++, y += t->y_row)
        *y = t->rate ? *y - sum[i] * *t->rate : t->accumulate ? *y + sum[i] : sum[i];
}

#endif
