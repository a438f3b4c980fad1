/* The runtime core: checks, the run loop, pages. See poetc.h. */
#include "poetc.h"
#include "poetc_bytes.h"
#include "poetc_instructions.h"

#include <string.h>

#ifdef __GNUC__
#pragma weak poetc_stream /* only programs with streams link its file */
#endif

#if defined(__ARM_FEATURE_CRC32) && defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_acle.h>
#define POETC_CRC_INSTRUCTION
#endif

static int is_aligned(const void *pointer)
{
    return ((uintptr_t)pointer & (POETC_ALIGN - 1u)) == 0;
}

static int check(const poetc_program *program, const poetc_config *config)
{
    if (program == NULL || config == NULL || config->arena == NULL)
        return POETC_EINVAL;
    if (!is_aligned(config->arena) || config->arena_bytes < program->arena_bytes)
        return POETC_EINVAL;
    if (program->flash_bytes > 0 && (config->flash == NULL || !is_aligned(config->flash)))
        return POETC_EINVAL;
    if (program->page_count > 0 && (config->store.page_out == NULL || config->store.page_in == NULL))
        return POETC_EINVAL;
    return POETC_OK;
}

/* Zeros in all regions, then the pieces of the image: place and size in a head of POETC_ALIGN bytes, and the data. A
 * head without a size ends it. */
POETC_COLD static void set_state(const poetc_program *program, uint8_t *arena, const uint8_t *from)
{
    uint32_t size, i;

    for (i = 0; i < program->region_count; i++)
        memset(arena + program->regions[i].place, 0, program->regions[i].size_bytes);
    for (; (size = get_u32(from + 4)) > 0; from += POETC_ALIGN + size)
        memcpy(arena + get_u32(from), from + POETC_ALIGN, size);
}

POETC_COLD int poetc_init(poetc_runtime *runtime, const poetc_program *program, const poetc_config *config,
                          const void *state_image)
{
    int err;

    if (runtime == NULL)
        return POETC_EINVAL;
    err = check(program, config);
    if (err)
        return err;
    memset(runtime, 0, sizeof *runtime);
    runtime->config = config;
    runtime->program = program;
    if (state_image != NULL)
        set_state(program, config->arena, state_image);
    return POETC_OK;
}

int poetc_select(poetc_runtime *runtime, const poetc_program *program)
{
    int err = check(program, runtime->config);

    if (err)
        return err;
    if (program->state_bytes != runtime->program->state_bytes)
        return POETC_EINVAL;
    runtime->program = program;
    return POETC_OK;
}

#ifdef POETC_CRC32
uint32_t poetc_crc32(uint32_t crc, const void *data, size_t size_bytes)
{
    return POETC_CRC32(crc, data, size_bytes);
}
#else
/* One nibble at a time: 64 bytes of table instead of a kilobyte. */
static uint32_t crc_of_bytes(uint32_t crc, const uint8_t *bytes, size_t size_bytes)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu,
    };
    size_t i;

    for (i = 0; i < size_bytes; i++) {
        crc ^= bytes[i];
        crc = (crc >> 4) ^ table[crc & 15u];
        crc = (crc >> 4) ^ table[crc & 15u];
    }
    return crc;
}

#if defined(__PCLMUL__) && defined(__x86_64__)
/* 128 bits of the message, a polynomial over GF(2). The CRC stays the same if they are multiplied by x^n and added to
 * the bits that come n bits later. Factors are x^(n + 32) and x^(n - 32) modulo the CRC's polynomial, bits reflected.
 */
typedef long long polynomial __attribute__((vector_size(16)));

static inline polynomial load(const uint8_t *bytes)
{
    polynomial value;

    memcpy(&value, bytes, sizeof value);
    return value;
}

static inline polynomial fold(polynomial value, polynomial factors, polynomial later)
{
    return __builtin_ia32_pclmulqdq128(value, factors, 0x00) ^ __builtin_ia32_pclmulqdq128(value, factors, 0x11) ^
           later;
}

#define CRC_LEAST_BYTES 64u

