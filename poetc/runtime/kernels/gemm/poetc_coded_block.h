/* Register blocks of coded products: codes are decoded into vectors, which few rows take at once. Many rows take them
 * from panels, as poetc_gemm.c does.
 *
 * Layout: SIMD lanes lie along the columns of w, in pairs of vectors, which are a panel. Codes that lie along the
 * columns are decoded into even and odd columns, which are interleaved at the end. Codes along the depth come in words
 * of several terms, whose lanes are columns.
 * Order of sums: that of poetc_gemm_block.h. */
#ifndef POETC_CODED_BLOCK_H
#define POETC_CODED_BLOCK_H

#include "gemm/poetc_coded.h"
#include "gemm/poetc_gemm.h"
#include "simd/poetc_codes.h"

#ifdef POETC_CODE_LANES

#define LANES POETC_LANES
#define PAIR POETC_GEMM_COLUMNS
#define MOST_PAIRS 4
#define ZEROS 64 /* terms whose zero points are looked up at once */
#define PIECE 16 /* bytes of codes of a column that are taken at once */

#if POETC_LANES == 16 || defined(__aarch64__) /* 32 vector registers */
#define PAIRS_OF(rows) ((rows) <= 2 ? 4 : (rows) <= 4 ? 2 : 1)
#define MOST_ROWS 8
#else
#define PAIRS_OF(rows) ((rows) <= 2 ? 2 : 1)
#define MOST_ROWS 4
#endif
#ifndef FEW_ROWS
#define FEW_ROWS (MOST_ROWS + 3) /* so few take codes from registers */
#endif

/* Pairs that share a scale: whole blocks of 32 codes. */
#define SHARING(pairs) ((pairs) * PAIR <= 32 ? (pairs) : 1)

/* Factors of four rows and more lie side by side. A multiply-add may take one from a lane of a register, where up to
 * two rows have those of four terms. */
#if defined(__aarch64__) && defined(POETC_FUSED)
#define FACTORS poetc_vector factors[MOST_ROWS / 4];
#define FACTOR(i) (rows >= 4 ? factors[(i) / 4][(i) % 4] : x[(i) * t->x_row])
#define FACTOR_OF_FOUR(i, n) factors[rows >= 4 ? (i) / 4 : (i)][(rows >= 4 ? (i) : (n)) % 4]
#define LOAD_FACTORS                                                                                                   \
    POETC_UNROLL                                                                                                       \
    for (i = 0; i < rows / 4; i++)                                                                                     \
        factors[i] = poetc_vector_load(x + 4 * i);
#define LOAD_FOUR(n)                                                                                                   \
    LOAD_FACTORS                                                                                                       \
    if (rows >= 1 && rows < 4 && (n) % 4 == 0)                                                                         \
        factors[0] = poetc_vector_load(x);                                                                             \
    if (rows >= 2 && rows < 4 && (n) % 4 == 0)                                                                         \
        factors[1] = poetc_vector_load(x + t->x_row);
#else
#define FACTORS
#define FACTOR(i) (rows >= 4 ? x[i] : x[(i) * t->x_row])
#define FACTOR_OF_FOUR(i, n) FACTOR(i)
#define LOAD_FACTORS
#define LOAD_FOUR(n)
#endif

/* Terms first ... first + depth - 1 of columns column ... column + columns - 1. They go to panels, or into y. */
typedef struct {
    int32_t first, depth, column, columns;
    const float *x; /* of row 0 and the first term: [depth][rows] of four rows and more */
    ptrdiff_t x_row;
    float *y; /* of row 0 and column 0 */
    ptrdiff_t y_row;
    int accumulate;
    const float *bias; /* of column 0, or NULL */
    float *panels;     /* or NULL: of `column` and term `first` */
} coded_task;

