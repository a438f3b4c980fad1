/* Max and average pooling, forward and backward.
 *
 * Layout: planes of [N, C, H, W]. Max pooling also stores which tap of the window was the maximum.
 * Order of sums: an average adds the taps of each row of the window, then the rows. Gradients that meet in a pixel are
 * added in the order of the outputs. */
#include "poetc_kernel.h"
#include "simd/poetc_clear.h"
#include "simd/poetc_f4.h"

/* The first ints of all kernels here. */
typedef struct {
    int32_t planes, height, width, output_height, output_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
} pooling;

#define POOLING_INTS 13

static pooling describe(const poetc_call *call)
{
    const int32_t *i = call->ints;
    pooling p = {i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12]};
    return p;
}

/* [first, last): the taps that lie on an axis of `size`, the window starting at `start`. */
static void inside(int32_t start, int32_t kernel, int32_t dilation, int32_t size, int32_t *first, int32_t *last)
{
    int32_t low = 0, high = kernel;
    while (low < high && start + low * dilation < 0)
        low++;
    while (high > low && start + (high - 1) * dilation >= size)
        high--;
    *first = low;
    *last = high;
}

/* The later of two values is taken if it is larger, or the first NaN. */
#define TAKES(value, best) (((value) > (best)) | (((value) != (value)) & ((best) == (best))))

#define SELECT(mask_, yes, no) ((poetc_f4)(((mask_) & (mask)(yes)) | (~(mask_) & (mask)(no))))

/* Windows of 2 x 2, two columns apart, between the left and the right edge. */
static int is_plain(const pooling *p)
{
    return p->kernel_h == 2 && p->kernel_w == 2 && p->stride_w == 2 && p->dilation_h == 1 && p->dilation_w == 1 &&
           p->pad_left == 0 && 2 * p->output_width <= p->width;
}

/* One window of 2 x 2. */
static void max_of_window(const float *upper, const float *lower, float *y, uint8_t *where)
{
    const int second = TAKES(upper[1], upper[0]), fourth = TAKES(lower[1], lower[0]);
    const float up = second ? upper[1] : upper[0], low = fourth ? lower[1] : lower[0];
    const int below = TAKES(low, up);
    *y = below ? low : up;
    *where = (uint8_t)(below ? 2 + fourth : second);
}

#if defined(POETC_HELIUM)
#define INPUT_DENORMAL 0x80u /* of the FPSCR's exceptions that accumulate */
#define INVALID_OPERATION 0x01u

/* Four windows of 2 x 2 side by side, `quads` times. */
static void max_of_quads(const float *upper, const float *lower, int32_t quads, float *y, uint8_t *where)
{
    const uint32x4_t ones = vdupq_n_u32(1), zeros = vdupq_n_u32(0);
    /* clang-format off */
    __asm__ volatile("dls lr, %[quads]\n"
                     "1:\tvld20.32 {q0, q1}, [%[upper]]\n\tvld21.32 {q0, q1}, [%[upper]]!\n\t"
                     "vld20.32 {q2, q3}, [%[lower]]\n\tvld21.32 {q2, q3}, [%[lower]]!\n\t"
                     "vcmp.f32 gt, q1, q0\n\tvpsel q0, q1, q0\n\tvpsel q4, %q[ones], %q[zeros]\n\t"
                     "vcmp.f32 gt, q3, q2\n\tvpsel q2, q3, q2\n\tvpsel q5, %q[ones], %q[zeros]\n\t"
                     "vcmp.f32 gt, q2, q0\n\tvpsel q0, q2, q0\n\tvpst\n\tvaddt.i32 q4, q5, %[two]\n\t"
                     "vstrw.32 q0, [%[y]], #16\n\tvstrb.32 q4, [%[where]], #4\n\t"
                     "le lr, 1b"
                     : [upper] "+&r"(upper), [lower] "+&r"(lower), [y] "+&r"(y), [where] "+&l"(where)
                     : [quads] "r"(quads), [two] "r"(2), [ones] "w"(ones), [zeros] "w"(zeros)
                     : "lr", "q0", "q1", "q2", "q3", "q4", "q5", "memory");
    /* clang-format on */
}
#endif

/* Windows of 2 x 2, two apart, all on the image: without branches, which no processor foresees here. Two rows of x make
 * `count` results. */
