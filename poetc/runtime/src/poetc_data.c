/* Looking at training data. See poetc_data.h. Numbers are read by their bits, which takes no floating point. */
#include "poetc_data.h"

#include <string.h>

#define EXPONENT 0x7f800000u
#define FRACTION 0x007fffffu

static uint32_t bits_at(const uint8_t *from, uint32_t index)
{
    uint32_t bits;

    memcpy(&bits, from + (size_t)index * 4u, sizeof bits);
    return bits;
}

int poetc_is_finite(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (bits & EXPONENT) != EXPONENT;
}

int poetc_check_inputs(const poetc_binding *inputs, const poetc_limit *limits, uint32_t count, const void *arena,
                       poetc_flaw *flaw)
{
    uint32_t i, j;

    for (i = 0; i < count; i++) {
        const poetc_limit *limit = &limits[i];
        const uint8_t *data = (const uint8_t *)arena + inputs[i].offset;

        if (inputs[i].offset & POETC_ON_STORE)
            continue;
        for (j = 0; limit->dtype != POETC_U8 && limit->dtype != POETC_I8 && j < inputs[i].size_bytes / 4u; j++) {
            const uint32_t bits = bits_at(data, j);
            const int32_t value = (int32_t)bits;
            const int is_number = (bits & EXPONENT) != EXPONENT || (limit->ignored && (bits & FRACTION)),
                      is_inside = limit->least <= value && value <= limit->most;

            if (limit->dtype == POETC_F32 ? is_number
                                          : limit->least > limit->most || is_inside || value == limit->ignored)
                continue;
            flaw->input = i;
            flaw->element = j;
            flaw->value = value;
            return limit->dtype == POETC_F32 ? POETC_ENUMBER : POETC_ERANGE;
        }
    }
    return POETC_OK;
}

static float float_at(const uint8_t *from, uint32_t index)
{
    float value;

    memcpy(&value, from + (size_t)index * 4u, sizeof value);
    return value;
}

#ifdef POETC_QUEUES /* the instructions of several processors may be counted at once */
#define ADD(counter, value) ((void)__atomic_add_fetch(&(counter), (value), __ATOMIC_RELAXED))
#else
#define ADD(counter, value) ((void)((counter) += (value)))
#endif

int poetc_count_hits(void *context, const poetc_runtime *runtime, uint32_t index)
{
    poetc_hits *hits = context;
    const uint8_t *arena = runtime->config->arena;
    uint32_t n, i, c;

    for (n = 0; runtime->program == hits->program && n < hits->score_count; n++) {
        const poetc_scores *at = &hits->scores[n];
        const uint32_t after = at->after;

        for (i = 0; at->instruction == index && i < at->before * after; i++) {
            const int32_t label = (int32_t)bits_at(arena + at->labels, i);
            const uint32_t row = i / after * at->classes * after + i % after;
            uint32_t best = 0;

            if (label == at->ignored)
                continue;
            for (c = 1; c < at->classes; c++)
                if (float_at(arena + at->scores, row + c * after) > float_at(arena + at->scores, row + best * after))
                    best = c;
            ADD(hits->hits, best == (uint32_t)label);
            ADD(hits->samples, 1u);
        }
    }
    return 0;
}

poetc_span poetc_span_of(const void *floats, uint32_t count)
{
    poetc_span span = {0.0f, 0.0f, 1};
    uint32_t i;

    for (i = 0; i < count; i++) {
        float value;

        memcpy(&value, (const uint8_t *)floats + (size_t)i * 4u, sizeof value);
        if (i == 0 || value < span.least)
            span.least = value;
        if (i == 0 || value > span.most)
            span.most = value;
        if (!(value > -1e9f && value < 1e9f) || value != (float)(int32_t)value)
            span.is_whole = 0;
    }
    return span;
}

void poetc_trend_add(poetc_trend *trend, float loss)
{
    if (trend->count < 4u)
        trend->first += loss;
    trend->last[trend->count++ % 4u] = loss;
}

int poetc_trend_rises(const poetc_trend *trend)
{
    const float last = trend->last[0] + trend->last[1] + trend->last[2] + trend->last[3];

    return trend->count >= 16u && trend->first > 0.0f && last > 2.0f * trend->first;
}

const char *poetc_error_text(int code)
{
    static const char texts[] =
        "\002no such file, or no checkpoint\0"
        "\005a file or the store cannot be read or written\0"
        "\020a step was begun, and is not complete\0"
        "\026an argument, the arena or the store is missing or too small\0"
        "\041a NaN or an infinity\0"
        "\042a class or an index out of range\0"
        "\113a number out of range: take a smaller learning rate or loss scale, or scale inputs\0"
        "\075no whole record of data\0"
        "\124a page of the store is damaged, or was never written\0";
    const char *text = texts;

    while (*text != 0 && *text != -code)
        while (*text++ != 0) /* not strlen: boards may have no library */
            continue;
    return *text != 0 ? text + 1 : code == POETC_OK ? "no error" : "a code of the store's driver";
}
