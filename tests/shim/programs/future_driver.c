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
