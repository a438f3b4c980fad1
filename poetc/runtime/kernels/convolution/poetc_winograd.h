/* The transforms of Winograd's minimal filters for 3 x 3 taps (convolution_winograd.c).
 *
 * Layout: images, weights and gradients become 16 numbers a tile, in 16 planes; sums of their products are transformed
 * back. Lanes lie along channels.
 * Order of sums: the additions of a transform in the fixed order of its formula. */
#ifndef POETC_WINOGRAD_H
#define POETC_WINOGRAD_H

#include "convolution/poetc_convolution.h"
#include "gemm/poetc_gemm.h"
#include "operators/poetc_descend.h"
#include "operators/poetc_norm.h"

#define LANES POETC_LANES
#define COLUMNS POETC_GEMM_COLUMNS
#define UNIT (POETC_GEMM_VECTORS == 2 ? LANES : COLUMNS) /* columns of a product: no block at an edge */

/* poetc/kernels/convolution_winograd/selection.py computes with these: keep them in step. */
#define STRIP_FLOATS 8448 /* 16 channels of 528 pixels */
#define ROWS_FLOATS 3072  /* a block of packed rows: 12 of 256 */
#define MOST_TILES 62     /* of a row at once: four rows of pixels fit into a strip */
#define WIDTH 16          /* channels are rounded up to these: the widest vectors */
#define GAP 16            /* floats between the 16 planes, that would else lie in the same lines of a cache */
#define SCRATCH_FLOATS (STRIP_FLOATS + ROWS_FLOATS)
#define FIXED (SCRATCH_FLOATS + 3 * 16 * GAP + 16)
#define TERMS 64
#if LANES > 1 && !defined(POETC_HELIUM)
#define PIECE 128 /* channels whose weights are there at once: poetc_gemm_run adds up blocks of terms */
#define MOST_SUMS 256 /* tiles whose products are added at once */
#else
#define PIECE TERMS
#define MOST_SUMS TERMS
#endif

#define MOST_PIECE 128 /* of all targets */

#define FOR_FOUR(i) POETC_UNROLL for (i = 0; i < 4; i++)

static inline int32_t round_up(int32_t n, int32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static inline int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* LANES x LANES floats: rows become columns. Patterns are those of single instructions. */
#if LANES == 16 || LANES == 8
#if LANES == 16
#define SINGLES_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define SINGLES_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define PAIRS_LOW 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define PAIRS_HIGH 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define QUARTERS_EVEN 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define QUARTERS_ODD 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#else
#define SINGLES_LOW 0, 8, 1, 9, 4, 12, 5, 13
#define SINGLES_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#define PAIRS_LOW 0, 1, 8, 9, 4, 5, 12, 13
#define PAIRS_HIGH 2, 3, 10, 11, 6, 7, 14, 15
#define QUARTERS_EVEN 0, 1, 2, 3, 8, 9, 10, 11
#define QUARTERS_ODD 4, 5, 6, 7, 12, 13, 14, 15
#endif
/* v[i] and v[j] become the combinations that the two patterns take of them. */
#define EXCHANGE(i, j, first, second)                                                                                  \
    do {                                                                                                               \
        const poetc_vector a = v[i], b = v[j];                                                                         \
        v[i] = POETC_SHUFFLE(a, b, first), v[j] = POETC_SHUFFLE(a, b, second);                                 \
    } while (0)
#define SWAP(i, j)                                                                                                     \
    do {                                                                                                               \
        const poetc_vector a = v[i];                                                                                   \
        v[i] = v[j], v[j] = a;                                                                                         \
    } while (0)
POETC_INLINE void transpose(poetc_vector *v)
{
    int i;
    POETC_UNROLL
    for (i = 0; i < LANES; i += 4) { /* of four rows: column 4 q + c of quarter q in v[i + {0, 2, 1, 3}[c]] */
        EXCHANGE(i, i + 1, SINGLES_LOW, SINGLES_HIGH);
        EXCHANGE(i + 2, i + 3, SINGLES_LOW, SINGLES_HIGH);
        EXCHANGE(i, i + 2, PAIRS_LOW, PAIRS_HIGH);
        EXCHANGE(i + 1, i + 3, PAIRS_LOW, PAIRS_HIGH);
    }
    POETC_UNROLL
    for (i = 0; i < 4; i++) {
#if LANES == 16
        EXCHANGE(i, i + 4, QUARTERS_EVEN, QUARTERS_ODD);
        EXCHANGE(i + 8, i + 12, QUARTERS_EVEN, QUARTERS_ODD);
        EXCHANGE(i, i + 8, QUARTERS_EVEN, QUARTERS_ODD);
        EXCHANGE(i + 4, i + 12, QUARTERS_EVEN, QUARTERS_ODD);
    }
    SWAP(1, 2);
    SWAP(5, 6);
    SWAP(9, 10);
    SWAP(13, 14);
#else
        EXCHANGE(i, i + 4, QUARTERS_EVEN, QUARTERS_ODD);
    }
    SWAP(1, 2);
    SWAP(5, 6);
#endif
}
#elif LANES == 4
POETC_INLINE void transpose(poetc_vector *v)
{
    poetc_f4_transpose(&v[0], &v[1], &v[2], &v[3]);
}
#else
POETC_INLINE void transpose(poetc_vector *v)
{
    (void)v;
}
#endif

