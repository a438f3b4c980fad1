/* Depthwise convolution in 8 bits and its gradients: one plane of the image and of the outputs at a time.
 *
 * Layout: images are [N, C, H, W], weights [C, 1, kh, kw]. A plane is packed in 16 bits with its padding around it, or
 * with Helium in 8. Its lines have room for a number more, so that taps are read in pairs. Order of sums: sums of 32
 * bits are exact, so that their order changes nothing. */
#include "int8/poetc_int8_product.h"

#if HAS_NEON
#include "int8/poetc_int8_depthwise_neon.h"
#endif

#if POETC_INT8_HELIUM
typedef int8_t packed_number;
#else
typedef int16_t packed_number;
#endif

#define SPARE 4 /* numbers behind a plane: the last ones are read four at a time */

#if !POETC_INT8_HELIUM
/* Adds x[0] * y[0] + x[1] * y[1]. */
static inline int32_t add_pair(const int16_t *x, const int16_t *y, int32_t sum)
{
#if HAS_SMLAD
    int16x2_t a, b;
    __builtin_memcpy(&a, x, sizeof a);
    __builtin_memcpy(&b, y, sizeof b);
    return __smlad(a, b, sum);
#else
    return sum + x[0] * y[0] + x[1] * y[1];
#endif
}

#endif

#if HAS_SMLAD && !POETC_INT8_HELIUM
/* Fills `count` numbers, which are even and begin at a multiple of 4 bytes: eight at a time. */
static inline void fill_pairs(packed_number *to, int32_t count, int32_t pad)
{
    const uint32_t pair = ((uint32_t)pad & 0xffffu) | (uint32_t)pad << 16;
    const uint64_t four = (uint64_t)pair << 32 | pair;
    for (; count >= 8; count -= 8, to += 8) {
        __builtin_memcpy(__builtin_assume_aligned(to, 4), &four, sizeof four);
        __builtin_memcpy(__builtin_assume_aligned(to + 4, 4), &four, sizeof four);
    }
    for (; count > 0; count -= 2, to += 2)
        __builtin_memcpy(__builtin_assume_aligned(to, 4), &pair, sizeof pair);
}
#endif

#if HAS_SMLAD
/* Packs `count` numbers that follow each other, at least one. */
static inline void pack_row(const int8_t *x, int32_t count, packed_number *to)
{
#if POETC_INT8_HELIUM
    poetc_copy_bytes(x, count, to);
#else
    for (; count >= 4; count -= 4, x += 4, to += 4) {
        const packed_number v0 = x[0], v1 = x[1], v2 = x[2], v3 = x[3];
        to[0] = v0, to[1] = v1, to[2] = v2, to[3] = v3;
    }
    for (; count > 0; count--)
        *to++ = *x++;
#endif
}
#endif

/* Packs a plane of `lines` lines of `line` numbers. Number (i, j) of `from` lies at (top + i * down, left + j * right),
 * unless that is outside; all others are `pad`. */
