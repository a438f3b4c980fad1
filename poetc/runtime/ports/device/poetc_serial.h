/* The serial line of a board, byte by byte. Both functions wait. */
#ifndef POETC_SERIAL_H
#define POETC_SERIAL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void poetc_serial_open(void);
uint8_t poetc_serial_get(void);
void poetc_serial_put(uint8_t byte);

#ifdef __cplusplus
}
#endif

#endif
