/* cuda_graphmem.c: the memory of alloc nodes, and the graph pool of each device.
 *
 * An alloc node gets its addresses when it is added, and they never change. Physical memory comes from the
 * device's graph pool when the graph is uploaded or launched, and goes back there when it is freed: the pool keeps it
 * (RESERVED) until the program trims. It is kept in blocks that fit everywhere, so that what is free in the pool can
 * serve any graph, as pages do on a GPU. What an executable graph has run with counts as used (USED) as long as the
 * graph and the memory are there: "currently associated with graphs".
 */
#define _GNU_SOURCE
#include "cuda_graphmem.h"

#include "common_model.h"
#include "cuda_api.h"
#include "cuda_device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct graph_pool {
    struct heap_piece **spare; /* blocks that nothing is in */
    uint64_t spares, room;
    uint64_t reserved, reserved_high, allocated, used_high; /* bytes */
    uint64_t held; /* blocks that executable graphs have run with; they may have shared some */
};

static struct graph_pool graph_pools[SIM_MAX_GPUS];

/* ---- the pool ------------------------------------------------------------------------------------- */

static bool make_room(struct graph_pool *pool, uint64_t blocks) {
    if (blocks <= pool->room) {
        return true;
    }
    struct heap_piece **more = realloc(pool->spare, blocks * 2 * sizeof *more);
    if (more == NULL) {
        return false;
    }
    pool->spare = more;
    pool->room = blocks * 2;
    return true;
}

static void trim(struct graph_pool *pool, struct arena *arena, uint64_t keep) {
    while (pool->spares > keep) {
        arena_give(arena, pool->spare[--pool->spares]);
        pool->reserved -= MODEL_BLOCK_BYTES;
    }
}

static uint64_t used_of(const struct graph_pool *pool) {
    uint64_t blocks = model_graph_growth(pool->allocated / MODEL_BLOCK_BYTES);
    uint64_t bytes = (blocks > pool->held ? blocks : pool->held) * MODEL_BLOCK_BYTES;
    return bytes < pool->reserved ? bytes : pool->reserved;
}

static void note_used(struct graph_pool *pool) {
    if (used_of(pool) > pool->used_high) {
        pool->used_high = used_of(pool);
    }
}

/* So many blocks free in the pool, or none taken at all. */
static CUresult grow(CUdevice ordinal, uint64_t blocks) {
    struct graph_pool *pool = &graph_pools[ordinal];
    struct device *device;
    uint64_t before = pool->spares;
    CUresult result = blocks > before ? device_open(ordinal, &device) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || blocks <= before) {
        return result;
    }
    /* Room for what is allocated too, so that a free never has to find memory. */
    uint64_t in_use = pool->reserved / MODEL_BLOCK_BYTES - before;
    if (blocks * MODEL_BLOCK_BYTES > device->arena.size ||
        !make_room(pool, model_graph_growth(blocks) + before + in_use)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    blocks = before + model_graph_growth(blocks - before);
    while (pool->spares < blocks) {
        if (arena_take(&device->arena, MODEL_BLOCK_BYTES, &pool->spare[pool->spares]) != CUDA_SUCCESS) {
            trim(pool, &device->arena, before);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        pool->spares++;
        pool->reserved += MODEL_BLOCK_BYTES;
    }
    if (pool->reserved > pool->reserved_high) {
        pool->reserved_high = pool->reserved;
    }
    return CUDA_SUCCESS;
}

CUresult graph_memory_prepare(const struct graph_need *need, uint64_t held[SIM_MAX_GPUS]) {
    CUresult result = CUDA_SUCCESS;
    for (int device = 0; device < SIM_MAX_GPUS && result == CUDA_SUCCESS; device++) {
        uint64_t holds = model_graph_growth(need->most[device]);
        result = grow(device, need->most[device]);
        if (result == CUDA_SUCCESS && holds > held[device]) {
            graph_pools[device].held += holds - held[device];
            held[device] = holds;
            note_used(&graph_pools[device]);
        }
    }
    return result;
}

void graph_memory_let_go(uint64_t held[SIM_MAX_GPUS]) {
    for (int device = 0; device < SIM_MAX_GPUS; device++) {
        graph_pools[device].held -= held[device];
        held[device] = 0;
    }
}

/* ---- one allocation ------------------------------------------------------------------------------- */

static void *no_memory(void *place, uint64_t bytes) {
    return mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (place != NULL ? MAP_FIXED : 0),
                -1, 0);
}

static uint64_t bytes_of(const struct graph_memory *memory) {
    return memory->blocks * MODEL_BLOCK_BYTES;
}