/* Of whole blocks of 16 bytes, at least four; `crc` goes into the first four bytes. */
static uint32_t crc_of_blocks(uint32_t crc, const uint8_t *bytes, size_t block_count)
{
    const polynomial by_512 = {0x154442bd4, 0x1c6e41596}, by_128 = {0x1751997d0, 0x0ccaa009e};
    polynomial part[4];
    int i;

    for (i = 0; i < 4; i++)
        part[i] = load(bytes + 16 * i);
    part[0] ^= (polynomial){(long long)crc, 0};
    for (bytes += 64, block_count -= 4; block_count >= 4; bytes += 64, block_count -= 4) {
        for (i = 0; i < 4; i++)
            part[i] = fold(part[i], by_512, load(bytes + 16 * i));
    }
    for (i = 1; i < 4; i++)
        part[0] = fold(part[0], by_128, part[i]);
    for (; block_count > 0; bytes += 16, block_count--)
        part[0] = fold(part[0], by_128, load(bytes));
    return crc_of_bytes(0, (const uint8_t *)part, sizeof part[0]);
}
#elif defined(POETC_CRC_INSTRUCTION)
#define CRC_LEAST_BYTES 16u

static uint32_t crc_of_blocks(uint32_t crc, const uint8_t *bytes, size_t block_count)
{
    typedef uint64_t __attribute__((may_alias)) any_word; /* bytes are aligned to 8 */
    const any_word *words = (const void *)bytes;
    size_t i;

    for (i = 0; i < 2 * block_count; i++)
        crc = __crc32d(crc, words[i]);
    return crc;
}
#endif

uint32_t poetc_crc32(uint32_t crc, const void *data, size_t size_bytes)
{
    const uint8_t *bytes = data;

    crc = ~crc;
#ifdef CRC_LEAST_BYTES
    if (size_bytes >= CRC_LEAST_BYTES && (uintptr_t)bytes % 8 == 0) {
        crc = crc_of_blocks(crc, bytes, size_bytes / 16);
        bytes += size_bytes / 16 * 16;
        size_bytes %= 16;
    }
#endif
    return ~crc_of_bytes(crc, bytes, size_bytes);
}
#endif

/* All of it but the checksum, which covers these 12 bytes and then the data. */
static void make_head(uint8_t trailer[POETC_TRAILER], uint32_t page, uint32_t stamp, uint32_t size)
{
    put_u32(trailer, page);
    put_u32(trailer + 4, stamp);
    put_u32(trailer + 8, size);
}

static void make_trailer(uint8_t trailer[POETC_TRAILER], uint32_t page, uint32_t stamp, uint32_t size, const void *data)
{
    make_head(trailer, page, stamp, size);
    put_u32(trailer + 12, poetc_crc32(poetc_crc32(0, trailer, 12), data, size));
}

uint32_t poetc_page_blocks(const poetc_program *program, uint32_t page)
{
    uint32_t rest = program->pages[page].size_bytes % program->block_bytes;

    return program->pages[page].size_bytes / program->block_bytes +
           (rest + POETC_TRAILER > program->block_bytes ? 2u : 1u);
}

/* Full blocks go straight from the tensor; the rest of it and the trailer, at the end of the last block, through the
 * page buffer. The trailer is written last, so that a page cut short by a power loss does not have it. */
static int write_page(const poetc_runtime *runtime, uint32_t index, uint32_t slot, uint32_t stamp, const uint8_t *data)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[index].size_bytes;
    const uint32_t whole = size / block, rest = size % block, count = poetc_page_blocks(program, index);
    const uint32_t first = program->pages[index].first_block + slot * count;
    uint8_t *buffer = (uint8_t *)runtime->config->arena + program->page_buffer_offset;
    int err;

    if (whole > 0) {
        err = store->page_out(store->context, first, whole, data);
        if (err)
            return driver_code(err);
    }
    memset(buffer, 0, block);
    memcpy(buffer, data + (size_t)whole * block, rest);
    if (count - whole == 2u) {
        err = store->page_out(store->context, first + whole, 1, buffer);
        if (err)
            return driver_code(err);
        memset(buffer, 0, block);
    }
    make_trailer(buffer + block - POETC_TRAILER, index, stamp, size, data);
    return driver_code(store->page_out(store->context, first + count - 1u, 1, buffer));
}

