/* As much of MicroPython's py/runtime.h as a user C module needs to compile: types, macros and declarations. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *mp_obj_t;
typedef const void *mp_const_obj_t;
typedef double mp_float_t;
typedef struct {
    const void *type;
} mp_obj_base_t;
typedef struct {
    void *buf;
    size_t len;
    int typecode;
} mp_buffer_info_t;
typedef struct {
    mp_const_obj_t key, value;
} mp_rom_map_elem_t;
typedef struct {
    const mp_rom_map_elem_t *table;
} mp_obj_dict_t;
typedef struct {
    mp_obj_base_t base;
    mp_obj_dict_t *globals;
} mp_obj_module_t;
typedef struct {
    char *buf;
    size_t len;
} vstr_t;
typedef struct {
    const void *function;
    size_t least, most;
} mp_function_t;

extern const mp_obj_base_t mp_type_module, mp_type_ValueError;
extern const mp_obj_t mp_const_none;
#define MICROPY_PY_BUILTINS_FLOAT 1
#define MP_BUFFER_READ 1
#define MP_ERROR_TEXT(text) text
#define MP_ROM_QSTR(name) (#name)
#define MP_ROM_PTR(pointer) (pointer)
#define MP_DEFINE_CONST_FUN_OBJ_0(object, f) const mp_function_t object = {(const void *)(size_t)(f), 0, 0}
#define MP_DEFINE_CONST_FUN_OBJ_1(object, f) const mp_function_t object = {(const void *)(size_t)(f), 1, 1}
#define MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(object, a, b, f) const mp_function_t object = {(const void *)(f), a, b}
#define MP_DEFINE_CONST_DICT(object, entries) const mp_obj_dict_t object = {entries}
#define MP_REGISTER_MODULE(name, object) extern const mp_obj_module_t object
#define m_new(type, count) ((type *)m_malloc(sizeof(type) * (count)))

void *m_malloc(size_t bytes);
void mp_get_buffer_raise(mp_obj_t object, mp_buffer_info_t *info, unsigned flags);
__attribute__((noreturn)) void mp_raise_ValueError(const char *text);
__attribute__((noreturn)) void mp_raise_OSError(int code);
__attribute__((noreturn)) void mp_raise_msg_varg(const mp_obj_base_t *type, const char *text, ...);
mp_obj_t mp_obj_new_float(mp_float_t value);
mp_float_t mp_obj_get_float(mp_obj_t object);
mp_obj_t mp_obj_new_int_from_uint(size_t value);
mp_obj_t mp_obj_new_tuple(size_t count, const mp_obj_t *items);
mp_obj_t mp_obj_new_bytes_from_vstr(vstr_t *text);
void vstr_init_len(vstr_t *text, size_t bytes);
