/* cuda_ipc.c: memory and events of other processes in this one.
 *
 * A handle names the exporter's process and its descriptor of the memory, which /proc opens for a process of the same
 * user. What is shared is the whole block or blocks that an allocation lies in, as on a real GPU. The importer pays
 * nothing: the pages are the exporter's.
 */
#define _GNU_SOURCE
#include "cuda_ipc.h"

#include "common_model.h"
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_share.h"
#include "glibc_baseline.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x6d656d6369706770ull

struct ipc_handle {
    uint64_t magic;
    uint32_t pid;
    int fd;
    uint64_t inode; /* of the file behind fd: a recycled pid or descriptor shows */
    uint64_t offset, size;
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "fits into CUDA's handle");

CUresult ipc_map(int fd, uint64_t offset, uint64_t size, CUdevice device, struct memory **memory) {
    uint64_t start = offset / MODEL_BLOCK_BYTES * MODEL_BLOCK_BYTES;
    uint64_t length = model_blocks_bytes(offset + size - start);
    struct share_label label;
    void *place = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)start);
    if (place == MAP_FAILED) {
        return CUDA_ERROR_MAP_FAILED;
    }
    *memory = memory_new(MEMORY_IPC, (uint64_t)place + (offset - start), size);
    if (*memory == NULL) {
        munmap(place, length);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*memory)->device = device;
    (*memory)->origin = place;
    if (SIM_IS(importers, each) && (share_read(fd, SHARE_ARENA, &label) || share_read(fd, SHARE_VMM, &label)) &&
        share_is_foreign(&label)) {
        (*memory)->shared = length;
        pool_share(device_get(device)->gpu, (int64_t)length);
    }
    return CUDA_SUCCESS;
}

void ipc_unmap(struct memory *memory) {
    uint64_t start = (uint64_t)memory->origin;
    munmap(memory->origin, model_blocks_bytes(memory->address + memory->size - start));
    if (memory->shared != 0) {
        pool_share(device_get(memory->device)->gpu, -(int64_t)memory->shared);
    }
    memory_end(memory);
}

static CUresult export_memory(CUipcMemHandle *handle, CUdeviceptr pointer) {
    struct memory *memory = memory_at(pointer);
    struct stat status;
    if (handle == NULL || memory == NULL || memory->kind != MEMORY_LINEAR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct arena *arena = &device_get(memory->device)->arena;
    if (gs_fstat(arena->fd, &status) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    struct ipc_handle own = {.magic = IPC_MAGIC,
                             .pid = (uint32_t)getpid(),
                             .fd = arena->fd,
                             .inode = status.st_ino,
                             .offset = arena_offset(arena, memory->address),
                             .size = memory->size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &own, sizeof own);
    pool_mark(POOL_EXPORTED, 1);
    return CUDA_SUCCESS;
}

static int open_other(const struct ipc_handle *other) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%u/fd/%d", other->pid, other->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (gs_fstat(fd, &status) != 0 || status.st_ino != other->inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

static CUresult open_memory(CUdeviceptr *pointer, const CUipcMemHandle *handle, unsigned int flags) {
    struct ipc_handle other;
    struct share_label label;
    struct memory *memory;
    CUcontext context;
    CUresult result = context_current(&context);
    memcpy(&other, handle, sizeof other);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pointer == NULL || other.magic != IPC_MAGIC || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (other.pid == (uint32_t)getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that exported it */
    }
    int fd = open_other(&other);
    if (fd < 0 || !share_read(fd, SHARE_ARENA, &label) || other.offset + other.size > label.size) {
        close(fd);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    int device = device_of_uuid(label.uuid);
    result = device < 0 ? CUDA_ERROR_INVALID_DEVICE : ipc_map(fd, other.offset, other.size, device, &memory);
    close(fd);
    if (result == CUDA_SUCCESS) {
        memory->context = context;
        *pointer = memory->address;
    }
    return result;
}

static CUresult close_memory(CUdeviceptr pointer) {
    struct memory *memory = memory_at(pointer);
    if (memory == NULL || memory->address != pointer || memory->kind != MEMORY_IPC || memory->pool != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ipc_unmap(memory);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    if (pool_refuses()) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    ENTER(cuIpcGetMemHandle);
    return LOCKED(export_memory(handle, pointer));
}

API(cuIpcOpenMemHandle, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags),
    LOCKED(open_memory(pointer, &handle, flags)))
API(cuIpcOpenMemHandle_v2, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags),
    LOCKED(open_memory(pointer, &handle, flags)))
API(cuIpcCloseMemHandle, (CUdeviceptr pointer), LOCKED(close_memory(pointer)))