int poetc_read_page(const poetc_runtime *runtime, uint32_t index, uint32_t slot, uint32_t stamp, uint8_t *data,
                    uint8_t *buffer)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[index].size_bytes;
    const uint32_t whole = size / block, rest = size % block, count = poetc_page_blocks(program, index);
    const uint32_t first = program->pages[index].first_block + slot * count;
    uint8_t trailer[POETC_TRAILER];
    uint32_t i;
    int err;

    if (whole > 0) {
        err = store->page_in(store->context, first, whole, data);
        if (err)
            return driver_code(err);
    }
    for (i = whole; i < count; i++) {
        err = store->page_in(store->context, first + i, 1, buffer);
        if (err)
            return driver_code(err);
        if (i == whole)
            memcpy(data + (size_t)whole * block, buffer, rest);
    }
    /* Up to the next tensor the bytes belong to this one: no schedule may show in them, as regions of state hold them.
     */
    memset(data + size, 0, (POETC_ALIGN - size % POETC_ALIGN) % POETC_ALIGN);
    make_trailer(trailer, index, stamp, size, data);
    return memcmp(trailer, buffer + block - POETC_TRAILER, POETC_TRAILER) == 0 ? POETC_OK : POETC_ECORRUPT;
}

static int read_page(const poetc_runtime *runtime, uint32_t index, uint32_t slot, uint32_t stamp, uint8_t *data)
{
    uint8_t *buffer = (uint8_t *)runtime->config->arena + runtime->program->page_buffer_offset;

    return poetc_read_page(runtime, index, slot, stamp, data, buffer);
}

/* Hand the page's data to the sink, block after block, with the page buffer alone; without a sink, find out whether
 * read_page would succeed. The verdict of the checksum comes after the last block. */
static int walk_page(const poetc_runtime *runtime, uint32_t index, uint32_t slot, uint32_t stamp, poetc_sink sink,
                     void *context)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, count = poetc_page_blocks(program, index);
    const uint32_t first = program->pages[index].first_block + slot * count;
    uint8_t *buffer = (uint8_t *)runtime->config->arena + program->page_buffer_offset;
    uint32_t left = program->pages[index].size_bytes, crc, i;
    uint8_t trailer[POETC_TRAILER];

    make_head(trailer, index, stamp, left);
    crc = poetc_crc32(0, trailer, 12);
    for (i = 0; i < count; i++) {
        const uint32_t used = left < block ? left : block;
        int err = store->page_in(store->context, first + i, 1, buffer);

        if (err)
            return driver_code(err);
        crc = poetc_crc32(crc, buffer, used);
        left -= used;
        err = sink != NULL && used > 0 ? sink(context, buffer, used) : POETC_OK;
        if (err)
            return err;
    }
    put_u32(trailer + 12, crc);
    return memcmp(trailer, buffer + block - POETC_TRAILER, POETC_TRAILER) == 0 ? POETC_OK : POETC_ECORRUPT;
}

/* State on the store is stamped with its version, and version v lives in slot v mod 2. Any other page is stamped with
 * the run that wrote it. */
static uint32_t version_of(const poetc_runtime *runtime)
{
    return runtime->run_count + runtime->version_offset;
}

static int page_out(poetc_runtime *runtime, const poetc_instruction *instruction)
{
    const uint32_t page = (uint32_t)instruction->ints[0], version = version_of(runtime) + 1u;
    const uint8_t *data = (const uint8_t *)runtime->config->arena + (size_t)(instruction->refs[0] >> 1) * POETC_ALIGN;

    runtime->page_outs++;
    if (runtime->program->pages[page].slots == 2u)
        return write_page(runtime, page, version & 1u, version, data);
    return write_page(runtime, page, 0, runtime->sequence, data);
}

static int page_in(poetc_runtime *runtime, const poetc_instruction *instruction)
{
    const uint32_t page = (uint32_t)instruction->ints[0];
    uint8_t *data = (uint8_t *)runtime->config->arena + (size_t)(instruction->refs[0] >> 1) * POETC_ALIGN;
    uint32_t version = version_of(runtime);

    runtime->page_ins++;
    if (instruction->ints[1] == POETC_PAGE_IMAGE)
        return read_page(runtime, page, 0, 0, data);
    if (runtime->program->pages[page].slots == 2u) {
        if (instruction->ints[1] == POETC_PAGE_THIS_RUN)
            version++;
        return read_page(runtime, page, version & 1u, version, data);
    }
    return read_page(runtime, page, 0, runtime->sequence, data);
}

int poetc_load_page(poetc_runtime *runtime, uint32_t page, const void *data)
{
    if (page >= runtime->program->page_count || data == NULL)
        return POETC_EINVAL;
    return write_page(runtime, page, 0, 0, data);
}

