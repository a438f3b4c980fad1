/* The four functions that compilers expect of every environment.
 *
 * Sixteen bytes and more are moved as vectors of bytes, which may lie anywhere. Elements of a byte need no alignment,
 * not even before the memory management unit is on. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* From the first byte on; all bytes of a round are read before any is written. */
static void copy_up(uint8_t *t, const uint8_t *f, size_t size)
{
    for (; size >= 64u; size -= 64u)
        __asm__ volatile("ld1 {v0.16b-v3.16b}, [%1], #64\n\tst1 {v0.16b-v3.16b}, [%0], #64"
                         : "+&r"(t), "+&r"(f)
                         :
                         : "v0", "v1", "v2", "v3", "memory");
    for (; size >= 16u; size -= 16u)
        __asm__ volatile("ld1 {v0.16b}, [%1], #16\n\tst1 {v0.16b}, [%0], #16" : "+&r"(t), "+&r"(f) : : "v0", "memory");
    while (size-- > 0)
        *t++ = *f++;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    copy_up(to, from, size);
    return to;
}

void *memmove(void *to, const void *from, size_t size)
{
    uint8_t *t = to;
    const uint8_t *f = from;

    if (t <= f)
        copy_up(t, f, size);
    else {
        for (; size >= 16u; size -= 16u)
            __asm__ volatile("ld1 {v0.16b}, [%1]\n\tst1 {v0.16b}, [%0]"
                             :
                             : "r"(t + size - 16), "r"(f + size - 16)
                             : "v0", "memory");
        while (size-- > 0)
            t[size] = f[size];
    }
    return to;
}

void *memset(void *to, int value, size_t size)
{
    uint8_t *t = to;

    for (; size >= 64u; size -= 64u)
        __asm__ volatile("dup v0.16b, %w1\n\tmov v1.16b, v0.16b\n\tmov v2.16b, v0.16b\n\tmov v3.16b, v0.16b\n\t"
                         "st1 {v0.16b-v3.16b}, [%0], #64"
                         : "+&r"(t)
                         : "r"(value)
                         : "v0", "v1", "v2", "v3", "memory");
    for (; size >= 16u; size -= 16u)
        __asm__ volatile("dup v0.16b, %w1\n\tst1 {v0.16b}, [%0], #16" : "+&r"(t) : "r"(value) : "v0", "memory");
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