/* An image that is read in tiles, two pixels apart, beginning `top` and `left` pixels before it. */
typedef struct {
    const float *from;
    int32_t batch, channels, height, width, top, left;
    int32_t rows, columns; /* of tiles */
} tiled;

/* The batch norm of some channels, up to MOST_PIECE, and the activation after it. */
typedef struct {
    poetc_norm norm;
    float *centre, *factor, *shift;
} normal;

/* Those of channels from number `first` on, up to whole vectors: lanes beyond the last are made but not read. */
POETC_APART void prepare_normal(const normal *n, int32_t first, int32_t count)
{
    int32_t i;
    for (i = 0; i < round_up(count, LANES); i++) {
        const poetc_channel t = poetc_channel_of(&n->norm, first + (i < count ? i : 0));
        n->centre[i] = t.centre, n->factor[i] = t.factor, n->shift[i] = t.shift;
    }
}

/* Tiles of one image, in rows and columns. */
typedef struct {
    int32_t image, row, column, rows, columns;
} rectangle;

/* Tiles from number `tile` on, before number `end`: as many as a strip holds. */
static rectangle next_tiles(const tiled *t, int32_t tile, int32_t end)
{
    const int32_t image = tile / (t->rows * t->columns), within = tile - image * t->rows * t->columns;
    const int32_t row = within / t->columns, column = within - row * t->columns, left = end - tile;
    rectangle r = {image, row, column, 1, 1};
    if (column > 0 || left < t->columns || t->columns > MOST_TILES) {
        r.columns = poetc_min(poetc_min(t->columns - column, left), MOST_TILES);
    } else {
        const int32_t fit = STRIP_FLOATS / (2 * WIDTH * (2 * t->columns + 2)) - 1;
        r.columns = t->columns;
        r.rows = poetc_min(poetc_min(t->rows - row, left / t->columns), fit);
    }
    return r;
}

#if LANES > 1
/* A vector for each pixel: the channels from number `at` on. */
POETC_INLINE void normalize(const normal *n, int32_t at, poetc_vector *v)
{
    const poetc_vector centre = poetc_vector_load(n->centre + at), factor = poetc_vector_load(n->factor + at);
    const poetc_vector shift = poetc_vector_load(n->shift + at);
    const float *p = n->norm.floats + 1;
    int32_t i;
    (void)p;
#define EACH(F)                                                                                                        \
    POETC_UNROLL                                                                                                       \
    for (i = 0; i < LANES; i++) {                                                                                      \
        const poetc_vector normal = POETC_FMAV(v[i] - centre, factor, shift);                                                  \
        v[i] = F##_V(normal, p);                                                                                       \
    }
    POETC_FOR_ACTIVATION(n->norm.activation, EACH)
#undef EACH
}
#endif

