/* See poetc_pressure.h. */
#define _DEFAULT_SOURCE

#include "poetc_pressure.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

const uint32_t poetc_pressure_bytes = sizeof(poetc_pressure);

enum { TEXT_BYTES = 8192, STALL_PERCENT = 10 };

static uint64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* The beginning of a file as a string: 1 done, 0 it cannot be read. */
static int read_text(const char *folder, const char *name, char *text)
{
    char path[POETC_CGROUP_BYTES + 32];
    ssize_t size = -1;
    int file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        size = read(file, text, TEXT_BYTES - 1);
        close(file);
    }
    text[size > 0 ? size : 0] = 0;
    return size > 0;
}

/* The number after `key` in a text; 0 where there is none. */
static uint64_t number_after(const char *text, const char *key)
{
    const char *found = strstr(text, key);

    return found != NULL ? strtoull(found + strlen(key), NULL, 10) : 0;
}

/* The directory of this process's group: 1 done, 0 there is none. */
static int own_group(char *group)
{
    char text[TEXT_BYTES];
    const char *path;

    if (!read_text("/proc/self", "cgroup", text))
        return 0;
    path = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (path == NULL)
        return 0;
    path = strchr(path, '/');
    return path != NULL && snprintf(group, POETC_CGROUP_BYTES, "/sys/fs/cgroup%.*s", (int)strcspn(path, "\n"), path) <
                               POETC_CGROUP_BYTES;
}

/* Share of the time since the last look in which some process stalled for want of memory, in percent. */
static uint64_t stall_percent(poetc_pressure *pressure, uint64_t stalled_us, uint64_t passed_us)
{
    const uint64_t before_us = pressure->stalled_us;

    pressure->stalled_us = stalled_us;
    return passed_us > 0 && stalled_us > before_us ? (stalled_us - before_us) * 100u / passed_us : 0;
}

/* Bytes of the arena that keep the group at memory.high; all where it has none. */
static uint64_t room_bytes(const poetc_pressure *pressure, const char *high)
{
    char text[TEXT_BYTES];
    uint64_t used, cached;
    const uint64_t limit = strtoull(high, NULL, 10), own = poetc_arena_in_use(&pressure->elastic);

    if (strncmp(high, "max", 3) == 0 || !read_text(pressure->group, "memory.current", text))
        return pressure->arena_bytes;
    used = strtoull(text, NULL, 10);
    cached = read_text(pressure->group, "memory.stat", text) ? number_after(text, "inactive_file ") : 0;
    used -= cached < used ? cached : used; /* the system takes it back before anything stalls */
    return limit + own > used ? limit + own - used : 0;
}

int poetc_pressure_look(poetc_pressure *pressure)
{
    char text[TEXT_BYTES];
    const uint64_t now = now_us(), passed_us = now - pressure->looked_us;
    const uint32_t own = poetc_arena_in_use(&pressure->elastic);
    uint64_t wanted = pressure->arena_bytes, stalled = 0;
    int has_high, has_stalls;

    pressure->looked_us = now;
    has_high = read_text(pressure->group, "memory.high", text);
    if (has_high)
        wanted = room_bytes(pressure, text);
    has_stalls = read_text(pressure->group, "memory.pressure", text) ||
                 (pressure->is_own && read_text("/proc/pressure", "memory", text));
    if (has_stalls)
        stalled = stall_percent(pressure, number_after(text, "total="), passed_us);
    if (!has_high && !has_stalls)
        return POETC_ENOENT;
    if (stalled > 0)
        pressure->calm_since_us = now;
    if (stalled >= STALL_PERCENT && wanted >= own)
        wanted = own - 1u;
    if (wanted > own && now - pressure->calm_since_us < pressure->calm_ms * UINT64_C(1000))
        wanted = own;
    if (wanted > pressure->arena_bytes)
        wanted = pressure->arena_bytes;
    if (poetc_request_budget(&pressure->elastic, (uint32_t)wanted))
        (void)poetc_request_budget(&pressure->elastic, poetc_bundle_least(pressure->elastic.bundle));
    return POETC_OK;
}

/* Whole pages above the new arena: the next access finds zeros there. */
static void give_back(void *context, uint32_t in_use_bytes)
{
    poetc_pressure *pressure = context;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), arena = (uintptr_t)pressure->arena;
    const uintptr_t first = (arena + in_use_bytes + page - 1u) / page * page;
    const uintptr_t end = (arena + pressure->arena_bytes) / page * page;

    if (first < end && madvise((void *)first, end - first, MADV_DONTNEED) == 0)
        pressure->given_back_bytes += end - first;
    if (pressure->switched != NULL)
        pressure->switched(pressure->context, in_use_bytes);
}

static int observe(void *context, const poetc_runtime *runtime, uint32_t index)
{
    poetc_pressure *pressure = context;

    if (now_us() - pressure->looked_us >= pressure->interval_ms * UINT64_C(1000))
        (void)poetc_pressure_look(pressure);
    return pressure->observer != NULL ? pressure->observer(pressure->observer_context, runtime, index) : 0;
}

/* One training step through the plans of the bundle. */
static int run(void *context, poetc_runtime *runtime)
{
    poetc_elastic *elastic = &((poetc_pressure *)context)->elastic;
    int err;

    elastic->runtime = *runtime;
    elastic->runtime.program = elastic->bundle->plans[elastic->plan];
    err = poetc_bundle_run(elastic);
    *runtime = elastic->runtime;
    return err;
}

int poetc_pressure_begin(poetc_pressure *pressure, poetc_session *session, const poetc_bundle *bundle,
                         const char *group)
{
    poetc_config *config = &session->config;
    int err;

    memset(pressure, 0, sizeof *pressure);
    if (group == NULL ? !own_group(pressure->group) : strlen(group) >= sizeof pressure->group)
        return group == NULL ? POETC_ENOENT : POETC_EINVAL;
    if (group != NULL)
        memcpy(pressure->group, group, strlen(group) + 1u);
    pressure->is_own = group == NULL;
    pressure->interval_ms = 100;
    pressure->calm_ms = 1000;
    pressure->arena = config->arena;
    pressure->arena_bytes = bundle->plans[0]->arena_bytes;
    err = poetc_bundle_init(&pressure->elastic, bundle, config, session->model->state_image, pressure->arena_bytes);
    if (err)
        return err;
    err = poetc_pressure_look(pressure);
    if (err)
        return err;
    pressure->elastic.switched = give_back;
    pressure->elastic.context = pressure;
    pressure->observer = config->observer;
    pressure->observer_context = config->observer_context;
    config->observer = observe;
    config->observer_context = pressure;
    session->run = run;
    session->run_context = pressure;
    return POETC_OK;
}
