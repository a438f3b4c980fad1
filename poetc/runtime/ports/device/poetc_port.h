/* The functions that a port gives the training program (train.c): a log, a clock, a store, data, and an end. One small
 * folder a family of boards. */
#ifndef POETC_PORT_H
#define POETC_PORT_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Print `text` as it is, where a person or a machine reads it. */
void poetc_port_log(const char *text);

/* A free-running counter, for reports only; POETC_PORT_CLOCK_HZ ticks a second. Wraps. */
uint32_t poetc_port_clock(void);
extern const uint32_t poetc_port_clock_hz;

/* Get the data, and the store if pages or checkpoints need one (store_blocks > 0: fill in `store`). Returns 0 or a
 * negative code: POETC_ENOENT without data, POETC_ENODATA for data that are no whole number of records of
 * `record_bytes`. */
int poetc_port_open(poetc_store *store, uint32_t block_bytes, uint32_t store_blocks, uint32_t record_bytes);

/* The next `size_bytes` of training data. Returns 1, 0 when there is none left, POETC_ENODATA when there is less, or
 * another code. */
int poetc_port_data(void *to, uint32_t size_bytes);

/* Training goes on from a checkpoint: back to the first byte of training data, so that those which have been used can
 * be passed over. Returns 1, 0 for live data, as of a sensor, which go on with the next value, or a negative code. */
int poetc_port_rewind(void);

/* The same for validation data, with POETC_VALIDATES. The second returns 1, or another code where there are none:
 * nothing is evaluated. */
int poetc_port_validation(void *to, uint32_t size_bytes);
int poetc_port_rewind_validation(void);

/* Hand over the trained state, piece by piece (poetc_state.h); no bytes: that was all. With
 * validation data, each state that is better than those before. Returns 0 or a negative code. */
int poetc_port_result(const void *data, uint32_t size_bytes);

#if defined(__linux__) && __STDC_HOSTED__
/* Take POETC_PORT_GUARD_BYTES at `page` away: any access to them ends in poetc_port_stop(POETC_PORT_FAULT). */
#define POETC_PORT_GUARD_BYTES 65536 /* a multiple of every page size of Linux on Arm */
void poetc_port_guard(void *page);
#endif

/* The end: 0 is success, POETC_PORT_FAULT a trapped access, anything else a failure. Does not return. */
void poetc_port_stop(int status);

enum { POETC_PORT_FAILED = 1, POETC_PORT_FAULT = 100 };

/* An assertion of the port; in flash, not with NDEBUG's habit of vanishing. */
#define POETC_PORT_STRING_(x) #x
#define POETC_PORT_STRING(x) POETC_PORT_STRING_(x)
#define POETC_PORT_ASSERT(condition)                                                                    \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            poetc_port_log("assert " __FILE__ ":" POETC_PORT_STRING(__LINE__) ": " #condition "\n");    \
            poetc_port_stop(POETC_PORT_FAILED);                                                         \
        }                                                                                               \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
