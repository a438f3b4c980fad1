/* Convolution in 8 bits, its gradients, and the gradient of a bias (poetc/ops/integer_convolution.py).
 *
 * Layout: images are [N, C, H, W], weights [O, C / group, kh, kw]. Rows and columns of a product are packed each behind
 * the other. Their terms are filled up with zeros to a multiple of UNIT. Order of sums: sums of 32 bits are exact, so
 * that their order changes nothing. */
#include "int8/poetc_int8_long.h"

/* --- rows and columns ------------------------------------------------------------------------------------------- */

static void pads(operand *to, int32_t count, int32_t pad)
{
#if POETC_INT8_HELIUM
    poetc_fill_bytes(to, count, (operand)pad);
#elif HAS_SDOT
    __builtin_memset(to, pad, (size_t)count);
#else
    for (; count > 0; count--)
        *to++ = (operand)pad;
#endif
}

static void zeros(operand *to, int32_t count)
{
    if (count)
        pads(to, count, 0);
}

/* `count` bytes that lie `step` apart. */
static void gather(const int8_t *from, size_t step, int32_t count, operand *to)
{
#if POETC_INT8_HELIUM
    if (step < POETC_HELIUM_STEP) {
        poetc_gather_bytes(from, poetc_places(step), step, count, to);
        return;
    }
#endif
    for (; count >= 4; count -= 4, from += 4 * step, to += 4) {
        const operand v0 = from[0], v1 = from[step], v2 = from[2 * step], v3 = from[3 * step];
        to[0] = v0, to[1] = v1, to[2] = v2, to[3] = v3;
    }
    for (; count > 0; count--, from += step)
        *to++ = *from;
}

/* `count` bytes that follow each other. */
static void widen(const int8_t *from, int32_t count, operand *to)
{
#if POETC_INT8_HELIUM
    poetc_copy_bytes(from, count, to);
    return;
#elif HAS_SMLAD
    for (; count >= 4; count -= 4, from += 4, to += 4) {
        uint32_t even, odd, word;
        __builtin_memcpy(&word, from, sizeof word);
        even = (uint32_t)__sxtb16((int8x4_t)word);
        odd = (uint32_t)__sxtb16((int8x4_t)(word >> 8 | word << 24));
        word = (even & 0xffffu) | odd << 16;
        odd = (odd & 0xffff0000u) | even >> 16;
        __builtin_memcpy(to, &word, sizeof word);
        __builtin_memcpy(to + 2, &odd, sizeof odd);
    }
#elif HAS_SDOT
    for (; count >= 16; count -= 16, from += 16, to += 16)
        vst1q_s8(to, vld1q_s8(from));
#elif defined(__aarch64__)
    for (; count >= 8; count -= 8, from += 8, to += 8)
        vst1q_s16(to, vmovl_s8(vld1_s8(from)));
#endif
    gather(from, 1, count, to);
}

/* Rows are the weights of an output or of a channel; the terms are taps, and planes within a tap. */
static void rows_of_weights(const task *t, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                            operand *to)
{
    const product *p = &t->p;
    const int32_t planes = t->planes_group, depth = round_up(terms, UNIT), line = t->right.taps * planes;
    const int32_t taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group;
    const int8_t *w = t->weight + (size_t)(group * (p->outputs / p->group)) * (size_t)(inputs * taps);
    int32_t i, a, b;
    for (i = 0; i < count; i++, to += depth) {
        operand *next = to;
        for (a = term / line; a < (term + terms) / line; a++) {
            const int32_t first = (t->down.tap_first + a * t->down.tap_step) * p->kernel_w + t->right.tap_first;
            const int8_t *from = w + (size_t)(row + i) * t->weight_row + first;
            for (b = 0; b < t->right.taps; b++, next += planes)
                if (HAS_NEON && t->weight_plane == 1)
                    widen(from + b * t->right.tap_step, planes, next);
                else
                    gather(from + b * t->right.tap_step, t->weight_plane, planes, next);
        }
        zeros(next, depth - terms);
    }
}

#if !POETC_INT8_HELIUM
static void copy(const operand *from, int32_t count, operand *to)
{
    for (; count >= 8; count -= 8, from += 8, to += 8)
        __builtin_memcpy(to, from, 8 * sizeof *to);
    for (; count > 0; count--)
        *to++ = *from++;
}

/* The taps along an axis that are within the size of a plane, from `place` on: those below `first` and from `last` on
 * are not. */
