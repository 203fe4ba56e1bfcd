/* hook_context.c: contexts open and close.
 *
 * Before a context opens the GPU is attached, which charges its learned overhead; each further context is charged as
 * much. A program without room for its context is refused here, with out-of-memory, before the driver takes memory that
 * others count on. When a context
 * closes, its linear memory and arrays are freed without a call; they are credited in bulk.
 *
 * A primary context has one handle for all its lives, and any thread may end one and begin the next. The driver is
 * asked whether it is active; our count of references is not used. One thread at a time asks, so that the answer is
 * about its own call. A green context holds the primary one, and shares its memory.
 */
#include "hooks.h"
#include "moments.h"
#include "pool.h"
#include "stream.h"

#include <string.h>

/* false: refused. `gpu` NULL: the driver knows no such device, and reports the error itself. */
static bool before(CUdevice device, struct gs_gpu **gpu) {
    struct gs_place place;
    bool good = gs_place_device(&place, device);
    *gpu = place.gpu;
    if (!good || place.gpu == NULL || __atomic_load_n(&place.gpu->contexts, __ATOMIC_RELAXED) == 0)
        return good;
    return gs_account_attach_another(place.gpu);
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

/* After a call that would have opened a context. Returns the driver's answer. */
static CUresult detach_if_failed(struct gs_gpu *gpu, CUresult result) {
    if (result != CUDA_SUCCESS && gpu != NULL)
        detach_if_last(gpu);
    return result;
}

static CUresult opened(CUresult result, struct gs_gpu *gpu, const CUcontext *context) {
    if (gpu == NULL)
        return result;
    if (result != CUDA_SUCCESS)
        detach_if_last(gpu);
    else if (gs_context_add(*context, gpu, true))
        count(gpu, 1);
    return result;
}

/* Credit the memory that ends with a context, without a call. */
static void end_memory(uint32_t context) {
    if (context == 0)
        return;
    gs_charge_context_gone(&gs_pointers, context);
    gs_charge_context_gone(&gs_arrays, context);
    gs_streams_context_gone(context);
    gs_pool_chosen(); /* a reset may have chosen the default pool */
    gs_limit_context_gone(context);
}

/* `place` is where the context was known, before the driver ended it: afterwards its handle may be another's. */
static void closed(struct gs_place place) {
    gs_context_remove(place.context);
    end_memory(place.context);
    count(place.gpu, -1);
    detach_if_last(place.gpu);
}

/* The four ABIs of cuCtxCreate differ in what stands between the context and the flags. */
#define CREATE(call)                                                                                                   \
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
    return opened(result, gpu, context)

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate(context, flags, device));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v2(context, flags, device));
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count_, unsigned int flags,
                        CUdevice device) {
    CREATE(cuCtxCreate_v3(context, affinity, count_, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v4(context, params, flags, device));
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuGLCtxCreate(context, flags, device));
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuGLCtxCreate_v2(context, flags, device));
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *door) {
    CREATE(cuVDPAUCtxCreate(context, flags, device, vdpau, door));
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *door) {
    CREATE(cuVDPAUCtxCreate_v2(context, flags, device, vdpau, door));
}

/* Obsolete, and still in use: uses of a context are counted, and the last one to go ends it. */
CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    bool on = gs_on();
    CUresult result = gs_driver.cuCtxAttach(context, flags);
    if (on && result == CUDA_SUCCESS)
        gs_context_use(*context, 1);
    return result;
}

CUresult cuCtxDetach(CUcontext context) {
    struct gs_place place;
    bool known = gs_on() && gs_context_find(context, &place);
    CUresult result = gs_driver.cuCtxDetach(context);
    if (result == CUDA_SUCCESS && known && !gs_context_use(context, -1))
        closed(place);
    return result;
}

/* ---- the primary context -------------------------------------------------------------------------- */

static struct primary {
    CUcontext context; /* its handle, once seen */
    struct gs_mutex mutex;
} primaries[GS_MAX_GPUS];

static struct primary *primary_of(CUdevice device) {
    return device >= 0 && device < GS_MAX_GPUS ? &primaries[device] : NULL;
}

static bool is_state(CUdevice device, int wanted) {
    unsigned int flags;
    int active = !wanted;
    CUresult result;
    GS_RELAXED(result = gs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active));
    return result == CUDA_SUCCESS && active == wanted;
}

static bool find_primary(CUdevice device, CUcontext *context, struct gs_place *place) {
    *context = __atomic_load_n(&primaries[device].context, __ATOMIC_RELAXED);
    return gs_context_find(*context, place);
}

/* Under the mutex: somebody holds it now. */
static void note_primary(CUcontext context, struct gs_gpu *gpu) {
    __atomic_store_n(&primaries[gpu->index].context, context, __ATOMIC_RELAXED);
    if (gs_context_add(context, gpu, false))
        count(gpu, 1);
}

/* Under the mutex, after a call that may have ended it. It may say so with an error of earlier work. */
static void look_at_primary(CUdevice device, bool ended) {
    CUcontext context;
    struct gs_place place;
    if (find_primary(device, &context, &place) && (ended || is_state(device, 0)))
        closed(place);
}

