/* namespaces.c: the driver by an unusual way: two codes, of a small allocation and of one over the limit. */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define FIND(name) __typeof__(&name) name##_ = (__typeof__(&name))dlsym(driver, #name)

static void use(void *driver) {
    CUcontext context;
    CUdeviceptr small, large;
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    cuInit_(0);
    cuDevicePrimaryCtxRetain_(&context, 0);
    cuCtxSetCurrent_(context);
    CUresult first = cuMemAlloc_v2_(&small, 1 << 20), second = cuMemAlloc_v2_(&large, 5ull << 30);
    printf("[%d, %d]\n", first, second);
    cuMemFree_v2_(small);
    if (second == CUDA_SUCCESS)
        cuMemFree_v2_(large);
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    if (strcmp(kind, "namespace") == 0)
        use(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    use(dlopen("libcuda.so.1", RTLD_NOW | (strcmp(kind, "deepbind") == 0 ? RTLD_DEEPBIND : 0)));
    return 0;
}
