/* cuda_multicast.c: multicast objects: memory of several devices that is written with one store.
 *
 * An object is a handle like those of memory, without memory: what is bound to it stays alive through it. Here it has
 * a file of its own when mapped, whose bytes do not reach what is bound: only kernels could tell.
 */
#define _GNU_SOURCE
#include "common_model.h"
#include "cuda_api.h"
#include "cuda_device.h"
#include "cuda_handle.h"
#include "cuda_memory.h"
#include "cuda_share.h"
#include "cuda_vmm.h"

#include <stdlib.h>

struct binding {
    struct vmm_handle *memory;
    CUdevice device;
    uint64_t offset, size;
    struct binding *next;
};

struct multicast {
    unsigned int wanted; /* devices */
    uint32_t devices;    /* added, as bits */
    struct binding *bindings;
};

static bool aligned(uint64_t value) {
    return value % MODEL_BLOCK_BYTES == 0;
}

static CUresult check_properties(const CUmulticastObjectProp *properties) {
    if (properties == NULL || properties->numDevices == 0 || properties->numDevices > (unsigned)device_count ||
        properties->flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return (properties->handleTypes & ~(uint64_t)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0
               ? CUDA_ERROR_NOT_SUPPORTED
               : CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *result, const CUmulticastObjectProp *properties) {
    CUresult checked = result == NULL ? CUDA_ERROR_INVALID_VALUE : check_properties(properties);
    if (checked == CUDA_SUCCESS && (properties->size == 0 || !aligned(properties->size))) {
        checked = CUDA_ERROR_INVALID_VALUE;
    }
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    struct multicast *multicast = calloc(1, sizeof *multicast);
    struct vmm_handle *handle = multicast == NULL ? NULL : handle_new(HANDLE_VMM, sizeof *handle);
    int fd = handle == NULL ? -1 : share_create(SHARE_VMM, 0, properties->size);
    if (fd < 0) {
        if (handle != NULL) {
            handle_end(handle);
        }
        free(multicast);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    multicast->wanted = properties->numDevices;
    handle->properties =
        (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    handle->size = properties->size;
    handle->references = 1;
    handle->fd = fd;
    handle->multicast = multicast;
    *result = (CUmemGenericAllocationHandle)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

static struct multicast *find(CUmemGenericAllocationHandle number) {
    struct vmm_handle *handle = vmm_find(number);
    return handle == NULL ? NULL : handle->multicast;
}

static CUresult add_device(CUmemGenericAllocationHandle number, CUdevice device) {
    struct multicast *multicast = find(number);
    if (multicast == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device_get(device) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((multicast->devices & 1u << device) != 0 ||
        (unsigned)__builtin_popcount(multicast->devices) == multicast->wanted) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    multicast->devices |= 1u << device;
    return CUDA_SUCCESS;
}

static bool overlaps(const struct multicast *multicast, CUdevice device, uint64_t offset, uint64_t size) {
    for (const struct binding *one = multicast->bindings; one != NULL; one = one->next) {
        if (one->device == device && offset < one->offset + one->size && one->offset < offset + size) {
            return true;
        }
    }
    return false;
}

static bool within(uint64_t offset, uint64_t size, uint64_t whole) {
    return size > 0 && aligned(offset) && aligned(size) && offset <= whole && size <= whole - offset;
}

/* All devices must have been added before anything is bound. */
static CUresult bind(CUmemGenericAllocationHandle number, size_t offset, struct vmm_handle *memory,
                     uint64_t memory_offset, size_t size) {
    struct vmm_handle *handle = vmm_find(number);
    struct multicast *multicast = find(number);
    if (multicast == NULL || memory == NULL || memory->multicast != NULL ||
        (unsigned)__builtin_popcount(multicast->devices) != multicast->wanted || !within(offset, size, handle->size) ||
        !within(memory_offset, size, memory->size) || memory->properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdevice device = memory->properties.location.id;
    if ((multicast->devices & 1u << device) == 0 || overlaps(multicast, device, offset, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct binding *binding = malloc(sizeof *binding);
    if (binding == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *binding = (struct binding){memory, device, offset, size, multicast->bindings};
    multicast->bindings = binding;
    vmm_hold(memory);
    return CUDA_SUCCESS;
}

static CUresult bind_address(CUmemGenericAllocationHandle number, size_t offset, CUdeviceptr pointer, size_t size) {
    const struct memory *memory = memory_at(pointer);
    if (memory == NULL || memory->kind != MEMORY_MAPPED || size > memory->address + memory->size - pointer) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return bind(number, offset, memory->origin, pointer - memory->address, size);
}

static void drop(struct binding **place) {
    struct binding *binding = *place;
    *place = binding->next;
    vmm_let_go(binding->memory);
    free(binding);
}

static CUresult unbind(CUmemGenericAllocationHandle number, CUdevice device, size_t offset, size_t size) {
    struct multicast *multicast = find(number);
    if (multicast == NULL || !within(offset, size, vmm_find(number)->size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (struct binding **place = &multicast->bindings; *place != NULL;) {
        struct binding *one = *place;
        if (one->device == device && one->offset >= offset && one->offset + one->size <= offset + size) {
            drop(place);
        } else {
            place = &one->next;
        }
    }
    return CUDA_SUCCESS;
}

void multicast_end(struct multicast *multicast) {
    while (multicast->bindings != NULL) {
        drop(&multicast->bindings);
    }
    free(multicast);
}

static CUresult granularity(size_t *result, const CUmulticastObjectProp *properties) {
    CUresult checked = result == NULL ? CUDA_ERROR_INVALID_VALUE : check_properties(properties);
    if (checked == CUDA_SUCCESS) {
        *result = MODEL_BLOCK_BYTES;
    }
    return checked;
}

API(cuMulticastCreate, (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *properties),
    LOCKED(create(handle, properties)))
API(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device), LOCKED(add_device(handle, device)))
API(cuMulticastBindMem,
    (CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset,
     size_t size, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(bind(handle, offset, vmm_find(memory), memory_offset, size)))
API(cuMulticastBindAddr,
    (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer, size_t size, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(bind_address(handle, offset, pointer, size)))
static CUresult bind_for(CUdevice device, CUmemGenericAllocationHandle number, size_t offset, struct vmm_handle *memory,
                         uint64_t memory_offset, size_t size) {
    bool fits = memory != NULL && cuda_device_of(&memory->properties.location) == device;
    return fits ? bind(number, offset, memory, memory_offset, size) : CUDA_ERROR_INVALID_VALUE;
}

API(cuMulticastBindMem_v2,
    (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUmemGenericAllocationHandle memory,
     size_t memory_offset, size_t size, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE
               : LOCKED(bind_for(device, handle, offset, vmm_find(memory), memory_offset, size)))
API(cuMulticastBindAddr_v2,
    (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUdeviceptr pointer, size_t size,
     unsigned long long flags),
    flags != 0 || device_get(device) == NULL ? CUDA_ERROR_INVALID_VALUE
                                             : LOCKED(bind_address(handle, offset, pointer, size)))
API(cuMulticastUnbind, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size),
    LOCKED(unbind(handle, device, offset, size)))
API(cuMulticastGetGranularity,
    (size_t *result, const CUmulticastObjectProp *properties, CUmulticastGranularity_flags option),
    ((void)option, granularity(result, properties)))
