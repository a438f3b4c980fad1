/* AArch64 without an operating system: one core, its floating point on, exceptions caught, variables set up, then main(). */
    .section .text.start, "ax"
    .globl _start
    .weak poetc_map_memory
_start:
    mrs x0, mpidr_el1
    and x0, x0, #3
    cbz x0, 1f
0:  wfi
    b 0b
1:  adr x2, vectors
    mrs x0, CurrentEL
    lsr x0, x0, #2
    cmp x0, #2
    b.hi 3f
    b.eq 2f
    mov x1, #(3 << 20)
    msr cpacr_el1, x1
    msr vbar_el1, x2
    b 4f
2:  mov x1, #0x33ff
    msr cptr_el2, x1
    msr vbar_el2, x2
    b 4f
3:  msr cptr_el3, xzr
    msr vbar_el3, x2
4:  isb
    ldr x1, =poetc_stack_top
    mov sp, x1
    ldr x0, =poetc_data_load
    ldr x1, =poetc_data
    ldr x2, =poetc_data_end
5:  cmp x1, x2
    b.hs 6f
    ldrb w3, [x0], #1
    strb w3, [x1], #1
    b 5b
6:  ldr x1, =poetc_bss
    ldr x2, =poetc_bss_end
7:  cmp x1, x2
    b.hs 8f
    strb wzr, [x1], #1
    b 7b
8:  ldr x0, =poetc_map_memory // the memory management unit, where the board turns it on
    cbz x0, 9f
    blr x0
9:  bl main
    bl poetc_port_stop

    .balign 2048
vectors:
    .rept 16
    .balign 128
    b trap
    .endr
trap:
    ldr x1, =poetc_stack_top
    mov sp, x1
    mrs x0, CurrentEL
    lsr x0, x0, #2
    cmp x0, #2
    b.hi 3f
    b.eq 2f
    mrs x0, esr_el1
    mrs x1, far_el1
    b poetc_trap
2:  mrs x0, esr_el2
    mrs x1, far_el2
    b poetc_trap
3:  mrs x0, esr_el3
    mrs x1, far_el3
    b poetc_trap
