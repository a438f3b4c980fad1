/* The registers that poetc_cache.h touches, recorded: prints the address and the value of each write. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t levels, places[4096], values[4096], count;

static uint32_t *at(uint32_t address)
{
    static uint32_t read;

    if (address == 0xe000ed78u)
        return read = levels, &read;
    if (address == 0xe000ed80u)
        return read = 7u << 13 | 3u << 3, &read; /* 8 sets, 4 ways */
    places[count] = address;
    return &values[count++];
}

#define POETC_CACHE_REGISTER(address) (*at(address))
#define POETC_CACHE_BARRIER() ((void)0)
#include "poetc_cache.h"

int main(int argc, char **argv)
{
    uint32_t i;

    levels = (uint32_t)atoi(argv[2]);
    if (argc > 3 && strcmp(argv[1], "clean") == 0)
        poetc_cache_clean((const void *)(uintptr_t)strtoul(argv[3], NULL, 0), strtoul(argv[4], NULL, 0));
    else if (argc > 3)
        poetc_cache_drop((const void *)(uintptr_t)strtoul(argv[3], NULL, 0), strtoul(argv[4], NULL, 0));
    else
        poetc_cache_enable();
    for (i = 0; i < count; i++)
        printf("%x %x\n", (unsigned)places[i], (unsigned)values[i]);
    return 0;
}
