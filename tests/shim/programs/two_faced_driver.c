/* two_faced_driver.c: a driver whose cuGetProcAddress and exported functions differ: for cuMemAlloc it gives another
 * address of the same function, for cuMemFree a function of another name, for the rest what is exported. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cuInit(unsigned int flags);
EXPORTED int cuInit(unsigned int flags) {
    return (int)flags;
}

EXPORTED int cuMemAlloc_v2(void *pointer, unsigned long size);
EXPORTED int cuMemAlloc_v2(void *pointer, unsigned long size) {
    return pointer != NULL && size != 0;
}

EXPORTED int cuMemFree_v2(unsigned long long pointer);
EXPORTED int cuMemFree_v2(unsigned long long pointer) {
    return pointer == 0;
}

EXPORTED int cuMemFree_private(unsigned long long pointer);
EXPORTED int cuMemFree_private(unsigned long long pointer) {
    return pointer == 1;
}

static int another_allocate(void *pointer, unsigned long size) {
    return cuMemAlloc_v2(pointer, size);
}

EXPORTED int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                                 int *status);
EXPORTED int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                                 int *status) {
    (void)flags;
    *status = 0;
    *function = NULL;
    if (strcmp(symbol, "cuMemAlloc") == 0 && version >= 3020)
        *function = (void *)another_allocate;
    else if (strcmp(symbol, "cuMemFree") == 0 && version >= 3020)
        *function = (void *)cuMemFree_private;
    else if (strcmp(symbol, "cuInit") == 0)
        *function = (void *)cuInit;
    return 0;
}
