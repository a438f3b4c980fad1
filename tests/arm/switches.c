/* Takes every switch of a bundle on a board. The memory that a switch gives back is fenced off at that moment: by the
 * MPU to 32 bytes or 1/8 of a region, by the MMU to a page.
 *
 * switches.h: TAKES, one (plan, plan that is asked for, step) for each switch, and GIVEN_BACK, bytes that are in use
 * and fenced off all the same. The log has the bits of an undisturbed
 * step, then one line for each switch with other bits, then the number of switches that were taken.
 */
#include "model.h"
#include "poetc_hex.h"
#include "poetc_port.h"
#include "poetc_state.h"
#include "switches.h"

#include <string.h>

uint8_t poetc_arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(32), section(".bss.poetc_arena")));
extern const uint8_t poetc_ram[], poetc_ram_end[]; /* of the linker script */
static poetc_elastic training;
static uint32_t now;
static int is_asked;

static void log_line(const char *label, uint32_t value)
{
    log_hex(label, value);
    poetc_port_log("\n");
}

#ifdef __aarch64__
enum { ENTRIES = 512, PAGE_BYTES = 4096, TABLES = 4 };
enum { BLOCK = 1, TABLE_OR_PAGE = 3, DEVICE = 1 << 2, SHARED = 3 << 8, ACCESSED = 1 << 10 };

static uint64_t gibibytes[ENTRIES] __attribute__((aligned(4096)));
static uint64_t blocks[ENTRIES] __attribute__((aligned(4096)));
static uint64_t pages[TABLES * ENTRIES] __attribute__((aligned(4096))); /* of 2 MiB each */

/* No page of RAM behind `end` can be accessed. The first GiB is of peripherals, the second one has code and RAM. */
static void guard(uintptr_t end)
{
    const uint64_t flags = SHARED | ACCESSED;
    const uintptr_t base = (uintptr_t)1 << 30;
    uint64_t system;
    uintptr_t i;

    POETC_PORT_ASSERT((uintptr_t)poetc_ram_end <= base + sizeof pages / sizeof pages[0] * PAGE_BYTES);
    gibibytes[0] = flags | DEVICE | BLOCK;
    gibibytes[1] = (uintptr_t)blocks | TABLE_OR_PAGE;
    for (i = 0; i < TABLES; i++)
        blocks[i] = (uintptr_t)(pages + i * ENTRIES) | TABLE_OR_PAGE;
    for (i = 0; i < TABLES * ENTRIES; i++)
        pages[i] = base + i * PAGE_BYTES < end ? (base + i * PAGE_BYTES) | flags | TABLE_OR_PAGE : 0u;
    __asm__ volatile("msr mair_el1, %0" : : "r"((uint64_t)0x0044));
    __asm__ volatile("msr tcr_el1, %0" : : "r"((uint64_t)(32u | 1u << 23))); /* 32 bits of address, one table */
    __asm__ volatile("msr ttbr0_el1, %0" : : "r"((uint64_t)(uintptr_t)gibibytes));
    __asm__ volatile("dsb sy\n isb\n tlbi vmalle1\n dsb sy\n isb" : : : "memory");
    __asm__ volatile("mrs %0, sctlr_el1" : "=r"(system));
    __asm__ volatile("msr sctlr_el1, %0\n isb" : : "r"(system | 1u) : "memory");
}
#else
#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define MPU_CTRL REGISTER(0xe000ed94u)
#define MPU_RNR REGISTER(0xe000ed98u)
#define MPU_RBAR REGISTER(0xe000ed9cu)
#define MPU_RASR REGISTER(0xe000eda0u)

