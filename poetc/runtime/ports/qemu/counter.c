/* A plugin of QEMU (interface version 1, QEMU 5 to 8) that measures a run from outside the program:
 *
 *     -plugin counter.so,mark=ADDRESS,arena=LOW-HIGH,stack=LOW-HIGH,out=FILE[,cut=N][,work=ADDRESS,rest=LOW-HIGH...]
 *                        [,cycles=FILE]
 *
 * Numbers are hexadecimal, ranges half open.
 * The file of `out` gets "instructions N", "arena N" and "stack N". The arena's number is the end of its highest byte
 * that was read or written, from LOW. The stack's goes from HIGH down to its lowest such byte. There is one line "mark
 * N" with the instructions so far each time the instruction at `mark` is reached. With `cut`, the power fails after N
 * instructions (at the next access to memory). The emulator ends there and then, with status 86.
 *
 * With bank=LOW-HIGH for each part of an arena in several memories, the file gets a line "bank N" for each of
 * them, in their order. N is as for the arena.
 *
 * With `work`, several processors are counted, each from the function at this address until it is back in a range of
 * `rest`. So waiting does not count. There is one line "work PROCESSOR N" each time the function begins, N being the
 * processor's instructions so far. At the end there is one line "processor PROCESSOR N".
 *
 * With `cycles`, the file has a line "ADDRESS CYCLES TAKEN" for each instruction, in hexadecimal and sorted by address.
 * TAKEN is added where the block behind the instruction is not the next one. Each line "mark N" becomes "mark N
 * CYCLES", and there is one line "cycles N". One processor is counted.
 *
 * The interface is declared here, so that no header of QEMU's is needed.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t plugin_id;
typedef uint32_t memory_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;

enum { NO_REGISTERS = 0, READ_AND_WRITE = 3, ADD_U64 = 0, POWER_CUT = 86 };

typedef void (*instruction_callback)(unsigned cpu, void *data);
typedef void (*memory_callback)(unsigned cpu, memory_info info, uint64_t address, void *data);

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*callback)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_atexit_cb(plugin_id id, void (*callback)(plugin_id, void *), void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *instruction);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction, instruction_callback callback,
                                                   int flags, void *data);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *instruction, int operation,
                                                       void *counter, uint64_t value);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *instruction, memory_callback callback, int flags,
                                             int access, void *data);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, instruction_callback callback, int flags,
                                                 void *data);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *instruction);
extern unsigned qemu_plugin_mem_size_shift(memory_info info);

#define EXPORT __attribute__((visibility("default")))

EXPORT int qemu_plugin_version = 1;

enum { PROCESSORS = 16, RESTS = 16, BANKS = 16 };
enum { ELSEWHERE, AT_WORK, AT_REST }; /* a block's place; its instructions times 4 come on top */

typedef struct numbers {
    uint64_t *all;
    size_t count, room;
} numbers;

/* Each written by the thread of one processor. */
static struct {
    uint64_t arena_top, stack_bottom, instructions;
    int works;
    numbers begins;
} processors[PROCESSORS];

static uint64_t instructions, mark, arena_low, arena_high, stack_low, stack_high;
static struct {
    uint64_t low, high, top;
} banks[BANKS]; /* the parts of an arena in several memories: one processor */
static size_t bank_count;
static uint64_t work, rest_low[RESTS], rest_high[RESTS];
static size_t rest_count;
static uint64_t cut = UINT64_MAX;
static const char *out_path;
static numbers marks;

typedef struct cost {
    uint64_t address;
    unsigned cycles, taken;
} cost;

static struct {
    cost *all;
    size_t count;
    uint64_t total, behind; /* the address behind the last block */
    unsigned taken;         /* of its last instruction */
    numbers marks;
} costs;

typedef struct block_end {
    uint64_t start, behind;
    unsigned taken;
} block_end;

static void add(numbers *numbers, uint64_t number)
{
    if (numbers->count == numbers->room) {
        numbers->room = 2 * numbers->room + 1024;
        numbers->all = realloc(numbers->all, numbers->room * sizeof *numbers->all);
        if (numbers->all == NULL)
            abort();
    }
    numbers->all[numbers->count++] = number;
}

