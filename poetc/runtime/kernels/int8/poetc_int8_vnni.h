/* Products of 8-bit integers with AVX-512's VPDPBUSD, which adds four terms of 16 columns in one instruction.
 *
 * Layout: a unit of terms is four planes times the taps, or four pixels times a line of outputs. A row holds its units
 * behind each other, four terms in a word. 16 columns make a block: words of 16 columns, then the next four terms. The
 * instruction multiplies unsigned numbers by signed ones. So 128 is added to the numbers of columns, and 128 times the
 * sum of a row is taken away.
 * Order of sums: sums of 32 bits are exact modulo 2^32, and the result fits, so that their order changes nothing. */
#ifndef POETC_INT8_VNNI_H
#define POETC_INT8_VNNI_H

#include "int8/poetc_int8_vnni_pack.h"

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* How sums are used: added to those before, stored, their bits seen, or made values. */
typedef struct {
    int32_t is_first, is_stored, is_seen;
    int32_t bits;             /* of the sums that were seen in blocks that a bound may leave out */
    __m512i least, most;      /* of the sums that were seen, and 0 */
    poetc_rounding *rounding; /* of sums that become values at once, or none */
    poetc_rounding_lanes lanes;
    int8_t *to;      /* values of the first row and column, */
    int32_t to_step; /* and from one row to the next */
} vnni_use;

/* The magnitude of 16 values. Pseudo-stochastic rounding is that of poetc_round_by_carry. */
static inline __attribute__((always_inline)) __m512i vnni_round(__m512i sum, const poetc_rounding_lanes *r,
                                                                const int32_t is_stochastic)
{
    const __m512i m = _mm512_abs_epi32(sum);
    const __m128i half = _mm_cvtsi32_si128(r->half), carry = _mm_cvtsi32_si128(r->shift - r->half);
    __m512i low;
    if (!is_stochastic)
        return _mm512_srl_epi32(_mm512_add_epi32(m, _mm512_set1_epi32(r->unit)), _mm_cvtsi32_si128(r->shift));
    low = _mm512_andnot_si512(_mm512_sll_epi32(m, _mm_cvtsi32_si128(r->odd)), _mm512_set1_epi32(r->carries));
    return _mm512_srl_epi32(_mm512_add_epi32(_mm512_srl_epi32(m, half), low), carry);
}

/* Values of the sums of 8 rows; whether none was too large. If one was, `to` holds no values. */
static inline __attribute__((always_inline)) int vnni_values(__m512i s[VNNI_ROWS][2], const int32_t vectors,
                                                             int32_t rows, __mmask16 last, const vnni_use *use,
                                                             int8_t *to, const int32_t is_stochastic)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i zero = _mm512_setzero_si512();
    const int32_t together = 4 / vectors; /* rows */
    __m512i largest = zero;
    int32_t i, j;
    _Pragma("GCC unroll 4") for (i = 0; i < VNNI_ROWS; i += together)
    {
        const __m512i a = s[i][0], b = vectors == 2 ? s[i][1] : s[i + 1][0];
        const __m512i c = vectors == 2 ? s[i + 1][0] : s[i + 2][0], d = vectors == 2 ? s[i + 1][1] : s[i + 3][0];
        const __m512i signs = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        __m512i v = _mm512_packus_epi16(_mm512_packs_epi32(vnni_round(a, &use->lanes, is_stochastic),
                                                           vnni_round(b, &use->lanes, is_stochastic)),
                                        _mm512_packs_epi32(vnni_round(c, &use->lanes, is_stochastic),
                                                           vnni_round(d, &use->lanes, is_stochastic)));
        largest = _mm512_max_epu8(largest, v);
        v = _mm512_mask_sub_epi8(v, _mm512_movepi8_mask(signs), zero, v);
        v = _mm512_permutexvar_epi32(order, v);
        if (i + together <= rows && last == 0xffffu) {
            if (vectors == 2) {
                _mm256_storeu_si256((__m256i *)(void *)(to + (size_t)i * (size_t)use->to_step),
                                    _mm512_castsi512_si256(v));
                _mm256_storeu_si256((__m256i *)(void *)(to + (size_t)(i + 1) * (size_t)use->to_step),
                                    _mm512_extracti64x4_epi64(v, 1));
            } else {
                _mm_storeu_si128((__m128i *)(void *)(to + (size_t)i * (size_t)use->to_step), _mm512_castsi512_si128(v));
                _mm_storeu_si128((__m128i *)(void *)(to + (size_t)(i + 1) * (size_t)use->to_step),
                                 _mm512_extracti32x4_epi32(v, 1));
                _mm_storeu_si128((__m128i *)(void *)(to + (size_t)(i + 2) * (size_t)use->to_step),
                                 _mm512_extracti32x4_epi32(v, 2));
                _mm_storeu_si128((__m128i *)(void *)(to + (size_t)(i + 3) * (size_t)use->to_step),
                                 _mm512_extracti32x4_epi32(v, 3));
            }
        } else {
            int8_t bytes[64];
            const int32_t width = 16 * vectors;
            _mm512_storeu_si512(bytes, v);
            for (j = 0; j < together && i + j < rows; j++)
                __builtin_memcpy(to + (size_t)(i + j) * (size_t)use->to_step, bytes + width * j,
                                 (size_t)(width - 16 + __builtin_popcount(last)));
        }
    }
    return !_mm512_cmpgt_epu8_mask(largest, _mm512_set1_epi8((char)use->lanes.most));
}

