/* static_cudart.c: the runtime library's functions for others, where it is linked in statically and hides its own. */
int cudaGetDeviceCount(int *count);
int cudaFree(void *pointer);
int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, void *status);

int linked_cudaGetDeviceCount(int *count);
int linked_cudaGetDeviceCount(int *count) {
    return cudaGetDeviceCount(count);
}

int linked_cudaFree(void *pointer);
int linked_cudaFree(void *pointer) {
    return cudaFree(pointer);
}

int linked_cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, void *status);
int linked_cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, void *status) {
    return cudaGetDriverEntryPoint(symbol, function, flags, status);
}
