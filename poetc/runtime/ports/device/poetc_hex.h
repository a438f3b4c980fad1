/* A number of type POETC_HEX with all its digits in the log; included once by a file of a port. */
#ifndef POETC_HEX_H
#define POETC_HEX_H

#include "poetc_port.h"

#ifndef POETC_HEX
#define POETC_HEX uint32_t
#endif

static void log_hex(const char *label, POETC_HEX value)
{
    enum { DIGITS = 2 * sizeof value };
    char text[DIGITS + 1];
    unsigned i;

    for (i = 0; i < DIGITS; i++)
        text[i] = "0123456789abcdef"[(value >> (4u * DIGITS - 4u - 4u * i)) & 15u];
    text[DIGITS] = 0;
    poetc_port_log(label);
    poetc_port_log(text);
}

#endif
