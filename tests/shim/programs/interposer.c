/* interposer.c: a second preloaded library that wraps functions with dlsym(RTLD_NEXT), as many tools do. */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int calls;

/* Any libc function: a dlsym that does not forward RTLD_NEXT properly gives us ourselves back, and we recurse. */
char *getenv(const char *name) {
    static char *(*next)(const char *);
    if (next == NULL)
        next = (char *(*)(const char *))dlsym(RTLD_NEXT, "getenv");
    if (next == getenv || calls > 1000000)
        abort();
    calls++;
    return next(name);
}

/* The same by dlvsym, twice, since a cache must not spoil the second. */
int interposer_same_twice(void) {
    void *first = dlsym(RTLD_NEXT, "getenv"), *second = dlsym(RTLD_NEXT, "getenv");
    return first != NULL && first == second && first != (void *)getenv;
}

/* A driver function under its own name. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    CUresult (*next)(size_t *, size_t *) = (CUresult (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    CUresult result = next == cuMemGetInfo_v2 || next == NULL ? CUDA_ERROR_UNKNOWN : next(free, total);
    fprintf(stderr, "interposer: cuMemGetInfo\n");
    return result;
}
