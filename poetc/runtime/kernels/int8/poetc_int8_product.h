/* Products of 8-bit integers, a group and some columns at a time.
 *
 * Layout: results are [N, C, H, W]. Sums of a phase and a group are [rows][columns], with a column a pixel of the
 * phase. Order of sums: sums of 32 bits are exact, so that their order changes nothing. */
#ifndef POETC_INT8_PRODUCT_H
#define POETC_INT8_PRODUCT_H

#include "int8/poetc_int8_task.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "int8/poetc_int8_vnni.h"
#define HAS_VNNI 1
#else
#define HAS_VNNI 0
#endif

/* Adds some terms to the sums of `columns` columns. Rows are packed once for all of these; columns again for each part
 * of the rows, where not all columns are packed at once. */
static void add_terms(const task *t, int32_t group, int32_t column, int32_t columns, int32_t term, int32_t terms,
                      int32_t is_packed, operand *a, operand *end, int32_t *sums, int32_t step)
{
    const product *p = &t->p;
    const int32_t depth = round_up(terms, UNIT);
    int32_t row, done;
    for (row = 0; row < p->rows; row += p->rows_at_once) {
        const int32_t rows = at_most(p->rows - row, p->rows_at_once);
        if (!is_packed) {
            t->pack_rows(t, group, row, rows, term, terms, a);
            fill_up(a, rows, BLOCK_ROWS, depth);
        }
        for (done = 0; done < columns; done += p->columns_at_once) {
            const int32_t some = at_most(columns - done, p->columns_at_once);
            operand *b = end - (size_t)round_up(some, COLUMNS_AT_ONCE) * (size_t)depth;
            if (!row || columns > some) {
                t->pack_columns(t, group, column + done, some, term, terms, b);
                fill_up(b, some, COLUMNS_AT_ONCE, depth);
            }
            add_products(a, rows, b, some, depth, sums + (size_t)row * (size_t)step + done, step);
        }
    }
}

/* All sums, some columns at a time. With `seen` their bits are looked at; with `rounding` the values
 * are stored. Held sums stay in the workspace. */
static void make_sums(task *t, void *workspace, uint32_t *seen, poetc_rounding *rounding)
{
    const product *p = &t->p;
    const size_t held = (size_t)p->groups * (size_t)p->rows * (size_t)p->columns;
    const size_t some = (size_t)p->rows * (size_t)p->columns_at_once;
    int32_t *sums = workspace, *part = sums, phase, group, column, term, i;
    operand *a = (operand *)(void *)(sums + (p->holds_sums ? held : some));
    operand *end = a + (size_t)(p->rows_at_once + p->columns_at_once) * (size_t)p->terms_at_once;
    const int32_t is_held = p->holds_sums && !t->is_repeated;

    for (phase = 0; phase < t->phases; phase++) {
        int32_t unit, is_packed, is_wide = 0, at_once;
#if HAS_VNNI
        int32_t wide = p->columns_at_once;
        vnni parts = {0}; /* GCC does not see that it is used only if it fits */
#endif
        t->set_phase(t, phase);
        /* Weights take longer to pack than windows, and errors less than pixels. */
        at_once = is_held && !t->add_group && !t->is_update ? t->columns : p->columns_at_once;
        unit = t->is_update ? p->terms_at_once : p->terms_at_once / (t->right.taps * t->planes_group);
        if (!t->is_update)
            unit *= t->right.taps * t->planes_group;
        is_packed = !t->add_group && t->terms <= unit && p->rows <= p->rows_at_once;
#if HAS_VNNI
        if (is_held)
            wide = t->columns;
        else if (t->is_repeated)
            wide = at_most(t->columns, VNNI_REPEATED_COLUMNS);
        is_wide = !t->add_group && vnni_fits(t, wide, (uint8_t *)a, (size_t)((uint8_t *)end - (uint8_t *)a), &parts);
        if (is_wide)
            at_once = wide;
#endif
        for (group = 0; group < p->groups; group++, part += is_held ? (size_t)p->rows * (size_t)t->columns : 0) {
            if (!t->terms) { /* no window reads these pixels: their errors are zeros */
                if (is_held && p->adapts)
                    __builtin_memset(part, 0, (size_t)p->rows * (size_t)t->columns * sizeof *part);
                if (rounding)
                    store(t, group, 0, t->columns, part, t->columns, rounding);
                continue;
            }
            if (is_packed && !is_wide) {
                t->pack_rows(t, group, 0, p->rows, 0, t->terms, a);
                fill_up(a, p->rows, BLOCK_ROWS, round_up(t->terms, UNIT));
            }
            for (column = 0; column < t->columns; column += at_once) {
                const int32_t columns = at_most(t->columns - column, at_once);
                const int32_t step = is_held ? t->columns : at_once;
                int32_t *at = is_held ? part + column : part;
#if HAS_VNNI
                if (is_wide) {
                    if (vnni_make(t, &parts, group, column, columns, at, step, seen, is_held ? 0 : rounding))
                        continue;
                } else
#endif
                    start_sums(t, group, columns, at, step);
                if (t->add_group)
                    t->add_group(t, group, column, at, a);
                else if (!is_wide)
                    for (term = 0; term < t->terms; term += unit)
                        add_terms(t, group, column, columns, term, at_most(t->terms - term, unit), is_packed, a, end,
                                  at, step);
                for (i = 0; seen && !is_wide && i < p->rows; i++)
                    *seen = poetc_see(at + (size_t)i * (size_t)step, columns, *seen);
                if (rounding)
                    store(t, group, column, columns, at, step, rounding);
            }
        }
    }
}