int poetc_read_state_page(poetc_runtime *runtime, uint32_t page, poetc_sink sink, void *context)
{
    const uint32_t stamp = runtime->program->pages[page].slots & 2u ? version_of(runtime) : 0;
    int err = walk_page(runtime, page, stamp & 1u, stamp, NULL, NULL);

    return err ? err : walk_page(runtime, page, stamp & 1u, stamp, sink, context);
}

/* The trailer of a page whose data begin at `offset` of `source`. */
static int trailer_of(const poetc_runtime *runtime, uint32_t page, uint32_t stamp, uint32_t offset, poetc_source source,
                      void *context, uint8_t trailer[POETC_TRAILER])
{
    const uint32_t block = runtime->program->block_bytes, size = runtime->program->pages[page].size_bytes;
    uint8_t *buffer = (uint8_t *)runtime->config->arena + runtime->program->page_buffer_offset;
    uint32_t done, used, crc;

    make_head(trailer, page, stamp, size);
    crc = poetc_crc32(0, trailer, 12);
    for (done = 0; done < size; done += used) {
        int err;

        used = size - done < block ? size - done : block;
        err = source(context, offset + done, buffer, used);
        if (err)
            return err;
        crc = poetc_crc32(crc, buffer, used);
    }
    put_u32(trailer + 12, crc);
    return POETC_OK;
}

static int write_of(poetc_runtime *runtime, uint32_t page, uint32_t version, uint32_t offset, poetc_source source,
                    void *context)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t block = program->block_bytes, size = program->pages[page].size_bytes;
    const uint32_t stamp = program->pages[page].slots & 2u ? version : 0, count = poetc_page_blocks(program, page);
    const uint32_t first = program->pages[page].first_block + (stamp & 1u) * count;
    uint8_t *buffer = (uint8_t *)runtime->config->arena + program->page_buffer_offset;
    uint8_t trailer[POETC_TRAILER];
    uint32_t done = 0, i;
    int err = trailer_of(runtime, page, stamp, offset, source, context, trailer);

    if (err)
        return err;
    /* A page with one slot has no copy: a cut must not tear data that are right already. */
    if (!(program->pages[page].slots & 2u) && walk_page(runtime, page, 0, 0, NULL, NULL) == POETC_OK &&
        memcmp(trailer, buffer + block - POETC_TRAILER, POETC_TRAILER) == 0)
        return POETC_OK;
    for (i = 0; i < count; i++) {
        const uint32_t used = size - done < block ? size - done : block;

        memset(buffer, 0, block);
        err = used > 0 ? source(context, offset + done, buffer, used) : POETC_OK;
        if (err)
            return err;
        done += used;
        if (i == count - 1u)
            memcpy(buffer + block - POETC_TRAILER, trailer, POETC_TRAILER);
        err = store->page_out(store->context, first + i, 1, buffer);
        if (err)
            return driver_code(err);
    }
    return POETC_OK;
}

/* A table whose data begin at `offset` of `source`. */
typedef struct {
    poetc_source source;
    void *context;
    uint32_t offset, size_bytes;
} summed_table;

/* The checksums of its pieces. */
static int give_sums(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    const summed_table *table = context;
    uint8_t *to = data, bytes[64];
    uint32_t at, used;

    for (; size_bytes > 0; size_bytes -= 4u, offset += 4u, to += 4) {
        const uint32_t begin = offset / 4u * POETC_SUMMED_BYTES, rest = table->size_bytes - begin;
        const uint32_t end = begin + (rest < POETC_SUMMED_BYTES ? rest : POETC_SUMMED_BYTES);
        uint32_t crc = 0;

        if (begin >= table->size_bytes) { /* behind the checksums: any row may differ from the other slot's */
            put_u32(to, UINT32_MAX);
            continue;
        }
        for (at = begin; at < end; at += used) {
            int err;

            used = end - at < sizeof bytes ? end - at : (uint32_t)sizeof bytes;
            err = table->source(table->context, table->offset + at, bytes, used);
            if (err)
                return err;
            crc = poetc_crc32(crc, bytes, used);
        }
        put_u32(to, crc);
    }
    return POETC_OK;
}

