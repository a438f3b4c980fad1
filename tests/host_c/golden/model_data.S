/* The initial state and the constants, read-only. */
    .section .rodata.poetc, "a", %progbits
    .balign 16
    .global tiny_state
    .type tiny_state, %object
tiny_state:
    .incbin "state.bin"
    .size tiny_state, . - tiny_state
    .section .note.GNU-stack, "", %progbits