/* The sums of 8 rows and their columns to their places. */
static inline __attribute__((always_inline)) void vnni_keep(__m512i s[VNNI_ROWS][2], const int32_t vectors,
                                                            int32_t rows, __mmask16 last, int32_t *sums, int32_t step,
                                                            vnni_use *use)
{
    __m512i low = use->least, high = use->most;
    int32_t i, j;
    _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++) _Pragma("GCC unroll 2") for (j = 0; j < vectors; j++)
    {
        const __mmask16 lanes = j == vectors - 1 ? last : (__mmask16)0xffffu;
        int32_t *at = sums + (size_t)i * (size_t)step + 16 * j;
        if (i < rows) {
            __m512i sum = s[i][j];
            if (!use->is_first)
                sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(lanes, at));
            if (use->is_stored)
                _mm512_mask_storeu_epi32(at, lanes, sum);
            if (use->is_seen) {
                low = _mm512_mask_min_epi32(low, lanes, low, sum);
                high = _mm512_mask_max_epi32(high, lanes, high, sum);
            }
        }
    }
    use->least = low, use->most = high;
}

/* The products of 8 rows and 16 or 32 columns, for sums[row * step + column]. `rows` of the rows count, and of the last
 * 16 columns the lanes `last`. With `how` the sums are made values: 1 takes the nearest, 2 rounds stochastically. */
static inline __attribute__((always_inline)) void vnni_block(const int8_t *a, int32_t words, const uint8_t *b,
                                                             const int32_t *starts, int32_t rows, __mmask16 last,
                                                             int32_t *sums, int32_t step, vnni_use *use, int8_t *to,
                                                             const int32_t vectors, const int32_t how)
{
    const size_t depth = 4 * (size_t)words;
    __m512i s[VNNI_ROWS][2];
    int32_t i, j, k;
    _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++) _Pragma("GCC unroll 2") for (j = 0; j < vectors; j++)
        s[i][j] = _mm512_set1_epi32(starts[i]);
    for (k = 0; k < words; k++, a += 4, b += 64) {
        const __m512i first = _mm512_loadu_si512(b);
        const __m512i second = vectors == 2 ? _mm512_loadu_si512(b + 16 * depth) : first;
        _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++)
        {
            int32_t four;
            __builtin_memcpy(&four, a + (size_t)i * depth, sizeof four);
            s[i][0] = _mm512_dpbusd_epi32(s[i][0], first, _mm512_set1_epi32(four));
            if (vectors == 2)
                s[i][1] = _mm512_dpbusd_epi32(s[i][1], second, _mm512_set1_epi32(four));
        }
    }
    if (how) {
        int32_t kept[VNNI_ROWS][32];
        if (vnni_values(s, vectors, rows, last, use, to, how == 2))
            return;
        _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++) /* the clipped ones are counted */
            _Pragma("GCC unroll 2") for (j = 0; j < vectors; j++) _mm512_storeu_si512(kept[i] + 16 * j, s[i][j]);
        for (i = 0; i < least(rows, VNNI_ROWS); i++)
            poetc_round_small(kept[i], 16 * vectors - 16 + __builtin_popcount(last),
                              to + (size_t)i * (size_t)use->to_step, 1, use->rounding);
        return;
    }
    vnni_keep(s, vectors, rows, last, sums, step, use);
}

