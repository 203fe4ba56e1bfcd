/* cuda_array.c: arrays: memory with dimensions and without an address of the program's.
 *
 * It costs what NVIDIA's driver was seen to take (array_layout.h). In that memory the bytes lie row by row and layer by
 * layer without gaps, which nobody can see. Sparse arrays and arrays with deferred mapping have no memory of their own.
 * The levels of a mipmapped array share its memory; a level is a view that the program must not destroy. Formats whose
 * elements are not whole bytes apart (block-compressed, video) are refused, and so are the planes that only they have.
 */
#define _GNU_SOURCE
#include "cuda_array.h"

#include "array_layout.h"
#include "common_model.h"
#include "cuda_api.h"
#include "cuda_handle.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LEVELS 32

struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdevice device;
    struct memory *memory; /* NULL: sparse or deferred */
    uint64_t offset;       /* of a level, in the memory of all */
    CUmipmappedArray parent;
};

struct CUmipmappedArray_st {
    unsigned int levels;
    uint64_t bytes;
    CUarray level[MAX_LEVELS];
};

static size_t format_bytes(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

/* A dimension of 0 means that the array has fewer dimensions. */
static size_t at_least_one(size_t dimension) {
    return dimension == 0 ? 1 : dimension;
}

static CUresult array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, uint64_t *bytes) {
    size_t element = format_bytes(descriptor->Format) * descriptor->NumChannels;
    unsigned int channels = descriptor->NumChannels;
    if (element == 0 || (channels != 1 && channels != 2 && channels != 4) || descriptor->Width == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (__builtin_mul_overflow(element, descriptor->Width, bytes) ||
        __builtin_mul_overflow(*bytes, at_least_one(descriptor->Height), bytes) ||
        __builtin_mul_overflow(*bytes, at_least_one(descriptor->Depth), bytes) || *bytes > (1ull << 46)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static bool has_memory(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

/* Of the GPU. The descriptor is one that array_bytes takes. */
static uint64_t taken_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels) {
    return gs_array_bytes(descriptor, format_bytes(descriptor->Format) * descriptor->NumChannels, levels);
}

static CUresult take_memory(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels, CUcontext context,
                            struct memory **memory) {
    *memory = NULL;
    return has_memory(descriptor) ? context_take(context, MEMORY_ARRAY, taken_bytes(descriptor, levels), memory)
                                  : CUDA_SUCCESS;
}

static CUarray new_array(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUdevice device, struct memory *memory) {
    CUarray array = handle_new(HANDLE_ARRAY, sizeof *array);
    if (array != NULL) {
        array->descriptor = *descriptor;
        array->device = device;
        array->memory = memory;
    }
    return array;
}

static CUresult create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    CUcontext context;
    uint64_t bytes;
    struct memory *memory;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = array == NULL || descriptor == NULL ? CUDA_ERROR_INVALID_VALUE : array_bytes(descriptor, &bytes);
    }
    if (result == CUDA_SUCCESS) {
        result = take_memory(descriptor, 1, context, &memory);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUarray fresh = new_array(descriptor, context->device, memory);
    if (fresh == NULL) {
        if (memory != NULL) {
            context_give(memory);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (memory != NULL) {
        memory->origin = fresh;
    }
    *array = fresh;
    return CUDA_SUCCESS;
}

static CUresult create_2d(CUarray *array, size_t width, size_t height, CUarray_format format, unsigned int channels) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = width, .Height = height, .Format = format, .NumChannels = channels};
    return create(array, &descriptor);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *from) {
    ENTER(cuArrayCreate_v2);
    return from == NULL ? CUDA_ERROR_INVALID_VALUE
                        : LOCKED(create_2d(array, from->Width, from->Height, from->Format, from->NumChannels));
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *from) {
    ENTER(cuArrayCreate);
    return from == NULL ? CUDA_ERROR_INVALID_VALUE
                        : LOCKED(create_2d(array, from->Width, from->Height, from->Format, from->NumChannels));
}

API(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor), LOCKED(create(array, descriptor)))

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *from) {
    ENTER(cuArray3DCreate);
    if (from == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {from->Width,  from->Height,      from->Depth,
                                          from->Format, from->NumChannels, from->Flags};
    return LOCKED(create(array, &descriptor));
}

void array_lost(const struct memory *memory) {
    ((CUarray)memory->origin)->memory = NULL;
}

static CUresult destroy(CUarray array) {
    if (!handle_is(array, HANDLE_ARRAY) || array->parent != NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (array->memory != NULL) {
        context_give(array->memory);
    }
    handle_end(array);
    return CUDA_SUCCESS;
}

API(cuArrayDestroy, (CUarray array), LOCKED(destroy(array)))

CUresult array_view(CUarray array, struct array_view *view) {
    if (!handle_is(array, HANDLE_ARRAY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const struct memory *memory = array->parent != NULL ? array->parent->level[0]->memory : array->memory;
    if (memory == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_ARRAY3D_DESCRIPTOR *descriptor = &array->descriptor;
    view->start = (char *)(uintptr_t)(memory->address + array->offset);
    view->pitch = descriptor->Width * descriptor->NumChannels * format_bytes(descriptor->Format);
    view->height = at_least_one(descriptor->Height);
    view->depth = at_least_one(descriptor->Depth);
    view->bytes = view->pitch * view->height * view->depth;
    return CUDA_SUCCESS;
}

static CUresult describe(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    if (!handle_is(array, HANDLE_ARRAY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

API(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * descriptor, CUarray array),
    descriptor == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(describe(array, descriptor)))

/* The other forms of the same question. */
#define DESCRIBE_AS(...)                                                                                               \
    CUDA_ARRAY3D_DESCRIPTOR full;                                                                                      \
    CUresult result = descriptor == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(describe(array, &full));                  \
    if (result == CUDA_SUCCESS) {                                                                                      \
        __typeof__(*descriptor) answer = __VA_ARGS__;                                                                  \
        *descriptor = answer;                                                                                          \
    }                                                                                                                  \
    return result

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array) {
    ENTER(cuArrayGetDescriptor_v2);
    DESCRIBE_AS({full.Width, full.Height, full.Format, full.NumChannels});
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *descriptor, CUarray array) {
    ENTER(cuArrayGetDescriptor);
    DESCRIBE_AS({(unsigned int)full.Width, (unsigned int)full.Height, full.Format, full.NumChannels});
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor, CUarray array) {
    ENTER(cuArray3DGetDescriptor);
    DESCRIBE_AS({(unsigned int)full.Width, (unsigned int)full.Height, (unsigned int)full.Depth, full.Format,
                 full.NumChannels, full.Flags});
}

/* cuda.h promises this for arrays with deferred mapping alone; of the others it says INVALID_VALUE. */
static CUresult fill_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, const CUDA_ARRAY3D_DESCRIPTOR *of,
                                  unsigned int levels, CUdevice device) {
    if (requirements == NULL || device_get(device) == NULL || (of->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(requirements, 0, sizeof *requirements);
    requirements->size = model_round_up(taken_bytes(of, levels), MODEL_ARRAY_ALIGNMENT);
    requirements->alignment = MODEL_ARRAY_ALIGNMENT;
    return CUDA_SUCCESS;
}

static CUresult requirements_of(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device) {
    return handle_is(array, HANDLE_ARRAY) ? fill_requirements(requirements, &array->descriptor, 1, device)
                                          : CUDA_ERROR_INVALID_HANDLE;
}

API(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS * requirements, CUarray array, CUdevice device),
    LOCKED(requirements_of(requirements, array, device)))

/* Nothing maps memory into sparse arrays here. */
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array) {
    ENTER(cuArrayGetSparseProperties);
    (void)properties, (void)array;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuArrayGetPlane(CUarray *plane, CUarray array, unsigned int index) {
    ENTER(cuArrayGetPlane);
    (void)plane, (void)array, (void)index;
    return CUDA_ERROR_INVALID_VALUE;
}

/* Level n has half the size of level n - 1 in each dimension; the layers of a layered array are not halved. */
static CUDA_ARRAY3D_DESCRIPTOR level_descriptor(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int level) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = *whole;
    descriptor.Width = at_least_one(whole->Width >> level);
    descriptor.Height = whole->Height == 0 ? 0 : at_least_one(whole->Height >> level);
    if ((whole->Flags & CUDA_ARRAY3D_LAYERED) == 0 && whole->Depth != 0) {
        descriptor.Depth = at_least_one(whole->Depth >> level);
    }
    return descriptor;
}

static unsigned int most_levels(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    size_t longest = descriptor->Width > descriptor->Height ? descriptor->Width : descriptor->Height;
    if ((descriptor->Flags & CUDA_ARRAY3D_LAYERED) == 0 && descriptor->Depth > longest) {
        longest = descriptor->Depth;
    }
    unsigned int levels = longest == 0 ? 1 : 64 - (unsigned)__builtin_clzll(longest);
    return levels < MAX_LEVELS ? levels : MAX_LEVELS;
}

static void end_mipmap(CUmipmappedArray array) {
    for (unsigned int level = array->levels; level-- > 0;) {
        if (level == 0 && array->level[0]->memory != NULL) {
            context_give(array->level[0]->memory);
        }
        handle_end(array->level[level]);
    }
    handle_end(array);
}

static CUresult add_levels(CUmipmappedArray array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels,
                           CUdevice device) {
    for (; array->levels < levels; array->levels++) {
        CUDA_ARRAY3D_DESCRIPTOR own = level_descriptor(descriptor, array->levels);
        uint64_t bytes;
        CUresult result = array_bytes(&own, &bytes);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        CUarray level = new_array(&own, device, NULL);
        if (level == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        level->parent = array;
        level->offset = array->bytes;
        array->level[array->levels] = level;
        array->bytes += bytes;
    }
    return CUDA_SUCCESS;
}

static CUresult create_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels) {
    CUcontext context;
    struct memory *memory;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array == NULL || descriptor == NULL || levels == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned int most = most_levels(descriptor);
    CUmipmappedArray fresh = handle_new(HANDLE_MIPMAP, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = add_levels(fresh, descriptor, levels < most ? levels : most, context->device);
    if (result == CUDA_SUCCESS) {
        result = take_memory(descriptor, fresh->levels, context, &memory);
    }
    if (result != CUDA_SUCCESS) {
        end_mipmap(fresh);
        return result;
    }
    fresh->level[0]->memory = memory;
    if (memory != NULL) {
        memory->origin = fresh->level[0];
    }
    *array = fresh;
    return CUDA_SUCCESS;
}

static CUresult destroy_mipmap(CUmipmappedArray array) {
    if (!handle_is(array, HANDLE_MIPMAP)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    end_mipmap(array);
    return CUDA_SUCCESS;
}

static CUresult get_level(CUarray *level, CUmipmappedArray array, unsigned int index) {
    if (!handle_is(array, HANDLE_MIPMAP)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (level == NULL || index >= array->levels) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *level = array->level[index];
    return CUDA_SUCCESS;
}

static CUresult mipmap_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray array,
                                    CUdevice device) {
    return handle_is(array, HANDLE_MIPMAP)
               ? fill_requirements(requirements, &array->level[0]->descriptor, array->levels, device)
               : CUDA_ERROR_INVALID_HANDLE;
}

API(cuMipmappedArrayCreate, (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels),
    LOCKED(create_mipmap(array, descriptor, levels)))
API(cuMipmappedArrayDestroy, (CUmipmappedArray array), LOCKED(destroy_mipmap(array)))
API(cuMipmappedArrayGetLevel, (CUarray * level, CUmipmappedArray array, unsigned int index),
    LOCKED(get_level(level, array, index)))
API(cuMipmappedArrayGetMemoryRequirements,
    (CUDA_ARRAY_MEMORY_REQUIREMENTS * requirements, CUmipmappedArray array, CUdevice device),
    LOCKED(mipmap_requirements(requirements, array, device)))
API(cuMipmappedArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES * properties, CUmipmappedArray array),
    ((void)properties, (void)array, CUDA_ERROR_NOT_SUPPORTED))
