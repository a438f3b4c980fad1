/* Layer norm, RMS norm and group norm, forward and backward: each row is normalised on its own.
 *
 * Layout: rows are contiguous. A layer or RMS norm has one scale an element of the row, shared by all rows. A group
 * norm has one scale a channel, and its rows are groups of channels. `scales` describes both: element i of row r has
 * scale[(r % wrap) * channels + i / pixels]. A layer norm has wrap = 1 and pixels = 1.
 * Order of sums: a row's sum is that of poetc_f4.h, over sixteen lanes. Gradients of parameters add rows in sequence,
 * in blocks of rows whose sums are added in sequence. */
#include "poetc_math.h"
#include "simd/poetc_f4.h"

#define BLOCK 64

typedef struct {
    int32_t rows, length;           /* length = channels * pixels */
    int32_t wrap, channels, pixels; /* groups of a sample, channels of a group */
} scales;

static scales per_element(const int32_t *ints)
{
    scales s = {ints[0], ints[1], 1, ints[1], 1};
    return s;
}

/* ints: N, groups, channels of a group, pixels */
static scales per_channel(const int32_t *ints)
{
    scales s = {ints[0] * ints[1], ints[2] * ints[3], ints[1], ints[2], ints[3]};
    return s;
}

static float mean_of(const float *x, int32_t count)
{
    return poetc_row_sum(x, count) / (float)count;
}

/* mean of (x - shift)² */
static float mean_square(const float *x, float shift, int32_t count)
{
    float sum;
    POETC_LANE_DOT(sum, count, x[at] - shift, x[at] - shift, poetc_vector_load(x + at) - shift,
                   poetc_vector_load(x + at) - shift);
    return sum / (float)count;
}

/* y = (x - mean) * rstd * scale + bias, element by element; `bias` may be NULL. */
static void apply(const scales *s, int32_t row, const float *x, float mean, float rstd, const float *scale,
                  const float *bias, float *y)
{
    ptrdiff_t base = (ptrdiff_t)(row % s->wrap) * s->channels;
    int32_t c = 0, i;
    if (s->pixels == 1) { /* a factor an element */
        const float *factor = scale + base, *shift = bias ? bias + base : NULL;
#if POETC_LANES > 1
        for (; c + POETC_LANES <= s->channels; c += POETC_LANES) {
            const poetc_vector v = (poetc_vector_load(x + c) - mean) * rstd, by = poetc_vector_load(factor + c);
            poetc_vector_store(y + c,
                               shift ? POETC_FMAV(v, by, poetc_vector_load(shift + c)) : POETC_FMAV(v, by, 0.0f));
        }
#endif
        for (; c < s->channels; c++)
            y[c] = POETC_FMA((x[c] - mean) * rstd, factor[c], shift ? shift[c] : 0.0f);
        return;
    }
    for (c = 0; c < s->channels; c++, x += s->pixels, y += s->pixels) {
        const float factor = scale[base + c], shift = bias ? bias[base + c] : 0.0f;
        for (i = 0; i < s->pixels; i++)
            y[i] = POETC_FMA((x[i] - mean) * rstd, factor, shift);
    }
}

static int normalise(const poetc_call *call, const scales *s, int has_bias)
{
    const float *x = poetc_in(call, 0), *scale = poetc_in(call, 1), *bias = has_bias ? poetc_in(call, 2) : NULL;
    float *y = poetc_out(call, 2u + (unsigned)has_bias), *mean = poetc_out(call, 3u + (unsigned)has_bias);
    float *rstd = poetc_out(call, 4u + (unsigned)has_bias);
    int32_t row;
    for (row = 0; row < s->rows; row++, x += s->length, y += s->length) {
        POETC_SKIP(call->share, row, s->rows, )
        mean[row] = mean_of(x, s->length);
        rstd[row] = 1.0f / poetc_sqrtf(mean_square(x, mean[row], s->length) + call->floats[0]);
        apply(s, row, x, mean[row], rstd[row], scale, bias, y);
    }
    return POETC_OK;
}

