/* Checkpoints beside streams of state, drivers that fail, and slots that an older runtime wrote. Built with the emitted
 * model.
 *
 *     checkpoints saves SLOTS         power cuts around a state that is read from a stream; prints "cuts N"
 *     checkpoints unreadable SLOTS    blocks that the driver cannot read; prints "blocks N"
 *     checkpoints format SLOTS        power cuts while an empty or a used store is set up; prints "cuts N"; pages.bin
 *                                     has the initial pages
 *     checkpoints rollback SLOTS      back to the checkpoint before the newest, with power cuts; prints "cuts N"
 *     checkpoints stale SLOTS         pages of undone runs on a store that loses writes; prints "refused"
 *     checkpoints old                 slots in the form of an older runtime; prints "passed over"
 *
 * Says what is wrong and exits 1 otherwise.
 */
#include "model.h"
#include "poetc_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4096, BLOCK = POETC_MODEL_BLOCK_BYTES, POWER_IS_OFF = -99, BAD_BLOCK = -74, LOAD = 5, OPERATIONS = 9 };

typedef struct stream {
    uint8_t bytes[2 * POETC_MODEL_ARENA_BYTES + BLOCKS];
    uint32_t size_bytes;
} stream;

static uint8_t card[BLOCKS][BLOCK], fresh_card[BLOCKS][BLOCK];
static uint8_t arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16)));
static uint8_t buffer[BLOCK];
static long writes, cut_at;    /* blocks written since the beginning; the one that is torn */
static int power = 1, is_deaf; /* to pages: their writes are lost */
static uint32_t bad_first = POETC_NONE, bad_second = POETC_NONE; /* blocks that cannot be read */
static stream states[OPERATIONS + 1], now;
static poetc_session session;
static uint32_t slots;
static uint8_t filling = 0xa5; /* of an arena before the start */
static poetc_model model;      /* with initial pages, once they were read */
static poetc_program other;    /* of the same state */

static void fail(const char *what, long a, long b)
{
    printf("%s: %ld, %ld\n", what, a, b);
    exit(1);
}

static int is_of_page(uint32_t block)
{
    const poetc_program *program = model.train.program;
    uint32_t i, first;

    for (i = 0; i < program->page_count; i++) {
        first = program->pages[i].first_block;
        if (block >= first && block < first + program->pages[i].slots * poetc_page_blocks(program, i))
            return 1;
    }
    return 0;
}

static int page_out(void *context, uint32_t first, uint32_t count, const void *data)
{
    uint32_t i;

    (void)context;
    for (i = 0; i < count; i++) {
        const int is_torn = power && ++writes == cut_at;

        if (!power)
            return POWER_IS_OFF;
        if (is_deaf && is_of_page(first + i))
            continue;
        memcpy(card[first + i], (const uint8_t *)data + (size_t)i * BLOCK, is_torn ? BLOCK / 2 : BLOCK);
        power = !is_torn;
    }
    return power ? 0 : POWER_IS_OFF;
}

static int page_in(void *context, uint32_t first, uint32_t count, void *data)
{
    uint32_t i;

    (void)context;
    if (!power)
        return POWER_IS_OFF;
    for (i = first; i < first + count; i++)
        if (i == bad_first || i == bad_second)
            return BAD_BLOCK;
    memcpy(data, card[first], (size_t)count * BLOCK);
    return 0;
}

static int put(void *context, const void *data, uint32_t size_bytes)
{
    stream *to = context;

    if (size_bytes > sizeof to->bytes - to->size_bytes)
        fail("a stream is too long", (long)to->size_bytes, (long)size_bytes);
    memcpy(to->bytes + to->size_bytes, data, size_bytes);
    to->size_bytes += size_bytes;
    return 0;
}

static int get(void *context, uint32_t offset, void *data, uint32_t size_bytes)
{
    memcpy(data, ((const stream *)context)->bytes + offset, size_bytes);
    return 0;
}

static void read_state(stream *to)
{
    to->size_bytes = 0;
    if (poetc_session_save(&session, put, to))
        fail("the state cannot be read", 0, 0);
}

static int is_same(const stream *a, const stream *b)
{
    return a->size_bytes == b->size_bytes && memcmp(a->bytes, b->bytes, a->size_bytes) == 0;
}

