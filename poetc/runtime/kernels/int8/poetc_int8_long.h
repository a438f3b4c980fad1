/* Products of 8-bit integers with more terms than sums of 32 bits hold. Parts of a sum have 32 bits, and their totals
 * have 64.
 *
 * Layout: totals are [groups][rows][columns] where they are held, or [rows][columns at once].
 * Order of sums: parts and totals are exact, so that their order changes nothing. */
#ifndef POETC_INT8_LONG_H
#define POETC_INT8_LONG_H

#include "int8/poetc_int8_product.h"

#define PART_TERMS 131072 /* of 128 * 127 at the most: they fit in 32 bits */
#define LONG_SHIFT 62     /* a larger one leaves nothing */

static uint64_t magnitude_of(int64_t total)
{
    return total < 0 ? 0u - (uint64_t)total : (uint64_t)total;
}

/* As poetc_rounded, of 64 bits. */
static int8_t rounded_total(int64_t total, poetc_rounding *r)
{
    uint64_t m = magnitude_of(total);
    if (r->shift > LONG_SHIFT)
        m = 0u;
    else if (r->shift > 0 && !r->is_stochastic)
        m = (m + ((uint64_t)1 << (r->shift - 1))) >> r->shift;
    else if (r->shift > 0) {
        const uint64_t rest = m & (((uint64_t)1 << r->shift) - 1u);
        const int32_t half = r->shift / 2;
        const uint64_t low = (rest & (((uint64_t)1 << half) - 1u)) << (r->shift & 1);
        m = (m >> r->shift) + ((rest >> half) > low);
    }
    if (m > r->most) {
        m = r->most;
        r->clipped++;
    }
    return (int8_t)(total < 0 ? -(int32_t)m : (int32_t)m);
}

static int64_t *total_of(const task *t, void *workspace, int32_t group, int32_t row, int32_t column)
{
    const product *p = &t->p;
    const size_t first = p->holds_sums ? (size_t)group * (size_t)p->rows + (size_t)row : (size_t)row;
    const size_t step = (size_t)(p->holds_sums ? p->columns : p->columns_at_once);
    return (int64_t *)workspace + first * step + (size_t)(p->holds_sums ? column : column % p->columns_at_once);
}

/* Adds the sums of some terms to the totals of some columns. */
static void add_part(task *t, void *workspace, int32_t group, int32_t column, int32_t columns, int32_t first,
                     int32_t last)
{
    const product *p = &t->p;
    const size_t some = (size_t)p->rows * (size_t)p->columns_at_once;
    const size_t held = (size_t)p->groups * (size_t)p->rows * (size_t)p->columns;
    int32_t *sums = (int32_t *)(void *)((int64_t *)workspace + (p->holds_sums ? held : some)), row, term, j;
    operand *a = (operand *)(void *)(sums + some);
    operand *b = a + (size_t)p->rows_at_once * (size_t)p->terms_at_once;
    __builtin_memset(sums, 0, some * sizeof *sums);
    for (term = first; term < last; term += p->terms_at_once) {
        const int32_t terms = at_most(last - term, p->terms_at_once), depth = round_up(terms, UNIT);
        t->pack_columns(t, group, column, columns, term, terms, b);
        fill_up(b, columns, COLUMNS_AT_ONCE, depth);
        for (row = 0; row < p->rows; row += p->rows_at_once) {
            const int32_t rows = at_most(p->rows - row, p->rows_at_once);
            t->pack_rows(t, group, row, rows, term, terms, a);
            fill_up(a, rows, BLOCK_ROWS, depth);
            add_products(a, rows, b, columns, depth, sums + (size_t)row * (size_t)p->columns_at_once,
                         p->columns_at_once);
        }
    }
    for (row = 0; row < p->rows; row++, sums += p->columns_at_once) {
        int64_t *totals = total_of(t, workspace, group, row, column);
        for (j = 0; j < columns; j++)
            totals[j] += sums[j];
    }
}

static void make_totals(task *t, void *workspace, int32_t group, int32_t column, int32_t columns)
{
    const product *p = &t->p;
    const int32_t part = PART_TERMS / p->terms_at_once * p->terms_at_once;
    int32_t row, term;
    for (row = 0; row < p->rows; row++)
        __builtin_memset(total_of(t, workspace, group, row, column), 0, (size_t)columns * sizeof(int64_t));
    for (term = 0; term < p->terms; term += part)
        add_part(t, workspace, group, column, columns, term, term + at_most(p->terms - term, part));
}

/* All totals, some columns at a time. With `makes` they are made first. With `seen` their magnitudes are looked at, and
 * with `rounding` the values are stored. */
static void for_all_totals(task *t, void *workspace, int32_t makes, uint64_t *seen, poetc_rounding *rounding)
{
    const product *p = &t->p;
    int32_t group, column, row, j;
    for (group = 0; group < p->groups; group++) {
        for (column = 0; column < p->columns; column += p->columns_at_once) {
            const int32_t columns = at_most(p->columns - column, p->columns_at_once);
            if (makes)
                make_totals(t, workspace, group, column, columns);
            for (row = 0; row < p->rows; row++) {
                const int64_t *totals = total_of(t, workspace, group, row, column);
                const size_t place = (size_t)(group * p->rows + row) * (size_t)p->columns + (size_t)column;
                for (j = 0; seen && j < columns; j++) {
                    const uint64_t m = magnitude_of(totals[j]);
                    *seen = m > *seen ? m : *seen;
                }
                for (j = 0; rounding && j < columns; j++)
                    t->result[place + (size_t)j] = rounded_total(totals[j], rounding);
            }
        }
    }
}

/* As `finish` of the kernels whose sums fit in 32 bits, for an update. */
static int finish_long(task *t, void *workspace, int32_t update_bits, const int32_t *history, int32_t *scale)
{
    const product *p = &t->p;
    const int32_t count = p->groups * p->rows * p->columns;
    const int has_bits = p->adapts && history[1] > 0;
    poetc_rounding rounding = {0, p->is_stochastic, poetc_update_most(update_bits), 0};
    int32_t bits = 0, is_scanned = !has_bits;
    if (has_bits) {
        bits = history[0];
        rounding.shift = bits - update_bits;
        for_all_totals(t, workspace, 1, 0, &rounding);
        is_scanned = rounding.clipped > count / POETC_INT8_TOLERATED;
    }
    if (is_scanned) {
        uint64_t seen = 0u, below;
        for_all_totals(t, workspace, !(has_bits && p->holds_sums), &seen, 0);
        for (bits = 0, below = seen ? seen - 1u : 0u; below; below >>= 1)
            bits++;
        rounding.shift = bits - update_bits;
        rounding.clipped = 0;
        for_all_totals(t, workspace, !p->holds_sums, 0, &rounding);
    }
    if (p->adapts)
        look_at_values(t->result, count, is_scanned, scale);
    return poetc_scale(scale, 0, rounding.clipped, bits, rounding.shift);
}

#endif
