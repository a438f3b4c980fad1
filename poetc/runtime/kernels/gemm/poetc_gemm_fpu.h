/* Register blocks for scalars in the FPU of Cortex-M, in assembly: one to four rows, and four of a single column.
 *
 * Layout: as in poetc_gemm_block.h, which includes the file.
 * Order of sums: the terms of a block in sequence, as in the blocks in C. */
#ifndef POETC_GEMM_FPU_H
#define POETC_GEMM_FPU_H

/* The begin and end of a block, for the assembly below; distances in bytes. */
typedef struct {
    const float *start; /* 4 floats a row */
    int32_t pairs, odd; /* terms: whole passes of the loop and the first one's pairs, and a last one */
    const float *rate;  /* or NULL */
    int32_t accumulate, back, y_back, first;
} block_of_rows;

/* At these places. */
typedef char block_of_rows_places[offsetof(block_of_rows, pairs) == 4 && offsetof(block_of_rows, odd) == 8 &&
                                          offsetof(block_of_rows, rate) == 12 &&
                                          offsetof(block_of_rows, accumulate) == 16 &&
                                          offsetof(block_of_rows, back) == 20 &&
                                          offsetof(block_of_rows, y_back) == 24 && offsetof(block_of_rows, first) == 28
                                      ? 1
                                      : -1];

/* a to d += (q to t) * f; w to z hold the products before they are added. */
#ifdef POETC_CHAINED
#define MLA(sum, x, w) POETC_VMLA " s" #sum ", s" #x ", s" #w "\n\t"
#define BY_FOUR(a, b, c, d, f, q, r, s, t, w, x, y, z) MLA(a, q, f) MLA(b, r, f) MLA(c, s, f) MLA(d, t, f)
#else
#define MUL(product, x, w) "vmul.f32 s" #product ", s" #x ", s" #w "\n\t"
#define ADD(sum, x) "vadd.f32 s" #sum ", s" #sum ", s" #x "\n\t"
#define BY_FOUR(a, b, c, d, f, q, r, s, t, w, x, y, z)                                                                 \
    MUL(w, q, f) MUL(x, r, f) MUL(y, s, f) MUL(z, t, f) ADD(a, w) ADD(b, x) ADD(c, y) ADD(d, z)
#endif
/* A term of one to four rows, whose factors are f to i: b is in s16 or s20 and behind, products where nothing is. */
#define TERM_1(f, ...) BY_FOUR(0, 1, 2, 3, f, __VA_ARGS__)
#define TERM_2(f, g, ...) TERM_1(f, __VA_ARGS__) BY_FOUR(4, 5, 6, 7, g, __VA_ARGS__)
#define TERM_3(f, g, h, ...) TERM_2(f, g, __VA_ARGS__) BY_FOUR(8, 9, 10, 11, h, __VA_ARGS__)
#define TERM_4(f, g, h, i, ...) TERM_3(f, g, h, __VA_ARGS__) BY_FOUR(12, 13, 14, 15, i, __VA_ARGS__)

/* The sums of a row go to y, are added to it, or move it. */
#define PUT(a, b, c, d) "vstmia %[y], {s" #a "-s" #d "}\n\tadd %[y], %[y], %[y_row]\n\t"
#define ADD_OLD(a, b, c, d)                                                                                            \
    "vldmia %[y], {s24-s27}\n\tvadd.f32 s" #a ", s24, s" #a "\n\tvadd.f32 s" #b ", s25, s" #b "\n\t"                   \
    "vadd.f32 s" #c ", s26, s" #c "\n\tvadd.f32 s" #d ", s27, s" #d "\n\t" PUT(a, b, c, d)
#if defined(POETC_FUSED)
#define DESCEND(a, b, c, d)                                                                                            \
    "vldmia %[y], {s24-s27}\n\tvfms.f32 s24, s" #a ", s31\n\tvfms.f32 s25, s" #b ", s31\n\tvfms.f32 s26, s" #c ", s31\n\t" \
    "vfms.f32 s27, s" #d ", s31\n\t" PUT(24, 25, 26, 27)
