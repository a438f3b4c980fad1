/* The end of an exception. */
#include "poetc_port.h"

void poetc_trap(uint64_t syndrome, uint64_t address);

static void log_hex(const char *label, uint64_t value)
{
    char text[17];
    unsigned i;

    for (i = 0; i < 16; i++)
        text[i] = "0123456789abcdef"[(value >> (60u - 4u * i)) & 15u];
    text[16] = 0;
    poetc_port_log(label);
    poetc_port_log(text);
}

void poetc_trap(uint64_t syndrome, uint64_t address)
{
    log_hex("fault esr ", syndrome);
    log_hex(" address ", address);
    poetc_port_log("\n");
    poetc_port_stop(POETC_PORT_FAULT);
}