/* A row with a factor an element; see grad_row. */
static void grad_elements(int32_t length, const float *x, const float *mean, float rstd, const float *factor,
                          const float *gy, float *gx)
{
    const float centre = mean ? *mean : 0.0f;
    float mean_g = 0.0f, mean_product;
    int32_t i = 0;
    if (mean) {
        POETC_LANE_DOT(mean_g, length, gy[at], factor[at], poetc_vector_load(gy + at), poetc_vector_load(factor + at));
        mean_g /= (float)length;
    }
    POETC_LANE_DOT(mean_product, length, gy[at] * factor[at], (x[at] - centre) * rstd,
                   poetc_vector_load(gy + at) * poetc_vector_load(factor + at),
                   (poetc_vector_load(x + at) - centre) * rstd);
    mean_product /= (float)length;
#if POETC_LANES > 1
    for (; i + POETC_LANES <= length; i += POETC_LANES) {
        const poetc_vector g = POETC_FMAV(poetc_vector_load(gy + i), poetc_vector_load(factor + i), -mean_g);
        const poetc_vector normal = (poetc_vector_load(x + i) - centre) * rstd;
        poetc_vector_store(gx + i, rstd * POETC_FMSV(normal, mean_product, g));
    }
#endif
    for (; i < length; i++)
        gx[i] = rstd * POETC_FMS((x[i] - centre) * rstd, mean_product, POETC_FMA(gy[i], factor[i], -mean_g));
}

/* gx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = gy * scale; without `mean` (RMS norm) the middle term is
 * absent. */
static void grad_row(const scales *s, int32_t row, const float *x, const float *mean, float rstd, const float *scale,
                     const float *gy, float *gx)
{
    const float *factor = scale + (ptrdiff_t)(row % s->wrap) * s->channels;
    const float centre = mean ? mean[row] : 0.0f;
    poetc_compensated sum = {0.0f, 0.0f}, products = {0.0f, 0.0f};
    float mean_g, mean_product, part = 0.0f, part_product = 0.0f;
    int32_t terms = 0, c, p, i, end;
    if (s->pixels == 1) {
        grad_elements(s->length, x, mean ? mean + row : NULL, rstd, factor, gy, gx);
        return;
    }
    for (c = 0; c < s->channels; c++) {
        for (p = 0; p < s->pixels; p = end) {
            end = s->pixels - p > BLOCK ? p + BLOCK : s->pixels;
            terms += end - p;
            for (i = c * s->pixels + p; i < c * s->pixels + end; i++) {
                part = POETC_FMA(gy[i], factor[c], part);
                part_product = POETC_FMA(gy[i] * factor[c], (x[i] - centre) * rstd, part_product);
            }
            if (terms >= BLOCK) {
                poetc_compensated_add(&sum, part);
                poetc_compensated_add(&products, part_product);
                part = part_product = 0.0f;
                terms = 0;
            }
        }
    }
    poetc_compensated_add(&sum, part);
    poetc_compensated_add(&products, part_product);
    mean_g = mean ? sum.total / (float)s->length : 0.0f;
    mean_product = products.total / (float)s->length;
    for (c = 0; c < s->channels; c++, x += s->pixels, gy += s->pixels, gx += s->pixels)
        for (i = 0; i < s->pixels; i++)
            gx[i] = rstd * POETC_FMS((x[i] - centre) * rstd, mean_product, POETC_FMA(gy[i], factor[c], -mean_g));
}

static int grad_input(const poetc_call *call, const scales *s)
{
    const float *x = poetc_in(call, 0), *mean = poetc_in(call, 1), *rstd = poetc_in(call, 2);
    const float *scale = poetc_in(call, 3), *gy = poetc_in(call, 4);
    float *gx = poetc_out(call, 5);
    int32_t row;
    for (row = 0; row < s->rows; row++, x += s->length, gy += s->length, gx += s->length)
        if (!POETC_SKIPS(call->share, row, s->rows))
            grad_row(s, row, x, mean, rstd[row], scale, gy, gx);
    return POETC_OK;
}

/* Columns summed at once over all rows, in blocks of rows. */
#define COLUMNS 16

#if POETC_LANES > 1 && !defined(POETC_HELIUM)
#define PARTS 4
#define WIDE_COLUMNS (PARTS * POETC_LANES)