static float normalize_one(const normal *n, int32_t at, float x)
{
    const float normal = POETC_FMA(x - n->centre[at], n->factor[at], n->shift[at]), *p = n->norm.floats + 1;
    (void)p;
#define EACH(F) return F(normal, p)
    POETC_FOR_ACTIVATION(n->norm.activation, EACH)
#undef EACH
}

/* `count` floats of each of `valid` channels, `step` floats apart, into lanes; rows of `width` pixels lie `gap` floats
 * apart. `n`: the operators on them, of which they are the channels from number `channel` on; or NULL. */
static void turn_in(const float *from, ptrdiff_t step, int32_t valid, int32_t count, float *to, int32_t width,
                    int32_t gap, const normal *n, int32_t channel)
{
    int32_t k = 0, j;
#if LANES > 1
    int32_t i;
    for (; k < count && count >= LANES; k += LANES) {
        const int32_t at = poetc_min(k, count - LANES), row = at / width;
        int32_t column = at - row * width;
        const float *source = from + at;
        float *target = to + (ptrdiff_t)at * LANES + (ptrdiff_t)row * gap;
        poetc_vector v[LANES];
        if (valid == LANES) {
            POETC_UNROLL
            for (i = 0; i < LANES; i++)
                v[i] = poetc_vector_load(source + i * step);
        } else {
            POETC_UNROLL
            for (i = 0; i < LANES; i++)
                v[i] = i < valid ? poetc_vector_load(source + i * step) : (poetc_vector){0};
        }
        transpose(v);
        if (n)
            normalize(n, channel, v);
        POETC_UNROLL
        for (i = 0; i < LANES; i++) {
            poetc_vector_store(target, v[i]);
            target += LANES;
            if (++column == width)
                column = 0, target += gap;
        }
    }
#endif
    for (; k < count; k++) {
        float *target = to + (ptrdiff_t)k * LANES + (ptrdiff_t)(k / width) * gap;
        for (j = 0; j < LANES; j++)
            target[j] = j >= valid ? 0.0f : n ? normalize_one(n, channel + j, from[k + j * step]) : from[k + j * step];
    }
}

/* The same the other way, with a bias for each channel or none. */
static void turn_out(const float *from, int32_t count, float *to, ptrdiff_t step, int32_t valid, const float *bias)
{
    int32_t k = 0, j;
#if LANES > 1
    int32_t i;
    for (; k < count && count >= LANES; k += LANES) {
        const int32_t at = poetc_min(k, count - LANES);
        const float *source = from + (ptrdiff_t)at * LANES;
        float *target = to + at;
        poetc_vector v[LANES];
        POETC_UNROLL
        for (i = 0; i < LANES; i++)
            v[i] = poetc_vector_load(source + i * LANES);
        transpose(v);
        POETC_UNROLL
        for (i = 0; i < LANES; i++)
            if (i < valid)
                poetc_vector_store(target + i * step, bias ? v[i] + bias[i] : v[i]);
    }
#endif
    for (; k < count; k++)
        for (j = 0; j < LANES && j < valid; j++)
            to[k + j * step] = bias ? from[(ptrdiff_t)k * LANES + j] + bias[j] : from[(ptrdiff_t)k * LANES + j];
}

/* Channels from number `channel` on of the tiles, which need `reach` pixels each way, into the strip. With the `first`
 * ones, pixels beside the image become zero (and stay, for further channels). */
