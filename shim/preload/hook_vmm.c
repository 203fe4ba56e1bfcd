/* hook_vmm.c: physical memory with handles, and its mappings.
 *
 * The memory behind a handle lives until the last reference to the handle is released and the last mapping of it is
 * gone, in whichever order; that is what is counted here, per handle, as `holds`. It is charged to the device named in
 * its properties, not to the current one, and only if that is a device. The importer of a handle pays nothing:
 * handles that we do not know are the driver's own business.
 *
 * What is being given back is taken out of our tables before the driver is called, because a handle's number and an
 * address can be another's right afterwards; the credit follows when the driver has succeeded.
 */
#include "hooks.h"

#include <string.h>

#define CHUNK_BLOCKS 4096
#define MAX_CHUNKS   1024

/* Memory with a handle. */
struct block {
    struct gs_gpu *gpu; /* NULL: a multicast object */
    uint64_t handle;
    uint32_t units;
    uint32_t references; /* to the handle: made, retained, imported again */
    uint32_t holds;      /* references and mappings, each until the driver has ended it */
    uint32_t exports;
    uint32_t next_free; /* number + 1 */
};

static struct gs_table handles;  /* handle -> detail: the block's number */
static struct gs_table mappings; /* address -> detail; units: the mapping's size */

static struct gs_lock blocks_lock;
static struct block *chunks[MAX_CHUNKS];
static uint32_t block_count, first_free;

/* ---- blocks --------------------------------------------------------------------------------------- */

static struct block *block_at(uint32_t number) {
    return &chunks[number / CHUNK_BLOCKS][number % CHUNK_BLOCKS];
}

/* Under the lock; UINT32_MAX: no memory. */
static uint32_t new_block(void) {
    if (first_free != 0) {
        uint32_t number = first_free - 1;
        first_free = block_at(number)->next_free;
        return number;
    }
    if (block_count == CHUNK_BLOCKS * MAX_CHUNKS)
        return UINT32_MAX;
    struct block **chunk = &chunks[block_count / CHUNK_BLOCKS];
    if (*chunk == NULL)
        *chunk = gs_pages_new(CHUNK_BLOCKS * sizeof(struct block));
    return *chunk == NULL ? UINT32_MAX : block_count++;
}

static bool put(struct gs_table *table, uint64_t key, uint32_t number, uint32_t units, struct gs_entry *displaced) {
    struct gs_entry entry = {
        .key = key, .units = units, .detail = number, .kind = table == &handles ? GS_HANDLE : GS_MAPPING};
    return gs_table_put(table, &entry, displaced);
}

void gs_block_hold(uint32_t number) {
    __atomic_fetch_add(&block_at(number)->holds, 1, __ATOMIC_RELAXED);
}

