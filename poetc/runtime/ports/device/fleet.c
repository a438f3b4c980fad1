/* The program of a board in a fleet: a gateway at the other end of a serial line gives it weights, and takes its
 * update.
 *
 * Both ends send frames, with numbers in little-endian:
 *
 *     'p' 't' kind sequence | size, 16 bits | its complement | payload of `size` bytes | CRC-32 of all before
 *
 * The board answers each request with a frame of the same sequence. Its kind is that of the request + 128, or FAILED
 * with a code of `enum poetc_error`. A frame that is torn or damaged is answered with POETC_ECORRUPT, and is sent
 * again. A request to train that comes twice is done once. The payload lies behind the state in the arena, so a fleet
 * takes no RAM of its own; POETC_MODEL_STATE_BYTES bounds each access.
 *
 * The training data stay here: they come from poetc_port_data, record by record, and from the first one in each epoch.
 */
#include "model.h"
#include "poetc_data.h"
#include "poetc_port.h"
#include "poetc_serial.h"
#include "poetc_update.h"

#include <string.h>

enum { PROTOCOL = 1, HEAD_BYTES = 8, CRC_BYTES = 4, REPLY = 128, FAILED = 255 };
enum { LEAST_PAYLOAD = 128, MOST_PAYLOAD = 4096 }; /* a damaged size makes the board wait for no more than that */
enum { HELLO = 1, RESET = 2, WRITE = 3, READ = 4, TRAIN = 5, UPDATE = 6, END = 7 };

#ifndef POETC_MODEL_ARENA_SECTION
#define POETC_MODEL_ARENA_SECTION ".bss.poetc_arena"
#endif
uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16), section(POETC_MODEL_ARENA_SECTION)));
static poetc_config config;
static poetc_runtime runtime;
static uint8_t *frame;
static uint32_t capacity; /* of a payload, in bytes */
static const poetc_binding *const inputs = POETC_MODEL_INPUTS;

/* Between two instructions of the program, for whatever measures from outside. */
__attribute__((noinline)) int poetc_port_mark(void *context, const poetc_runtime *marked, uint32_t index)
{
    (void)context;
    (void)marked;
    __asm__ volatile("" : : "r"(index));
    return 0;
}

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void put_u32(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    to[2] = (uint8_t)(value >> 16);
    to[3] = (uint8_t)(value >> 24);
}

static void send(uint8_t kind, uint8_t sequence, uint32_t size)
{
    uint32_t i;

    frame[0] = 'p';
    frame[1] = 't';
    frame[2] = kind;
    frame[3] = sequence;
    put_u32(frame + 4, size | (~size << 16));
    put_u32(frame + HEAD_BYTES + size, poetc_crc32(0, frame, HEAD_BYTES + size));
    for (i = 0; i < HEAD_BYTES + size + CRC_BYTES; i++)
        poetc_serial_put(frame[i]);
}

/* The next frame: its size, or POETC_ECORRUPT. Bytes between frames are passed over. */
static int32_t receive(void)
{
    uint32_t size, i;

    for (;;) {
        frame[0] = poetc_serial_get();
        while (frame[0] == 'p') {
            frame[1] = poetc_serial_get();
            if (frame[1] == 't')
                break;
            frame[0] = frame[1];
        }
        if (frame[0] == 'p')
            break;
    }
    for (i = 2; i < HEAD_BYTES; i++)
        frame[i] = poetc_serial_get();
    size = get_u32(frame + 4);
    if ((size >> 16) != (~size & 0xffffu) || (size & 0xffffu) > capacity)
        return POETC_ECORRUPT;
    size &= 0xffffu;
    for (i = 0; i < size + CRC_BYTES; i++)
        frame[HEAD_BYTES + i] = poetc_serial_get();
    return get_u32(frame + HEAD_BYTES + size) == poetc_crc32(0, frame, HEAD_BYTES + size) ? (int32_t)size
                                                                                          : POETC_ECORRUPT;
}

/* Fill in the inputs: 1, 0 at the end of the data, or a negative code. */
static int next_record(void)
{
    static const poetc_limit *const limits = POETC_MODEL_LIMITS;
    poetc_flaw flaw;
    uint32_t i;
    int err = 1;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT && err == 1; i++)
        err = poetc_port_data(poetc_arena + inputs[i].offset, inputs[i].size_bytes);
    if (err == 0 && i > 1)
        err = POETC_ENODATA;
    if (err == 1) {
        const int found = poetc_check_inputs(inputs, limits, POETC_MODEL_INPUT_COUNT, poetc_arena, &flaw);

        err = found ? found : 1;
    }
    return err;
}

/* Train for some epochs; the number of steps, and the mean of their losses. */
static int train(uint32_t epochs, uint32_t *steps, float *mean)
{
    float sum = 0.0f;
    int err = POETC_OK;

    *steps = 0;
    for (; epochs > 0 && err >= 0; epochs--) {
        err = poetc_port_rewind();
        for (err = err < 0 ? err : next_record(); err == 1; err = next_record()) {
            err = poetc_run(&runtime);
            if (!err && !poetc_is_finite(poetc_loss(&runtime)))
                err = POETC_ENUMBER;
            if (err)
                return err;
            sum += poetc_loss(&runtime);
            *steps += 1;
        }
    }
    *mean = *steps > 0 ? sum / (float)*steps : 0.0f;
    return err < 0 ? err : *steps > 0 ? POETC_OK : POETC_ENODATA;
}

static int is_within(uint32_t offset, uint32_t size)
{
    return offset <= POETC_MODEL_STATE_BYTES && size <= POETC_MODEL_STATE_BYTES - offset;
}

