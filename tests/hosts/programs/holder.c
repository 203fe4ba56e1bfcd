/* Holds 1 GiB of the GPU until a line comes. With -DMODULE the part that finds the driver, a library; without, a
 * program that does it itself, or loads the library named by its argument with RTLD_DEEPBIND. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#define CALL(name, ...) ((int (*)())dlsym(library, name))(__VA_ARGS__)

__attribute__((visibility("default"))) int hold(void) {
    void *context = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW);
    unsigned long long pointer;
    if (library == NULL)
        return printf("%s\n", dlerror());
    int result = CALL("cuInit", 0);
    result = result ? result : CALL("cuDevicePrimaryCtxRetain", &context, 0);
    result = result ? result : CALL("cuCtxSetCurrent", context);
    return result ? result : CALL("cuMemAlloc_v2", &pointer, 1ul << 30);
}

#ifndef MODULE
int main(int count, char **words) {
    int (*take)(void) = hold;
    if (count > 1)
        take = (int (*)(void))dlsym(dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND), "hold");
    printf("%d\n", take());
    fflush(stdout);
    return getchar() == EOF;
}
#endif
