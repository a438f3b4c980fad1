#include "gemm/poetc_gemm.h"

#if POETC_LANES >= 8
#include <immintrin.h>
#endif

#define LANES POETC_LANES
#define COLUMNS POETC_GEMM_COLUMNS
#define HALF (LANES > 1 ? POETC_GEMM_VECTORS / 2 * LANES : 0) /* a narrow block, where there is one */

/* Six rows at once, where they are read in place: all 32 registers of the FPU of Cortex-M. */
#if LANES == 1 && POETC_FPU_M
#define SIX_ROWS 1
#define TILE_ROWS 6
#else
#define SIX_ROWS 0
#define TILE_ROWS POETC_GEMM_ROWS
#endif

/* Few registers for addresses: rows of a are packed even where they could be read in place. */
#if defined(POETC_HELIUM)
#define ALWAYS_PACKED 1
#else
#define ALWAYS_PACKED 0
#endif

/* Several blocks of terms while their results lie in the innermost cache. */
#if LANES > 1 && !defined(POETC_HELIUM)
#define MANY_BLOCKS 1
#else
#define MANY_BLOCKS 0
#endif

#if LANES == 16
#define UNROLL_TERMS POETC_UNROLL_2
#else
#define UNROLL_TERMS
#endif

#define BRING_TERMS 64 /* between lines that are brought: many at once would be waited for */
#define MOST_DEPTH 256 /* rows of a block of a, so long, lie in the innermost cache */
#define DEEP_PANELS 2  /* what so few share of a is read once or twice: in long pieces, which the processor sees coming */
#define SHORT_ROW 1024 /* floats: such rows are fetched ahead by hand */

#if defined(__GNUC__) && LANES > 1
#define PREFETCH(address) __builtin_prefetch(address)
#define PREFETCH_OUTER(address) __builtin_prefetch(address, 0, 2)
#define PREFETCH_RESULT(address) __builtin_prefetch(address, 1)
#else
#define PREFETCH(address) ((void)(address))
#endif

#ifdef POETC_AHEAD
#define LINE 16 /* floats */

/* What is still to be brought, a few lines before each panel. */
typedef struct {
    const float *at;
    ptrdiff_t jump; /* from the end of a row to the next one */
    int32_t width, left, rows; /* lines of a row, of this one, rows */
    int32_t each;
} lines_ahead;

POETC_INLINE void bring(lines_ahead *l)
{
    int32_t i;
    for (i = l->each; i > 0 && l->rows > 0; i--, l->at += LINE) {
        PREFETCH_OUTER(l->at);
        if (--l->left == 0)
            l->left = l->width, l->at += l->jump, l->rows--;
    }
}

/* Rows of results from number `row` on, before they are read or written: the next `each` of `rows`. */
POETC_INLINE int32_t bring_results(const float *y, ptrdiff_t y_row, int32_t row, int32_t each, const int rows, const int vectors)
{
    const int32_t end = poetc_min(row + each, rows);
    for (; row < end; row++) {
        PREFETCH_RESULT(y + row * y_row);
        PREFETCH_RESULT(y + row * y_row + (vectors - 1) * LANES);
    }
    return row;
}
#else
#define bring(lines) ((void)0)
#endif

typedef struct {
    const float *a;
    ptrdiff_t a_row;
    int packed; /* a is a block [depth][rows] */
    const float *b;
    float *y;
    ptrdiff_t y_row;
    int32_t depth, panels; /* panels of b that follow each other, and their results likewise */
#if MANY_BLOCKS
    int32_t terms;
    ptrdiff_t a_block;
#endif
#ifdef POETC_AHEAD
    lines_ahead *ahead;
    const float *scale; /* or NULL */
#endif
#ifdef POETC_AT_ONCE
    const float *rate; /* or NULL */
#endif
    int narrow;            /* half of the columns are enough */
    int accumulate;
    const float *row_bias, *column_bias;
} block_task;

/* What the sums of a row begin with. */
POETC_INLINE void start(poetc_vector *sum, const int vectors, const float *row_bias, const float *column_bias)
{
    int j;
    POETC_UNROLL
    for (j = 0; j < vectors; j++)
        sum[j] = (poetc_vector){0};
    if (row_bias) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            sum[j] += *row_bias;
    } else if (column_bias) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            sum[j] = poetc_vector_load(column_bias + j * LANES);
    }
}

