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

/* The newest version of what is asked for. */
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                               unsigned long long flags, int *status) {
    (void)version, (void)flags;
    *function = __builtin_strcmp(symbol, "cuMemAlloc") == 0 ? (void *)cuMemAlloc_v3 : (void *)cuFutureThing;
    *status = 0;
    return 0;
}