static void pack_plane(const int8_t *from, int32_t height, int32_t width, int32_t down, int32_t right, int32_t top,
                       int32_t left, int32_t pad, int32_t lines, int32_t line, packed_number *to)
{
    const int32_t count = lines * line;
    int32_t i, j, first = 0, last = width;
#if POETC_INT8_HELIUM
    poetc_fill_bytes(to, count, (int8_t)pad);
#elif HAS_NEON
    fill_shorts(to, count, pad);
#elif HAS_SMLAD
    fill_pairs(to, count, pad);
#else
    for (i = 0; i < count; i++)
        to[i] = (int16_t)pad;
#endif
    for (i = 0; i < SPARE; i++)
        to[count + i] = 0;
    while (first < width && left + first * right < 0)
        first++;
    while (last > first && left + (last - 1) * right >= line)
        last--;
#if HAS_NEON
    if (right == 1 && down == 1 && first < last) {
        const int32_t above = top < 0 ? -top : 0, below = at_most(height, lines - top);
        const int8_t *x = from + (size_t)above * (size_t)width + first;
        if (above < below)
            widen_rows(x, width, from + (size_t)height * (size_t)width, below - above, last - first,
                       to + (top + above) * line + left + first, line, to + count, pad);
        return;
    }
#endif
#if HAS_SMLAD
    if (right == 1 && down == 1 && first < last) {
        const int32_t above = top < 0 ? -top : 0, below = at_most(height, lines - top);
        const int8_t *x = from + (size_t)above * (size_t)width + first;
        packed_number *y = to + (top + above) * line + left + first;
        for (i = above; i < below; i++, x += width, y += line)
            pack_row(x, last - first, y);
        return;
    }
#endif
    for (i = 0; i < height && first < last; i++) {
        const int32_t at = top + i * down;
        if (at >= 0 && at < lines) { /* else no pointer may be formed */
            const int8_t *x = from + (size_t)i * (size_t)width + first;
            packed_number *y = to + at * line + left + first * right;
            for (j = first; j + 4 <= last && right == 1; j += 4, x += 4, y += 4) {
                const packed_number v0 = x[0], v1 = x[1], v2 = x[2], v3 = x[3];
                y[0] = v0, y[1] = v1, y[2] = v2, y[3] = v3;
            }
            for (; j < last; j++, y += j < last ? right : 0)
                *y = *x++;
        }
    }
}

#if POETC_INT8_HELIUM
/* Adds three taps of `count` windows, `stride` apart: four at a time. */
static inline void add_three_taps(const packed_number *x, int32_t stride, const packed_number *w, int32_t taps,
                                  int32_t count, int32_t *sums)
{
    const int32_t w0 = w[0], w1 = taps > 1 ? w[1] : 0, w2 = taps > 2 ? w[2] : 0;
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0u, 1), (uint32_t)stride);
    int32x4_t sum, v;
    if (stride == 1)
        __asm__ volatile("wlstp.32 lr, %[count], 1f\n"
                         "0: vldrw.32 %q[sum], [%[sums]]\n\t"
                         "vldrb.s32 %q[v], [%[x]], #4\n\t"
                         "vmla.s32 %q[sum], %q[v], %[w0]\n\t"
                         "vldrb.s32 %q[v], [%[x], #-3]\n\t"
                         "vmla.s32 %q[sum], %q[v], %[w1]\n\t"
                         "vldrb.s32 %q[v], [%[x], #-2]\n\t"
                         "vmla.s32 %q[sum], %q[v], %[w2]\n\t"
                         "vstrw.32 %q[sum], [%[sums]], #16\n\t"
                         "letp lr, 0b\n"
                         "1:"
                         : [sum] "=&w"(sum), [v] "=&w"(v), [x] "+l"(x), [sums] "+r"(sums)
                         : [w0] "r"(w0), [w1] "r"(w1), [w2] "r"(w2), [count] "r"(count)
                         : "lr", "memory");
    else
        __asm__ volatile("wlstp.32 lr, %[count], 1f\n"
                         "0: vldrw.32 %q[sum], [%[sums]]\n\t"
                         "vldrb.s32 %q[v], [%[x], %q[places]]\n\t"
                         "vmla.s32 %q[sum], %q[v], %[w0]\n\t"
                         "add %[x], #1\n\t"
                         "vldrb.s32 %q[v], [%[x], %q[places]]\n\t"
                         "vmla.s32 %q[sum], %q[v], %[w1]\n\t"
                         "add %[x], #1\n\t"
                         "vldrb.s32 %q[v], [%[x], %q[places]]\n\t"
                         "vmla.s32 %q[sum], %q[v], %[w2]\n\t"
                         "add %[x], %[step]\n\t"
                         "vstrw.32 %q[sum], [%[sums]], #16\n\t"
                         "letp lr, 0b\n"
                         "1:"
                         : [sum] "=&w"(sum), [v] "=&w"(v), [x] "+r"(x), [sums] "+r"(sums)
                         : [w0] "r"(w0), [w1] "r"(w1), [w2] "r"(w2), [places] "w"(places), [step] "r"(4 * stride - 2),
                           [count] "r"(count)
                         : "lr", "memory");
}