POETC_INLINE void finish(const poetc_vector *sum, const int vectors, float *y, int accumulate, const float *rate,
                         const float *scale)
{
    int j;
#if POETC_FPU_M && LANES == 1
    if (rate || accumulate) { /* four together */
        const float *old = y;
        POETC_QUAD_A(p);
        POETC_LOAD_QUAD(p, old);
        if (rate) {
            POETC_MULTIPLY_SUBTRACT(p0, sum[0], *rate);
            POETC_MULTIPLY_SUBTRACT(p1, sum[1], *rate);
            POETC_MULTIPLY_SUBTRACT(p2, sum[2], *rate);
            POETC_MULTIPLY_SUBTRACT(p3, sum[3], *rate);
        } else {
            p0 += sum[0], p1 += sum[1], p2 += sum[2], p3 += sum[3];
        }
        POETC_STORE_QUAD(y, p);
        return;
    }
#endif
    if (rate) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES, poetc_vector_load(y + j * LANES) - sum[j] * *rate);
    } else if (scale) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES, (accumulate ? poetc_vector_load(y + j * LANES) + sum[j] : sum[j]) * *scale);
    } else if (accumulate) {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES, poetc_vector_load(y + j * LANES) + sum[j]);
    } else {
        POETC_UNROLL
        for (j = 0; j < vectors; j++)
            poetc_vector_store(y + j * LANES, sum[j]);
    }
}

#if defined(POETC_HELIUM)

/* `rows` x 4 results in registers, a packed: the factors of a step come to core registers in one
 * instruction. */
POETC_INLINE void block(const int rows, const int vectors, const block_task *t, const ptrdiff_t a_row,
                        const ptrdiff_t a_k)
{
    poetc_vector sum[POETC_GEMM_ROWS];
    const float *const first = t->a, *const row_bias = t->row_bias, *column_bias = t->column_bias, *b = t->b;
    const int32_t depth = t->depth;
    const ptrdiff_t y_row = t->y_row;
    const int accumulate = t->accumulate;
    float *y = t->y;
    int32_t k, column;
    int i;
    (void)a_row, (void)a_k;
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *a = first;
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            start(sum + i, vectors, row_bias ? row_bias + i : NULL, column_bias);
        if (column_bias)
            column_bias += COLUMNS;
#define STEP_OF_4                                                                                                      \
    "vldrw.u32 %q[v], [%[b]], #16\n\tldmia %[a]!, {r4, r5, r6, r8}\n\t"                                                \
    "vfma.f32 %q[s0], %q[v], r4\n\tvfma.f32 %q[s1], %q[v], r5\n\tvfma.f32 %q[s2], %q[v], r6\n\tvfma.f32 %q[s3], %q[v], r8\n\t"
#define STEP_OF_6                                                                                                      \
    "vldrw.u32 %q[v], [%[b]], #16\n\tldmia %[a]!, {r4, r5, r6, r8, r9, r10}\n\t"                                       \
    "vfma.f32 %q[s0], %q[v], r4\n\tvfma.f32 %q[s1], %q[v], r5\n\tvfma.f32 %q[s2], %q[v], r6\n\tvfma.f32 %q[s3], %q[v], r8\n\t" \
    "vfma.f32 %q[s4], %q[v], r9\n\tvfma.f32 %q[s5], %q[v], r10\n\t"
#define STEPS(step) /* by fours, then the rest */                                                                      \
    "wls lr, %[fours], 2f\n1:\t" step step step step "le lr, 1b\n2:\twls lr, %[rest], 4f\n3:\t" step "le lr, 3b\n4:"
        if (rows == 6) {
            poetc_vector v;
            __asm__(STEPS(STEP_OF_6)
                    : [s0] "+w"(sum[0]), [s1] "+w"(sum[1]), [s2] "+w"(sum[2]), [s3] "+w"(sum[3]), [s4] "+w"(sum[4]),
                      [s5] "+w"(sum[5]), [v] "=&w"(v), [a] "+r"(a), [b] "+r"(b)
                    : [fours] "r"(depth / 4), [rest] "r"(depth % 4)
                    : "r4", "r5", "r6", "r8", "r9", "r10", "lr", "memory");
        } else if (rows == 4) {
            poetc_vector v;
            __asm__(STEPS(STEP_OF_4)
                    : [s0] "+w"(sum[0]), [s1] "+w"(sum[1]), [s2] "+w"(sum[2]), [s3] "+w"(sum[3]), [v] "=&w"(v), [a] "+r"(a),
                      [b] "+r"(b)
                    : [fours] "r"(depth / 4), [rest] "r"(depth % 4)
                    : "r4", "r5", "r6", "r8", "lr", "memory");
        } else {
            POETC_UNROLL_PAIR
            for (k = depth; k > 0; k--, b += COLUMNS) {
                const poetc_vector v = poetc_vector_load(b);
                register float f0 __asm__("r4"), f1 __asm__("r5");
                if (rows == 2)
                    __asm__("ldmia %2!, {%0, %1}" : "=r"(f0), "=r"(f1), "+r"(a) : "m"(*(const float(*)[2])a));
                else
                    f0 = *a++;
                POETC_ADD_SCALED(sum[0], v, f0);
                if (rows > 1)
                    POETC_ADD_SCALED(sum[1], v, f1);
            }
        }
#undef STEPS
#undef STEP_OF_6
#undef STEP_OF_4
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            finish(sum + i, vectors, y + i * y_row, accumulate, NULL, NULL);
    }
}

