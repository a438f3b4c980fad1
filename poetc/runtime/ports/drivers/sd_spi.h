/* The SPI bus that a card hangs on; one file a controller. */
#ifndef POETC_SD_SPI_H
#define POETC_SD_SPI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void poetc_spi_open(void);
void poetc_spi_select(int selected); /* the card's chip select, active low on the wire */
uint8_t poetc_spi_transfer(uint8_t value);

#ifdef __cplusplus
}
#endif

#endif