static void max_of_four(const float *upper, const float *lower, int32_t count, float *y, uint8_t *where)
{
    int32_t i = 0;
#if POETC_LANES > 1 && defined(__SSE2__) /* left to itself GCC makes branches of it */
    typedef int32_t mask __attribute__((vector_size(16)));
    typedef uint8_t bytes __attribute__((vector_size(4)));
    for (; i + 4 <= count; i += 4) {
        const poetc_f4 u0 = poetc_f4_load(upper + 2 * i), u1 = poetc_f4_load(upper + 2 * i + 4);
        const poetc_f4 l0 = poetc_f4_load(lower + 2 * i), l1 = poetc_f4_load(lower + 2 * i + 4);
        const poetc_f4 a = POETC_SHUFFLE(u0, u1, 0, 2, 4, 6), b = POETC_SHUFFLE(u0, u1, 1, 3, 5, 7);
        const poetc_f4 c = POETC_SHUFFLE(l0, l1, 0, 2, 4, 6), d = POETC_SHUFFLE(l0, l1, 1, 3, 5, 7);
        const mask second = TAKES(b, a), fourth = TAKES(d, c);
        const poetc_f4 up = SELECT(second, b, a), low = SELECT(fourth, d, c);
        const mask below = TAKES(low, up);
        const mask tap = (below & (2 - fourth)) | (~below & -second);
        const bytes narrow = __builtin_convertvector(tap, bytes);
        poetc_f4_store(y + i, SELECT(below, low, up));
        __builtin_memcpy(where + i, &narrow, 4);
    }
#elif POETC_FPU_M && !defined(POETC_HELIUM)
    float sum = 0.0f;
    for (; i < count; i++) {
        uint32_t tap, other;
        /* clang-format off */
        __asm__("vldmia %[upper]!, {s0-s1}\n\tvldmia %[lower]!, {s2-s3}\n\t"
                "vcmp.f32 s1, s0\n\tvadd.f32 s4, s0, s1\n\tvadd.f32 s5, s2, s3\n\tvmrs APSR_nzcv, fpscr\n\t"
                "ite gt\n\tmovgt %[tap], #1\n\tmovle %[tap], #0\n\tit gt\n\tvmovgt.f32 s0, s1\n\t"
                "vcmp.f32 s3, s2\n\tvadd.f32 s4, s4, s5\n\tvmrs APSR_nzcv, fpscr\n\t"
                "ite gt\n\tmovgt %[other], #3\n\tmovle %[other], #2\n\tit gt\n\tvmovgt.f32 s2, s3\n\t"
                "vcmp.f32 s2, s0\n\tvadd.f32 %[sum], %[sum], s4\n\tvmrs APSR_nzcv, fpscr\n\t"
                "itt gt\n\tvmovgt.f32 s0, s2\n\tmovgt %[tap], %[other]\n\t"
                "vstr s0, [%[y]]\n\tstrb %[tap], [%[where]]"
                : [upper] "+r"(upper), [lower] "+r"(lower), [sum] "+t"(sum), [tap] "=&r"(tap), [other] "=&r"(other)
                : [y] "r"(y + i), [where] "r"(where + i)
                : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5");
        /* clang-format on */
    }
    if (sum != sum)
        upper -= 2 * count, lower -= 2 * count, i = 0;
#endif
    for (; i < count; i++)
        max_of_window(upper + 2 * i, lower + 2 * i, y + i, where + i);
}

/* The rows of a plane whose windows all are such. */
POETC_APART void max_of_plane(const float *x, int32_t step, int32_t width, int32_t rows, int32_t count, float *y,
                              uint8_t *where)
{
#if defined(POETC_HELIUM)
    if (count >= 4) { /* vectors take subnormal numbers for zeros, and compare NaNs as if they were none; but that
                         leaves a flag */
        const uint32_t flags = __builtin_arm_get_fpscr(), seen = INPUT_DENORMAL | INVALID_OPERATION;
        const int32_t quads = count / 4, last = count % 4 ? count - 4 : 0; /* the last four overlap those before */
        int32_t row, ordinary;
        __builtin_arm_set_fpscr(flags & ~seen);
        for (row = 0; row < rows; row++) {
            const float *upper = x + row * step;
            max_of_quads(upper, upper + width, quads, y + row * count, where + row * count);
            if (last)
                max_of_quads(upper + 2 * last, upper + width + 2 * last, 1, y + row * count + last,
                             where + row * count + last);
        }
        ordinary = !(__builtin_arm_get_fpscr() & seen);
        __builtin_arm_set_fpscr(flags);
        if (ordinary)
            return;
    }
#endif
    for (; rows > 0; rows--, x += step, y += count, where += count)
        max_of_four(x, x + width, count, y, where);
}

/* x -> y, where (u8 or, with the last int set, i32): the tap of the first maximum; a NaN counts as the maximum. */
int poetc_op_max_pool(const poetc_call *call)
{
    const pooling p = describe(call);
    const int wide = call->ints[POOLING_INTS];
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    uint8_t *where8 = poetc_out(call, 2);
    int32_t *where32 = poetc_out(call, 2);
    size_t at = 0;
    const int32_t reach = (p.kernel_w - 1) * p.dilation_w + 1;
    const int plain = !wide && is_plain(&p) && p.pad_top == 0 && (p.output_height - 1) * p.stride_h + 2 <= p.height;
    int32_t plane, oh, ow, i, j;
    POETC_THREADED_OVER(poetc_op_max_pool, call, p.planes * p.height * p.width);
    for (plane = 0; plane < p.planes; plane++, x += (ptrdiff_t)p.height * p.width) {
        POETC_SKIP(call->share, plane, p.planes, at += (size_t)p.output_height * (size_t)p.output_width)
        if (plain) {
            max_of_plane(x, p.stride_h * p.width, p.width, p.output_height, p.output_width, y + at, where8 + at);
            at += (size_t)p.output_height * (size_t)p.output_width;
            continue;
        }
        for (oh = 0; oh < p.output_height; oh++) {
            int32_t top = oh * p.stride_h - p.pad_top, first, last;
            inside(top, p.kernel_h, p.dilation_h, p.height, &first, &last);
            for (ow = 0; ow < p.output_width; ow++, at++) {
                int32_t left = ow * p.stride_w - p.pad_left, from = 0, to = p.kernel_w, tap;
                float best;
                if (left < 0 || left + reach > p.width)
                    inside(left, p.kernel_w, p.dilation_w, p.width, &from, &to);
                tap = first * p.kernel_w + from;
                best = x[(ptrdiff_t)(top + first * p.dilation_h) * p.width + left + from * p.dilation_w];
                for (i = first; i < last; i++) {
                    const float *row = x + (ptrdiff_t)(top + i * p.dilation_h) * p.width + left + from * p.dilation_w;
                    for (j = from; j < to; j++, row += p.dilation_w) {
                        const float value = *row;
                        if (!(value <= best) && best == best)
                            best = value, tap = i * p.kernel_w + j;
                    }
                }
                y[at] = best;
                if (wide)
                    where32[at] = tap;
                else
                    where8[at] = (uint8_t)tap;
            }
        }
    }
    return POETC_OK;
}

/* where, gy -> gx: each gy goes to its maximum; several that meet are added in the order of the outputs. */
int poetc_op_max_pool_grad(const poetc_call *call)
{
    const pooling p = describe(call);
    const int wide = call->ints[POOLING_INTS];
    const uint8_t *where8 = poetc_in(call, 0);
    const int32_t *where32 = poetc_in(call, 0);
    const float *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2);
    const ptrdiff_t size = (ptrdiff_t)p.height * p.width;
    const int plain = !wide && is_plain(&p) && p.pad_top == 0 && p.stride_h == 2 && 2 * p.output_height <= p.height;
    size_t at = 0;
    int32_t plane, oh, ow;
    POETC_THREADED_OVER(poetc_op_max_pool_grad, call, p.planes * size);
    for (plane = 0; plane < p.planes; plane++, gx += size) {
        POETC_SKIP(call->share, plane, p.planes, at += (size_t)p.output_height * (size_t)p.output_width)
        poetc_clear(gx, size);
        for (oh = 0; oh < p.output_height && plain; oh++) {
            float *to = gx + (ptrdiff_t)2 * oh * p.width;
            for (ow = p.output_width; ow > 0; ow--, at++, to += 2) {
                const int32_t tap = where8[at];
                if (tap > 3)
                    return POETC_ERANGE;
                to[(tap & 1) + (tap & 2 ? p.width : 0)] += gy[at];
            }
        }
        for (; oh < p.output_height; oh++) {
            for (ow = 0; ow < p.output_width; ow++, at++) {
                int32_t tap = wide ? where32[at] : where8[at];
                int32_t row = oh * p.stride_h - p.pad_top + tap / p.kernel_w * p.dilation_h;
                int32_t column = ow * p.stride_w - p.pad_left + tap % p.kernel_w * p.dilation_w;
                if (row < 0 || row >= p.height || column < 0 || column >= p.width)
                    return POETC_ERANGE;
                gx[(ptrdiff_t)row * p.width + column] += gy[at];
            }
        }
    }
    return POETC_OK;
}