#define VNNI_BLOCK(NAME, VECTORS, HOW)                                                                                 \
    static __attribute__((noinline)) void NAME(const int8_t *a, int32_t words, const uint8_t *b, const int32_t *starts, int32_t rows,            \
                     __mmask16 last, int32_t *sums, int32_t step, vnni_use *use, int8_t *to)                           \
    {                                                                                                                  \
        vnni_block(a, words, b, starts, rows, last, sums, step, use, to, VECTORS, HOW);                                \
    }

VNNI_BLOCK(vnni_one, 1, 0)
VNNI_BLOCK(vnni_two, 2, 0)
VNNI_BLOCK(vnni_one_nearest, 1, 1)
VNNI_BLOCK(vnni_two_nearest, 2, 1)
VNNI_BLOCK(vnni_one_stochastic, 1, 2)
VNNI_BLOCK(vnni_two_stochastic, 2, 2)

/* The same products with weights that are not packed. `columns` are the starts of the columns. */
static inline __attribute__((always_inline)) void vnni_direct_block(const vnni *v, const int8_t *a, int32_t units,
                                                                    const uint8_t *b, const int32_t *starts,
                                                                    const int32_t *columns, __mmask16 last,
                                                                    int32_t *sums, int32_t step, vnni_use *use,
                                                                    const int32_t vectors)
{
    const size_t depth = 64 * (size_t)(units * v->unit), row_step = v->row_step;
    const __m512i offset = _mm512_set1_epi32((int32_t)VNNI_OFFSET);
    __m512i s[VNNI_ROWS][2];
    int32_t i, j, k;
    _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++) _Pragma("GCC unroll 2") for (j = 0; j < vectors; j++)
        s[i][j] = _mm512_add_epi32(_mm512_set1_epi32(starts[i]), _mm512_loadu_si512(columns + 16 * j));
    for (; units > 0; units--, a += v->unit_step)
        for (k = 0; k < v->unit; k++, b += 64) {
            const __m512i first = _mm512_loadu_si512(b);
            const __m512i second = vectors == 2 ? _mm512_loadu_si512(b + depth) : first;
            const int8_t *word = a + v->offsets[k];
            _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++)
            {
                int32_t four;
                __m512i weights;
                __builtin_memcpy(&four, word + (size_t)i * row_step, sizeof four);
                weights = _mm512_xor_si512(_mm512_set1_epi32(four), offset);
                s[i][0] = _mm512_dpbusd_epi32(s[i][0], weights, first);
                if (vectors == 2)
                    s[i][1] = _mm512_dpbusd_epi32(s[i][1], weights, second);
            }
        }
    vnni_keep(s, vectors, VNNI_ROWS, last, sums, step, use);
}

static __attribute__((noinline)) void vnni_direct_one(const vnni *v, const int8_t *a, int32_t units, const uint8_t *b,
                                                      const int32_t *starts, const int32_t *columns, __mmask16 last,
                                                      int32_t *sums, int32_t step, vnni_use *use)
{
    vnni_direct_block(v, a, units, b, starts, columns, last, sums, step, use, 1);
}

static __attribute__((noinline)) void vnni_direct_two(const vnni *v, const int8_t *a, int32_t units, const uint8_t *b,
                                                      const int32_t *starts, const int32_t *columns, __mmask16 last,
                                                      int32_t *sums, int32_t step, vnni_use *use)
{
    vnni_direct_block(v, a, units, b, starts, columns, last, sums, step, use, 2);
}