/* grad_columns of `parts` vectors of columns, a constant where this is inlined. */
POETC_INLINE void grad_parts(const int parts, int32_t rows, int32_t length, const float *x, const float *mean,
                             const float *rstd, const float *gy, float *gscale, float *gbias)
{
    poetc_vector scale_total[PARTS], bias_total[PARTS];
    int32_t row = 0;
    int i;
    POETC_UNROLL
    for (i = 0; i < parts; i++)
        scale_total[i] = bias_total[i] = (poetc_vector){0};
    while (row < rows) {
        const int32_t end = rows - row > BLOCK ? row + BLOCK : rows;
        poetc_vector scale_part[PARTS], bias_part[PARTS];
        POETC_UNROLL
        for (i = 0; i < parts; i++)
            scale_part[i] = bias_part[i] = (poetc_vector){0};
        for (; row < end; row++, x += length, gy += length) {
            const float centre = mean ? mean[row] : 0.0f, factor = rstd[row];
            POETC_UNROLL
            for (i = 0; i < parts; i++) {
                const poetc_vector g = poetc_vector_load(gy + i * POETC_LANES);
                scale_part[i] =
                    POETC_FMAV(g, (poetc_vector_load(x + i * POETC_LANES) - centre) * factor, scale_part[i]);
                bias_part[i] += g;
            }
        }
        POETC_UNROLL
        for (i = 0; i < parts; i++)
            scale_total[i] += scale_part[i], bias_total[i] += bias_part[i];
    }
    POETC_UNROLL
    for (i = 0; i < parts; i++) {
        poetc_vector_store(gscale + i * POETC_LANES, scale_total[i]);
        if (gbias)
            poetc_vector_store(gbias + i * POETC_LANES, bias_total[i]);
    }
}
#endif

/* gscale[i] = Σ_rows gy * xhat, gbias[i] = Σ_rows gy (unless NULL); mean may be NULL. */
static void grad_columns(const poetc_call *call, const float *x, const float *mean, const float *rstd, const float *gy,
                         float *gscale, float *gbias)
{
    const int32_t rows = call->ints[0], length = call->ints[1];
    int32_t column, i, row, width;
    for (column = POETC_BEGIN(call->share, length, COLUMNS); column < POETC_END(call->share, length, COLUMNS);
         column += width) {
        float scale_total[COLUMNS] = {0.0f}, bias_total[COLUMNS] = {0.0f};
        width = length - column > COLUMNS ? COLUMNS : length - column;
#if POETC_LANES > 1 && !defined(POETC_HELIUM)
        if (POETC_END(call->share, length, COLUMNS) - column >= WIDE_COLUMNS) { /* a row is far from the next one */
            width = WIDE_COLUMNS;
            grad_parts(PARTS, rows, length, x + column, mean, rstd, gy + column, gscale + column,
                       gbias ? gbias + column : NULL);
            continue;
        }
        if (WIDE_COLUMNS > COLUMNS && width == COLUMNS) {
            grad_parts(COLUMNS / POETC_LANES, rows, length, x + column, mean, rstd, gy + column, gscale + column,
                       gbias ? gbias + column : NULL);
            continue;
        }
#endif
        for (row = 0; row < rows;) {
            int32_t end = rows - row > BLOCK ? row + BLOCK : rows;
            float scale_part[COLUMNS] = {0.0f}, bias_part[COLUMNS] = {0.0f};
            for (; row < end; row++) {
                const float *a = x + (ptrdiff_t)row * length + column, *g = gy + (ptrdiff_t)row * length + column;
                const float centre = mean ? mean[row] : 0.0f, factor = rstd[row];
                for (i = 0; i < width; i++) {
                    scale_part[i] = POETC_FMA(g[i], (a[i] - centre) * factor, scale_part[i]);
                    bias_part[i] += g[i];
                }
            }
            for (i = 0; i < width; i++) {
                scale_total[i] += scale_part[i];
                bias_total[i] += bias_part[i];
            }
        }
        for (i = 0; i < width; i++) {
            gscale[column + i] = scale_total[i];
            if (gbias)
                gbias[column + i] = bias_total[i];
        }
    }
}

/* x[rows,length], scale[length], bias[length]? -> y, mean[rows], rstd[rows]. ints: rows, length, has_bias. */
int poetc_op_layer_norm(const poetc_call *call)
{
    const scales s = per_element(call->ints);
    POETC_THREADED_OVER(poetc_op_layer_norm, call, call->ints[0] * call->ints[1]);
    return normalise(call, &s, call->ints[2] != 0);
}

/* x, mean, rstd, scale, gy -> gx */
int poetc_op_layer_norm_grad_input(const poetc_call *call)
{
    const scales s = per_element(call->ints);
    POETC_THREADED_OVER(poetc_op_layer_norm_grad_input, call, call->ints[0] * call->ints[1]);
    return grad_input(call, &s);
}

/* x, mean, rstd, gy -> gscale, gbias */
int poetc_op_layer_norm_grad_params(const poetc_call *call)
{
    POETC_THREADED_OVER(poetc_op_layer_norm_grad_params, call, call->ints[0] * call->ints[1]);
    grad_columns(call, poetc_in(call, 0), poetc_in(call, 1), poetc_in(call, 2), poetc_in(call, 3), poetc_out(call, 4),
                 poetc_out(call, 5));
    return POETC_OK;
}

