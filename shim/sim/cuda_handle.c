/* cuda_handle.c: a hash table of live handles, by address, open addressing. */
#define _GNU_SOURCE
#include "cuda_handle.h"

#include <stdint.h>
#include <stdlib.h>

struct entry {
    void *handle; /* NULL: never used; GONE: used once */
    enum handle_type type;
};

#define GONE ((void *)1)

static struct entry *entries;
static size_t room, filled; /* filled counts GONE too */

static size_t slot_of(const void *handle) {
    return (size_t)(((uint64_t)handle * 0x9e3779b97f4a7c15ull) >> 20) & (room - 1);
}

static struct entry *find(const void *handle) {
    if (room == 0 || handle == NULL || handle == GONE) {
        return NULL;
    }
    for (size_t slot = slot_of(handle);; slot = (slot + 1) & (room - 1)) {
        if (entries[slot].handle == handle) {
            return &entries[slot];
        }
        if (entries[slot].handle == NULL) {
            return NULL;
        }
    }
}

static void put(void *handle, enum handle_type type) {
    size_t slot = slot_of(handle);
    while (entries[slot].handle != NULL) {
        slot = (slot + 1) & (room - 1);
    }
    entries[slot] = (struct entry){handle, type};
    filled++;
}

static bool make_room(void) {
    if (filled < room / 2) {
        return true;
    }
    struct entry *old = entries;
    size_t old_room = room, live = 0;
    for (size_t slot = 0; slot < old_room; slot++) {
        live += old[slot].handle != NULL && old[slot].handle != GONE;
    }
    size_t new_room = 64;
    while (new_room < live * 4) {
        new_room *= 2;
    }
    struct entry *fresh = calloc(new_room, sizeof *fresh);
    if (fresh == NULL) {
        return false;
    }
    entries = fresh;
    room = new_room;
    filled = 0;
    for (size_t slot = 0; slot < old_room; slot++) {
        if (old[slot].handle != NULL && old[slot].handle != GONE) {
            put(old[slot].handle, old[slot].type);
        }
    }
    free(old);
    return true;
}

bool handle_adopt(void *handle, enum handle_type type) {
    if (!make_room()) {
        return false;
    }
    put(handle, type);
    return true;
}

void *handle_new(enum handle_type type, size_t size) {
    void *handle = calloc(1, size);
    if (handle != NULL && !handle_adopt(handle, type)) {
        free(handle);
        return NULL;
    }
    return handle;
}

bool handle_is(const void *handle, enum handle_type type) {
    struct entry *entry = find(handle);
    return entry != NULL && entry->type == type;
}

void handle_forget(void *handle) {
    struct entry *entry = find(handle);
    if (entry != NULL) {
        *entry = (struct entry){GONE, HANDLE_NONE};
    }
}

void handle_end(void *handle) {
    handle_forget(handle);
    free(handle);
}
