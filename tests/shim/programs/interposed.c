/* interposed.c: a program that calls the driver past the interposer. */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    CUcontext context;
    CUdeviceptr huge;
    size_t free = 0, total = 0;
    int (*same_twice)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "interposer_same_twice");
    getenv("HOME");
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    CUresult large = cuMemAlloc_v2(&huge, 5ull << 30), info = cuMemGetInfo_v2(&free, &total);
    printf("[%d, %d, %d, %zu]\n", same_twice == NULL ? -1 : same_twice(), large, info, total);
    return 0;
}