/* x[rows,length], scale[length] -> y, rstd[rows]. ints: rows, length. */
int poetc_op_rms_norm(const poetc_call *call)
{
    const scales s = per_element(call->ints);
    const float *x = poetc_in(call, 0), *scale = poetc_in(call, 1);
    float *y = poetc_out(call, 2), *rstd = poetc_out(call, 3);
    int32_t row;
    POETC_THREADED_OVER(poetc_op_rms_norm, call, s.rows * s.length);
    for (row = 0; row < s.rows; row++, x += s.length, y += s.length) {
        POETC_SKIP(call->share, row, s.rows, )
        rstd[row] = 1.0f / poetc_sqrtf(mean_square(x, 0.0f, s.length) + call->floats[0]);
        apply(&s, row, x, 0.0f, rstd[row], scale, NULL, y);
    }
    return POETC_OK;
}

/* x, rstd, scale, gy -> gx */
int poetc_op_rms_norm_grad_input(const poetc_call *call)
{
    const scales s = per_element(call->ints);
    const float *x = poetc_in(call, 0), *rstd = poetc_in(call, 1), *scale = poetc_in(call, 2), *gy = poetc_in(call, 3);
    float *gx = poetc_out(call, 4);
    int32_t row;
    POETC_THREADED_OVER(poetc_op_rms_norm_grad_input, call, s.rows * s.length);
    for (row = 0; row < s.rows; row++, x += s.length, gy += s.length, gx += s.length)
        if (!POETC_SKIPS(call->share, row, s.rows))
            grad_row(&s, row, x, NULL, rstd[row], scale, gy, gx);
    return POETC_OK;
}

/* x, rstd, gy -> gscale */
int poetc_op_rms_norm_grad_scale(const poetc_call *call)
{
    POETC_THREADED_OVER(poetc_op_rms_norm_grad_scale, call, call->ints[0] * call->ints[1]);
    grad_columns(call, poetc_in(call, 0), NULL, poetc_in(call, 1), poetc_in(call, 2), poetc_out(call, 3), NULL);
    return POETC_OK;
}

/* x[N,C,pixels], scale[C], bias[C] -> y, mean[N,groups], rstd[N,groups]. ints: N, groups, channels of a group, pixels.
 */
int poetc_op_group_norm(const poetc_call *call)
{
    const scales s = per_channel(call->ints);
    POETC_THREADED_OVER(poetc_op_group_norm, call, s.rows * s.length);
    return normalise(call, &s, 1);
}

/* x, mean, rstd, scale, gy -> gx */
int poetc_op_group_norm_grad_input(const poetc_call *call)
{
    const scales s = per_channel(call->ints);
    POETC_THREADED_OVER(poetc_op_group_norm_grad_input, call, s.rows * s.length);
    return grad_input(call, &s);
}

/* x, mean, rstd, gy -> gscale[C], gbias[C] */
int poetc_op_group_norm_grad_params(const poetc_call *call)
{
    const scales s = per_channel(call->ints);
    const float *x = poetc_in(call, 0), *mean = poetc_in(call, 1), *rstd = poetc_in(call, 2), *gy = poetc_in(call, 3);
    float *gscale = poetc_out(call, 4), *gbias = poetc_out(call, 5);
    const int32_t channels = s.wrap * s.channels;
    int32_t n, c, i;
    POETC_THREADED_OVER(poetc_op_group_norm_grad_params, call, s.rows * s.length);
    for (c = 0; c < channels; c++) {
        POETC_SKIP(call->share, c, channels, )
        poetc_compensated products = {0.0f, 0.0f}, sum = {0.0f, 0.0f};
        for (n = 0; n < call->ints[0]; n++) {
            const ptrdiff_t at = ((ptrdiff_t)n * channels + c) * s.pixels;
            const int32_t row = n * s.wrap + c / s.channels;
            for (i = 0; i < s.pixels;) {
                int32_t end = s.pixels - i > BLOCK ? i + BLOCK : s.pixels;
                float part_product = 0.0f, part = 0.0f;
                for (; i < end; i++) {
                    part_product = POETC_FMA(gy[at + i], (x[at + i] - mean[row]) * rstd[row], part_product);
                    part += gy[at + i];
                }
                poetc_compensated_add(&products, part_product);
                poetc_compensated_add(&sum, part);
            }
        }
        gscale[c] = products.total;
        gbias[c] = sum.total;
    }
    return POETC_OK;
}
