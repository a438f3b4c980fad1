/* See poetc_queues.h. */
#include "poetc_queues.h"
#include "poetc_instructions.h"

#include <string.h>

#ifdef __GNUC__
#pragma weak poetc_stream_half /* only programs with streams link its file */
#endif

int poetc_queues_init(poetc_team *team, poetc_runtime *runtime, const poetc_queues *queues)
{
    if (team == NULL || runtime == NULL || queues == NULL || runtime->program != queues->program)
        return POETC_EINVAL;
    if (queues->processor_count > POETC_PROCESSORS)
        return POETC_EINVAL;
    memset(team, 0, sizeof *team);
    team->runtime = runtime;
    team->queues = queues;
    return POETC_OK;
}

static void store(poetc_fence *fence, uint32_t value)
{
    POETC_FENCE_STORE(&fence->words[0], value);
    POETC_FENCE_SIGNAL();
}

static int observe(poetc_runtime *runtime, uint32_t index)
{
    const poetc_config *config = runtime->config;

    return config->observer != NULL ? config->observer(config->observer_context, runtime, index) : POETC_OK;
}

static int has_failed(const poetc_team *team)
{
    uint32_t other;

    for (other = 0; other < team->queues->processor_count; other++) {
        if (POETC_FENCE_LOAD(&team->error[other].words[0]) != 0)
            return 1;
    }
    return 0;
}

/* Until the other processors are done with the instructions that a row names. Counters go on from run to run and wrap
 * around. Every processor has as many instructions in every run, so that a target is the same sum everywhere. */
static int wait_for(const poetc_team *team, uint32_t runs_before, const uint32_t *instructions, uint32_t own)
{
    const uint32_t *counts = team->queues->counts;
    uint32_t other;

    for (other = 0; other < team->queues->processor_count; other++) {
        const uint32_t target = runs_before * counts[other] + instructions[other];

        if (other == own || instructions[other] == 0)
            continue;
        while ((int32_t)(POETC_FENCE_LOAD(&team->over[other].words[0]) - target) < 0) {
            if (has_failed(team))
                return 0;
            POETC_FENCE_PAUSE();
        }
    }
    return !has_failed(team); /* the counter of a processor that failed says nothing */
}

/* One half of an instruction that two queues have: the first has its kernels, the other its transfers. Blocks are
 * counted on from instruction to instruction, and both halves begin an instruction with as many. */
typedef struct {
    poetc_team *team;
    poetc_fence *own;
    const poetc_fence *other;
    uint32_t before;
} half_of_step;

static int wait_for_half(void *context, uint32_t blocks)
{
    const half_of_step *half = context;

    while ((int32_t)(POETC_FENCE_LOAD(&half->other->words[0]) - half->before - blocks) < 0) {
        if (has_failed(half->team))
            return 0;
        POETC_FENCE_PAUSE();
    }
    return 1;
}

static void tell_half(void *context, uint32_t blocks)
{
    const half_of_step *half = context;

    store(half->own, half->before + blocks);
}

static int execute_half(poetc_team *team, const poetc_instruction *instruction, int is_of_store)
{
    poetc_fence *own = &team->blocks[is_of_store];
    half_of_step blocks = {team, own, &team->blocks[!is_of_store], own->words[0]};
    const poetc_half half = {is_of_store, wait_for_half, tell_half, &blocks};

    return poetc_stream_half(team->runtime, instruction, &half);
}

/* The queue of one processor, in the run after `runs_before` complete ones. Its counter ends at the end of the queue,
 * whether or not all of it was executed. */
static void execute(poetc_team *team, uint32_t own, uint32_t runs_before)
{
    const poetc_queues *queues = team->queues;
    const uint32_t width = queues->processor_count + 1u, count = queues->counts[own];
    const uint32_t *row = queues->rows[own];
    uint32_t i;

    for (i = 0; i < count; i++, row += width) {
        const poetc_instruction *instruction = &queues->program->instructions[row[0]];
        const int is_half = instruction->opcode == POETC_STREAM_AHEAD;
        int err = POETC_OK;

        if (own == 0) /* of a run that fails, poetc_recover needs the place of the first processor */
            team->runtime->instruction = row[0];
        if (!wait_for(team, runs_before, row + 1, own))
            break;
        if (own == 0 || !is_half)
            err = observe(team->runtime, row[0]);
        if (err >= 0)
            err = is_half ? execute_half(team, instruction, own != 0) : poetc_execute(team->runtime, instruction, NULL);
        if (err < 0)
            store(&team->error[own], (uint32_t)err);
        if (err < 0 || (is_half && err == POETC_COMPLETE)) /* the other half failed */
            break;
        store(&team->over[own], runs_before * count + i + 1u);
    }
    if (own == 0 && i == count)
        team->runtime->instruction = queues->program->instruction_count;
    team->begun[own] = runs_before + 1u;
    store(&team->over[own], (runs_before + 1u) * count);
}

uint32_t poetc_queues_serve(poetc_team *team, uint32_t processor, uint32_t generation)
{
    while (POETC_FENCE_LOAD(&team->generation.words[0]) == generation)
        POETC_FENCE_PAUSE();
    execute(team, processor, generation);
    return generation + 1u;
}

int poetc_queues_run(poetc_team *team)
{
    poetc_runtime *runtime = team->runtime;
    const uint32_t runs_before = team->begun[0];
    uint32_t other;
    int result;

    for (other = 0; other < team->queues->processor_count; other++)
        POETC_FENCE_STORE(&team->error[other].words[0], 0u);
    for (other = 0; other < 2u; other++) /* a run that failed may have left them apart */
        POETC_FENCE_STORE(&team->blocks[other].words[0], 0u);
    poetc_begin(runtime, NULL);
    store(&team->generation, runs_before + 1u);
    execute(team, 0, runs_before);
    for (other = 1; other < team->queues->processor_count; other++) {
        const uint32_t target = (runs_before + 1u) * team->queues->counts[other];

        while ((int32_t)(POETC_FENCE_LOAD(&team->over[other].words[0]) - target) < 0)
            POETC_FENCE_PAUSE();
    }
    for (other = 0; other < team->queues->processor_count; other++) {
        const int32_t err = (int32_t)POETC_FENCE_LOAD(&team->error[other].words[0]);

        if (err != 0) {
            (void)poetc_recover(runtime);
            return err;
        }
    }
    result = observe(runtime, runtime->instruction);
    if (result < 0)
        return result;
    runtime->run_count += runtime->program->updates_state;
    return POETC_OK;
}