/* Adds a column of four lines to the sums of the windows that begin two before it, one before it and with it.
 * The start comes from a core register, since eight vectors are in use. */
#define ADD_COLUMN                                                                                                     \
    {                                                                                                                  \
        int32x4_t number = vldrbq_gather_offset_s32(from, upper);                                                      \
        __asm__("" : "+r"(start));                                                                                     \
        s0 = vmlaq_n_s32(s0, number, w02), s1 = vmlaq_n_s32(s1, number, w01);                                          \
        s2 = vmlaq_n_s32(vdupq_n_s32(start), number, w00);                                                             \
        number = vldrbq_gather_offset_s32(from, inner);                                                                \
        s0 = vmlaq_n_s32(s0, number, w12), s1 = vmlaq_n_s32(s1, number, w11), s2 = vmlaq_n_s32(s2, number, w10);       \
        number = vldrbq_gather_offset_s32(from, lower);                                                                \
        s0 = vmlaq_n_s32(s0, number, w22), s1 = vmlaq_n_s32(s1, number, w21), s2 = vmlaq_n_s32(s2, number, w20);       \
        from++;                                                                                                        \
    }

#define NINES_LINES 4

/* The sums of a plane of at least four lines, with 3 x 3 taps, all of which start from the first. Four lines go from
 * left to right at once, the last four perhaps once more. */
static void sums_of_nines(const packed_number *x, int32_t line, const packed_number *w, int32_t height, int32_t width,
                          int32_t *sums)
{
    const uint32x4_t lanes = vidupq_n_u32(0u, 1), upper = vmulq_n_u32(lanes, (uint32_t)line);
    const uint32x4_t inner = vaddq_n_u32(upper, (uint32_t)line), lower = vaddq_n_u32(inner, (uint32_t)line);
    const uint32x4_t places = vmulq_n_u32(lanes, 4u * (uint32_t)width);
    const int32_t w00 = w[0], w01 = w[1], w02 = w[2], w10 = w[4], w11 = w[5], w12 = w[6], w20 = w[8], w21 = w[9];
    const int32_t w22 = w[10];
    int32_t start = sums[0], i, j;
    for (i = 0;; i = at_most(i + 4, height - 4)) {
        const packed_number *from = x + i * line;
        int32_t *to = sums + i * width;
        int32x4_t s0 = vdupq_n_s32(start), s1 = s0, s2;
        ADD_COLUMN
        s0 = s1, s1 = s2;
        ADD_COLUMN
        for (j = 0; j < width; j++) {
            s0 = s1, s1 = s2;
            ADD_COLUMN
            vstrwq_scatter_offset_s32(to++, places, s0);
        }
        if (i + 4 >= height)
            break;
    }
}

static void add_line(const packed_number *x, int32_t line, const packed_number *w, int32_t kernel_h, int32_t pairs,
                     int32_t stride, int32_t count, int32_t *sums)
{
    const int32_t taps = 2 * pairs;
    int32_t a, b;
    for (a = 0; a < kernel_h; a++, x += line, w += taps)
        for (b = 0; b < taps; b += 3)
            if (b < taps - 1 || w[b]) /* else the zero that fills up a line */
                add_three_taps(x + b, stride, w + b, taps - b, count, sums);
}
#else
#if HAS_SMLAD
static inline int16x2_t two(const int16_t *p)
{
    int16x2_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return pair;
}

