/* Gradients that are added up over several steps, and updates that run in the last of them only.
 *
 * A gated update has one operand more than the update itself, before the others: the steps that are left.
 *
 * Layout: the total and the gradient are dense arrays of the same size.
 * Order of sums: step by step. */
#include "poetc_kernel.h"

/* left -> left - 1, or every - 1 after 0. ints: every. */
int poetc_op_steps_left(const poetc_call *call)
{
    const int32_t left = *(const int32_t *)poetc_in(call, 0);
    *(int32_t *)poetc_out(call, 1) = left > 0 ? left - 1 : call->ints[0] - 1;
    return POETC_OK;
}

/* total, g, left -> total. ints: elements, every. */
int poetc_op_accumulate(const poetc_call *call)
{
    const float *total = poetc_in(call, 0), *g = poetc_in(call, 1);
    const int is_first = *(const int32_t *)poetc_in(call, 2) == call->ints[1] - 1;
    float *next = poetc_out(call, 3);
    int32_t i;
    for (i = 0; i < call->ints[0]; i++)
        next[i] = is_first ? g[i] : total[i] + g[i];
    return POETC_OK;
}

#define POETC_GATED(name)                                                                                              \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_gated_##name(const poetc_call *call);                                                                 \
    int poetc_op_gated_##name(const poetc_call *call)                                                                  \
    {                                                                                                                  \
        poetc_call inner = *call;                                                                                      \
        inner.refs = call->refs + 1;                                                                                   \
        return *(const int32_t *)poetc_in(call, 0) ? POETC_OK : poetc_op_##name(&inner);                               \
    }

POETC_GATED(sgd)
POETC_GATED(momentum)
POETC_GATED(adam)
POETC_GATED(nadam)
POETC_GATED(nadam_schedule)
POETC_GATED(adagrad)
POETC_GATED(rms_prop)
POETC_GATED(lion)
POETC_GATED(step_count)
