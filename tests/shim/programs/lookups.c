/* lookups.c: what dlsym and dlvsym answer in a process without a driver, and with one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>

/* The version of glibc's oldest symbols. */
#if defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#else
#define OLDEST "GLIBC_2.2.5"
#endif

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%d: %s\n", __LINE__, #condition);                                                                  \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* The program's own, under a name as the driver's functions have. */
int cuOfThisProgram(void) {
    return 0;
}

int main(int argc, char **argv) {
    int inert = argc > 1 && argv[1][0] == 'i';
    void *self = dlopen(NULL, RTLD_NOW);
    /* No driver yet: a program that looks whether there is one must not find ours. */
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlsym(self, "cuMemAlloc_v2") == NULL && dlerror() != NULL); /* Python ends without the reason */
    CHECK(dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuOfThisProgram") == (void *)cuOfThisProgram);
    CHECK(dlsym(self, "cuOfThisProgram") == (void *)cuOfThisProgram);
    CHECK(dlsym(RTLD_DEFAULT, "no_such_symbol") == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "printf") == (void *)printf);
    CHECK(dlsym(self, "puts") != NULL);
    CHECK(dlsym(RTLD_NEXT, "puts") != NULL);
    CHECK(dlvsym(RTLD_DEFAULT, "puts", OLDEST) != NULL);
    CHECK(dlvsym(RTLD_NEXT, "puts", OLDEST) == dlsym(RTLD_NEXT, "puts"));
    CHECK(dlvsym(self, "puts", "GLIBC_9.9") == NULL);

    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver != NULL);
    Dl_info where;
    void *found = dlsym(driver, "cuMemAlloc_v2");
    CHECK(found != NULL && dladdr(found, &where) != 0);
    int ours = where.dli_fname != NULL && dlsym(driver, "cuMemFree_v2") != NULL;
    CHECK(ours);
    printf("%s\n", where.dli_fname);
    found = dlsym(driver, "cuInit"); /* not hooked: the driver's own, always */
    CHECK(dladdr(found, &where) != 0);
    printf("%s\n", where.dli_fname);
    CHECK(dlsym(driver, "cuNoSuchFunction") == NULL && dlerror() != NULL);
    CHECK(dlvsym(driver, "cuMemAlloc_v2", "NO_VERSION") == NULL || !inert);
    return 0;
}
