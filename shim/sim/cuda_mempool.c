/* cuda_mempool.c: stream-ordered memory and its pools.
 *
 * A pool takes memory of the GPU in steps (what it has reserved) and hands out parts of it (what is used). Memory
 * that the program frees stays with the pool; what lies above the release threshold goes back at the next
 * synchronise, step by step, as far as a step is wholly free. Streams are in order here, so a freed piece can be
 * handed out again at once.
 *
 * A pool of host memory takes it from an arena that is charged to nobody. A pool of managed memory takes it from a GPU,
 * as all managed memory does here: that of its preferred location, or else the current one.
 *
 * An exported pool is a duplicate of the descriptor of this process's arena, and an exported pointer is an offset in
 * it: the importer maps the same bytes and pays nothing.
 */
#define _GNU_SOURCE
#include "cuda_mempool.h"

#include "common_model.h"
#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_ipc.h"
#include "cuda_linear.h"
#include "cuda_share.h"
#include "cuda_stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUmemPoolHandle_st {
    CUdevice device; /* whose memory it hands out; 0 for host memory */
    bool host;
    CUmemPoolProps properties;
    struct heap heap;
    uint64_t reserved, reserved_high, used_high, threshold;
    int reuse[3];   /* the three REUSE attributes */
    uint32_t peers; /* devices that were given access, as bits */
    bool standing;  /* a default pool: cannot be destroyed */
    bool destroyed;
    size_t live;     /* allocations */
    int imported_fd; /* the exporter's arena, or -1 */
    struct CUmemPoolHandle_st *previous, *next;
};

struct exported_pointer {
    uint64_t magic, offset, size;
};

#define EXPORT_MAGIC 0x7265746e696f7067ull

static CUmemoryPool pools;
static struct arena host_arena;

/* The default and the current pool of places other than a device's own memory, which struct device has. */
static struct place {
    CUmemLocation location;
    CUmemAllocationType type;
    CUmemoryPool standing, current;
    struct place *next;
} *places;