#elif LANES > 1

/* `rows` x `vectors` results in registers: both are constants wherever this is inlined. */
POETC_INLINE void block(const int rows, const int vectors, const block_task *t, const ptrdiff_t a_row,
                           const ptrdiff_t a_k)
{
    poetc_vector sum[POETC_GEMM_ROWS][POETC_GEMM_VECTORS];
    const float *const first = t->a, *column_bias = t->column_bias, *b = t->b;
    const int32_t depth = t->depth, terms = t->terms;
    const ptrdiff_t y_row = t->y_row, jump = t->a_block - terms * a_k;
#ifdef POETC_AHEAD
    const float *const rate = t->rate, *const scale = t->scale;
    const int32_t shortest = poetc_min(depth, terms), each = shortest > BRING_TERMS ? rows * BRING_TERMS / shortest + 1 : rows;
#else
    const float *const rate = NULL, *const scale = NULL;
#endif
    float *y = t->y;
    int32_t k, column, left;
    int i, j;
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *a = first, *row_bias = t->row_bias, *column_bias_here = column_bias;
        int accumulate = t->accumulate;
#ifdef POETC_AHEAD
        int32_t brought = 0;
#endif
        for (left = depth; left > 0; left -= terms, a += jump) {
            int32_t more = left < terms ? left : terms;
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                start(sum[i], vectors, row_bias ? row_bias + i : NULL, column_bias_here);
            for (; more > 0; more -= BRING_TERMS) {
                bring(t->ahead);
#ifdef POETC_AHEAD
                brought = bring_results(y, y_row, brought, each, rows, vectors);
#endif
                UNROLL_TERMS
                for (k = more < BRING_TERMS ? more : BRING_TERMS; k > 0; k--, a += a_k, b += COLUMNS) {
                    POETC_UNROLL
                    for (i = 0; i < rows; i++) {
                        POETC_UNROLL
                        for (j = 0; j < vectors; j++)
                            POETC_ADD_SCALED(sum[i][j], poetc_vector_load(b + j * LANES), a[i * a_row]);
                    }
                }
            }
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                finish(sum[i], vectors, y + i * y_row, accumulate, rate, left <= terms ? scale : NULL);
            row_bias = column_bias_here = NULL, accumulate = 1;
        }
        if (column_bias)
            column_bias += COLUMNS;
    }
}

#else

