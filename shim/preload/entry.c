/* entry.c: dlsym and dlvsym, the doors by which programs find the driver.
 *
 * We export both, so that every look-up of a program comes past here. The exported functions are in assembly
 * (dlsym_*.S): they ask gs_route_* where to go, and jump there with all as it was. A look-up with RTLD_NEXT or
 * RTLD_DEFAULT is answered by the loader according to who asks, and it knows that from the return address: so these
 * must reach it by a jump, at any optimisation level, and their result cannot be exchanged. That is right as it is:
 * our hooks are exported under the driver's names and found by such a look-up where they should be.
 *
 * Everything else goes through substitute(): the real look-up first, and if the address that it gives is one of the
 * driver's functions that we have a hook for, the hook instead. By address, not by name: names, versions and
 * per-thread variants are the driver's business, and other libraries have functions of the same names.
 */
#define _GNU_SOURCE
#include "entry.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "symbols.h"

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

static dlsym_function next_dlsym;
static dlvsym_function next_dlvsym;

/* ---- the real ones -------------------------------------------------------------------------------- */

/* They cannot be asked for by dlsym, so the symbol tables of the libraries that come after us are read: the next one
 * that defines the name, as RTLD_NEXT would have it. */
struct search {
    const char *symbol;
    bool passed_us;
    void *found;
};

struct symbols {
    const ElfW(Sym) * table;
    const char *names;
    const uint32_t *gnu_hash;
    const ElfW(Half) * versions;
};

static struct symbols symbols_of(const struct dl_phdr_info *info, const ElfW(Dyn) * dynamic) {
    struct symbols symbols = {0};
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) at = dynamic->d_un.d_ptr;
        if (at < info->dlpi_addr) /* glibc has relocated these already, other loaders have not */
            at += info->dlpi_addr;
        if (dynamic->d_tag == DT_SYMTAB)
            symbols.table = (const void *)at;
        else if (dynamic->d_tag == DT_STRTAB)
            symbols.names = (const void *)at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            symbols.gnu_hash = (const void *)at;
        else if (dynamic->d_tag == DT_VERSYM)
            symbols.versions = (const void *)at;
    }
    return symbols;
}

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The default version is preferred; a hidden one (an old version of the same name) is better than none. */
static const ElfW(Sym) * find_symbol(const struct symbols *symbols, const char *name) {
    const uint32_t *table = symbols->gnu_hash;
    uint32_t buckets = table[0], first = table[1], bloom = table[2], hash = gnu_hash(name);
    const uint32_t *bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    const ElfW(Sym) *hidden = NULL;
    if (buckets == 0)
        return NULL;
    uint32_t i = bucket[hash % buckets];
    for (bool last = i < first; !last; i++) {
        const ElfW(Sym) *symbol = &symbols->table[i];
        last = (chain[i - first] & 1) != 0;
        if ((chain[i - first] | 1) != (hash | 1) || symbol->st_shndx == SHN_UNDEF ||
            strcmp(symbols->names + symbol->st_name, name) != 0)
            continue;
        if (symbols->versions == NULL || (symbols->versions[i] & 0x8000) == 0)
            return symbol;
        hidden = symbol;
    }
    return hidden;
}

static bool contains(const struct dl_phdr_info *info, const void *address) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        ElfW(Addr) start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && (ElfW(Addr))address - start < header->p_memsz)
            return true;
    }
    return false;
}

static int search_library(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    (void)size;
    if (!search->passed_us) {
        search->passed_us = contains(info, (const void *)gnu_hash);
        return 0;
    }
    if (info->dlpi_name != NULL && strstr(info->dlpi_name, "linux-vdso") != NULL)
        return 0; /* its table is not relocated, and it has nothing that we want */
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        struct symbols symbols = symbols_of(info, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
        if (symbols.table == NULL || symbols.names == NULL || symbols.gnu_hash == NULL)
            return 0;
        const ElfW(Sym) *symbol = find_symbol(&symbols, search->symbol);
        if (symbol != NULL)
            search->found = (void *)(info->dlpi_addr + symbol->st_value);
    }
    return search->found != NULL;
}

static void *find_next(const char *symbol) {
    struct search search = {.symbol = symbol};
    dl_iterate_phdr(search_library, &search);
    return search.found;
}

