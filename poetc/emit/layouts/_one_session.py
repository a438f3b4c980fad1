"""A session of C for languages that cannot hold its structures: functions of plain values around a static one."""

from __future__ import annotations

from collections.abc import Iterator

from poetc.emit._module import Module


def one_session(module: Module, language: str, word: str) -> Iterator[str]:
    """Lines of C: one session and its arena, with functions that take no pointers to them.

    The functions are called PREFIX_`word`_init and so on. `save` without bytes counts them.
    """
    prefix = f"{module.prefix}_{word}"
    yield f"/* One session for {language}, which sees neither its size nor the arena. Made by poetc. */"
    yield f'#include "{module.stem}.h"'
    yield '#include "poetc_session.h"'
    yield "#include <float.h>"
    yield "#include <string.h>"
    yield ""
    yield f"""static poetc_session session;

typedef struct {{
    uint8_t *bytes;
    uint32_t size, used;
}} buffer;

static int put(void *context, const void *data, uint32_t size)
{{
    buffer *b = context;
    if (b->bytes != NULL) {{
        if (size > b->size - b->used)
            return POETC_EINVAL;
        memcpy(b->bytes + b->used, data, size);
    }}
    b->used += size;
    return 0;
}}

static int get(void *context, uint32_t offset, void *data, uint32_t size)
{{
    buffer *b = context;
    if (offset > b->size || size > b->size - offset)
        return POETC_EINVAL;
    memcpy(data, b->bytes + offset, size);
    return 0;
}}

int32_t {prefix}_init(void)
{{
    poetc_config config;
    memset(&config, 0, sizeof config);
    config.arena = {module.arena};
    config.arena_bytes = {module.prefix.upper()}_ARENA_BYTES;
    return poetc_session_init(&session, &{module.description}, &config);
}}

int32_t {prefix}_step(const void *const *inputs, float *loss)
{{
    return poetc_session_step(&session, inputs, loss);
}}

int32_t {prefix}_predict(const void *const *inputs) {{ return poetc_session_predict(&session, inputs); }}
const void *{prefix}_output(uint32_t index) {{ return poetc_session_output(&session, index); }}
float {prefix}_rate(void) {{ return poetc_session_learning_rate(&session); }}

int32_t {prefix}_set_rate(float rate)
{{
    if (!(rate >= 0.0f && rate <= FLT_MAX))
        return POETC_ENUMBER;
    return poetc_session_set_learning_rate(&session, rate);
}}

uint32_t {prefix}_steps(void) {{ return session.runtime.run_count; }}

int32_t {prefix}_save(uint8_t *bytes, uint32_t size, uint32_t *used)
{{
    buffer b = {{bytes, size, 0}};
    int err = poetc_session_save(&session, put, &b);
    *used = b.used;
    return err;
}}

int32_t {prefix}_load(const uint8_t *bytes, uint32_t size)
{{
    buffer b = {{(uint8_t *)bytes, size, size}};
    return poetc_session_load(&session, size, get, &b);
}}
"""
