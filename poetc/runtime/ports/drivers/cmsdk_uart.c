/* The UART of Arm's Cortex-M System Design Kit, as MPS2 boards have it (Arm DDI 0479D, chapter 4.3). */
#include "poetc_serial.h"

#define REGISTER(offset) (*(volatile uint32_t *)(uintptr_t)(0x40004000u + (offset)))
#define DATA REGISTER(0x0u)
#define STATE REGISTER(0x4u) /* bit 0: the transmitter is full; bit 1: there is a byte */
#define CTRL REGISTER(0x8u)  /* bit 0: transmit; bit 1: receive */
#define BAUDDIV REGISTER(0x10u)

enum { TRANSMITTER_FULL = 1u << 0, BYTE_THERE = 1u << 1 };

void poetc_serial_open(void)
{
    BAUDDIV = 217; /* 115,200 baud at 25 MHz */
    CTRL = 3;
}

uint8_t poetc_serial_get(void)
{
    while ((STATE & BYTE_THERE) == 0)
        ;
    return (uint8_t)DATA;
}

void poetc_serial_put(uint8_t byte)
{
    while (STATE & TRANSMITTER_FULL)
        ;
    DATA = byte;
}
