/* loader.c: the shim under the driver's own name, for a process that runs already (preload/loader.h says what for).
 *
 * A library that is opened late replaces nobody's dlsym. Instead it is the libcuda.so.1 of the process: programs find
 * our hooks in it under the driver's names, and all other functions in the real driver, on which it depends
 * under an alias. So no look-up has to be replaced here, and all loader functions are the C library's.
 *
 *     a private directory   libcuda.so.1, libcuda.so         this library
 *                           libgpushare-real-cuda.so.1       the real driver
 *                           libnvidia-ml.so.1, ...           an empty library that depends on this one and the real
 * NVML
 *
 * gpushare/attach.py makes that directory, opens us, and asks the two questions below.
 */
#define _GNU_SOURCE
#include "preload/loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "preload/symbols.h"

#define EXPORTED __attribute__((visibility("default")))

void *gs_real_dlsym(void *library, const char *symbol) {
    return dlsym(library, symbol);
}

void *gs_real_dlvsym(void *library, const char *symbol, const char *version) {
    return dlvsym(library, symbol, version);
}

/* The driver's names are ours in this process; its own one is the alias. */
static const char *real_name(const char *file) {
    if (file != NULL && strcmp(file, "libcuda.so.1") == 0)
        return "libgpushare-real-cuda.so.1";
    if (file != NULL && strcmp(file, "libnvidia-ml.so.1") == 0)
        return "libgpushare-real-nvml.so.1";
    return file;
}

/* Through a volatile, because a tail call would be our caller's question: the loader takes the place to search from
 * the return address, and only we have the private directory in our RPATH. */
static void *open_from_here(const char *file, int flags) {
    void *volatile library = dlopen(file, flags);
    return library;
}

void *gs_real_dlopen(const char *file, int flags) {
    return open_from_here(real_name(file), flags);
}

int gs_real_dlclose(void *library) {
    return dlclose(library);
}

bool gs_library_at(const void *address, struct gs_library *library) {
    Dl_info where;
    if (dladdr(address, &where) == 0)
        return false;
    *library =
        (struct gs_library){where.dli_fname, where.dli_fbase, where.dli_saddr == address ? where.dli_sname : NULL};
    return true;
}

/* gpushare.enable() opens us only where nothing of ours is. */
bool gs_is_second_copy(void) {
    return false;
}

void gs_real_atfork(void (*child)(void)) {
    pthread_atfork(NULL, NULL, child);
}

void *gs_loader(enum gs_loader function) {
    static void *const functions[] = {(void *)dlsym,  (void *)dlvsym,  (void *)dlmopen,
                                      (void *)dlopen, (void *)dlclose, (void *)dladdr};
    return functions[function];
}

/* Take a name: open the file of that name in the private directory, so that the loader knows it by the bare name
 * too (libcuda.so is what some programs try first, and it is nobody's SONAME). What is loaded under it, or NULL. */
EXPORTED void *gpushare_late_claim(const char *file);
void *gpushare_late_claim(const char *file) {
    return open_from_here(file, RTLD_LAZY | RTLD_LOCAL);
}

/* Set when all was checked: a library that is merely loaded holds nobody to anything. In here, and not in Python, so
 * that it lasts as long as the library does. */
EXPORTED int gpushare_late_enabled;

/* Whether a function is one of our hooks. */
EXPORTED bool gpushare_late_is_hook(const void *function);
bool gpushare_late_is_hook(const void *function) {
    return gs_is_hook(function);
}