static void start(void)
{
    poetc_config config = {0};

    memset(arena, filling, sizeof arena);
    memset(&session, 0xa5, sizeof session);
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    config.store.page_out = page_out;
    config.store.page_in = page_in;
    if (poetc_session_init(&session, &model, &config))
        fail("no session", 0, 0);
    session.checkpoint.buffer = buffer;
    session.checkpoint.slots = slots;
    if (slots > 2)
        session.checkpoint.first_block = model.store_blocks;
}

static int step(int index)
{
    const poetc_binding *inputs = POETC_MODEL_INPUTS;
    uint32_t i, j;

    for (i = 0; i < POETC_MODEL_INPUT_COUNT; i++) {
        memset(arena + inputs[i].offset, 0, inputs[i].size_bytes);
        for (j = 0; i == 0 && j + 4 <= inputs[i].size_bytes; j += 4) {
            float value = (float)(((uint32_t)index * 7u + j) % 11u) * 0.125f - 0.5f;
            memcpy(arena + inputs[i].offset + j, &value, 4);
        }
    }
    return poetc_session_step(&session, NULL, NULL);
}

/* Operation `index` of the story: a training step, or the state after two steps from a stream. Then a checkpoint. */
static int operate(int index)
{
    int err = index == LOAD ? poetc_session_load(&session, states[2].size_bytes, get, &states[2]) : step(index);

    return err ? err : poetc_session_checkpoint(&session);
}

/* From operation `done` to the end. Returns how many are complete; `states` is filled where there was no cut. */
static int go_on(int done, int keeps)
{
    for (; done < OPERATIONS; done++) {
        const int err = operate(done);

        if (err == POWER_IS_OFF)
            break;
        if (err)
            fail("an operation failed", done, err);
        if (keeps)
            read_state(&states[done + 1]);
    }
    return done;
}

static void whole_story(void)
{
    memcpy(card, fresh_card, sizeof card);
    filling = 0;
    start();
    read_state(&now);
    filling = 0xa5;
    start();
    read_state(&states[0]);
    if (!is_same(&states[0], &now))
        fail("the initial state has bytes of before", 0, 0);
    if (poetc_session_resume(&session))
        fail("a fresh card", 0, 0);
    go_on(0, 1);
    if (!is_same(&states[2], &states[LOAD + 1]))
        fail("the stream is not the state", 0, 0);
}

static void cut_everywhere(void)
{
    long total, cut;

    writes = 0;
    whole_story();
    total = writes;
    for (cut = 1; cut <= total; cut++) {
        int done, found, err;

        memcpy(card, fresh_card, sizeof card);
        writes = 0;
        cut_at = cut;
        start();
        err = poetc_session_resume(&session);
        done = go_on(0, 0);
        power = 1;
        cut_at = 0;
        start();
        err = poetc_session_resume(&session);
        if (err)
            fail("no resume after the cut", cut, err);
        read_state(&now);
        found = is_same(&now, &states[done]) ? done : done + 1;
        if (found > OPERATIONS || !is_same(&now, &states[found]))
            fail("another state than that of the last save, cut and operations", cut, done);
        go_on(found, 0);
        read_state(&now);
        if (!is_same(&now, &states[OPERATIONS]))
            fail("another end, cut and operations", cut, done);
    }
    printf("cuts %ld\n", total);
}

static void bad_blocks(void)
{
    uint32_t count, first, newest, block, i;

    whole_story();
    count = poetc_checkpoint_blocks(session.model->train.program);
    first = session.checkpoint.first_block;
    newest = (session.checkpoint.next_slot + slots - 1u) % slots;
    for (block = 0; block < count; block++) {
        for (i = 0; i < slots; i++) {
            const int err = (bad_first = first + i * count + block, start(), poetc_session_resume(&session));
            const uint32_t expected = i == newest ? OPERATIONS - 1 : OPERATIONS;

            if (err || (int)(session.runtime.run_count) != (int)expected - LOAD + 1)
                fail("one bad block: code, step", err, (long)session.runtime.run_count);
        }
    }
    if (slots == 2) {
        bad_first = first;
        bad_second = first + count;
        start();
        if (poetc_session_resume(&session) != BAD_BLOCK || poetc_session_step(&session, NULL, NULL) != POETC_EIO)
            fail("no slot can be read", 0, 0);
    }
    bad_first = first + newest * count; /* the save that cannot be read is replaced, and never comes back */
    bad_second = POETC_NONE;
    start();
    if (poetc_session_resume(&session) || poetc_session_checkpoint(&session))
        fail("one bad block, and a save", 0, 0);
    read_state(&now);
    bad_first = POETC_NONE;
    start();
    if (poetc_session_resume(&session))
        fail("readable again", 0, 0);
    read_state(&states[0]);
    if (!is_same(&now, &states[0]))
        fail("a save of before came back", 0, 0);
    printf("blocks %lu\n", (unsigned long)(count * slots));
}