/* No libc without dlsym can have loaded us, so `next` is not NULL. */
static dlsym_function real_dlsym(void) {
    dlsym_function next = __atomic_load_n(&next_dlsym, __ATOMIC_RELAXED);
    if (next == NULL) {
        next = (dlsym_function)find_next("dlsym");
        __atomic_store_n(&next_dlsym, next, __ATOMIC_RELAXED);
    }
    return next;
}

static dlvsym_function real_dlvsym(void) {
    dlvsym_function next = __atomic_load_n(&next_dlvsym, __ATOMIC_RELAXED);
    if (next == NULL) {
        next = (dlvsym_function)find_next("dlvsym");
        __atomic_store_n(&next_dlvsym, next, __ATOMIC_RELAXED);
    }
    return next;
}

void *gs_real_dlsym(void *library, const char *symbol) {
    return real_dlsym()(library, symbol);
}

/* ---- exchanging ----------------------------------------------------------------------------------- */

static bool is_upper(char c) {
    return c >= 'A' && c <= 'Z';
}

static bool is_cuda_name(const char *name) {
    return name[0] == 'c' && name[1] == 'u' && is_upper(name[2]);
}

/* cublas, cudnn, cufft and curl are not the driver's. */
static bool is_driver_name(const char *name) {
    return name != NULL && (is_cuda_name(name) || (strncmp(name, "nvml", 4) == 0 && is_upper(name[4])));
}

/* Whether the driver (or NVML) is in the process, so that a program without us could have found it. */
static bool is_loaded(const char *name) {
    bool cuda = is_cuda_name(name);
    if (__atomic_load_n(cuda ? &gs_mode : &gs_nvml_mode, __ATOMIC_ACQUIRE) != GS_ASLEEP)
        return true;
    void *library = dlopen(cuda ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL)
        dlclose(library);
    return library != NULL;
}

/* What comes after us under that name. Through a volatile, because as a tail call this would be the program's question,
 * not ours: the loader goes by the return address. */
static void *find_after_us(const char *name) {
    void *volatile found = real_dlsym()(RTLD_NEXT, name);
    return found;
}

/* A look-up has found our own exported hook. If we are not to answer, or if there is no driver here that the program
 * could have meant, then what comes after us. */
static void *instead_of_hook(const char *name, void *hook) {
    bool on = is_cuda_name(name) ? gs_wake(NULL, false) : gs_nvml_wake(NULL, false);
    if (on)
        return hook;
    void *after = find_after_us(name);
    return after != NULL || !is_loaded(name) ? after : hook; /* an inert hook passes the call on */
}

static void *exchange(void *found, const char *name) {
    if (found == NULL)
        return NULL;
    if (gs_is_hook(found))
        return instead_of_hook(name, found);
    if (!(is_cuda_name(name) ? gs_wake(found, false) : gs_nvml_wake(found, false)))
        return found;
    void *hook = gs_hook_for(found);
    if (hook == NULL && is_cuda_name(name))
        gs_note_unknown(name);
    return hook != NULL ? hook : found;
}

static void *substitute(void *handle, const char *name) {
    return exchange(real_dlsym()(handle, name), name);
}

static void *substitute_version(void *handle, const char *name, const char *version) {
    return exchange(real_dlvsym()(handle, name, version), name);
}

/* dlsym(RTLD_DEFAULT) of a hook while no driver is loaded: without us there would be nothing to find. The loader says
 * so itself, which sets dlerror. */
static void *find_nothing(void *handle, const char *name) {
    (void)handle;
    return find_after_us(name);
}

/* Where the assembly jumps to. */
__attribute__((visibility("hidden"))) void *gs_route_dlsym(void *handle, const char *name) {
    if (!is_driver_name(name) || handle == RTLD_NEXT)
        return (void *)real_dlsym();
    if (handle == RTLD_DEFAULT)
        return !gs_is_hook_name(name) || is_loaded(name) ? (void *)real_dlsym() : (void *)find_nothing;
    return (void *)substitute;
}

__attribute__((visibility("hidden"))) void *gs_route_dlvsym(void *handle, const char *name) {
    if (!is_driver_name(name) || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
        return (void *)real_dlvsym();
    return (void *)substitute_version;
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

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    bool on = gs_on();
    CUresult result = gs_driver.cuGetProcAddress(symbol, function, version, flags);
    if (on && result == CUDA_SUCCESS)
        exchange_pointer(symbol, function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    bool on = gs_on();
    CUresult result = gs_driver.cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (on && result == CUDA_SUCCESS)
        exchange_pointer(symbol, function);
    return result;
}