static void vnni_direct(const vnni *v, const int8_t *a, int32_t rows, int32_t columns, int32_t units, int32_t *sums,
                        int32_t step, vnni_use *use)
{
    const size_t block = 64 * (size_t)(units * v->unit);
    int32_t i, j;
    for (i = 0; i < rows; i += VNNI_ROWS, a += VNNI_ROWS * v->row_step, sums += VNNI_ROWS * (size_t)step)
        for (j = 0; j < columns;) {
            const int32_t left = columns - j;
            const uint8_t *b = v->columns + (size_t)(j / VNNI_COLUMNS) * block;
            if (left > VNNI_COLUMNS) {
                vnni_direct_two(v, a, units, b, v->starts + i, v->column_starts + j, low_lanes(left - VNNI_COLUMNS),
                                sums + j, step, use);
                j += 2 * VNNI_COLUMNS;
            } else {
                vnni_direct_one(v, a, units, b, v->starts + i, v->column_starts + j, low_lanes(left), sums + j, step,
                                use);
                j += VNNI_COLUMNS;
            }
        }
}

/* Of rows or columns the square of the Euclidean length, which bounds a sum: it is at most the product of two lengths.
 */
static uint32_t vnni_row_length(const int8_t *row, int32_t bytes)
{
    __m512i sum = _mm512_setzero_si512();
    int32_t k;
    for (k = 0; k < bytes; k += 32) {
        const __m512i wide = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8((__mmask32)low_bits(bytes - k), row + k));
        sum = _mm512_dpwssd_epi32(sum, wide, wide);
    }
    return (uint32_t)_mm512_reduce_add_epi32(sum);
}

/* The largest of a block of 16 columns. */
static uint32_t vnni_column_length(const uint8_t *block, int32_t words)
{
    const __m512i offset = _mm512_set1_epi32((int32_t)VNNI_OFFSET);
    __m512i sum = _mm512_setzero_si512();
    int32_t k;
    for (k = 0; k < words; k++, block += 64) {
        const __m512i four = _mm512_xor_si512(_mm512_loadu_si512(block), offset);
        const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(four, 8), 8), odd = _mm512_srai_epi16(four, 8);
        sum = _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum, even, even), odd, odd);
    }
    return _mm512_reduce_max_epu32(sum);
}

/* The bits of the sums that were seen so far. */
static void vnni_see(vnni_use *use)
{
    const __m512i end = _mm512_set1_epi32((int32_t)((uint32_t)1 << least(use->bits, 30)));
    if (_mm512_cmpgt_epi32_mask(use->most, end) |
        _mm512_cmpgt_epi32_mask(_mm512_sub_epi32(_mm512_setzero_si512(), end), use->least))
        use->bits = poetc_bits_seen(poetc_bits_below(_mm512_reduce_min_epi32(use->least)) |
                                    poetc_bits_below(_mm512_reduce_max_epi32(use->most)));
}

