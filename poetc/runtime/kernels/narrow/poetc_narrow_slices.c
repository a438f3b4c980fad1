/* The slices of a call: stored numbers become floats, and a kernel's results are stored.
 *
 * Layout: poetc_narrow_slices.h.
 * Order of sums: that of the f32 kernel. */
#include "narrow/poetc_narrow_slices.h"

/* The first ints. For each operand follow its form, its scale and the bytes of a slice; then the f32 kernel's ints. */
#define UNITS 0
#define AT_ONCE 1  /* units of a slice */
#define COUNT_AT 2 /* where the f32 kernel's ints have the number of units */
#define OPERANDS 3
#define INTS 4 /* how many the f32 kernel has */
#define INPUTS 5
#define SIZES 6

int poetc_slices_begin(poetc_slices *s, const poetc_call *call)
{
    const int32_t operands = call->ints[OPERANDS], *numbers = call->ints + SIZES + 3 * operands;
    int32_t k;
    if (operands > POETC_SLICED_OPERANDS || call->ints[INTS] > POETC_SLICED_INTS)
        return POETC_EINVAL;
    for (k = 0; k < call->ints[INTS]; k++)
        s->ints[k] = numbers[k];
    s->part = *call;
    s->part.refs = s->refs, s->part.ints = s->ints;
#ifdef POETC_THREADS
    s->part.share.part = 0, s->part.share.parts = 1;
#endif
    s->unit = s->now = 0;
    return POETC_OK;
}

int poetc_slices_next(poetc_slices *s, const poetc_call *call)
{
    const int32_t units = call->ints[UNITS], most = call->ints[AT_ONCE];
    const poetc_ref workspace = call->refs[call->ints[OPERANDS]];
    uint32_t used = 0u;
    int32_t k, slice;
    s->unit += s->now;
    if (s->unit >= units)
        return 0;
    s->now = units - s->unit < most ? units - s->unit : most;
    s->ints[call->ints[COUNT_AT]] = s->now;
    slice = s->unit / most;
    for (k = 0; k < call->ints[OPERANDS]; k++) {
        const int32_t *sizes = call->ints + SIZES + 3 * k, bytes = sizes[2];
        if (sizes[0] == POETC_FORM_F32) {
            s->refs[k] = call->refs[k] + ((uint32_t)slice * ((uint32_t)bytes / POETC_ALIGN) << 1);
            continue;
        }
        s->refs[k] = workspace + (used / POETC_ALIGN << 1);
        used += (2u * (uint32_t)bytes + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
        if (k < call->ints[INPUTS])
            poetc_widen(poetc_out(&s->part, (unsigned)k), poetc_in(call, (unsigned)k), poetc_stored_of(sizes),
                        (ptrdiff_t)slice * (bytes / 2), 1, bytes / 2 / most * s->now);
    }
    return 1;
}

int poetc_slices_store(const poetc_slices *s, const poetc_call *call)
{
    const int32_t most = call->ints[AT_ONCE], slice = s->unit / most;
    int32_t k;
    int err = POETC_OK;
    for (k = call->ints[INPUTS]; k < call->ints[OPERANDS] && !err; k++) {
        const int32_t *sizes = call->ints + SIZES + 3 * k, elements = sizes[2] / 2;
        if (sizes[0] != POETC_FORM_F32)
            err = poetc_narrow(poetc_out(call, (unsigned)k), poetc_stored_of(sizes), (ptrdiff_t)slice * elements,
                               poetc_out(&s->part, (unsigned)k), elements / most * s->now);
    }
    return err;
}
