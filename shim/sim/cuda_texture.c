/* cuda_texture.c: textures and surfaces: what a kernel would read through, kept as the program described it.
 *
 * They hold no memory. The memory that they describe belongs to an array or to the program, and may end before them.
 */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"

struct texture {
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    CUDA_RESOURCE_VIEW_DESC view;
    bool viewed; /* a view was given */
};

static CUresult check_resource(const CUDA_RESOURCE_DESC *resource, bool surface) {
    if (resource == NULL || resource->flags != 0 || (surface && resource->resType != CU_RESOURCE_TYPE_ARRAY)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct memory *memory;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return handle_is(resource->res.array.hArray, HANDLE_ARRAY) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return handle_is(resource->res.mipmap.hMipmappedArray, HANDLE_MIPMAP) ? CUDA_SUCCESS
                                                                              : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
        memory = memory_at(resource->res.linear.devPtr);
        return memory == NULL || resource->res.linear.sizeInBytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_PITCH2D:
        memory = memory_at(resource->res.pitch2D.devPtr);
        return memory == NULL || resource->res.pitch2D.width == 0 || resource->res.pitch2D.height == 0
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* A view reinterprets an array; plain memory has none. */
static CUresult create(unsigned long long *result, enum handle_type type, const CUDA_RESOURCE_DESC *resource,
                       const CUDA_TEXTURE_DESC *sampling, const CUDA_RESOURCE_VIEW_DESC *view) {
    CUcontext context;
    CUresult checked = context_current(&context);
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    bool surface = type == HANDLE_SURFACE;
    checked = check_resource(resource, surface);
    if (checked != CUDA_SUCCESS || result == NULL || (!surface && sampling == NULL) ||
        (view != NULL && resource->resType >= CU_RESOURCE_TYPE_LINEAR)) {
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    }
    struct texture *texture = handle_new(type, sizeof *texture);
    if (texture == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    texture->resource = *resource;
    texture->viewed = view != NULL;
    if (sampling != NULL) {
        texture->sampling = *sampling;
    }
    if (view != NULL) {
        texture->view = *view;
    }
    *result = (unsigned long long)(uintptr_t)texture;
    return CUDA_SUCCESS;
}

static struct texture *find(unsigned long long number, enum handle_type type) {
    struct texture *texture = (struct texture *)(uintptr_t)number;
    return handle_is(texture, type) ? texture : NULL;
}

static CUresult destroy(unsigned long long number, enum handle_type type) {
    struct texture *texture = find(number, type);
    if (texture == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    handle_end(texture);
    return CUDA_SUCCESS;
}

#define GET(target, number, type, field)                                                                               \
    ({                                                                                                                 \
        const struct texture *texture_ = (target) == NULL ? NULL : find(number, type);                                 \
        if (texture_ != NULL) {                                                                                        \
            *(target) = texture_->field;                                                                               \
        }                                                                                                              \
        texture_ == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;                                                    \
    })

static CUresult get_view(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject number) {
    const struct texture *texture = find(number, HANDLE_TEXTURE);
    if (view == NULL || texture == NULL || !texture->viewed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *view = texture->view;
    return CUDA_SUCCESS;
}

API(cuTexObjectCreate,
    (CUtexObject * texture, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling,
     const CUDA_RESOURCE_VIEW_DESC *view),
    LOCKED(create(texture, HANDLE_TEXTURE, resource, sampling, view)))
API(cuTexObjectDestroy, (CUtexObject texture), LOCKED(destroy(texture, HANDLE_TEXTURE)))
API(cuTexObjectGetResourceDesc, (CUDA_RESOURCE_DESC * resource, CUtexObject texture),
    LOCKED(GET(resource, texture, HANDLE_TEXTURE, resource)))
API(cuTexObjectGetTextureDesc, (CUDA_TEXTURE_DESC * sampling, CUtexObject texture),
    LOCKED(GET(sampling, texture, HANDLE_TEXTURE, sampling)))
API(cuTexObjectGetResourceViewDesc, (CUDA_RESOURCE_VIEW_DESC * view, CUtexObject texture),
    LOCKED(get_view(view, texture)))
API(cuSurfObjectCreate, (CUsurfObject * surface, const CUDA_RESOURCE_DESC *resource),
    LOCKED(create(surface, HANDLE_SURFACE, resource, NULL, NULL)))
API(cuSurfObjectDestroy, (CUsurfObject surface), LOCKED(destroy(surface, HANDLE_SURFACE)))
API(cuSurfObjectGetResourceDesc, (CUDA_RESOURCE_DESC * resource, CUsurfObject surface),
    LOCKED(GET(resource, surface, HANDLE_SURFACE, resource)))
