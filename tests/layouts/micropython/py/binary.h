/* As much of MicroPython's py/binary.h as a user C module needs to compile. */
#define BYTEARRAY_TYPECODE 1
size_t mp_binary_get_size(char kind, char typecode, size_t *alignment);