/* Nothing but code, peripherals and RAM up to `end` can be accessed. The start-up code does so for the whole budget. */
static void guard(uintptr_t end)
{
    enum { READ_WRITE = 1u << 28 | 3u << 24 | 1u << 17 };
    uintptr_t base = (uintptr_t)poetc_ram;
    uint32_t left = (uint32_t)(end - base), log2 = 8, region;

    MPU_CTRL = 0;
    while ((1u << log2) < left)
        log2++;
    for (region = 2; region < 8u; region++) {
        uint32_t eighth = 1u << (log2 - 3u), count = left / eighth;
        uint32_t skipped = (uint32_t)(base & ((1u << log2) - 1u)) / eighth;
        uint32_t eighths = left < 32u ? 0 : ((1u << count) - 1u) << skipped;

        POETC_PORT_ASSERT(skipped + count <= 8u);
        MPU_RNR = region;
        MPU_RBAR = (uint32_t)(base & ~(uintptr_t)((1u << log2) - 1u));
        MPU_RASR = eighths == 0 ? 0 : READ_WRITE | (0xffu & ~eighths) << 8 | (log2 - 1u) << 1 | 1u;
        base += (uintptr_t)count * eighth;
        left -= count * eighth;
        log2 = log2 > 11u ? log2 - 3u : 8u;
    }
    MPU_CTRL = 1;
    __asm__ volatile("dsb\n isb" : : : "memory");
}
#endif

static void given_back(void *context, uint32_t arena_bytes)
{
    (void)context;
    guard((uintptr_t)poetc_arena + ((arena_bytes - GIVEN_BACK + 31u) & ~31u));
}

static int before_step(void *context, const poetc_runtime *runtime, uint32_t index)
{
    (void)context;
    (void)runtime;
    if (now < sizeof TAKES / sizeof TAKES[0] && !is_asked && training.plan == TAKES[now].plan &&
        index + 1u == TAKES[now].at) {
        const poetc_program *wanted = digits_bundle.plans[TAKES[now].to];

        is_asked = 1;
        guard((uintptr_t)poetc_ram_end); /* asking for more takes the memory back */
        return poetc_request_budget(&training, wanted->arena_bytes);
    }
    return 0;
}

static int step(uint32_t plan, uint32_t *crc)
{
    const poetc_program *program = digits_bundle.plans[plan];
    poetc_config config;
    uint32_t i, k;
    union {
        float value;
        uint32_t bits;
    } loss;

    guard((uintptr_t)poetc_ram_end);
    memset(poetc_arena, 0x55, sizeof poetc_arena);
    memset(&config, 0, sizeof config);
    config.arena = poetc_arena;
    config.arena_bytes = sizeof poetc_arena;
    config.observer = before_step;
    is_asked = 0;
    if (poetc_bundle_init(&training, &digits_bundle, &config, digits_state, program->arena_bytes))
        return 1;
    training.switched = given_back;
    given_back(NULL, program->arena_bytes);
    for (i = 0; i < DIGITS_TRAIN_IN_IMAGE_ELEMENTS; i++)
        digits_train_in_image(poetc_arena)[i] = (float)(int32_t)(i % 5) - 2.0f;
    for (i = 0; i < DIGITS_TRAIN_IN_TARGET_ELEMENTS; i++)
        digits_train_in_target(poetc_arena)[i] = (int32_t)(i % 3);
    if (poetc_bundle_run(&training))
        return 2;
    loss.value = poetc_loss(&training.runtime);
    *crc = poetc_crc32(0, &loss.bits, sizeof loss.bits);
    for (k = 0; k < POETC_MODEL_REGION_COUNT; k++)
        *crc = poetc_crc32(*crc, poetc_arena + POETC_MODEL_REGIONS[k].place, POETC_MODEL_REGIONS[k].size_bytes);
    return 0;
}

int main(void)
{
    uint32_t expected, found = 0, taken = 0;

    now = sizeof TAKES / sizeof TAKES[0];
    if (step(0, &expected))
        return 1;
    log_line("crc ", expected);
    for (now = 0; now < sizeof TAKES / sizeof TAKES[0]; now++) {
        if (step(TAKES[now].plan, &found))
            return 2;
        taken += training.switch_count;
        if (found != expected)
            log_line("wrong ", now);
    }
    log_line("taken ", taken);
    return 0;
}
