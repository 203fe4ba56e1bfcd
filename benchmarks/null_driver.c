/* null_driver.c: a libcuda.so.1 whose calls cost nothing, to measure what the shim adds to them.
 *
 * One GPU with 64 GiB, one context, one pool, memory that is a number counted up: each address is given out once, so
 * that no table of addresses gets by with one entry that is always warm. Each thread counts for itself. Nothing is
 * checked.
 */
#include "cuda_abi.h"

#include <string.h>

#define GIB (1ull << 30)

#define FIRST      0x100000000000ull
#define PER_THREAD 0x10000000000ull

static CUdeviceptr threads;
static __thread CUdeviceptr next;

static CUdeviceptr fresh(size_t size) {
    if (next == 0)
        next = FIRST + PER_THREAD * __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
    next += size;
    return next - size;
}

static struct CUctx_st {
    int unused;
} context;

static struct CUmemPoolHandle_st {
    int unused;
} pool;

CUresult cuInit(unsigned int flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 'n', sizeof *uuid);
    uuid->bytes[0] = (char)device;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = 64 * GIB;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device) {
    (void)device;
    *result = &context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext current) {
    (void)current;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *current) {
    *current = &context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    *pointer = fresh(size);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    (void)pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
    (void)stream;
    *pointer = fresh(size);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    (void)pointer, (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *result) {
    (void)stream;
    *result = &context;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    (void)mode;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *result, CUdevice device) {
    (void)device;
    *result = &pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *result, CUdevice device) {
    return cuDeviceGetDefaultMemPool(result, device);
}

/* It has reserved more than is ever allocated, and keeps it. */
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    (void)handle, (void)attribute;
    *(uint64_t *)value = GIB;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    (void)properties, (void)flags;
    *handle = fresh(size);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    (void)handle;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = 64 * GIB;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                        CUstream stream, void **params, void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)params, (void)extra;
    return CUDA_SUCCESS;
}
