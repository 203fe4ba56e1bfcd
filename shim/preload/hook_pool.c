/* hook_pool.c: stream-ordered memory (pool.h says how it is charged).
 *
 * Where a pool has grown by more than the credit holds, the allocation is undone, the pool trimmed, and the call tried
 * once more. While a stream is being captured nothing is allocated (a node is added to a graph), and most calls are
 * forbidden: the call goes straight through.
 */
#include "gate.h"
#include "hooks.h"
#include "pool.h"
#include "stream.h"

/* ---- which pool is current --------------------------------------------------------------------------- */

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    bool on = gs_on();
    CUresult result = gs_driver.cuDeviceSetMemPool(device, pool);
    if (on)
        gs_pool_chosen();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    bool on = gs_on();
    CUresult result = gs_driver.cuMemSetMemPool(location, type, pool);
    if (on)
        gs_pool_chosen();
    return result;
}

/* ---- allocating ----------------------------------------------------------------------------------- */

/* The driver's functions come in two variants, for the two kinds of default stream. Their addresses are known only when
 * the driver is found, so a variant has the places where the addresses are kept. */
struct variant {
    __typeof__(&cuMemAllocAsync) *allocate;
    __typeof__(&cuMemAllocFromPoolAsync) *allocate_from;
    __typeof__(&cuMemFreeAsync) *free;
    __typeof__(&cuStreamIsCapturing) *is_capturing;
};

static const struct variant legacy = {&gs_driver.cuMemAllocAsync, &gs_driver.cuMemAllocFromPoolAsync,
                                      &gs_driver.cuMemFreeAsync, &gs_driver.cuStreamIsCapturing};
static const struct variant per_thread = {&gs_driver.cuMemAllocAsync_ptsz, &gs_driver.cuMemAllocFromPoolAsync_ptsz,
                                          &gs_driver.cuMemFreeAsync_ptsz, &gs_driver.cuStreamIsCapturing_ptsz};

/* One allocation, whichever of the four functions it came by. */
struct request {
    const struct variant *driver;
    CUdeviceptr *pointer;
    size_t size;
    CUmemoryPool pool; /* NULL: the current one */
    CUstream stream;
};

GS_INLINE CUresult call(const struct request *request) {
    if (request->pool == NULL)
        return (*request->driver->allocate)(request->pointer, request->size, request->stream);
    return (*request->driver->allocate_from)(request->pointer, request->size, request->pool, request->stream);
}

GS_INLINE bool is_counted(const struct variant *driver, CUstream stream) {
    return gs_on() && !gs_stream_is_captured(*driver->is_capturing, stream);
}

/* The pool that a call takes from: the one that it names, or else the current one of the stream's device. */
GS_INLINE struct gs_pool *pool_for(const struct request *request) {
    struct gs_place place;
    if (request->pool != NULL)
        return gs_pool_of(request->pool);
    place.gpu = gs_stream_gpu(request->stream);
    if (place.gpu == NULL && (!gs_place_current(&place) || place.gpu == NULL))
        return NULL;
    CUmemoryPool current = gs_pool_current(place.gpu->index);
    return current != NULL ? gs_pool_of(current) : NULL;
}

GS_INLINE bool note(const struct request *request, struct gs_pool *pool, uint32_t units) {
    struct gs_entry displaced, entry = {.key = *request->pointer,
                                        .units = units,
                                        .detail = gs_pool_number(pool),
                                        .gpu = gs_gpu_number(pool->gpu),
                                        .kind = GS_POOLED};
    if (__builtin_expect(!gs_table_put(&gs_pointers, &entry, &displaced), 0))
        return false;
    if (__builtin_expect(displaced.key != 0, 0))
        gs_entry_freed((struct gs_entry[]){displaced});
    return true;
}

/* `undone`: the driver had succeeded. */
static CUresult try_once(const struct request *request, struct gs_pool *pool, uint32_t units, bool *undone) {
    *undone = false;
    if (!gs_pool_enter(pool, units))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call(request);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && gs_account_driver_failed(pool->gpu, units))
        result = call(request);
    if (result != CUDA_SUCCESS) {
        gs_pool_leave(pool, units);
        gs_pool_correct(pool);
        return result;
    }
    bool noted = note(request, pool, units);
    if (noted && gs_pool_correct_asking(pool))
        return CUDA_SUCCESS;
    struct gs_entry entry;
    if (noted)
        gs_table_take(&gs_pointers, *request->pointer, &entry);
    (*request->driver->free)(*request->pointer, request->stream);
    gs_pool_leave(pool, units);
    *undone = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A pool grows in steps, and by a whole one beside what it has and cannot use. Once that has gone back, what is asked
 * for may fit. */
