/* One allocation and its free, between two SIGUSR1 that a tracer waits for. */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>

typedef int (*function)();

int main(void) {
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    unsigned long long pointer;
    function alloc = (function)dlsym(library, "cuMemAlloc_v2"), release = (function)dlsym(library, "cuMemFree_v2");
    if (((function)dlsym(library, "cuInit"))(0) != 0 ||
        ((function)dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, 0) != 0 ||
        ((function)dlsym(library, "cuCtxSetCurrent"))(context) != 0)
        return 1;
    raise(SIGUSR1);
    if (alloc(&pointer, (size_t)64 << 20) != 0 || release(pointer) != 0)
        return 2;
    raise(SIGUSR1);
    return 0;
}
