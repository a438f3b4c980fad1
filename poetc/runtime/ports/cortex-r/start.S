/* Armv8-R in 32 bits: one core, at the level of an operating system, with its FPU. Then vectors, variables and main(). */
    .syntax unified
    .arm
    .section .text.start, "ax"
    .globl _start
_start:
    mrc p15, 0, r0, c0, c0, 5 /* MPIDR: the first core goes on */
    tst r0, #0xff
1:  wfine
    bne 1b
    mrs r0, cpsr
    and r1, r0, #0x1f
    cmp r1, #0x1a /* HYP, where a Cortex-R52 starts */
    bne 2f
    mov r1, #0
    mcr p15, 4, r1, c1, c1, 2 /* HCPTR: the FPU traps nowhere */
    mov r0, #0xd3 /* SVC, no interrupts */
    msr spsr_cxsf, r0
    ldr r0, =2f
    msr elr_hyp, r0
    eret
2:  ldr r0, =vectors
    mcr p15, 0, r0, c12, c0, 0 /* VBAR */
    mrc p15, 0, r0, c1, c0, 2 /* CPACR */
    orr r0, r0, #(0xf << 20)
    mcr p15, 0, r0, c1, c0, 2
    isb
    mov r0, #(1 << 30)
    vmsr fpexc, r0
    ldr sp, =poetc_stack_top
    ldr r0, =poetc_data_load
    ldr r1, =poetc_data
    ldr r2, =poetc_data_end
3:  cmp r1, r2
    ldrblo r3, [r0], #1
    strblo r3, [r1], #1
    blo 3b
    ldr r1, =poetc_bss
    ldr r2, =poetc_bss_end
    mov r3, #0
4:  cmp r1, r2
    strblo r3, [r1], #1
    blo 4b
    bl main
    bl poetc_port_stop

    .balign 32
vectors:
    b _start
    b trap_instruction /* undefined */
    b trap_instruction /* a call of an operating system */
    b trap_instruction /* prefetch abort */
    b trap_data
    b trap_instruction
    b trap_instruction
    b trap_instruction
trap_instruction:
    mrc p15, 0, r0, c5, c0, 1 /* IFSR */
    mov r1, lr
    b 5f
trap_data:
    mrc p15, 0, r0, c5, c0, 0 /* DFSR */
    mrc p15, 0, r1, c6, c0, 0 /* DFAR */
5:  cps #0x13
    ldr sp, =poetc_stack_top
    bl poetc_trap
    .ltorg
