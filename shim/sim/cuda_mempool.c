/* cuda_mempool.c: stream-ordered memory and its pools.
 *
 * A pool takes memory of the GPU in steps (what it has reserved) and hands out parts of it (what is used). Memory
 * that the program frees stays with the pool; what lies above the release threshold goes back at the next
 * synchronise, step by step, as far as a step is wholly free. Streams are in order here, so a freed piece can be
 * handed out again at once.
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
    CUdevice device;
    CUmemPoolProps properties;
    struct heap heap;
    uint64_t reserved, reserved_high, used_high, threshold;
    int reuse[3];  /* the three REUSE attributes */
    bool standing; /* the device's default pool: cannot be destroyed */
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
    return &device_get(pool->device)->arena;
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
    end_if_done(pool);
}

void mempools_settle(CUdevice device) {
    driver_lock();
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device == device && pool->imported_fd < 0) {
            trim(pool, pool->threshold);
        }
    }
    driver_unlock();
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool) {
    struct memory *memory;
    if (pointer == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool->imported_fd >= 0) {
        return CUDA_ERROR_NOT_SUPPORTED; /* only its exporter allocates from it */
    }
    CUresult result = take(pool, size, &memory);
    if (result == CUDA_SUCCESS) {
        *pointer = memory->address;
    }
    return result;
}

static CUresult allocate_current(CUdeviceptr *pointer, size_t size) {
    CUcontext context;
    CUmemoryPool pool;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = current_pool(context->device, &pool);
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
    CUresult result = stream_enter(stream);
    return result != CUDA_SUCCESS ? result : LOCKED(allocate_current(pointer, size));
}

static CUresult alloc_from_async(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    if (capture_concerns(stream)) {
        return pool == NULL ? CUDA_ERROR_INVALID_VALUE : capture_alloc(pointer, size, pool, stream);
    }
    CUresult result = stream_enter(stream);
    return result != CUDA_SUCCESS ? result : LOCKED(allocate_from(pointer, size, pool));
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream) {
    if (capture_concerns(stream)) {
        return capture_free(pointer, stream);
    }
    CUresult result = stream_enter(stream);
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
    if (!handle_is(pool, HANDLE_POOL) || pool->device != ordinal || pool->imported_fd >= 0) {
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

/* The functions of CUDA 13 name a place and a type; there are only pinned pools on devices. */
static CUresult check_place(const CUmemLocation *location, CUmemAllocationType type) {
    if (location == NULL || type == CU_MEM_ALLOCATION_TYPE_INVALID) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    ENTER(cuMemGetDefaultMemPool);
    CUresult result = pool == NULL ? CUDA_ERROR_INVALID_VALUE : check_place(location, type);
    return result != CUDA_SUCCESS ? result : LOCKED(default_pool(location->id, pool));
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    ENTER(cuMemGetMemPool);
    CUresult result = pool == NULL ? CUDA_ERROR_INVALID_VALUE : check_place(location, type);
    return result != CUDA_SUCCESS ? result : LOCKED(current_pool(location->id, pool));
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    ENTER(cuMemSetMemPool);
    CUresult result = check_place(location, type);
    return result != CUDA_SUCCESS ? result : LOCKED(set_pool(location->id, pool));
}

static CUresult create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct device *device;
    if (pool == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = check_place(&properties->location, properties->allocType);
    if (result == CUDA_SUCCESS && (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        result = device_open(properties->location.id, &device);
    }
    if (result == CUDA_SUCCESS) {
        CUmemoryPool fresh = new_pool(properties->location.id, properties);
        if (fresh == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *pool = fresh;
    }
    return result;
}

static CUresult destroy(CUmemoryPool pool) {
    if (!handle_is(pool, HANDLE_POOL) || pool->standing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct device *device = device_get(pool->device);
    if (device->current_pool == pool) {
        device->current_pool = device->default_pool;
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
API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), LOCKED(trim_to(pool, keep)))

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

/* All devices reach all memory here; a pool's own device cannot be shut out. */
static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    if (!handle_is(pool, HANDLE_POOL) || (map == NULL && count > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < count; index++) {
        if (map[index].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_get(map[index].location.id) == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (map[index].location.id == pool->device && map[index].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(CUmemAccess_flags *flags, CUmemoryPool pool, const CUmemLocation *location) {
    if (flags == NULL || location == NULL || !handle_is(pool, HANDLE_POOL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == pool->device
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
    return CUDA_SUCCESS;
}

static CUresult import_pool(CUmemoryPool *pool, int fd, CUmemAllocationHandleType type) {
    struct share_label label;
    if (pool == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !share_read(fd, SHARE_ARENA, &label)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int device = device_of_uuid(label.uuid);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool fresh = own < 0 ? NULL : new_pool(device, &properties);
    if (fresh == NULL) {
        close(own);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    fresh->imported_fd = own;
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
        *pointer = memory->address;
    }
    return result;
}

API(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer), LOCKED(export_pointer(data, pointer)))
API(cuMemPoolImportPointer, (CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data),
    LOCKED(import_pointer(pointer, pool, data)))
