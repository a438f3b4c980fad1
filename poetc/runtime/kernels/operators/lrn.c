/* Local response normalisation across channels: y = x * s^-beta, s = bias + alpha * Σ_window x², and its gradient.
 *
 * Layout: [N, C, pixels]; the window is over neighbouring channels of one pixel.
 * Order of sums: the channels of a window in ascending order. */
#include "poetc_kernel.h"
#include "poetc_math.h"

/* ints: N, C, pixels, channels of the window before and after; floats: alpha / size, beta, bias. */
typedef struct {
    int32_t batch, channels, pixels, before, after;
    float alpha, beta, bias;
} response;

static response describe(const poetc_call *call)
{
    const int32_t *i = call->ints;
    const float *f = call->floats;
    response r = {i[0], i[1], i[2], i[3], i[4], f[0], f[1], f[2]};
    return r;
}

/* s of channel c; x at the pixel's channel 0, channels `pixels` apart. */
static float denominator(const response *r, const float *x, int32_t c)
{
    int32_t first = c < r->before ? 0 : c - r->before, i;
    int32_t last = c + r->after >= r->channels ? r->channels - 1 : c + r->after;
    float sum = 0.0f;
    for (i = first; i <= last; i++)
        sum = POETC_FMA(x[(ptrdiff_t)i * r->pixels], x[(ptrdiff_t)i * r->pixels], sum);
    return POETC_FMA(r->alpha, sum, r->bias);
}

int poetc_op_lrn(const poetc_call *call)
{
    const response r = describe(call);
    const float *x = poetc_in(call, 0);
    float *y = poetc_out(call, 1);
    const ptrdiff_t sample = (ptrdiff_t)r.channels * r.pixels;
    int32_t n, p, c;
    for (n = 0; n < r.batch; n++, x += sample, y += sample)
        for (p = 0; p < r.pixels; p++)
            for (c = 0; c < r.channels; c++) {
                ptrdiff_t at = (ptrdiff_t)c * r.pixels + p;
                y[at] = x[at] * poetc_powf(denominator(&r, x + p, c), -r.beta);
            }
    return POETC_OK;
}

/* x, gy -> gx = gy * s^-beta - 2 alpha beta x * Σ gy x s^-beta-1 over the channels whose window holds this one.
 * The workspace holds, for one pixel, s^-beta and the terms of that sum, for every channel. */
int poetc_op_lrn_grad(const poetc_call *call)
{
    const response r = describe(call);
    const float *x = poetc_in(call, 0), *gy = poetc_in(call, 1);
    float *gx = poetc_out(call, 2), *power = poetc_out(call, 3), *term = power + r.channels;
    const ptrdiff_t sample = (ptrdiff_t)r.channels * r.pixels;
    int32_t n, p, c, i;
    for (n = 0; n < r.batch; n++, x += sample, gy += sample, gx += sample) {
        for (p = 0; p < r.pixels; p++) {
            for (c = 0; c < r.channels; c++) {
                ptrdiff_t at = (ptrdiff_t)c * r.pixels + p;
                float s = denominator(&r, x + p, c);
                power[c] = poetc_powf(s, -r.beta);
                term[c] = gy[at] * x[at] * power[c] / s;
            }
            for (c = 0; c < r.channels; c++) {
                ptrdiff_t at = (ptrdiff_t)c * r.pixels + p;
                int32_t first = c < r.after ? 0 : c - r.after;
                int32_t last = c + r.before >= r.channels ? r.channels - 1 : c + r.before;
                float sum = 0.0f;
                for (i = first; i <= last; i++)
                    sum += term[i];
                gx[at] = POETC_FMS(2.0f * r.beta * r.alpha * x[at], sum, gy[at] * power[c]);
            }
        }
    }
    return POETC_OK;
}
