/* Semihosting: files, console and exit of the debugger or emulator that a board hangs on. */
#ifndef POETC_SEMIHOSTING_H
#define POETC_SEMIHOSTING_H

#include <stdint.h>

#include "poetc.h"

enum {
    SEMI_OPEN = 0x01,
    SEMI_CLOSE = 0x02,
    SEMI_WRITE0 = 0x04,
    SEMI_WRITE = 0x05,
    SEMI_READ = 0x06,
    SEMI_SEEK = 0x0a,
    SEMI_FLEN = 0x0c,
    SEMI_CLOCK = 0x10,
    SEMI_EXIT_EXTENDED = 0x20
};
enum { SEMI_READ_BINARY = 1, SEMI_UPDATE_BINARY = 3, SEMI_CREATE_BINARY = 7 }; /* rb, r+b, w+b */

/* One call; `block` points to its arguments, each as wide as a pointer. */
static inline intptr_t semihosting(intptr_t operation, const void *block)
{
#if defined(__aarch64__)
    register intptr_t result __asm__("x0") = operation;
    register const void *arguments __asm__("x1") = block;
    __asm__ volatile("hlt #0xf000" : "+r"(result) : "r"(arguments) : "memory");
#else
    register intptr_t result __asm__("r0") = operation;
    register const void *arguments __asm__("r1") = block;
#if defined(__ARM_ARCH_8R__) && defined(__thumb__)
    __asm__ volatile("hlt #0x3c" : "+r"(result) : "r"(arguments) : "memory");
#else
    __asm__ volatile("bkpt 0xab" : "+r"(result) : "r"(arguments) : "memory");
#endif
#endif
    return result;
}

#endif
