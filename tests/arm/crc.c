/* Checksums of every length below LENGTHS and a longer one, from every alignment, continued from the length: a line
 * each. */
#include "poetc.h"

#include <stdio.h>

enum { ALIGNMENTS = 17, LENGTHS = 200, LONGEST = 983 };

int main(void)
{
    static uint8_t data[ALIGNMENTS + LONGEST] __attribute__((aligned(16)));
    uint32_t begin, size, random = 1;

    for (begin = 0; begin < sizeof data; begin++) {
        random = random * 1664525u + 1013904223u;
        data[begin] = (uint8_t)(random >> 24);
    }
    for (begin = 0; begin < ALIGNMENTS; begin++)
        for (size = 0; size <= LENGTHS; size++) {
            const uint32_t length = size < LENGTHS ? size : LONGEST;

            printf("%08lx\n", (unsigned long)poetc_crc32(length, data + begin, length));
        }
    return 0;
}
