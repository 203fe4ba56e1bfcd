/* copies.c: finds and reports further copies of the driver.
 *
 * A library is a driver if it defines certain functions itself that no other library defines together. A wrapper with
 * the driver's name that calls the real driver behind it counts as the driver; its own look-ups are not exchanged.
 */
#define _GNU_SOURCE
#include "copies.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "moments.h"
#include "client.h"
#include "loader.h"
#include "lock.h"
#include "message.h"
#include "options.h"
#include "symbols.h"
#include "system.h"

#define MOST       16  /* of copies that are told apart */
#define LOOK_MS    100 /* between two looks for what a namespace has loaded since */
#define FIRST_NAME "libcuda.so"

static struct {
    const void *base;
    bool proved; /* a driver by its functions, not only by the name of its file */
} copies[MOST];
static uint32_t copy_count;
static struct gs_lock copies_lock;
static uint64_t next_look; /* of gs_now_ms */

/* ---- telling them apart --------------------------------------------------------------------------- */

static const void *base_of(const void *address) {
    struct gs_library library;
    return gs_library_at(address, &library) ? library.base : NULL;
}

static const void *our_driver(void) {
    return base_of((const void *)gs_driver.cuMemAlloc_v2);
}

static bool is_proved(const void *base) {
    bool found = false;
    gs_lock(&copies_lock);
    for (uint32_t i = 0; i < copy_count; i++)
        found = found || (copies[i].base == base && copies[i].proved);
    gs_unlock(&copies_lock);
    return found;
}

/* true: it was not known before. */
static bool add(const void *base, bool proved) {
    bool fresh = true;
    gs_lock(&copies_lock);
    for (uint32_t i = 0; i < copy_count; i++) {
        if (copies[i].base != base)
            continue;
        copies[i].proved = copies[i].proved || proved;
        fresh = false;
    }
    fresh = fresh && copy_count < MOST;
    if (fresh) {
        copies[copy_count].base = base;
        copies[copy_count++].proved = proved;
    }
    gs_unlock(&copies_lock);
    return fresh;
}

void gs_tell_copies(void) {
    struct gs_page *page = gs_client_page();
    if (page != NULL)
        __atomic_store_n(&page->copies, __atomic_load_n(&copy_count, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* ---- answering ------------------------------------------------------------------------------------ */

bool gs_is_of_copy(void *handle, const void *found, const void *caller) {
    const void *ours = our_driver(), *base = base_of(found);
    if (base == NULL || ours == NULL || base == ours || base_of(caller) == ours)
        return false;
    return is_proved(base) || gs_defines_a_driver(handle, base);
}

void *gs_instead_of_copy(const void *found, const char *name) {
    struct gs_library copy, ours;
    if (gs_library_at(found, &copy) && add(copy.base, true) &&
        gs_library_at((const void *)gs_driver.cuMemAlloc_v2, &ours)) {
        struct gs_text text = {0};
        gs_text_add(&text, copy.file);
        gs_text_add(&text, " is another copy of the driver: look-ups in it are answered from ");
        gs_text_add(&text, ours.file);
        gs_text_add(&text, ", on which the limit holds");
        gs_say(GS_WARNING, GS_SAY_COPY, &text);
        gs_tell_copies();
    }
    void *answer = gs_real_dlsym(gs_driver_handle(), name);
    void *hook = gs_hook_for(answer);
    return hook != NULL ? hook : answer;
}

bool gs_open_copy_here(void *handle, const void *found) {
    struct gs_library library;
    if (!gs_may_wake() || !gs_library_at(found, &library) || !gs_defines_a_driver(handle, library.base))
        return false;
    void *here = gs_real_dlopen(library.file, RTLD_LAZY | RTLD_LOCAL);
    return here != NULL && gs_wake(gs_real_dlsym(here, "cuMemAlloc_v2"), false);
}

/* ---- looking -------------------------------------------------------------------------------------- */

static void say_past(const char *file) {
    struct gs_text text = {0};
    gs_text_add(&text, file);
    gs_text_add(&text,
                " is another copy of the driver in this process: what is allocated through it is past the limit, "
                "and found only by measuring\nhint: load one driver, in the program's own namespace");
    gs_say(GS_WARNING, GS_SAY_COPY, &text);
}

/* A line of /proc/self/maps: the start of a file's first mapping, and the file; false: another line. */
static bool first_mapping(char *line, uint64_t *start, const char **file) {
    static const char digits[] = "0123456789abcdef";
    const char *path = strchr(line, '/'), *offset = strchr(line, ' ');
    *start = 0;
    for (const char *at = line, *digit; *at != '\0' && (digit = strchr(digits, *at)) != NULL; at++)
        *start = *start << 4 | (uint64_t)(digit - digits);
    if (path == NULL || offset == NULL || (offset = strchr(offset + 1, ' ')) == NULL)
        return false;
    *file = path;
    return strncmp(offset + 1, "00000000 ", 9) == 0;
}

/* `file` begins with a slash. */
static bool has_drivers_name(const char *file) {
    return strncmp(strrchr(file, '/') + 1, FIRST_NAME, sizeof FIRST_NAME - 1) == 0;
}

static void look_at_line(char *line, const void *ours) {
    uint64_t start;
    const char *file;
    if (!first_mapping(line, &start, &file) || !has_drivers_name(file))
        return;
    const void *base = (const void *)(uintptr_t)start;
    if (base != ours && base != base_of((const void *)gs_look_for_copies) && add(base, false))
        say_past(file);
}

/* Line by line through a buffer; what is longer than that is no line of a library. */
static void look_at_maps(int maps, const void *ours) {
    char text[4096];
    size_t held = 0;
    for (long got; (got = GS_CALL(SYS_read, maps, text + held, sizeof text - 1 - held)) > 0;) {
        held += (size_t)got;
        text[held] = '\0';
        char *line = text;
        for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            look_at_line(line, ours);
        }
        held = line == text && held == sizeof text - 1 ? 0 : held - (size_t)(line - text);
        memmove(text, line, held);
    }
}

void gs_look_for_copies(void) {
    const void *ours = our_driver();
    if (!gs_options()->active)
        return;
    long maps = GS_CALL(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (maps < 0)
        return;
    look_at_maps((int)maps, ours);
    GS_CALL(SYS_close, maps);
    gs_tell_copies();
}

void gs_look_now_and_then(void) {
    uint64_t now = gs_now_ms(), due = __atomic_load_n(&next_look, __ATOMIC_RELAXED);
    if (now >= due &&
        __atomic_compare_exchange_n(&next_look, &due, now + LOOK_MS, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        gs_look_for_copies();
}

GS_AT(fork) {
    copies_lock = (struct gs_lock){0};
}
