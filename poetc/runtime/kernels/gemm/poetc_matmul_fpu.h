/* Products of one row by scalars in the FPU of Cortex-M, in assembly. The file belongs to matmul.c.
 *
 * Layout: 16, 8 or 4 columns of the row are in registers while the terms pass.
 * Order of sums: terms in sequence, in partial sums of BLOCK terms, as in matmul.c. */
#ifndef POETC_MATMUL_FPU_H
#define POETC_MATMUL_FPU_H

static const float nothing[16];

#define ADD(sum, x) "vadd.f32 s" #sum ", s" #sum ", s" #x "\n\t"
/* Four sums += x * w; x0 to x3 hold the products in the end. */
#ifdef POETC_CHAINED
#define MLA(sum, x, w) POETC_VMLA " s" #sum ", s" #x ", s" #w "\n\t"
#define PRODUCTS_4(s0, s1, s2, s3, x0, x1, x2, x3, w0, w1, w2, w3) MLA(s0, x0, w0) MLA(s1, x1, w1) MLA(s2, x2, w2) MLA(s3, x3, w3)
#else
#define MUL(x, w) "vmul.f32 s" #x ", s" #x ", s" #w "\n\t"
#define MLA(sum, x, w) MUL(x, w) ADD(sum, x)
#define PRODUCTS_4(s0, s1, s2, s3, x0, x1, x2, x3, w0, w1, w2, w3)                                                     \
    MUL(x0, w0) MUL(x1, w1) MUL(x2, w2) MUL(x3, w3) ADD(s0, x0) ADD(s1, x1) ADD(s2, x2) ADD(s3, x3)
#endif
#define MLA_4(s0, s1, s2, s3, x0, x1, x2, x3) PRODUCTS_4(s0, s1, s2, s3, x0, x1, x2, x3, 31, 31, 31, 31)
#define ALL_REGISTERS                                                                                                  \
    "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14",     \
        "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28", "s29", "s30", "s31"

/* 16, 8 or 4 columns of a row, to `y`. */
POETC_APART void outer_columns(const product *t, const float *p, int32_t column, int32_t columns, float *y)
{
    const float *q = t->q + column;
    const ptrdiff_t p_k = 4 * t->p_k, step = 4 * t->q_step, rest = step - 32;
    int32_t left = t->depth, first = 1;
#define LOAD_P "vldr s31, [%[p]]\n\tadd %[p], %[p], %[p_k]\n\t"
#define COLUMNS(load, sums, loads, add, old) /* two terms a pass */                                                                                 \
    __asm__ volatile("vldmia %[none], {" sums "}\n\tlsrs %[n], %[n], #1\n\tbcc 1f\n\tadds %[n], #1\n\tb 2f\n"            \
                     "1:\t" load loads "2:\t" load loads "subs %[n], #1\n\tbne 1b\n\t"                            \
                     "cmp %[first], #0\n\tbne 3f\n\tvldmia %[y], {" old "}\n\t" add "3:\tvstmia %[y], {" sums "}"      \
                     : [p] "+&r"(p), [q] "+&r"(q), [n] "+&r"(n)                                                           \
                     : [p_k] "r"(p_k), [step] "r"(columns == 16 ? rest : step), [y] "r"(y), [first] "r"(first), [none] "r"(nothing) \
                     : ALL_REGISTERS)
    for (; left > 0; left -= BLOCK, first = 0) {
        int32_t n = left > BLOCK ? BLOCK : left;
        if (columns == 16)
            /* clang-format off */
            COLUMNS(LOAD_P, "s0-s15",
                    "vldmia %[q]!, {s16-s23}\n\t" MLA_4(0, 1, 2, 3, 16, 17, 18, 19) MLA_4(4, 5, 6, 7, 20, 21, 22, 23)
                    "vldmia %[q], {s16-s23}\n\tadd %[q], %[q], %[step]\n\t"
                    MLA_4(8, 9, 10, 11, 16, 17, 18, 19) MLA_4(12, 13, 14, 15, 20, 21, 22, 23),
                    ADD(0, 16) ADD(1, 17) ADD(2, 18) ADD(3, 19) ADD(4, 20) ADD(5, 21) ADD(6, 22) ADD(7, 23)
                    ADD(8, 24) ADD(9, 25) ADD(10, 26) ADD(11, 27) ADD(12, 28) ADD(13, 29) ADD(14, 30) ADD(15, 31),
                    "s16-s31");
        else if (columns == 8)
            COLUMNS(LOAD_P, "s0-s7",
                    "vldmia %[q], {s16-s23}\n\tadd %[q], %[q], %[step]\n\t"
                    MLA_4(0, 1, 2, 3, 16, 17, 18, 19) MLA_4(4, 5, 6, 7, 20, 21, 22, 23),
                    ADD(0, 16) ADD(1, 17) ADD(2, 18) ADD(3, 19) ADD(4, 20) ADD(5, 21) ADD(6, 22) ADD(7, 23), "s16-s23");
        else
            COLUMNS(LOAD_P, "s0-s3", "vldmia %[q], {s16-s19}\n\tadd %[q], %[q], %[step]\n\t" MLA_4(0, 1, 2, 3, 16, 17, 18, 19),
                    ADD(0, 16) ADD(1, 17) ADD(2, 18) ADD(3, 19), "s16-s19");
        /* clang-format on */
    }
#undef COLUMNS
#undef LOAD_P
}