/* Back by one checkpoint, and on again; with cuts in between. */
static void roll_back(void)
{
    static uint8_t used[BLOCKS][BLOCK];
    const int on_store = (whole_story(), session.model->formatted_count > 0);
    long cut = 0;
    int err, is_cut;

    memcpy(used, card, sizeof card);
    do {
        memcpy(card, used, sizeof card);
        start();
        writes = 0;
        cut_at = ++cut;
        is_cut = poetc_session_rollback(&session) != POETC_OK;
        cut_at = 0;
        power = 1;
        start();
        if (poetc_session_resume(&session))
            fail("no resume after the cut", cut, 0);
        read_state(&now);
        if (!is_same(&now, &states[OPERATIONS - 1]) && !(is_cut && is_same(&now, &states[OPERATIONS])))
            fail("neither of the two states", cut, is_cut);
    } while (is_cut);
    if (slots == 2) {
        err = poetc_session_rollback(&session);
        read_state(&now);
        if (err != POETC_ENOENT || !is_same(&now, &states[OPERATIONS - 1]))
            fail("back beyond the last one", err, 0);
    }
    go_on(OPERATIONS - 1, 0);
    read_state(&now);
    if (!is_same(&now, &states[OPERATIONS]))
        fail("another end", 0, 0);
    memcpy(card, used, sizeof card); /* a step after the newest checkpoint takes the place of the one before */
    start();
    if (poetc_session_resume(&session) || step(0))
        fail("a step", 0, 0);
    err = poetc_session_rollback(&session);
    read_state(&now);
    if (err != (on_store ? POETC_ECORRUPT : POETC_OK) || !is_same(&now, &states[OPERATIONS - !on_store]))
        fail("back after a step", err, on_store);
    memcpy(card, fresh_card, sizeof card);
    start();
    err = poetc_session_rollback(&session);
    read_state(&now);
    if (err != POETC_ENOENT || !is_same(&now, &states[0]))
        fail("back without a checkpoint", err, 0);
    printf("cuts %ld\n", cut);
}

/* A store without an image, or one of a training, is set up; wherever it is cut, it can be done again. */
static void format_everywhere(void)
{
    static uint8_t pages[sizeof card], used[BLOCKS][BLOCK];
    FILE *file = fopen("pages.bin", "rb");
    long cut = 0, cuts = 0;
    int is_used;

    whole_story();
    memcpy(used, card, sizeof card);
    if (model.formatted_count > 0 && poetc_session_format(&session) != POETC_EINVAL)
        fail("formatted without pages", 0, 0);
    if (memcmp(used, card, sizeof card) != 0)
        fail("a refusal wrote blocks", 0, 0);
    if (file == NULL || (fread(pages, 1, sizeof pages, file) == 0 && model.formatted_count > 0))
        fail("pages.bin", 0, 0);
    fclose(file);
    model.initial_pages = pages;
    for (is_used = 0; is_used < 2; is_used++) {
        for (cut = 1;; cut++) {
            int is_cut, err;

            if (is_used)
                memcpy(card, used, sizeof card);
            else
                memset(card, 0, sizeof card);
            start();
            if (poetc_session_resume(&session) || (session.checkpoint.saves > 0) != is_used)
                fail("before it is set up: used", is_used, (long)session.checkpoint.saves);
            writes = 0;
            cut_at = cut;
            is_cut = poetc_session_format(&session) != POETC_OK;
            cut_at = 0;
            power = 1;
            start();
            err = poetc_session_resume(&session);
            if (err)
                fail("no resume after the cut", cut, err);
            if (session.checkpoint.saves == 0 && (!is_cut || poetc_session_format(&session)))
                fail("cannot be set up again", cut, is_used);
            read_state(&now);
            if (session.runtime.run_count > 0) { /* of the training before, whose slots were not yet void */
                if (!is_same(&now, &states[OPERATIONS]) && !is_same(&now, &states[OPERATIONS - 1]))
                    fail("neither the state before nor the initial one", cut, is_used);
            } else {
                if (!is_same(&now, &states[0]))
                    fail("not the initial state", cut, is_used);
                go_on(0, 0);
                read_state(&now);
                if (!is_same(&now, &states[OPERATIONS]))
                    fail("another end", cut, is_used);
            }
            if (!is_cut)
                break;
        }
        cuts += cut;
    }
    printf("cuts %ld\n", cuts);
}

