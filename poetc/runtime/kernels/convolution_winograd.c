/* Convolutions of 3 x 3 with strides of one, and their gradients, by 16 multiplications for four results instead of 36:
 * F(2 x 2, 3 x 3) of Winograd's minimal filters (Lavin and Gray 2016, "Fast algorithms for convolutional neural networks").
 *
 * A tile of 4 x 4 pixels of the image and the 3 x 3 weights are transformed by additions (and halves of weights) into 16
 * numbers each; these are multiplied, summed over the channels by 16 packed products, and transformed into 2 x 2 pixels of
 * the output. The gradient of the weights is the transposed algorithm: tiles of 2 x 2 pixels of gy are transformed, and the
 * products summed over tiles.
 *
 * SIMD lanes lie along channels, so that tiles at edges and of small images cost what others do: strips of an image are
 * turned, with zeros around them, on their way in, and the output on its way out. Every number is made by the same operations
 * whatever the width of the vectors, the size of the workspace and the number of threads. */
#include "poetc_convolution.h"
#include "poetc_descend.h"
#include "poetc_gemm.h"
#include "poetc_norm.h"

#define LANES POETC_LANES
#define COLUMNS POETC_GEMM_COLUMNS
#define UNIT (POETC_GEMM_VECTORS == 2 ? LANES : COLUMNS) /* columns of a product: no block at an edge */

/* poetc/ops/_winograd.py computes with these: keep them in step. */
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
typedef int32_t lane_numbers __attribute__((vector_size(4 * LANES)));
#if LANES == 16
#define SINGLES_LOW (lane_numbers){0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29}
#define SINGLES_HIGH (lane_numbers){2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31}
#define PAIRS_LOW (lane_numbers){0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}
#define PAIRS_HIGH (lane_numbers){2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31}
#define QUARTERS_EVEN (lane_numbers){0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}
#define QUARTERS_ODD (lane_numbers){4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31}
#else
#define SINGLES_LOW (lane_numbers){0, 8, 1, 9, 4, 12, 5, 13}
#define SINGLES_HIGH (lane_numbers){2, 10, 3, 11, 6, 14, 7, 15}
#define PAIRS_LOW (lane_numbers){0, 1, 8, 9, 4, 5, 12, 13}
#define PAIRS_HIGH (lane_numbers){2, 3, 10, 11, 6, 7, 14, 15}
#define QUARTERS_EVEN (lane_numbers){0, 1, 2, 3, 8, 9, 10, 11}
#define QUARTERS_ODD (lane_numbers){4, 5, 6, 7, 12, 13, 14, 15}
#endif
/* v[i] and v[j] become what the two patterns take of them. */
#define EXCHANGE(i, j, first, second)                                                                                  \
    do {                                                                                                               \
        const poetc_vector a = v[i], b = v[j];                                                                         \
        v[i] = __builtin_shuffle(a, b, first), v[j] = __builtin_shuffle(a, b, second);                                 \
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
    SWAP(1, 2); SWAP(5, 6); SWAP(9, 10); SWAP(13, 14);
#else
        EXCHANGE(i, i + 4, QUARTERS_EVEN, QUARTERS_ODD);
    }
    SWAP(1, 2); SWAP(5, 6);
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

/* Those of channels from number `first` on, up to whole vectors: what is made beyond the last is not read. */
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
        const poetc_vector normal = (v[i] - centre) * factor + shift;                                                  \
        v[i] = F##_V(normal, p);                                                                                       \
    }
    POETC_FOR_ACTIVATION(n->norm.activation, EACH)
#undef EACH
}
#endif

static float normalize_one(const normal *n, int32_t at, float x)
{
    const float normal = (x - n->centre[at]) * n->factor[at] + n->shift[at], *p = n->norm.floats + 1;
    (void)p;
#define EACH(F) return F(normal, p)
    POETC_FOR_ACTIVATION(n->norm.activation, EACH)
#undef EACH
}

/* `count` floats of each of `valid` channels, `step` floats apart, into lanes; rows of `width` pixels lie `gap` floats apart. `n`: what is
 * done to them, of which they are the channels from number `channel` on; or NULL. */