/* Whether vectors can decode such blocks: a scale for each pair, or for each word, which lies at a multiple of 4. */
static inline int coded_fits(const poetc_coded *w, int turned, int32_t first, int32_t depth)
{
    const int32_t piece = PIECE * 8 / w->bits, unit = turned ? 32 / w->bits : PAIR;
    if (w->bits > 8 || (w->blocks > 1 && w->block % unit))
        return 0;
    return !turned || (first % piece == 0 && depth % piece == 0 && poetc_coded_bytes(w->bits, w->depth) % 4 == 0);
}

/* Zero points that are codes: number `block` of so many rows. */
static inline void unpack_zeros(const poetc_coded *w, int32_t row, int32_t rows, int32_t block, float *to, int step)
{
    const ptrdiff_t bytes = poetc_coded_bytes(w->bits, w->blocks);
    const uint8_t *from = w->zeros + row * bytes + (w->bits == 4 ? block >> 1 : block);
    const int shift = w->bits == 4 ? 4 * (block & 1) : 0, most = w->bits == 4 ? 15 : 255;
    for (; rows > 0; rows--, from += bytes, to += step)
        *to = (float)(*from >> shift & most);
}

/* Of the columns of a pair: the scales and zero points of a block. Zero points that are all the same stay. */
POETC_APART void look_up(const poetc_coded *w, int32_t column, int32_t block, float *scales, float *zeros)
{
    const ptrdiff_t at = (ptrdiff_t)column * w->blocks + block;
    int32_t j;
    for (j = 0; j < PAIR; j++)
        scales[j] = w->scales[at + j * (ptrdiff_t)w->blocks];
    for (j = 0; j < PAIR && w->points; j++)
        zeros[j] = w->points[at + j * (ptrdiff_t)w->blocks];
    if (w->zeros)
        unpack_zeros(w, column, PAIR, block, zeros, 1);
}

/* Sums of `rows` rows and `pairs` pairs, or decoded terms in panels if there are no rows. */
POETC_INLINE void start_sums(poetc_vector sum[][2 * MOST_PAIRS], const coded_task *t, const int rows, const int pairs,
                             const int apart, int32_t column)
{
    int i, j;
    POETC_UNROLL
    for (i = 0; i < rows; i++) {
        POETC_UNROLL
        for (j = 0; j < 2 * pairs; j++)
            sum[i][j] = t->bias && !t->accumulate ? poetc_vector_load(t->bias + column + j * LANES) : (poetc_vector){0};
        POETC_UNROLL
        for (j = 0; j < pairs; j++) {
            if (!apart || !t->bias)
                continue;
            const poetc_vector u = sum[i][2 * j], v = sum[i][2 * j + 1];
            sum[i][2 * j] = POETC_EVEN(u, v), sum[i][2 * j + 1] = POETC_ODD(u, v);
        }
    }
}

POETC_INLINE void finish_sums(poetc_vector sum[][2 * MOST_PAIRS], const coded_task *t, const int rows, const int pairs,
                              const int apart, int32_t column)
{
    int i, j;
    POETC_UNROLL
    for (i = 0; i < rows; i++) {
        float *y = t->y + i * t->y_row + column;
        POETC_UNROLL
        for (j = 0; j < 2 * pairs; j += 2, y += PAIR) {
            poetc_vector u = sum[i][j], v = sum[i][j + 1];
            if (apart) {
                const poetc_vector even = u;
                u = POETC_FIRST_OF(even, v), v = POETC_SECOND_OF(even, v);
            }
            if (t->accumulate)
                u = poetc_vector_load(y) + u, v = poetc_vector_load(y + LANES) + v;
            poetc_vector_store(y, u);
            poetc_vector_store(y + LANES, v);
        }
    }
}

#if defined(__aarch64__)
#include "gemm/poetc_coded_neon.h"
#endif

