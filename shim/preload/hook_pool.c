/* hook_pool.c: stream-ordered memory.
 *
 * A pool keeps memory after it has been freed, and an allocation may cost nothing or grow the pool by much more than
 * its size. So not allocations are charged but pools, by the bytes that they have reserved (a number that the driver
 * tells), and that is put right after each call that could change it:
 *
 *   charged  what is reserved of the credit for the pool
 *   live     what the program holds of it, in allocations that we saw
 *   pending  what some thread is about to add to charged, because live has outgrown it
 *
 * Before an allocation, room is made for what does not fit into `charged`; after it, charged becomes what the driver
 * says, but never less than live: another thread may be between its reservation and its call. Where the pool has grown
 * by more than the credit holds, the allocation is undone, the pool trimmed, and the call tried once more.
 * Memory goes back when the program synchronises. So after each synchronisation the pools are looked at that are
 * charged more than the program holds; and also at the next allocation from the pool, when the program asks what is
 * free, and before anything is refused. A pool that holds more than it is charged is trimmed at each of these.
 *
 * While a stream is being captured nothing is allocated (a node is added to a graph), and most calls are forbidden:
 * the call goes straight through. Pools in host memory and pools of other processes cost us nothing. Managed memory
 * may all be on a GPU at some time, wherever it would rather be, so its pools count in full.
 */
#include "hooks.h"

#include <string.h>

#define MAX_POOLS     512
#define MAX_ROUNDS    4
#define KNOWN_STREAMS 512

enum pool_state {
    UNUSED,
    ALIVE,
    DYING,    /* the driver is about to destroy it, and nobody else touches it */
    DESTROYED /* but memory from it is still held */
};

/* Changed under the mutex only; state and handle are read without. */
struct pool {
    CUmemoryPool handle;
    struct gs_gpu *gpu; /* NULL: costs nothing here */
    enum pool_state state;
    uint32_t charged, live, pending; /* units */
    bool may_shrink; /* charged more than live, or less than reserved: the driver may give some of it back */
    bool over;       /* charged less than reserved: the credit did not hold what the driver has taken */
    struct gs_mutex mutex;
};

static struct pool pools[MAX_POOLS];
static uint32_t pool_count; /* how many of them have ever been used */
static struct gs_mutex adding;
static uint32_t shrinkable; /* how many pools may shrink: without any, a synchronisation costs nothing more */

/* ---- the list ------------------------------------------------------------------------------------- */

static uint32_t count(void) {
    return __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
}

static enum pool_state state_of(const struct pool *pool) {
    return __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE);
}

static struct pool *find_pool(CUmemoryPool handle) {
    uint32_t last = count();
    for (struct pool *pool = pools; pool < pools + last; pool++)
        if (state_of(pool) == ALIVE && __atomic_load_n(&pool->handle, __ATOMIC_RELAXED) == handle)
            return pool;
    return NULL;
}

static struct pool *find_unused(void) {
    for (struct pool *pool = pools; pool < pools + MAX_POOLS; pool++)
        if (state_of(pool) == UNUSED)
            return pool;
    return NULL;
}

/* NULL: there are too many; what it takes is left to measuring. */
static struct pool *add_pool(CUmemoryPool handle, struct gs_gpu *gpu) {
    gs_mutex_lock(&adding);
    struct pool *pool = find_pool(handle); /* two threads may have met it at the same time */
    if (pool == NULL && (pool = find_unused()) != NULL) {
        gs_mutex_lock(&pool->mutex);
        __atomic_store_n(&pool->handle, handle, __ATOMIC_RELAXED);
        pool->gpu = gpu;
        __atomic_store_n(&pool->state, ALIVE, __ATOMIC_RELEASE);
        gs_mutex_unlock(&pool->mutex);
        if (pool == pools + pool_count)
            __atomic_store_n(&pool_count, pool_count + 1, __ATOMIC_RELEASE);
    }
    gs_mutex_unlock(&adding);
    return pool;
}

/* The GPU that a pool of this place is charged on; NULL: it costs nothing. */
static struct gs_gpu *gpu_of_place(const CUmemLocation *location, CUmemAllocationType type) {
    struct gs_place place = {0};
    if (cuda_device_of(location) >= 0)
        return gs_gpu_of(cuda_device_of(location));
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return NULL;
    return gs_place_current(&place) && place.gpu != NULL ? place.gpu : gs_gpu_of(0);
}

