/* cuda_linear.c: cuMemAlloc and its relatives, cuMemFree, and what is free.
 *
 * Managed memory is charged in full when it is allocated, as if all of it were resident on the GPU; a real driver
 * charges pages when they are touched and may evict them. It is the worst case, and a deterministic one.
 */
#define _GNU_SOURCE
#include "cuda_linear.h"

#include "common_model.h"
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_graphmem.h"
#include "cuda_ipc.h"
#include "cuda_mempool.h"

#include <limits.h>

static CUresult allocate(CUdeviceptr *pointer, size_t size, enum memory_kind kind, unsigned int flags) {
    CUcontext context;
    struct memory *memory;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pointer == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = context_take(context, kind, size, &memory);
    if (result == CUDA_SUCCESS) {
        memory->flags = flags;
        *pointer = memory->address;
    }
    return result;
}

API(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t size), UNSAFE(LOCKED(allocate(pointer, size, MEMORY_LINEAR, 0))))

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags) {
    ENTER(cuMemAllocManaged);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return UNSAFE(LOCKED(allocate(pointer, size, MEMORY_MANAGED, flags)));
}

static CUresult allocate_pitch(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element) {
    size_t bytes;
    if (pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (width > SIZE_MAX - MODEL_PITCH_ALIGNMENT || __builtin_mul_overflow(model_pitch(width), height, &bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = allocate(pointer, bytes, MEMORY_LINEAR, 0);
    if (result == CUDA_SUCCESS) {
        *pitch = model_pitch(width);
    }
    return result;
}

API(cuMemAllocPitch_v2, (CUdeviceptr * pointer, size_t *pitch, size_t width, size_t height, unsigned int element),
    UNSAFE(LOCKED(allocate_pitch(pointer, pitch, width, height, element))))

/* The first versions return 32-bit addresses, of which there are none here: their memory is given back at once. */
static CUresult narrow(CUresult result, const CUdeviceptr *wide, CUdeviceptr_v1 *pointer) {
    if (result == CUDA_SUCCESS && (pointer == NULL || *wide > UINT_MAX)) {
        context_give(memory_at(*wide));
        return pointer == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        *pointer = (CUdeviceptr_v1)*wide;
    }
    return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size) {
    ENTER(cuMemAlloc);
    CUdeviceptr wide = 0;
    return LOCKED(narrow(allocate(&wide, size, MEMORY_LINEAR, 0), &wide, pointer));
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
    ENTER(cuMemAllocPitch);
    CUdeviceptr wide = 0;
    size_t wide_pitch = 0;
    CUresult result = LOCKED(narrow(allocate_pitch(&wide, &wide_pitch, width, height, element), &wide, pointer));
    if (result == CUDA_SUCCESS && pitch != NULL) {
        *pitch = (unsigned int)wide_pitch;
    }
    return result;
}

CUresult linear_release(CUdeviceptr pointer) {
    struct memory *memory = memory_at(pointer);
    if (memory == NULL || memory->address != pointer) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (memory->kind) {
    case MEMORY_LINEAR:
    case MEMORY_MANAGED:
        context_give(memory);
        return CUDA_SUCCESS;
    case MEMORY_POOLED:
        mempool_give(memory);
        return CUDA_SUCCESS;
    case MEMORY_GRAPH:
        return graph_memory_free(memory->origin);
    case MEMORY_EXTERNAL:
        ipc_unmap(memory);
        return CUDA_SUCCESS;
    case MEMORY_IPC:
        if (memory->pool == NULL) { /* opened by cuIpcOpenMemHandle: closed, not freed */
            return CUDA_ERROR_INVALID_VALUE;
        }
        ipc_unmap(memory);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult release(CUdeviceptr pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    return result != CUDA_SUCCESS || pointer == 0 ? result : linear_release(pointer);
}

API(cuMemFree_v2, (CUdeviceptr pointer), UNSAFE(LOCKED(release(pointer))))
API(cuMemFree, (CUdeviceptr_v1 pointer), LOCKED(release(pointer)))

static CUresult info(size_t *free, size_t *total) {
    CUcontext context;
    struct device *device;
    CUresult result = context_current_device(&context, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t used = pool_used(device->gpu);
    if (free != NULL) {
        *free = used > device->total ? 0 : device->total - used;
    }
    if (total != NULL) {
        *total = device->total;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (pool_refuses()) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    ENTER(cuMemGetInfo_v2);
    return LOCKED(info(free, total));
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    size_t wide_free, wide_total;
    if (pool_refuses()) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    ENTER(cuMemGetInfo);
    CUresult result = LOCKED(info(&wide_free, &wide_total));
    if (result == CUDA_SUCCESS && free != NULL) {
        *free = wide_free > UINT_MAX ? UINT_MAX : (unsigned int)wide_free;
    }
    if (result == CUDA_SUCCESS && total != NULL) {
        *total = wide_total > UINT_MAX ? UINT_MAX : (unsigned int)wide_total;
    }
    return result;
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct memory *memory = memory_at(pointer);
    if (memory == NULL || memory->kind == MEMORY_ARRAY) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = memory->address;
    }
    if (size != NULL) {
        *size = memory->size;
    }
    return CUDA_SUCCESS;
}

API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr pointer),
    LOCKED(address_range(base, size, pointer)))

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 pointer) {
    ENTER(cuMemGetAddressRange);
    CUdeviceptr wide_base;
    size_t wide_size;
    CUresult result = LOCKED(address_range(&wide_base, &wide_size, pointer));
    if (result == CUDA_SUCCESS && base != NULL) {
        *base = (CUdeviceptr_v1)wide_base;
    }
    if (result == CUDA_SUCCESS && size != NULL) {
        *size = (unsigned int)wide_size;
    }
    return result;
}