static void on_mark(unsigned cpu, void *data)
{
    (void)cpu;
    (void)data;
    add(&marks, instructions);
    add(&costs.marks, costs.total);
}

/* NULL for an instruction without a cost. */
static const cost *cost_of(uint64_t address)
{
    size_t low = 0, high = costs.count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (costs.all[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < costs.count && costs.all[low].address == address ? &costs.all[low] : NULL;
}

static void on_timed_block(unsigned cpu, void *data)
{
    const block_end *block = data;

    (void)cpu;
    if (block->start != costs.behind)
        costs.total += costs.taken;
    costs.behind = block->behind;
    costs.taken = block->taken;
}

static void time_block(struct qemu_plugin_tb *block)
{
    const size_t n = qemu_plugin_tb_n_insns(block);
    struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(block, n - 1);
    const cost *found = cost_of(qemu_plugin_insn_vaddr(last));
    block_end *end = malloc(sizeof *end); /* as long as the emulator runs */

    if (end == NULL)
        abort();
    end->start = qemu_plugin_tb_vaddr(block);
    end->behind = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last);
    end->taken = found ? found->taken : 0;
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_timed_block, NO_REGISTERS, end);
}

static void on_part(unsigned cpu, void *data)
{
    const uintptr_t told = (uintptr_t)data;

    cpu %= PROCESSORS;
    if ((told & 3u) == AT_WORK)
        add(&processors[cpu].begins, processors[cpu].instructions);
    if ((told & 3u) != ELSEWHERE)
        processors[cpu].works = (told & 3u) == AT_WORK;
    if (processors[cpu].works)
        processors[cpu].instructions += told >> 2;
}

static int place_of(uint64_t address)
{
    size_t i;

    for (i = 0; i < rest_count; i++) {
        if (address >= rest_low[i] && address < rest_high[i])
            return AT_REST;
    }
    return address == work ? AT_WORK : ELSEWHERE;
}

static void on_memory(unsigned cpu, memory_info info, uint64_t address, void *data)
{
    uint64_t end = address + (UINT64_C(1) << qemu_plugin_mem_size_shift(info));
    size_t i;

    (void)data;
    if (instructions >= cut)
        _exit(POWER_CUT);
    cpu %= PROCESSORS;
    if (address >= arena_low && address < arena_high && end > processors[cpu].arena_top)
        processors[cpu].arena_top = end;
    for (i = 0; i < bank_count; i++) {
        if (address >= banks[i].low && address < banks[i].high && end > banks[i].top)
            banks[i].top = end;
    }
    if (address >= stack_low && address < stack_high && address < processors[cpu].stack_bottom)
        processors[cpu].stack_bottom = address;
}

static void on_block(plugin_id id, struct qemu_plugin_tb *block)
{
    size_t i;

    (void)id;
    if (work != 0) {
        const uintptr_t place = (uintptr_t)place_of(qemu_plugin_tb_vaddr(block));

        qemu_plugin_register_vcpu_tb_exec_cb(block, on_part, NO_REGISTERS,
                                             (void *)(qemu_plugin_tb_n_insns(block) << 2 | place));
    }
    if (costs.count > 0)
        time_block(block);
    for (i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        const cost *found = cost_of(qemu_plugin_insn_vaddr(instruction));

        if (qemu_plugin_insn_vaddr(instruction) == mark)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, NO_REGISTERS, NULL);
        qemu_plugin_register_vcpu_insn_exec_inline(instruction, ADD_U64, &instructions, 1);
        if (found)
            qemu_plugin_register_vcpu_insn_exec_inline(instruction, ADD_U64, &costs.total, found->cycles);
        qemu_plugin_register_vcpu_mem_cb(instruction, on_memory, NO_REGISTERS, READ_AND_WRITE, NULL);
    }
}

