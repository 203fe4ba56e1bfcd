/* cuda_external.c: memory of other APIs, handed over as a file descriptor: a file of memory, or a descriptor that a
 * VMM handle was exported as. Its owner has paid for it; mapping it costs nothing.
 */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_ipc.h"
#include "glibc_baseline.h"

#include <sys/stat.h>
#include <unistd.h>

struct CUextMemory_st {
    int fd;
    uint64_t size;
    CUdevice device;
};

static CUresult import(CUexternalMemory *result, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    CUcontext context;
    struct stat status;
    CUresult checked = context_current(&context);
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    if (result == NULL || description == NULL || description->size == 0 || (description->flags & ~1u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (gs_fstat(description->handle.fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        (uint64_t)status.st_size < description->size) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUexternalMemory memory = handle_new(HANDLE_EXTERNAL, sizeof *memory);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory =
        (struct CUextMemory_st){description->handle.fd, description->size, context->device}; /* now the driver's */
    *result = memory;
    return CUDA_SUCCESS;
}

/* Freed with cuMemFree. */
static CUresult map_buffer(CUdeviceptr *pointer, CUexternalMemory memory,
                           const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description) {
    struct memory *mapped;
    if (!handle_is(memory, HANDLE_EXTERNAL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (pointer == NULL || description == NULL || description->flags != 0 || description->size == 0 ||
        description->offset > memory->size || description->size > memory->size - description->offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = ipc_map(memory->fd, description->offset, description->size, memory->device, &mapped);
    if (result == CUDA_SUCCESS) {
        mapped->kind = MEMORY_EXTERNAL;
        *pointer = mapped->address;
    }
    return result;
}

/* What is mapped of it stays. */
static CUresult destroy(CUexternalMemory memory) {
    if (!handle_is(memory, HANDLE_EXTERNAL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    close(memory->fd);
    handle_end(memory);
    return CUDA_SUCCESS;
}

API(cuImportExternalMemory, (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description),
    LOCKED(import(memory, description)))
API(cuExternalMemoryGetMappedBuffer,
    (CUdeviceptr * pointer, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description),
    LOCKED(map_buffer(pointer, memory, description)))
API(cuDestroyExternalMemory, (CUexternalMemory memory), LOCKED(destroy(memory)))
