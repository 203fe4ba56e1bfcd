/* trim_threads.c: threads that allocate, make and destroy pools, launch graphs, begin and give up captures, while trims
 * are asked for all the time. Ends when its input does. With "exit" it leaves in the middle of all that; with "fork",
 * children do it too, each with a page and a thread of its own; with "main" the main thread goes first. */
#include "cuda_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_bool over;
static CUcontext context;

static void must(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        _exit(1);
    }
}
#define MUST(call) must(call, #call)

static void use_default_pool(CUstream stream) {
    CUdeviceptr pointers[4];
    for (int i = 0; i < 4; i++)
        MUST(cuMemAllocAsync(&pointers[i], 3u << 20, stream));
    for (int i = 0; i < 4; i++)
        MUST(cuMemFreeAsync(pointers[i], stream));
    MUST(cuStreamSynchronize(stream));
}

static void use_pool_of_its_own(CUstream stream) {
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;
    CUdeviceptr pointer;
    uint64_t keep = UINT64_MAX;
    MUST(cuMemPoolCreate(&pool, &props));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    MUST(cuMemAllocFromPoolAsync(&pointer, 5u << 20, pool, stream));
    MUST(cuMemFreeAsync(pointer, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
}

static void capture(CUstream stream) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemAllocAsync(&pointer, 7u << 20, stream));
    MUST(cuMemFreeAsync(pointer, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 5; i++)
        MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void give_up_a_capture(void) {
    CUstream stream;
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuStreamDestroy_v2(stream));
}

static void *work(void *number) {
    CUstream stream;
    CUdeviceptr pointer;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, 1));
    for (uint64_t round = (uintptr_t)number; !atomic_load(&over); round++) {
        switch (round % 5) {
        case 0:
            use_default_pool(stream);
            break;
        case 1:
            use_pool_of_its_own(stream);
            break;
        case 2:
            capture(stream);
            break;
        case 3:
            give_up_a_capture();
            break;
        default:
            MUST(cuMemAlloc_v2(&pointer, 9u << 20));
            MUST(cuMemFree_v2(pointer));
        }
    }
    return NULL;
}

static void *await_input(void *unused) {
    while (getchar() != EOF)
        ;
    atomic_store(&over, 1);
    return unused;
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    pthread_t threads[3], input;
    int forks = strcmp(how, "fork") == 0 ? 2 : 0;
    for (int i = 0; i < forks; i++)
        if (fork() == 0)
            forks = 0;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    for (uintptr_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_create(&input, NULL, await_input, NULL);
    puts("started");
    fflush(stdout);
    if (strcmp(how, "main") == 0)
        pthread_exit(NULL);
    if (strcmp(how, "exit") == 0) {
        usleep(300000);
        exit(0);
    }
    pthread_join(input, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    while (forks > 0 && wait(NULL) > 0)
        ;
    CUmemoryPool pool;
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemPoolTrimTo(pool, 0));
    MUST(cuDeviceGraphMemTrim(0));
    return 0;
}
