/* entry.c: dlsym, dlvsym and dlmopen, by which programs find the driver.
 *
 * We export them, so that every look-up of a program comes here. The exported functions are in assembly (dlsym_*.S):
 * they ask gs_route_* where to go, and jump there with all registers unchanged. The loader answers RTLD_NEXT and
 * RTLD_DEFAULT by the caller's return address. So these must reach it by a jump, at any optimisation level, and their
 * result cannot be exchanged. It need not be: such a look-up finds our hooks, which are exported under the driver's
 * names.
 *
 * All other look-ups go through substitute(): it makes the real look-up, and if the result is the address of a driver
 * function with a hook, returns the hook instead. Addresses are compared, not names: only the driver knows its names,
 * versions and per-thread variants, and other libraries have functions of the same names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "copies.h"
#include "loader.h"
#include "symbols.h"

/* ---- exchanging ----------------------------------------------------------------------------------- */

static bool is_upper(char c) {
    return c >= 'A' && c <= 'Z';
}

static bool is_cuda_name(const char *name) {
    return name[0] == 'c' && name[1] == 'u' && is_upper(name[2]);
}

/* Without strncmp: loader.c says who may be asking. */
static bool is_nvml_name(const char *name) {
    return name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l' && is_upper(name[4]);
}

/* cublas, cudnn, cufft and curl are not the driver's. */
static bool is_driver_name(const char *name) {
    return name != NULL && (is_cuda_name(name) || is_nvml_name(name));
}

/* Whether the driver (or NVML) is in the process, so that a program without us could have found it. */
static bool is_loaded(const char *name) {
    bool cuda = is_cuda_name(name);
    if (__atomic_load_n(cuda ? &gs_mode : &gs_nvml_mode, __ATOMIC_ACQUIRE) != GS_ASLEEP)
        return true;
    void *library = gs_real_dlopen(cuda ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL)
        gs_real_dlclose(library);
    return library != NULL;
}

/* What comes after us under that name. Through a volatile, because as a tail call this would be the program's question,
 * not ours: the loader goes by the return address. */
static void *find_after_us(const char *name) {
    void *volatile found = gs_real_dlsym(RTLD_NEXT, name);
    return found;
}

/* A look-up has found our own exported hook. If we are not to answer, or if there is no driver here that the program
 * could have meant, then what comes after us. */
static void *instead_of_hook(const char *name, void *hook) {
    bool on = is_cuda_name(name) ? gs_wake(NULL, false) : gs_nvml_wake(NULL, false);
    if (on)
        return hook;
    bool loaded = is_loaded(name); /* first: a look for a library that is not there clears dlerror */
    void *after = find_after_us(name);
    return after != NULL || !loaded ? after : hook; /* an inert hook passes the call on */
}

/* A look-up: what the program asked, where from, and what the loader found. */
struct look_up {
    void *handle;
    const char *name;
    const void *caller;
    void *found;
};

static void *exchange_nvml(const struct look_up *look_up) {
    void *hook = gs_nvml_wake(look_up->found, false) ? gs_hook_for(look_up->found) : NULL;
    return hook != NULL ? hook : look_up->found;
}

/* What the program has found. It takes look-ups that may fail to tell libraries apart, and the program's own has not:
 * a last one that succeeds clears dlerror. */
static void *as_found(const struct look_up *look_up) {
    gs_real_dlsym(look_up->handle, look_up->name);
    return look_up->found;
}

/* No hook of ours: another function of the driver, one of another copy of it, or no driver's at all. */
static void *exchange_unhooked(const struct look_up *look_up) {
    if (gs_is_of_copy(look_up->handle, look_up->found, look_up->caller))
        return gs_instead_of_copy(look_up->found, look_up->name);
    gs_note_unknown(look_up->name);
    return as_found(look_up);
}

static void *exchange_cuda(const struct look_up *look_up) {
    if (!gs_wake(look_up->found, false) && !gs_open_copy_here(look_up->handle, look_up->found))
        return as_found(look_up);
    void *hook = gs_hook_for(look_up->found);
    return hook != NULL ? hook : exchange_unhooked(look_up);
}

static void *exchange(const struct look_up *look_up) {
    if (look_up->found == NULL)
        return NULL;
    if (gs_is_hook(look_up->found))
        return instead_of_hook(look_up->name, look_up->found);
    return is_cuda_name(look_up->name) ? exchange_cuda(look_up) : exchange_nvml(look_up);
}

/* The assembly has jumped here, so that the return address is the program's. */
static void *substitute(void *handle, const char *name) {
    struct look_up look_up = {handle, name, __builtin_return_address(0), gs_real_dlsym(handle, name)};
    return exchange(&look_up);
}

static void *substitute_version(void *handle, const char *name, const char *version) {
    struct look_up look_up = {handle, name, __builtin_return_address(0), gs_real_dlvsym(handle, name, version)};
    return exchange(&look_up);
}

/* dlsym(RTLD_DEFAULT) of a hook while no driver is loaded: without us there would be nothing to find. The loader says
 * so itself, which sets dlerror. */
static void *find_nothing(void *handle, const char *name) {
    (void)handle;
    return find_after_us(name);
}

static bool namespaces; /* whether the program has made any */

/* Where the assembly jumps to. */
__attribute__((visibility("hidden"))) void *gs_route_dlsym(void *handle, const char *name) {
    if (!is_driver_name(name) && __atomic_load_n(&namespaces, __ATOMIC_RELAXED))
        gs_look_now_and_then();
    if (!is_driver_name(name) || handle == RTLD_NEXT)
        return gs_loader(GS_DLSYM);
    if (handle == RTLD_DEFAULT)
        return !gs_is_hook_name(name) || is_loaded(name) ? gs_loader(GS_DLSYM) : (void *)find_nothing;
    return (void *)substitute;
}

__attribute__((visibility("hidden"))) void *gs_route_dlvsym(void *handle, const char *name) {
    if (!is_driver_name(name) || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
        return gs_loader(GS_DLVSYM);
    return (void *)substitute_version;
}

/* What is loaded there finds its own dlsym. The call itself must be the program's: a new namespace is told by its
 * handle's look-ups, and the loader searches where the caller's RUNPATH says. So we look at the next chance. */
__attribute__((visibility("hidden"))) void *gs_route_dlmopen(Lmid_t space, const char *file) {
    if (space != LM_ID_BASE && file != NULL)
        __atomic_store_n(&namespaces, true, __ATOMIC_RELAXED);
    return gs_loader(GS_DLMOPEN);
}

/* ---- cuGetProcAddress ----------------------------------------------------------------------------- */

static void exchange_pointer(const char *name, void **function) {
    if (function == NULL || *function == NULL || gs_is_hook(*function))
        return;
    void *hook = gs_hook_for(*function);
    if (hook != NULL)
        *function = hook;
    else
        gs_note_unknown(name);
}

static CUresult looked_up(bool on, CUresult result, const char *symbol, void **function) {
    if (on && result == CUDA_SUCCESS) {
        gs_compare_look_ups();
        exchange_pointer(symbol, function);
    }
    return result;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    bool on = gs_on();
    return looked_up(on, gs_driver.cuGetProcAddress(symbol, function, version, flags), symbol, function);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    bool on = gs_on();
    return looked_up(on, gs_driver.cuGetProcAddress_v2(symbol, function, version, flags, status), symbol, function);
}