static void vnni_products(const vnni *v, int32_t rows, int32_t columns, int32_t words, int32_t *sums, int32_t step,
                          vnni_use *use)
{
    const int32_t how = !use->rounding ? 0 : use->rounding->is_stochastic ? 2 : 1;
    /* Sums that are seen and not stored, as they are made again, need not be made where they can add no bit. */
    const int32_t is_bounded = use->is_seen && !use->is_stored && use->is_first;
    uint32_t lengths[VNNI_MOST_COLUMNS / VNNI_COLUMNS], length = 0;
    int32_t i, j;
    for (j = 0; is_bounded && j < columns; j += VNNI_COLUMNS)
        lengths[j / VNNI_COLUMNS] = vnni_column_length(v->columns + (size_t)j * (size_t)words * 4, words);
    for (i = 0; i < rows; i += VNNI_ROWS) {
        const int8_t *a = v->rows + (size_t)i * (size_t)words * 4;
        int32_t *at = sums + (size_t)i * (size_t)step;
        int8_t *to = how ? use->to + (size_t)i * (size_t)use->to_step : 0;
        for (j = 0; is_bounded && j < VNNI_ROWS; j++) {
            const uint32_t of_row = v->lengths[i + j];
            length = j && length > of_row ? length : of_row;
        }
        for (j = 0; j < columns;) {
            const int32_t left = columns - j, is_wide = left > VNNI_COLUMNS;
            const uint8_t *b = v->columns + (size_t)j * (size_t)words * 4;
            const __mmask16 last = low_lanes(is_wide ? left - VNNI_COLUMNS : left);
            if (is_bounded) {
                uint32_t of_columns = lengths[j / VNNI_COLUMNS];
                if (is_wide && lengths[j / VNNI_COLUMNS + 1] > of_columns)
                    of_columns = lengths[j / VNNI_COLUMNS + 1];
                if ((uint64_t)length * of_columns <= (uint64_t)1 << 2 * use->bits) {
                    j += is_wide ? 2 * VNNI_COLUMNS : VNNI_COLUMNS;
                    continue;
                }
            }
            if (is_wide)
                (how == 2   ? vnni_two_stochastic
                 : how == 1 ? vnni_two_nearest
                            : vnni_two)(a, words, b, v->starts + i, rows - i, last, at + j, step, use, to + j);
            else
                (how == 2   ? vnni_one_stochastic
                 : how == 1 ? vnni_one_nearest
                            : vnni_one)(a, words, b, v->starts + i, rows - i, last, at + j, step, use, to + j);
            if (is_bounded)
                vnni_see(use);
            j += is_wide ? 2 * VNNI_COLUMNS : VNNI_COLUMNS;
        }
    }
}

/* --- a product ---------------------------------------------------------------------------------------------------- */

/* The same for weights that are not packed. Columns are all packed at once, so that weights are read once. */
static int vnni_fits_direct(const task *t, int32_t columns, uint8_t *from, size_t bytes, vnni *v)
{
    const product *p = &t->p;
    const int32_t blocks = (columns + VNNI_COLUMNS - 1) / VNNI_COLUMNS, taps = t->down.taps * t->right.taps;
    const int32_t kernel = p->kernel_h * p->kernel_w, pixels = t->down.count * t->right.count;
    const int32_t is_in_place = t->weight_plane == (size_t)kernel && taps == kernel && t->height * t->width <= 64 &&
                                (pixels % VNNI_COLUMNS == 0 || p->batch == 1);
    int32_t room = (int32_t)(bytes > INT32_MAX / 2 ? INT32_MAX / 2 : bytes) - 64, scratch = 64, low, high, a, b;
    if (t->is_update || columns != t->columns || columns > VNNI_FEW_COLUMNS || kernel > VNNI_MOST_TAPS ||
        p->rows % VNNI_ROWS || t->planes_group % 4 || (!is_in_place && t->weight_row != (size_t)kernel))
        return 0;
    v->unit = taps, v->units = t->planes_group / 4, v->kernel = kernel;
    if (is_in_place) {
        v->form = VNNI_IN_PLACE;
        v->rows_at_once = p->rows;
        v->units_at_once = least(v->units, (room - scratch - 4 * p->rows) / (64 * taps * blocks));
        v->row_step = t->weight_row, v->unit_step = 4 * (size_t)kernel;
    } else {
        v->form = VNNI_INTERLEAVED;
        vnni_reach(&t->right, 0, t->right.count - 1, &low, &high);
        v->line = high - low + 1, v->lines = vnni_lines(t, columns);
        scratch = round_up(4 * v->lines * v->line + 64, 64);
        room -= scratch;
        /* Long runs of a plane are read, rather than many planes. */
        v->rows_at_once = least(p->rows, VNNI_RUN_BYTES / (kernel * VNNI_ROWS) * VNNI_ROWS);
        for (; v->rows_at_once > 0; v->rows_at_once -= VNNI_ROWS) {
            v->units_at_once = (room - 4 * v->rows_at_once) / (64 * taps * blocks + v->rows_at_once * 4 * kernel);
            if (v->units_at_once * taps >= VNNI_DIRECT_WORDS || v->units_at_once >= v->units)
                break;
        }
        v->units_at_once = least(v->units, v->units_at_once);
        v->row_step = 4 * (size_t)kernel, v->unit_step = (size_t)v->rows_at_once * 4 * (size_t)kernel;
    }
    if (v->rows_at_once < VNNI_ROWS || v->units_at_once < least(v->units, VNNI_DIRECT_WORDS / taps))
        return 0;
    for (a = 0; a < t->down.taps; a++)
        for (b = 0; b < t->right.taps; b++)
            v->offsets[a * t->right.taps + b] = is_in_place
                                                    ? 4 * (a * t->right.taps + b)
                                                    : 4 * ((t->down.tap_first + a * t->down.tap_step) * p->kernel_w +
                                                           t->right.tap_first + b * t->right.tap_step);
    v->columns_at_once = blocks * VNNI_COLUMNS;
    v->columns = (uint8_t *)(((uintptr_t)from + 63) / 64 * 64);
    v->scratch = v->columns + (size_t)v->units_at_once * 64 * (size_t)(taps * blocks);
    v->rows = (int8_t *)(v->scratch + scratch);
    v->group = -1;
    v->starts = (int32_t *)(void *)(from + bytes - 4 * (size_t)v->rows_at_once);
    return 1;
}

