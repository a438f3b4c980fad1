/* Gradients that are added up over several steps.
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