/* A write is lost after earlier runs were undone. The page that they left must not pass for the lost one. */
static void refuse_stale(const char *what)
{
    const int on_store = session.model->formatted_count > 0;
    int i, err = 0;

    is_deaf = 1;
    for (i = 0; i < 3 * OPERATIONS && !(on_store && err); i++) {
        err = step(0);
        if (err != POETC_ECORRUPT && !(on_store && i == 0)) /* the first one reads the state before it */
            fail(what, i, err);
    }
    is_deaf = 0;
}

static void stale_pages(void)
{
    static uint8_t used[BLOCKS][BLOCK];
    const int on_store = (whole_story(), session.model->formatted_count > 0);
    int i;

    memcpy(used, card, sizeof card);
    if (poetc_session_rollback(&session))
        fail("no rollback", 0, 0);
    refuse_stale("after a rollback: run, code");
    if (!on_store) {
        memcpy(card, used, sizeof card);
        start();
        for (i = 0; i < 3; i++) /* and no checkpoint behind them */
            if (poetc_session_resume(&session) || step(0) || step(0) || step(0))
                fail("steps", i, 0);
        start();
        if (poetc_session_resume(&session))
            fail("no resume", 0, 0);
        refuse_stale("after a cut: run, code");
        memcpy(card, used, sizeof card);
        start();
        if (poetc_session_format(&session))
            fail("no format", 0, 0);
        refuse_stale("after a format: run, code");
    }
    start();
    session.checkpoint.slots = 1;
    other = *session.model->train.program;
    session.runtime.program = &other;
    if (poetc_session_rollback(&session) != POETC_EINVAL || session.runtime.program != &other)
        fail("a wrong call changed the program", 0, 0);
    printf("refused\n");
}

static void put_word(uint8_t *to, uint32_t value)
{
    int i;

    for (i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

/* A slot as a runtime wrote it that saved state in the order of its places. */
static void make_old(uint32_t slot, uint32_t count, uint32_t size_bytes)
{
    static const uint8_t tag[8] = {'p', 'o', 'e', 't', 'c', ' ', 'c', '4'};
    uint8_t *data = card[session.checkpoint.first_block + slot * count];
    uint8_t *trailer = data + (size_t)count * BLOCK - POETC_CHECKPOINT_TRAILER, identity[4];
    uint32_t crc;

    put_word(identity, session.checkpoint.identity);
    crc = poetc_crc32(poetc_crc32(poetc_crc32(0, tag, 8), identity, 4), trailer, 28);
    put_word(trailer + 28, poetc_crc32(crc, data, size_bytes));
}

/* It is passed over, as its state would take the places of others. */
static void old_form(void)
{
    uint32_t count, size_bytes = 4u * POETC_CHECKPOINT_WORDS, i, k;

    memcpy(card, fresh_card, sizeof card);
    start();
    read_state(&states[0]);
    if (poetc_session_resume(&session) && session.runtime.run_count > 0)
        fail("a fresh card", 0, 0);
    for (k = 0; k < 4; k++)
        if (operate((int)k))
            fail("a step", (long)k, 0);
    count = poetc_checkpoint_blocks(session.model->train.program);
    for (i = 0; i < session.model->train.program->region_count; i++)
        size_bytes += session.model->train.program->regions[i].size_bytes;
    make_old(0, count, size_bytes);
    make_old(1, count, size_bytes);
    start();
    if (poetc_session_resume(&session) || session.runtime.run_count != 0)
        fail("the older runtime's checkpoint: step", (long)session.runtime.run_count, 0);
    printf("passed over\n");
}

int main(int argc, char **argv)
{
    FILE *image = fopen("store.img", "rb");

    if (image != NULL) {
        if (fread(fresh_card, 1, sizeof fresh_card, image) == 0)
            return 1;
        fclose(image);
    }
    model = *POETC_MODEL_DESCRIPTION;
    slots = argc > 2 ? (uint32_t)atoi(argv[2]) : 2u;
    if (strcmp(argv[1], "saves") == 0)
        cut_everywhere();
    else if (strcmp(argv[1], "unreadable") == 0)
        bad_blocks();
    else if (strcmp(argv[1], "stale") == 0)
        stale_pages();
    else if (strcmp(argv[1], "rollback") == 0)
        roll_back();
    else if (strcmp(argv[1], "format") == 0)
        format_everywhere();
    else
        old_form();
    return 0;
}
