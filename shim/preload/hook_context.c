/* hook_context.c: contexts open and close.
 *
 * Before a context opens the GPU is attached, which charges its learned overhead: a program that has no room for its
 * context is refused here, with out-of-memory, before the driver takes the memory from somebody else. When a context
 * closes, its linear memory and arrays are gone without a call; they are credited in bulk. What the driver itself says
 * about a primary context (active or not) is believed, not our own count of references.
 */
#include "hooks.h"

/* false: refused. `gpu` NULL: the driver knows no such device and shall say so. */
static bool before(CUdevice device, struct gs_gpu **gpu) {
    struct gs_place place;
    bool good = gs_place_device(&place, device);
    *gpu = place.gpu;
    return good;
}

static bool again(struct gs_gpu *gpu, CUresult result, bool *retried) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY || gpu == NULL || *retried)
        return false;
    *retried = true;
    return gs_account_driver_failed(gpu, (uint32_t)__atomic_load_n(&gpu->line->overhead, __ATOMIC_RELAXED));
}

static void count(struct gs_gpu *gpu, int change) {
    uint32_t contexts = __atomic_add_fetch(&gpu->contexts, (uint32_t)change, __ATOMIC_RELAXED);
    if (gpu->line != NULL)
        __atomic_store_n(&gpu->line->contexts, contexts, __ATOMIC_RELAXED);
}

static void detach_if_last(struct gs_gpu *gpu) {
    if (__atomic_load_n(&gpu->contexts, __ATOMIC_RELAXED) == 0)
        gs_account_detach(gpu);
}

static CUresult opened(CUresult result, struct gs_gpu *gpu, const CUcontext *context, bool fresh) {
    if (gpu == NULL)
        return result;
    if (result != CUDA_SUCCESS)
        detach_if_last(gpu);
    else if (gs_context_add(*context, gpu, fresh))
        count(gpu, 1);
    return result;
}

/* `place` is where the context was known, before the driver ended it: afterwards its handle may be another's. */
static void closed(CUcontext context, struct gs_place place) {
    gs_context_remove(context, place.context);
    gs_context_gone(place.context);
    count(place.gpu, -1);
    detach_if_last(place.gpu);
}

/* The four ABIs of cuCtxCreate differ in what stands between the context and the flags. */
#define CREATE(call, fresh)                                                                                            \
    struct gs_gpu *gpu;                                                                                                \
    CUresult result;                                                                                                   \
    bool retried = false;                                                                                              \
    if (!gs_on() || context == NULL)                                                                                   \
        return gs_driver.call;                                                                                         \
    if (!before(device, &gpu))                                                                                         \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    do                                                                                                                 \
        result = gs_driver.call;                                                                                       \
    while (again(gpu, result, &retried));                                                                              \
    return opened(result, gpu, context, fresh)

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate(context, flags, device), true);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v2(context, flags, device), true);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count_, unsigned int flags,
                        CUdevice device) {
    CREATE(cuCtxCreate_v3(context, affinity, count_, flags, device), true);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v4(context, params, flags, device), true);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuGLCtxCreate(context, flags, device), true);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuGLCtxCreate_v2(context, flags, device), true);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *door) {
    CREATE(cuVDPAUCtxCreate(context, flags, device, vdpau, door), true);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *door) {
    CREATE(cuVDPAUCtxCreate_v2(context, flags, device, vdpau, door), true);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    struct gs_place place;
    bool known = gs_on() && gs_context_find(context, &place);
    CUresult result = gs_driver.cuCtxDestroy_v2(context);
    if (result == CUDA_SUCCESS && known)
        closed(context, place);
    return result;
}

CUresult cuCtxDestroy(CUcontext context) {
    struct gs_place place;
    bool known = gs_on() && gs_context_find(context, &place);
    CUresult result = gs_driver.cuCtxDestroy(context);
    if (result == CUDA_SUCCESS && known)
        closed(context, place);
    return result;
}

/* ---- the primary context -------------------------------------------------------------------------- */

/* Its handle on each GPU, as far as seen. */
static CUcontext primaries[GS_MAX_GPUS];

static CUcontext *primary_of(CUdevice device) {
    return device >= 0 && device < GS_MAX_GPUS ? &primaries[device] : NULL;
}

static CUresult retain(CUcontext *context, CUdevice device) {
    CREATE(cuDevicePrimaryCtxRetain(context, device), false);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = retain(context, device);
    if (result == CUDA_SUCCESS && context != NULL && primary_of(device) != NULL)
        __atomic_store_n(primary_of(device), *context, __ATOMIC_RELAXED);
    return result;
}

static bool is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return gs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

static bool known_primary(CUdevice device, CUcontext *context, struct gs_place *place) {
    if (!gs_on() || primary_of(device) == NULL)
        return false;
    *context = __atomic_load_n(primary_of(device), __ATOMIC_RELAXED);
    return *context != NULL && gs_context_find(*context, place);
}

/* Release ends it only with the last reference, reset at once. */
#define END_PRIMARY(call, still_there)                                                                                 \
    CUcontext context;                                                                                                 \
    struct gs_place place;                                                                                             \
    bool known = known_primary(device, &context, &place);                                                              \
    CUresult result = gs_driver.call;                                                                                  \
    if (result == CUDA_SUCCESS && known && !(still_there))                                                             \
        closed(context, place);                                                                                        \
    return result

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxRelease(device), is_active(device));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxRelease_v2(device), is_active(device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxReset(device), false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxReset_v2(device), false);
}

CUcontext gs_context_of(const struct gs_gpu *gpu, bool *primary) {
    struct gs_place place;
    CUcontext context;
    *primary = known_primary((CUdevice)gpu->index, &context, &place) && is_active((CUdevice)gpu->index);
    return *primary ? context : gs_context_on(gpu);
}

void gs_context_forget(void) {
    for (int i = 0; i < GS_MAX_GPUS; i++)
        primaries[i] = NULL;
}
