/* cuda_host.c: host memory that the driver allocates or knows: never charged to a GPU. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_context.h"

#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#define KNOWN_ALLOC_FLAGS    0x7u /* portable, device map, write combined */
#define KNOWN_REGISTER_FLAGS 0xfu /* portable, device map, I/O memory, read only */

static uint64_t in_pages(uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

static CUresult allocate(void **pointer, size_t size, unsigned int flags) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pointer == NULL || size == 0 || (flags & ~KNOWN_ALLOC_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (size > 1ull << 46) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *place = mmap(NULL, in_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct memory *memory = place == MAP_FAILED ? NULL : memory_new(MEMORY_HOST, (CUdeviceptr)(uintptr_t)place, size);
    if (memory == NULL) {
        if (place != MAP_FAILED) {
            munmap(place, in_pages(size));
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->context = context;
    memory->device = context->device;
    memory->flags = flags | 0x2; /* with unified addressing all host memory is mapped */
    *pointer = place;
    return CUDA_SUCCESS;
}

static CUresult release(void *pointer) {
    struct memory *memory = memory_at((CUdeviceptr)(uintptr_t)pointer);
    if (memory == NULL || memory->kind != MEMORY_HOST || memory->address != (CUdeviceptr)(uintptr_t)pointer) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t size = in_pages(memory->size);
    memory_end(memory);
    munmap(pointer, size);
    return CUDA_SUCCESS;
}

API(cuMemAllocHost, (void **pointer, unsigned int size), LOCKED(allocate(pointer, size, 0)))
API(cuMemAllocHost_v2, (void **pointer, size_t size), LOCKED(allocate(pointer, size, 0)))
API(cuMemHostAlloc, (void **pointer, size_t size, unsigned int flags), LOCKED(allocate(pointer, size, flags)))
API(cuMemFreeHost, (void *pointer), LOCKED(release(pointer)))

static CUresult register_host(void *pointer, size_t size, unsigned int flags) {
    CUcontext context;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)pointer;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pointer == NULL || size == 0 || address + size < address || (flags & ~KNOWN_REGISTER_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct memory *above = memory_next(address);
    if (memory_at(address) != NULL || (above != NULL && above->address < address + size)) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    struct memory *memory = memory_new(MEMORY_REGISTERED, address, size);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->context = context;
    memory->device = context->device;
    memory->flags = flags;
    return CUDA_SUCCESS;
}

static CUresult unregister_host(void *pointer) {
    struct memory *memory = memory_at((CUdeviceptr)(uintptr_t)pointer);
    if (memory == NULL || memory->kind != MEMORY_REGISTERED || memory->address != (CUdeviceptr)(uintptr_t)pointer) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    memory_end(memory);
    return CUDA_SUCCESS;
}

API(cuMemHostRegister, (void *pointer, size_t size, unsigned int flags), LOCKED(register_host(pointer, size, flags)))
API(cuMemHostRegister_v2, (void *pointer, size_t size, unsigned int flags), LOCKED(register_host(pointer, size, flags)))
API(cuMemHostUnregister, (void *pointer), LOCKED(unregister_host(pointer)))

static CUresult find(void *pointer, struct memory **memory) {
    *memory = memory_at((CUdeviceptr)(uintptr_t)pointer);
    return *memory != NULL && ((*memory)->kind == MEMORY_HOST || (*memory)->kind == MEMORY_REGISTERED)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags) {
    ENTER(cuMemHostGetDevicePointer_v2);
    struct memory *memory;
    CUresult result = device == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(find(pointer, &memory));
    if (result == CUDA_SUCCESS) {
        *device = (CUdeviceptr)(uintptr_t)pointer;
    }
    return result;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *device, void *pointer, unsigned int flags) {
    ENTER(cuMemHostGetDevicePointer);
    struct memory *memory;
    CUresult result = device == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(find(pointer, &memory));
    if (result == CUDA_SUCCESS && (uintptr_t)pointer > UINT_MAX) {
        result = CUDA_ERROR_INVALID_VALUE; /* does not fit */
    }
    if (result == CUDA_SUCCESS) {
        *device = (CUdeviceptr_v1)(uintptr_t)pointer;
    }
    return result;
}

static CUresult get_flags(unsigned int *flags, void *pointer) {
    struct memory *memory;
    CUresult result = flags == NULL ? CUDA_ERROR_INVALID_VALUE : find(pointer, &memory);
    if (result == CUDA_SUCCESS) {
        *flags = memory->flags;
    }
    return result;
}

API(cuMemHostGetFlags, (unsigned int *flags, void *pointer), LOCKED(get_flags(flags, pointer)))
