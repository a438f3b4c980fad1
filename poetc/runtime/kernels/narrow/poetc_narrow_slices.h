/* Kernels of f32 that run slice by slice on tensors stored in 16 bits.
 *
 * Layout: slices lie one behind the other in all operands. The workspace holds one slice of each operand in 16 bits as
 * floats; other operands are read where they are.
 * Order of sums: that of the f32 kernel. */
#ifndef POETC_NARROW_SLICES_H
#define POETC_NARROW_SLICES_H

#include "narrow/poetc_narrow.h"

#define POETC_SLICED_OPERANDS 6 /* at most */
#define POETC_SLICED_INTS 24    /* of the f32 kernel, at most */

/* `part` is the call of the f32 kernel on the slice from `unit` on, of `now` units. */
typedef struct {
    poetc_call part;
    poetc_ref refs[POETC_SLICED_OPERANDS];
    int32_t ints[POETC_SLICED_INTS];
    int32_t unit, now;
} poetc_slices;

int poetc_slices_begin(poetc_slices *s, const poetc_call *call);

/* Read the next slice; 0 if there is none. */
int poetc_slices_next(poetc_slices *s, const poetc_call *call);

/* Store the results of the slice. */
int poetc_slices_store(const poetc_slices *s, const poetc_call *call);

/* The kernel `poetc_op_narrow_NAME` of a kernel `poetc_op_NAME`. */
#define POETC_SLICED(name)                                                                                             \
    int poetc_op_narrow_##name(const poetc_call *call);                                                                \
    int poetc_op_narrow_##name(const poetc_call *call)                                                                 \
    {                                                                                                                  \
        poetc_slices s;                                                                                                \
        int err = poetc_slices_begin(&s, call);                                                                        \
        while (!err && poetc_slices_next(&s, call)) {                                                                  \
            err = poetc_op_##name(&s.part);                                                                            \
            if (!err)                                                                                                  \
                err = poetc_slices_store(&s, call);                                                                    \
        }                                                                                                              \
        return err;                                                                                                    \
    }

#endif