/* A multiple of four columns. */
static inline void add_bias(float *y, const float *bias, int32_t columns)
{
    for (; columns > 0; columns -= 4) {
        const float *from = y;
        POETC_QUAD(a);
        POETC_QUAD(b);
        POETC_LOAD_QUAD_A(a, from);
        POETC_LOAD_QUAD_B(b, bias);
        a0 += b0, a1 += b1, a2 += b2, a3 += b3;
        POETC_STORE_QUAD_A(y, a);
    }
}

/* As OUTER_COLUMNS: the last four may overlap those before. */
static void outer_row(const product *t, int32_t row)
{
    const int is_plain = t->alpha == 1.0f && t->y_column == 1 && (!t->bias || t->bias_column == 1);
    const float *p = t->p + row * t->p_row;
    float sums[16];
    int32_t column = 0;
    while (column < t->columns) {
        const int32_t left = t->columns - column, columns = left >= 16 ? 16 : left >= 8 ? 8 : 4;
        if (left < 4)
            column = t->columns - 4;
        outer_columns(t, p, column, columns, is_plain ? t->y + row * t->y_row + column : sums);
        if (!is_plain)
            put_row(t, row, column, sums, columns);
        else if (t->bias)
            add_bias(t->y + row * t->y_row + column, t->bias + row * t->bias_row + column, columns);
        column += columns;
    }
}

/* For the assembly below, which has few registers left: groups of sixteen terms, sixteen zeros, sums of lanes. These
 * are stored (step 0), added to those there (1), or added, joined and added to four totals (2). */
typedef struct {
    int32_t n;
    const float *none;
    float *sums;
    int32_t step;
    float *total;
} lanes_task;

/* At these places. */
typedef char lanes_task_places[offsetof(lanes_task, none) == 4 && offsetof(lanes_task, sums) == 8 &&
                                       offsetof(lanes_task, step) == 12 && offsetof(lanes_task, total) == 16
                                   ? 1
                                   : -1];

/* Four lanes of sums of four columns, which lie `step` floats apart: from four floats of each group of sixteen. So p is
 * read once for four columns. Lanes join as in poetc_sum_lanes. */