/* `rows` x 4 results in registers. */
POETC_INLINE void block(const int rows, const int vectors, const block_task *t, const ptrdiff_t a_row,
                        const ptrdiff_t a_k)
{
    float sum[POETC_GEMM_ROWS][4];
    const float *const first = t->a, *const row_bias = t->row_bias, *column_bias = t->column_bias, *b = t->b;
    const int32_t depth = t->depth;
    const ptrdiff_t y_row = t->y_row;
    const int accumulate = t->accumulate;
#ifdef POETC_AT_ONCE
    const float *const rate = t->rate;
#else
    const float *const rate = NULL;
#endif
    float *y = t->y;
    int32_t column, k;
    int i;
    POETC_QUAD_A(p);
    POETC_QUAD_B(q);
    for (column = t->panels; column > 0; column--, y += COLUMNS) {
        const float *a = first;
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            start(sum[i], vectors, row_bias ? row_bias + i : NULL, column_bias);
        if (column_bias)
            column_bias += COLUMNS;
#define ADD_ROW(i, factor)                                                                                             \
    POETC_MULTIPLY_ADD(sum[i][0], q0, factor);                                                                         \
    POETC_MULTIPLY_ADD(sum[i][1], q1, factor);                                                                         \
    POETC_MULTIPLY_ADD(sum[i][2], q2, factor);                                                                         \
    POETC_MULTIPLY_ADD(sum[i][3], q3, factor)
        if (rows == 4 && a_k == 4) { /* packed */
            for (k = depth; k > 0; k--) {
                POETC_LOAD_QUAD(p, a);
                POETC_LOAD_QUAD(q, b);
                ADD_ROW(0, p0);
                ADD_ROW(1, p1);
                ADD_ROW(2, p2);
                ADD_ROW(3, p3);
            }
        } else {
            const float *row[4];
            POETC_UNROLL
            for (i = 0; i < rows; i++)
                row[i] = a + i * a_row;
            POETC_UNROLL_4
            for (k = depth; k > 0; k--) {
                POETC_LOAD_QUAD(q, b);
                POETC_UNROLL
                for (i = 0; i < rows; i++) {
                    const float factor = *row[i];
                    ADD_ROW(i, factor);
                    row[i] += a_k;
                }
            }
        }
#undef ADD_ROW
        POETC_UNROLL
        for (i = 0; i < rows; i++)
            finish(sum[i], vectors, y + i * y_row, accumulate, rate, NULL);
    }
}

#endif

#define DEFINE_BLOCK(ROWS)                                                                                             \
    static void block_##ROWS(const block_task *t)                                                                      \
    {                                                                                                                  \
        if (ALWAYS_PACKED)                                                                                             \
            block(ROWS, POETC_GEMM_VECTORS, t, 1, ROWS);                                                               \
        else if (HALF && t->narrow && t->packed)                                                                            \
            block(ROWS, HALF / LANES, t, 1, ROWS);                                                                     \
        else if (HALF && t->narrow)                                                                                    \
            block(ROWS, HALF / LANES, t, t->a_row, 1);                                                                 \
        else if (t->packed)                                                                                            \
            block(ROWS, POETC_GEMM_VECTORS, t, 1, ROWS);                                                               \
        else                                                                                                           \
            block(ROWS, POETC_GEMM_VECTORS, t, t->a_row, 1);                                                           \
    }

#if POETC_GEMM_ROWS >= 12
DEFINE_BLOCK(12)
DEFINE_BLOCK(8)
#elif POETC_GEMM_ROWS >= 6
DEFINE_BLOCK(6)
#endif
DEFINE_BLOCK(4)
#if POETC_GEMM_ROWS == 4
DEFINE_BLOCK(3)
#endif
DEFINE_BLOCK(2)
DEFINE_BLOCK(1)

#if SIX_ROWS
#include "gemm/poetc_gemm_fpu.h"
#else
#define single_column(t) ((void)0)
#endif

/* The largest block that fits. */
static int32_t block_rows(int32_t left, int packed)
{
    (void)packed;
#if POETC_GEMM_ROWS >= 12
    if (LANES == 16 && left == 16) /* two of eight: four rows wait for what they load */
        return 8;
    return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
#elif POETC_GEMM_ROWS >= 6
    return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
#else
    if (SIX_ROWS && left == 6 && !packed)
        return 6;
    return left >= 4 && left != 6 ? 4 : left >= 3 ? 3 : left;
#endif
}

static void run_block(int32_t rows, const block_task *t)
{
#if SIX_ROWS
    if (rows == 4 && !t->column_bias) {
        block_of_four(t);
        return;
    }
#endif
    switch (rows) {
#if POETC_GEMM_ROWS >= 12
    case 12: block_12(t); break;
    case 8: block_8(t); break;
#elif POETC_GEMM_ROWS >= 6
    case 6: block_6(t); break;
#endif
    case 4: block_4(t); break;
#if POETC_GEMM_ROWS == 4
    case 3: block_3(t); break;
#endif
#if SIX_ROWS
    case 6: block_6(t); break;
#endif
    case 2: block_2(t); break;
    default: block_1(t); break;
    }
}

