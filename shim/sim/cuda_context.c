/* cuda_context.c: contexts, the stack of them that each thread has, and the memory that belongs to one.
 *
 * Each context costs the overhead that a real one costs before any allocation. The end of a context frees its linear
 * and managed memory, its arrays and its modules' variables; stream-ordered pools and VMM handles belong to the device
 * and stay.
 */
#define _GNU_SOURCE
#include "cuda_context.h"

#include "common_model.h"
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_array.h"
#include "cuda_handle.h"
#include "cuda_mempool.h"
#include "cuda_module.h"
#include "cuda_stream.h"
#include "cuda_vmm.h"

#include <string.h>

#define STACK_DEPTH 64

static __thread struct {
    CUcontext items[STACK_DEPTH];
    int depth;
} stack;

static uint64_t last_id;

static const size_t default_limits[CU_LIMIT_MAX] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

static CUcontext top(void) {
    return stack.depth == 0 ? NULL : stack.items[stack.depth - 1];
}

/* A context whose GPU was lost, or had an error in its memory, since it began: every call in it fails from then on, as
 * CUDA documents it, until the process has ended it. */
static CUresult broken(CUcontext context) {
    bool lost;
    struct health_mark now = health_mark(device_get(context->device)->gpu, &lost);
    if (now.losses != context->mark.losses) {
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    return now.eccs != context->mark.eccs ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}

CUresult context_current(CUcontext *context) {
    *context = top();
    if (*context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if ((*context)->primary_one != NULL && (*context)->live) {
        *context = (*context)->primary_one;
    }
    return (*context)->live ? broken(*context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current_device(CUcontext *context, struct device **device) {
    CUresult result = context_current(context);
    if (result == CUDA_SUCCESS) {
        *device = device_get((*context)->device);
    }
    return result;
}

/* Whether it is there: a broken one is, and may be made current and destroyed. */
static CUresult check_live(CUcontext context) {
    if (!handle_is(context, HANDLE_CONTEXT)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return context->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_check(CUcontext context) {
    CUresult result = check_live(context);
    return result != CUDA_SUCCESS ? result : broken(context);
}

/* Whether one more context beside those of the device takes memory. */
static bool costs(const struct device *device) {
    return device->contexts == 0 || SIM_IS(contexts, each);
}

/* Beside its allocations: the memory behind its limits, and that of its code. */
static CUresult grow(CUcontext context, uint64_t *place, uint64_t bytes) {
    uint32_t gpu = device_get(context->device)->gpu;
    if (bytes > *place && !pool_charge(gpu, bytes - *place)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (bytes < *place) {
        pool_uncharge(gpu, *place - bytes);
    }
    *place = bytes;
    return CUDA_SUCCESS;
}

/* What its limits for kernels' malloc and printf are above what every context has. */
static uint64_t heap_bytes(CUcontext context) {
    uint64_t bytes = 0;
    for (int limit = CU_LIMIT_PRINTF_FIFO_SIZE; limit <= CU_LIMIT_MALLOC_HEAP_SIZE; limit++) {
        if (context->limits[limit] > default_limits[limit]) {
            bytes += model_blocks_bytes(context->limits[limit] - default_limits[limit]);
        }
    }
    return bytes;
}

CUresult context_module(CUcontext context) {
    return SIM_IS(modules, lazy) ? grow(context, &context->code_bytes, MODEL_MODULE_BYTES) : CUDA_SUCCESS;
}

CUresult context_launch(CUcontext context) {
    return SIM_IS(heaps, launch) ? grow(context, &context->heap_bytes, heap_bytes(context)) : CUDA_SUCCESS;
}

static CUresult set_limit(CUcontext context, CUlimit limit, size_t value) {
    size_t before = context->limits[limit];
    context->limits[limit] = value;
    CUresult result = SIM_IS(heaps, set) ? grow(context, &context->heap_bytes, heap_bytes(context)) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        context->limits[limit] = before;
    }
    return result;
}

/* Brings a context to life. */
static CUresult start(CUcontext context) {
    struct device *device;
    CUresult result = device_open(context->device, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool lost;
    context->mark = health_mark(device->gpu, &lost);
    if (lost) {
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (costs(device) && !pool_charge(device->gpu, device_hardware.context_bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    device->contexts++;
    context->live = true;
    context->peers = 0;
    memcpy(context->limits, default_limits, sizeof context->limits);
    heap_init(&context->small, MODEL_SMALL_GRANULE);
    return CUDA_SUCCESS;
}

static void end(CUcontext context) {
    struct device *device = device_get(context->device);
    streams_end(context);
    modules_end(context);
    while (context->memories != NULL) {
        if (context->memories->kind == MEMORY_ARRAY) {
            array_lost(context->memories);
        }
        context_give(context->memories);
    }
    grow(context, &context->heap_bytes, 0);
    grow(context, &context->code_bytes, 0);
    context->live = false;
    context->references = 0;
    device->contexts--;
    if (costs(device)) {
        pool_uncharge(device->gpu, device_hardware.context_bytes);
    }
}

/* Blocks for allocations that share them; their piece of the arena is remembered as the range's origin. */
static CUresult add_small_block(CUcontext context, struct arena *arena, uint64_t size) {
    struct heap_piece *block;
    CUresult result = arena_take(arena, model_blocks_bytes(size), &block);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (heap_add(&context->small, block->base, block->size, block) == NULL) {
        arena_give(arena, block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult take_small(CUcontext context, struct arena *arena, uint64_t size, struct heap_piece **piece) {
    *piece = heap_take(&context->small, size);
    if (*piece != NULL) {
        return CUDA_SUCCESS;
    }
    CUresult result = add_small_block(context, arena, size);
    if (result == CUDA_SUCCESS) {
        *piece = heap_take(&context->small, size);
        result = *piece == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    return result;
}

static void give_piece(CUcontext context, struct arena *arena, struct heap_piece *piece) {
    if (piece->range->heap != &context->small) {
        arena_give(arena, piece);
        return;
    }
    struct heap_range *range = heap_give(piece);
    if (range->taken == 0) {
        struct heap_piece *block = range->origin;
        heap_remove(range);
        arena_give(arena, block);
    }
}

static bool shares_blocks(uint64_t size) {
    return size <= MODEL_SMALL_LIMIT || (SIM_IS(blocks, packed) && size % MODEL_BLOCK_BYTES != 0);
}

CUresult context_take(CUcontext context, enum memory_kind kind, uint64_t size, struct memory **memory) {
    struct arena *arena = &device_get(context->device)->arena;
    struct heap_piece *piece;
    CUresult result = shares_blocks(size) ? take_small(context, arena, size, &piece) : arena_take(arena, size, &piece);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *memory = memory_new(kind, piece->base, size);
    if (*memory == NULL) {
        give_piece(context, arena, piece);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*memory)->device = context->device;
    (*memory)->context = context;
    (*memory)->piece = piece;
    (*memory)->older = context->memories;
    if (context->memories != NULL) {
        context->memories->newer = *memory;
    }
    context->memories = *memory;
    return CUDA_SUCCESS;
}

void context_give(struct memory *memory) {
    CUcontext context = memory->context;
    struct heap_piece *piece = memory->piece;
    if (memory->newer != NULL) {
        memory->newer->older = memory->older;
    } else {
        context->memories = memory->older;
    }
    if (memory->older != NULL) {
        memory->older->newer = memory->newer;
    }
    memory_end(memory);
    give_piece(context, &device_get(context->device)->arena, piece);
}

static CUcontext new_context(CUdevice device, bool primary) {
    CUcontext context = handle_new(HANDLE_CONTEXT, sizeof *context);
    if (context != NULL) {
        context->device = device;
        context->primary = primary;
        context->api_version = 3020;
        context->id = ++last_id;
    }
    return context;
}

static CUresult primary_of(CUdevice ordinal, CUcontext *context) {
    struct device *device = device_get(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (device->primary == NULL) {
        device->primary = new_context(ordinal, true);
    }
    *context = device->primary;
    return *context == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult context_retain(CUcontext *context, CUdevice device) {
    CUcontext primary;
    CUresult result = context == NULL ? CUDA_ERROR_INVALID_VALUE : primary_of(device, &primary);
    if (result == CUDA_SUCCESS && !primary->live) {
        result = start(primary);
    }
    if (result == CUDA_SUCCESS) {
        primary->references++;
        *context = primary;
    }
    return result;
}

CUresult context_release(CUdevice device) {
    CUcontext primary;
    CUresult result = primary_of(device, &primary);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (primary->references == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--primary->references == 0) {
        end(primary);
    }
    return CUDA_SUCCESS;
}

static CUresult reset(CUdevice device) {
    CUcontext primary;
    CUresult result = primary_of(device, &primary);
    if (result == CUDA_SUCCESS && primary->live) {
        end(primary);
        if (!SIM_IS(reset, keeps)) {
            vmm_reset(device);
        }
        if (SIM_IS(reset, all)) {
            mempools_reset(device);
        }
    }
    return result;
}

CUresult context_green(CUcontext *context, CUcontext primary) {
    *context = new_context(primary->device, false);
    if (*context == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*context)->primary_one = primary;
    (*context)->mark = primary->mark;
    (*context)->live = true;
    return CUDA_SUCCESS;
}

/* As any that is destroyed, it stays known. */
void context_green_end(CUcontext context) {
    context->live = false;
}

static CUresult set_primary_flags(CUdevice device, unsigned int flags) {
    CUcontext primary;
    CUresult result = primary_of(device, &primary);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    primary->flags = flags;
    return CUDA_SUCCESS;
}

static CUresult primary_state(CUdevice device, unsigned int *flags, int *active) {
    CUcontext primary;
    CUresult result = flags == NULL || active == NULL ? CUDA_ERROR_INVALID_VALUE : primary_of(device, &primary);
    if (result == CUDA_SUCCESS) {
        *flags = primary->flags;
        *active = primary->live;
    }
    return result;
}

API(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), LOCKED(context_retain(context, device)))
API(cuDevicePrimaryCtxRelease, (CUdevice device), LOCKED(context_release(device)))
API(cuDevicePrimaryCtxRelease_v2, (CUdevice device), LOCKED(context_release(device)))
API(cuDevicePrimaryCtxReset, (CUdevice device), LOCKED(reset(device)))
API(cuDevicePrimaryCtxReset_v2, (CUdevice device), LOCKED(reset(device)))
API(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags), LOCKED(set_primary_flags(device, flags)))
API(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags), LOCKED(set_primary_flags(device, flags)))
API(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
    LOCKED(primary_state(device, flags, active)))

static CUresult push(CUcontext context) {
    CUresult result = check_live(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stack.depth == STACK_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack.items[stack.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, unsigned int flags, CUdevice device) {
    if (context == NULL || (flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device_get(device) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    CUcontext fresh = new_context(device, false);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->flags = flags;
    CUresult result = start(fresh);
    if (result == CUDA_SUCCESS) {
        result = push(fresh);
        if (result == CUDA_SUCCESS) {
            fresh->references = 1;
            *context = fresh;
            return CUDA_SUCCESS;
        }
        end(fresh);
    }
    handle_end(fresh);
    return result;
}

/* A destroyed context keeps its handle: other threads may have it on their stacks and are to be told so. */
static CUresult destroy(CUcontext context) {
    CUresult result = check_live(context);
    if (handle_is(context, HANDLE_CONTEXT) && (context->primary || context->primary_one != NULL)) {
        return CUDA_ERROR_INVALID_CONTEXT; /* it is released, not destroyed */
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    end(context);
    if (top() == context) {
        stack.depth--;
    }
    return CUDA_SUCCESS;
}

static CUresult no_affinity(int count) {
    return count == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                        CUdevice device) {
    ENTER(cuCtxCreate_v3);
    (void)affinity;
    CUresult result = no_affinity(count);
    return result != CUDA_SUCCESS ? result : LOCKED(create(context, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v4);
    CUresult result = params == NULL || (params->execAffinityParams == NULL && params->cigParams == NULL)
                          ? CUDA_SUCCESS
                          : CUDA_ERROR_NOT_SUPPORTED;
    return result != CUDA_SUCCESS ? result : LOCKED(create(context, flags, device));
}

API(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), LOCKED(create(context, flags, device)))
API(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), LOCKED(create(context, flags, device)))
API(cuCtxDestroy, (CUcontext context), LOCKED(destroy(context)))
API(cuCtxDestroy_v2, (CUcontext context), LOCKED(destroy(context)))

static CUresult attach(CUcontext *context, unsigned int flags) {
    if (context == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = context_current(context);
    if (result == CUDA_SUCCESS) {
        (*context)->references++;
    }
    return result;
}

/* The last use to end ends the context. */
static CUresult detach(CUcontext context) {
    CUresult result = check_live(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context->references > 1) {
        context->references--;
        return CUDA_SUCCESS;
    }
    return destroy(context);
}

API(cuCtxAttach, (CUcontext * context, unsigned int flags), LOCKED(attach(context, flags)))
API(cuCtxDetach, (CUcontext context), LOCKED(detach(context)))

static CUresult pop(CUcontext *context) {
    if (stack.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack.depth--;
    if (context != NULL) {
        *context = stack.items[stack.depth];
    }
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context) {
    if (stack.depth > 0) {
        stack.depth--;
    }
    return context == NULL ? CUDA_SUCCESS : push(context);
}

API(cuCtxPushCurrent, (CUcontext context), LOCKED(push(context)))
API(cuCtxPushCurrent_v2, (CUcontext context), LOCKED(push(context)))
API(cuCtxPopCurrent, (CUcontext * context), pop(context))
API(cuCtxPopCurrent_v2, (CUcontext * context), pop(context))
API(cuCtxSetCurrent, (CUcontext context), LOCKED(set_current(context)))

CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER(cuCtxGetCurrent);
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = top();
    return CUDA_SUCCESS;
}

/* The rest asks or sets something of the current context, or of the one given. */
static CUresult resolve(const void *needed, CUcontext *context) {
    if (needed == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return *context == NULL ? context_current(context) : LOCKED(context_check(*context));
}

#define RESOLVE(needed, context)                                                                                       \
    do {                                                                                                               \
        CUresult resolved_ = resolve(needed, &(context));                                                              \
        if (resolved_ != CUDA_SUCCESS) {                                                                               \
            return resolved_;                                                                                          \
        }                                                                                                              \
    } while (0)

CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(cuCtxGetDevice);
    CUcontext context = NULL;
    RESOLVE(device, context);
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    ENTER(cuCtxGetDevice_v2);
    RESOLVE(device, context);
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    ENTER(cuCtxGetId);
    RESOLVE(id, context);
    *id = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags) {
    ENTER(cuCtxGetFlags);
    CUcontext context = NULL;
    RESOLVE(flags, context);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
    ENTER(cuCtxSetFlags);
    CUcontext context = NULL;
    RESOLVE(&flags, context);
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version) {
    ENTER(cuCtxGetApiVersion);
    RESOLVE(version, context);
    *version = context->api_version;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    ENTER(cuCtxSetLimit);
    CUcontext context = NULL;
    RESOLVE(&limit, context);
    if ((unsigned)limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    return LOCKED(set_limit(context, limit, value));
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    ENTER(cuCtxGetLimit);
    CUcontext context = NULL;
    RESOLVE(value, context);
    if ((unsigned)limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
    ENTER(cuCtxGetCacheConfig);
    CUcontext context = NULL;
    RESOLVE(config, context);
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    ENTER(cuCtxSetCacheConfig);
    CUcontext context = NULL;
    RESOLVE(&config, context);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    ENTER(cuCtxGetSharedMemConfig);
    CUcontext context = NULL;
    RESOLVE(config, context);
    *config = context->shared_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    ENTER(cuCtxSetSharedMemConfig);
    CUcontext context = NULL;
    RESOLVE(&config, context);
    context->shared_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cuCtxGetStreamPriorityRange);
    CUcontext context = NULL;
    RESOLVE(&context, context);
    if (least != NULL) {
        *least = STREAM_LEAST_PRIORITY;
    }
    if (greatest != NULL) {
        *greatest = STREAM_GREATEST_PRIORITY;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void) {
    ENTER(cuCtxResetPersistingL2Cache);
    CUcontext context = NULL;
    RESOLVE(&context, context);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize);
    CUcontext context = NULL;
    RESOLVE(&context, context);
    return streams_synchronize(context->device);
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    ENTER(cuCtxSynchronize_v2);
    RESOLVE(&context, context);
    return streams_synchronize(context->device);
}

static CUresult enable_peer(CUcontext peer, bool enable) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = context_check(peer);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint32_t bit = 1u << peer->device;
    if (peer->device == context->device) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    if (enable == ((context->peers & bit) != 0)) {
        return enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    context->peers ^= bit;
    return CUDA_SUCCESS;
}

API(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(enable_peer(peer, true)))
API(cuCtxDisablePeerAccess, (CUcontext peer), LOCKED(enable_peer(peer, false)))