static void taps_within(const axis *x, int32_t place, int32_t size, int32_t *first, int32_t *last)
{
    int32_t k = 0;
    while (k < x->taps && (place + k * x->tap < 0 || place + k * x->tap >= size))
        k++;
    *first = k;
    while (k < x->taps && place + k * x->tap >= 0 && place + k * x->tap < size)
        k++;
    *last = k;
}

#endif

/* Columns are the windows that pixels read. The most of its taps a window shares with the one before it. */
#if POETC_INT8_HELIUM
/* A line of taps of all windows of a row of pixels at a time, so that a window costs a copy and a gather. */
static void columns_of_windows(const task *t, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                               operand *to)
{
    const axis *down = &t->down, *right = &t->right;
    const int32_t planes = t->planes_group, depth = round_up(terms, UNIT), line = right->taps * planes;
    const int32_t first_line = term / line, lines = (term + terms) / line, pixels = down->count * right->count;
    const int32_t shared = right->tap && right->move % right->tap == 0 ? right->move / right->tap : right->taps;
    const size_t plane = (size_t)t->height * (size_t)t->width;
    const uint16x8_t places = poetc_places(plane);
    int32_t n = column / pixels, i = column % pixels / right->count, j = column % right->count, run, a, b, k;
    for (; count > 0; count -= run, to += run * depth) {
        const int8_t *x = t->planes + ((size_t)n * (size_t)t->planes_all + (size_t)(group * planes)) * plane;
        operand *next = to;
        run = at_most(right->count - j, count);
        for (a = first_line; a < lines; a++, next += line) {
            const int32_t h = i * down->move + down->origin + a * down->tap;
            int32_t left = j * right->move + right->origin, from = 0, until = right->taps;
            const int8_t *row;
            operand *window = next;
            if (h < 0 || h >= t->height) {
                for (k = 0; k < run; k++, window += depth)
                    poetc_fill_bytes(window, line, (operand)t->pad);
                continue;
            }
            row = x + (size_t)h * (size_t)t->width;
            for (k = 0; k < run; k++, window += depth, left += right->move) {
                int32_t place = left + from * right->tap;
                operand *tap = window + from * planes;
                if (from > 0)
                    poetc_copy_bytes(window - depth + shared * planes, from * planes, window);
                if (until < right->taps)
                    poetc_copy_bytes(window - depth, (right->taps - until) * planes, window + until * planes);
                for (b = from; b < until; b++, place += right->tap, tap += planes) {
                    if (place < 0 || place >= t->width)
                        poetc_fill_bytes(tap, planes, (operand)t->pad);
                    else if (plane < POETC_HELIUM_STEP)
                        poetc_gather_bytes(row + place, places, plane, planes, tap);
                    else
                        gather(row + place, plane, planes, tap);
                }
                if (shared > 0 && shared < right->taps)
                    from = right->taps - shared; /* the last taps are new */
                else if (shared < 0 && -shared < right->taps)
                    until = -shared; /* the first ones are */
            }
        }
        if (depth > terms)
            for (k = 0; k < run; k++)
                poetc_fill_bytes(to + k * depth + terms, depth - terms, 0);
        j = 0;
        if (++i == down->count)
            i = 0, n++;
    }
}
#else
/* Beside the pixel before. */
static void columns_of_windows(const task *t, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                               operand *to)
{
    const axis *down = &t->down, *right = &t->right;
    const int32_t planes = t->planes_group, depth = round_up(terms, UNIT), line = right->taps * planes;
    const int32_t first_line = term / line, lines = (term + terms) / line, pixels = down->count * right->count;
    const int32_t shared = right->tap && right->move % right->tap == 0 ? right->move / right->tap : right->taps;
    const size_t plane = (size_t)t->height * (size_t)t->width;
    int32_t n = column / pixels, i = column % pixels / right->count, j = column % right->count, k, a, b;
    for (k = 0; k < count; k++, to += depth) {
        const int8_t *x = t->planes + ((size_t)n * (size_t)t->planes_all + (size_t)(group * planes)) * plane;
        const int32_t top = i * down->move + down->origin, left = j * right->move + right->origin;
        const int32_t has_before = k > 0 && j > 0;
        int32_t first, last, from = 0, until = right->taps;
        operand *next = to;
        taps_within(right, left, t->width, &first, &last);
        if (has_before && shared > 0 && shared < right->taps)
            from = right->taps - shared; /* the last taps are new */
        else if (has_before && shared < 0 && -shared < right->taps)
            until = -shared; /* the first ones are */
        for (a = first_line; a < lines; a++, next += line) {
            const int32_t h = top + a * down->tap;
            if (h < 0 || h >= t->height) {
                pads(next, line, t->pad);
                continue;
            }
            if (from > 0)
                copy(next - depth + shared * planes, from * planes, next);
            for (b = from; b < until; b++) {
                if (b >= first && b < last)
                    gather(x + (size_t)h * (size_t)t->width + (size_t)(left + b * right->tap), plane, planes,
                           next + b * planes);
                else
                    pads(next + b * planes, planes, t->pad);
            }
            if (until < right->taps)
                copy(next - depth, (right->taps - until) * planes, next + until * planes);
        }
        zeros(next, depth - terms);
        if (++j == right->count) {
            j = 0;
            if (++i == down->count)
                i = 0, n++;
        }
    }
}
#endif