static CUresult check_params(const CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    const CUmemPoolProps *properties = &params->poolProps;
    if (params->bytesize == 0 || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        (params->accessDescCount > 0 && params->accessDescs == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device_get(properties->location.id) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return params->bytesize > 1ull << 46 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult graph_memory_new(const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct graph_memory **result) {
    CUresult checked = check_params(params);
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    uint64_t bytes = model_blocks_bytes(params->bytesize);
    struct graph_memory *memory = calloc(1, sizeof *memory);
    void *room = memory == NULL ? MAP_FAILED : no_memory(NULL, bytes + MODEL_BLOCK_BYTES);
    if (room == MAP_FAILED) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    char *start = (char *)model_round_up((uint64_t)room, MODEL_BLOCK_BYTES), *end = (char *)room + bytes;
    munmap(room, (size_t)(start - (char *)room));
    munmap(start + bytes, (size_t)(end + MODEL_BLOCK_BYTES - (start + bytes)));
    memory->params = *params;
    memory->params.accessDescs = NULL; /* all devices reach all memory here */
    memory->params.accessDescCount = 0;
    memory->device = params->poolProps.location.id;
    memory->blocks = bytes / MODEL_BLOCK_BYTES;
    memory->users = 1;
    memory->pieces = calloc(memory->blocks, sizeof *memory->pieces);
    memory->range =
        memory->pieces == NULL ? NULL : memory_new(MEMORY_GRAPH, (CUdeviceptr)(uintptr_t)start, params->bytesize);
    if (memory->range == NULL) {
        munmap(start, bytes);
        free(memory->pieces);
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->range->device = memory->device;
    memory->range->origin = memory;
    memory->range->accessible = false;
    memory->params.dptr = memory->range->address;
    *result = memory;
    return CUDA_SUCCESS;
}

void graph_memory_use(struct graph_memory *memory) {
    memory->users++;
}

void graph_memory_drop(struct graph_memory *memory) {
    if (--memory->users > 0) {
        return;
    }
    munmap((void *)(uintptr_t)memory->range->address, bytes_of(memory));
    memory_end(memory->range);
    free(memory->pieces);
    free(memory);
}

struct graph_memory *graph_memory_at(CUdeviceptr pointer) {
    struct memory *range = memory_at(pointer);
    return range != NULL && range->kind == MEMORY_GRAPH && range->address == pointer ? range->origin : NULL;
}

static bool map_block(struct graph_memory *memory, uint64_t index, const struct arena *arena) {
    void *place = (void *)(uintptr_t)(memory->range->address + index * MODEL_BLOCK_BYTES);
    return mmap(place, MODEL_BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, arena->fd,
                (off_t)arena_offset(arena, memory->pieces[index]->base)) != MAP_FAILED;
}

static void give_blocks(struct graph_memory *memory, uint64_t count) {
    struct graph_pool *pool = &graph_pools[memory->device];
    no_memory((void *)(uintptr_t)memory->range->address, bytes_of(memory));
    while (count > 0) {
        pool->spare[pool->spares++] = memory->pieces[--count];
    }
}

CUresult graph_memory_allocate(struct graph_memory *memory) {
    struct graph_pool *pool = &graph_pools[memory->device];
    CUresult result = memory->allocated ? CUDA_ERROR_INVALID_VALUE : grow(memory->device, memory->blocks);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (uint64_t index = 0; index < memory->blocks; index++) {
        memory->pieces[index] = pool->spare[--pool->spares];
        if (!map_block(memory, index, &device_get(memory->device)->arena)) {
            give_blocks(memory, index + 1);
            return CUDA_ERROR_MAP_FAILED;
        }
    }
    memory->allocated = memory->range->accessible = true;
    memory->users++;
    pool->allocated += bytes_of(memory);
    note_used(pool);
    return CUDA_SUCCESS;
}

CUresult graph_memory_free(struct graph_memory *memory) {
    if (!memory->allocated) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    give_blocks(memory, memory->blocks);
    memory->allocated = memory->range->accessible = false;
    graph_pools[memory->device].allocated -= bytes_of(memory);
    graph_memory_drop(memory);
    return CUDA_SUCCESS;
}

/* ---- what a program asks -------------------------------------------------------------------------- */

static CUresult trim_device(CUdevice ordinal) {
    if (device_get(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct graph_pool *pool = &graph_pools[ordinal];
    uint64_t in_use = pool->reserved / MODEL_BLOCK_BYTES - pool->spares;
    trim(pool, &device_get(ordinal)->arena, model_graph_growth(in_use) - in_use); /* whole steps go back */
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUdevice ordinal, CUgraphMem_attribute attribute, uint64_t *value) {
    if (device_get(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const struct graph_pool *pool = &graph_pools[ordinal];
    const uint64_t values[] = {used_of(pool), pool->used_high, pool->reserved, pool->reserved_high};
    if (value == NULL || (unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = values[attribute];
    return CUDA_SUCCESS;
}

/* A high-water mark can only be reset. */
static CUresult set_attribute(CUdevice ordinal, CUgraphMem_attribute attribute, const uint64_t *value) {
    if (device_get(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct graph_pool *pool = &graph_pools[ordinal];
    if (value == NULL || *value != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        pool->used_high = used_of(pool);
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

API(cuDeviceGraphMemTrim, (CUdevice device), LOCKED(trim_device(device)))
API(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value),
    LOCKED(get_attribute(device, attribute, value)))
API(cuDeviceSetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value),
    LOCKED(set_attribute(device, attribute, value)))