/* Taps that count along an axis: those between `before` pixels ahead of the image and `after` behind it. */
static int32_t counted(int32_t start, int32_t kernel, int32_t dilation, int32_t size, int32_t before, int32_t after)
{
    int32_t first, last;
    inside(start + before, kernel, dilation, size + before + after, &first, &last);
    return last - first;
}

/* x -> y; the last four ints are the pads that count (top, left, bottom, right). */
int poetc_op_average_pool(const poetc_call *call)
{
    const pooling p = describe(call);
    const int32_t *pads = call->ints + POOLING_INTS;
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    int32_t plane, oh, ow, i, j;
    POETC_THREADED_OVER(poetc_op_average_pool, call, p.planes * p.height * p.width);
    for (plane = 0; plane < p.planes; plane++, x += (ptrdiff_t)p.height * p.width) {
        POETC_SKIP(call->share, plane, p.planes, y += (ptrdiff_t)p.output_height * p.output_width)
        for (oh = 0; oh < p.output_height; oh++) {
            int32_t top = oh * p.stride_h - p.pad_top, first, last;
            int32_t rows = counted(top, p.kernel_h, p.dilation_h, p.height, pads[0], pads[2]);
            inside(top, p.kernel_h, p.dilation_h, p.height, &first, &last);
            for (ow = 0; ow < p.output_width; ow++) {
                int32_t left = ow * p.stride_w - p.pad_left, from, to;
                int32_t columns = counted(left, p.kernel_w, p.dilation_w, p.width, pads[1], pads[3]);
                float sum = 0.0f;
                inside(left, p.kernel_w, p.dilation_w, p.width, &from, &to);
                for (i = first; i < last; i++) {
                    const float *row = x + (ptrdiff_t)(top + i * p.dilation_h) * p.width;
                    float part = 0.0f;
                    for (j = from; j < to; j++)
                        part += row[left + j * p.dilation_w];
                    sum += part;
                }
                *y++ = sum / (float)(rows * columns);
            }
        }
    }
    return POETC_OK;
}