POETC_INLINE void inner_lanes(const float *p, const float *q, ptrdiff_t step, const lanes_task *task)
{
    const float *r = q + step, *s = r + step, *t = s + step;
    int32_t n;
#define LOAD(x, from, offset) "vldr s" #x ", [%[" #from "], #" #offset "]\n\t"
#define LOAD_4(w, x, y, z, from, a, b, c, d) LOAD(w, from, a) LOAD(x, from, b) LOAD(y, from, c) LOAD(z, from, d)
#define GROUP(a, b, c, d)                                                                                              \
    LOAD_4(16, 17, 18, 19, p, a, b, c, d) LOAD_4(20, 21, 22, 23, q, a, b, c, d) LOAD_4(24, 25, 26, 27, r, a, b, c, d)  \
    PRODUCTS_4(0, 1, 2, 3, 20, 21, 22, 23, 16, 17, 18, 19) PRODUCTS_4(4, 5, 6, 7, 24, 25, 26, 27, 16, 17, 18, 19)      \
    LOAD_4(20, 21, 22, 23, s, a, b, c, d) LOAD_4(24, 25, 26, 27, t, a, b, c, d)                                        \
    PRODUCTS_4(8, 9, 10, 11, 20, 21, 22, 23, 16, 17, 18, 19) PRODUCTS_4(12, 13, 14, 15, 24, 25, 26, 27, 16, 17, 18, 19)
#define ADD_SIXTEEN                                                                                                    \
    ADD(0, 16) ADD(1, 17) ADD(2, 18) ADD(3, 19) ADD(4, 20) ADD(5, 21) ADD(6, 22) ADD(7, 23)                            \
    ADD(8, 24) ADD(9, 25) ADD(10, 26) ADD(11, 27) ADD(12, 28) ADD(13, 29) ADD(14, 30) ADD(15, 31)
#define MOVE(by)                                                                                                       \
    "add %[p], " by "\n\tadd %[q], " by "\n\tadd %[r], " by "\n\tadd %[s], " by "\n\tadd %[t], " by "\n\t"
    /* clang-format off */
    __asm__ volatile("ldr %[n], [%[task], #4]\n\tvldmia %[n], {s0-s15}\n\tldr %[n], [%[task]]\n\tsubs %[n], #4\n\tblt 2f\n"
                     "1:\t" GROUP(0, 4, 8, 12) GROUP(64, 68, 72, 76) GROUP(128, 132, 136, 140) GROUP(192, 196, 200, 204)
                     MOVE("#256") "subs %[n], #4\n\tbge 1b\n"
                     "2:\tadds %[n], #4\n\tbeq 4f\n"
                     "3:\t" GROUP(0, 4, 8, 12) MOVE("#64") "subs %[n], #1\n\tbne 3b\n"
                     "4:\tldr %[n], [%[task], #12]\n\tcmp %[n], #1\n\tldr %[n], [%[task], #8]\n\tblt 5f\n\tvldmia %[n], {s16-s31}\n\t"
                     ADD_SIXTEEN "bne 6f\n"
                     "5:\tvstmia %[n], {s0-s15}\n\tb 7f\n"
                     "6:\tsub %[n], %[n], #64\n\tvldmia %[n], {s16-s31}\n\tldr %[n], [%[task], #16]\n\t" ADD_SIXTEEN
                     "vldmia %[n], {s16-s19}\n\t"
                     ADD(0, 1) ADD(2, 3) ADD(4, 5) ADD(6, 7) ADD(8, 9) ADD(10, 11) ADD(12, 13) ADD(14, 15)
                     ADD(0, 2) ADD(4, 6) ADD(8, 10) ADD(12, 14) ADD(16, 0) ADD(17, 4) ADD(18, 8) ADD(19, 12)
                     "vstmia %[n], {s16-s19}\n7:"
                     : [p] "+&r"(p), [q] "+&r"(q), [r] "+&r"(r), [s] "+&r"(s), [t] "+&r"(t), [n] "=&r"(n)
                     : [task] "r"(task)
                     : ALL_REGISTERS);
    /* clang-format on */
#undef MOVE
#undef ADD_SIXTEEN
#undef GROUP
#undef LOAD_4
#undef LOAD
}

/* total[i] += the sum of 16 `n` terms of column i of four. */
static void inner_four(const float *p, const float *q, ptrdiff_t step, int32_t n, float *total)
{
    float sums[32];
    lanes_task task = {n, nothing, NULL, 0, total};
    int i;
    for (i = 0; i < 4; i++) {
        task.sums = sums + i % 2 * 16, task.step = i < 2 ? 0 : i - 1;
        inner_lanes(p + 4 * i, q + 4 * i, step, &task);
    }
}

/* A row: four columns at a time, or one with all sixteen lanes in s0 to s15, whose sum joins the total in memory. The
 * rest of the terms follow in sequence. */
