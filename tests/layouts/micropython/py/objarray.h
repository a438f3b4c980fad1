/* As much of MicroPython's py/objarray.h as a user C module needs to compile. */
mp_obj_t mp_obj_new_memoryview(unsigned char typecode, size_t count, void *items);