static void read_strip(const tiled *t, const normal *n, const rectangle *r, const int32_t reach, int32_t channel,
                       int32_t first, float *strip)
{
    const int32_t rows = 2 * (r->rows - 1) + reach, columns = 2 * (r->columns - 1) + reach;
    const int32_t y = 2 * r->row - t->top, x = 2 * r->column - t->left;
    const int32_t above = poetc_min(most(0, -y), rows), before = poetc_min(most(0, -x), columns);
    const int32_t high = most(0, poetc_min(t->height, y + rows) - (y + above));
    const int32_t wide = most(0, poetc_min(t->width, x + columns) - (x + before));
    const ptrdiff_t plane = (ptrdiff_t)t->height * t->width;
    const float *from =
        t->from + ((ptrdiff_t)r->image * t->channels + channel) * plane + (y + above) * t->width + x + before;
    float *to = strip + (above * columns + before) * LANES;
    const int32_t gap = (columns - wide) * LANES, valid = poetc_min(LANES, t->channels - channel);
    int32_t i;
    if (channel == first && high * wide < rows * columns)
        for (i = 0; i < rows * columns * LANES; i++)
            strip[i] = 0.0f;
    if (wide == t->width)
        turn_in(from, plane, valid, high * wide, to, wide, gap, n, channel - first);
    else
        for (i = 0; i < high; i++, from += t->width, to += columns * LANES)
            turn_in(from, plane, valid, wide, to, wide, gap, n, channel - first);
}

/* B' d B of a row of tiles; `step` floats from tile to tile, `plane` from number to number. */
static void transform_image(const float *strip, int32_t pitch, int32_t tiles, float *to, ptrdiff_t step,
                            ptrdiff_t plane)
{
    poetc_vector a[4], b[4], c[4], d[4];
    int i;
#define COLUMN(v, at)                                                                                                  \
    do {                                                                                                               \
        const poetc_vector r0 = poetc_vector_load(at), r1 = poetc_vector_load((at) + pitch);                           \
        const poetc_vector r2 = poetc_vector_load((at) + 2 * pitch), r3 = poetc_vector_load((at) + 3 * pitch);         \
        v[0] = r0 - r2, v[1] = r1 + r2, v[2] = r2 - r1, v[3] = r1 - r3;                                                \
    } while (0)
    COLUMN(a, strip);
    COLUMN(b, strip + LANES);
    for (; tiles > 0; tiles--, to += step) {
        float *at = to;
        strip += 2 * LANES;
        COLUMN(c, strip);
        COLUMN(d, strip + LANES);
        FOR_FOUR(i)
        {
            poetc_vector_store(at, a[i] - c[i]);
            poetc_vector_store(at + plane, b[i] + c[i]);
            poetc_vector_store(at + 2 * plane, c[i] - b[i]);
            poetc_vector_store(at + 3 * plane, b[i] - d[i]);
            at += 4 * plane;
            a[i] = c[i], b[i] = d[i];
        }
    }
#undef COLUMN
}

/* A gy A' of a row of tiles. */
static void transform_gradient(const float *strip, int32_t pitch, int32_t tiles, float *to, ptrdiff_t step,
                               ptrdiff_t plane)
{
    int i;
    for (; tiles > 0; tiles--, to += step, strip += 2 * LANES) {
        const poetc_vector p = poetc_vector_load(strip), q = poetc_vector_load(strip + LANES);
        const poetc_vector r = poetc_vector_load(strip + pitch), s = poetc_vector_load(strip + pitch + LANES);
        const poetc_vector left[4] = {p, p + r, p - r, -r}, right[4] = {q, q + s, q - s, -s};
        float *at = to;
        FOR_FOUR(i)
        {
            poetc_vector_store(at, left[i]);
            poetc_vector_store(at + plane, left[i] + right[i]);
            poetc_vector_store(at + 2 * plane, left[i] - right[i]);
            poetc_vector_store(at + 3 * plane, -right[i]);
            at += 4 * plane;
        }
    }
}

/* Tiles [begin, end) of channels [first, last), transformed. A tile is `step` floats from the next, a plane of 16
 * `plane`. `panel`: so many channels have their tiles together, `panel_step` floats from the next so many. `n`: the
 * operators on pixels on their way in, or NULL. */