/* w [depth, columns]: the codes of a term follow each other. */
POETC_INLINE void coded_rows(const poetc_coded *w, const int bits, const int rows, const int pairs, const coded_task *t)
{
    const ptrdiff_t step = poetc_coded_bytes(bits, w->depth), blocks = w->blocks;
    const ptrdiff_t zero_step = w->points ? blocks : w->zeros ? pairs / SHARING(pairs) : 0;
    const int vectors = 2 * pairs, apart = bits == 4, scaled = pairs / SHARING(pairs);
    const int x_step = rows >= 4 ? rows : 1;
    const float half = bits == 4 ? 8.0f : 128.0f;
    int32_t column, k, left;
    int i, j;
    for (column = t->column; column + pairs * PAIR <= t->column + t->columns; column += pairs * PAIR) {
        const uint8_t *codes = w->codes + t->first * step + column * bits / 8;
        const float *x = t->x, *scales = w->scales + t->first * blocks;
        float *to = t->panels + (ptrdiff_t)(column - t->column) * t->depth;
        poetc_vector sum[MOST_ROWS][2 * MOST_PAIRS];
        FACTORS
        int32_t block[MOST_PAIRS], place[MOST_PAIRS];
        for (j = 0; j < scaled; j++) {
            block[j] = blocks > 1 ? (column + j * SHARING(pairs) * PAIR) / w->block : 0;
            place[j] = w->points ? block[j] : j;
        }
        start_sums(sum, t, rows, pairs, apart, column);
        for (left = t->depth; left > 0; left -= ZEROS) {
            const int32_t terms = poetc_min(left, ZEROS);
            const int32_t term = t->first + t->depth - left;
            float own[ZEROS * MOST_PAIRS];
            const float *zeros = w->points ? w->points + term * blocks : own;
            for (j = 0; j < scaled; j++)
                own[j] = half;
            for (j = 0; j < scaled && w->zeros; j++)
                unpack_zeros(w, term, terms, block[j], own + j, scaled);
            for (k = terms; k > 0; k--, codes += step, x += x_step, scales += blocks, zeros += zero_step) {
                poetc_words words[2 * MOST_PAIRS];
                LOAD_FACTORS
                poetc_words_of_bytes(words, codes, apart ? pairs : vectors);
                POETC_UNROLL
                for (j = 0; j < pairs; j++) {
                    const float scale = scales[block[j / SHARING(pairs)]], zero = zeros[place[j / SHARING(pairs)]];
                    const poetc_words first = apart ? words[j] & 15 : words[2 * j];
                    const poetc_words second = apart ? words[j] >> 4 : words[2 * j + 1];
                    const poetc_vector u = (POETC_FLOATS(first) - zero) * scale;
                    const poetc_vector v = (POETC_FLOATS(second) - zero) * scale;
                    POETC_UNROLL
                    for (i = 0; i < rows; i++) {
                        POETC_ADD_SCALED(sum[i][2 * j], u, FACTOR(i));
                        POETC_ADD_SCALED(sum[i][2 * j + 1], v, FACTOR(i));
                    }
                    if (rows == 0) {
                        poetc_vector_store(to, apart ? POETC_FIRST_OF(u, v) : u);
                        poetc_vector_store(to + LANES, apart ? POETC_SECOND_OF(u, v) : v);
                        to += PAIR;
                    }
                }
            }
        }
        finish_sums(sum, t, rows, pairs, apart, column);
    }
}