/* Rows are the errors of an output, a term a pixel. */
static void errors_of_outputs(const task *t, int32_t group, int32_t row, int32_t count, int32_t term, int32_t terms,
                              operand *to)
{
    const product *p = &t->p;
    const int32_t pixels = p->output_height * p->output_width, depth = round_up(terms, UNIT);
    int32_t i;
    for (i = 0; i < count; i++, to += depth) {
        const int32_t output = group * p->rows + row + i;
        int32_t n = term / pixels, pixel = term % pixels, done = 0;
        while (done < terms) {
            const int32_t part = at_most(terms - done, pixels - pixel);
            const int8_t *y = t->errors + ((size_t)n * (size_t)p->outputs + (size_t)output) * (size_t)pixels;
            widen(y + pixel, part, to + done);
            done += part, pixel = 0, n++;
        }
        zeros(to + terms, depth - terms);
    }
}

/* Columns are the pixels that a tap of a channel reads, a term a pixel of the output. */
static void pixels_of_taps(const task *t, int32_t group, int32_t column, int32_t count, int32_t term, int32_t terms,
                           operand *to)
{
    const product *p = &t->p;
    const int32_t taps = p->kernel_h * p->kernel_w, inputs = p->channels / p->group, depth = round_up(terms, UNIT);
    const int32_t pixels = p->output_height * p->output_width;
    const size_t plane = (size_t)p->height * (size_t)p->width;
    int32_t i;
    for (i = 0; i < count; i++, to += depth) {
        const int32_t c = (column + i) / taps, tap = (column + i) % taps;
        const int32_t down = tap / p->kernel_w * p->dilation_h - p->pad_top;
        const int32_t right = tap % p->kernel_w * p->dilation_w - p->pad_left;
        const int32_t stride = p->stride_w, after = p->width - right + stride - 1;
        /* Pixels of a row from the first to the last read the image. */
        const int32_t row_first = right < 0 ? (stride - 1 - right) / stride : 0;
        const int32_t row_last = after > 0 ? at_most(after / stride, p->output_width) : 0;
        int32_t n = term / pixels, oh = term % pixels / p->output_width, ow = term % p->output_width, done = 0;
        while (done < terms) { /* a row of the output */
            const int32_t until = at_most(terms - done + ow, p->output_width), h = oh * p->stride_h + down;
            const int32_t last = h < 0 || h >= p->height ? 0 : at_most(row_last, until);
            const size_t place = (size_t)n * (size_t)p->channels + (size_t)(group * inputs + c);
            operand *next = to + done;
            done += until - ow;
            for (; ow < row_first && ow < last; ow++)
                *next++ = 0;
            if (ow < last) { /* else there is no such row */
                const int8_t *x = t->image + place * plane + h * p->width + (ow * stride + right);
                if (stride == 1)
                    widen(x, last - ow, next);
                else
                    gather(x, (size_t)stride, last - ow, next);
                next += last - ow, ow = last;
            }
            for (; ow < until; ow++)
                *next++ = 0;
            ow = 0;
            if (++oh == p->output_height)
                oh = 0, n++;
        }
        zeros(to + terms, depth - terms);
    }
}

/* --- phases ----------------------------------------------------------------------------------------------------- */

/* Forward there is one: all pixels of the output read all taps. */
static void all_pixels(task *t, int32_t phase)
{
    const product *p = &t->p;
    const axis down = {0, 1, p->output_height, p->stride_h, -p->pad_top, p->dilation_h, p->kernel_h, 0, 1};
    const axis right = {0, 1, p->output_width, p->stride_w, -p->pad_left, p->dilation_w, p->kernel_w, 0, 1};
    (void)phase;
    t->down = down, t->right = right;
    t->terms = p->terms, t->columns = p->columns;
}

/* Pixels of the image from `first` on, `stride` apart. Their taps k satisfy (first + pad - k * dilation) % stride = 0,
 * and read the errors at that number / stride. */