/* Takes a product of `columns` columns apart, so that it fits into so many bytes; whether it does. */
static int vnni_fits(const task *t, int32_t columns, uint8_t *from, size_t bytes, vnni *v)
{
    const product *p = &t->p;
    const int32_t rows = round_up(p->rows, VNNI_ROWS);
    int32_t most = least(round_up(columns, VNNI_COLUMNS), VNNI_MOST_COLUMNS), words, room, scratch, depth, start, low,
            high;
    uint8_t *const end = from + bytes;
    if (p->rows < 3 || columns < 5 || !t->terms)
        return 0;
    if (vnni_fits_direct(t, columns, from, bytes, v))
        return 1;
    v->form = VNNI_PACKED;
    if (t->is_update) {
        v->unit = (p->output_width + 3) / 4, v->units = p->batch * p->output_height;
        v->line = (p->output_width - 1) + ((p->kernel_w - 1) * p->dilation_w + p->stride_w) / p->stride_w + 4;
        v->line *= p->stride_w;
        vnni_find_places(p, v);
    } else {
        v->unit = t->down.taps * t->right.taps, v->units = (t->planes_group + 3) / 4;
        vnni_reach(&t->right, 0, t->right.count - 1, &low, &high);
        v->line = high - low + 1;
    }
    /* All rows, or all columns, are packed at once where a part of the terms is still long. */
    room = (int32_t)(bytes > INT32_MAX / 2 ? INT32_MAX / 2 : bytes) - 64 - 8 * VNNI_ROWS;
    depth = least(rows, most) > 0 ? room / 2 / (4 * v->unit * least(rows, most)) : 0;
    depth = depth * v->unit < VNNI_WORDS ? VNNI_WORDS / v->unit : depth;
    depth = least(depth > 0 ? depth : 1, v->units);
    for (;; depth = depth / 2) {
        if (!depth)
            return 0;
        words = depth * v->unit;
        if (t->is_update) {
            v->lines = least(depth, p->output_height);
            v->lines = (v->lines - 1) * p->stride_h + (p->kernel_h - 1) * p->dilation_h + 1;
            scratch = round_up(v->lines * v->line + 64, 64);
        } else {
            v->lines = vnni_lines(t, most);
            scratch = round_up(4 * v->lines * v->line + 64, 64);
        }
        start = room - scratch;
        v->columns_at_once = least(most, start / 2 / (4 * words) / VNNI_COLUMNS * VNNI_COLUMNS);
        if (v->columns_at_once < VNNI_COLUMNS)
            continue;
        start -= v->columns_at_once * 4 * words;
        v->rows_at_once = least(rows, start / (4 * words + 8) / VNNI_ROWS * VNNI_ROWS);
        if (v->rows_at_once >= VNNI_ROWS)
            break;
    }
    v->units_at_once = depth;
    v->columns = (uint8_t *)(((uintptr_t)from + 63) / 64 * 64);
    v->scratch = v->columns + (size_t)v->columns_at_once * 4 * (size_t)words;
    v->rows = (int8_t *)(v->scratch + scratch);
    v->group = -1;
    v->starts = (int32_t *)(void *)(end - 4 * (size_t)v->rows_at_once);
    v->lengths = (uint32_t *)v->starts - v->rows_at_once;
    return 1;
}