/* Copy `width` columns of y from number `column` on into the tile, or back. */
POETC_APART void exchange(const poetc_gemm *g, float *y, int32_t rows, int32_t column, int32_t width, float *tile, int back)
{
    while (width > 0) {
        const int32_t image = column < g->segment ? 0 : column / g->segment, within = column - image * g->segment;
        const int32_t count = poetc_min(width, g->segment - within);
        float *at = y + image * g->segment_step + within;
        int32_t i;
        for (i = 0; i < rows; i++, at += g->y_row) {
            if (back)
                poetc_put_piece(at, tile + i * COLUMNS, 1, count);
            else
                poetc_put_piece(tile + i * COLUMNS, at, 1, count);
        }
        column += count, tile += count, width -= count;
    }
}

/* rows, a multiple of 4 and a constant wherever this is inlined, contiguous in a. */
POETC_INLINE void pack_contiguous(float *to, const float *from, ptrdiff_t step, int32_t depth, const int rows)
{
    int32_t k;
    int i;
    for (k = 0; k < depth; k++, from += step, to += rows) {
        PREFETCH(from + rows + 16); /* for the next block: steps of many lines are beyond what caches foresee */
#if LANES == 16
        if (rows == 12) {
            const __mmask16 twelve = 0xfff;
            _mm512_mask_storeu_ps(to, twelve, _mm512_maskz_loadu_ps(twelve, from));
            continue;
        }
#endif
        POETC_UNROLL
        for (i = 0; i < rows; i += 4) {
#if LANES == 1
            const float *source = from + i;
            float *target = to + i;
            POETC_QUAD_B(q);
            POETC_LOAD_QUAD(q, source);
            POETC_STORE_QUAD(target, q);
#else
            poetc_f4_store(to + i, poetc_f4_load(from + i));
#endif
        }
    }
}

POETC_APART void pack_rows(float *to, const poetc_gemm *g, int32_t row, int32_t rows)
{
    const float *from = g->a + row * g->a_row;
    int32_t k, i;
#if POETC_GEMM_ROWS >= 12
    if (g->a_row == 1 && rows == 12) {
        pack_contiguous(to, from, g->a_k, g->depth, 12);
        return;
    }
    if (g->a_row == 1 && rows == 8) {
        pack_contiguous(to, from, g->a_k, g->depth, 8);
        return;
    }
#endif
    if (g->a_row == 1 && rows == 4) {
        pack_contiguous(to, from, g->a_k, g->depth, 4);
#if defined(POETC_HELIUM)
    } else if (g->a_row == 1 && rows == 6) {
        if (g->depth > 0)
            __asm__ volatile("dls lr, %[n]\n1:\tvldrw.u32 q0, [%[from]]\n\tldrd r4, r5, [%[from], #16]\n\tadd %[from], %[from], %[step]\n\t"
                             "vstrw.32 q0, [%[to]], #16\n\tstrd r4, r5, [%[to]], #8\n\tle lr, 1b"
                             : [from] "+r"(from), [to] "+r"(to)
                             : [n] "r"(g->depth), [step] "r"(4 * g->a_k)
                             : "lr", "r4", "r5", "q0", "memory");
    } else if (g->a_k == 1) {
        poetc_pack_apart(to, from, g->a_row, rows, g->depth);
#endif
    } else {
        for (k = 0; k < g->depth; k++, from += g->a_k)
            for (i = 0; i < rows; i++)
                *to++ = from[i * g->a_row];
    }
}

#ifdef POETC_AHEAD
/* In as many parts, at least. */
static lines_ahead look_ahead(const poetc_ahead *ahead, int32_t parts)
{
    lines_ahead l = {ahead->from, 0, (ahead->floats + LINE - 1) / LINE, 0, ahead->rows, 0};
    l.left = l.width, l.jump = ahead->step - l.width * LINE;
    if (ahead->rows > 0 && parts > 0)
        l.each = (l.width * l.rows + parts - 1) / parts;
    return l;
}

/* What the block of rows from number `row` on will read: its weights that descend, or its rows of a if they are short (pieces of
 * long ones cost more than they give). */