POETC_APART void inner_row(const product *t, int32_t row)
{
    const float *const first = t->p + row * t->p_row, *q = t->q,
                       *bias = t->bias ? t->bias + row * t->bias_row : nothing;
    const ptrdiff_t bias_step = t->bias ? t->bias_column : 0;
    const int is_plain = t->alpha == 1.0f && !t->bias; /* no total is -0 */
    const int32_t wide = t->depth / 16, rest = t->depth % 16, most = BLOCK;
    float *y = t->y + row * t->y_row, totals[4];
    int32_t column;
#if defined(POETC_FUSED)
#define PUT_SUM "vfma.f32 s1, s0, s2\n\tvmov.f32 s0, s1\n\t"
#else
#define PUT_SUM "vmul.f32 s0, s0, s2\n\tvadd.f32 s0, s0, s1\n\t"
#endif
#define EIGHT(a, b, c, d, e, f, g, h)                                                                                  \
    "vldmia %[p]!, {s16-s23}\n\tvldmia %[q]!, {s24-s31}\n\t"                                                           \
    PRODUCTS_4(a, b, c, d, 16, 17, 18, 19, 24, 25, 26, 27) PRODUCTS_4(e, f, g, h, 20, 21, 22, 23, 28, 29, 30, 31)
    for (column = 0; column < t->columns; column++, bias += bias_step) {
        const int in_fours = column / 4 * 4 + 4 <= t->columns;
        float *const total = in_fours ? totals + column % 4 : totals;
        const float *p = first;
        int32_t left = wide, n;
        if (in_fours && column % 4 == 0) {
            totals[0] = totals[1] = totals[2] = totals[3] = 0.0f;
            for (; left > 0; left -= most)
                inner_four(p + 16 * (wide - left), q + 16 * (wide - left), t->q_step, left > most ? most : left,
                           totals);
            if (rest == 0) {
                if (is_plain) {
                    const float *from = totals;
                    POETC_COPY_QUAD(y, from);
                } else {
                    for (n = 0; n < 4; n++)
                        *y++ = POETC_FMA(t->alpha, totals[n], bias[n * bias_step]);
                }
                q += 4 * t->q_step, column += 3, bias += 3 * bias_step;
                continue;
            }
        }
        if (in_fours)
            p += 16 * wide, q += 16 * wide, left = 0;
        else
            *total = 0.0f;
        for (; left > 0; left -= most) {
            n = left > most ? most : left;
            /* clang-format off */
            __asm__ volatile("vldmia %[none], {s0-s15}\n"
                             "1:\t" EIGHT(0, 1, 2, 3, 4, 5, 6, 7) EIGHT(8, 9, 10, 11, 12, 13, 14, 15)
                             "subs %[n], #1\n\tbne 1b\n\tvldr s16, [%[total]]\n\t"
                             ADD(0, 8) ADD(1, 9) ADD(2, 10) ADD(3, 11) ADD(4, 12) ADD(5, 13) ADD(6, 14) ADD(7, 15)
                             ADD(0, 4) ADD(1, 5) ADD(2, 6) ADD(3, 7) ADD(0, 1) ADD(2, 3) ADD(0, 2) ADD(16, 0)
                             "vstr s16, [%[total]]"
                             : [p] "+&r"(p), [q] "+&r"(q), [n] "+&r"(n)
                             : [total] "r"(total), [none] "r"(nothing)
                             : ALL_REGISTERS);
            /* clang-format on */
        }
        n = rest;
        /* clang-format off */
        __asm__ volatile("vldr s0, [%[total]]\n\tvldr s1, [%[bias]]\n\tvldr s2, [%[alpha]]\n\t"
                         "subs %[n], #8\n\tblt 1f\n\t" EIGHT(0, 0, 0, 0, 0, 0, 0, 0) "b 2f\n"
                         "1:\tadds %[n], #8\n"
                         "2:\tbeq 4f\n"
                         "3:\tvldmia %[p]!, {s16}\n\tvldmia %[q]!, {s24}\n\tsubs %[n], #1\n\t" MLA(0, 16, 24) "bne 3b\n"
                         "4:\t" PUT_SUM "vstmia %[y]!, {s0}"
                         : [p] "+&r"(p), [q] "+&r"(q), [n] "+&r"(n), [y] "+&r"(y)
                         : [total] "r"(total), [bias] "r"(bias), [alpha] "r"(&t->alpha)
                         : ALL_REGISTERS);
        /* clang-format on */
    }
#undef EIGHT
#undef PUT_SUM
}

#endif
