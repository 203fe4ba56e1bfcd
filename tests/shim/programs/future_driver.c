/* future_driver.c: a driver with functions that are not in our list. */
__attribute__((visibility("default"))) int cuInit(unsigned int flags) {
    return (int)flags;
}

__attribute__((visibility("default"))) int cuMemAlloc_v2(void *pointer) {
    return pointer == 0 ? 1 : 2;
}

__attribute__((visibility("default"))) int cuMemAlloc_v3(void *pointer) {
    return pointer == 0 ? 33 : 34;
}

__attribute__((visibility("default"))) int cuFutureThing(void) {
    return 0;
}

/* The newest version, for a program that is as new: as the real driver's. */
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                               unsigned long long flags, int *status) {
    (void)flags;
    *function = 0;
    if (__builtin_strcmp(symbol, "cuMemAlloc") == 0)
        *function = version >= 14000 ? (void *)cuMemAlloc_v3 : (void *)cuMemAlloc_v2;
    else if (__builtin_strcmp(symbol, "cuFutureThing") == 0)
        *function = (void *)cuFutureThing;
    *status = *function == 0;
    return *function == 0 ? 500 : 0; /* CUDA_ERROR_NOT_FOUND */
}
