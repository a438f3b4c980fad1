/* Direct convolution and gradient of the input on Helium, without packed pixels.
 *
 * Layout: four pixels of a row of the result read an image at one offset a tap. The image has zeros around it where
 * there is padding.
 * Order of sums: blocks of terms as in the packing kernels. */
#ifndef POETC_DIRECT_HELIUM_H
#define POETC_DIRECT_HELIUM_H

#include "poetc_kernel.h"

typedef struct {
    const float *a, *b; /* packed weights; the first window of four, side by side */
    float *y;
    int32_t blocks; /* of four results, side by side; at least one */
    ptrdiff_t y_row,
        plane; /* floats from row to row of the result, from channel to channel of b, less the length of its lines */
    int32_t channels;
    int32_t lines, skip; /* of taps; floats of a from the end of a channel's lines to the next one's: read as a pair */
    int32_t next;        /* bytes from the end of a line to the next one */
    const float *bias;   /* of the first row, or NULL */
    int accumulate;
    int32_t lanes; /* results that are accumulated: 4, or fewer at the end of a row */
} direct_task;

/* The assembly reads two members as a pair. */
typedef char direct_task_places[offsetof(direct_task, skip) == offsetof(direct_task, lines) + 4 ? 1 : -1];

void poetc_direct_run(int32_t rows, int32_t taps,
                      const direct_task *t); /* rows: 1, 2, 4 or 6; taps of a line: 3 or 5 */

/* Rows of a block of results, of `left`. */
static inline int32_t direct_rows(int32_t left)
{
    return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

#endif