/* Values from the sums that the workspace holds. */
static void store_held(task *t, const int32_t *sums, poetc_rounding *rounding)
{
    int32_t phase, group;
    for (phase = 0; phase < t->phases; phase++) {
        t->set_phase(t, phase);
        for (group = 0; group < t->p.groups; group++) {
            store(t, group, 0, t->columns, sums, t->columns, rounding);
            sums += (size_t)t->p.rows * (size_t)t->columns;
        }
    }
}

/* Values from all sums, by their bits: those that were seen, or those of the history. */
static void take_values(task *t, void *workspace, int32_t bits, int32_t update_bits, int32_t is_held,
                        poetc_rounding *rounding)
{
    rounding->shift = t->is_update ? bits - update_bits : poetc_shift(bits);
    rounding->clipped = 0;
    if (t->is_update)
        rounding->most = poetc_update_most(update_bits);
    if (is_held)
        store_held(t, workspace, rounding);
    else
        make_sums(t, workspace, 0, rounding);
}

/* For a history: whether the sums were scanned, and the bits of the values. */
static void look_at_values(const int8_t *values, int32_t count, int32_t is_scanned, int32_t *scale)
{
    int32_t i, most = 0;
    for (i = 0; i < count; i++) {
        const int32_t q = values[i];
        most = q > most ? q : -q > most ? -q : most;
    }
    scale[4] = is_scanned;
    scale[5] = poetc_bits((uint32_t)most);
}

/* Values from all sums, whose bits the history knows, or which are scanned first; then the scale. Where the bits of the
 * history clip too many, the sums are scanned after all. `update_bits`: of the largest value of an update. */
static int finish(task *t, void *workspace, int32_t exponent, int32_t update_bits, const int32_t *history,
                  int32_t *scale)
{
    const product *p = &t->p;
    const int32_t count = p->groups * p->rows * p->columns;
    const int has_bits = p->adapts && history[1] > 0;
    int is_scanned = !has_bits, is_held;
    poetc_rounding rounding = {0, p->is_stochastic, POETC_INT8_MOST, 0};
    uint32_t seen = 0u;
    int32_t bits = 0;
    int code;

#if HAS_VNNI
    t->is_repeated =
        t->is_update && p->holds_sums && p->terms <= VNNI_REPEATED_TERMS && p->columns > 2 * VNNI_REPEATED_COLUMNS;
#endif
    is_held = p->holds_sums && !t->is_repeated;
    if (has_bits) {
        bits = history[0];
        take_values(t, workspace, bits, update_bits, 0, &rounding);
        is_scanned = rounding.clipped > count / POETC_INT8_TOLERATED;
    }
    if (is_scanned) {
        if (has_bits && is_held) /* they are still there */
            seen = poetc_see(workspace, count, 0u);
        else
            make_sums(t, workspace, &seen, 0);
        bits = poetc_bits_seen(seen);
        take_values(t, workspace, bits, update_bits, is_held, &rounding);
    }
    code = poetc_scale(scale, exponent + (t->is_update ? 0 : rounding.shift), rounding.clipped, bits, rounding.shift);
    if (p->adapts)
        look_at_values(t->result, count, is_scanned, scale);
    return code;
}

#endif