/* The sums of `columns` columns of a group, in sums[row * step + column]. With `seen` their bits are looked at; those
 * that are made again are not stored then. With `rounding` whole sums of an update become values; whether they did. */
static int vnni_make(const task *t, vnni *v, int32_t group, int32_t column, int32_t columns, int32_t *sums,
                     int32_t step, uint32_t *seen, poetc_rounding *rounding)
{
    const int32_t rows = t->p.rows, is_whole = rows <= v->rows_at_once && v->units <= v->units_at_once;
    const int32_t is_rounded = rounding && t->is_update && v->units <= v->units_at_once && t->terms <= SMALL_TERMS &&
                               rounding->shift <= 30 && !t->requantized;
    vnni_use use = {0};
    int32_t unit, row, done, i;
    use.least = use.most = _mm512_setzero_si512();
    if (is_rounded) {
        use.rounding = rounding;
        use.lanes = poetc_rounding_lanes_of(rounding->shift, rounding->most);
        use.to_step = t->columns;
    }
    if (seen)
        use.bits = poetc_bits_seen(*seen);
    for (unit = 0; unit < v->units; unit += v->units_at_once) {
        const int32_t units = least(v->units_at_once, v->units - unit), words = units * v->unit;
        const int32_t is_last = unit + units == v->units;
        use.is_first = !unit;
        use.is_seen = seen && is_last;
        use.is_stored = !(use.is_seen && t->is_repeated);
        for (done = 0; done < columns; done += v->columns_at_once) {
            const int32_t some = least(v->columns_at_once, columns - done);
            if (t->is_update)
                vnni_pixels(t, v, group, column + done, some, unit, units);
            else if (v->form == VNNI_IN_PLACE)
                vnni_whole_windows(t, v, group, column + done, some, unit, units);
            else
                vnni_windows(t, v, group, column + done, some, unit, units);
            if (v->form != VNNI_PACKED)
                vnni_finish_columns(v, some, words);
            for (row = 0; row < rows; row += v->rows_at_once) {
                const int32_t count = least(v->rows_at_once, rows - row);
                if (v->form != VNNI_PACKED) {
                    const int8_t *weights = v->rows;
                    if (v->form == VNNI_INTERLEAVED)
                        vnni_interleave(t, v, group, row, count, unit, units);
                    else
                        weights =
                            t->weight + (size_t)(group * rows + row) * t->weight_row + (size_t)unit * v->unit_step;
                    for (i = 0; i < count; i++)
                        v->starts[i] = unit ? 0 : start_of(t, group * rows + row + i);
                    vnni_direct(v, weights, count, some, units, sums + (size_t)row * (size_t)step + done, step, &use);
                    continue;
                }
                if ((!done || rows > v->rows_at_once) && v->group != group) {
                    if (t->is_update)
                        vnni_errors(t, group, row, count, unit, units, v->rows);
                    else
                        vnni_weights(t, group, row, count, unit, units, v->rows);
                    vnni_finish_rows(v->rows, count, words, v->starts);
                    for (i = 0; !unit && i < count; i++)
                        v->starts[i] += start_of(t, group * rows + row + i);
                    for (i = 0; !use.is_stored && i < round_up(count, VNNI_ROWS); i++)
                        v->lengths[i] = vnni_row_length(v->rows + (size_t)i * (size_t)words * 4, 4 * words);
                }
                if (is_rounded)
                    use.to = t->result + (size_t)(group * rows + row) * (size_t)t->columns + column + done;
                vnni_products(v, count, some, words, sums + (size_t)row * (size_t)step + done, step, &use);
            }
            if (is_whole)
                v->group = group;
        }
    }
    if (seen)
        *seen |=
            poetc_bits_below(_mm512_reduce_min_epi32(use.least)) | poetc_bits_below(_mm512_reduce_max_epi32(use.most));
    return is_rounded;
}

#endif
