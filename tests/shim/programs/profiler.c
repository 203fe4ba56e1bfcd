/* profiler.c: a tool that is told of each call of the driver and then asks for the memory that is free, as one does
 * that draws a curve of it. It gets between the shim and the driver by a dlsym of its own, so that it is told of the
 * shim's own calls too: with those locks of the shim held that are held across them. */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#else
#define OLDEST "GLIBC_2.2.5"
#endif

static void *(*find)(void *, const char *);
static __thread int depth;
static int told;

/* By the name, so that the shim's hooks answer. A tool guards itself against being told of its own calls. */
static void look(CUdevice device) {
    size_t free, total;
    CUcontext context;
    if (depth++ == 0) {
        CUresult (*info)(size_t *, size_t *) = find(RTLD_DEFAULT, "cuMemGetInfo_v2");
        CUresult (*retain)(CUcontext *, CUdevice) = find(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain");
        CUresult (*release)(CUdevice) = find(RTLD_DEFAULT, "cuDevicePrimaryCtxRelease_v2");
        info(&free, &total);
        if (retain(&context, device) == CUDA_SUCCESS)
            release(device);
        if (__atomic_add_fetch(&told, 1, __ATOMIC_RELAXED) == 1)
            fprintf(stderr, "profiler: at work\n");
    }
    depth--;
}

/* Trimming may be forbidden while some thread captures, unless the thread that trims says that it knows. */
static void look_at_mode(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    CUresult (*exchange)(CUstreamCaptureMode *) = find(driver, "cuThreadExchangeStreamCaptureMode");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange(&mode);
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        fprintf(stderr, "profiler: trimmed in the strict mode\n");
    exchange(&mode);
}

#define WRAP(name, parameters, arguments, device)                                                                      \
    static CUresult(*real_##name) parameters;                                                                          \
    static CUresult wrap_##name parameters {                                                                           \
        CUresult result = real_##name arguments;                                                                       \
        look(device);                                                                                                  \
        return result;                                                                                                 \
    }
WRAP(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value), (pool, which, value), 0)
WRAP(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep), (look_at_mode(), 0))
WRAP(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute which, void *value), (device, which, value),
     device)
WRAP(cuDeviceGraphMemTrim, (CUdevice device), (device), (look_at_mode(), device))
WRAP(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device), device)
WRAP(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device), device)
WRAP(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t size), (pointer, size), 0)
WRAP(cuMemFree_v2, (CUdeviceptr pointer), (pointer), 0)

/* Done, and telling of an error of earlier work, as the driver may. */
static CUresult (*real_cuDevicePrimaryCtxReset_v2)(CUdevice);
static CUresult wrap_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    CUresult result = real_cuDevicePrimaryCtxReset_v2(device);
    return result == CUDA_SUCCESS ? CUDA_ERROR_LAUNCH_FAILED : result;
}

#define ROW(name) {#name, (void *)wrap_##name, (void **)&real_##name}
static const struct {
    const char *name;
    void *wrapper, **real;
} rows[] = {ROW(cuMemPoolGetAttribute),
            ROW(cuMemPoolTrimTo),
            ROW(cuDeviceGetGraphMemAttribute),
            ROW(cuDeviceGraphMemTrim),
            ROW(cuDevicePrimaryCtxRetain),
            ROW(cuDevicePrimaryCtxRelease_v2),
            ROW(cuMemAlloc_v2),
            ROW(cuMemFree_v2),
            ROW(cuDevicePrimaryCtxReset_v2)};

void *dlsym(void *library, const char *name) {
    if (find == NULL)
        find = dlvsym(RTLD_NEXT, "dlsym", OLDEST);
    void *found = find(library, name);
    for (size_t i = 0; found != NULL && i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *rows[i].real = found;
            return rows[i].wrapper;
        }
    }
    return found;
}
