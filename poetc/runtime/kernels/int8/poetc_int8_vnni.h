/* Products of 8-bit integers with AVX-512's VPDPBUSD, which adds four terms of 16 columns in one instruction.
 *
 * Layout: a unit of terms is four planes times the taps, or four pixels times a line of outputs. A row holds its units
 * behind each other, four terms in a word. 16 columns make a block: words of 16 columns, then the next four terms. The
 * instruction multiplies unsigned numbers by signed ones. So 128 is added to the numbers of columns, and 128 times the
 * sum of a row is taken away.
 * Order of sums: sums of 32 bits are exact modulo 2^32, and the result fits, so that their order changes nothing. */
#ifndef POETC_INT8_VNNI_H
#define POETC_INT8_VNNI_H

#include <immintrin.h>

#include "int8/poetc_int8_task.h"

#define VNNI_ROWS 8
#define VNNI_COLUMNS 16
#define VNNI_MOST_COLUMNS 256  /* at once: the runs of a block are on the stack */
#define VNNI_WORDS 64          /* of a row at once, at least */
/* The sums of updates with so few terms are made twice, so many columns at a time: that is quicker than to hold them.
 */
#define VNNI_REPEATED_TERMS 64
#define VNNI_REPEATED_COLUMNS 256
#define VNNI_OFFSET 0x80808080u

/* How a product is taken apart, and the places of its parts in the workspace. */
typedef struct {
    int32_t unit, units;                                  /* words of a unit, and units of a sum */
    int32_t units_at_once, rows_at_once, columns_at_once; /* the last two are multiples of a block's */
    int32_t lines, line;                                  /* of the scratch: words, or bytes of an update */
    uint8_t *columns, *scratch;
    int8_t *rows;
    int32_t *starts; /* -128 times the sum of each packed row */
    int32_t group;   /* whose rows are packed, all of them; -1: none */
} vnni;

/* Places from which a run of pixels reads, without a tap: in the scratch, and in the packed block. */
typedef struct {
    int32_t from, to;
    uint16_t lanes;
} vnni_run;

static inline __mmask64 low_bits(int32_t count)
{
    return count >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << count) - 1u;
}

static inline __mmask16 low_lanes(int32_t count)
{
    return (__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1u);
}

static inline int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The lowest place that pixels first to last of an axis read, and the highest one. */
static void vnni_reach(const axis *x, int32_t first, int32_t last, int32_t *low, int32_t *high)
{
    const int32_t tap = (x->taps - 1) * x->tap, from = x->origin + (tap < 0 ? tap : 0);
    const int32_t until = x->origin + (tap > 0 ? tap : 0);
    *low = from + first * x->move;
    *high = until + last * x->move;
}