static void at_exit(plugin_id id, void *data)
{
    FILE *out = fopen(out_path, "w");
    uint64_t arena_top = 0, stack_bottom = UINT64_MAX;
    size_t i, cpu;

    (void)id;
    (void)data;
    if (out == NULL)
        return;
    for (cpu = 0; cpu < PROCESSORS; cpu++) {
        arena_top = processors[cpu].arena_top > arena_top ? processors[cpu].arena_top : arena_top;
        stack_bottom = processors[cpu].stack_bottom < stack_bottom ? processors[cpu].stack_bottom : stack_bottom;
    }
    fprintf(out, "instructions %" PRIu64 "\n", instructions);
    fprintf(out, "arena %" PRIu64 "\n", arena_top > arena_low ? arena_top - arena_low : 0);
    for (i = 0; i < bank_count; i++)
        fprintf(out, "bank %" PRIu64 "\n", banks[i].top > banks[i].low ? banks[i].top - banks[i].low : 0);
    fprintf(out, "stack %" PRIu64 "\n", stack_bottom < stack_high ? stack_high - stack_bottom : 0);
    for (i = 0; i < marks.count && work == 0; i++)
        fprintf(out, "mark %" PRIu64 " %" PRIu64 "\n", marks.all[i], costs.marks.all[i]);
    if (costs.count > 0)
        fprintf(out, "cycles %" PRIu64 "\n", costs.total);
    for (cpu = 0; cpu < PROCESSORS && work != 0; cpu++) {
        for (i = 0; i < processors[cpu].begins.count; i++)
            fprintf(out, "work %u %" PRIu64 "\n", (unsigned)cpu, processors[cpu].begins.all[i]);
        if (processors[cpu].begins.count > 0)
            fprintf(out, "processor %u %" PRIu64 "\n", (unsigned)cpu, processors[cpu].instructions);
    }
    fclose(out);
}

static void range(const char *text, uint64_t *from, uint64_t *to)
{
    char *rest;

    *from = strtoull(text, &rest, 16);
    *to = strtoull(rest + 1, NULL, 16);
}

/* False where the file cannot be read. */
static bool read_costs(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t room = 0;
    cost next;

    if (file == NULL)
        return false;
    while (fscanf(file, "%" SCNx64 " %x %x", &next.address, &next.cycles, &next.taken) == 3) {
        if (costs.count == room) {
            room = 2 * room + 1024;
            costs.all = realloc(costs.all, room * sizeof *costs.all);
            if (costs.all == NULL)
                abort();
        }
        costs.all[costs.count++] = next;
    }
    fclose(file);
    return true;
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc, char **argv)
{
    int i;

    (void)info;
    for (i = 0; i < PROCESSORS; i++)
        processors[i].stack_bottom = UINT64_MAX;
    for (i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');

        if (value == NULL)
            return -1;
        value++;
        if (strncmp(argv[i], "out=", 4) == 0)
            out_path = strdup(value);
        else if (strncmp(argv[i], "mark=", 5) == 0)
            mark = strtoull(value, NULL, 16);
        else if (strncmp(argv[i], "work=", 5) == 0)
            work = strtoull(value, NULL, 16);
        else if (strncmp(argv[i], "rest=", 5) == 0 && rest_count < RESTS) {
            range(value, &rest_low[rest_count], &rest_high[rest_count]);
            rest_count++;
        } else if (strncmp(argv[i], "cycles=", 7) == 0) {
            if (!read_costs(value))
                return -1;
        } else if (strncmp(argv[i], "cut=", 4) == 0)
            cut = strtoull(value, NULL, 16);
        else if (strncmp(argv[i], "arena=", 6) == 0)
            range(value, &arena_low, &arena_high);
        else if (strncmp(argv[i], "bank=", 5) == 0 && bank_count < BANKS) {
            range(value, &banks[bank_count].low, &banks[bank_count].high);
            bank_count++;
        } else if (strncmp(argv[i], "stack=", 6) == 0)
            range(value, &stack_low, &stack_high);
        else
            return -1;
    }
    if (out_path == NULL)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}
