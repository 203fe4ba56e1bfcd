/* bench_cost.c: nanoseconds of the calls that the shim hooks, and of one that it does not.
 *
 * Opens libcuda.so.1 as programs do and prints one line a case: its name and the nanoseconds of one operation.
 * cost.py runs it with and without the shim, in turn.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SIZE 4096

static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemFree_v2) release;
static __typeof__(&cuMemGetInfo_v2) info;
static __typeof__(&cuLaunchKernel) launch;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: error %d\n", what, (int)result);
    exit(1);
}

static void *need(void *library, const char *symbol) {
    void *found = dlsym(library, symbol);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static void measure_pairs(long live, long rounds) {
    CUdeviceptr *held = malloc((size_t)(live + 1) * sizeof *held), pointer;
    for (long i = 0; i < live; i++)
        check(allocate(&held[i], SIZE), "cuMemAlloc");
    double start = now_ns();
    for (long i = 0; i < rounds; i++) {
        check(allocate(&pointer, SIZE), "cuMemAlloc");
        check(release(pointer), "cuMemFree");
    }
    printf("alloc+free pair, %ld live\t%.2f\n", live, (now_ns() - start) / (double)rounds);
    while (live-- > 0)
        release(held[live]);
    free(held);
}

/* The same, but each time another of the live ones is freed and made again: every entry is cold. */
static void measure_cold(long live, long rounds) {
    CUdeviceptr *held = malloc((size_t)live * sizeof *held);
    for (long i = 0; i < live; i++)
        check(allocate(&held[i], SIZE), "cuMemAlloc");
    uint64_t at = 1;
    double start = now_ns();
    for (long i = 0; i < rounds; i++) {
        at = at * 6364136223846793005ull + 1442695040888963407ull;
        CUdeviceptr *slot = &held[(at >> 33) % (uint64_t)live];
        check(release(*slot), "cuMemFree");
        check(allocate(slot, SIZE), "cuMemAlloc");
    }
    printf("free+alloc pair, random among %ld\t%.2f\n", live, (now_ns() - start) / (double)rounds);
    while (live-- > 0)
        release(held[live]);
    free(held);
}

static void measure_info(long rounds) {
    size_t available, total;
    double start = now_ns();
    for (long i = 0; i < rounds; i++)
        check(info(&available, &total), "cuMemGetInfo");
    printf("cuMemGetInfo\t%.2f\n", (now_ns() - start) / (double)rounds);
}

static void measure_launch(long rounds) {
    double start = now_ns();
    for (long i = 0; i < rounds; i++)
        check(launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    printf("cuLaunchKernel\t%.2f\n", (now_ns() - start) / (double)rounds);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1000000;
    CUcontext context;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    allocate = (__typeof__(allocate))need(library, "cuMemAlloc_v2");
    release = (__typeof__(release))need(library, "cuMemFree_v2");
    info = (__typeof__(info))need(library, "cuMemGetInfo_v2");
    launch = (__typeof__(launch))need(library, "cuLaunchKernel");
    check(((__typeof__(&cuInit))need(library, "cuInit"))(0), "cuInit");
    check(((__typeof__(&cuDevicePrimaryCtxRetain))need(library, "cuDevicePrimaryCtxRetain"))(&context, 0), "context");
    measure_pairs(0, rounds);
    measure_pairs(4000, rounds);
    measure_pairs(50000, rounds);
    measure_cold(50000, rounds);
    measure_info(rounds);
    measure_launch(rounds);
    return 0;
}