/* A part of the update: poetc_update, offset, first, count, whether there are old weights, and the mask of words. Then
 * come the old weights and the terms; the reply has the words. */
static int32_t update(uint8_t *payload, uint32_t size)
{
    enum { FIELDS_BYTES = sizeof(poetc_update) + 20, BLOCK = 16 };
    const uint8_t *fields = payload + sizeof(poetc_update);
    const float *before = (const float *)(void *)(payload + FIELDS_BYTES), *after;
    const uint32_t *terms;
    poetc_update asked;
    uint32_t words[BLOCK], offset, first, count, has_before, mask, i, most;

    if (size < FIELDS_BYTES)
        return POETC_EINVAL;
    memcpy(&asked, payload, sizeof asked);
    offset = get_u32(fields);
    first = get_u32(fields + 4);
    count = get_u32(fields + 8);
    has_before = get_u32(fields + 12) != 0;
    mask = get_u32(fields + 16);
    if (count > size / 4u || size != FIELDS_BYTES + 4u * count * (1u + has_before) || offset % 4u != 0 ||
        !is_within(offset, 4u * count))
        return POETC_EINVAL;
    after = (const float *)(void *)(poetc_arena + offset);
    terms = (const uint32_t *)(const void *)(before + has_before * count);
    for (i = 0; i < count; i += most) { /* the words take the place of old weights and terms that were used */
        int err;

        most = count - i < BLOCK ? count - i : BLOCK;
        err = poetc_update_quantize(&asked, after + i, has_before ? before + i : NULL, first + i, most, words);
        if (err)
            return err;
        poetc_update_add(words, terms + i, most, mask);
        memcpy(payload + 4u * i, words, 4u * most);
    }
    return (int32_t)(4u * count);
}

static uint8_t *payload_of(void)
{
    return frame + HEAD_BYTES;
}

/* Do as a request of `size` bytes says; the size of the reply, or a negative code. */
static int32_t answer(uint8_t kind, uint8_t sequence, uint32_t size)
{
    static struct {
        uint8_t sequence, is_set;
        uint32_t steps;
        float mean;
    } trained;
    uint8_t *const payload = payload_of();
    const uint32_t offset = size >= 4 ? get_u32(payload) : 0;
    int err;

    switch (kind) {
    case HELLO:
        trained.is_set = 0;
        put_u32(payload, PROTOCOL);
        put_u32(payload + 4, POETC_MODEL_EMISSION);
        put_u32(payload + 8, capacity);
        put_u32(payload + 12, POETC_MODEL_STATE_BYTES);
        put_u32(payload + 16, POETC_MODEL_ARENA_BYTES);
        return 20;
    case RESET: err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE); return err;
    case WRITE:
        if (size < 4 || !is_within(offset, size - 4u))
            return POETC_EINVAL;
        trained.is_set = 0;
        memcpy(poetc_arena + offset, payload + 4, size - 4u);
        return 0;
    case READ:
        if (size != 8 || get_u32(payload + 4) > capacity || !is_within(offset, get_u32(payload + 4)))
            return POETC_EINVAL;
        size = get_u32(payload + 4);
        memcpy(payload, poetc_arena + offset, size);
        return (int32_t)size;
    case TRAIN:
        if (size != 4)
            return POETC_EINVAL;
        if (!trained.is_set || trained.sequence != sequence) {
            err = train(offset, &trained.steps, &trained.mean);
            if (err)
                return err;
            trained.sequence = sequence;
            trained.is_set = 1;
        }
        put_u32(payload, trained.steps);
        memcpy(payload + 4, &trained.mean, 4);
        return 8;
    case UPDATE: return update(payload, size);
    case END: return 0;
    default: return POETC_EINVAL;
    }
}

static void stop(int err)
{
    if (err) {
        poetc_port_log("stopped: ");
        poetc_port_log(poetc_error_text(err));
        poetc_port_log("\n");
    }
    poetc_port_stop(err ? POETC_PORT_FAILED : 0);
}

int main(void)
{
    uint32_t record_bytes = 0, i;
    uint8_t kind, sequence;
    int err;

    memset(&config, 0, sizeof config);
    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.flash = POETC_MODEL_CONSTANTS;
    config.observer = poetc_port_mark;
    frame = poetc_arena + (POETC_MODEL_STATE_BYTES + POETC_ALIGN - 1u) / POETC_ALIGN * POETC_ALIGN;
    capacity = (uint32_t)(poetc_arena + sizeof poetc_arena - frame) - HEAD_BYTES - CRC_BYTES;
    if (poetc_arena + sizeof poetc_arena - frame < HEAD_BYTES + CRC_BYTES + LEAST_PAYLOAD)
        stop(POETC_EINVAL);
    capacity = capacity > MOST_PAYLOAD ? MOST_PAYLOAD : capacity & ~3u;
    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++)
        record_bytes += inputs[i].size_bytes;
    err = poetc_port_open(&config.store, POETC_MODEL_BLOCK_BYTES, POETC_MODEL_STORE_BLOCKS, record_bytes);
    if (!err)
        err = poetc_init(&runtime, POETC_MODEL_PROGRAM, &config, POETC_MODEL_STATE);
    if (err)
        stop(err);
    poetc_serial_open();
    do {
        int32_t size = receive();

        kind = frame[2];
        sequence = frame[3];
        size = size < 0 ? size : answer(kind, sequence, (uint32_t)size);
        if (size < 0) {
            put_u32(payload_of(), (uint32_t)size);
            put_u32(payload_of() + 4, runtime.instruction);
            send(FAILED, sequence, 8);
            kind = FAILED;
        } else
            send((uint8_t)(kind + REPLY), sequence, (uint32_t)size);
    } while (kind != END);
    stop(POETC_OK);
    return 0;
}