static axis every(int32_t first, int32_t stride, int32_t size, int32_t pad, int32_t dilation, int32_t kernel)
{
    axis x = {first, stride, 0, 1, 0, 0, 0, 0, 1};
    int32_t tap = 0;
    x.count = first < size ? (size - first + stride - 1) / stride : 0;
    while (tap < kernel && (first + pad - tap * dilation) % stride)
        tap++;
    if (tap == kernel)
        return x;
    x.tap_first = tap;
    while (x.tap_step * dilation % stride)
        x.tap_step++;
    x.origin = (first + pad - tap * dilation) / stride;
    x.tap = -(x.tap_step * dilation / stride);
    x.taps = (kernel - tap + x.tap_step - 1) / x.tap_step;
    return x;
}

/* Backward there is one for each place within a stride. */
static void strided_pixels(task *t, int32_t phase)
{
    const product *p = &t->p;
    t->down = every(phase / p->stride_w, p->stride_h, p->height, p->pad_top, p->dilation_h, p->kernel_h);
    t->right = every(phase % p->stride_w, p->stride_w, p->width, p->pad_left, p->dilation_w, p->kernel_w);
    t->terms = t->down.taps * t->right.taps * t->planes_group;
    t->columns = p->batch * t->down.count * t->right.count;
    if (!t->terms)
        t->right.taps = t->down.taps = 1; /* no window is read */
}

/* The gradient of weights has one column a weight. */
static void all_weights(task *t, int32_t phase)
{
    const axis down = {0, 1, 1, 0, 0, 0, 0, 0, 1}, right = {0, 1, t->p.columns, 0, 0, 0, 0, 0, 1};
    (void)phase;
    t->down = down, t->right = right;
    t->terms = t->p.terms, t->columns = t->p.columns;
}

static void forward(task *t, const poetc_call *call)
{
    const product *p = &t->p;
    t->image = t->planes = poetc_in(call, 0);
    t->planes_all = p->channels, t->planes_group = p->channels / p->group;
    t->height = p->height, t->width = p->width;
    t->weight_plane = (size_t)(p->kernel_h * p->kernel_w), t->weight_row = (size_t)t->planes_group * t->weight_plane;
    t->phases = 1;
    t->set_phase = all_pixels;
    t->pack_rows = rows_of_weights, t->pack_columns = columns_of_windows;
    t->result_planes = p->outputs, t->result_height = p->output_height, t->result_width = p->output_width;
}

/* --- kernels ---------------------------------------------------------------------------------------------------- */

/* x, its scale, w, its exponent, (b, its exponent), (history) -> y, its scale. */
int poetc_op_int8_conv(const poetc_call *call);
int poetc_op_int8_conv(const poetc_call *call)
{
    const product p = poetc_product_of(call);
    const unsigned history = p.has_bias ? 6 : 4, y = history + (p.adapts != 0);
    const int32_t *scale = poetc_in(call, 1), *weight_scale = poetc_in(call, 3);
    const int32_t exponent = scale[0] + weight_scale[0];
    task t = {0};
    t.p = p;
    forward(&t, call);
    t.weight = poetc_in(call, 2);
    if (p.has_bias) {
        const int32_t *bias_scale = poetc_in(call, 5);
        t.bias = poetc_in(call, 4);
        t.bias_shift = bias_scale[0] - exponent;
    }
    t.result = poetc_out(call, y);
    return finish(&t, poetc_out(call, y + 2), exponent, POETC_INT8_BITS, poetc_in(call, history),
                  poetc_out(call, y + 1));
}

/* gy, its scale, w, its exponent, (history) -> gx, its scale. */
int poetc_op_int8_conv_grad_input(const poetc_call *call);
int poetc_op_int8_conv_grad_input(const poetc_call *call)
{
    const int32_t *scale = poetc_in(call, 1), *weight_scale = poetc_in(call, 3);
    unsigned y;
    task t = {0};
    t.p = poetc_product_of(call);
    y = 4 + (t.p.adapts != 0);
    t.errors = t.planes = poetc_in(call, 0);
    t.planes_all = t.p.outputs, t.planes_group = t.p.outputs / t.p.group;
    t.height = t.p.output_height, t.width = t.p.output_width;
    t.weight = poetc_in(call, 2);
    t.weight_row = (size_t)(t.p.kernel_h * t.p.kernel_w);
    t.weight_plane = (size_t)(t.p.channels / t.p.group) * t.weight_row;
    t.phases = t.p.stride_h * t.p.stride_w;
    t.set_phase = strided_pixels;
    t.pack_rows = rows_of_weights, t.pack_columns = columns_of_windows;
    t.result = poetc_out(call, y);
    t.result_planes = t.p.channels, t.result_height = t.p.height, t.result_width = t.p.width;
    return finish(&t, poetc_out(call, y + 2), scale[0] + weight_scale[0], POETC_INT8_BITS, poetc_in(call, 4),
                  poetc_out(call, y + 1));
}

