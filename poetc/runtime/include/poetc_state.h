/* All trained state as one stream of bytes, wherever it lives: the training programs write it to trained.bin.
 *
 * The tensors of state come in the order of their names, which the emitted table follows. Each is filled up with zeros
 * to a multiple of POETC_ALIGN. At the end stands a trailer of POETC_STATE_TRAILER bytes, in little-endian. It has the
 * tag "poetc s2", the identity of the state, complete runs, the size of the data, and a CRC-32. poetc-emit.json has the
 * place of each tensor.
 *
 * The identity is a checksum of the names, types and shapes of the state. So firmware with another schedule, other
 * kernels or another budget of the same model takes the stream, and goes on with the same bits.
 */
#ifndef POETC_STATE_H
#define POETC_STATE_H

#include "poetc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POETC_STATE_TRAILER 24u /* bytes */

typedef struct poetc_state {
    const poetc_region *regions; /* the emitted table */
    uint32_t region_count;
    uint32_t identity; /* of the state: names, types, shapes */
} poetc_state;

/* Hand the state, as the last complete run left it, to `sink` in pieces. Between two runs only; uses the page buffer.
 * Returns 0, the sink's code, a driver's code, or POETC_ECORRUPT if a page is not whole: nothing of that page was
 * handed over. */
int poetc_state_write(poetc_runtime *runtime, const poetc_state *state, poetc_sink sink, void *context);

/* Take over the state of a stream of `size_bytes`, and the number of complete runs. The stream is read twice: nothing
 * changes before its tag, identity, size and checksum are found right. Between two runs only; uses the page buffer.
 * POETC_EINVAL: no state, or that of another model, whose names, types
 * or shapes differ; POETC_ECORRUPT: its checksum does not hold. After another code, of
 * the source or the store, the state may be mixed: read it again. */
int poetc_state_read(poetc_runtime *runtime, const poetc_state *state, uint32_t size_bytes, poetc_source source,
                     void *context);

#ifdef __cplusplus
}
#endif
#endif