static CUmemoryPool new_pool(CUdevice device, const CUmemPoolProps *properties) {
    CUmemoryPool pool = handle_new(HANDLE_POOL, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pool->device = device;
    pool->properties = *properties;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->imported_fd = -1;
    heap_init(&pool->heap, MODEL_SMALL_GRANULE);
    pool->next = pools;
    if (pools != NULL) {
        pools->previous = pool;
    }
    pools = pool;
    return pool;
}

static CUresult default_pool(CUdevice ordinal, CUmemoryPool *pool) {
    struct device *device;
    CUresult result = device_open(ordinal, &device);
    if (result == CUDA_SUCCESS && device->default_pool == NULL) {
        CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
        device->default_pool = device->current_pool = new_pool(ordinal, &properties);
        if (device->default_pool == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        device->default_pool->standing = true;
    }
    if (result == CUDA_SUCCESS) {
        *pool = device->default_pool;
    }
    return result;
}

static CUresult current_pool(CUdevice ordinal, CUmemoryPool *pool) {
    CUresult result = default_pool(ordinal, pool);
    if (result == CUDA_SUCCESS) {
        *pool = device_get(ordinal)->current_pool;
    }
    return result;
}

static struct arena *arena_of(CUmemoryPool pool) {
    return pool->host ? &host_arena : &device_get(pool->device)->arena;
}

/* Gives back steps of which nothing is used, until no more than `keep` bytes are reserved. */
static void trim(CUmemoryPool pool, uint64_t keep) {
    for (struct heap_range *range = pool->heap.ranges, *next; range != NULL && pool->reserved > keep; range = next) {
        struct heap_piece *step = range->origin;
        next = range->next;
        if (range->taken == 0) {
            pool->reserved -= step->size;
            heap_remove(range);
            arena_give(arena_of(pool), step);
        }
    }
}

static CUresult grow(CUmemoryPool pool, uint64_t size) {
    struct heap_piece *step;
    uint64_t bytes = model_pool_growth(size), most = pool->properties.maxSize;
    if (most != 0 && pool->reserved + bytes > model_pool_growth(most)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = arena_take(arena_of(pool), bytes, &step);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (heap_add(&pool->heap, step->base, step->size, step) == NULL) {
        arena_give(arena_of(pool), step);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->reserved += step->size;
    if (pool->reserved > pool->reserved_high) {
        pool->reserved_high = pool->reserved;
    }
    return CUDA_SUCCESS;
}

static CUresult take(CUmemoryPool pool, uint64_t size, struct memory **memory) {
    struct heap_piece *piece = heap_take(&pool->heap, size);
    if (piece == NULL) {
        CUresult result = grow(pool, size);
        if (result != CUDA_SUCCESS) {
            trim(pool, 0); /* free steps that are each too small for this */
            result = grow(pool, size);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        piece = heap_take(&pool->heap, size);
    }
    *memory = piece == NULL ? NULL : memory_new(MEMORY_POOLED, piece->base, size);
    if (*memory == NULL) {
        if (piece != NULL) {
            heap_give(piece);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*memory)->device = pool->device;
    (*memory)->host = pool->host;
    (*memory)->managed = pool->properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    (*memory)->pool = pool;
    (*memory)->piece = piece;
    pool->live++;
    if (pool->heap.taken > pool->used_high) {
        pool->used_high = pool->heap.taken;
    }
    return CUDA_SUCCESS;
}

/* A destroyed pool goes when its last allocation has gone. */
static void end_if_done(CUmemoryPool pool) {
    if (!pool->destroyed || pool->live > 0) {
        return;
    }
    if (pool->imported_fd >= 0) {
        close(pool->imported_fd);
    } else {
        trim(pool, 0);
    }
    if (pool->previous != NULL) {
        pool->previous->next = pool->next;
    } else {
        pools = pool->next;
    }
    if (pool->next != NULL) {
        pool->next->previous = pool->previous;
    }
    free(pool);
}

void mempool_give(struct memory *memory) {
    CUmemoryPool pool = memory->pool;
    heap_give(memory->piece);
    memory_end(memory);
    pool->live--;
    if (SIM_IS(pool_drop, free) && pool->imported_fd < 0) {
        trim(pool, pool->threshold);
    }
    end_if_done(pool);
}

void mempools_reset(CUdevice device) {
    for (struct memory *memory = memory_next(0), *next; memory != NULL; memory = next) {
        next = memory_next(memory->address + memory->size);
        if (memory->kind == MEMORY_POOLED && !memory->host && memory->device == device) {
            mempool_give(memory);
        }
    }
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        if (!pool->host && pool->device == device && pool->imported_fd < 0) {
            trim(pool, 0);
        }
    }
}

void mempools_trim_to_thresholds(CUdevice device) {
    driver_lock();
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        if ((pool->host || pool->device == device) && pool->imported_fd < 0 && !SIM_IS(pool_drop, trim)) {
            trim(pool, pool->threshold);
        }
    }
    driver_unlock();
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool) {
    struct memory *memory;
    if (pointer == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool->imported_fd >= 0) {
        return CUDA_ERROR_NOT_SUPPORTED; /* only its exporter allocates from it */
    }
    if (size == 0) { /* unlike cuMemAlloc, which refuses it */
        *pointer = 0;
        return CUDA_SUCCESS;
    }
    CUresult result = take(pool, size, &memory);
    if (result == CUDA_SUCCESS) {
        *pointer = memory->address;
    }
    return result;
}

static CUresult allocate_current(CUdeviceptr *pointer, size_t size, CUstream stream) {
    CUdevice device;
    CUmemoryPool pool;
    CUresult result = stream_device(stream, &device);
    if (result == CUDA_SUCCESS) {
        result = current_pool(device, &pool);
    }
    return result != CUDA_SUCCESS ? result : allocate(pointer, size, pool);
}

static CUresult allocate_from(CUdeviceptr *pointer, size_t size, CUmemoryPool pool) {
    return handle_is(pool, HANDLE_POOL) ? allocate(pointer, size, pool) : CUDA_ERROR_INVALID_VALUE;
}

/* In a capture an allocation becomes an alloc node, on the pool's device, and has its address at once. */
static CUresult capture_alloc(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUcontext context;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = size};
    if (pointer == NULL || (pool != NULL && !handle_is(pool, HANDLE_POOL))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool != NULL && (pool->host || pool->properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (size == 0) {
        *pointer = 0;
        return CUDA_SUCCESS;
    }
    driver_lock();
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        params.poolProps =
            (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, pool != NULL ? pool->device : context->device}};
        result = graph_memory_new(&params, &operation.memory);
    }
    driver_unlock();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUdeviceptr address = operation.memory->params.dptr;
    result = capture_add(stream, &operation);
    if (result == CUDA_SUCCESS) {
        *pointer = address;
        return result;
    }
    driver_lock();
    graph_memory_drop(operation.memory);
    driver_unlock();
    return result;
}

static CUresult capture_free(CUdeviceptr pointer, CUstream stream) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = pointer};
    driver_lock();
    bool known = graph_memory_at(pointer) != NULL;
    driver_unlock();
    return known ? capture_add(stream, &operation) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult alloc_async(CUdeviceptr *pointer, size_t size, CUstream stream) {
    if (capture_concerns(stream)) {
        return capture_alloc(pointer, size, NULL, stream);
    }
    CUresult result = UNSAFE(stream_enter(stream));
    return result != CUDA_SUCCESS ? result : LOCKED(allocate_current(pointer, size, stream));
}

static CUresult alloc_from_async(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    if (capture_concerns(stream)) {
        return pool == NULL ? CUDA_ERROR_INVALID_VALUE : capture_alloc(pointer, size, pool, stream);
    }
    CUresult result = UNSAFE(stream_enter(stream));
    return result != CUDA_SUCCESS ? result : LOCKED(allocate_from(pointer, size, pool));
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream) {
    if (capture_concerns(stream)) {
        return capture_free(pointer, stream);
    }
    CUresult result = UNSAFE(stream_enter(stream));
    return result != CUDA_SUCCESS ? result : LOCKED(linear_release(pointer));
}

API_TWIN(cuMemAllocAsync, _ptsz, (CUdeviceptr * pointer, size_t size, CUstream stream),
         alloc_async(pointer, size, stream))
API_TWIN(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * pointer, size_t size, CUmemoryPool pool, CUstream stream),
         alloc_from_async(pointer, size, pool, stream))
API_TWIN(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream stream), free_async(pointer, stream))

