/* cuda_managed.c: advice about managed memory. Host and device memory are one here, so nothing ever moves: advice is
 * checked and accepted. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_stream.h"

#include <string.h>

#define CPU_DEVICE (-1)

static CUresult check_managed(CUdeviceptr pointer, size_t count) {
    const struct memory *memory = memory_at(pointer);
    if (memory == NULL || memory->kind != MEMORY_MANAGED || count == 0 ||
        count > memory->size - (pointer - memory->address)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult check_device(CUdevice device) {
    return device == CPU_DEVICE || device_get(device) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult check_location(CUmemLocation location) {
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return check_device(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult advise(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUresult place) {
    CUresult result = LOCKED(check_managed(pointer, count));
    if (result == CUDA_SUCCESS &&
        (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    bool needs_place = advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
                       advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    return result != CUDA_SUCCESS || !needs_place ? result : place;
}

API(cuMemAdvise, (CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device),
    advise(pointer, count, advice, check_device(device)))
API(cuMemAdvise_v2, (CUdeviceptr pointer, size_t count, CUmem_advise advice, CUmemLocation location),
    advise(pointer, count, advice, check_location(location)))

static CUresult prefetch(CUdeviceptr pointer, size_t count, CUresult place, CUstream stream) {
    CUresult result = LOCKED(check_managed(pointer, count));
    if (result == CUDA_SUCCESS) {
        result = place;
    }
    return result != CUDA_SUCCESS ? result : stream_enter(stream);
}

API_TWIN(cuMemPrefetchAsync, _ptsz, (CUdeviceptr pointer, size_t count, CUdevice device, CUstream stream),
         prefetch(pointer, count, check_device(device), stream))
API_TWIN(cuMemPrefetchAsync_v2, _ptsz,
         (CUdeviceptr pointer, size_t count, CUmemLocation location, unsigned int flags, CUstream stream),
         flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, count, check_location(location), stream))

static CUresult attach(CUstream stream, CUdeviceptr pointer, unsigned int flags) {
    const struct memory *memory = memory_at(pointer);
    (void)stream;
    if (memory == NULL || memory->kind != MEMORY_MANAGED || memory->address != pointer ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API_TWIN(cuStreamAttachMemAsync, _ptsz, (CUstream stream, CUdeviceptr pointer, size_t length, unsigned int flags),
         ((void)length, LOCKED(attach(stream, pointer, flags))))

/* No advice is kept, so every attribute has the answer of memory that never got any. */
static CUresult range_attribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer,
                                size_t count) {
    const int none = attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : -2;
    CUresult result = check_managed(pointer, count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (data == NULL || size == 0 || size % sizeof(int) != 0 || attribute < CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ||
        attribute > CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool is_type = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE ||
                   attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE;
    for (size_t index = 0; index < size / sizeof(int); index++) {
        ((int *)data)[index] = is_type ? CU_MEM_LOCATION_TYPE_INVALID : none;
    }
    return CUDA_SUCCESS;
}

static CUresult range_attributes(void **data, const size_t *sizes, const CUmem_range_attribute *attributes,
                                 size_t attribute_count, CUdeviceptr pointer, size_t count) {
    if (data == NULL || sizes == NULL || attributes == NULL || attribute_count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < attribute_count; index++) {
        CUresult result = range_attribute(data[index], sizes[index], attributes[index], pointer, count);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API(cuMemRangeGetAttribute,
    (void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer, size_t count),
    LOCKED(range_attribute(data, size, attribute, pointer, count)))
API(cuMemRangeGetAttributes,
    (void **data, size_t *sizes, CUmem_range_attribute *attributes, size_t attribute_count, CUdeviceptr pointer,
     size_t count),
    LOCKED(range_attributes(data, sizes, attributes, attribute_count, pointer, count)))
