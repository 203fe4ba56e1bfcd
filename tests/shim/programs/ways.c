/* ways.c: the ways in which programs find the driver, one a run: the codes of a small allocation, of one over the limit
 * and of the free, then the file that the allocating function is in.
 *
 *     ways WAY [FILE]      FILE: the driver to open, where the way opens one by a name of its own
 *
 * docs/loaders.md says which programs go which way.
 */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER "libcuda.so.1"

static struct {
    __typeof__(&cuInit) init;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuCtxSetCurrent) set_current;
    __typeof__(&cuMemAlloc_v2) allocate;
    __typeof__(&cuMemFree_v2) release;
} cuda;

static struct {
    const char *base, *symbol;
    void **place;
} const wanted[] = {
    {"cuInit", "cuInit", (void **)&cuda.init},
    {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (void **)&cuda.retain},
    {"cuCtxSetCurrent", "cuCtxSetCurrent", (void **)&cuda.set_current},
    {"cuMemAlloc", "cuMemAlloc_v2", (void **)&cuda.allocate},
    {"cuMemFree", "cuMemFree_v2", (void **)&cuda.release},
};

#define COUNT (sizeof wanted / sizeof *wanted)

static void fail(const char *what) {
    const char *why = dlerror();
    printf("%s: %s\n", what, why != NULL ? why : "nothing");
    exit(1);
}

static void *open_driver(const char *file, int flags) {
    void *driver = dlopen(file, flags);
    if (driver == NULL)
        fail(file);
    return driver;
}

static void find_in(void *handle) {
    for (size_t i = 0; i < COUNT; i++)
        if ((*wanted[i].place = dlsym(handle, wanted[i].symbol)) == NULL)
            fail(wanted[i].symbol);
}

/* As a program that checks dlerror instead of the address. */
static void find_and_check(void *handle) {
    for (size_t i = 0; i < COUNT; i++) {
        dlerror();
        *wanted[i].place = dlsym(handle, wanted[i].symbol);
        const char *why = dlerror();
        if (why != NULL) {
            printf("%s\n", why);
            exit(1);
        }
    }
}

/* By the version that the test's driver has, and by one that it lacks. */
static int find_versioned(void *handle) {
    Dl_info where;
    void *found = dlvsym(handle, "cuMemAlloc_v2", DRIVER);
    if (found == NULL || dladdr(found, &where) == 0 || dlvsym(handle, "cuMemAlloc_v2", "NONE") != NULL)
        fail("dlvsym");
    printf("\"%s\"\n", where.dli_fname);
    return 0;
}

/* Old versions of cuGetProcAddress and of what it is asked for: 3.2 is the oldest with 64-bit sizes. */
static void find_by_address(void *driver, const char *resolver, int version, uint64_t flags) {
    void *get = dlsym(driver, resolver);
    bool second = strcmp(resolver, "cuGetProcAddress_v2") == 0;
    CUdriverProcAddressQueryResult status;
    for (size_t i = 0; i < COUNT; i++) {
        const char *base = wanted[i].base;
        int at_least = strcmp(base, "cuDevicePrimaryCtxRetain") == 0 && version < 7000 ? 7000 : version;
        int at = strcmp(base, "cuCtxSetCurrent") == 0 && at_least < 4000 ? 4000 : at_least;
        CUresult result = second ? ((__typeof__(&cuGetProcAddress_v2))get)(base, wanted[i].place, at, flags, &status)
                                 : ((__typeof__(&cuGetProcAddress))get)(base, wanted[i].place, at, flags);
        if (result != CUDA_SUCCESS || *wanted[i].place == NULL)
            fail(base);
    }
}

/* A stub that finds the function when it is first called, as delay-loading libraries have. */
static CUresult delayed_allocate(CUdeviceptr *pointer, size_t size) {
    static __typeof__(&cuMemAlloc_v2) real;
    if (real == NULL)
        real = (__typeof__(real))dlsym(open_driver(DRIVER, RTLD_LAZY | RTLD_GLOBAL), "cuMemAlloc_v2");
    return real(pointer, size);
}

