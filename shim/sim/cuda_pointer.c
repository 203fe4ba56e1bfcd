/* cuda_pointer.c: what the driver knows about an address. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"

#include <string.h>

/* Values differ in size: each is written as its attribute's type. */
#define ANSWER(type, value)                                                                                            \
    do {                                                                                                               \
        type answer_ = (type)(value);                                                                                  \
        memcpy(data, &answer_, sizeof answer_);                                                                        \
        return CUDA_SUCCESS;                                                                                           \
    } while (0)

static CUresult attribute_of(void *data, CUpointer_attribute attribute, CUdeviceptr pointer,
                             const struct memory *memory) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (memory->context == NULL) {
            return CUDA_ERROR_INVALID_VALUE; /* pools and mappings belong to no context */
        }
        ANSWER(CUcontext, memory->context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        ANSWER(unsigned int, memory_is_host(memory) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        ANSWER(CUdeviceptr, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!memory_is_host(memory) && !memory_is_managed(memory)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        ANSWER(CUdeviceptr, pointer);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        ANSWER(unsigned int, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        ANSWER(unsigned long long, memory->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        ANSWER(unsigned int, memory_is_managed(memory));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        ANSWER(int, memory->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        ANSWER(unsigned int, memory->kind == MEMORY_LINEAR);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        ANSWER(CUdeviceptr, memory->address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        ANSWER(size_t, memory->size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        ANSWER(unsigned int, memory->accessible);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        ANSWER(unsigned long long, 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        ANSWER(unsigned int, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        ANSWER(unsigned int, memory->accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : memory->flags);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        ANSWER(CUmemoryPool, memory->pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        ANSWER(size_t, memory->size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        ANSWER(CUdeviceptr, memory->address);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        ANSWER(unsigned long long, memory->id);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static bool exists(CUpointer_attribute attribute) {
    return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT && attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

static CUresult get_one(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    const struct memory *memory = memory_at(pointer);
    if (data == NULL || !exists(attribute) || memory == NULL || memory->kind == MEMORY_ARRAY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute_of(data, attribute, pointer, memory);
}

static size_t attribute_bytes(CUpointer_attribute attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return 16;
    default:
        return 8;
    }
}

/* Unlike the single question this one does not fail for a pointer that the driver does not know: what has no answer
 * is zero, and the ordinal of no device is -2. */
static CUresult get_many(unsigned int count, const CUpointer_attribute *attributes, void **data, CUdeviceptr pointer) {
    if (count == 0 || attributes == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int index = 0; index < count; index++) {
        if (!exists(attributes[index]) || data[index] == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (unsigned int index = 0; index < count; index++) {
        if (get_one(data[index], attributes[index], pointer) != CUDA_SUCCESS) {
            memset(data[index], 0, attribute_bytes(attributes[index]));
            if (attributes[index] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
                *(int *)data[index] = -2;
            }
        }
    }
    return CUDA_SUCCESS;
}

static CUresult set_one(const void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || memory_at(pointer) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS; /* memory operations are synchronous anyway */
}

API(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr pointer),
    LOCKED(get_one(data, attribute, pointer)))
API(cuPointerGetAttributes, (unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer),
    LOCKED(get_many(count, attributes, data, pointer)))
API(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr pointer),
    LOCKED(set_one(value, attribute, pointer)))