/* gy -> gx */
int poetc_op_average_pool_grad(const poetc_call *call)
{
    const pooling p = describe(call);
    const int32_t *pads = call->ints + POOLING_INTS;
    const float *gy = poetc_in(call, 0);
    float *gx = poetc_out(call, 1);
    const ptrdiff_t size = (ptrdiff_t)p.height * p.width;
    ptrdiff_t at;
    int32_t plane, oh, ow, i, j;
    POETC_THREADED_OVER(poetc_op_average_pool_grad, call, p.planes * size);
    for (plane = 0; plane < p.planes; plane++, gx += size) {
        POETC_SKIP(call->share, plane, p.planes, gy += (ptrdiff_t)p.output_height * p.output_width)
        for (at = 0; at < size; at++)
            gx[at] = 0.0f;
        for (oh = 0; oh < p.output_height; oh++) {
            int32_t top = oh * p.stride_h - p.pad_top, first, last;
            int32_t rows = counted(top, p.kernel_h, p.dilation_h, p.height, pads[0], pads[2]);
            inside(top, p.kernel_h, p.dilation_h, p.height, &first, &last);
            for (ow = 0; ow < p.output_width; ow++) {
                int32_t left = ow * p.stride_w - p.pad_left, from, to;
                int32_t columns = counted(left, p.kernel_w, p.dilation_w, p.width, pads[1], pads[3]);
                float share = *gy++ / (float)(rows * columns);
                inside(left, p.kernel_w, p.dilation_w, p.width, &from, &to);
                for (i = first; i < last; i++) {
                    float *row = gx + (ptrdiff_t)(top + i * p.dilation_h) * p.width;
                    for (j = from; j < to; j++)
                        row[left + j * p.dilation_w] += share;
                }
            }
        }
    }
    return POETC_OK;
}