static lines_ahead look_ahead_of_rows(const poetc_gemm *g, int32_t row, int32_t parts)
{
    const int32_t rows = poetc_min(POETC_GEMM_ROWS, g->rows - row);
    poetc_ahead next = {NULL, 0, 0, 0};
    if (rows > 0 && g->rate && g->columns <= SHORT_ROW)
        next = (poetc_ahead){g->y + row * g->y_row, g->y_row, rows, g->columns};
    else if (rows > 0 && g->a_k == 1 && ((g->a_row <= g->depth && g->a_row <= SHORT_ROW) || g->depth <= g->terms))
        next = (poetc_ahead){g->a + row * g->a_row, g->a_row, rows, g->depth};
    return look_ahead(&next, parts);
}
#endif

void poetc_gemm_run(const poetc_gemm *g, const poetc_gemm_space *space)
{
    float tile[TILE_ROWS * COLUMNS], bias[COLUMNS]; /* a block at an edge */
    int32_t row, column, rows, i;
#ifdef POETC_AHEAD
    const int32_t pieces = (poetc_min(g->depth, g->terms) + BRING_TERMS - 1) / BRING_TERMS; /* of a block of terms */
    const int32_t times = (g->columns + COLUMNS - 1) / COLUMNS * ((g->depth + g->terms - 1) / g->terms) * pieces;
    lines_ahead lines = look_ahead(&g->ahead, times * ((g->rows + POETC_GEMM_ROWS - 1) / POETC_GEMM_ROWS));
#endif
    for (row = POETC_BEGIN(g->share, g->rows, POETC_GEMM_PART); row < POETC_END(g->share, g->rows, POETC_GEMM_PART);
         row += rows) {
        float *y = g->y + row * g->y_row;
        block_task t;
        rows = block_rows(POETC_END(g->share, g->rows, POETC_GEMM_PART) - row, ALWAYS_PACKED || g->a_k != 1);
        t.a = g->a + row * g->a_row, t.a_row = g->a_row;
        t.packed = ALWAYS_PACKED || g->a_k != 1;
        t.depth = g->depth, t.accumulate = g->accumulate;
#ifdef POETC_AHEAD
        if (g->ahead.rows == 0)
            lines = look_ahead_of_rows(g, row + rows, times);
        t.ahead = &lines, t.scale = g->scale;
#endif
#ifdef POETC_AT_ONCE
        t.rate = g->rate;
#endif
#if MANY_BLOCKS
        t.terms = g->terms, t.a_block = t.packed ? g->terms * rows : g->a_block;
#endif
        t.row_bias = g->row_bias && !g->accumulate ? g->row_bias + row : NULL;
        t.column_bias = NULL;
        if (t.packed) {
            pack_rows(space->rows, g, row, rows);
            t.a = space->rows;
        }
        for (column = 0; column < g->columns; column += t.panels * COLUMNS) {
            const int32_t left = g->columns - column, width = poetc_min(COLUMNS, left), at = g->column + column;
            const int32_t image = at < g->segment ? 0 : at / g->segment, within = at - image * g->segment;
            const int32_t room = poetc_min(left, g->segment - within);
            t.b = poetc_gemm_panel(space, column, g->depth);
            t.narrow = HALF && width <= HALF;
            t.panels = 1;
            if (g->column_bias && !g->accumulate)
                t.column_bias = g->column_bias + at;
            if (room >= COLUMNS || (t.narrow && room == HALF)) {
                if (room >= COLUMNS)
                    t.panels = room / COLUMNS;
                t.y = y + image * g->segment_step + within, t.y_row = g->y_row;
                run_block(rows, &t);
            } else if (SIX_ROWS && width == 1 && rows == 4) {
                t.y = y + image * g->segment_step + within, t.y_row = g->y_row;
                single_column(&t);
            } else {
                if (t.column_bias) {
                    for (i = 0; i < COLUMNS; i++)
                        bias[i] = i < width ? t.column_bias[i] : 0.0f;
                    t.column_bias = bias;
                }
                t.y = tile, t.y_row = COLUMNS;
                if (g->accumulate || POETC_RATE(*g))
                    exchange(g, y, rows, at, width, tile, 0);
                run_block(rows, &t);
                exchange(g, y, rows, at, width, tile, 1);
            }
        }
    }
}

