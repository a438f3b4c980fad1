/* The end of an exception. */
#include "poetc_port.h"

void poetc_trap(uint32_t syndrome, uint32_t address);

static void log_hex(const char *label, uint32_t value)
{
    char text[9];
    unsigned i;

    for (i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[(value >> (28u - 4u * i)) & 15u];
    text[8] = 0;
    poetc_port_log(label);
    poetc_port_log(text);
}

void poetc_trap(uint32_t syndrome, uint32_t address)
{
    log_hex("fault fsr ", syndrome);
    log_hex(" address ", address);
    poetc_port_log("\n");
    poetc_port_stop(POETC_PORT_FAULT);
}