int poetc_write_state_page(poetc_runtime *runtime, uint32_t page, uint32_t version, uint32_t offset,
                           poetc_source source, void *context)
{
    const poetc_program *program = runtime->program;
    const poetc_store *store = &runtime->config->store;
    const uint32_t behind = page + 1u < program->page_count ? program->pages[page + 1u].slots : 1u;
    summed_table table = {source, context, offset, program->pages[page].size_bytes};
    int err = POETC_OK;

    if (behind == 3u) { /* before a row of this slot changes, so that none is taken for that of an earlier version */
        err = write_of(runtime, page + 1u, version, 0, give_sums, &table);
        if (!err && store->sync != NULL)
            err = driver_code(store->sync(store->context));
    }
    if (!err)
        err = write_of(runtime, page, version, offset, source, context);
    if (!err && behind == 0)
        err = write_of(runtime, page + 1u, 0, 0, give_sums, &table);
    return err;
}

POETC_COLD int poetc_bring_back(poetc_runtime *runtime, const poetc_absence *absences, uint32_t count,
                                uint32_t instruction)
{
    int result = POETC_OK;
    uint32_t i;

    for (i = 0; i < count; i++) {
        const poetc_absence *absence = &absences[i];

        if (absence->begin <= instruction && instruction < absence->end) {
            uint8_t *place = (uint8_t *)runtime->config->arena + absence->offset;
            int err = walk_page(runtime, absence->page, 0, runtime->sequence, NULL, NULL);

            if (!err)
                err = read_page(runtime, absence->page, 0, runtime->sequence, place);
            if (!result)
                result = err;
        }
    }
    return result;
}

int poetc_recover(poetc_runtime *runtime)
{
    const poetc_program *program = runtime->program;

    return poetc_bring_back(runtime, program->absences, program->absence_count, runtime->instruction);
}

int poetc_execute(poetc_runtime *runtime, const poetc_instruction *instruction, poetc_slice *slice)
{
    poetc_call call;

    if (instruction->opcode == POETC_PAGE_OUT)
        return page_out(runtime, instruction);
    if (instruction->opcode == POETC_PAGE_IN)
        return page_in(runtime, instruction);
    if (instruction->opcode == POETC_STREAM || instruction->opcode == POETC_STREAM_AHEAD)
        return poetc_stream(runtime, instruction, slice);
    POETC_ASSERT(instruction->opcode == POETC_COMPUTE);
    call.refs = instruction->refs;
    call.ints = instruction->ints;
    call.floats = instruction->floats;
    call.arena = runtime->config->arena;
    call.flash = runtime->config->flash;
#ifdef POETC_THREADS
    call.share.part = call.share.parts = 0;
    call.workspace = NULL;
#endif
    return instruction->kernel(&call);
}

void poetc_begin(poetc_runtime *runtime, poetc_slice *slice)
{
    runtime->sequence++;
    runtime->instruction = 0;
    if (slice != NULL)
        slice->is_within = 0;
}

int poetc_advance(poetc_runtime *runtime, poetc_slice *slice)
{
    const poetc_program *program = runtime->program;
    const poetc_config *config = runtime->config;
    const int is_within = slice != NULL && slice->is_within;
    int err = POETC_OK;

    POETC_ASSERT(runtime->instruction <= program->instruction_count);
    if (config->observer != NULL && !is_within)
        err = config->observer(config->observer_context, runtime, runtime->instruction);
    if (err >= 0 && runtime->instruction < program->instruction_count)
        err = poetc_execute(runtime, &program->instructions[runtime->instruction], slice);
    else if (err >= 0) {
        runtime->run_count += program->updates_state;
        return POETC_COMPLETE;
    }
    if (err < 0) {
        (void)poetc_recover(runtime);
        return err;
    }
    if (slice == NULL || !slice->is_within)
        runtime->instruction++;
    return POETC_OK;
}

int poetc_run(poetc_runtime *runtime)
{
    int err;

    poetc_begin(runtime, NULL);
    do
        err = poetc_advance(runtime, NULL);
    while (err == POETC_OK);
    return err < 0 ? err : POETC_OK;
}

float poetc_loss(const poetc_runtime *runtime)
{
    return poetc_get_float(runtime, runtime->program->loss_offset);
}

float poetc_get_float(const poetc_runtime *runtime, uint32_t offset)
{
    float value;

    memcpy(&value, (const uint8_t *)runtime->config->arena + offset, sizeof value);
    return value;
}

void poetc_set_float(poetc_runtime *runtime, uint32_t offset, float value)
{
    memcpy((uint8_t *)runtime->config->arena + offset, &value, sizeof value);
}
