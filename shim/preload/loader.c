/* loader.c: reads the symbol tables of the libraries that come after us, as RTLD_NEXT would have it.
 *
 * The first one who asks may be a sanitizer's runtime, which looks up the functions it is about to replace: any
 * function of the C library could at that moment be a replacement that is not ready. So only getauxval is called, names
 * are compared here, and the list of libraries is the one that debuggers read, not that of dl_iterate_phdr. It is
 * read without the loader's lock: the search ends at the C library, and what comes before was there at the start
 * and stays.
 */
#define _GNU_SOURCE
#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

struct symbols {
    const ElfW(Sym) * table;
    const char *names;
    const uint32_t *gnu_hash;
    const ElfW(Half) * versions;
    uint64_t soname; /* where in the names; 0: none */
};

static struct symbols symbols_of(const struct link_map *library) {
    struct symbols symbols = {0};
    for (const ElfW(Dyn) *dynamic = library->l_ld; dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) at = dynamic->d_un.d_ptr;
        if (at < library->l_addr) /* glibc has relocated these already, other loaders have not */
            at += library->l_addr;
        if (dynamic->d_tag == DT_SYMTAB)
            symbols.table = (const void *)at;
        else if (dynamic->d_tag == DT_STRTAB)
            symbols.names = (const void *)at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            symbols.gnu_hash = (const void *)at;
        else if (dynamic->d_tag == DT_VERSYM)
            symbols.versions = (const void *)at;
        else if (dynamic->d_tag == DT_SONAME)
            symbols.soname = dynamic->d_un.d_val;
    }
    return symbols;
}

static bool is_same(const char *a, const char *b) {
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
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
            !is_same(symbols->names + symbol->st_name, name))
            continue;
        if (symbols->versions == NULL || (symbols->versions[i] & 0x8000) == 0)
            return symbol;
        hidden = symbol;
    }
    return hidden;
}

/* The list starts where the program's own dynamic section says. */
static const struct link_map *first_library(void) {
    const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
    uint64_t count = getauxval(AT_PHNUM);
    const ElfW(Dyn) *dynamic = NULL;
    ElfW(Addr) base = 0;
    for (uint64_t i = 0; headers != NULL && i < count; i++) {
        if (headers[i].p_type == PT_PHDR)
            base = (ElfW(Addr))headers - headers[i].p_vaddr;
        else if (headers[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(base + headers[i].p_vaddr); /* PT_PHDR comes first, if there is one */
    }
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0)
            return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
    return NULL;
}

static void *find_next(const char *symbol) {
    bool passed_us = false;
    for (const struct link_map *library = first_library(); library != NULL; library = library->l_next) {
        if (!passed_us) {
            passed_us = library->l_ld == _DYNAMIC;
            continue;
        }
        struct symbols symbols = symbols_of(library);
        if (symbols.table == NULL || symbols.names == NULL || symbols.gnu_hash == NULL)
            continue;
        const ElfW(Sym) *found = find_symbol(&symbols, symbol);
        if (found != NULL)
            return (void *)(library->l_addr + found->st_value);
    }
    return NULL;
}

bool gs_is_second_copy(void) {
    const struct link_map *library = first_library();
    for (; library != NULL && library->l_ld != _DYNAMIC; library = library->l_next) {
        struct symbols symbols = symbols_of(library);
        if (symbols.soname != 0 && symbols.names != NULL && is_same(symbols.names + symbols.soname, "libgpushare.so"))
            return true;
    }
    return false;
}

/* ---- the functions -------------------------------------------------------------------------------- */

/* For all of them: with glibc before 2.34 a program that is not linked with libdl has none. */
static void *nothing(void) {
    return NULL;
}

void *gs_loader(enum gs_loader function) {
    static const char *const names[] = {"dlsym", "dlvsym", "dlmopen", "dlopen", "dlclose", "dladdr"};
    static void *known[sizeof names / sizeof *names];
    void *found = __atomic_load_n(&known[function], __ATOMIC_RELAXED);
    if (found == NULL) {
        found = find_next(names[function]);
        if (found == NULL)
            return (void *)nothing; /* not kept: the program may load libdl later */
        __atomic_store_n(&known[function], found, __ATOMIC_RELAXED);
    }
    return found;
}

void *gs_real_dlsym(void *library, const char *symbol) {
    return ((void *(*)(void *, const char *))gs_loader(GS_DLSYM))(library, symbol);
}

void *gs_real_dlvsym(void *library, const char *symbol, const char *version) {
    return ((void *(*)(void *, const char *, const char *))gs_loader(GS_DLVSYM))(library, symbol, version);
}

void *gs_real_dlopen(const char *file, int flags) {
    return ((void *(*)(const char *, int))gs_loader(GS_DLOPEN))(file, flags);
}

int gs_real_dlclose(void *library) {
    return ((int (*)(void *))gs_loader(GS_DLCLOSE))(library);
}

bool gs_library_at(const void *address, struct gs_library *library) {
    Dl_info where;
    if (((int (*)(const void *, Dl_info *))gs_loader(GS_DLADDR))(address, &where) == 0)
        return false;
    *library =
        (struct gs_library){where.dli_fname, where.dli_fbase, where.dli_saddr == address ? where.dli_sname : NULL};
    return true;
}

/* glibc has no pthread_atfork to find: it is linked into each program, and is this. The last argument names the
 * library whose unloading takes the handler away: we are never unloaded. */
void gs_real_atfork(void (*child)(void)) {
    typedef void (*handler)(void);
    int (*glibc)(handler, handler, handler, void *) = find_next("__register_atfork");
    int (*other)(handler, handler, handler) = glibc == NULL ? find_next("pthread_atfork") : NULL;
    if (glibc != NULL)
        glibc(NULL, NULL, child, NULL);
    else if (other != NULL)
        other(NULL, NULL, child);
}
