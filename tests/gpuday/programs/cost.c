/* cost.c: nanoseconds of pairs of calls on whichever driver there is: cost THREADS MILLISECONDS.
 *
 * One line a case: its name, a tab, the nanoseconds of one pair in one thread. The first line is the floor: three
 * compare-and-swaps and one exchange-and-add on one word, which is what the account needs at least.
 */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE  4096
#define BLOCK (2ull << 20)
#define MOST  64

/* For the first of these targets that the driver takes: new ones may refuse the first, GPUs before 2018 need it. */
#define KERNEL(target) ".version 6.3\n.target " target "\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n"
static const char *const kernels[] = {KERNEL("sm_52"), KERNEL("sm_75")};

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit)                                                                                                          \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemFree_v2)                                                                                                    \
    X(cuMemAllocAsync)                                                                                                 \
    X(cuMemFreeAsync)                                                                                                  \
    X(cuMemGetInfo_v2)                                                                                                 \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuModuleLoadData)                                                                                                \
    X(cuModuleGetFunction)                                                                                             \
    X(cuLaunchKernel)                                                                                                  \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamSynchronize)
#define DECLARE(name) static __typeof__(&(name)) f_##name;
FUNCTIONS(DECLARE)

static CUcontext context;
static CUfunction nothing;
static uint64_t word;
static double lasting;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "%s: error %d\n", what, result);
        exit(1);
    }
}

static int pair_floor(CUstream stream) {
    (void)stream;
    for (int i = 0; i < 3; i++) {
        uint64_t seen = __atomic_load_n(&word, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&word, &seen, seen + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            ;
    }
    __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int pair_sync(CUstream stream) {
    CUdeviceptr one;
    (void)stream;
    int code = (int)f_cuMemAlloc_v2(&one, SIZE);
    return code ? code : (int)f_cuMemFree_v2(one);
}

static int pair_async(CUstream stream) {
    CUdeviceptr one;
    int code = (int)f_cuMemAllocAsync(&one, SIZE, stream);
    return code ? code : (int)f_cuMemFreeAsync(one, stream);
}

static int pair_virtual(CUstream stream) {
    CUmemGenericAllocationHandle one;
    CUmemAllocationProp prop;
    (void)stream;
    memset(&prop, 0, sizeof prop);
    prop.type = 1;
    prop.location.type = 1;
    int code = (int)f_cuMemCreate(&one, BLOCK, &prop, 0);
    return code ? code : (int)f_cuMemRelease(one);
}

static int ask_info(CUstream stream) {
    size_t available, total;
    (void)stream;
    return (int)f_cuMemGetInfo_v2(&available, &total);
}

static int launch(CUstream stream) {
    return (int)f_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static const struct task {
    const char *name;
    int (*pair)(CUstream stream);
} tasks[] = {{"floor", pair_floor},          {"sync pair", pair_sync},   {"async pair", pair_async},
             {"virtual pair", pair_virtual}, {"cuMemGetInfo", ask_info}, {"launch", launch}};

struct work {
    pthread_t thread;
    const struct task *task;
    double ns;
};

static void *measure(void *argument) {
    struct work *work = argument;
    CUstream stream;
    check((int)f_cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check((int)f_cuStreamCreate(&stream, 1), "cuStreamCreate");
    double least = 1e18, end = now_ns() + lasting * 1e6;
    do {
        enum { ROUNDS = 200 };
        double began = now_ns();
        for (int i = 0; i < ROUNDS; i++)
            check(work->task->pair(stream), work->task->name);
        double each = (now_ns() - began) / ROUNDS;
        check((int)f_cuStreamSynchronize(stream), "cuStreamSynchronize");
        least = each < least ? each : least;
    } while (now_ns() < end);
    work->ns = least;
    return NULL;
}

int main(int count, char **words) {
    int threads = count > 1 ? atoi(words[1]) : 1;
    lasting = count > 2 ? atof(words[2]) : 100;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || threads < 1 || threads > MOST) {
        fprintf(stderr, "%s\n", library == NULL ? dlerror() : "threads: 1 to 64");
        return 1;
    }
#define FIND(name)                                                                                                     \
    f_##name = (__typeof__(f_##name))dlsym(library, #name);                                                            \
    if (f_##name == NULL) {                                                                                            \
        fprintf(stderr, "%s\n", dlerror());                                                                            \
        return 1;                                                                                                      \
    }
    FUNCTIONS(FIND)
    CUmodule module;
    check((int)f_cuInit(0), "cuInit");
    check((int)f_cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check((int)f_cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (f_cuModuleLoadData(&module, kernels[0]) != CUDA_SUCCESS)
        check((int)f_cuModuleLoadData(&module, kernels[1]), "cuModuleLoadData");
    check((int)f_cuModuleGetFunction(&nothing, module, "nothing"), "cuModuleGetFunction");
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        struct work work[MOST];
        double sum = 0;
        for (int t = 0; t < threads; t++) {
            work[t].task = &tasks[i];
            check(pthread_create(&work[t].thread, NULL, measure, &work[t]), "pthread_create");
        }
        for (int t = 0; t < threads; t++) {
            pthread_join(work[t].thread, NULL);
            sum += work[t].ns;
        }
        printf("%s\t%.1f\n", tasks[i].name, sum / threads);
    }
    return 0;
}
