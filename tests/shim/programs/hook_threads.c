/* hook_threads.c: threads that allocate and free by all families at once, through the hooks, over the software driver.
 * Run with the library itself built under a sanitizer. At the end all memory is free again. */
#include "cuda_abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS  3000
#define LIVE    8
#define LIMIT   (2ull << 30)

enum family { LINEAR, STREAM, VMM, ARRAY, FAMILIES };

struct piece {
    enum family family;
    CUdeviceptr pointer;
    CUarray array;
    CUmemGenericAllocationHandle handle;
};

static CUcontext context;

static void must(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static CUresult take(struct piece *piece, size_t size) {
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUDA_ARRAY_DESCRIPTOR shape = {size >> 12, 1024, CU_AD_FORMAT_FLOAT, 1};
    switch (piece->family) {
    case LINEAR:
        return cuMemAlloc_v2(&piece->pointer, size);
    case STREAM:
        return cuMemAllocAsync(&piece->pointer, size, NULL);
    case VMM:
        return cuMemCreate(&piece->handle, (size + (2u << 20) - 1) >> 21 << 21, &properties, 0);
    default:
        return cuArrayCreate_v2(&piece->array, &shape);
    }
}

static CUresult give(const struct piece *piece) {
    switch (piece->family) {
    case LINEAR:
        return cuMemFree_v2(piece->pointer);
    case STREAM:
        return cuMemFreeAsync(piece->pointer, NULL);
    case VMM:
        return cuMemRelease(piece->handle);
    default:
        return cuArrayDestroy(piece->array);
    }
}

static void *run(void *data) {
    struct piece live[LIVE];
    bool taken[LIVE] = {false};
    uint64_t state = (uint64_t)(uintptr_t)data, succeeded = 0;
    size_t free_now, total;
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)(next_random(&state) % LIVE);
        if (taken[i])
            must(give(&live[i]), "give");
        live[i].family = next_random(&state) % FAMILIES;
        CUresult result = take(&live[i], ((size_t)next_random(&state) % 256 + 1) << 20);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            must(result, "take");
        taken[i] = result == CUDA_SUCCESS;
        succeeded += taken[i];
        must(cuMemGetInfo_v2(&free_now, &total), "cuMemGetInfo");
        if (total != LIMIT || free_now > total) {
            fprintf(stderr, "%zu of %zu are free\n", free_now, total);
            exit(1);
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (taken[i])
            must(give(&live[i]), "last give");
    return (void *)(uintptr_t)succeeded;
}

int main(void) {
    pthread_t threads[THREADS];
    CUmemoryPool pool;
    size_t before, after, total;
    uint64_t succeeded = 0;
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuMemGetInfo_v2(&before, &total), "cuMemGetInfo");
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        succeeded += (uint64_t)(uintptr_t)result;
    }
    must(cuStreamSynchronize(NULL), "cuStreamSynchronize");
    must(cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
    must(cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    must(cuMemGetInfo_v2(&after, &total), "cuMemGetInfo");
    if (after != before || succeeded < THREADS * ROUNDS / 8) {
        fprintf(stderr, "%zu were free, %zu are; %llu succeeded\n", before, after, (unsigned long long)succeeded);
        return 1;
    }
    puts("good");
    return 0;
}