/* Lines of the scratch that a block of so many columns needs at most. */
static int32_t vnni_lines(const task *t, int32_t columns)
{
    const int32_t across = t->right.count > 0 ? t->right.count : 1;
    const int32_t some = least((columns + across - 2) / across + 1, t->down.count > 0 ? t->down.count : 1);
    int32_t low, high;
    vnni_reach(&t->down, 0, some - 1, &low, &high);
    return high - low + 1;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* Bytes of four planes, at most 16 of each, behind each other. */
static inline __m512i four_planes(const int8_t *p, size_t plane, int32_t planes, __mmask16 bytes)
{
    __m512i v = _mm512_castsi128_si512(_mm_maskz_loadu_epi8(bytes, p));
    if (planes > 1)
        v = _mm512_inserti32x4(v, _mm_maskz_loadu_epi8(bytes, p + plane), 1);
    if (planes > 2)
        v = _mm512_inserti32x4(v, _mm_maskz_loadu_epi8(bytes, p + 2 * plane), 2);
    if (planes > 3)
        v = _mm512_inserti32x4(v, _mm_maskz_loadu_epi8(bytes, p + 3 * plane), 3);
    return planes > 0 ? v : _mm512_setzero_si512();
}

/* Rows of weights: `units` of four planes from `unit` on. */
static void vnni_weights(const task *t, int32_t group, int32_t row, int32_t count, int32_t unit, int32_t units,
                         int8_t *to)
{
    const product *p = &t->p;
    const int32_t kernel = p->kernel_h * p->kernel_w, taps = t->down.taps * t->right.taps, depth = units * taps * 4;
    const int32_t planes = t->planes_group, is_run = t->weight_plane == (size_t)kernel; /* of planes */
    const int8_t *w = t->weight + (size_t)(group * (p->outputs / p->group)) * (size_t)(p->channels / p->group * kernel);
    uint8_t order[64];
    int32_t i, u, a, b, c;
    w += (size_t)row * t->weight_row;
    for (a = 0; a < 64; a++)
        order[a] = 0;
    for (a = 0; kernel <= 16 && a < t->down.taps; a++)
        for (b = 0; b < t->right.taps; b++)
            for (c = 0; c < 4; c++)
                order[4 * (a * t->right.taps + b) + c] =
                    (uint8_t)((is_run ? kernel : 16) * c + (t->down.tap_first + a * t->down.tap_step) * p->kernel_w +
                              t->right.tap_first + b * t->right.tap_step);
    if (kernel == 1 && t->weight_plane == 1) {
        for (i = 0; i < count; i++, w += t->weight_row, to += depth) {
            const int32_t known = least(4 * units, planes - 4 * unit);
            __builtin_memcpy(to, w + 4 * unit, (size_t)known);
            __builtin_memset(to + known, 0, (size_t)(depth - known));
        }
        return;
    }
    for (u = 0; u < units; u++) {
        const int32_t known = least(4, planes - 4 * (unit + u));
        const int8_t *from = w + (size_t)(4 * (unit + u)) * t->weight_plane;
        int8_t *next = to + u * taps * 4;
        if (kernel <= 16) {
            const __m512i places = _mm512_loadu_si512(order);
            const __mmask16 loaded = low_lanes(kernel);
            const __mmask64 all = low_bits(known * kernel);
            /* The next units of the row overwrite the bytes behind a unit. */
            const __mmask64 stored = (units - u) * taps >= 16 ? low_bits(64) : low_bits(4 * taps);
            for (i = 0; i < count; i++, from += t->weight_row, next += depth) {
                const __m512i four =
                    is_run ? _mm512_maskz_loadu_epi8(all, from) : four_planes(from, t->weight_plane, known, loaded);
                _mm512_mask_storeu_epi8(next, stored, _mm512_permutexvar_epi8(places, four));
            }
            continue;
        }
        for (i = 0; i < count; i++, from += t->weight_row, next += depth) {
            int8_t *byte = next;
            for (a = 0; a < t->down.taps; a++)
                for (b = 0; b < t->right.taps; b++)
                    for (c = 0; c < 4; c++) {
                        const int32_t tap = (t->down.tap_first + a * t->down.tap_step) * p->kernel_w +
                                            t->right.tap_first + b * t->right.tap_step;
                        *byte++ = c < known ? from[(size_t)c * t->weight_plane + (size_t)tap] : 0;
                    }
        }
    }
}

/* Rows of errors: `units` lines of outputs from line `unit` of the batch on, each filled up to a word. */
static void vnni_errors(const task *t, int32_t group, int32_t row, int32_t count, int32_t unit, int32_t units,
                        int8_t *to)
{
    const product *p = &t->p;
    const int32_t is_whole = p->output_width % 4 == 0; /* words that follow each other are one line */
    const size_t plane = (size_t)p->output_height * (size_t)p->output_width;
    int32_t i, k;
    for (i = 0; i < count; i++) {
        int32_t n = unit / p->output_height, h = unit % p->output_height, left = units;
        while (left > 0) {
            const int32_t some = is_whole ? least(left, p->output_height - h) : 1, width = some * p->output_width;
            const int32_t filled = round_up(width, 4);
            const size_t place = (size_t)n * (size_t)p->outputs + (size_t)(group * p->rows + row + i);
            const int8_t *y = t->errors + place * plane + (size_t)h * (size_t)p->output_width;
            for (k = 0; k < filled; k += 64)
                _mm512_mask_storeu_epi8(to + k, low_bits(filled - k),
                                        _mm512_maskz_loadu_epi8(low_bits(width - k), y + k));
            to += filled, left -= some, h += some;
            if (h == p->output_height)
                h = 0, n++;
        }
    }
}

/* Zeros for the rows that fill up the last block, and -128 times the sum of each row, besides the start of its sums. */
static void vnni_finish_rows(int8_t *rows, int32_t count, int32_t words, int32_t *starts)
{
    const __m512i ones = _mm512_set1_epi8(1);
    const int32_t depth = 4 * words, filled = round_up(count, VNNI_ROWS);
    int32_t i, k;
    __builtin_memset(rows + (size_t)count * (size_t)depth, 0, (size_t)(filled - count) * (size_t)depth);
    for (i = 0; i < filled; i++, rows += depth) {
        __m512i sum = _mm512_setzero_si512();
        for (k = 0; k < depth; k += 64)
            sum = _mm512_dpbusd_epi32(sum, ones, _mm512_maskz_loadu_epi8(low_bits(depth - k), rows + k));
        starts[i] = -128 * _mm512_reduce_add_epi32(sum);
    }
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

/* Columns are windows: `units` of four planes from `unit` on. A line of the four planes goes to the scratch, pixel
 * beside pixel; from there each tap takes its words. */
static void vnni_windows(const task *t, const vnni *v, int32_t group, int32_t column, int32_t count, int32_t unit,
                         int32_t units)
{
    const axis *down = &t->down, *right = &t->right;
    const int32_t across = right->count, pixels = down->count * across, words = units * v->unit;
    const size_t plane = (size_t)t->height * (size_t)t->width;
    const __m512i offset = _mm512_set1_epi32((int32_t)VNNI_OFFSET), pad = _mm512_set1_epi8((char)(t->pad ^ -128)),
                  move = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                            _mm512_set1_epi32(right->move));
    vnni_run runs[VNNI_MOST_COLUMNS];
    uint8_t order[64];
    int32_t done = 0, i, j, u, a, b, left, until;
    for (i = 0; i < 64; i++)
        order[i] = (uint8_t)(i % 4 * 16 + i / 4);
    vnni_reach(right, 0, across - 1, &left, &until);
    while (done < count) { /* an image at a time */
        const int32_t n = (column + done) / pixels, first = (column + done) % pixels;
        const int32_t some = least(pixels - first, count - done), last = first + some - 1;
        const int8_t *image =
            t->planes + ((size_t)n * (size_t)t->planes_all + (size_t)(group * t->planes_group)) * plane;
        const __m512i places = _mm512_loadu_si512(order);
        int32_t top, bottom, number = 0, at;
        vnni_reach(down, first / across, last / across, &top, &bottom);
        for (i = first; i <= last; i += j, number++) { /* pixels of a line and of a block */
            const int32_t to = done + i - first;
            j = least(least(across - i % across, last + 1 - i), VNNI_COLUMNS - to % VNNI_COLUMNS);
            runs[number].from = (i / across * down->move + down->origin - top) * v->line + i % across * right->move +
                                right->origin - left;
            runs[number].to = to / VNNI_COLUMNS * words * VNNI_COLUMNS + to % VNNI_COLUMNS;
            runs[number].lanes = low_lanes(j);
        }
        for (i = 0; i < (bottom - top + 1) * v->line; i += 16)
            _mm512_storeu_si512(v->scratch + 4 * i, pad);
        for (u = 0; u < units; u++) {
            const int32_t known = least(4, t->planes_group - 4 * (unit + u));
            const int8_t *x = image + (size_t)(4 * (unit + u)) * plane;
            const int32_t from = left > 0 ? left : 0, to = until < t->width - 1 ? until : t->width - 1;
            uint8_t *block = v->columns + (size_t)(u * v->unit) * 64;
            for (i = top > 0 ? top : 0; i <= bottom && i < t->height; i++)
                for (j = from; j <= to; j += 16) {
                    const __mmask16 lanes = low_lanes(to + 1 - j);
                    const int8_t *line = x + (size_t)i * (size_t)t->width + j;
                    const __m512i four = _mm512_permutexvar_epi8(places, four_planes(line, plane, known, lanes));
                    /* Pads follow, until the next line is stored. */
                    _mm512_storeu_si512(v->scratch + 4 * ((i - top) * v->line + j - left),
                                        _mm512_mask_xor_epi32(pad, lanes, four, offset));
                }
            for (a = 0; a < down->taps; a++)
                for (b = 0; b < right->taps; b++, block += 64) {
                    const uint8_t *tap = v->scratch + 4 * (a * down->tap * v->line + b * right->tap);
                    for (at = 0; at < number; at++) {
                        const uint8_t *word = tap + 4 * runs[at].from;
                        const __mmask16 lanes = runs[at].lanes;
                        const __m512i taken = right->move == 1
                                                  ? _mm512_maskz_loadu_epi32(lanes, word)
                                                  : _mm512_mask_i32gather_epi32(offset, lanes, move, word, 4);
                        _mm512_mask_storeu_epi32(block + 4 * runs[at].to, lanes, taken);
                    }
                }
        }
        done += some;
    }
}

/* Columns are taps of a channel: `units` lines of outputs from `unit` on. The lines of a plane that a tap reads go to
 * the scratch. Of a stride, numbers of one remainder lie beside each other there. */
static void vnni_pixels(const task *t, const vnni *v, int32_t group, int32_t column, int32_t count, int32_t unit,
                        int32_t units)
{
    const product *p = &t->p;
    const int32_t taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group, stride = p->stride_w;
    const int32_t words = units * v->unit, part = v->line / stride;
    const size_t plane = (size_t)p->height * (size_t)p->width;
    int32_t done = 0;
    while (done < units) { /* an image at a time */
        const int32_t n = (unit + done) / p->output_height, first = (unit + done) % p->output_height;
        const int32_t some = least(p->output_height - first, units - done);
        const int32_t top = first * p->stride_h - p->pad_top;
        const int32_t bottom = (first + some - 1) * p->stride_h - p->pad_top + (p->kernel_h - 1) * p->dilation_h;
        int32_t i, j, u, k, c = -1;
        __builtin_memset(v->scratch, 128, (size_t)((bottom - top + 1) * v->line));
        for (j = 0; j < count; j++) {
            const int32_t tap = (column + j) % taps, down = tap / p->kernel_w * p->dilation_h;
            const int32_t across = tap % p->kernel_w * p->dilation_w;
            const uint8_t *from = v->scratch + down * v->line + across % stride * part + across / stride;
            uint8_t *to = v->columns + ((size_t)(j / VNNI_COLUMNS) * (size_t)words + (size_t)(done * v->unit)) * 64 +
                          (size_t)(j % VNNI_COLUMNS) * 4;
            if ((column + j) / taps != c) {
                const int8_t *x = t->image;
                c = (column + j) / taps;
                x += ((size_t)n * (size_t)p->channels + (size_t)(group * inputs + c)) * plane;
                for (i = top > 0 ? top : 0; i <= bottom && i < p->height; i++) {
                    const int8_t *line = x + (size_t)i * (size_t)p->width;
                    uint8_t *at = v->scratch + (i - top) * v->line;
                    /* Number w lies at (w + pad) / stride of its remainder, unless no tap reads as far. */
                    const int32_t known = least(p->width, part * stride - p->pad_left);
                    if (stride == 1)
                        for (k = 0; k < known; k += 64)
                            /* Pads follow, until the next line is stored. */
                            _mm512_storeu_si512(at + p->pad_left + k,
                                                _mm512_xor_si512(_mm512_maskz_loadu_epi8(low_bits(known - k), line + k),
                                                                 _mm512_set1_epi8(-128)));
                    else
                        for (k = 0; k < known; k++)
                            at[(k + p->pad_left) % stride * part + (k + p->pad_left) / stride] =
                                (uint8_t)(line[k] ^ -128);
                }
            }
            for (u = 0; u < some; u++, from += p->stride_h * v->line)
                for (k = 0; k < v->unit; k++, to += 64)
                    __builtin_memcpy(to, from + 4 * k, 4);
        }
        done += some;
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* How sums are used: added to those before, stored, and their bits seen. */
typedef struct {
    int32_t is_first, is_stored, is_seen;
    __m512i least, most; /* of the sums that were seen, and 0 */
} vnni_use;

/* The products of 8 rows and 16 or 32 columns, for sums[row * step + column]. `rows` of the rows count, and of the last
 * 16 columns the lanes `last`. */
#define VNNI_BLOCK(NAME, VECTORS)                                                                                      \
    static void NAME(const int8_t *a, int32_t words, const uint8_t *b, const int32_t *starts, int32_t rows,            \
                     __mmask16 last, int32_t *sums, int32_t step, vnni_use *use)                                       \
    {                                                                                                                  \
        const size_t depth = 4 * (size_t)words;                                                                        \
        __m512i s[VNNI_ROWS][VECTORS];                                                                                 \
        __m512i least = _mm512_setzero_si512(), most = least;\
        int32_t i, j, k;\
        _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++)                                                        \
            _Pragma("GCC unroll 2") for (j = 0; j < (VECTORS); j++)                                                    \
                s[i][j] = _mm512_set1_epi32(starts[i]);                                                                \
        for (k = 0; k < words; k++, a += 4, b += 64) {                                                                 \
            const __m512i first = _mm512_loadu_si512(b);                                                               \
            const __m512i second = (VECTORS) == 2 ? _mm512_loadu_si512(b + 16 * depth) : first;                        \
            _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++)                                                    \
            {                                                                                                          \
                int32_t four;                                                                                          \
                __builtin_memcpy(&four, a + (size_t)i * depth, sizeof four);                                           \
                s[i][0] = _mm512_dpbusd_epi32(s[i][0], first, _mm512_set1_epi32(four));                                \
                if ((VECTORS) == 2)                                                                                    \
                    s[i][(VECTORS)-1] = _mm512_dpbusd_epi32(s[i][(VECTORS)-1], second, _mm512_set1_epi32(four));       \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (i = 0; i < VNNI_ROWS; i++)                                                        \
            _Pragma("GCC unroll 2") for (j = 0; j < (VECTORS); j++)                                                    \
        {                                                                                                              \
            const __mmask16 lanes = j == (VECTORS)-1 ? last : (__mmask16)0xffffu;                                      \
            int32_t *to = sums + (size_t)i * (size_t)step + 16 * j;                                                    \
            if (i < rows) {                                                                                            \
                __m512i sum = s[i][j];                                                                                 \
                if (!use->is_first)                                                                                    \
                    sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(lanes, to));                                  \
                if (use->is_stored)                                                                                    \
                    _mm512_mask_storeu_epi32(to, lanes, sum);                                                          \
                if (use->is_seen) {\
                    least = _mm512_mask_min_epi32(least, lanes, least, sum);\
                    most = _mm512_mask_max_epi32(most, lanes, most, sum);\
                }\
            }                                                                                                          \
        }                                                                                                              \
        use->least = _mm512_min_epi32(use->least, least);\
        use->most = _mm512_max_epi32(use->most, most);\
    }

VNNI_BLOCK(vnni_one, 1)
VNNI_BLOCK(vnni_two, 2)

static void vnni_products(const vnni *v, int32_t rows, int32_t columns, int32_t words, int32_t *sums, int32_t step,
                          vnni_use *use)
{
    int32_t i, j;
    for (i = 0; i < rows; i += VNNI_ROWS) {
        const int8_t *a = v->rows + (size_t)i * (size_t)words * 4;
        int32_t *at = sums + (size_t)i * (size_t)step;
        for (j = 0; j < columns;) {
            const int32_t left = columns - j;
            const uint8_t *b = v->columns + (size_t)j * (size_t)words * 4;
            if (left > VNNI_COLUMNS) {
                vnni_two(a, words, b, v->starts + i, rows - i, low_lanes(left - VNNI_COLUMNS), at + j, step, use);
                j += 2 * VNNI_COLUMNS;
            } else {
                vnni_one(a, words, b, v->starts + i, rows - i, low_lanes(left), at + j, step, use);
                j += VNNI_COLUMNS;
            }
        }
    }
}

/* --- a product ---------------------------------------------------------------------------------------------------- */

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
    if (t->is_update) {
        v->unit = (p->output_width + 3) / 4, v->units = p->batch * p->output_height;
        v->line = (p->output_width - 1) + ((p->kernel_w - 1) * p->dilation_w + p->stride_w) / p->stride_w + 4;
        v->line *= p->stride_w;
    } else {
        v->unit = t->down.taps * t->right.taps, v->units = (t->planes_group + 3) / 4;
        vnni_reach(&t->right, 0, t->right.count - 1, &low, &high);
        v->line = high - low + 1;
    }
    /* All rows, or all columns, are packed at once where a part of the terms is still long. */
    room = (int32_t)(bytes > INT32_MAX / 2 ? INT32_MAX / 2 : bytes) - 64 - 4 * VNNI_ROWS;
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
        v->rows_at_once = least(rows, start / (4 * words + 4) / VNNI_ROWS * VNNI_ROWS);
        if (v->rows_at_once >= VNNI_ROWS)
            break;
    }
    v->units_at_once = depth;
    v->columns = (uint8_t *)(((uintptr_t)from + 63) / 64 * 64);
    v->scratch = v->columns + (size_t)v->columns_at_once * 4 * (size_t)words;
    v->rows = (int8_t *)(v->scratch + scratch);
    v->group = -1;
    v->starts = (int32_t *)(void *)(end - 4 * (size_t)v->rows_at_once);
    return 1;
}

