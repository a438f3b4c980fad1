/* CRCs of pieces of data as one of the whole, in whatever order the pieces come. */
#ifndef POETC_CRC_H
#define POETC_CRC_H

#include <stdint.h>

/* Polynomials over GF(2) modulo that of the CRC, bits reflected: bit 31 is 1. */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0, bit;

    for (bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1u ? b >> 1 ^ 0xedb88320u : b >> 1;
    }
    return product;
}

/* x^(8 count): a CRC times this is that of the same bytes with `count` bytes behind them. */
static uint32_t behind(uint32_t count)
{
    uint32_t result = 0x80000000u, power = 0x00800000u;

    for (; count > 0; count >>= 1) {
        if (count & 1u)
            result = times(result, power);
        power = times(power, power);
    }
    return result;
}

#endif