poetc_gemm_space poetc_gemm_carve(float *workspace, int32_t size, int32_t terms, int32_t blocks, int32_t columns,
                                  int pack_rows)
{
    poetc_gemm_space space;
    /* Panels on a cache line: a vector that crosses two costs twice. */
    ptrdiff_t skip = (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
    const int32_t rows = pack_rows || ALWAYS_PACKED ? POETC_GEMM_ROWS : 0;
    space.panels = workspace + skip;
    workspace[size - 1] = 0.0f; /* so that the memory that is touched does not depend on the address */
    size -= 16;
    space.depth = terms;
#if MANY_BLOCKS
    {
        const int32_t most = COLUMNS > 128 ? 1 : 128 / COLUMNS, needed = (columns + COLUMNS - 1) / COLUMNS;
        const int32_t fit = size / (terms * (poetc_min(most, needed) * COLUMNS + rows));
        if (fit > 1 && !rows) /* rows of few floats that lie far apart are best packed few at a time */
            space.depth = terms * poetc_min(poetc_min(fit, blocks), needed <= DEEP_PANELS ? blocks : MOST_DEPTH / terms);
    }
#else
    (void)blocks, (void)columns;
#endif
    size -= rows * space.depth;
    space.columns = size / (space.depth * COLUMNS) * COLUMNS;
    space.rows = space.panels + (ptrdiff_t)space.columns * space.depth;
    return space;
}

void poetc_gemm_pack(const poetc_gemm_space *space, const float *b, ptrdiff_t step, int32_t depth, int32_t columns)
{
    int32_t k;
#ifdef POETC_AHEAD
    if (columns % COLUMNS == 0) { /* panel by panel: writing to many at once takes as long again */
        float *to = space->panels;
        for (; columns > 0; columns -= COLUMNS, b += COLUMNS) {
            const float *from = b;
            for (k = depth; k > 0; k--, from += step, to += COLUMNS) {
                const poetc_vector first = poetc_vector_load(from), second = poetc_vector_load(from + LANES);
                poetc_vector_store(to, first);
                poetc_vector_store(to + LANES, second);
            }
        }
        return;
    }
#endif
    for (k = 0; k < depth; k++, b += step)
        poetc_gemm_put(space, depth, k, 0, b, 1, columns);
    poetc_gemm_put_end(space, depth, columns);
}

/* Four columns of b, contiguous along the depth, into four lanes of a panel. */
POETC_INLINE void transpose_four(float *to, const float *from, ptrdiff_t step, int32_t depth)
{
    int32_t k = 0;
#if LANES == 1
    const float *next[4] = {from, from + step, from + 2 * step, from + 3 * step};
    POETC_UNROLL_4
    for (; k < depth; k++) {
        POETC_QUAD_B(q);
        q0 = *next[0]++, q1 = *next[1]++, q2 = *next[2]++, q3 = *next[3]++;
        POETC_STORE_QUAD(to, q);
    }
#elif defined(POETC_HELIUM)
    const uint32_t row = (uint32_t)step * 4u;
    const uint32x4_t offsets = {0, row, 2u * row, 3u * row};
    for (; k < depth; k++, to += COLUMNS)
        vst1q_f32(to, vldrwq_gather_offset_f32(from + k, offsets));
#else
    int i;
    for (; k + 4 <= depth; k += 4, from += 4, to += 4 * COLUMNS) {
        poetc_f4 r0 = poetc_f4_load(from), r1 = poetc_f4_load(from + step);
        poetc_f4 r2 = poetc_f4_load(from + 2 * step), r3 = poetc_f4_load(from + 3 * step);
        poetc_f4_transpose(&r0, &r1, &r2, &r3);
        poetc_f4_store(to, r0);
        poetc_f4_store(to + COLUMNS, r1);
        poetc_f4_store(to + 2 * COLUMNS, r2);
        poetc_f4_store(to + 3 * COLUMNS, r3);
    }
    for (; k < depth; k++, from++, to += COLUMNS)
        for (i = 0; i < 4; i++)
            to[i] = from[i * step];
#endif
}

#if LANES == 16
#define INSERT(v, from, slot) _mm512_insertf32x4(v, _mm_loadu_ps(from), slot)
#define FIRST(from) _mm512_castps128_ps512(_mm_loadu_ps(from))
#define LOW(u, v) (poetc_vector) _mm512_unpacklo_ps(u, v)
#define HIGH(u, v) (poetc_vector) _mm512_unpackhi_ps(u, v)
#define LOW_PAIR(u, v) (poetc_vector) _mm512_unpacklo_pd((__m512d)(u), (__m512d)(v))
#define HIGH_PAIR(u, v) (poetc_vector) _mm512_unpackhi_pd((__m512d)(u), (__m512d)(v))
#elif LANES == 8
#define INSERT(v, from, slot) _mm256_insertf128_ps(v, _mm_loadu_ps(from), slot)
#define FIRST(from) _mm256_castps128_ps256(_mm_loadu_ps(from))
#define LOW(u, v) (poetc_vector) _mm256_unpacklo_ps(u, v)
#define HIGH(u, v) (poetc_vector) _mm256_unpackhi_ps(u, v)
#define LOW_PAIR(u, v) (poetc_vector) _mm256_unpacklo_pd((__m256d)(u), (__m256d)(v))
#define HIGH_PAIR(u, v) (poetc_vector) _mm256_unpackhi_pd((__m256d)(u), (__m256d)(v))
#endif

#if LANES >= 8
#define FOURS (LANES / 4)

/* LANES columns of b, `blocks` times LANES terms, into as many lanes of rows `to_step` apart. Each line of b is read at once: columns a power of two
 * apart share few places in a cache. */
void poetc_transpose_lanes(float *to, ptrdiff_t to_step, const float *from, ptrdiff_t step, int32_t blocks)
{
    poetc_vector v[FOURS][4];
    int four, i;
    for (; blocks > 0; blocks--, from += LANES, to += LANES * to_step) {
        POETC_UNROLL
        for (i = 0; i < 4; i++) {
            POETC_UNROLL
            for (four = 0; four < FOURS; four++)
                v[four][i] = (poetc_vector)FIRST(from + i * step + 4 * four);
        }
#define INSERT_ROWS(slot)                                                                                              \
    POETC_UNROLL                                                                                                       \
    for (i = 0; i < 4; i++) {                                                                                          \
        POETC_UNROLL                                                                                                   \
        for (four = 0; four < FOURS; four++)                                                                           \
            v[four][i] = (poetc_vector)INSERT(v[four][i], from + (4 * (slot) + i) * step + 4 * four, slot);            \
    }
        INSERT_ROWS(1)
#if LANES == 16
        INSERT_ROWS(2)
        INSERT_ROWS(3)
#endif
        POETC_UNROLL
        for (four = 0; four < FOURS; four++) {
            const poetc_vector ab = LOW(v[four][0], v[four][1]), cd = LOW(v[four][2], v[four][3]);
            const poetc_vector ef = HIGH(v[four][0], v[four][1]), gh = HIGH(v[four][2], v[four][3]);
            poetc_vector_store(to + (4 * four) * to_step, LOW_PAIR(ab, cd));
            poetc_vector_store(to + (4 * four + 1) * to_step, HIGH_PAIR(ab, cd));
            poetc_vector_store(to + (4 * four + 2) * to_step, LOW_PAIR(ef, gh));
            poetc_vector_store(to + (4 * four + 3) * to_step, HIGH_PAIR(ef, gh));
        }
    }
}
#endif

void poetc_gemm_pack_transposed(const poetc_gemm_space *space, const float *b, ptrdiff_t step, int32_t first,
                                int32_t count, int32_t depth, int32_t columns)
{
    int32_t column = 0, k;
#if LANES >= 8
    for (; column + LANES <= columns; column += LANES) {
        const float *from = b + column * step;
        float *to = poetc_gemm_panel(space, column, depth) + first * COLUMNS + column % COLUMNS;
        const int32_t whole = count / LANES * LANES;
        poetc_transpose_lanes(to, COLUMNS, from, step, count / LANES);
        for (k = 0; k < LANES && whole < count; k += 4)
            transpose_four(to + whole * COLUMNS + k, from + k * step + whole, step, count - whole);
    }
#endif
    for (; column + 4 <= columns; column += 4)
        transpose_four(poetc_gemm_panel(space, column, depth) + first * COLUMNS + column % COLUMNS, b + column * step, step,
                       count);
    for (; column < columns; column++) {
        const float *from = b + column * step;
        float *to = poetc_gemm_panel(space, column, depth) + first * COLUMNS + column % COLUMNS;
        for (k = 0; k < count; k++, to += COLUMNS)
            *to = from[k];
    }
    if (first == 0)
        poetc_gemm_put_end(space, depth, columns);
}