/* The sums of `columns` columns of a group, in sums[row * step + column]. With `seen` their bits are looked at; those
 * that are made again are not stored then. */
static void vnni_make(const task *t, vnni *v, int32_t group, int32_t column, int32_t columns, int32_t *sums,
                      int32_t step, uint32_t *seen)
{
    const int32_t rows = t->p.rows, is_whole = rows <= v->rows_at_once && v->units <= v->units_at_once;
    vnni_use use = {0, 0, 0, _mm512_setzero_si512(), _mm512_setzero_si512()};
    int32_t unit, row, done, i;
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
            else
                vnni_windows(t, v, group, column + done, some, unit, units);
            for (row = 0; row < rows; row += v->rows_at_once) {
                const int32_t count = least(v->rows_at_once, rows - row);
                if ((!done || rows > v->rows_at_once) && v->group != group) {
                    if (t->is_update)
                        vnni_errors(t, group, row, count, unit, units, v->rows);
                    else
                        vnni_weights(t, group, row, count, unit, units, v->rows);
                    vnni_finish_rows(v->rows, count, words, v->starts);
                    for (i = 0; !unit && i < count; i++)
                        v->starts[i] += start_of(t, group * rows + row + i);
                }
                vnni_products(v, count, some, words, sums + (size_t)row * (size_t)step + done, step, &use);
            }
            if (is_whole)
                v->group = group;
        }
    }
    if (seen)
        *seen |=
            poetc_bits_below(_mm512_reduce_min_epi32(use.least)) | poetc_bits_below(_mm512_reduce_max_epi32(use.most));
}

#endif