static CUresult set_pool(CUdevice ordinal, CUmemoryPool pool) {
    CUmemoryPool ignored;
    CUresult result = default_pool(ordinal, &ignored);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!handle_is(pool, HANDLE_POOL) || pool->device != ordinal || pool->host || pool->imported_fd >= 0 ||
        pool->properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    device_get(ordinal)->current_pool = pool;
    return CUDA_SUCCESS;
}

API(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device),
    pool == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(default_pool(device, pool)))
API(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device),
    pool == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(current_pool(device, pool)))
API(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), LOCKED(set_pool(device, pool)))

/* The functions of CUDA 13 name a place and a type of memory. */
static CUresult check_place(const CUmemLocation *location, CUmemAllocationType type) {
    if (location == NULL || (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_get(location->id) == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_NONE:
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_own_memory(const CUmemLocation *location, CUmemAllocationType type) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

static CUresult open_host(void) {
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return host_arena.size != 0 ? CUDA_SUCCESS : arena_open(&host_arena, ARENA_OF_HOST, bytes);
}

/* A pool that takes from the arena of its place. */
static CUresult make(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct device *device;
    CUcontext context;
    CUdevice ordinal = properties->location.id;
    bool managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    bool host = !managed && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        ordinal = managed && context_current(&context) == CUDA_SUCCESS ? context->device : 0;
    }
    CUresult result = host ? open_host() : device_open(ordinal, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *pool = new_pool(ordinal, properties);
    if (*pool == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*pool)->host = host;
    return CUDA_SUCCESS;
}

static CUresult find_place(const CUmemLocation *location, CUmemAllocationType type, struct place **result) {
    bool numbered = location->type == CU_MEM_LOCATION_TYPE_DEVICE || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    CUmemPoolProps properties = {.allocType = type, .location = {location->type, numbered ? location->id : 0}};
    for (struct place *place = places; place != NULL; place = place->next) {
        if (place->type == type && place->location.type == location->type &&
            place->location.id == properties.location.id) {
            *result = place;
            return CUDA_SUCCESS;
        }
    }
    struct place *fresh = calloc(1, sizeof *fresh);
    CUresult made = fresh == NULL ? CUDA_ERROR_OUT_OF_MEMORY : make(&fresh->standing, &properties);
    if (made != CUDA_SUCCESS) {
        free(fresh);
        return made;
    }
    fresh->location = properties.location;
    fresh->type = type;
    fresh->current = fresh->standing;
    fresh->standing->standing = true;
    fresh->next = places;
    *result = places = fresh;
    return CUDA_SUCCESS;
}

static CUresult get_of_place(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type,
                             bool standing) {
    struct place *place;
    CUresult result = pool == NULL ? CUDA_ERROR_INVALID_VALUE : check_place(location, type);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (is_own_memory(location, type)) {
        return standing ? default_pool(location->id, pool) : current_pool(location->id, pool);
    }
    result = find_place(location, type, &place);
    if (result == CUDA_SUCCESS) {
        *pool = standing ? place->standing : place->current;
    }
    return result;
}

static CUresult set_of_place(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    struct place *place;
    CUresult result = check_place(location, type);
    if (result != CUDA_SUCCESS || is_own_memory(location, type)) {
        return result != CUDA_SUCCESS ? result : set_pool(location->id, pool);
    }
    result = find_place(location, type, &place);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!handle_is(pool, HANDLE_POOL) || pool->imported_fd >= 0 || pool->properties.allocType != type ||
        pool->properties.location.type != location->type ||
        (location->type == CU_MEM_LOCATION_TYPE_DEVICE && pool->device != location->id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    place->current = pool;
    return CUDA_SUCCESS;
}

API(cuMemGetDefaultMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
    LOCKED(get_of_place(pool, location, type, true)))
API(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
    LOCKED(get_of_place(pool, location, type, false)))
API(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool),
    LOCKED(set_of_place(location, type, pool)))

/* Only memory of a device or of a NUMA node can be handed to another process. */
static CUresult create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (pool == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemPoolProps whole = *properties;
    whole.location = device_whole(&properties->location);
    CUresult result = check_place(&whole.location, properties->allocType);
    if (result == CUDA_SUCCESS && properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ||
         properties->location.type == CU_MEM_LOCATION_TYPE_HOST)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    return result != CUDA_SUCCESS ? result : make(pool, &whole);
}

static CUresult destroy(CUmemoryPool pool) {
    if (!handle_is(pool, HANDLE_POOL) || pool->standing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct device *device = device_get(pool->device);
    if (device->current_pool == pool) {
        device->current_pool = device->default_pool;
    }
    for (struct place *place = places; place != NULL; place = place->next) {
        place->current = place->current == pool ? place->standing : place->current;
    }
    handle_forget(pool);
    pool->destroyed = true;
    end_if_done(pool);
    return CUDA_SUCCESS;
}

static CUresult trim_to(CUmemoryPool pool, size_t keep) {
    if (!handle_is(pool, HANDLE_POOL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    trim(pool, keep);
    return CUDA_SUCCESS;
}

API(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties), LOCKED(create(pool, properties)))
API(cuMemPoolDestroy, (CUmemoryPool pool), LOCKED(destroy(pool)))
API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), UNSAFE(LOCKED(trim_to(pool, keep))))

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value) {
    if (!handle_is(pool, HANDLE_POOL) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&pool->threshold, value, sizeof(uint64_t));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const uint64_t *)value != 0) { /* a high-water mark can only be reset */
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
            pool->reserved_high = pool->reserved;
        } else {
            pool->used_high = pool->heap.taken;
        }
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    if (!handle_is(pool, HANDLE_POOL) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = pool->heap.taken;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

API(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value),
    LOCKED(set_attribute(pool, attribute, value)))
API(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value),
    LOCKED(get_attribute(pool, attribute, value)))