/* Four numbers, which lie at a multiple of 4 bytes; then the place moves on by two. */
#define LOAD_WINDOW(v, p)                                                                                              \
    __asm__("ldrd %0, %1, [%2], #4" : "=r"(v##_low), "=r"(v##_high), "+r"(p) : "m"(*(const int16_t(*)[4])(p)))
#define ADD_WINDOWS(p, w01, w12)                                                                                       \
    LOAD_WINDOW(y, p);                                                                                                 \
    s0 = __smlabt(y_high, w12, __smlad(y_low, w01, s0));                                                               \
    s1 = __smlad(y_high, w12, __smlatb(y_low, w01, s1))

#define NINES_LINES 1

/* The sums of a plane with 3 x 3 taps, a number apart, all of which start from the first. Two windows at a time: of a
 * row of taps w they need (w0, w1) and (w1, w2). A second window beyond a line goes to the next line, whose own comes
 * later. */
__attribute__((noinline)) static void sums_of_nines(const int16_t *x, int32_t line, const int16_t *w, int32_t height,
                                                    int32_t width, int32_t *sums)
{
    const int16x2_t w01 = two(w), w12 = two(w + 1), w34 = two(w + 4), w45 = two(w + 5), w67 = two(w + 8);
    const int16x2_t w78 = two(w + 9);
    const int32_t start = sums[0], *const last = sums + height * width - 1;
    for (; height > 0; height--, x += line) {
        const int16_t *x0 = x, *x1 = x0 + line, *x2 = x1 + line;
        int32_t *const end = sums + width;
        while (sums < end) {
            int32_t s0 = start, s1 = start;
            int16x2_t y_low, y_high;
            ADD_WINDOWS(x0, w01, w12);
            ADD_WINDOWS(x1, w34, w45);
            ADD_WINDOWS(x2, w67, w78);
            sums[0] = s0;
            if (sums != last)
                sums[1] = s1;
            sums += 2;
        }
        sums = end;
    }
}
#endif

/* A line of sums: of windows `stride` apart, whose lines of taps are filled up with a zero to `pairs`. */
static void add_line(const int16_t *x, int32_t line, const int16_t *w, int32_t kernel_h, int32_t pairs, int32_t stride,
                     int32_t count, int32_t *sums)
{
    int32_t i, a, b;
    for (i = 0; i < count; i++, x += stride) {
        const int16_t *y = x, *v = w;
        int32_t sum = sums[i];
        if (kernel_h == 3 && pairs == 2) {
            sum = add_pair(y + 2, v + 2, add_pair(y, v, sum)), y += line;
            sum = add_pair(y + 2, v + 6, add_pair(y, v + 4, sum)), y += line;
            sum = add_pair(y + 2, v + 10, add_pair(y, v + 8, sum));
        } else
            for (a = 0; a < kernel_h; a++, y += line)
                for (b = 0; b < pairs; b++, v += 2)
                    sum = add_pair(y + 2 * b, v, sum);
        sums[i] = sum;
    }
}

#endif

/* The taps of a plane in pairs, in their order or backwards. */
static void pack_taps(const int8_t *w, int32_t kernel_h, int32_t kernel_w, int32_t is_backwards, packed_number *to)
{
    const int32_t line = round_up(kernel_w, 2), last = kernel_h * kernel_w - 1;
    int32_t a, b, tap = 0;
    for (a = 0; a < kernel_h; a++, to += line) {
        to[line - 1] = 0;
        for (b = 0; b < kernel_w; b++, tap++)
            to[b] = w[is_backwards ? last - tap : tap];
    }
}

/* The numbers of a line, with one more than `width`. */
static int32_t line_of(int32_t width, int32_t unit)
{
    return round_up(width + 1, unit);
}

/* The sums of a plane of `height` lines, which a packed plane x and taps w make. */
static void add_lines(const product *p, const packed_number *x, int32_t line, const packed_number *w, int32_t stride_h,
                      int32_t stride_w, int32_t height, int32_t width, int32_t *sums)
{
    const int32_t pairs = (p->kernel_w + 1) / 2;
    int32_t i;
#if HAS_SMLAD
    if (p->kernel_h == 3 && p->kernel_w == 3 && stride_h == 1 && stride_w == 1 && height >= NINES_LINES) {
        sums_of_nines(x, line, w, height, width, sums);
        return;
    }
#endif
#if HAS_NEON
    if (has_eights(p->kernel_h, p->kernel_w, stride_w, width)) {
        sums_of_plane(x, line, w, p->kernel_h, p->kernel_w, stride_h, stride_w, height, width, sums);
        return;
    }
#endif
    for (i = 0; i < height; i++, sums += width, x += (size_t)stride_h * (size_t)line)
        add_line(x, line, w, p->kernel_h, pairs, stride_w, width, sums);
}

/* Where a plane and its taps are packed: with Neon the taps lie behind the plane and its spare numbers. */
static void places_of(const product *p, void *packed, int32_t count, packed_number **x, packed_number **w)
{
#if HAS_NEON
    (void)p;
    *x = packed, *w = *x + count + SPARE;
#else
    (void)count;
    *w = packed, *x = *w + p->kernel_h * round_up(p->kernel_w, 2);
#endif
}

static void add_outputs(const task *t, int32_t group, int32_t column, int32_t *sums, void *packed)
{
    const product *p = &t->p;
    const int32_t n = column / (p->output_height * p->output_width);
    const int32_t lines = (p->output_height - 1) * p->stride_h + p->kernel_h;
    const int32_t line = line_of((p->output_width - 1) * p->stride_w + p->kernel_w, 2);
    const size_t plane = (size_t)p->height * (size_t)p->width, taps = (size_t)(p->kernel_h * p->kernel_w);
    packed_number *w, *x;
    places_of(p, packed, lines * line, &x, &w);
    pack_plane(t->image + ((size_t)n * (size_t)p->channels + (size_t)group) * plane, p->height, p->width, 1, 1,
               p->pad_top, p->pad_left, t->pad, lines, line, x);
    pack_taps(t->weight + (size_t)group * taps, p->kernel_h, p->kernel_w, 0, w);
    add_lines(p, x, line, w, p->stride_h, p->stride_w, p->output_height, p->output_width, sums);
}

/* Errors lie a stride apart, with zeros between them. */
static void add_image(const task *t, int32_t group, int32_t column, int32_t *sums, void *packed)
{
    const product *p = &t->p;
    const int32_t n = column / (p->height * p->width), line = line_of(p->width + p->kernel_w - 1, 2);
    const int32_t lines = p->height + p->kernel_h - 1;
    const size_t plane = (size_t)p->output_height * (size_t)p->output_width;
    packed_number *w, *x;
    places_of(p, packed, lines * line, &x, &w);
    pack_plane(t->errors + ((size_t)n * (size_t)p->outputs + (size_t)group) * plane, p->output_height, p->output_width,
               p->stride_h, p->stride_w, p->kernel_h - 1 - p->pad_top, p->kernel_w - 1 - p->pad_left, 0, lines, line,
               x);
    pack_taps(t->weight + (size_t)group * (size_t)(p->kernel_h * p->kernel_w), p->kernel_h, p->kernel_w, 1, w);
    add_lines(p, x, line, w, 1, 1, p->height, p->width, sums);
}

#if POETC_INT8_HELIUM
/* The products of `count` errors with the numbers 0, 1 and 2 behind their own. */
static void add_three(const packed_number *errors, const packed_number *x, int32_t count, int32_t *sums)
{
    int32_t s0 = sums[0], s1 = sums[1], s2 = sums[2];
    int8x16_t e, v;
    __asm__("wlstp.8 lr, %[count], 1f\n"
            "0: vldrb.8 %q[e], [%[errors]], #16\n\t"
            "vldrb.8 %q[v], [%[x]], #16\n\t"
            "vmladava.s8 %[s0], %q[e], %q[v]\n\t"
            "vldrb.8 %q[v], [%[x], #-15]\n\t"
            "vmladava.s8 %[s1], %q[e], %q[v]\n\t"
            "vldrb.8 %q[v], [%[x], #-14]\n\t"
            "vmladava.s8 %[s2], %q[e], %q[v]\n\t"
            "letp lr, 0b\n"
            "1:"
            : [e] "=&w"(e), [v] "=&w"(v), [s0] "+Te"(s0), [s1] "+Te"(s1), [s2] "+Te"(s2), [errors] "+r"(errors),
              [x] "+r"(x)
            : [count] "r"(count)
            : "lr", "memory");
    sums[0] = s0, sums[1] = s1, sums[2] = s2;
}
#elif HAS_SMLAD
/* The products of `count` errors with the numbers 0, 1 and 2 behind their own; `count` is a multiple of 4. */
static void add_three(const int16_t *errors, const int16_t *x, int32_t count, int32_t *sums)
{
    int32_t s0 = sums[0], s1 = sums[1], s2 = sums[2];
    int16x2_t before = two(x);
    const int16_t *end = errors + count;
    x += 2;
    while (errors != end) {
        int16x2_t e_low, e_high, y_low, y_high;
        LOAD_FOUR(e, errors);
        LOAD_FOUR(y, x);
        s0 = __smlad(e_low, before, s0);
        s1 = __smlatb(e_low, y_low, __smlabt(e_low, before, s1));
        s2 = __smlad(e_low, y_low, s2);
        s0 = __smlad(e_high, y_low, s0);
        s1 = __smlatb(e_high, y_high, __smlabt(e_high, y_low, s1));
        s2 = __smlad(e_high, y_high, s2);
        before = y_high;
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2;
}
#endif

/* The errors of a plane lie as the numbers do that its first tap reads, so that a tap has one sum of products. */
static void add_taps(const task *t, int32_t group, int32_t column, int32_t *sums, void *packed)
{
    const product *p = &t->p;
    const int32_t lines = (p->output_height - 1) * p->stride_h + p->kernel_h;
    const int32_t line = line_of((p->output_width - 1) * p->stride_w + p->kernel_w, 4);
    /* Lines that follow each other are one. */
    const int32_t runs = p->stride_h == 1 ? 1 : p->output_height, run = runs == 1 ? p->output_height * line : line;
    const size_t plane = (size_t)p->output_height * (size_t)p->output_width;
    packed_number *x = packed, *errors = x + lines * line + SPARE;
    int32_t n, i, a, b, k;
    (void)column;
    for (n = 0; n < p->batch; n++) {
        const size_t at = (size_t)n * (size_t)p->channels + (size_t)group;
        pack_plane(t->image + at * (size_t)p->height * (size_t)p->width, p->height, p->width, 1, 1, p->pad_top,
                   p->pad_left, 0, lines, line, x);
        pack_plane(t->errors + at * plane, p->output_height, p->output_width, 1, p->stride_w, 0, 0, 0, p->output_height,
                   line, errors);
#if HAS_NEON
        if (p->kernel_h == 3 && p->kernel_w == 3) {
            for (i = 0; i < runs; i++)
                add_nine_taps(errors + i * line, x + i * p->stride_h * line, line, run, sums);
            continue;
        }
#endif
        for (i = 0; i < runs; i++)
            for (a = 0; a < p->kernel_h; a++) {
                const packed_number *y = x + (i * p->stride_h + a) * line, *e = errors + i * line;
                int32_t *s = sums + a * p->kernel_w;
#if POETC_INT8_HELIUM
                for (b = 0; b < p->kernel_w; b += 3) {
                    int32_t part[3] = {0};
                    add_three(e, y + b, run, part);
                    for (k = 0; k < 3 && b + k < p->kernel_w; k++)
                        s[b + k] += part[k];
                }
#else
                b = 0;
#if HAS_SMLAD
                if (p->kernel_w >= 3) {
                    add_three(e, y, run, s);
                    b = 3;
                }
#endif
#if HAS_NEON
                for (; b < p->kernel_w; b++)
                    s[b] += sum_of_tap(e, y + b, run);
#endif
                for (; b < p->kernel_w; b++)
                    for (k = 0; k < run; k += 2)
                        s[b] = add_pair(e + k, y + b + k, s[b]);
#endif
            }
    }
}

/* --- kernels ---------------------------------------------------------------------------------------------------- */

static void one_phase(task *t, int32_t phase)
{
    const product *p = &t->p;
    const axis down = {0, 1, t->result_height, 0, 0, 0, 1, 0, 1}, right = {0, 1, t->result_width, 0, 0, 0, 1, 0, 1};
    (void)phase;
    t->down = down, t->right = right;
    t->terms = p->terms, t->columns = p->columns;
}

static task task_of(const poetc_call *call)
{
    task t = {0};
    t.p = poetc_product_of(call);
    t.phases = t.planes_group = 1;
    t.set_phase = one_phase;
    t.result_planes = t.p.channels;
    return t;
}

/* Operands as of poetc_op_int8_conv. */
int poetc_op_int8_depthwise(const poetc_call *call);
int poetc_op_int8_depthwise(const poetc_call *call)
{
    task t = task_of(call);
    const unsigned history = t.p.has_bias ? 6 : 4, y = history + (t.p.adapts != 0);
    const int32_t *scale = poetc_in(call, 1), *weight_scale = poetc_in(call, 3);
    const int32_t exponent = scale[0] + weight_scale[0];
    t.image = poetc_in(call, 0);
    t.weight = poetc_in(call, 2);
    if (t.p.has_bias) {
        const int32_t *bias_scale = poetc_in(call, 5);
        t.bias = poetc_in(call, 4);
        t.bias_shift = bias_scale[0] - exponent;
    }
    t.add_group = add_outputs;
    t.result = poetc_out(call, y);
    t.result_height = t.p.output_height, t.result_width = t.p.output_width;
    return finish(&t, poetc_out(call, y + 2), exponent, POETC_INT8_BITS, poetc_in(call, history),
                  poetc_out(call, y + 1));
}

/* Operands as of poetc_op_int8_conv_grad_input. */
int poetc_op_int8_depthwise_grad_input(const poetc_call *call);
int poetc_op_int8_depthwise_grad_input(const poetc_call *call)
{
    task t = task_of(call);
    const int32_t *scale = poetc_in(call, 1), *weight_scale = poetc_in(call, 3);
    const unsigned y = 4 + (t.p.adapts != 0);
    t.errors = poetc_in(call, 0);
    t.weight = poetc_in(call, 2);
    t.add_group = add_image;
    t.result = poetc_out(call, y);
    t.result_height = t.p.height, t.result_width = t.p.width;
    return finish(&t, poetc_out(call, y + 2), scale[0] + weight_scale[0], POETC_INT8_BITS, poetc_in(call, 4),
                  poetc_out(call, y + 1));
}

/* Operands as of poetc_op_int8_conv_grad_weight. */
int poetc_op_int8_depthwise_grad_weight(const poetc_call *call);
int poetc_op_int8_depthwise_grad_weight(const poetc_call *call)
{
    task t = task_of(call);
    const float *rate = poetc_in(call, 2);
    const unsigned g = 3 + (t.p.adapts != 0);
    t.image = poetc_in(call, 0);
    t.errors = poetc_in(call, 1);
    t.add_group = add_taps;
    t.is_update = 1;
    t.result = poetc_out(call, g);
    t.result_height = 1, t.result_width = t.p.columns; /* the taps of a plane */
    return finish(&t, poetc_out(call, g + 2), 0, poetc_update_bits(*rate), poetc_in(call, 3), poetc_out(call, g + 1));
}

/* Operands as of poetc_op_int8_qlinear_conv. */
int poetc_op_int8_qlinear_depthwise(const poetc_call *call);
int poetc_op_int8_qlinear_depthwise(const poetc_call *call)
{
    task t = task_of(call);
    requantization r = poetc_requantization_of(call);
    const unsigned y = t.p.has_bias ? 4 : 3;
    int32_t *starts = poetc_out(call, y + 1);
    poetc_rounding unused = {0, 0, POETC_INT8_MOST, 0};
    poetc_start_requantized(&t, &r, poetc_in(call, 1), t.p.has_bias ? poetc_in(call, 3) : 0, starts);
    t.image = poetc_in(call, 0);
    t.add_group = add_outputs;
    t.result = poetc_out(call, y);
    t.result_height = t.p.output_height, t.result_width = t.p.output_width;
    make_sums(&t, starts + t.p.outputs, 0, &unused);
    return POETC_OK;
}
