/* The first UART of a Stellaris: a PL011 (Arm DDI 0183G), which its clock must reach (Stellaris LM3S6965, RCGC1). */
#include "poetc_serial.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define RCGC1 REGISTER(0x400fe104u)
#define DATA REGISTER(0x4000c000u)
#define FLAGS REGISTER(0x4000c018u)
#define BAUD_WHOLE REGISTER(0x4000c024u)
#define BAUD_FRACTION REGISTER(0x4000c028u)
#define LINE REGISTER(0x4000c02cu)
#define CONTROL REGISTER(0x4000c030u)

enum { NOTHING_RECEIVED = 1u << 4, TRANSMITTER_FULL = 1u << 5 };

void poetc_serial_open(void)
{
    RCGC1 |= 1u;
    BAUD_WHOLE = 6; /* 115,200 baud at 12 MHz */
    BAUD_FRACTION = 33;
    LINE = 0x70;     /* 8 bits, with buffers */
    CONTROL = 0x301; /* on, both ways */
}

uint8_t poetc_serial_get(void)
{
    while (FLAGS & NOTHING_RECEIVED)
        ;
    return (uint8_t)DATA;
}

void poetc_serial_put(uint8_t byte)
{
    while (FLAGS & TRANSMITTER_FULL)
        ;
    DATA = byte;
}
