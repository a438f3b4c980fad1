/* A plugin of QEMU (interface version 1, QEMU 5 to 8) that measures a run from outside the program:
 *
 *     -plugin counter.so,mark=ADDRESS,arena=LOW-HIGH,stack=LOW-HIGH,out=FILE[,cut=N]        (hexadecimal, half open)
 *
 * The file of `out` gets "instructions N", "arena N" and "stack N". The arena's number is the end of its highest byte
 * that was read or written, from LOW. The stack's goes from HIGH down to its lowest such byte. There is one line "mark
 * N" with the instructions so far each time the instruction at `mark` is reached. With `cut`, the power fails after N
 * instructions (at the next access to memory). The emulator ends there and then, with status 86.
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
extern unsigned qemu_plugin_mem_size_shift(memory_info info);

#define EXPORT __attribute__((visibility("default")))

EXPORT int qemu_plugin_version = 1;

static uint64_t instructions, mark, arena_low, arena_high, arena_top, stack_low, stack_high, stack_bottom = UINT64_MAX;
static uint64_t cut = UINT64_MAX;
static const char *out_path;
static uint64_t *marks;
static size_t mark_count, mark_room;

static void on_mark(unsigned cpu, void *data)
{
    (void)cpu;
    (void)data;
    if (mark_count == mark_room) {
        mark_room = 2 * mark_room + 1024;
        marks = realloc(marks, mark_room * sizeof *marks);
        if (marks == NULL)
            abort();
    }
    marks[mark_count++] = instructions;
}

static void on_memory(unsigned cpu, memory_info info, uint64_t address, void *data)
{
    uint64_t end = address + (UINT64_C(1) << qemu_plugin_mem_size_shift(info));

    (void)cpu;
    (void)data;
    if (instructions >= cut)
        _exit(POWER_CUT);
    if (address >= arena_low && address < arena_high && end > arena_top)
        arena_top = end;
    if (address >= stack_low && address < stack_high && address < stack_bottom)
        stack_bottom = address;
}

static void on_block(plugin_id id, struct qemu_plugin_tb *block)
{
    size_t i;

    (void)id;
    for (i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);

        if (qemu_plugin_insn_vaddr(instruction) == mark)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, NO_REGISTERS, NULL);
        qemu_plugin_register_vcpu_insn_exec_inline(instruction, ADD_U64, &instructions, 1);
        qemu_plugin_register_vcpu_mem_cb(instruction, on_memory, NO_REGISTERS, READ_AND_WRITE, NULL);
    }
}

static void at_exit(plugin_id id, void *data)
{
    FILE *out = fopen(out_path, "w");
    size_t i;

    (void)id;
    (void)data;
    if (out == NULL)
        return;
    fprintf(out, "instructions %" PRIu64 "\n", instructions);
    fprintf(out, "arena %" PRIu64 "\n", arena_top > arena_low ? arena_top - arena_low : 0);
    fprintf(out, "stack %" PRIu64 "\n", stack_bottom < stack_high ? stack_high - stack_bottom : 0);
    for (i = 0; i < mark_count; i++)
        fprintf(out, "mark %" PRIu64 "\n", marks[i]);
    fclose(out);
}

static void range(const char *text, uint64_t *from, uint64_t *to)
{
    char *rest;

    *from = strtoull(text, &rest, 16);
    *to = strtoull(rest + 1, NULL, 16);
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc, char **argv)
{
    int i;

    (void)info;
    for (i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');

        if (value == NULL)
            return -1;
        value++;
        if (strncmp(argv[i], "out=", 4) == 0)
            out_path = strdup(value);
        else if (strncmp(argv[i], "mark=", 5) == 0)
            mark = strtoull(value, NULL, 16);
        else if (strncmp(argv[i], "cut=", 4) == 0)
            cut = strtoull(value, NULL, 16);
        else if (strncmp(argv[i], "arena=", 6) == 0)
            range(value, &arena_low, &arena_high);
        else if (strncmp(argv[i], "stack=", 6) == 0)
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
