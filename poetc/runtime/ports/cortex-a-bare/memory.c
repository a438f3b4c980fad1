/*
 * The functions that compilers expect of every environment.
 *
 * From -O2 on GCC replaces loops that copy or fill by calls of memcpy, memmove and memset. Here these functions would
 * call themselves without end, so this file needs -fno-tree-loop-distribute-patterns, which the target's flags have.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    uint8_t *t = to;
    const uint8_t *f = from;

    if ((((uintptr_t)t | (uintptr_t)f) & 7u) == 0) {
        for (; size >= 8u; size -= 8u, t += 8, f += 8)
            *(uint64_t *)(void *)t = *(const uint64_t *)(const void *)f;
    }
    while (size-- > 0)
        *t++ = *f++;
    return to;
}

void *memmove(void *to, const void *from, size_t size)
{
    uint8_t *t = to;
    const uint8_t *f = from;

    if (t <= f)
        while (size-- > 0)
            *t++ = *f++;
    else
        while (size-- > 0)
            t[size] = f[size];
    return to;
}

void *memset(void *to, int value, size_t size)
{
    uint8_t *t = to;

    while (size-- > 0)
        *t++ = (uint8_t)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t size)
{
    const uint8_t *x = a, *y = b;

    for (; size > 0; size--, x++, y++)
        if (*x != *y)
            return *x < *y ? -1 : 1;
    return 0;
}
