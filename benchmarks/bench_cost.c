/* bench_cost.c: nanoseconds of the calls that the shim hooks, and of one that it does not.
 *
 * Opens libcuda.so.1 as programs do and prints one line a case: its name and the processor time of one operation, in
 * nanoseconds. Processor time, so that other programs on the machine count less. Also the floor in the same run: what
 * an account of any kind takes for a pair of calls, three compare-and-swaps and one addition. cost.py runs it with and
 * without the shim, in turn.
 */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SIZE         4096
#define MOST_THREADS 8

static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemFree_v2) release;
static __typeof__(&cuMemAllocAsync) allocate_async;
static __typeof__(&cuMemFreeAsync) release_async;
static __typeof__(&cuMemCreate) create;
static __typeof__(&cuMemRelease) let_go;
static __typeof__(&cuMemGetInfo_v2) info;
static __typeof__(&cuLaunchKernel) launch;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
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

/* ---- what is measured: one operation, so many times ------------------------------------------------- */

static void pair(void) {
    CUdeviceptr pointer;
    check(allocate(&pointer, SIZE), "cuMemAlloc");
    check(release(pointer), "cuMemFree");
}

static void async_pair(void) {
    CUdeviceptr pointer;
    check(allocate_async(&pointer, SIZE, NULL), "cuMemAllocAsync");
    check(release_async(pointer, NULL), "cuMemFreeAsync");
}

static void vmm_pair(void) {
    static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    check(create(&handle, SIZE, &properties, 0), "cuMemCreate");
    check(let_go(handle), "cuMemRelease");
}

static void ask_info(void) {
    size_t available, total;
    check(info(&available, &total), "cuMemGetInfo");
}

static void launch_one(void) {
    check(launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

/* The account's word is shared by all threads; a table's lock, as a rule, is not. */
static uint64_t shared_word;
static __thread uint64_t own_word;

static void swap(uint64_t *word) {
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &seen, seen + 1, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        continue;
}

static void floor_of_pair(void) {
    swap(&shared_word);
    swap(&own_word);
    swap(&own_word);
    __atomic_fetch_add(&shared_word, 1, __ATOMIC_ACQ_REL);
}

/* ---- how -------------------------------------------------------------------------------------------- */

static struct {
    void (*operation)(void);
    long rounds;
    unsigned begun;
    pthread_barrier_t start;
} work;

/* Threads are spread over the processors, so that they meet: left to the scheduler, all may take turns on one. */
static void spread(unsigned number) {
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    unsigned left = number % (unsigned)CPU_COUNT(&all);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all) || left-- > 0)
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void *work_on(void *taken) {
    spread(__atomic_fetch_add(&work.begun, 1, __ATOMIC_RELAXED));
    work.operation();
    pthread_barrier_wait(&work.start);
    double start = now_ns();
    for (long i = 0; i < work.rounds; i++)
        work.operation();
    *(double *)taken = now_ns() - start;
    return NULL;
}

static void measure(const char *name, void (*operation)(void), unsigned threads, long rounds) {
    pthread_t ids[MOST_THREADS];
    double taken[MOST_THREADS], all = 0;
    work.operation = operation;
    work.rounds = rounds / threads;
    work.begun = 0;
    pthread_barrier_init(&work.start, NULL, threads);
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work_on, &taken[i]) != 0)
            exit(1);
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        all += taken[i];
    }
    pthread_barrier_destroy(&work.start);
    printf("%s\t%u\t%.2f\n", name, threads, all / (double)(work.rounds * threads));
}

static void measure_all_threads(const char *name, void (*operation)(void), long rounds) {
    for (unsigned threads = 1; threads <= MOST_THREADS; threads *= 2)
        measure(name, operation, threads, rounds);
}

static void measure_with_live(long live, long rounds) {
    char name[64];
    CUdeviceptr *held = malloc((size_t)(live + 1) * sizeof *held);
    for (long i = 0; i < live; i++)
        check(allocate(&held[i], SIZE), "cuMemAlloc");
    snprintf(name, sizeof name, "sync pair, %ld live", live);
    measure_all_threads(name, pair, rounds);
    while (live-- > 0)
        release(held[live]);
    free(held);
}

/* A live one is freed and made again each time, another each time: every entry is cold. */
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
    printf("free+alloc, random among %ld\t1\t%.2f\n", live, (now_ns() - start) / (double)rounds);
    while (live-- > 0)
        release(held[live]);
    free(held);
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
    allocate_async = (__typeof__(allocate_async))need(library, "cuMemAllocAsync");
    release_async = (__typeof__(release_async))need(library, "cuMemFreeAsync");
    create = (__typeof__(create))need(library, "cuMemCreate");
    let_go = (__typeof__(let_go))need(library, "cuMemRelease");
    info = (__typeof__(info))need(library, "cuMemGetInfo_v2");
    launch = (__typeof__(launch))need(library, "cuLaunchKernel");
    check(((__typeof__(&cuInit))need(library, "cuInit"))(0), "cuInit");
    check(((__typeof__(&cuDevicePrimaryCtxRetain))need(library, "cuDevicePrimaryCtxRetain"))(&context, 0), "context");
    measure_all_threads("floor", floor_of_pair, rounds);
    measure_with_live(0, rounds);
    measure_with_live(4000, rounds);
    measure_with_live(50000, rounds);
    measure_cold(50000, rounds);
    measure("cuMemGetInfo", ask_info, 1, rounds); /* before any pool is known */
    measure_all_threads("async pair", async_pair, rounds);
    measure_all_threads("VMM pair", vmm_pair, rounds);
    measure("cuLaunchKernel", launch_one, 1, rounds);
    return 0;
}