#else
#define DESCEND(a, b, c, d)                                                                                            \
    "vldmia %[y], {s24-s27}\n\tvmul.f32 s" #a ", s" #a ", s31\n\tvmul.f32 s" #b ", s" #b ", s31\n\t"                   \
    "vmul.f32 s" #c ", s" #c ", s31\n\tvmul.f32 s" #d ", s" #d ", s31\n\tvsub.f32 s24, s24, s" #a "\n\t"               \
    "vsub.f32 s25, s25, s" #b "\n\tvsub.f32 s26, s26, s" #c "\n\tvsub.f32 s27, s27, s" #d "\n\t" PUT(24, 25, 26, 27)
#endif
#define ROWS_1(each) each(0, 1, 2, 3)
#define ROWS_2(each) ROWS_1(each) each(4, 5, 6, 7)
#define ROWS_3(each) ROWS_2(each) each(8, 9, 10, 11)
#define ROWS_4(each) ROWS_3(each) each(12, 13, 14, 15)

/* Panels one after the other: `entry` and passes of `loop`, then `last` for an odd term. `begin` loads floats of b,
 * which stay in s16 to s23 from panel to panel. */
#define PANELS(rows, sums, begin, entry, loop, last, back)                                                             \
    __asm__ volatile(begin "1:\tldrd %[n], %[m], [%[t]]\n\tvldmia %[n], {" sums "}\n\tcmp %[m], #0\n\tbeq 3f\n\t" entry "2:\t" loop \
                     "subs %[m], #1\n\tbne 2b\n"                                                                       \
                     "3:\tldrd %[m], %[n], [%[t], #8]\n\tcmp %[m], #0\n\tbeq 4f\n\t" last                                        \
                     "4:\tldr %[m], [%[t], #16]\n\tcmp %[n], #0\n\tbeq 5f\n\tvldr s31, [%[n]]\n\t" rows(DESCEND) "b 7f\n"        \
                     "5:\tcmp %[m], #0\n\tbeq 6f\n\t" rows(ADD_OLD) "b 7f\n"                                                     \
                     "6:\t" rows(PUT) "7:\tldrd %[m], %[n], [%[t], #20]\n\tsub %[y], %[y], %[n]\n\t" back              \
                     "subs %[panels], #1\n\tbne 1b"                                                                    \
                     : [a] "+&r"(a), [c] "+&r"(c), [d] "+&r"(d), [e] "+&r"(e), [b] "+&r"(b), [y] "+&r"(y),             \
                       [n] "=&l"(n), [m] "=&l"(m), [panels] "+&r"(panels)                                              \
                     : [t] "r"(&task), [y_row] "r"(4 * t->y_row)                                                       \
                     : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11",       \
                       "s12", "s13", "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24",      \
                       "s25", "s26", "s27", "s28", "s29", "s30", "s31")

/* Two terms of four rows that are packed: while one is added, the floats of the next are in registers. A panel's last
 * load brings the first floats behind it: those of the next panel, or the four that poetc_gemm_carve leaves behind. */
#define AFTER(more) "vldmia %[b]!, {s" #more "-s23}\n\t"
#define PACKED                                                                                                         \
    "vldmia %[a]!, {s24-s31}\n\t" TERM_4(24, 25, 26, 27, 20, 21, 22, 23, 16, 17, 18, 19) AFTER(16)                     \
        TERM_4(28, 29, 30, 31, 16, 17, 18, 19, 24, 25, 26, 27)
#define LAST_PACKED "vldmia %[a]!, {s24-s27}\n\t" TERM_4(24, 25, 26, 27, 20, 21, 22, 23, 16, 17, 18, 19) AFTER(20)
/* The same in place. */
#define TWO_1 "vldmia %[a]!, {s24-s25}\n\t"
#define TWO_2 TWO_1 "vldmia %[c]!, {s26-s27}\n\t"
#define TWO_3 TWO_2 "vldmia %[d]!, {s28-s29}\n\t"
#define TWO_4 TWO_3 "vldmia %[e]!, {s30-s31}\n\t"
#define ONE_1 "vldmia %[a]!, {s24}\n\t"
#define ONE_2 ONE_1 "vldmia %[c]!, {s26}\n\t"
#define ONE_3 ONE_2 "vldmia %[d]!, {s28}\n\t"
#define ONE_4 ONE_3 "vldmia %[e]!, {s30}\n\t"
#define BACK_1 "sub %[a], %[a], %[m]\n\t"
#define BACK_2 BACK_1 "sub %[c], %[c], %[m]\n\t"
#define BACK_3 BACK_2 "sub %[d], %[d], %[m]\n\t"
#define BACK_4 BACK_3 "sub %[e], %[e], %[m]\n\t"
#define IN_PLACE                                                                                                       \
    TWO_4 TERM_4(24, 26, 28, 30, 20, 21, 22, 23, 16, 17, 18, 19) AFTER(16)                                             \
        TERM_4(25, 27, 29, 31, 16, 17, 18, 19, 24, 26, 28, 30)
#define LAST_IN_PLACE ONE_4 TERM_4(24, 26, 28, 30, 20, 21, 22, 23, 16, 17, 18, 19) AFTER(20)
/* Fewer rows have registers for two terms of b. */
#define FEW(n, sums, first, second)                                                                                    \
    PANELS(ROWS_##n, sums, "", "",                                                                                     \
           "vldmia %[b]!, {s16-s23}\n\t" TWO_##n TERM_##n(first, 16, 17, 18, 19, 12, 13, 14, 15)                       \
               TERM_##n(second, 20, 21, 22, 23, 12, 13, 14, 15),                                                       \
           "vldmia %[b]!, {s16-s19}\n\t" ONE_##n TERM_##n(first, 16, 17, 18, 19, 12, 13, 14, 15), BACK_##n)

#pragma GCC diagnostic push /* C99 promises strings of 4,095 characters; compilers with this assembly take more */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* One to four rows, which lie in place or side by side: panels of t, or one of them that begins with column_bias. */
POETC_APART void run_panels(int32_t rows, const block_task *t, const float *start, const float *b, float *y,
                            int32_t panels)
{
    const int32_t pairs = t->depth / 2, each = rows < 4 ? 1 : t->packed ? 4 : 2; /* pairs of a pass */
    const float *a = t->a, *c = a + t->a_row, *d = c + t->a_row, *e = d + t->a_row;
    const block_of_rows task = {start,
                                (pairs + each - 1) / each,
                                t->depth % 2,
                                t->rate,
                                t->accumulate,
                                4 * t->depth * (rows == 4 && t->packed ? 4 : 1),
                                4 * rows * t->y_row - 16,
                                pairs % each};
    int32_t n, m;
    /* clang-format off */
    if (rows == 4 && t->packed)
        PANELS(ROWS_4, "s0-s15", AFTER(20),
               "ldr %[n], [%[t], #28]\n\tcmp %[n], #2\n\tbeq 9f\n\tbhi 10f\n\tcmp %[n], #1\n\tbeq 8f\n",
               PACKED "10:\t" PACKED "9:\t" PACKED "8:\t" PACKED, LAST_PACKED, BACK_1);
    else if (rows == 4)
        PANELS(ROWS_4, "s0-s15", AFTER(20), "ldr %[n], [%[t], #28]\n\tcmp %[n], #0\n\tbne 8f\n", IN_PLACE "8:\t" IN_PLACE,
               LAST_IN_PLACE, BACK_4);
#define FACTORS(...) __VA_ARGS__
    else if (rows == 3)
        FEW(3, "s0-s11", FACTORS(24, 26, 28), FACTORS(25, 27, 29));
    else if (rows == 2)
        FEW(2, "s0-s7", FACTORS(24, 26), FACTORS(25, 27));
    else
        FEW(1, "s0-s3", 24, 25);
    /* clang-format on */
}

#pragma GCC diagnostic pop

static void run_block(int32_t rows, const block_task *t)
{
    static const float none[16];
    float first[16];
    int32_t i, j;
    if (t->column_bias && !t->row_bias) {
        for (j = 0; j < t->panels; j++) {
            for (i = 0; i < 4 * rows; i++)
                first[i] = t->column_bias[4 * j + i % 4];
            run_panels(rows, t, first, t->b + 4 * j * t->depth, t->y + 4 * j, 1);
        }
        return;
    }
    if (t->row_bias)
        for (i = 0; i < 4 * rows; i++)
            first[i] = 0.0f + t->row_bias[i / 4];
    run_panels(rows, t, t->row_bias ? first : none, t->b, t->y, t->panels);
}
#undef PANELS
#undef FEW
#undef PUT
#undef ADD_OLD
#undef DESCEND
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
            POETC_QUAD(p);
            POETC_LOAD_QUAD_A(p, a);
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
