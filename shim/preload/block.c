/* block.c: the blocks, and the tables of handles, mappings and bindings. */
#include "block.h"

#include <string.h>

#include "moments.h"

#define CHUNK_BLOCKS  1024
#define MAX_CHUNKS    4096
#define FREE_LISTS    64
#define MOST_BINDINGS 4096

struct block {
    struct gs_gpu *gpu;
    uint32_t list;  /* of the free ones: where it goes back to, whichever thread ends it */
    uint32_t units; /* 0: a multicast object */
    uint32_t holds;
    uint32_t exports;
    uint32_t next_free; /* number + 1 */
};

static struct gs_table handles;  /* handle -> detail: the block's number; units: references */
static struct gs_table mappings; /* address -> detail; units: the mapping's size */

/* ---- blocks --------------------------------------------------------------------------------------- */

static struct block *chunks[MAX_CHUNKS];
static uint32_t chunk_count;

/* Several lists. A thread takes from the same one each time, so that its blocks stay in the cache of its processor. */
static struct free_list {
    struct gs_lock lock;
    uint32_t first;  /* number + 1 */
    uint32_t unused; /* in the list's last chunk: from here on, so many have never been used */
    uint32_t left;
} __attribute__((aligned(64))) free_lists[FREE_LISTS];

static struct block *block_at(uint32_t number) {
    return &chunks[number / CHUNK_BLOCKS][number % CHUNK_BLOCKS];
}

/* The address of errno tells threads apart; how far they lie from each other does not matter to a hash. */
static uint32_t list_of_thread(void) {
    return (uint32_t)(gs_table_hash((uint64_t)(uintptr_t)&errno) >> 32) & (FREE_LISTS - 1);
}

/* Under the list's lock. false: no memory. */
static bool new_chunk(struct free_list *list) {
    struct block *chunk = gs_pages_new(CHUNK_BLOCKS * sizeof *chunk);
    uint32_t number = chunk != NULL ? __atomic_fetch_add(&chunk_count, 1, __ATOMIC_RELAXED) : 0;
    if (chunk == NULL || number >= MAX_CHUNKS)
        return false;
    chunks[number] = chunk;
    list->unused = number * CHUNK_BLOCKS;
    list->left = CHUNK_BLOCKS;
    return true;
}

/* Under the list's lock; UINT32_MAX: no memory. */
static uint32_t new_block(struct free_list *list) {
    if (__builtin_expect(list->first != 0, 1)) {
        uint32_t number = list->first - 1;
        list->first = block_at(number)->next_free;
        return number;
    }
    if (list->left == 0 && !new_chunk(list))
        return UINT32_MAX;
    list->left--;
    return list->unused++;
}

const struct gs_gpu *gs_block_gpu(uint32_t number) {
    return block_at(number)->gpu;
}

static void hold(uint32_t number) {
    __atomic_fetch_add(&block_at(number)->holds, 1, __ATOMIC_RELAXED);
}