/* A pool that we did not see being made is the default pool of some device, or one that costs nothing: those of other
 * places have been seen when the program asked for them. */
static struct gs_gpu *gpu_of_default_pool(CUmemoryPool handle) {
    int devices = 0;
    CUmemoryPool pool;
    if (gs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return NULL;
    for (CUdevice device = 0; device < devices; device++)
        if (gs_driver.cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS && pool == handle)
            return gs_gpu_of(device);
    return NULL;
}

static struct pool *pool_of(CUmemoryPool handle) {
    struct pool *pool = find_pool(handle);
    struct gs_gpu *gpu = NULL;
    if (pool != NULL)
        return pool;
    GS_RELAXED(gpu = gpu_of_default_pool(handle));
    return add_pool(handle, gpu);
}

/* ---- the account of one pool ---------------------------------------------------------------------- */

/* Under the pool's mutex. */
static uint32_t target_of(struct pool *pool) {
    uint64_t reserved = 0;
    uint32_t held = pool->live > pool->pending ? pool->live - pool->pending : 0;
    CUresult result = CUDA_SUCCESS;
    if (pool->state == DYING)
        return pool->charged;
    if (pool->state == DESTROYED) /* what it has reserved for what is left, nobody can ask any more */
        return pool->live != 0 ? pool->charged : 0;
    GS_RELAXED_IN_CAPTURES(
        result = gs_driver.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    if (result != CUDA_SUCCESS)
        return pool->charged;
    uint32_t units = gs_units(reserved);
    return units > held ? units : held;
}

static void become(struct pool *pool, enum pool_state state) {
    if (state == UNUSED)
        __atomic_store_n(&pool->handle, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->state, state, __ATOMIC_RELEASE);
}

/* Under the pool's mutex. */
static void note_excess(struct pool *pool) {
    bool excess = pool->charged > pool->live || pool->over;
    if (excess == pool->may_shrink)
        return;
    pool->may_shrink = excess;
    if (excess)
        __atomic_fetch_add(&shrinkable, 1, __ATOMIC_RELAXED);
    else
        __atomic_fetch_sub(&shrinkable, 1, __ATOMIC_RELAXED);
}

static void trim(struct pool *pool) {
    if (pool->state == ALIVE)
        GS_RELAXED(gs_driver.cuMemPoolTrimTo(pool->handle, 0));
}

/* Charge what the driver says. Returns how much could not be, because the credit does not hold it. */
static uint32_t settle_locked(struct pool *pool) {
    uint32_t lacking = 0, target = target_of(pool);
    if (pool->over && target > pool->charged) {
        trim(pool);
        target = target_of(pool);
    }
    if (target < pool->charged) {
        gs_release(pool->gpu->line, pool->charged - target);
        pool->charged = target;
    } else if (target > pool->charged) {
        if (gs_reserve(pool->gpu->line, target - pool->charged))
            pool->charged = target;
        else
            lacking = target - pool->charged;
    }
    pool->over = lacking != 0 && pool->over;
    note_excess(pool);
    if (pool->state == DESTROYED && pool->live == 0 && pool->pending == 0)
        become(pool, UNUSED);
    return lacking;
}

static uint32_t settle(struct pool *pool) {
    gs_mutex_lock(&pool->mutex);
    uint32_t lacking = settle_locked(pool);
    gs_mutex_unlock(&pool->mutex);
    return lacking;
}

/* The same, asking for what is lacking. false: refused. */
static bool settle_up(struct pool *pool) {
    for (int round = 0; round < MAX_ROUNDS; round++) {
        uint32_t lacking = settle(pool);
        if (lacking != 0 && pool->gpu->own) { /* there is nobody to ask: what the pools keep is all that there is */
            gs_account_give_back(pool->gpu, true);
            lacking = settle(pool);
        }
        if (lacking == 0)
            return true;
        /* Taken and given back at once: it is then in our credit, and settle takes it under the mutex. */
        if (!gs_account_reserve(pool->gpu, lacking))
            return settle(pool) == 0; /* asking has trimmed the pools before it was refused */
        gs_release(pool->gpu->line, lacking);
    }
    return false;
}

/* An allocation is about to be made. false: refused. */
static bool enter(struct pool *pool, uint32_t units) {
    gs_mutex_lock(&pool->mutex);
    uint64_t covered = (uint64_t)pool->charged + pool->pending, live = (uint64_t)pool->live + units;
    uint32_t growth = live > covered ? (uint32_t)(live - covered) : 0;
    if (live > UINT32_MAX) {
        gs_mutex_unlock(&pool->mutex);
        return false;
    }
    pool->live += units;
    pool->pending += growth;
    gs_mutex_unlock(&pool->mutex);

    bool good = growth == 0 || gs_account_reserve(pool->gpu, growth);
    gs_mutex_lock(&pool->mutex);
    pool->pending -= growth;
    if (good)
        pool->charged += growth;
    else
        pool->live -= units;
    gs_mutex_unlock(&pool->mutex);
    return good;
}

/* An allocation is gone. What the pool has reserved for it may go back later, and is looked at then; a pool that nobody
 * can ask any more ends with its last one. */
static void leave(struct pool *pool, uint32_t units) {
    gs_mutex_lock(&pool->mutex);
    pool->live -= units < pool->live ? units : pool->live;
    if (pool->state == DESTROYED)
        settle_locked(pool);
    else
        note_excess(pool);
    gs_mutex_unlock(&pool->mutex);
}

void gs_pool_freed(const struct gs_entry *entry) {
    leave(&pools[entry->detail], entry->units);
}

/* An allocation was undone because the pool had grown by more than the credit holds. true: some of that is back. */
static bool undo_growth(struct pool *pool) {
    gs_mutex_lock(&pool->mutex);
    uint32_t before = target_of(pool);
    pool->over = true;
    settle_locked(pool);
    bool shrunk = target_of(pool) < before;
    gs_mutex_unlock(&pool->mutex);
    return shrunk;
}

/* Where the driver has ended the allocations of a pool with the context, it has reserved less than the program held. */
void gs_pool_was_reset(const struct gs_gpu *gpu) {
    uint32_t last = count();
    for (struct pool *pool = pools; pool < pools + last; pool++) {
        gs_mutex_lock(&pool->mutex);
        if (pool->state == ALIVE && pool->gpu == gpu && pool->pending == 0) {
            uint32_t held = pool->live;
            pool->live = 0;
            uint32_t target = target_of(pool);
            pool->live = target < held ? target : held;
            settle_locked(pool);
        }
        gs_mutex_unlock(&pool->mutex);
    }
}

/* See gs_account_squeeze. Whoever calls may know nothing of these pools: only under its mutex does one stay alive. */
static void squeeze(struct gs_gpu *gpu, bool all) {
    uint32_t last = count();
    for (struct pool *pool = pools; pool < pools + last; pool++) {
        gs_mutex_lock(&pool->mutex);
        if (pool->state != UNUSED && pool->gpu == gpu) {
            if (all)
                trim(pool);
            settle_locked(pool);
        }
        gs_mutex_unlock(&pool->mutex);
    }
}

/* ---- what the driver has said before --------------------------------------------------------------- */

/* The GPU of a stream. Found without a lock: a place is the GPU's number + 1 while stream and place belong together. */
static struct known_stream {
    CUstream stream;
    uint32_t place;
} streams[KNOWN_STREAMS];

static struct gs_lock streams_lock;

static struct known_stream *slot_of(CUstream stream) {
    return &streams[((uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15ull >> 40) % KNOWN_STREAMS];
}

static void know(struct known_stream *slot, CUstream stream, uint32_t place) {
    gs_lock(&streams_lock);
    __atomic_store_n(&slot->place, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->stream, stream, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->place, place, __ATOMIC_SEQ_CST);
    gs_unlock(&streams_lock);
}

/* NULL: that of the current context. */
static struct gs_gpu *gpu_of_stream(CUstream stream) {
    struct known_stream *slot = slot_of(stream);
    struct gs_place place = {0};
    CUcontext context = NULL;
    CUresult result;
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return NULL;
    uint32_t known = __atomic_load_n(&slot->place, __ATOMIC_ACQUIRE);
    if (known != 0 && __atomic_load_n(&slot->stream, __ATOMIC_ACQUIRE) == stream &&
        __atomic_load_n(&slot->place, __ATOMIC_RELAXED) == known)
        return gs_gpu_numbered((uint8_t)(known - 1));
    GS_RELAXED(result = gs_driver.cuStreamGetCtx(stream, &context));
    if (result != CUDA_SUCCESS || !gs_context_find(context, &place))
        return NULL;
    know(slot, stream, gs_gpu_number(place.gpu) + 1u);
    return place.gpu;
}

static CUstream known_at(const struct known_stream *slot) {
    return __atomic_load_n(&slot->stream, __ATOMIC_ACQUIRE);
}

void gs_stream_gone(CUstream stream) {
    struct known_stream *slot = slot_of(stream);
    if (known_at(slot) == stream)
        know(slot, NULL, 0);
}

/* The current pool of a device, until the program may have chosen another. */
static CUmemoryPool current_pools[GS_MAX_GPUS];
static uint32_t choices; /* how often it may have */

static CUmemoryPool pool_of_device(uint32_t device) {
    CUmemoryPool pool = __atomic_load_n(&current_pools[device], __ATOMIC_ACQUIRE);
    uint32_t then = __atomic_load_n(&choices, __ATOMIC_ACQUIRE);
    CUresult result;
    if (pool != NULL)
        return pool;
    GS_RELAXED(result = gs_driver.cuDeviceGetMemPool(&pool, (CUdevice)device));
    if (result != CUDA_SUCCESS)
        return NULL;
    gs_mutex_lock(&adding);
    if (choices == then)
        __atomic_store_n(&current_pools[device], pool, __ATOMIC_RELEASE);
    gs_mutex_unlock(&adding);
    return pool;
}

/* After the driver's call: an allocation at the same time may take from either. */
static void note_choice(void) {
    gs_mutex_lock(&adding);
    __atomic_fetch_add(&choices, 1, __ATOMIC_RELEASE);
    for (int device = 0; device < GS_MAX_GPUS; device++)
        __atomic_store_n(&current_pools[device], NULL, __ATOMIC_RELEASE);
    gs_mutex_unlock(&adding);
}

/* A reset may have chosen the default pool again. */
void gs_pool_context_gone(void) {
    for (struct known_stream *slot = streams; slot < streams + KNOWN_STREAMS; slot++)
        if (known_at(slot) != NULL)
            know(slot, NULL, 0);
    note_choice();
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    bool on = gs_on();
    CUresult result = gs_driver.cuDeviceSetMemPool(device, pool);
    if (on)
        note_choice();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    bool on = gs_on();
    CUresult result = gs_driver.cuMemSetMemPool(location, type, pool);
    if (on)
        note_choice();
    return result;
}

/* ---- allocating ----------------------------------------------------------------------------------- */

/* One allocation, whichever of the four functions it came by. */
struct request {
    CUdeviceptr *pointer;
    size_t size;
    CUmemoryPool pool;
    CUstream stream;
    CUresult (*call)(const struct request *);
    CUresult (*free)(CUdeviceptr, CUstream);
};

/* The pool that cuMemAllocAsync takes from: the current one of the stream's device. */
static CUmemoryPool current_pool(CUstream stream) {
    struct gs_place place = {.gpu = gpu_of_stream(stream)};
    if (place.gpu == NULL && !gs_place_current(&place))
        return NULL;
    return place.gpu != NULL ? pool_of_device(place.gpu->index) : NULL;
}

static bool note(const struct request *request, struct pool *pool, uint32_t units) {
    struct gs_entry displaced, entry = {.key = *request->pointer,
                                        .units = units,
                                        .detail = (uint32_t)(pool - pools),
                                        .gpu = gs_gpu_number(pool->gpu),
                                        .kind = GS_POOLED};
    if (!gs_table_put(&gs_pointers, &entry, &displaced))
        return false;
    if (displaced.key != 0)
        gs_entry_freed(&displaced);
    return true;
}

/* `undone`: the driver had succeeded. */
static CUresult try_once(const struct request *request, struct pool *pool, uint32_t units, bool *undone) {
    *undone = false;
    if (!enter(pool, units))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = request->call(request);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && gs_account_driver_failed(pool->gpu, units))
        result = request->call(request);
    if (result != CUDA_SUCCESS) {
        leave(pool, units);
        settle(pool);
        return result;
    }
    bool noted = note(request, pool, units);
    if (noted && settle_up(pool))
        return CUDA_SUCCESS;
    struct gs_entry entry;
    if (noted)
        gs_table_take(&gs_pointers, *request->pointer, &entry);
    request->free(*request->pointer, request->stream);
    leave(pool, units);
    *undone = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A pool grows in steps, and by a whole one beside what it has and cannot use. Once that has gone back, what is asked
 * for may fit. */
static CUresult allocate_from(const struct request *request, struct pool *pool) {
    uint32_t units = gs_units(request->size);
    struct gs_place place;
    bool undone;
    if (!gs_place_device(&place, (CUdevice)pool->gpu->index))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = try_once(request, pool, units, &undone);
    if (undone && undo_growth(pool)) {
        result = try_once(request, pool, units, &undone);
        if (undone)
            undo_growth(pool);
    }
    return result;
}

static CUresult allocate(const struct request *request) {
    __atomic_store_n(&gs_account_squeeze[GS_SQUEEZE_POOLS], squeeze, __ATOMIC_RELAXED);
    struct pool *pool = request->pool != NULL ? pool_of(request->pool) : NULL;
    /* Nothing takes nothing, and its address may be 0, which the table has no place for. */
    if (request->pointer == NULL || request->size == 0 || pool == NULL || pool->gpu == NULL)
        return request->call(request);
    return allocate_from(request, pool);
}

/* The two twins of each function differ in the driver's functions that they call. */
#define TWIN(suffix)                                                                                                   \
    static CUresult call_current##suffix(const struct request *request) {                                              \
        return gs_driver.cuMemAllocAsync##suffix(request->pointer, request->size, request->stream);                    \
    }                                                                                                                  \
    static CUresult call_pool##suffix(const struct request *request) {                                                 \
        return gs_driver.cuMemAllocFromPoolAsync##suffix(request->pointer, request->size, request->pool,               \
                                                         request->stream);                                             \
    }                                                                                                                  \
    static CUresult call_free##suffix(CUdeviceptr pointer, CUstream stream) {                                          \
        return gs_driver.cuMemFreeAsync##suffix(pointer, stream);                                                      \
    }                                                                                                                  \
    static bool counts##suffix(CUstream stream) {                                                                      \
        return gs_on() && !gs_is_capturing(gs_driver.cuStreamIsCapturing##suffix, stream);                             \
    }                                                                                                                  \
    CUresult cuMemAllocAsync##suffix(CUdeviceptr *pointer, size_t size, CUstream stream) {                             \
        struct request request = {pointer, size, NULL, stream, call_current##suffix, call_free##suffix};               \
        if (!counts##suffix(stream))                                                                                   \
            return call_current##suffix(&request);                                                                     \
        request.pool = current_pool(stream);                                                                           \
        return allocate(&request);                                                                                     \
    }                                                                                                                  \
    CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {  \
        struct request request = {pointer, size, pool, stream, call_pool##suffix, call_free##suffix};                  \
        return counts##suffix(stream) ? allocate(&request) : call_pool##suffix(&request);                              \
    }                                                                                                                  \
    CUresult cuMemFreeAsync##suffix(CUdeviceptr pointer, CUstream stream) {                                            \
        struct gs_entry entry;                                                                                         \
        if (!counts##suffix(stream) || !gs_table_take(&gs_pointers, pointer, &entry)) {                                \
            gs_graph_may_free(pointer);                                                                                \
            return call_free##suffix(pointer, stream);                                                                 \
        }                                                                                                              \
        CUresult result = call_free##suffix(pointer, stream);                                                          \
        if (result == CUDA_SUCCESS)                                                                                    \
            gs_entry_freed(&entry);                                                                                    \
        else                                                                                                           \
            gs_entry_put_back(&gs_pointers, &entry);                                                                   \
        return result;                                                                                                 \
    }

TWIN()
TWIN(_ptsz)

/* ---- pools ---------------------------------------------------------------------------------------- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    bool on = gs_on();
    CUresult result = gs_driver.cuMemPoolCreate(pool, properties);
    if (!on || result != CUDA_SUCCESS)
        return result;
    add_pool(*pool, gpu_of_place(&properties->location, properties->allocType));
    return result;
}

/* Default pools nobody creates: that of a place is known from here on. */
static CUresult meet(CUresult result, bool on, const CUmemoryPool *pool, const CUmemLocation *location,
                     CUmemAllocationType type) {
    if (on && result == CUDA_SUCCESS && find_pool(*pool) == NULL)
        add_pool(*pool, gpu_of_place(location, type));
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
        add_pool(*pool, NULL);
    return result;
}

static void begin_to_destroy(struct pool *pool) {
    gs_mutex_lock(&pool->mutex);
    become(pool, DYING);
    gs_mutex_unlock(&pool->mutex);
}

static void end_destroying(struct pool *pool, bool gone) {
    gs_mutex_lock(&pool->mutex);
    bool counted = pool->gpu != NULL && pool->gpu->line != NULL; /* else nothing of it was ever charged */
    become(pool, !gone ? ALIVE : counted ? DESTROYED : UNUSED);
    if (gone && counted)
        settle_locked(pool);
    gs_mutex_unlock(&pool->mutex);
}

/* Marked before the driver destroys it: afterwards its handle may be another's. */
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct pool *pool = gs_on() ? find_pool(handle) : NULL;
    if (pool != NULL)
        begin_to_destroy(pool);
    CUresult result = gs_driver.cuMemPoolDestroy(handle);
    if (pool != NULL)
        end_destroying(pool, result == CUDA_SUCCESS);
    note_choice(); /* a pool that is the current one of a device is that no more */
    return result;
}