static CUresult allocate(const struct request *request) {
    struct gs_pool *pool = pool_for(request);
    uint32_t units = gs_units(request->size);
    bool undone;
    /* Nothing takes nothing, and its address may be 0, which the table has no place for. */
    if (request->pointer == NULL || request->size == 0 || pool == NULL || pool->gpu == NULL)
        return call(request);
    if (!gs_gpu_is_attached(pool->gpu) && !gs_place_attach(pool->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = try_once(request, pool, units, &undone);
    if (undone && gs_pool_undo_growth(pool)) {
        result = try_once(request, pool, units, &undone);
        if (undone)
            gs_pool_undo_growth(pool);
    }
    return result;
}

GS_INLINE CUresult release(const struct variant *driver, CUdeviceptr pointer, CUstream stream) {
    struct gs_entry entry;
    if (!is_counted(driver, stream) || !gs_table_take(&gs_pointers, pointer, &entry)) {
        gs_unknown_freed(pointer);
        return (*driver->free)(pointer, stream);
    }
    return gs_entry_released(&gs_pointers, &entry, (*driver->free)(pointer, stream));
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
    struct request request = {&legacy, pointer, size, NULL, stream};
    return is_counted(&legacy, stream) ? allocate(&request) : call(&request);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream) {
    struct request request = {&per_thread, pointer, size, NULL, stream};
    return is_counted(&per_thread, stream) ? allocate(&request) : call(&request);
}

/* Without a pool it is an error, and the driver's to say. */
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    struct request request = {&legacy, pointer, size, pool, stream};
    return is_counted(&legacy, stream) && pool != NULL ? allocate(&request)
                                                       : gs_driver.cuMemAllocFromPoolAsync(pointer, size, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    struct request request = {&per_thread, pointer, size, pool, stream};
    return is_counted(&per_thread, stream) && pool != NULL
               ? allocate(&request)
               : gs_driver.cuMemAllocFromPoolAsync_ptsz(pointer, size, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return release(&legacy, pointer, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return release(&per_thread, pointer, stream);
}

/* ---- pools ---------------------------------------------------------------------------------------- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    bool on = gs_on();
    CUresult result = gs_driver.cuMemPoolCreate(pool, properties);
    if (!on || result != CUDA_SUCCESS)
        return result;
    gs_pool_add(*pool, gs_pool_place(&properties->location, properties->allocType));
    return result;
}

/* A default pool is not created by the program: that of a place is known from here on. */
static CUresult meet(CUresult result, bool on, const CUmemoryPool *pool, const CUmemLocation *location,
                     CUmemAllocationType type) {
    if (on && result == CUDA_SUCCESS && gs_pool_find(*pool) == NULL)
        gs_pool_add(*pool, gs_pool_place(location, type));
    return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    bool on = gs_on();
    return meet(gs_driver.cuMemGetDefaultMemPool(pool, location, type), on, pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    bool on = gs_on();
    return meet(gs_driver.cuMemGetMemPool(pool, location, type), on, pool, location, type);
}

/* The exporter pays. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
    bool on = gs_on();
    CUresult result = gs_driver.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
    if (on && result == CUDA_SUCCESS)
        gs_pool_add(*pool, NULL);
    return result;
}

/* Marked before the driver destroys it: afterwards its handle may be another's. */
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct gs_pool *pool = gs_on() ? gs_pool_find(handle) : NULL;
    if (pool != NULL)
        gs_pool_begin_to_destroy(pool);
    CUresult result = gs_driver.cuMemPoolDestroy(handle);
    if (pool != NULL)
        gs_pool_end_destroying(pool, result == CUDA_SUCCESS);
    gs_pool_chosen(); /* a device has another current pool, if it was this one */
    return result;
}

/* After a call that may have made the pool give memory back. */
static void look_again(CUmemoryPool handle) {
    struct gs_pool *pool = gs_on() ? gs_pool_find(handle) : NULL;
    if (pool != NULL && pool->gpu != NULL && pool->gpu->line != NULL)
        gs_pool_correct(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    struct gs_inside *inside = gs_gate_enter();
    CUresult result = gs_gate_leave(inside, gs_driver.cuMemPoolTrimTo(pool, keep));
    look_again(pool);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    gs_on();
    CUresult result = gs_driver.cuMemPoolSetAttribute(pool, attribute, value);
    look_again(pool);
    return result;
}
