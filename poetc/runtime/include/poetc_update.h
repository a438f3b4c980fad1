/* A client's update in a fleet, as integers that a server adds up without seeing any single one. Optional.
 *
 * An update is the weights of after a round, less those of before it if they are given. Quantised, its numbers are
 * words from 0 to `range`. Masks are added to the words modulo a power of two: the server's sum over all clients is
 * free of them. Flower's SecAgg+ names the parts: clipping range, target range, modulus range. Only + - * / of single
 * precision and integers are used, so that every target gets the same bits. poetc.fleet.update in Python has the
 * reference.
 */
#ifndef POETC_UPDATE_H
#define POETC_UPDATE_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_UPDATE_RANGE 1073741824u /* the largest range */

typedef struct poetc_update {
    float clip;             /* above 0: a number x is limited to [-clip, clip]; 0 becomes the word range / 2 */
    float factor;           /* numbers are multiplied by it first: the client's weight in the sum */
    uint32_t range;         /* even, 2 to POETC_UPDATE_RANGE: clip becomes this word, -clip becomes 0 */
    uint32_t is_stochastic; /* 1: up or down at random, in the mean exact; 0: to nearest, halves up */
    uint32_t seed, round;   /* of the random numbers, and one that is new in each round */
} poetc_update;

/* Quantise `count` numbers, the first of which is number `first` of the whole update. Pieces of an update give the same
 * words as the whole. `before`: NULL stands for zeros. Returns 0, POETC_EINVAL for a wrong field, or POETC_ENUMBER for
 * a NaN or an infinity. */
int poetc_update_quantize(const poetc_update *update, const float *after, const float *before, uint32_t first,
                          uint32_t count, uint32_t *words);

/* Add `terms` to `words` modulo `mask` + 1, which is a power of two. */
void poetc_update_add(uint32_t *words, const uint32_t *terms, uint32_t count, uint32_t mask);

#ifdef __cplusplus
}
#endif
#endif
