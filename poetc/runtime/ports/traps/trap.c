/* The end of an exception: its syndrome and its address, in registers of the core's width. */
#define POETC_HEX uintptr_t
#include "poetc_hex.h"

#ifdef __aarch64__
#define SYNDROME "fault esr "
#else
#define SYNDROME "fault fsr "
#endif

void poetc_trap(uintptr_t syndrome, uintptr_t address);

void poetc_trap(uintptr_t syndrome, uintptr_t address)
{
    log_hex(SYNDROME, syndrome);
    log_hex(" address ", address);
    poetc_port_log("\n");
    poetc_port_stop(POETC_PORT_FAULT);
}
