/* device.h: the GPUs and contexts of this process. */
#ifndef GPUSHARE_PRELOAD_DEVICE_H
#define GPUSHARE_PRELOAD_DEVICE_H

#include <stdbool.h>

#include "account.h"
#include "cuda_abi.h"
#include "symbols.h"

/* Where memory is taken: a GPU, and the context that the memory dies with (0: one that we cannot tell). */
struct gs_place {
    struct gs_gpu *gpu;
    uint32_t context;
};

/* NULL: the driver knows no such device. */
struct gs_gpu *gs_gpu_of(CUdevice device);

/* By the number kept in table entries. */
struct gs_gpu *gs_gpu_numbered(uint8_t number);
uint8_t gs_gpu_number(const struct gs_gpu *gpu);

/* A GPU that has a line, or NULL. Asks the driver nothing. */
struct gs_gpu *gs_gpu_with_uuid(const uint8_t uuid[GS_UUID_BYTES]);

/* A context has been opened. false: it is known already. `fresh`: it is a new one for certain, so one of the same
 * handle that is known has died and just not been removed yet. */
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

/* Where a call of this thread takes memory, after attaching there. false: attaching was refused. `place->gpu` is NULL
 * if there is no current context: the driver shall say so. */
bool gs_place_current(struct gs_place *place);

/* For a device named by the call itself, whatever context is current. */
bool gs_place_device(struct gs_place *place, CUdevice device);

void gs_device_forget(void);

#endif