/* Before a call that opens the primary context, unless it is open. */
static bool before_primary(CUdevice device, struct gs_gpu **gpu) {
    struct gs_place place;
    CUcontext context;
    if (!find_primary(device, &context, &place))
        return before(device, gpu);
    bool good = gs_place_device(&place, device);
    *gpu = place.gpu;
    return good;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct gs_gpu *gpu;
    CUresult result;
    bool retried = false;
    if (!gs_on() || context == NULL || primary_of(device) == NULL)
        return gs_driver.cuDevicePrimaryCtxRetain(context, device);
    if (!before_primary(device, &gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do {
        gs_mutex_lock(&primaries[device].mutex);
        result = gs_driver.cuDevicePrimaryCtxRetain(context, device);
        if (result == CUDA_SUCCESS && gpu != NULL)
            note_primary(*context, gpu);
        gs_mutex_unlock(&primaries[device].mutex);
    } while (again(gpu, result, &retried));
    return detach_if_failed(gpu, result);
}

static void was_reset(CUdevice device) {
    struct gs_gpu *gpu = gs_gpu_of(device);
    if (gpu == NULL || gpu->line == NULL)
        return;
    gs_vmm_was_reset(gpu);
    gs_pool_was_reset(gpu);
}

/* `at_once`: the call is a reset, which ends the context. A release ends it only with the last reference. */
#define END_PRIMARY(call, at_once)                                                                                     \
    struct primary *primary = gs_on() ? primary_of(device) : NULL;                                                     \
    if (primary == NULL)                                                                                               \
        return gs_driver.call;                                                                                         \
    gs_mutex_lock(&primary->mutex);                                                                                    \
    CUresult result = gs_driver.call;                                                                                  \
    look_at_primary(device, (at_once) && result == CUDA_SUCCESS);                                                      \
    if ((at_once) && result == CUDA_SUCCESS)                                                                           \
        was_reset(device);                                                                                             \
    gs_mutex_unlock(&primary->mutex);                                                                                  \
    return result

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxRelease(device), false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxRelease_v2(device), false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxReset(device), true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    END_PRIMARY(cuDevicePrimaryCtxReset_v2(device), true);
}

/* ---- ends, and looks from elsewhere --------------------------------------------------------------- */

/* Take it out of the list before the driver destroys it, so that gs_context_enter does not enter it. */
static void hide(struct gs_place place) {
    struct gs_mutex *mutex = &primaries[place.gpu->index].mutex;
    gs_mutex_lock(mutex);
    gs_context_remove(place.context);
    gs_mutex_unlock(mutex);
}

#define DESTROY(call)                                                                                                  \
    struct gs_place place;                                                                                             \
    bool known = gs_on() && gs_context_find(context, &place);                                                          \
    if (known)                                                                                                         \
        hide(place);                                                                                                   \
    CUresult result = gs_driver.call;                                                                                  \
    if (known && result == CUDA_SUCCESS)                                                                               \
        closed(place);                                                                                                 \
    else if (known)                                                                                                    \
        gs_context_add_name(context, &place);                                                                          \
    return result

CUresult cuCtxDestroy(CUcontext context) {
    DESTROY(cuCtxDestroy(context));
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    DESTROY(cuCtxDestroy_v2(context));
}

bool gs_context_enter(const struct gs_gpu *gpu, bool *primary) {
    struct gs_place place;
    CUcontext context;
    CUdevice device = (CUdevice)gpu->index;
    gs_mutex_lock(&primaries[device].mutex);
    *primary = find_primary(device, &context, &place) && is_state(device, 1);
    if (!*primary)
        context = gs_context_on(gpu);
    bool entered = context != NULL && gs_driver.cuCtxSetCurrent(context) == CUDA_SUCCESS;
    gs_mutex_unlock(&primaries[device].mutex);
    return entered;
}

/* ---- green contexts ------------------------------------------------------------------------------- */

/* Under the mutex: the primary context that a new green one holds, which the program may not have asked for itself; and
 * the handle by which the program will make the green one current. */
static void note_green(CUgreenCtx green, struct gs_gpu *gpu) {
    CUcontext context;
    struct gs_place place;
    CUdevice device = (CUdevice)gpu->index;
    if (!find_primary(device, &context, &place) &&
        gs_driver.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS) {
        note_primary(context, gpu);
        gs_driver.cuDevicePrimaryCtxRelease_v2(device);
    }
    if (find_primary(device, &context, &place) && gs_driver.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
        gs_context_add_name(context, &place);
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    struct gs_gpu *gpu;
    CUresult result;
    bool retried = false;
    if (!gs_on() || green == NULL || primary_of(device) == NULL)
        return gs_driver.cuGreenCtxCreate(green, resources, device, flags);
    if (!before_primary(device, &gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do {
        gs_mutex_lock(&primaries[device].mutex);
        result = gs_driver.cuGreenCtxCreate(green, resources, device, flags);
        if (result == CUDA_SUCCESS && gpu != NULL)
            GS_RELAXED(note_green(*green, gpu));
        gs_mutex_unlock(&primaries[device].mutex);
    } while (again(gpu, result, &retried));
    return detach_if_failed(gpu, result);
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    CUcontext name;
    struct gs_place place;
    CUresult asked = CUDA_ERROR_NOT_FOUND;
    if (gs_on())
        GS_RELAXED(asked = gs_driver.cuCtxFromGreenCtx(&name, green));
    if (asked != CUDA_SUCCESS || !gs_context_find(name, &place))
        return gs_driver.cuGreenCtxDestroy(green);
    struct primary *primary = &primaries[place.gpu->index];
    gs_mutex_lock(&primary->mutex);
    CUresult result = gs_driver.cuGreenCtxDestroy(green);
    if (result == CUDA_SUCCESS) {
        gs_context_remove_name(name);
        gs_streams_unknown();
        look_at_primary((CUdevice)place.gpu->index, false);
    }
    gs_mutex_unlock(&primary->mutex);
    return result;
}

GS_AT(fork) {
    memset(primaries, 0, sizeof primaries);
}
