/* How an update moves a code (poetc/ops/qlinear_update.py).
 *
 * Layout: one code of 8 bits, and its number in the tensor. Order of sums: nothing is added up here. */
#ifndef POETC_LINEAR_SGD_H
#define POETC_LINEAR_SGD_H

#include "int8/poetc_linear.h"
#include "operators/poetc_philox.h"

/* The random numbers of an update, of which two elements share a draw, and the count of clipped codes. */
typedef struct {
    int32_t is_stochastic, clipped, drawn; /* the number of the last draw */
    uint32_t key, step, left, right;
} poetc_moving;

static inline poetc_moving poetc_moving_of(int32_t is_stochastic, uint32_t key, uint32_t step, int32_t clipped)
{
    const poetc_moving moving = {is_stochastic, clipped, -1, key, step, 0u, 0u};
    return moving;
}

/* The code q less `by`, clipped, and rounded to nearest or up with the probability of its fraction. */
static inline int8_t poetc_moved(poetc_moving *m, int8_t q, float by, int32_t index)
{
    const float moved = (float)q - by, kept = poetc_clipped(moved, -128.0f, 127.0f);
    int32_t low;
    uint32_t word;
    if (kept != moved && m->clipped < INT32_MAX)
        m->clipped++;
    if (!m->is_stochastic)
        return (int8_t)poetc_nearest(kept);
    if (index / 2 != m->drawn) {
        m->drawn = index / 2;
        m->left = (uint32_t)m->drawn, m->right = m->step;
        poetc_philox(&m->left, &m->right, m->key);
    }
    word = index % 2 ? m->right : m->left;
    low = (int32_t)kept;
    low -= (float)low > kept;
    return (int8_t)(low + ((float)(word >> 8) * 5.9604644775390625e-8f < kept - (float)low));
}

#endif
