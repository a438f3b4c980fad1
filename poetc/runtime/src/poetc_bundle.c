/* Switches between the plans of a bundle. See poetc_bundle.h. */
#include "poetc_bundle.h"
#include "poetc_instructions.h"

static const poetc_program *plan_of(const poetc_bundle *bundle, uint32_t plan)
{
    return bundle->plans[plan];
}

uint32_t poetc_bundle_least(const poetc_bundle *bundle)
{
    return plan_of(bundle, bundle->plan_count - 1u)->arena_bytes;
}

/* The largest plan that fits; plan_count if none does. */
static uint32_t fitting(const poetc_bundle *bundle, uint32_t arena_bytes)
{
    uint32_t plan = 0;

    while (plan < bundle->plan_count && plan_of(bundle, plan)->arena_bytes > arena_bytes)
        plan++;
    return plan;
}

int poetc_bundle_init(poetc_elastic *elastic, const poetc_bundle *bundle, const poetc_config *config,
                      const void *state_image, uint32_t arena_bytes)
{
    const uint32_t plan = bundle == NULL ? 0 : fitting(bundle, arena_bytes);

    if (elastic == NULL || bundle == NULL || plan == bundle->plan_count)
        return POETC_EINVAL;
    elastic->bundle = bundle;
    elastic->switched = NULL;
    elastic->context = NULL;
    elastic->wanted = elastic->plan = plan;
    elastic->switch_count = 0;
    return poetc_init(&elastic->runtime, plan_of(bundle, plan), config, state_image);
}

int poetc_request_budget(poetc_elastic *elastic, uint32_t arena_bytes)
{
    const uint32_t plan = fitting(elastic->bundle, arena_bytes);

    if (plan == elastic->bundle->plan_count ||
        plan_of(elastic->bundle, plan)->arena_bytes > elastic->runtime.config->arena_bytes)
        return POETC_EINVAL;
    elastic->wanted = plan;
    return POETC_OK;
}

uint32_t poetc_arena_in_use(const poetc_elastic *elastic)
{
    return elastic->runtime.program->arena_bytes;
}

static void go_over(poetc_elastic *elastic, uint32_t plan)
{
    elastic->runtime.program = plan_of(elastic->bundle, plan);
    elastic->plan = plan;
    elastic->switch_count++;
    if (elastic->switched != NULL)
        elastic->switched(elastic->context, elastic->runtime.program->arena_bytes);
}

void poetc_bundle_settle(poetc_elastic *elastic)
{
    const uint32_t wanted = elastic->wanted;

    if (wanted != elastic->plan)
        go_over(elastic, wanted);
}

/* The switch to plan `wanted` before the instruction that comes next; NULL if there is none. */
static const poetc_switch *switch_to(const poetc_elastic *elastic, uint32_t wanted)
{
    const poetc_bundle *bundle = elastic->bundle;
    const uint32_t *range = &bundle->ranges[elastic->plan * bundle->plan_count + wanted];
    uint32_t low = range[0], high = range[1];

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2u;

        if (bundle->switches[middle].at < elastic->runtime.instruction)
            low = middle + 1u;
        else
            high = middle;
    }
    return low < range[1] && bundle->switches[low].at == elastic->runtime.instruction ? &bundle->switches[low] : NULL;
}

static int take(poetc_elastic *elastic, const poetc_switch *way, uint32_t wanted)
{
    poetc_runtime *runtime = &elastic->runtime;
    uint32_t i;

    for (i = 0; i < way->count; i++) {
        int err = poetc_execute(runtime, &elastic->bundle->instructions[way->first + i], NULL);

        if (err < 0) {
            (void)poetc_bring_back(runtime, elastic->bundle->absences + way->absence_first, way->absence_count, i);
            return err;
        }
    }
    go_over(elastic, wanted);
    runtime->instruction = way->join;
    return POETC_OK;
}

int poetc_bundle_run(poetc_elastic *elastic)
{
    poetc_runtime *runtime = &elastic->runtime;
    int err;

    poetc_bundle_settle(elastic);
    poetc_begin(runtime, NULL);
    do {
        const uint32_t wanted = elastic->wanted;

        err = POETC_OK;
        if (wanted != elastic->plan) {
            const poetc_switch *way = switch_to(elastic, wanted);

            if (way != NULL)
                err = take(elastic, way, wanted);
        }
        if (err == POETC_OK)
            err = poetc_advance(runtime, NULL);
    } while (err == POETC_OK);
    return err < 0 ? err : POETC_OK;
}
