/* The synchronous serial port of the LM3S6965 evaluation board (an Arm PL022). The card is selected by pin D0, low;
 * high selects the display on the same bus. */
#include "sd_spi.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define SSI 0x40008000u
#define SSI_CR0 REGISTER(SSI + 0x00u)
#define SSI_CR1 REGISTER(SSI + 0x04u)
#define SSI_DR REGISTER(SSI + 0x08u)
#define SSI_SR REGISTER(SSI + 0x0cu)
#define SSI_CPSR REGISTER(SSI + 0x10u)
#define CLOCKS_SERIAL REGISTER(0x400fe104u)
#define CLOCKS_PORTS REGISTER(0x400fe108u)
#define PORT_A 0x40004000u
#define PORT_D 0x40007000u
#define PORT_D_PIN_0 REGISTER(PORT_D + (1u << 2)) /* the address selects the pin */
#define DIRECTION 0x400u
#define ALTERNATE 0x420u
#define DIGITAL 0x51cu

enum { TRANSMIT_HAS_ROOM = 1u << 1, RECEIVE_HAS_DATA = 1u << 2, PORT_A_SERIAL_PINS = 1u << 2 | 1u << 4 | 1u << 5 };

void poetc_spi_select(int selected)
{
    PORT_D_PIN_0 = selected ? 0u : 1u;
}

void poetc_spi_open(void)
{
    CLOCKS_SERIAL |= 1u << 4;
    CLOCKS_PORTS |= 1u << 0 | 1u << 3;
    REGISTER(PORT_D + DIRECTION) |= 1u;
    REGISTER(PORT_D + DIGITAL) |= 1u;
    poetc_spi_select(0);
    REGISTER(PORT_A + ALTERNATE) |= PORT_A_SERIAL_PINS;
    REGISTER(PORT_A + DIGITAL) |= PORT_A_SERIAL_PINS;
    SSI_CR1 = 0;
    SSI_CPSR = 2;
    SSI_CR0 = 7; /* 8 bits, SPI mode 0 */
    SSI_CR1 = 2;
    while (SSI_SR & RECEIVE_HAS_DATA)
        (void)SSI_DR;
}

uint8_t poetc_spi_transfer(uint8_t value)
{
    while (!(SSI_SR & TRANSMIT_HAS_ROOM)) {
    }
    SSI_DR = value;
    while (!(SSI_SR & RECEIVE_HAS_DATA)) {
    }
    return (uint8_t)SSI_DR;
}