/* The driver has ended a reference or a mapping. */
void gs_block_let_go(uint32_t number) {
    struct block *block = block_at(number);
    if (__atomic_sub_fetch(&block->holds, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    struct gs_line *line = block->gpu->line;
    if (block->units != 0) {
        gs_release(line, block->units);
    } else {
        __atomic_fetch_sub(&line->multicast, 1, __ATOMIC_RELAXED);
        gs_multicast_gone(number);
    }
    __atomic_fetch_sub(&line->vmm_export, block->exports, __ATOMIC_RELAXED);
    gs_lock(&blocks_lock);
    block->next_free = first_free;
    first_free = number + 1;
    gs_unlock(&blocks_lock);
}

static void end_references(uint32_t number) {
    for (uint32_t left = __atomic_exchange_n(&block_at(number)->references, 0, __ATOMIC_ACQ_REL); left != 0; left--)
        gs_block_let_go(number);
}

/* A block without credit of its own is a multicast object, counted on the line of `place`. */
static bool add_block(uint64_t handle, struct gs_gpu *gpu, uint32_t units) {
    struct gs_entry displaced;
    gs_lock(&blocks_lock);
    uint32_t number = new_block();
    if (number != UINT32_MAX)
        *block_at(number) = (struct block){.gpu = gpu, .handle = handle, .units = units, .references = 1, .holds = 1};
    gs_unlock(&blocks_lock);
    if (number == UINT32_MAX || !put(&handles, handle, number, 0, &displaced))
        return false;
    if (displaced.key != 0) /* a handle of the same number has ended in some way that we did not see */
        end_references(displaced.detail);
    return true;
}

bool gs_block_find(uint64_t handle, uint32_t *number) {
    struct gs_entry entry;
    bool found = gs_table_find(&handles, handle, &entry);
    if (found)
        *number = entry.detail;
    return found;
}

const struct gs_gpu *gs_block_gpu(uint32_t number) {
    return block_at(number)->gpu;
}

/* One more reference to a known handle. */
static void refer(uint32_t number) {
    gs_block_hold(number);
    __atomic_fetch_add(&block_at(number)->references, 1, __ATOMIC_RELAXED);
}

/* ---- handles -------------------------------------------------------------------------------------- */

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    struct gs_charge charge;
    CUresult result;
    CUdevice device = properties != NULL ? cuda_device_of(&properties->location) : -1;
    if (!gs_on() || handle == NULL || device < 0)
        return gs_driver.cuMemCreate(handle, size, properties, flags);
    if (!gs_place_device(&charge.place, device) || !gs_charge_here(&charge, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemCreate(handle, size, properties, flags);
    while (gs_charge_again(&charge, result));
    if (result != CUDA_SUCCESS || charge.place.gpu == NULL) {
        gs_charge_undo(&charge);
        return result;
    }
    if (add_block(*handle, charge.place.gpu, charge.units))
        return CUDA_SUCCESS;
    gs_driver.cuMemRelease(*handle);
    gs_charge_undo(&charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Take one reference away before the driver does; with the last one the number is free to be another's. */
static bool take_reference(uint64_t handle, struct gs_entry *entry, bool *last) {
    if (!gs_table_find(&handles, handle, entry))
        return false;
    *last = __atomic_sub_fetch(&block_at(entry->detail)->references, 1, __ATOMIC_ACQ_REL) == 0;
    return !*last || gs_table_take(&handles, handle, entry);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct gs_entry entry, displaced;
    bool last = false;
    if (!gs_on() || !take_reference(handle, &entry, &last))
        return gs_driver.cuMemRelease(handle);
    CUresult result = gs_driver.cuMemRelease(handle);
    if (result == CUDA_SUCCESS) {
        gs_block_let_go(entry.detail);
        return result;
    }
    __atomic_fetch_add(&block_at(entry.detail)->references, 1, __ATOMIC_RELAXED);
    if (last)
        gs_table_put(&handles, &entry, &displaced);
    return result;
}

struct search {
    uint64_t address;
    uint32_t number;
    bool found;
};

static bool covers(const struct gs_entry *entry, void *data) {
    struct search *search = data;
    if (search->address - entry->key < (uint64_t)entry->units << GS_UNIT_SHIFT) {
        search->number = entry->detail;
        search->found = true;
    }
    return false; /* look only */
}

static void never(const struct gs_entry *entry, void *data) {
    (void)entry, (void)data;
}

/* The block mapped at an address, which may lie anywhere in the mapping. */
bool gs_block_mapped_at(uint64_t address, uint32_t *number) {
    struct gs_entry entry;
    struct search search = {.address = address};
    if (gs_table_find(&mappings, address, &entry)) {
        *number = entry.detail;
        return true;
    }
    gs_table_sweep(&mappings, covers, never, &search);
    *number = search.number;
    return search.found;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct gs_entry entry, displaced;
    uint32_t number;
    bool on = gs_on();
    CUresult result = gs_driver.cuMemRetainAllocationHandle(handle, address);
    if (!on || result != CUDA_SUCCESS)
        return result;
    if (gs_table_find(&handles, *handle, &entry)) {
        refer(entry.detail);
    } else if (gs_block_mapped_at((uint64_t)(uintptr_t)address, &number)) {
        /* The handle was released before, and the mapping has brought it back under a number of its own. */
        refer(number);
        put(&handles, *handle, number, 0, &displaced);
    }
    return result;
}

/* The importer pays nothing. But a handle of our own that comes back under its own number is one more reference. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
    struct gs_entry entry;
    bool on = gs_on();
    CUresult result = gs_driver.cuMemImportFromShareableHandle(handle, os_handle, type);
    if (on && result == CUDA_SUCCESS && gs_table_find(&handles, *handle, &entry))
        refer(entry.detail);
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    struct gs_entry entry;
    bool on = gs_on();
    CUresult result = gs_driver.cuMemExportToShareableHandle(shareable, handle, type, flags);
    if (on && result == CUDA_SUCCESS && gs_table_find(&handles, handle, &entry)) {
        struct block *block = block_at(entry.detail);
        __atomic_fetch_add(&block->exports, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&block->gpu->line->vmm_export, 1, __ATOMIC_RELAXED);
    }
    return result;
}

/* Binds memory of other handles, has none of its own. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    struct gs_place place;
    bool on = gs_on();
    CUresult result = gs_driver.cuMulticastCreate(handle, properties);
    if (!on || result != CUDA_SUCCESS || !gs_place_current(&place) || place.gpu == NULL)
        return result;
    if (add_block(*handle, place.gpu, 0))
        __atomic_fetch_add(&place.gpu->line->multicast, 1, __ATOMIC_RELAXED);
    return result;
}

/* ---- mappings ------------------------------------------------------------------------------------- */

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct gs_entry entry, displaced = {0};
    if (!gs_on() || !gs_table_find(&handles, handle, &entry))
        return gs_driver.cuMemMap(pointer, size, offset, handle, flags);
    gs_block_hold(entry.detail); /* before the driver, so that a release at the same time does not end it under us */
    CUresult result = gs_driver.cuMemMap(pointer, size, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
        gs_block_let_go(entry.detail);
        return result;
    }
    if (!put(&mappings, pointer, entry.detail, gs_units(size), &displaced)) {
        gs_driver.cuMemUnmap(pointer, size);
        gs_block_let_go(entry.detail);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (displaced.key != 0)
        gs_block_let_go(displaced.detail);
    return result;
}

/* The mappings that one unmap ends. */
struct taken {
    CUdeviceptr start, end;
    struct gs_entry few[16], *entries;
    size_t count, room;
};

static void remember(const struct gs_entry *entry, void *data) {
    struct taken *taken = data;
    if (taken->count == taken->room) {
        struct gs_entry *more = gs_pages_new(taken->room * 2 * sizeof *more);
        if (more == NULL)
            return; /* its memory stays charged: too much rather than too little */
        memcpy(more, taken->entries, taken->count * sizeof *more);
        if (taken->entries != taken->few)
            gs_pages_drop(taken->entries, taken->room * sizeof *more);
        taken->entries = more;
        taken->room *= 2;
    }
    taken->entries[taken->count++] = *entry;
}

static bool lies_within(const struct gs_entry *entry, void *data) {
    struct taken *taken = data;
    return entry->key - taken->start < taken->end - taken->start;
}

/* Mapping after mapping from the start; if there is a gap, the whole table is looked through. */
static void take_mappings(struct taken *taken) {
    struct gs_entry entry;
    CUdeviceptr at = taken->start;
    while (at < taken->end && gs_table_take(&mappings, at, &entry)) {
        remember(&entry, taken);
        at += (CUdeviceptr)entry.units << GS_UNIT_SHIFT;
    }
    if (at < taken->end)
        gs_table_sweep(&mappings, lies_within, remember, taken);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    struct gs_entry displaced;
    struct taken taken = {.start = pointer, .end = pointer + size, .room = 16};
    if (!gs_on())
        return gs_driver.cuMemUnmap(pointer, size);
    taken.entries = taken.few;
    take_mappings(&taken);
    CUresult result = gs_driver.cuMemUnmap(pointer, size);
    for (size_t i = 0; i < taken.count; i++) {
        if (result == CUDA_SUCCESS)
            gs_block_let_go(taken.entries[i].detail);
        else
            gs_table_put(&mappings, &taken.entries[i], &displaced);
    }
    if (taken.entries != taken.few)
        gs_pages_drop(taken.entries, taken.room * sizeof *taken.entries);
    return result;
}

struct of_gpu {
    struct taken found;
    const struct gs_gpu *gpu;
};

static bool look_at_mapping(const struct gs_entry *entry, void *data) {
    struct of_gpu *of = data;
    if (block_at(entry->detail)->gpu == of->gpu)
        remember(entry, &of->found);
    return false; /* look only */
}

static bool is_mapped(CUdeviceptr address) {
    CUmemGenericAllocationHandle handle;
    CUresult result;
    GS_RELAXED(result = gs_driver.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address));
    if (result == CUDA_SUCCESS)
        GS_RELAXED(gs_driver.cuMemRelease(handle));
    return result != CUDA_ERROR_INVALID_VALUE;
}

/* Mappings can be asked for by address, handles cannot be asked for: one that is gone may not be used. */
void gs_vmm_was_reset(const struct gs_gpu *gpu) {
    struct gs_entry entry;
    struct of_gpu of = {.found = {.room = 16}, .gpu = gpu};
    of.found.entries = of.found.few;
    gs_table_sweep(&mappings, look_at_mapping, never, &of);
    for (size_t i = 0; i < of.found.count; i++)
        if (!is_mapped(of.found.entries[i].key) && gs_table_take(&mappings, of.found.entries[i].key, &entry))
            gs_block_let_go(entry.detail);
    if (of.found.entries != of.found.few)
        gs_pages_drop(of.found.entries, of.found.room * sizeof *of.found.entries);
}

void gs_vmm_forget(void) {
    gs_table_forget(&handles);
    gs_table_forget(&mappings);
    memset(chunks, 0, sizeof chunks);
    block_count = first_free = 0;
    blocks_lock = (struct gs_lock){0};
}