static void find(const char *way, const char *file) {
    if (strcmp(way, "dlsym") == 0)
        find_in(open_driver(DRIVER, RTLD_NOW));
    else if (strcmp(way, "file") == 0)
        find_and_check(open_driver(file, RTLD_LAZY));
    else if (strcmp(way, "both") == 0) { /* the usual name first, then another file */
        open_driver(DRIVER, RTLD_LAZY);
        find_and_check(open_driver(file, RTLD_LAZY));
    } else if (strcmp(way, "used") == 0) { /* the usual driver is in use already */
        find_in(open_driver(DRIVER, RTLD_LAZY));
        find_in(open_driver(file, RTLD_LAZY));
    } else if (strcmp(way, "namespace") == 0)
        find_and_check(dlmopen(LM_ID_NEWLM, file, RTLD_NOW));
    else if (strcmp(way, "deepbind") == 0)
        find_in(open_driver(DRIVER, RTLD_NOW | RTLD_DEEPBIND));
    else if (strcmp(way, "global") == 0) {
        open_driver(DRIVER, RTLD_NOW | RTLD_GLOBAL);
        find_in(RTLD_DEFAULT);
    } else if (strcmp(way, "self") == 0) {
        open_driver(DRIVER, RTLD_NOW | RTLD_GLOBAL);
        find_in(dlopen(NULL, RTLD_NOW));
    } else if (strcmp(way, "address1") == 0)
        find_by_address(open_driver(DRIVER, RTLD_NOW), "cuGetProcAddress", 3020, CU_GET_PROC_ADDRESS_DEFAULT);
    else if (strcmp(way, "address2") == 0)
        find_by_address(open_driver(DRIVER, RTLD_NOW), "cuGetProcAddress_v2", 3020, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    else if (strcmp(way, "address2ptds") == 0)
        find_by_address(open_driver(DRIVER, RTLD_NOW), "cuGetProcAddress_v2", 13000,
                        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    else if (strcmp(way, "chained") == 0) { /* cuGetProcAddress asked for itself, and that one for the rest */
        void *driver = open_driver(DRIVER, RTLD_NOW);
        __typeof__(&cuGetProcAddress_v2) get = NULL, first = (__typeof__(get))dlsym(driver, "cuGetProcAddress_v2");
        CUdriverProcAddressQueryResult status;
        first("cuGetProcAddress", (void **)&get, 12000, 0, &status);
        for (size_t i = 0; i < COUNT; i++)
            get(wanted[i].base, wanted[i].place, 12000, 0, &status);
    } else if (strcmp(way, "delayed") == 0) {
        find_in(open_driver(DRIVER, RTLD_NOW));
        cuda.allocate = delayed_allocate;
    }
#ifdef LINKED
    else if (strcmp(way, "linked") == 0) {
        cuda.init = cuInit, cuda.retain = cuDevicePrimaryCtxRetain, cuda.set_current = cuCtxSetCurrent;
        cuda.allocate = cuMemAlloc_v2, cuda.release = cuMemFree_v2;
    }
#endif
    else
        fail(way);
}

int main(int argc, char **argv) {
    CUcontext context;
    CUdeviceptr small = 0, large = 0;
    Dl_info where = {0};
    if (argc > 1 && strcmp(argv[1], "dlvsym") == 0)
        return find_versioned(open_driver(DRIVER, RTLD_NOW));
    find(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : DRIVER);
    CUresult started = cuda.init(0);
    if (started == CUDA_SUCCESS && (started = cuda.retain(&context, 0)) == CUDA_SUCCESS)
        started = cuda.set_current(context);
    int first = cuda.allocate(&small, 1 << 20), second = cuda.allocate(&large, 5ull << 30), freed = cuda.release(small);
    dladdr((void *)cuda.release, &where);
    printf("[%d, %d, %d, %d, \"%s\"]\n", (int)started, first, second, freed, where.dli_fname);
    return 0;
}