/* The operands of an update: x, gy, learning rate, (history) -> g, its scale. The place of g among them. */
static unsigned update(task *t, const poetc_call *call)
{
    const unsigned g = 3 + (t->p.adapts != 0);
    t->image = poetc_in(call, 0);
    t->errors = poetc_in(call, 1);
    t->phases = 1;
    t->set_phase = all_weights;
    t->pack_rows = errors_of_outputs;
    t->pack_columns = pixels_of_taps;
    t->is_update = 1;
    t->result = poetc_out(call, g);
    t->result_planes = t->p.groups * t->p.rows, t->result_height = 1, t->result_width = t->p.columns; /* one image */
    return g;
}

int poetc_op_int8_conv_grad_weight(const poetc_call *call);
int poetc_op_int8_conv_grad_weight(const poetc_call *call)
{
    const float *rate = poetc_in(call, 2);
    unsigned g;
    task t = {0};
    t.p = poetc_product_of(call);
    g = update(&t, call);
    return finish(&t, poetc_out(call, g + 2), 0, poetc_update_bits(*rate), poetc_in(call, 3), poetc_out(call, g + 1));
}

/* The same of sums with more terms than 32 bits hold. */
int poetc_op_int8_conv_grad_weight_long(const poetc_call *call);
int poetc_op_int8_conv_grad_weight_long(const poetc_call *call)
{
    const float *rate = poetc_in(call, 2);
    unsigned g;
    task t = {0};
    t.p = poetc_product_of(call);
    g = update(&t, call);
    return finish_long(&t, poetc_out(call, g + 2), poetc_update_bits(*rate), poetc_in(call, 3), poetc_out(call, g + 1));
}

/* gy, learning rate -> g, its scale. */
int poetc_op_int8_bias_grad(const poetc_call *call);
int poetc_op_int8_bias_grad(const poetc_call *call)
{
    const product p = poetc_product_of(call);
    const int8_t *gy = poetc_in(call, 0);
    const float *rate = poetc_in(call, 1);
    int8_t *g = poetc_out(call, 2);
    int32_t *sums = poetc_out(call, 4), n, c;
    const int32_t pixels = p.height * p.width;
    poetc_rounding rounding = {0, p.is_stochastic, POETC_INT8_MOST, 0};
    int32_t bits;
    for (c = 0; c < p.channels; c++) {
        int32_t sum = 0;
        for (n = 0; n < p.batch; n++) {
            const int8_t *plane = gy + ((size_t)n * (size_t)p.channels + (size_t)c) * (size_t)pixels;
            sum += poetc_total_of_values(plane, pixels);
        }
        sums[c] = sum;
    }
    bits = poetc_bits_seen(poetc_see(sums, p.channels, 0u));
    rounding.shift = bits - poetc_update_bits(*rate);
    rounding.most = poetc_update_most(poetc_update_bits(*rate));
    for (c = 0; c < p.channels; c++)
        g[c] = poetc_rounded(sums[c], &rounding);
    return poetc_scale(poetc_out(call, 3), 0, rounding.clipped, bits, rounding.shift);
}

/* x, w, scale of each output, (b) -> y. ints: product, then zero of x, zero, low, high. floats: scale of x, scale. Pads
 * hold the zero of x, and a sum starts from the bias without that zero's share. */
int poetc_op_int8_qlinear_conv(const poetc_call *call);
int poetc_op_int8_qlinear_conv(const poetc_call *call)
{
    const product p = poetc_product_of(call);
    requantization r = poetc_requantization_of(call);
    const unsigned y = p.has_bias ? 4 : 3;
    int32_t *starts = poetc_out(call, y + 1);
    poetc_rounding unused = {0, 0, POETC_INT8_MOST, 0};
    task t = {0};
    t.p = p;
    poetc_start_requantized(&t, &r, poetc_in(call, 1), p.has_bias ? poetc_in(call, 3) : 0, starts);
    forward(&t, call);
    t.result = poetc_out(call, y);
    make_sums(&t, starts + p.outputs, 0, &unused);
    return POETC_OK;
}
