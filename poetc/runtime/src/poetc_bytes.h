/* Numbers as pages, checkpoints and streams of state hold them, and codes of drivers as functions return them. */
#ifndef POETC_BYTES_H
#define POETC_BYTES_H

#include "poetc.h"

#ifdef __GNUC__
#define POETC_MAY_BE_UNUSED __attribute__((unused))
#else
#define POETC_MAY_BE_UNUSED
#endif

/* Little-endian, wherever it lies. */
POETC_MAY_BE_UNUSED static void put_u32(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    to[2] = (uint8_t)(value >> 16);
    to[3] = (uint8_t)(value >> 24);
}

POETC_MAY_BE_UNUSED static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

/* A driver's code, or POETC_EIO for a failure that it gave no negative code for. */
POETC_MAY_BE_UNUSED static int driver_code(int code)
{
    return code > 0 ? POETC_EIO : code;
}

#endif
