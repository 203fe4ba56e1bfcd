/* cuda_green.c: green contexts: a part of a GPU's processors, and everything else from the primary context.
 *
 * A green context holds the primary context for as long as it lives. Made current it stands for the primary one: memory
 * that is allocated under it is the primary one's and outlives it. How many processors a part has is only kept.
 */
#define _GNU_SOURCE
#include "cuda_green.h"

#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_stream.h"

#include <stdlib.h>

struct CUdevResourceDesc_st {
    CUdevResource resource;
};

struct CUgreenCtx_st {
    CUcontext context; /* its handle for those who know contexts only */
    CUdevResource resource;
    uint64_t id;
};

static uint64_t last_id;

/* ---- parts of a GPU ------------------------------------------------------------------------------- */

static CUresult give_resource(CUdevResource *resource, CUdevResourceType type, const CUdevResource *all) {
    if (resource == NULL || type != CU_DEV_RESOURCE_TYPE_SM) {
        return resource == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    *resource = *all;
    return CUDA_SUCCESS;
}

static CUresult describe(CUdevResourceDesc *resources, const CUdevResource *list, unsigned int count) {
    if (resources == NULL || list == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int index = 0; index < count; index++) {
        if (list[index].type != CU_DEV_RESOURCE_TYPE_SM) {
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        }
    }
    *resources = handle_new(HANDLE_RESOURCES, sizeof **resources);
    if (*resources == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*resources)->resource = list[0];
    for (unsigned int index = 1; index < count; index++) {
        (*resources)->resource.sm.smCount += list[index].sm.smCount;
    }
    return CUDA_SUCCESS;
}

API(cuDevResourceGenerateDesc, (CUdevResourceDesc * resources, CUdevResource *list, unsigned int count),
    LOCKED(describe(resources, list, count)))

/* ---- contexts ------------------------------------------------------------------------------------- */

static CUresult create(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    CUcontext primary;
    if (green == NULL || !handle_is(resources, HANDLE_RESOURCES) || (flags & ~CU_GREEN_CTX_DEFAULT_STREAM) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = context_retain(&primary, device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgreenCtx fresh = handle_new(HANDLE_GREEN, sizeof *fresh);
    if (fresh == NULL || context_green(&fresh->context, primary) != CUDA_SUCCESS) {
        handle_end(fresh);
        context_release(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->resource = resources->resource;
    fresh->id = ++last_id;
    *green = fresh;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgreenCtx green) {
    if (!handle_is(green, HANDLE_GREEN)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUdevice device = green->context->device;
    context_green_end(green->context);
    handle_end(green);
    context_release(device); /* which fails if the primary context was reset, and then holds nothing any more */
    return CUDA_SUCCESS;
}

CUcontext green_context(CUgreenCtx green) {
    return handle_is(green, HANDLE_GREEN) ? green->context : NULL;
}

static CUresult from(CUcontext *context, CUgreenCtx green) {
    if (context == NULL || green_context(green) == NULL) {
        return context == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = green->context;
    return CUDA_SUCCESS;
}

static CUresult resource_of(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type) {
    return green_context(green) == NULL ? CUDA_ERROR_INVALID_CONTEXT : give_resource(resource, type, &green->resource);
}

static CUresult id_of(CUgreenCtx green, unsigned long long *id) {
    if (id == NULL || green_context(green) == NULL) {
        return id == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    *id = green->id;
    return CUDA_SUCCESS;
}

static CUresult create_stream(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority) {
    if (green_context(green) == NULL || flags != CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext primary = green->context->primary_one;
    return primary->live ? stream_create(stream, primary, green, flags, priority) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

API(cuGreenCtxCreate, (CUgreenCtx * green, CUdevResourceDesc resources, CUdevice device, unsigned int flags),
    LOCKED(create(green, resources, device, flags)))
API(cuGreenCtxDestroy, (CUgreenCtx green), LOCKED(destroy(green)))
API(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green), LOCKED(from(context, green)))
API(cuGreenCtxGetDevResource, (CUgreenCtx green, CUdevResource *resource, CUdevResourceType type),
    LOCKED(resource_of(green, resource, type)))
API(cuGreenCtxGetId, (CUgreenCtx green, unsigned long long *id), LOCKED(id_of(green, id)))
API(cuGreenCtxStreamCreate, (CUstream * stream, CUgreenCtx green, unsigned int flags, int priority),
    LOCKED(create_stream(stream, green, flags, priority)))
