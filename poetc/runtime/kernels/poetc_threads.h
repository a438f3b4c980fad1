/* Several threads for one kernel, where an operating system has them. Only a build with -DPOETC_THREADS=N has them, N
 * being the most threads. Without it all of this is nothing, and kernels are the code that they were.
 *
 * Layout: a kernel runs once in every thread and makes a share of the results. It packs into a buffer of the pool, one
 * for each thread. These lines are in no other core's cache, unlike the arena's workspace, where other tensors were.
 * Order of sums: each result is made by the operations of the whole kernel in their order. A sum is never split, so the
 * bits do not depend on the number of threads. */
#ifndef POETC_THREADS_H
#define POETC_THREADS_H

#include "poetc.h"

#ifdef POETC_THREADS

/* Up to this many multiply-adds (or work as long) threads cost more than they give. They cost some microseconds, in
 * which wide vectors do far more. */
#ifndef POETC_THREADS_WORK
#if defined(__AVX2__)
#define POETC_THREADS_WORK 800000
#else
#define POETC_THREADS_WORK 200000
#endif
#endif
/* Where a thread packs, instead of the arena's workspace. */
#ifndef POETC_THREADS_FLOATS
#define POETC_THREADS_FLOATS 262144
#endif
#define POETC_THREADS_ELEMENT 8 /* multiply-adds that take as long as an element of an element-wise kernel */

/* Runs the kernel in all threads. Alone, if its workspace does not fit their buffers, or another caller has the pool.
 * The first code that is not 0, in the order of the shares. */
int poetc_parallel(poetc_kernel kernel, const poetc_call *call, int32_t workspace_floats);

/* At the beginning of a kernel. `work` is counted as above; `floats` is the size of its workspace. */
#define POETC_THREADED(kernel, call, work, floats)                                                                     \
    if ((call)->share.parts == 0 && (work) > (int64_t)POETC_THREADS_WORK)                                             \
    return poetc_parallel(kernel, call, floats)

/* The same for a kernel without workspace that visits so many elements once. */
#define POETC_THREADED_OVER(kernel, call, elements)                                                                    \
    POETC_THREADED(kernel, call, (int64_t)(elements) * POETC_THREADS_ELEMENT, 0)

/* Where the share's part of `count` begins and ends: whole units of them. */
static inline int32_t poetc_share_begin(poetc_share share, int32_t count, int32_t unit)
{
    const int64_t units = (count + unit - 1) / unit;
    const int64_t begin = share.parts > 1 ? units * share.part / share.parts * unit : 0;
    return begin < count ? (int32_t)begin : count;
}

static inline int32_t poetc_share_end(poetc_share share, int32_t count, int32_t unit)
{
    share.part++;
    return share.parts > 1 ? poetc_share_begin(share, count, unit) : count;
}

#define POETC_PARTS(share) ((share).parts)
#define POETC_BEGIN(share, count, unit) poetc_share_begin(share, count, unit)
#define POETC_END(share, count, unit) poetc_share_end(share, count, unit)
#define POETC_SKIPS(share, index, count)                                                                               \
    ((index) < poetc_share_begin(share, count, 1) || (index) >= poetc_share_end(share, count, 1))

/* In a loop over the count: on to the next, after `also`, unless it is of the share. */
#define POETC_SKIP(share, index, count, also)                                                                          \
    if (POETC_SKIPS(share, index, count)) {                                                                            \
        also;                                                                                                          \
        continue;                                                                                                      \
    }

/* Products: batches of them, or columns in whole register blocks, or rows. Every thread reads all of the other side,
 * and packs it if it is the columns'. So rows are shared only if there are far more of them, or columns make uneven
 * shares. */
typedef struct {
    poetc_share batches, rows, columns;
} poetc_split;

static inline poetc_split poetc_split_product(poetc_share share, int32_t batches, int32_t rows, int32_t columns,
                                              int32_t block)
{
    poetc_split split = {{0, 0}, {0, 0}, {0, 0}};
    const int32_t parts = share.parts, blocks = (columns + block - 1) / block;
    const int even = blocks >= 4 * parts || blocks % parts == 0;
    if (parts <= 1)
        return split;
    if (batches >= 4 * parts || (batches > 1 && batches % parts == 0))
        split.batches = share;
    else if (rows <= columns || (even && (rows <= 2 * columns || rows < 48 * parts)))
        split.columns = share;
    else
        split.rows = share;
    return split;
}

/* Declares `name`. Rows 0: they must not be split. */
#define POETC_SPLIT(name, share, batches, rows, columns)                                                               \
    const poetc_split name = poetc_split_product(share, batches, rows, columns, POETC_GEMM_COLUMNS);
/* The same for the gradient of weights, a sum of `terms`. Rows are shared where all columns, which every thread packs,
 * are little beside them. They lie together, and a processor that fetches ahead does not take the rows that the other
 * thread is about to write. */
#define POETC_SPLIT_WEIGHTS(name, share, terms, rows, columns)                                                         \
    POETC_SPLIT(name, share, 1, (int64_t)(terms) * (share).parts <= (rows) ? INT32_MAX : (rows), columns)
#define POETC_SPLIT_ROWS(g, split) ((g).share = (split).rows)
#define POETC_ALL_ROWS(g) ((g).share.part = (g).share.parts = 0)
#define POETC_WORKSPACE(call, operand) ((call)->workspace ? (call)->workspace : (float *)poetc_out(call, operand))

#else

#define POETC_THREADED(kernel, call, work, floats) ((void)0)
#define POETC_THREADED_OVER(kernel, call, elements) ((void)0)
#define POETC_PARTS(share) 0
#define POETC_BEGIN(share, count, unit) 0
#define POETC_END(share, count, unit) (count)
#define POETC_SKIPS(share, index, count) 0
#define POETC_SKIP(share, index, count, also)
#define POETC_SPLIT(name, share, batches, rows, columns)
#define POETC_SPLIT_WEIGHTS(name, share, terms, rows, columns)
#define POETC_SPLIT_ROWS(g, split) ((void)0)
#define POETC_ALL_ROWS(g) ((void)0)
#define POETC_WORKSPACE(call, operand) poetc_out(call, operand)

#endif
#endif
