/* Rows and columns of the products with VPDPBUSD: how they are taken apart, and packed.
 *
 * Layout: int8/poetc_int8_vnni.h. Order of sums: sums of 32 bits are exact modulo 2^32, so that their order changes
 * nothing. */
#ifndef POETC_INT8_VNNI_PACK_H
#define POETC_INT8_VNNI_PACK_H

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
#define VNNI_MOST_TAPS 32      /* of rows that are not packed */
#define VNNI_RUN_BYTES 1280
#define VNNI_DIRECT_WORDS 32   /* of a row at once, at least */
#define VNNI_FEW_COLUMNS 256   /* as many as make it worth not to pack rows */

/* Weights of few pixels take longer to pack than to multiply. So there are three forms of rows. Packed ones are signed,
 * and columns have the offset. Weights that are read where they are have the terms of a plane behind each other, as
 * columns then have. Weights whose planes lie apart are interleaved: a word of four planes for each row and tap. With
 * these two 128 is added to the weights when they are read, and columns are signed. */
typedef enum { VNNI_PACKED, VNNI_IN_PLACE, VNNI_INTERLEAVED } vnni_form;

/* How a product is taken apart, and the places of its parts in the workspace. */
typedef struct {
    int32_t unit, units;                                  /* words of a unit, and units of a sum */
    int32_t units_at_once, rows_at_once, columns_at_once; /* the last two are multiples of a block's */
    int32_t lines, line;                                  /* of the scratch: words, or bytes of an update */
    uint8_t *columns, *scratch;
    int8_t *rows;
    int32_t *starts;   /* -128 times the sum of each packed row */
    uint32_t *lengths; /* of each packed row, squared */
    int32_t group;     /* whose rows are packed, all of them; -1: none */
    vnni_form form;
    size_t row_step, unit_step;      /* from a row and a unit to the next, of all forms but packed rows */
    int32_t kernel;                  /* taps of the weights, of which a phase may have a part */
    int32_t offsets[VNNI_MOST_TAPS]; /* of the words of a unit, in bytes, of the two forms that are not packed */
    int32_t is_small;                /* a register holds a plane; then the places of an update's taps */
    uint8_t places[64 * VNNI_MOST_TAPS];
    __mmask64 known[VNNI_MOST_TAPS];
    int32_t column_starts[VNNI_MOST_COLUMNS]; /* likewise: -128 times the sum of each packed column */
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

/* Rows of weights, `units` of four planes from `unit` on: a word of each row and tap. */
static void vnni_interleave(const task *t, const vnni *v, int32_t group, int32_t row, int32_t count, int32_t unit,
                            int32_t units)
{
    const int32_t bytes = count * v->kernel;
    const int8_t *w = t->weight + (size_t)(group * t->planes_group + 4 * unit) * t->weight_plane;
    int8_t *to = v->rows;
    uint8_t order[64];
    __m512i places;
    int32_t i, u;
    for (i = 0; i < 64; i++)
        order[i] = (uint8_t)(i % 4 * 16 + i / 4);
    places = _mm512_loadu_si512(order);
    w += (size_t)row * t->weight_row;
    for (u = 0; u < units; u++, w += 4 * t->weight_plane, to += v->unit_step) {
        for (i = 0; u + 1 < units && i < bytes; i += 64) {
            const int8_t *next = w + 4 * t->weight_plane + i;
            _mm_prefetch((const char *)next, _MM_HINT_T0);
            _mm_prefetch((const char *)(next + t->weight_plane), _MM_HINT_T0);
            _mm_prefetch((const char *)(next + 2 * t->weight_plane), _MM_HINT_T0);
            _mm_prefetch((const char *)(next + 3 * t->weight_plane), _MM_HINT_T0);
        }
        for (i = 0; i + 16 <= bytes; i += 16)
            _mm512_storeu_si512(to + 4 * i, _mm512_permutexvar_epi8(places, four_planes(w + i, t->weight_plane, 4,
                                                                                        (__mmask16)0xffffu)));
        if (i < bytes)
            _mm512_mask_storeu_epi32(to + 4 * i, low_lanes(bytes - i),
                                     _mm512_permutexvar_epi8(places, four_planes(w + i, t->weight_plane, 4,
                                                                                 low_lanes(bytes - i))));
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
    const int32_t sign = v->form == VNNI_PACKED ? -128 : 0;
    const __m512i offset = _mm512_set1_epi8((char)sign), pad = _mm512_set1_epi8((char)(t->pad ^ sign)),
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

/* Windows whose terms follow each other as those of weights in place do. An image's plane fits in a register, from
 * which each tap takes the numbers of 16 pixels. Then four terms become words. */
static void vnni_whole_windows(const task *t, vnni *v, int32_t group, int32_t column, int32_t count, int32_t unit,
                               int32_t units)
{
    const axis *down = &t->down, *right = &t->right;
    const int32_t pixels = down->count * right->count, taps = v->unit, plane = t->height * t->width;
    const __m512i pad = _mm512_set1_epi8((char)t->pad);
    uint8_t places[16 * (VNNI_MOST_TAPS + 3)], order[64];
    __mmask64 known[(VNNI_MOST_TAPS + 3) / 4];
    int32_t block, i, k, g;
    for (i = 0; i < 64; i++)
        order[i] = (uint8_t)(i % 4 * 16 + i / 4);
    for (block = 0; block < count; block += VNNI_COLUMNS) {
        const int32_t n = (column + block) / pixels, first = (column + block) % pixels;
        const int8_t *image =
            t->planes +
            ((size_t)n * (size_t)t->planes_all + (size_t)(group * t->planes_group + 4 * unit)) * (size_t)plane;
        uint8_t *to = v->columns + (size_t)block / VNNI_COLUMNS * (size_t)(units * taps) * 64;
        const __m512i turned = _mm512_loadu_si512(order);
        for (g = 0; g < (taps + 3) / 4; g++)
            known[g] = 0;
        for (k = 0; k < taps; k++)
            for (i = 0; i < VNNI_COLUMNS; i++) {
                const int32_t pixel = first + i < pixels ? first + i : pixels - 1;
                const int32_t h = pixel / right->count * down->move + down->origin + k / right->taps * down->tap;
                const int32_t w = pixel % right->count * right->move + right->origin + k % right->taps * right->tap;
                const int32_t is_inside = h >= 0 && h < t->height && w >= 0 && w < t->width;
                places[16 * k + i] = (uint8_t)(is_inside ? h * t->width + w : 0);
                known[k / 4] |= (__mmask64)is_inside << (k % 4 * 16 + i);
            }
        for (i = 0; i < units; i++) {
            for (k = 0; k < 4; k++, image += plane) {
                const __m512i all = _mm512_maskz_loadu_epi8(low_bits(plane), image);
                for (g = 0; g < (taps + 3) / 4; g++) /* the next plane overwrites the bytes behind a plane's taps */
                    _mm512_storeu_si512(to + 16 * (k * taps + 4 * g),
                                        _mm512_mask_permutexvar_epi8(pad, known[g], _mm512_loadu_si512(places + 64 * g),
                                                                     all));
            }
            for (k = 0; k < taps; k++, to += 64)
                _mm512_storeu_si512(to, _mm512_permutexvar_epi8(turned, _mm512_loadu_si512(to)));
        }
    }
}

/* -128 times the sum of each column. */
static void vnni_finish_columns(vnni *v, int32_t count, int32_t words)
{
    const __m512i ones = _mm512_set1_epi8(1);
    const uint8_t *block = v->columns;
    int32_t j, k;
    for (j = 0; j < count; j += VNNI_COLUMNS) {
        __m512i sum = _mm512_setzero_si512(), more = sum;
        for (k = 0; k + 2 <= words; k += 2, block += 128) {
            sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(block));
            more = _mm512_dpbusd_epi32(more, ones, _mm512_loadu_si512(block + 64));
        }
        for (; k < words; k++, block += 64)
            sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(block));
        sum = _mm512_slli_epi32(_mm512_add_epi32(sum, more), 7);
        _mm512_storeu_si512(v->column_starts + j, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

/* 16 columns of four words become four words of 16 columns. Column j is the number j % 4 * 4 + j / 4 before. */
static void vnni_turn(uint8_t *p)
{
    const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    const __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    const __m512i e = _mm512_unpacklo_epi32(a, b), f = _mm512_unpackhi_epi32(a, b);
    const __m512i g = _mm512_unpacklo_epi32(c, d), h = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_si512(p, _mm512_unpacklo_epi64(e, g));
    _mm512_storeu_si512(p + 64, _mm512_unpackhi_epi64(e, g));
    _mm512_storeu_si512(p + 128, _mm512_unpacklo_epi64(f, h));
    _mm512_storeu_si512(p + 192, _mm512_unpackhi_epi64(f, h));
}

/* Where the numbers of a tap lie, if a register holds a plane. */
static void vnni_find_places(const product *p, vnni *v)
{
    const int32_t taps = p->kernel_h * p->kernel_w, pixels = p->output_height * p->output_width;
    int32_t k, i;
    v->is_small = p->height * p->width <= 64 && pixels <= 64 && pixels % 16 == 0 && p->output_width % 4 == 0 &&
                  taps <= VNNI_MOST_TAPS;
    for (k = 0; v->is_small && k < taps; k++) {
        v->known[k] = 0;
        for (i = 0; i < pixels; i++) {
            const int32_t h = i / p->output_width * p->stride_h - p->pad_top + k / p->kernel_w * p->dilation_h;
            const int32_t w = i % p->output_width * p->stride_w - p->pad_left + k % p->kernel_w * p->dilation_w;
            const int32_t is_inside = h >= 0 && h < p->height && w >= 0 && w < p->width;
            v->places[64 * k + i] = (uint8_t)(is_inside ? h * p->width + w : 0);
            v->known[k] |= (__mmask64)is_inside << i;
        }
    }
}

/* The lines of a plane that taps read go to the scratch. Of a stride, numbers of one remainder lie beside each other.
 */
static void vnni_lines_of_plane(const product *p, const vnni *v, const int8_t *x, int32_t top, int32_t bottom)
{
    const int32_t stride = p->stride_w, part = v->line / stride;
    /* Number w lies at (w + pad) / stride of its remainder, unless no tap reads as far. */
    const int32_t known = least(p->width, part * stride - p->pad_left);
    int32_t i, k, r;
    for (i = top > 0 ? top : 0; i <= bottom && i < p->height; i++) {
        const int8_t *line = x + (size_t)i * (size_t)p->width;
        uint8_t *at = v->scratch + (i - top) * v->line;
        if (stride == 1)
            for (k = 0; k < known; k += 64) /* Pads follow, until the next line is stored. */
                _mm512_storeu_si512(at + p->pad_left + k,
                                    _mm512_xor_si512(_mm512_maskz_loadu_epi8(low_bits(known - k), line + k),
                                                     _mm512_set1_epi8(-128)));
        else
            for (r = 0; r < stride; r++) {
                const int32_t skipped = p->pad_left > r ? (p->pad_left - r + stride - 1) / stride : 0;
                uint8_t *to = at + r * part + skipped;
                for (k = skipped * stride + r - p->pad_left; k < known; k += stride)
                    *to++ = (uint8_t)(line[k] ^ -128);
            }
    }
}

/* Columns are taps of a channel: `units` lines of outputs from `unit` on. */
static void vnni_pixels(const task *t, const vnni *v, int32_t group, int32_t column, int32_t count, int32_t unit,
                        int32_t units)
{
    const product *p = &t->p;
    const int32_t taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group, stride = p->stride_w;
    const int32_t words = units * v->unit, part = v->line / stride;
    const int32_t is_small = v->is_small && unit % p->output_height == 0 && units % p->output_height == 0;
    const int32_t is_turned = is_small || (words % 4 == 0 && (v->unit == 2 || v->unit % 4 == 0));
    const size_t plane = (size_t)p->height * (size_t)p->width;
    const __m512i offset = _mm512_set1_epi8(-128);
    int32_t done = 0, i, j, u, k;
    while (done < units) { /* an image at a time */
        const int32_t n = (unit + done) / p->output_height, first = (unit + done) % p->output_height;
        const int32_t some = least(p->output_height - first, units - done), from_word = done * v->unit;
        const int32_t top = first * p->stride_h - p->pad_top;
        const int32_t bottom = (first + some - 1) * p->stride_h - p->pad_top + (p->kernel_h - 1) * p->dilation_h;
        const int8_t *x = t->image + ((size_t)n * (size_t)p->channels + (size_t)(group * inputs)) * plane;
        __m512i whole = offset;
        int32_t c = -1;
        if (!is_small)
            __builtin_memset(v->scratch, 128, (size_t)((bottom - top + 1) * v->line));
        for (j = 0; j < count; j++) {
            const int32_t tap = (column + j) % taps, down = tap / p->kernel_w * p->dilation_h;
            const int32_t across = tap % p->kernel_w * p->dilation_w;
            const uint8_t *from = v->scratch + down * v->line + across % stride * part + across / stride;
            const int32_t next_line = p->stride_h * v->line;
            uint8_t *const block = v->columns + (size_t)(j / VNNI_COLUMNS) * (size_t)words * 64 +
                                   (is_turned ? (j % 4 * 4 + j % VNNI_COLUMNS / 4) * 16 : j % VNNI_COLUMNS * 4);
            uint8_t *to = block + (size_t)from_word * 64;
            if ((column + j) / taps != c) {
                c = (column + j) / taps;
                if (is_small)
                    whole = _mm512_xor_si512(_mm512_maskz_loadu_epi8(low_bits((int32_t)plane), x + (size_t)c * plane),
                                             offset);
                else
                    vnni_lines_of_plane(p, v, x + (size_t)c * plane, top, bottom);
            }
            if (is_small) {
                const __m512i all = _mm512_mask_permutexvar_epi8(offset, v->known[tap],
                                                                 _mm512_loadu_si512(v->places + 64 * tap), whole);
                _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(all));
                for (k = 4; k < some * v->unit; k += 4)
                    _mm_storeu_si128((__m128i *)(void *)(to + 64 * k), k == 4   ? _mm512_extracti32x4_epi32(all, 1)
                                                                       : k == 8 ? _mm512_extracti32x4_epi32(all, 2)
                                                                                : _mm512_extracti32x4_epi32(all, 3));
            } else if (is_turned && v->unit == 2)
                for (u = from_word; u < from_word + 2 * some; u += 2, from += next_line)
                    __builtin_memcpy(block + u / 4 * 256 + u % 4 * 4, from, 8);
            else if (is_turned)
                for (u = 0; u < some; u++, from += next_line)
                    for (k = 0; k < v->unit; k += 4, to += 256)
                        __builtin_memcpy(to, from + 4 * k, 16);
            else
                for (u = 0; u < some; u++, from += next_line)
                    for (k = 0; k < v->unit; k++, to += 64)
                        __builtin_memcpy(to, from + 4 * k, 4);
        }
        done += some;
    }
    for (i = 0; is_turned && i < (count + VNNI_COLUMNS - 1) / VNNI_COLUMNS * words; i += 4)
        vnni_turn(v->columns + (size_t)i * 64);
}

#endif