void gs_block_let_go(uint32_t number) {
    struct block *block = block_at(number);
    /* The last holder is alone: other threads find a block only by its handle, a mapping or a binding. */
    if (__atomic_load_n(&block->holds, __ATOMIC_ACQUIRE) != 1 &&
        __atomic_sub_fetch(&block->holds, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    struct gs_line *line = block->gpu->line;
    if (__builtin_expect(block->units != 0, 1)) {
        gs_release(line, block->units);
    } else {
        __atomic_fetch_sub(&line->multicast, 1, __ATOMIC_RELAXED);
        gs_bindings_end(number, -1, 0, UINT64_MAX);
    }
    if (block->exports != 0)
        __atomic_fetch_sub(&line->vmm_export, block->exports, __ATOMIC_RELAXED);
    struct free_list *list = &free_lists[block->list];
    gs_lock(&list->lock);
    block->next_free = list->first;
    list->first = number + 1;
    gs_unlock(&list->lock);
}

void gs_block_exported(uint32_t number) {
    struct block *block = block_at(number);
    __atomic_fetch_add(&block->exports, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&block->gpu->line->vmm_export, 1, __ATOMIC_RELAXED);
}

/* ---- handles -------------------------------------------------------------------------------------- */

GS_INLINE bool put(struct gs_table *table, uint64_t key, uint32_t number, uint32_t units, enum gs_kind_of_memory kind) {
    struct gs_entry displaced, entry = {.key = key, .units = units, .detail = number, .kind = (uint8_t)kind};
    if (__builtin_expect(!gs_table_put(table, &entry, &displaced), 0))
        return false;
    if (__builtin_expect(displaced.key != 0, 0)) /* it has ended in some way that we did not see */
        gs_block_let_go(displaced.detail);
    return true;
}

bool gs_block_add(uint64_t handle, struct gs_gpu *gpu, uint32_t units) {
    uint32_t mine = list_of_thread();
    struct free_list *list = &free_lists[mine];
    gs_lock(&list->lock);
    uint32_t number = new_block(list);
    gs_unlock(&list->lock);
    if (number == UINT32_MAX)
        return false;
    *block_at(number) = (struct block){.gpu = gpu, .list = mine, .units = units, .holds = 1};
    return put(&handles, handle, number, 1, GS_HANDLE);
}

void gs_block_add_handle(uint64_t handle, uint32_t number) {
    put(&handles, handle, number, 1, GS_HANDLE);
}

static bool copy_number(struct gs_entry *entry, void *number) {
    *(uint32_t *)number = entry->detail;
    return true;
}

/* Under the table's lock, so that no release at the same time is the last one before the hold is there. */
static bool hold_for(struct gs_entry *entry, void *number) {
    hold(entry->detail);
    return copy_number(entry, number);
}

static bool refer(struct gs_entry *entry, void *unused) {
    (void)unused;
    entry->units++;
    return true;
}

struct release {
    uint32_t number;
    bool last;
};

GS_INLINE bool take_reference(struct gs_entry *entry, void *data) {
    struct release *release = data;
    release->number = entry->detail;
    release->last = --entry->units == 0;
    return !release->last;
}

bool gs_block_find(uint64_t handle, uint32_t *number, bool and_hold) {
    return gs_table_visit(&handles, handle, and_hold ? hold_for : copy_number, number);
}

bool gs_block_refer(uint64_t handle) {
    return gs_table_visit(&handles, handle, refer, NULL);
}

bool gs_block_release(uint64_t handle, uint32_t *number, bool *last) {
    struct release release;
    bool known = gs_table_visit(&handles, handle, take_reference, &release);
    if (known) {
        *number = release.number;
        *last = release.last;
    }
    return known;
}

void gs_block_release_failed(uint64_t handle, uint32_t number, bool last) {
    if (last)
        put(&handles, handle, number, 1, GS_HANDLE);
    else
        gs_block_refer(handle);
}

/* ---- mappings ------------------------------------------------------------------------------------- */

bool gs_mapping_add(uint64_t address, uint32_t number, uint64_t size) {
    return put(&mappings, address, number, gs_units(size), GS_MAPPING);
}

struct search {
    uint64_t address;
    uint32_t number;
    bool found;
};

static bool covers(const struct gs_entry *entry, void *data) {
    struct search *search = data;
    if (!search->found && search->address - entry->key < (uint64_t)entry->units << GS_UNIT_SHIFT) {
        search->number = entry->detail;
        search->found = true;
        hold(entry->detail);
    }
    return false; /* look only */
}

static void never(const struct gs_entry *entry, void *data) {
    (void)entry, (void)data;
}

bool gs_mapping_find(uint64_t address, uint32_t *number) {
    struct search search = {.address = address};
    if (gs_table_visit(&mappings, address, hold_for, number))
        return true;
    gs_table_sweep(&mappings, covers, never, &search);
    *number = search.number;
    return search.found;
}

struct gs_entry *gs_mappings_at(struct gs_mappings *of, size_t i) {
    return of->more != NULL ? &of->more[i] : &of->few[i];
}

void gs_mappings_drop(struct gs_mappings *of) {
    gs_pages_drop(of->more, of->room * sizeof *of->more);
}

struct wanted {
    struct gs_mappings *mappings;
    uint64_t start, end;
    const struct gs_gpu *gpu;
};

static void remember(const struct gs_entry *entry, void *data) {
    struct gs_mappings *to = ((struct wanted *)data)->mappings;
    size_t room = to->more != NULL ? to->room : sizeof to->few / sizeof *to->few;
    if (to->count == room) {
        struct gs_entry *more = gs_pages_new(room * 2 * sizeof *more);
        if (more == NULL)
            return;
        memcpy(more, gs_mappings_at(to, 0), to->count * sizeof *more);
        gs_mappings_drop(to);
        to->more = more;
        to->room = room * 2;
    }
    *gs_mappings_at(to, to->count++) = *entry;
}

static bool lies_within(const struct gs_entry *entry, void *data) {
    const struct wanted *wanted = data;
    return entry->key - wanted->start < wanted->end - wanted->start;
}

/* Mapping after mapping from the start; if there is a gap, the whole table is looked through. */
void gs_mappings_take(struct gs_mappings *taken, uint64_t start, uint64_t end) {
    struct gs_entry entry;
    struct wanted wanted = {.mappings = taken, .start = start, .end = end};
    uint64_t at = start;
    while (at < end && gs_table_take(&mappings, at, &entry)) {
        remember(&entry, &wanted);
        at += (uint64_t)entry.units << GS_UNIT_SHIFT;
    }
    if (at < end)
        gs_table_sweep(&mappings, lies_within, remember, &wanted);
}

void gs_mapping_put_back(const struct gs_entry *mapping) {
    put(&mappings, mapping->key, mapping->detail, mapping->units, GS_MAPPING);
}

static bool copy_if_on(const struct gs_entry *entry, void *data) {
    const struct wanted *wanted = data;
    if (block_at(entry->detail)->gpu == wanted->gpu)
        remember(entry, data);
    return false; /* look only */
}

void gs_mappings_on(struct gs_mappings *found, const struct gs_gpu *gpu) {
    struct wanted wanted = {.mappings = found, .gpu = gpu};
    gs_table_sweep(&mappings, copy_if_on, never, &wanted);
}

bool gs_mapping_take(uint64_t address, uint32_t *number) {
    struct gs_entry entry;
    bool found = gs_table_take(&mappings, address, &entry);
    if (found)
        *number = entry.detail;
    return found;
}

/* ---- bindings ------------------------------------------------------------------------------------- */

/* Programs bind a handful of buffers once, so they are a plain list. */
static struct binding {
    uint32_t object, block; /* numbers */
    uint64_t offset, size;
    bool used;
} bindings[MOST_BINDINGS];

static uint32_t binding_count; /* how many of them have ever been used */
static struct gs_lock bindings_lock;

/* No room: the block stays held. It is better to charge too much than too little. */
void gs_binding_add(uint32_t object, uint32_t number, uint64_t offset, uint64_t size) {
    gs_lock(&bindings_lock);
    for (uint32_t i = 0; i < MOST_BINDINGS; i++) {
        if (bindings[i].used)
            continue;
        bindings[i] = (struct binding){object, number, offset, size, true};
        if (i >= binding_count)
            binding_count = i + 1;
        break;
    }
    gs_unlock(&bindings_lock);
}

void gs_bindings_end(uint32_t object, int device, uint64_t offset, uint64_t size) {
    for (uint32_t i = 0; i < __atomic_load_n(&binding_count, __ATOMIC_RELAXED); i++) {
        gs_lock(&bindings_lock);
        const struct binding one = bindings[i];
        bool ends = one.used && one.object == object && one.offset >= offset && one.offset - offset <= size &&
                    one.size <= size - (one.offset - offset) &&
                    (device < 0 || gs_block_gpu(one.block)->index == (uint32_t)device);
        if (ends)
            bindings[i].used = false;
        gs_unlock(&bindings_lock);
        if (ends)
            gs_block_let_go(one.block);
    }
}

GS_AT(fork) {
    gs_table_forget(&handles);
    gs_table_forget(&mappings);
    memset(chunks, 0, sizeof chunks);
    memset(free_lists, 0, sizeof free_lists);
    memset(bindings, 0, sizeof bindings);
    chunk_count = binding_count = 0;
    bindings_lock = (struct gs_lock){0};
}