POETC_APART void transform_tiles(const tiled *t, const normal *n, int gradient, int32_t begin, int32_t end,
                                 int32_t first, int32_t last, float *strip, float *to, ptrdiff_t step, ptrdiff_t plane,
                                 int32_t panel, ptrdiff_t panel_step)
{
    const int32_t reach = gradient ? 2 : 4;
    int32_t tile, channel, row;
    rectangle r;
    for (tile = begin; tile < end; tile += r.rows * r.columns) {
        r = next_tiles(t, tile, end);
        const int32_t pitch = (2 * (r.columns - 1) + reach) * LANES;
        for (channel = first; channel < last; channel += LANES) {
            const int32_t within = channel - first;
            float *at = to + within / panel * panel_step + within % panel + (tile - begin) * step;
            read_strip(t, n, &r, reach, channel, first, strip);
            for (row = 0; row < r.rows; row++, at += r.columns * step) {
                if (gradient)
                    transform_gradient(strip + 2 * row * pitch, pitch, r.columns, at, step, plane);
                else
                    transform_image(strip + 2 * row * pitch, pitch, r.columns, at, step, plane);
            }
        }
    }
}

/* A' m A of the tiles, 16 planes apart, for LANES channels, into pixels of the output. */
static void transform_products(const float *from, ptrdiff_t step, ptrdiff_t plane, const rectangle *r, int32_t height,
                               int32_t width, float *strip)
{
    const int32_t high = poetc_min(2 * r->rows, height - 2 * r->row),
                  wide = poetc_min(2 * r->columns, width - 2 * r->column);
    int32_t row, column;
    int i;
    for (row = 0; row < high; row += 2) {
        for (column = 0; column < wide; column += 2, from += step) {
            float *to = strip + (row * wide + column) * LANES;
            poetc_vector top[4], bottom[4];
            FOR_FOUR(i)
            {
                const poetc_vector a = poetc_vector_load(from + i * plane),
                                   b = poetc_vector_load(from + (4 + i) * plane);
                const poetc_vector c = poetc_vector_load(from + (8 + i) * plane),
                                   d = poetc_vector_load(from + (12 + i) * plane);
                top[i] = (a + b) + c, bottom[i] = (b - c) - d;
            }
            poetc_vector_store(to, (top[0] + top[1]) + top[2]);
            if (column + 1 < wide)
                poetc_vector_store(to + LANES, (top[1] - top[2]) - top[3]);
            if (row + 1 < high) {
                to += wide * LANES;
                poetc_vector_store(to, (bottom[0] + bottom[1]) + bottom[2]);
                if (column + 1 < wide)
                    poetc_vector_store(to + LANES, (bottom[1] - bottom[2]) - bottom[3]);
            }
        }
    }
}

/* The computation: a convolution of an image, or (with turned weights) of gy. */
typedef struct {
    tiled image;
    int32_t outputs, height, width; /* of the output */
    int32_t turned;                 /* taps are read backwards */
    const float *w, *w_end, *bias;
    ptrdiff_t lane, depth; /* weights: from output to output, from channel to channel */
    float *y;
} convolved;

/* Nine taps of all lanes, from their rows, of which it reads up to 16 floats. */
POETC_INLINE void turn_taps(const float *from, ptrdiff_t step, poetc_vector *taps)
{
#if LANES > 1
    int tap, i;
    POETC_UNROLL
    for (tap = 0; tap < 9; tap += LANES) {
        poetc_vector v[LANES];
        POETC_UNROLL
        for (i = 0; i < LANES; i++)
            v[i] = poetc_vector_load(from + i * step + tap);
        transpose(v);
        POETC_UNROLL
        for (i = 0; i < LANES; i++)
            if (tap + i < 9)
                taps[tap + i] = v[i];
    }
#else
    int tap;
    (void)step;
    POETC_UNROLL_9
    for (tap = 0; tap < 9; tap++)
        taps[tap] = from[tap];
#endif
}

/* G g G' of some weights into panels, 16 planes of them. They are of `terms` channels from number `piece` on and
 * `count` outputs from number `first` on. */