/* After a call that may have made the pool give memory back. */
static void look_again(CUmemoryPool handle) {
    struct pool *pool = gs_on() ? find_pool(handle) : NULL;
    if (pool != NULL && pool->gpu != NULL && pool->gpu->line != NULL)
        settle(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    gs_on();
    CUresult result = gs_driver.cuMemPoolTrimTo(pool, keep);
    look_again(pool);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    gs_on();
    CUresult result = gs_driver.cuMemPoolSetAttribute(pool, attribute, value);
    look_again(pool);
    return result;
}

/* ---- synchronising -------------------------------------------------------------------------------- */

static void settle_shrinkable(void) {
    uint32_t last = count();
    for (struct pool *pool = pools; pool < pools + last; pool++) {
        gs_mutex_lock(&pool->mutex);
        if (pool->may_shrink)
            settle_locked(pool);
        gs_mutex_unlock(&pool->mutex);
    }
}

/* After a synchronisation: the program may do nothing more for hours, and nobody else can look at its pools. While a
 * stream is captured the driver is asked nothing; the next synchronisation after it does. */
static CUresult synchronized(CUresult result) {
    if (result == CUDA_SUCCESS && __atomic_load_n(&shrinkable, __ATOMIC_RELAXED) != 0 && !gs_capture_is_underway())
        settle_shrinkable();
    return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
    gs_on();
    return synchronized(gs_driver.cuStreamSynchronize(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    gs_on();
    return synchronized(gs_driver.cuStreamSynchronize_ptsz(stream));
}

CUresult cuEventSynchronize(CUevent event) {
    gs_on();
    return synchronized(gs_driver.cuEventSynchronize(event));
}

CUresult cuCtxSynchronize(void) {
    gs_on();
    return synchronized(gs_driver.cuCtxSynchronize());
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    gs_on();
    return synchronized(gs_driver.cuCtxSynchronize_v2(context));
}

void gs_pool_await_calls(void) {
    uint32_t last = count();
    for (struct pool *pool = pools; pool < pools + last; pool++) {
        gs_mutex_lock(&pool->mutex);
        gs_mutex_unlock(&pool->mutex);
    }
}

void gs_pool_forget(void) {
    memset(pools, 0, sizeof pools);
    memset(streams, 0, sizeof streams);
    memset(current_pools, 0, sizeof current_pools);
    pool_count = shrinkable = 0;
    streams_lock = (struct gs_lock){0};
    adding = (struct gs_mutex){0};
}
