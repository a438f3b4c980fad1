/* Updates behind a gate.
 *
 * Layout: that of the update.
 * Order of sums: that of the update. */
#ifndef POETC_GATED_H
#define POETC_GATED_H

#include "poetc_kernel.h"

/* An update that runs in the last of several steps only. It has one operand more than the update itself, before the
 * others: the steps that are left. */
#define POETC_GATED(name)                                                                                              \
    int poetc_op_##name(const poetc_call *call);                                                                       \
    int poetc_op_gated_##name(const poetc_call *call);                                                                 \
    int poetc_op_gated_##name(const poetc_call *call)                                                                  \
    {                                                                                                                  \
        poetc_call inner = *call;                                                                                      \
        inner.refs = call->refs + 1;                                                                                   \
        return *(const int32_t *)poetc_in(call, 0) ? POETC_OK : poetc_op_##name(&inner);                               \
    }

#endif