/* w [columns, depth]: the codes of a column follow each other. */
POETC_INLINE void coded_columns(const poetc_coded *w, const int bits, const int rows, const coded_task *t)
{
    const ptrdiff_t step = poetc_coded_bytes(bits, w->depth);
    const int codes_of_word = 32 / bits, x_step = rows >= 4 ? rows : 1;
    int32_t column, k;
    float scales[PAIR], zeros[PAIR];
    int i, j, n, word;
    for (j = 0; j < PAIR; j++)
        zeros[j] = bits == 4 ? 8.0f : 128.0f;
    for (column = t->column; column < t->column + t->columns; column += PAIR) {
        const uint8_t *codes = w->codes + column * step + t->first * bits / 8;
        const float *x = t->x;
        float *to = t->panels + (ptrdiff_t)(column - t->column) * t->depth;
        poetc_vector sum[MOST_ROWS][2 * MOST_PAIRS], scale[2], zero[2];
        FACTORS
        int32_t left = 0, block = w->blocks > 1 ? t->first / w->block : 0;
        start_sums(sum, t, rows, 1, 0, column);
        for (k = 0; k < t->depth; k += 4 * codes_of_word, codes += PIECE) {
            poetc_words words[2][4];
            for (j = 0; j < 2; j++)
                poetc_words_of_rows(words[j], codes + j * LANES * step, step);
            for (word = 0; word < 4; word++, left -= codes_of_word) {
                if (left == 0) { /* the next block of codes */
                    look_up(w, column, block, scales, zeros);
                    for (j = 0; j < 2; j++)
                        scale[j] = poetc_vector_load(scales + j * LANES),
                        zero[j] = poetc_vector_load(zeros + j * LANES);
                    left = w->blocks > 1 ? w->block * (block + 1) - (t->first + k + word * codes_of_word) : t->depth;
                    block++;
                }
                POETC_UNROLL
                for (n = 0; n < codes_of_word; n++, x += x_step) {
                    LOAD_FOUR(n)
                    POETC_UNROLL
                    for (j = 0; j < 2; j++) {
                        const poetc_vector v = (poetc_codes_of_words(words[j][word], bits, n) - zero[j]) * scale[j];
                        POETC_UNROLL
                        for (i = 0; i < rows; i++)
                            POETC_ADD_SCALED(sum[i][j], v, FACTOR_OF_FOUR(i, n));
                        if (rows == 0) {
                            poetc_vector_store(to, v);
                            to += LANES;
                        }
                    }
                }
            }
        }
        finish_sums(sum, t, rows, 1, 0, column);
    }
}

/* Codes along the terms, and along the columns, in the quickest way for them. */
POETC_INLINE void coded_turned(const poetc_coded *w, const int bits, const int rows, const coded_task *t)
{
#if defined(__aarch64__)
    if (neon_fits(w)) {
        neon_columns(w, bits, rows, t);
        return;
    }
#endif
    coded_columns(w, bits, rows, t);
}

POETC_INLINE void coded_along(const poetc_coded *w, const int bits, const int rows, const int pairs,
                              const coded_task *t)
{
#if defined(__aarch64__)
    if (rows > 0 && !w->points) {
        neon_rows(w, bits, rows, pairs, t);
        return;
    }
#endif
    coded_rows(w, bits, rows, pairs, t);
}

#define DEFINE_CODED(rows)                                                                                             \
    static void coded_##rows(const poetc_coded *w, int turned, coded_task *t)                                         \
    {                                                                                                                  \
        const int32_t all = t->columns;                                                                                \
        if (turned && w->bits == 4) {                                                                                  \
            coded_turned(w, 4, rows, t);                                                                               \
        } else if (turned) {                                                                                           \
            coded_turned(w, 8, rows, t);                                                                               \
        } else {                                                                                                       \
            const int pairs = rows ? PAIRS_OF(rows) : 1, together = SHARING(pairs) * PAIR;                              \
            t->columns = w->blocks > 1 && (w->block % together || t->column % together) ? 0 : all - all % (pairs * PAIR); \
            if (t->columns && w->bits == 4)                                                                            \
                coded_along(w, 4, rows, pairs, t);                                                                      \
            else if (t->columns)                                                                                       \
                coded_along(w, 8, rows, pairs, t);                                                                      \
            t->column += t->columns, t->columns = all - t->columns;                                                    \
            if (t->columns && w->bits == 4)                                                                            \
                coded_along(w, 4, rows, 1, t);                                                                          \
            else if (t->columns)                                                                                       \
                coded_along(w, 8, rows, 1, t);                                                                          \
            t->column -= all - t->columns, t->columns = all;                                                           \
        }                                                                                                              \
    }
DEFINE_CODED(0)
DEFINE_CODED(1)
DEFINE_CODED(2)
DEFINE_CODED(4)
#if MOST_ROWS == 8
DEFINE_CODED(8)
#endif

#endif
#endif