POETC_APART void transform_weights(const convolved *c, int32_t piece, int32_t terms, int32_t first, int32_t count,
                                   float *to, ptrdiff_t plane)
{
    const int32_t stop = round_up(count, UNIT); /* the outputs that fill the last register block */
    int32_t channel, out, i;
    for (out = 0; out < stop; out += LANES) {
        const int32_t valid = most(0, poetc_min(LANES, count - out));
        float *at = to + (ptrdiff_t)(out / COLUMNS) * terms * COLUMNS + out % COLUMNS;
        for (channel = piece; channel < piece + terms; channel++, at += COLUMNS) {
            const float *from = c->w + (first + out) * c->lane + channel * c->depth;
            poetc_vector g[9], r[4][3];
            ptrdiff_t step = c->lane;
            float copy[LANES * 9 + 16];
            if (valid < LANES ||
                from + (LANES - 1) * step + 16 > c->w_end) { /* nothing is read beyond the last weight */
                for (i = 0; i < LANES * 9 + 16; i++)
                    copy[i] = i < valid * 9 ? from[i / 9 * step + i % 9] : 0.0f;
                from = copy, step = 9;
            }
            turn_taps(from, step, g);
            if (c->turned) {
                POETC_UNROLL
                for (i = 0; i < 4; i++) {
                    const poetc_vector last_tap = g[8 - i];
                    g[8 - i] = g[i], g[i] = last_tap;
                }
            }
            POETC_UNROLL
            for (i = 0; i < 3; i++) {
                const poetc_vector ends = g[i] + g[6 + i];
                r[0][i] = g[i], r[1][i] = (ends + g[3 + i]) * 0.5f, r[2][i] = (ends - g[3 + i]) * 0.5f,
                r[3][i] = g[6 + i];
            }
            FOR_FOUR(i)
            {
                const poetc_vector ends = r[i][0] + r[i][2];
                float *row = at + 4 * i * plane;
                poetc_vector_store(row, r[i][0]);
                poetc_vector_store(row + plane, (ends + r[i][1]) * 0.5f);
                poetc_vector_store(row + 2 * plane, (ends - r[i][1]) * 0.5f);
                poetc_vector_store(row + 3 * plane, r[i][2]);
            }
        }
    }
}

/* G' z G of a row of weights, `inputs` of them, into taps; with a learning rate the weights descend. */
POETC_APART void transform_sums(const float *z, ptrdiff_t plane, int32_t inputs, float *to, const float *lr,
                                float *taps)
{
    int32_t channel, i;
    for (channel = 0; channel < inputs; channel += LANES) {
        const float *from = z + channel;
        float *at = taps + channel * 9;
        poetc_vector r[3][4], g[9];
        FOR_FOUR(i)
        {
            const poetc_vector a = poetc_vector_load(from + i * plane), b = poetc_vector_load(from + (4 + i) * plane);
            const poetc_vector c = poetc_vector_load(from + (8 + i) * plane),
                               d = poetc_vector_load(from + (12 + i) * plane);
            const poetc_vector sum = (b + c) * 0.5f;
            r[0][i] = a + sum, r[1][i] = (b - c) * 0.5f, r[2][i] = sum + d;
        }
        POETC_UNROLL
        for (i = 0; i < 3; i++) {
            const poetc_vector sum = (r[i][1] + r[i][2]) * 0.5f;
            g[3 * i] = r[i][0] + sum, g[3 * i + 1] = (r[i][1] - r[i][2]) * 0.5f, g[3 * i + 2] = sum + r[i][3];
        }
#if LANES > 1
        {
            poetc_vector v[3][LANES]; /* taps by vectors of them, turned */
            const int parts = (9 + LANES - 1) / LANES;
            int part;
            POETC_UNROLL
            for (part = 0; part < parts; part++) {
                POETC_UNROLL
                for (i = 0; i < LANES; i++)
                    v[part][i] = part * LANES + i < 9 ? g[part * LANES + i] : (poetc_vector){0};
                transpose(v[part]);
            }
            POETC_UNROLL
            for (i = 0; i < LANES; i++) { /* later stores overwrite those that are too much */
                POETC_UNROLL
                for (part = 0; part < parts; part++)
                    poetc_vector_store(at + i * 9 + part * LANES, v[part][i]);
            }
        }
#else
        POETC_UNROLL_9
        for (i = 0; i < 9; i++)
            at[i] = g[i];
#endif
    }
    if (lr)
        poetc_descend(to, taps, *lr, inputs * 9);
    else
        for (i = 0; i < inputs * 9; i++)
            to[i] = taps[i];
}

#endif
