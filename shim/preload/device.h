/* device.h: the GPUs and contexts of this process. */
#ifndef GPUSHARE_PRELOAD_DEVICE_H
#define GPUSHARE_PRELOAD_DEVICE_H

#include <stdbool.h>

#include "account.h"
#include "cuda_abi.h"
#include "driver.h"

/* Where memory is taken: a GPU, and the context that the memory dies with (0: one that we cannot tell). */
struct gs_place {
    struct gs_gpu *gpu;
    uint32_t context;
};

extern struct gs_gpu gs_gpus[GS_MAX_GPUS];

/* NULL: the driver knows no such device. */
struct gs_gpu *gs_gpu_of(CUdevice device);

/* By the number kept in table entries. */
static inline struct gs_gpu *gs_gpu_numbered(uint8_t number) {
    return &gs_gpus[number];
}

static inline uint8_t gs_gpu_number(const struct gs_gpu *gpu) {
    return (uint8_t)gpu->index;
}

/* A GPU that has a line, or NULL. Asks the driver nothing. */
struct gs_gpu *gs_gpu_with_uuid(const uint8_t uuid[GS_UUID_BYTES]);

/* A context that is known, by one of its handles. */
struct gs_known_context {
    CUcontext handle;   /* NULL: never used; an impossible one: not in use now */
    uint32_t number;    /* the same for all handles of what is one context */
    uint32_t more_uses; /* beside the first: cuCtxAttach less cuCtxDetach */
    struct gs_gpu *gpu;
};

/* The one that was added last: most programs have no other, and finding it needs no hashing. Never NULL. */
extern struct gs_known_context *gs_last_context;

/* Note a context that has been opened. false: it is known already. `fresh`: it is certainly new; if a context with the
 * same handle is known, that one has ended and was not removed yet. */
bool gs_context_add(CUcontext context, struct gs_gpu *gpu, bool fresh);

/* Another handle for a context that is known (that of a green context), and its end. */
void gs_context_add_name(CUcontext name, const struct gs_place *place);
void gs_context_remove_name(CUcontext name);

/* The context of that number is gone, by all its handles. */
void gs_context_remove(uint32_t number);

/* One use of the context more, or less. false: that was the last one, or it is not known. */
bool gs_context_use(CUcontext context, int change);

/* false: not one that we saw being opened. */
bool gs_context_find(CUcontext context, struct gs_place *place);

/* A context that we saw being opened on this GPU and not closed, or NULL. */
CUcontext gs_context_on(const struct gs_gpu *gpu);

/* The rest of gs_place_current: another context than the last one, or one that we did not see being opened; and a GPU
 * that is not attached. */
bool gs_place_context(struct gs_place *place, CUcontext context);
bool gs_place_attach(struct gs_gpu *gpu);

static inline bool gs_gpu_is_attached(const struct gs_gpu *gpu) {
    return __builtin_expect(__atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE) != NULL, 1) &&
           __builtin_expect(__atomic_load_n(&gpu->attached, __ATOMIC_RELAXED), 1);
}

/* Where a call of this thread takes memory, after attaching there. false: attaching was refused. `place->gpu` is NULL
 * if there is no current context: then the driver reports the error. */
GS_INLINE bool gs_place_current(struct gs_place *place) {
    CUcontext context = NULL;
    if (__builtin_expect(gs_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL, 0)) {
        *place = (struct gs_place){0};
        return true;
    }
    const struct gs_known_context *last = __atomic_load_n(&gs_last_context, __ATOMIC_ACQUIRE);
    if (__builtin_expect(__atomic_load_n(&last->handle, __ATOMIC_ACQUIRE) == context, 1)) {
        struct gs_gpu *gpu = __atomic_load_n(&last->gpu, __ATOMIC_RELAXED);
        *place = (struct gs_place){gpu, __atomic_load_n(&last->number, __ATOMIC_RELAXED)};
        return gs_gpu_is_attached(gpu) || gs_place_attach(gpu);
    }
    struct gs_place slow;
    bool good = gs_place_context(&slow, context);
    *place = slow;
    return good;
}

/* For a device named by the call itself, whatever context is current. */
bool gs_place_device(struct gs_place *place, CUdevice device);

#endif
