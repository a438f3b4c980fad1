/* The register blocks of the direct convolution and gradient of the input (poetc_direct.h).
 *
 * Layout: a piece is LANES results side by side in one row; results beyond the row are computed and dropped.
 * Order of sums: channel, tap row, tap, in blocks of terms as in the packing kernels. */
#ifndef POETC_DIRECT_BLOCK_H
#define POETC_DIRECT_BLOCK_H

#include "convolution/poetc_direct.h"

#if defined(POETC_DIRECT)

typedef struct {
    const float *a; /* a[row * a_row + k * a_k] */
    ptrdiff_t a_row, a_k;
    const float *b[4]; /* of each piece; of term k: b[piece] + offset[k] */
    const int32_t *offset;
    int32_t terms, depth; /* in blocks of `depth` */
    const float *bias;    /* of row 0, or NULL */
    float *tile;          /* [rows][vectors][LANES] */
} direct_task;

/* A block of `rows` results for each of `vectors` pieces: constants wherever this is inlined. */
POETC_INLINE void direct_block(const int rows, const int vectors, const direct_task *t, const ptrdiff_t a_k)
{
    const ptrdiff_t a_row = t->a_row;
    const int32_t terms = t->terms;
    const int32_t *offset = t->offset;
    const float *a = t->a, *b[4];
    int32_t first;
    int i, j;
    POETC_UNROLL
    for (j = 0; j < vectors; j++)
        b[j] = t->b[j];
    for (first = 0; first < terms; first += t->depth) {
        poetc_vector sum[DIRECT_MOST];
        int32_t k = poetc_min(t->depth, terms - first);
        _Pragma("GCC unroll 24") for (i = 0; i < rows; i++)
        {
            _Pragma("GCC unroll 24") for (j = 0; j < vectors; j++)
            {
                sum[i * vectors + j] = (poetc_vector){0};
                if (t->bias && first == 0)
                    sum[i * vectors + j] += t->bias[i];
            }
        }
        for (; k > 0; k--, a += a_k, offset++) {
            _Pragma("GCC unroll 24") for (i = 0; i < rows; i++)
            {
                _Pragma("GCC unroll 24") for (j = 0; j < vectors; j++)
                    POETC_ADD_SCALED(sum[i * vectors + j], poetc_vector_load(b[j] + *offset), a[i * a_row]);
            }
        }
        _Pragma("GCC unroll 24") for (i = 0; i < rows * vectors; i++)
        {
            float *at = t->tile + i * DIRECT_LANES;
            poetc_vector_store(at, first ? poetc_vector_load(at) + sum[i] : sum[i]);
        }
    }
}

#define DEFINE_DIRECT(ROWS, VECTORS)                                                                                   \
    static void direct_##ROWS##_##VECTORS(const direct_task *t)                                                        \
    {                                                                                                                  \
        if (t->a_k == 1)                                                                                               \
            direct_block(ROWS, VECTORS, t, 1);                                                                         \
        else                                                                                                           \
            direct_block(ROWS, VECTORS, t, t->a_k);                                                                    \
    }
DEFINE_DIRECT(12, 2)
DEFINE_DIRECT(8, 2)
DEFINE_DIRECT(6, 4)
DEFINE_DIRECT(4, 4)
DEFINE_DIRECT(2, 4)
DEFINE_DIRECT(1, 4)
#undef DEFINE_DIRECT

/* The block for `left` rows: its rows and, if there are so many pieces, vectors. */
static int32_t direct_shape(int32_t left, int *vectors)
{
    *vectors = left >= 8 ? 2 : 4;
    return left >= 12 && left != 16 ? 12 : left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static void direct_run(int32_t rows, const direct_task *t)
{
    switch (rows) {
    case 12: direct_12_2(t); break;
    case 8: direct_8_2(t); break;
    case 6: direct_6_4(t); break;
    case 4: direct_4_4(t); break;
    case 2: direct_2_4(t); break;
    default: direct_1_4(t); break;
    }
}

static inline int32_t direct_pieces(int32_t columns)
{
    return (columns + DIRECT_LANES - 1) / DIRECT_LANES;
}

/* Whether reading pieces costs less than packing: pieces of a row hold lanes for nothing, packed columns are shared by
 * few rows. */
static inline int direct_pays(int32_t columns, int32_t rows)
{
    return direct_pieces(columns) * DIRECT_LANES * rows < columns * (rows + 24);
}

#endif
#endif
