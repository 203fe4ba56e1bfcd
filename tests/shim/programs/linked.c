/* linked.c: a program that is linked with -lcuda, as nvcc -lcuda makes them: ELF binding, no look-up at run time. */
#include "cuda_abi.h"

#include <stdio.h>

int main(void) {
    CUcontext context;
    CUdeviceptr pointer = 0, huge = 0;
    size_t free = 0, total = 0;
    CUresult init = cuInit(0), retain = cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    CUresult small = cuMemAlloc_v2(&pointer, 2 << 20), large = cuMemAlloc_v2(&huge, 5ull << 30);
    cuMemGetInfo_v2(&free, &total);
    printf("[%d, %d, %d, %d, %zu, %zu]\n", init, retain, small, large, total, total - free);
    return 0;
}