/* A pool's own device, or the host for its memory, cannot be shut out. All devices reach all memory here, whatever is
 * set; what is set is what is told. */
static bool is_own(CUmemoryPool pool, const CUmemLocation *location) {
    return pool->host ? location->type != CU_MEM_LOCATION_TYPE_DEVICE
                      : location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == pool->device;
}

static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    if (!handle_is(pool, HANDLE_POOL) || (map == NULL && count > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < count; index++) {
        const CUmemLocation *location = &map[index].location;
        bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
        if ((!device && !pool->host) || (device && device_get(location->id) == NULL)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (is_own(pool, location) && map[index].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (size_t index = 0; index < count; index++) {
        uint32_t bit = map[index].location.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1u << map[index].location.id : 0;
        pool->peers = map[index].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? pool->peers & ~bit : pool->peers | bit;
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(CUmemAccess_flags *flags, CUmemoryPool pool, const CUmemLocation *location) {
    if (flags == NULL || location == NULL || !handle_is(pool, HANDLE_POOL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE && device_get(location->id) != NULL;
    *flags = is_own(pool, location) || (device && (pool->peers & 1u << location->id) != 0)
                 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

API(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count),
    LOCKED(set_access(pool, map, count)))
API(cuMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation *location),
    LOCKED(get_access(flags, pool, location)))

static CUresult export_pool(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type) {
    if (handle == NULL || !handle_is(pool, HANDLE_POOL) || pool->imported_fd >= 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (pool->properties.handleTypes & type) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = fcntl(arena_of(pool)->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)handle = fd;
    pool_mark(POOL_EXPORTED, 1);
    return CUDA_SUCCESS;
}

static CUresult import_pool(CUmemoryPool *pool, int fd, CUmemAllocationHandleType type) {
    struct share_label label;
    bool host = share_read(fd, SHARE_HOST, &label);
    if (pool == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (!host && !share_read(fd, SHARE_ARENA, &label))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int device = host ? 0 : device_of_uuid(label.uuid);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool fresh = own < 0 ? NULL : new_pool(device, &properties);
    if (fresh == NULL) {
        close(own);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    fresh->imported_fd = own;
    fresh->host = host;
    pool_mark(POOL_IMPORTED, 1);
    *pool = fresh;
    return CUDA_SUCCESS;
}

API(cuMemPoolExportToShareableHandle,
    (void *handle, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(export_pool(handle, pool, type)))
API(cuMemPoolImportFromShareableHandle,
    (CUmemoryPool * pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(import_pool(pool, (int)(intptr_t)handle, type)))

static CUresult export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer) {
    const struct memory *memory = memory_at(pointer);
    if (data == NULL || memory == NULL || memory->kind != MEMORY_POOLED || memory->address != pointer ||
        memory->pool->properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct exported_pointer exported = {EXPORT_MAGIC, arena_offset(arena_of(memory->pool), pointer), memory->size};
    memset(data, 0, sizeof *data);
    memcpy(data, &exported, sizeof exported);
    return CUDA_SUCCESS;
}

static CUresult import_pointer(CUdeviceptr *pointer, CUmemoryPool pool, const CUmemPoolPtrExportData *data) {
    struct exported_pointer exported;
    struct memory *memory;
    if (pointer == NULL || data == NULL || !handle_is(pool, HANDLE_POOL) || pool->imported_fd < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&exported, data, sizeof exported);
    if (exported.magic != EXPORT_MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = ipc_map(pool->imported_fd, exported.offset, exported.size, pool->device, &memory);
    if (result == CUDA_SUCCESS) {
        memory->pool = pool;
        memory->host = pool->host;
        *pointer = memory->address;
    }
    return result;
}

API(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer), LOCKED(export_pointer(data, pointer)))
API(cuMemPoolImportPointer, (CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data),
    LOCKED(import_pointer(pointer, pool, data)))