static void turn_in(const float *from, ptrdiff_t step, int32_t valid, int32_t count, float *to, int32_t width, int32_t gap,
                    const normal *n, int32_t channel)
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

/* Channels from number `channel` on of the tiles, which need `reach` pixels each way, into the strip. With the `first` ones what lies
 * beside the image becomes zero (and stays, for further channels). */
static void read_strip(const tiled *t, const normal *n, const rectangle *r, const int32_t reach, int32_t channel, int32_t first,
                       float *strip)
{
    const int32_t rows = 2 * (r->rows - 1) + reach, columns = 2 * (r->columns - 1) + reach;
    const int32_t y = 2 * r->row - t->top, x = 2 * r->column - t->left;
    const int32_t above = poetc_min(most(0, -y), rows), before = poetc_min(most(0, -x), columns);
    const int32_t high = most(0, poetc_min(t->height, y + rows) - (y + above));
    const int32_t wide = most(0, poetc_min(t->width, x + columns) - (x + before));
    const ptrdiff_t plane = (ptrdiff_t)t->height * t->width;
    const float *from = t->from + ((ptrdiff_t)r->image * t->channels + channel) * plane + (y + above) * t->width + x + before;
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
static void transform_image(const float *strip, int32_t pitch, int32_t tiles, float *to, ptrdiff_t step, ptrdiff_t plane)
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
static void transform_gradient(const float *strip, int32_t pitch, int32_t tiles, float *to, ptrdiff_t step, ptrdiff_t plane)
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

/* Tiles [begin, end) of channels [first, last), transformed. A tile is `step` floats from the next, a plane of 16 `plane`.
 * `panel`: so many channels have their tiles together, `panel_step` floats from the next so many. `n`: what is done to pixels on their
 * way in, or NULL. */
POETC_APART void transform_tiles(const tiled *t, const normal *n, int gradient, int32_t begin, int32_t end, int32_t first,
                                 int32_t last, float *strip, float *to, ptrdiff_t step, ptrdiff_t plane, int32_t panel,
                                 ptrdiff_t panel_step)
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
    const int32_t high = poetc_min(2 * r->rows, height - 2 * r->row), wide = poetc_min(2 * r->columns, width - 2 * r->column);
    int32_t row, column;
    int i;
    for (row = 0; row < high; row += 2) {
        for (column = 0; column < wide; column += 2, from += step) {
            float *to = strip + (row * wide + column) * LANES;
            poetc_vector top[4], bottom[4];
            FOR_FOUR(i)
            {
                const poetc_vector a = poetc_vector_load(from + i * plane), b = poetc_vector_load(from + (4 + i) * plane);
                const poetc_vector c = poetc_vector_load(from + (8 + i) * plane), d = poetc_vector_load(from + (12 + i) * plane);
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

/* What is computed: a convolution of an image, or (with turned weights) of gy. */
typedef struct {
    tiled image;
    int32_t outputs, height, width; /* of the output */
    int32_t turned; /* taps are read backwards */
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

/* G g G' of the weights of `terms` channels from number `piece` on and `count` outputs from number `first` on, into panels, 16
 * planes of them. */
POETC_APART void transform_weights(const convolved *c, int32_t piece, int32_t terms, int32_t first, int32_t count, float *to,
                                   ptrdiff_t plane)
{
    const int32_t stop = round_up(count, UNIT); /* what fills the last register block */
    int32_t channel, out, i;
    for (out = 0; out < stop; out += LANES) {
        const int32_t valid = most(0, poetc_min(LANES, count - out));
        float *at = to + (ptrdiff_t)(out / COLUMNS) * terms * COLUMNS + out % COLUMNS;
        for (channel = piece; channel < piece + terms; channel++, at += COLUMNS) {
            const float *from = c->w + (first + out) * c->lane + channel * c->depth;
            poetc_vector g[9], r[4][3];
            ptrdiff_t step = c->lane;
            float copy[LANES * 9 + 16];
            if (valid < LANES || from + (LANES - 1) * step + 16 > c->w_end) { /* nothing is read beyond the last weight */
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
                r[0][i] = g[i], r[1][i] = (ends + g[3 + i]) * 0.5f, r[2][i] = (ends - g[3 + i]) * 0.5f, r[3][i] = g[6 + i];
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

/* How much is done at a time: `tiles` of them, and whether the transformed weights of all outputs are kept for further ones.
 * No tiles: the workspace does not do. */
typedef struct {
    int32_t tiles;
    int keeps;
} plan;

#define KEEPS_FROM 24 /* tiles: with fewer than these, keeping weights would gain nothing */

static plan plan_products(int32_t size, int32_t tiles, int32_t depth, int32_t outputs, int32_t block)
{
    const int32_t each = 16 * (depth + block), weights = 16 * (block * poetc_min(depth, MOST_PIECE) + GAP);
    plan p;
    size -= FIXED;
    p.keeps = 0, p.tiles = (size - weights) / each;
    if (p.tiles < tiles) {
        const int64_t kept = (int64_t)((outputs + block - 1) / block) * 16 * (block * depth + GAP);
        if (size - kept >= (int64_t)KEEPS_FROM * each)
            p.keeps = 1, p.tiles = (int32_t)((size - kept) / each);
    }
    if (p.tiles >= 12)
        p.tiles -= p.tiles % 12; /* whole register blocks */
    p.tiles = size < weights ? 0 : poetc_min(p.tiles, tiles);
    return p;
}

static float *aligned(float *workspace)
{
    return workspace + (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
}

/* What a thread makes: some tiles or channels, and some outputs, from their transforms on, so that threads wait for each other at the
 * end only, and next to nothing goes from one to the other. What two of them transform alike costs less than that would. */
#ifdef POETC_THREADS
#define OWN_FLOATS(call, size) ((call)->workspace ? POETC_THREADS_FLOATS : (size))

/* Shares of two ranges, in whole units, that take the least time: `both` a pair, `first` and `second` an element of each. */
static void split_both(poetc_share share, int32_t firsts, int32_t first_unit, int32_t seconds, int32_t second_unit, int64_t both,
                       int64_t first, int64_t second, poetc_share *of_first, poetc_share *of_second)
{
    int64_t best = INT64_MAX;
    int32_t parts;
    of_first->part = of_first->parts = of_second->part = of_second->parts = 0;
    for (parts = 1; parts <= share.parts; parts++) {
        const int32_t others = share.parts / parts;
        const int64_t a = ((firsts + first_unit - 1) / first_unit + parts - 1) / parts * first_unit;
        const int64_t b = ((seconds + second_unit - 1) / second_unit + others - 1) / others * second_unit;
        const int64_t time = both * a * b + first * a + second * b;
        if (share.parts % parts == 0 && time < best) {
            best = time;
            of_first->parts = parts, of_first->part = share.part % parts;
            of_second->parts = others, of_second->part = share.part / parts;
        }
    }
}
#define SPLIT_BOTH(of_first, of_second, share, firsts, first_unit, seconds, second_unit, both, first, second)          \
    poetc_share of_first, of_second;                                                                                   \
    split_both(share, firsts, first_unit, seconds, second_unit, both, first, second, &(of_first), &(of_second));
#else
#define OWN_FLOATS(call, size) (size)
#define SPLIT_BOTH(of_first, of_second, share, firsts, first_unit, seconds, second_unit, both, first, second)
#endif

/* What transforms take, in the time of a multiply-add: of a tile's channel, of a weight, of its gradient (poetc/ops/_winograd.py). */
#define TILE_TIME 215
#define WEIGHT_TIME 400
#define SUM_TIME 280

/* A convolution at work: tiles [begin, end) for outputs [first, last); now `count` tiles from number `at` on, `here` outputs from number
 * `out` on, `terms` channels from number `piece` on. */
typedef struct {
    convolved c;
    int32_t begin, end, first, last;
    int32_t depth, block, at, count, out, here, piece, terms;
    ptrdiff_t v_plane, m_plane, u_plane;
    float *scratch, *v, *m, *u;
} products;

POETC_APART void transform_pixels(const products *j)
{
    transform_tiles(&j->c.image, NULL, 0, j->at, j->at + j->count, 0, j->c.image.channels, j->scratch, j->v, j->depth, j->v_plane,
                    j->depth, 0);
}

POETC_APART void multiply(const products *j)
{
    int32_t i;
    for (i = 0; i < 16; i++) {
        poetc_gemm_space space;
        poetc_gemm g;
        space.rows = j->scratch + STRIP_FLOATS, space.panels = j->u + i * j->u_plane;
        space.columns = round_up(j->here, COLUMNS), space.depth = j->terms;
        g.rows = j->count, g.columns = round_up(j->here, UNIT), g.depth = j->terms, g.terms = TERMS;
        g.a = j->v + i * j->v_plane + j->piece, g.a_row = j->depth, g.a_k = 1, g.a_block = TERMS;
        g.y = j->m + i * j->m_plane, g.y_row = j->block, g.column = 0, g.segment = j->block, g.segment_step = 0;
        g.row_bias = g.column_bias = NULL, g.accumulate = j->piece > 0;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        poetc_gemm_run(&g, &space);
    }
}

POETC_APART void make_output(const products *j)
{
    const convolved *c = &j->c;
    const ptrdiff_t pixels = (ptrdiff_t)c->height * c->width;
    const int32_t end = j->at + j->count;
    float *strip = j->scratch;
    int32_t tile, channel, i;
    rectangle r;
    for (tile = j->at; tile < end; tile += r.rows * r.columns) {
        r = next_tiles(&c->image, tile, end);
        for (channel = 0; channel < j->here; channel += LANES) {
            const int32_t high = poetc_min(2 * r.rows, c->height - 2 * r.row);
            const int32_t wide = poetc_min(2 * r.columns, c->width - 2 * r.column);
            const int32_t valid = poetc_min(LANES, j->here - channel);
            const float *bias = c->bias ? c->bias + j->out + channel : NULL, *from = strip;
            float *y = c->y + ((ptrdiff_t)r.image * c->outputs + j->out + channel) * pixels;
            y += (ptrdiff_t)2 * r.row * c->width + 2 * r.column;
            transform_products(j->m + (ptrdiff_t)(tile - j->at) * j->block + channel, j->block, j->m_plane, &r, c->height,
                               c->width, strip);
            if (wide == c->width)
                turn_out(from, high * wide, y, pixels, valid, bias);
            else
                for (i = 0; i < high; i++, from += wide * LANES, y += c->width)
                    turn_out(from, wide, y, pixels, valid, bias);
        }
    }
}

/* ints: those of all convolutions, the floats of the workspace, the outputs at a time.
 * Of the forward pass or, turned, of the gradient of the input. Apart, so that what is read once leaves the stack. */
POETC_APART plan prepare(const poetc_call *call, int turned, products *j)
{
    const convolution d = describe(call);
    const int32_t size = OWN_FLOATS(call, call->ints[17]), block = call->ints[18], taps = d.channels * 9;
    tiled *image = &j->c.image;
    float *workspace = POETC_WORKSPACE(call, d.has_bias ? 4 : 3);
    plan p;
    image->from = poetc_in(call, 0), image->batch = d.batch, image->channels = turned ? d.outputs : d.channels;
    image->height = turned ? d.output_height : d.height, image->width = turned ? d.output_width : d.width;
    image->top = turned ? 2 - d.pad_top : d.pad_top, image->left = turned ? 2 - d.pad_left : d.pad_left;
    j->c.outputs = turned ? d.channels : d.outputs;
    j->c.height = turned ? d.height : d.output_height, j->c.width = turned ? d.width : d.output_width;
    image->rows = (j->c.height + 1) / 2, image->columns = (j->c.width + 1) / 2;
    j->depth = round_up(image->channels, WIDTH), j->block = block;
    {
        const int32_t tiles = image->batch * image->rows * image->columns;
        SPLIT_BOTH(of_tiles, of_outputs, call->share, tiles, image->columns, j->c.outputs, block, 16 * j->depth + TILE_TIME,
                   TILE_TIME * j->depth, WEIGHT_TIME * j->depth)
        j->begin = POETC_BEGIN(of_tiles, tiles, image->columns), j->end = POETC_END(of_tiles, tiles, image->columns);
        j->first = POETC_BEGIN(of_outputs, j->c.outputs, block), j->last = POETC_END(of_outputs, j->c.outputs, block);
    }
    p = plan_products(size, j->end - j->begin, j->depth, j->last - j->first, block);
    j->c.w = poetc_in(call, 1), j->c.w_end = j->c.w + (ptrdiff_t)d.outputs * taps, j->c.turned = turned;
    j->c.lane = turned ? 9 : taps, j->c.depth = turned ? taps : 9;
    j->c.bias = d.has_bias ? poetc_in(call, 2) : NULL, j->c.y = poetc_out(call, d.has_bias ? 3 : 2);
    j->v_plane = (ptrdiff_t)p.tiles * j->depth + GAP, j->m_plane = (ptrdiff_t)p.tiles * block + GAP;
    j->u_plane = (ptrdiff_t)block * (p.keeps ? j->depth : poetc_min(j->depth, PIECE)) + GAP;
    j->scratch = aligned(workspace), j->v = j->scratch + SCRATCH_FLOATS, j->m = j->v + 16 * j->v_plane;
    j->u = j->m + 16 * j->m_plane;
    if (p.tiles > 0)
        workspace[size - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    return p;
}

static int convolve(const poetc_call *call, int turned)
{
    products j;
    const plan p = prepare(call, turned, &j);
    if (j.begin == j.end || j.first == j.last)
        return POETC_OK;
    if (p.tiles <= 0)
        return POETC_EINVAL;
    for (j.at = j.begin; j.at < j.end; j.at += p.tiles) {
        j.count = poetc_min(p.tiles, j.end - j.at);
        transform_pixels(&j);
        for (j.out = j.first; j.out < j.last; j.out += j.block) {
            j.here = poetc_min(j.block, j.last - j.out);
            for (j.piece = 0; j.piece < j.c.image.channels; j.piece += PIECE) {
                j.terms = poetc_min(PIECE, j.c.image.channels - j.piece);
                if (p.keeps)
                    j.u = j.m + 16 * j.m_plane + (ptrdiff_t)((j.out - j.first) / j.block) * 16 * j.u_plane +
                          (ptrdiff_t)j.piece * j.block;
                if (!p.keeps || j.at == j.begin)
                    transform_weights(&j.c, j.piece, j.terms, j.out, j.here, j.u, j.u_plane);
                multiply(&j);
            }
            make_output(&j);
        }
    }
    return POETC_OK;
}

#ifdef POETC_THREADS
/* With less a thread would transform weights for a register block or two. */
static int32_t floats_of_products(int32_t channels, int32_t block)
{
    const int32_t depth = round_up(channels, WIDTH);
    return FIXED + 16 * (block * poetc_min(depth, MOST_PIECE) + GAP) + 24 * 16 * (depth + block);
}
#endif

/* x, w, [b] -> y */
int poetc_op_conv_winograd(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_winograd, call, CONVOLUTION_WORK(describe(call)), floats_of_products(call->ints[1], call->ints[18]));
    return convolve(call, 0);
}

/* gy, w, [b] -> gx (and the transposed convolution) */
int poetc_op_conv_grad_input_winograd(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_grad_input_winograd, call, CONVOLUTION_WORK(describe(call)),
                   floats_of_products(call->ints[4], call->ints[18]));
    return convolve(call, 1);
}

/* Tiles at a time of the gradient of the weights: whole blocks of terms. */
static int32_t plan_tiles(int32_t size, int32_t tiles, int32_t columns, int32_t block)
{
    const int32_t fit = (size - FIXED - 16 * (block * columns + GAP)) / (16 * (columns + block));
    if (poetc_min(fit, MOST_SUMS) >= tiles)
        return tiles;
    return poetc_min(fit, MOST_SUMS) / TERMS * TERMS;
}

/* G' z G of a row of weights, `inputs` of them, into taps; with a learning rate the weights descend. */
POETC_APART void transform_sums(const float *z, ptrdiff_t plane, int32_t inputs, float *to, const float *lr, float *taps)
{
    int32_t channel, i;
    for (channel = 0; channel < inputs; channel += LANES) {
        const float *from = z + channel;
        float *at = taps + channel * 9;
        poetc_vector r[3][4], g[9];
        FOR_FOUR(i)
        {
            const poetc_vector a = poetc_vector_load(from + i * plane), b = poetc_vector_load(from + (4 + i) * plane);
            const poetc_vector c = poetc_vector_load(from + (8 + i) * plane), d = poetc_vector_load(from + (12 + i) * plane);
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
            for (i = 0; i < LANES; i++) { /* what is stored too much is stored over */
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

/* The gradient at work, channels [begin, end) of outputs [first, last): `count` tiles from number `at` on, `here` outputs from number
 * `out` on, `terms` channels from number `piece` on. */
typedef struct {
    tiled image, gy;
    int32_t begin, end, first, last;
    int32_t tiles, columns, block, at, count, out, here, piece, terms;
    ptrdiff_t v_plane, y_plane, z_plane;
    float *scratch, *v, *y, *z;
} sums;

/* Gradients of outputs and, where they are others, pixels; `norm`: of what is done to these first, the first operand, or 0. */
POETC_APART void transform_both(const sums *j, int pixels, const poetc_call *call, int32_t norm)
{
    const int32_t end = j->at + j->count;
    normal n;
    if (norm && pixels) {
        n.norm = poetc_norm_of(call, norm);
        n.centre = j->scratch + STRIP_FLOATS, n.factor = n.centre + MOST_PIECE, n.shift = n.factor + MOST_PIECE; /* until products */
        prepare_normal(&n, j->piece, j->terms);
    }
    if (pixels)
        transform_tiles(&j->image, norm ? &n : NULL, 0, j->at, end, j->piece, j->piece + j->terms, j->scratch, j->v, COLUMNS,
                        j->v_plane, COLUMNS, (ptrdiff_t)j->count * COLUMNS);
    transform_tiles(&j->gy, NULL, 1, j->at, end, j->out, j->out + j->here, j->scratch, j->y, j->block, j->y_plane, j->block, 0);
}

POETC_APART void multiply_and_add(const sums *j)
{
    int32_t i;
    for (i = 0; i < 16; i++) {
        poetc_gemm_space space;
        poetc_gemm g;
        space.rows = j->scratch + STRIP_FLOATS, space.panels = j->v + i * j->v_plane;
        space.columns = j->columns, space.depth = j->count;
        g.rows = j->here, g.columns = round_up(j->terms, UNIT), g.depth = j->count, g.terms = TERMS;
        g.a = j->y + i * j->y_plane, g.a_row = 1, g.a_k = j->block, g.a_block = (ptrdiff_t)TERMS * j->block;
        g.y = j->z + i * j->z_plane, g.y_row = j->columns, g.column = 0, g.segment = j->columns, g.segment_step = 0;
        g.row_bias = g.column_bias = NULL, g.accumulate = j->at > 0;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        poetc_gemm_run(&g, &space);
    }
}

/* Tiles at a time, 0 where the workspace is too small; apart, so that what is read once leaves the stack. */
POETC_APART int32_t prepare_sums(const poetc_call *call, const float *x, const float *gy, float *workspace, int descends, sums *j)
{
    const convolution d = describe(call);
    const int32_t size = OWN_FLOATS(call, call->ints[17]), block = call->ints[18];
    const tiled image = {x, d.batch, d.channels, d.height, d.width, d.pad_top, d.pad_left, (d.output_height + 1) / 2,
                         (d.output_width + 1) / 2};
    const tiled output = {gy, d.batch, d.outputs, d.output_height, d.output_width, 0, 0, image.rows, image.columns};
    const int32_t tiles = d.batch * image.rows * image.columns;
    int32_t at_once;
    (void)descends;
    /* Weights that move: as the gradient of the input read them. */
    SPLIT_BOTH(of_channels, of_outputs, call->share, d.channels, 2 * WIDTH, d.outputs, WIDTH, 16 * tiles + SUM_TIME,
               TILE_TIME * tiles + descends, TILE_TIME * tiles)
    j->begin = POETC_BEGIN(of_channels, d.channels, 2 * WIDTH), j->end = POETC_END(of_channels, d.channels, 2 * WIDTH);
    j->first = POETC_BEGIN(of_outputs, d.outputs, WIDTH), j->last = POETC_END(of_outputs, d.outputs, WIDTH);
    j->image = image, j->gy = output, j->tiles = tiles, j->block = block;
    j->columns = poetc_min(round_up(j->end - j->begin, 2 * WIDTH), MOST_PIECE);
    at_once = plan_tiles(size, tiles, j->columns, block);
    j->v_plane = (ptrdiff_t)at_once * j->columns + GAP, j->y_plane = (ptrdiff_t)at_once * block + GAP;
    j->z_plane = (ptrdiff_t)block * j->columns + GAP;
    j->scratch = aligned(workspace), j->v = j->scratch + SCRATCH_FLOATS, j->y = j->v + 16 * j->v_plane;
    j->z = j->y + 16 * j->y_plane;
    if (at_once > 0)
        workspace[size - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    return at_once;
}

/* The gradient of the weights; or, if they descend, the weights moved by it. Operands: [w], x, gy, [mean, var, scale, bias], [lr]. */
static int grad_weight(const poetc_call *call, int descends, int32_t norm)
{
    const int32_t rate = 2 + descends + (norm ? 4 : 0), result = rate + descends;
    sums j;
    const int32_t at_once = prepare_sums(call, poetc_in(call, descends), poetc_in(call, 1 + descends),
                                         POETC_WORKSPACE(call, result + 1), descends, &j);
    if (j.begin == j.end || j.first == j.last)
        return POETC_OK;
    if (at_once <= 0)
        return POETC_EINVAL;
    for (j.piece = j.begin; j.piece < j.end; j.piece += j.columns) {
        j.terms = poetc_min(j.columns, j.end - j.piece);
        for (j.out = j.first; j.out < j.last; j.out += j.block) {
            float *to = (float *)poetc_out(call, result) + ((ptrdiff_t)j.out * j.image.channels + j.piece) * 9;
            int32_t i;
            j.here = poetc_min(j.block, j.last - j.out);
            for (j.at = 0; j.at < j.tiles; j.at += at_once) {
                j.count = poetc_min(at_once, j.tiles - j.at);
                transform_both(&j, j.out == j.first || at_once < j.tiles, call, norm);
                multiply_and_add(&j);
            }
            for (i = 0; i < j.here; i++, to += (ptrdiff_t)j.image.channels * 9)
                transform_sums(j.z + (ptrdiff_t)i * j.columns, j.z_plane, j.terms, to, descends ? poetc_in(call, rate) : NULL, j.scratch);
        }
    }
    return POETC_OK;
}

#ifdef POETC_THREADS
static int32_t floats_of_sums(const poetc_call *call)
{
    const int32_t block = call->ints[18];
    return FIXED + 16 * (block * MOST_PIECE + GAP) + 16 * TERMS * (MOST_PIECE + block);
}
#endif

#define WINOGRAD_GRAD_WEIGHT(name, descends, norm)                                                                     \
    int poetc_op_conv_grad_weight_##name(const poetc_call *call)                                                       \
    {                                                                                                                  \
        POETC_THREADED(poetc_op_conv_grad_weight_##name, call, CONVOLUTION_WORK(describe(call)), floats_of_sums(call)); \
        return grad_weight(call, descends, norm);                                                                      \
    }

/* x, gy -> gw */
WINOGRAD_GRAD_WEIGHT(winograd, 0, 0)
/* x, gy, mean, var, scale, bias -> gw */
WINOGRAD_GRAD_WEIGHT(norm_winograd, 0, 2)
/* w, x, gy, lr -> w */
WINOGRAD_GRAD_WEIGHT(sgd_winograd, 1, 0)
/* w, x, gy, mean, var, scale, bias, lr -> w */
WINOGRAD_GRAD_WEIGHT(sgd_norm_winograd, 1, 3)
