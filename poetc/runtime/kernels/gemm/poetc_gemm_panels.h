/* The functions that fill panels with b: from rows of a matrix, or from its columns, which are transposed on the way.
 *
 * Layout: poetc_gemm_pack.h describes the panels. Columns beyond the last become zeros.
 * Order of sums: nothing is added here.
 *
 * The file belongs to poetc_gemm.c: its functions are compiled there, with the functions that they share. */
#ifndef POETC_GEMM_PANELS_H
#define POETC_GEMM_PANELS_H

#include "gemm/poetc_gemm_block.h"
#include "simd/poetc_unpack.h"

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
#if LANES == 1
    poetc_gather_runs(to, from, from + step, from + 2 * step, from + 3 * step, depth);
#elif defined(POETC_HELIUM)
    int32_t k = 0;
    const uint32_t row = (uint32_t)step * 4u;
    const uint32x4_t offsets = {0, row, 2u * row, 3u * row};
    for (; k < depth; k++, to += COLUMNS)
        vst1q_f32(to, vldrwq_gather_offset_f32(from + k, offsets));
#else
    int32_t k = 0;
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
#elif LANES == 8
#define INSERT(v, from, slot) _mm256_insertf128_ps(v, _mm_loadu_ps(from), slot)
#define FIRST(from) _mm256_castps128_ps256(_mm_loadu_ps(from))
#endif

#if LANES >= 8
#define FOURS (LANES / 4)

/* LANES columns of b, `blocks` times LANES terms, into as many lanes of rows `to_step` apart. Each line of b is read at
 * once: columns a power of two apart share few places in a cache. */
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
            const poetc_vector ab = POETC_LOW(v[four][0], v[four][1]), cd = POETC_LOW(v[four][2], v[four][3]);
            const poetc_vector ef = POETC_HIGH(v[four][0], v[four][1]), gh = POETC_HIGH(v[four][2], v[four][3]);
            poetc_vector_store(to + (4 * four) * to_step, POETC_LOW_PAIR(ab, cd));
            poetc_vector_store(to + (4 * four + 1) * to_step, POETC_HIGH_PAIR(ab, cd));
            poetc_vector_store(to + (4 * four + 2) * to_step, POETC_LOW_PAIR(ef, gh));
            poetc_vector_store(to + (4 * four + 3) * to_step, POETC_HIGH_PAIR(ef, gh));
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
        transpose_four(poetc_gemm_panel(space, column, depth) + first * COLUMNS + column % COLUMNS, b + column * step,
                       step, count);
    for (; column < columns; column++) {
        const float *from = b + column * step;
        float *to = poetc_gemm_panel(space, column, depth) + first * COLUMNS + column % COLUMNS;
        for (k = 0; k < count; k++, to += COLUMNS)
            *to = from[k];
    }
    if (first == 0)
        poetc_gemm_put_end(space, depth, columns);
}

#endif
