/* loader.h: the C library's functions that are found at run time, not bound by the linker.
 *
 * dlsym, dlvsym and dlmopen, because we export functions of these names ourselves. The others, because a reference to
 * them says which C library it wants: glibc 2.34 gave dlopen and its kin a new version, and a library that was linked
 * there stops each program of an older system; __register_atfork is unknown to musl, which ends a program for that. A
 * library that is preloaded into everything must not be refused, so it names only what every libc has.
 */
#ifndef GPUSHARE_PRELOAD_LOADER_H
#define GPUSHARE_PRELOAD_LOADER_H

#include <stdbool.h>

enum gs_loader { GS_DLSYM, GS_DLVSYM, GS_DLMOPEN, GS_DLOPEN, GS_DLCLOSE, GS_DLADDR };

/* The function of the next library that has one (the C library's, as a rule). Never NULL: where there is none, one
 * that finds nothing. */
void *gs_loader(enum gs_loader function);

/* What the function of that name would do. */
void *gs_real_dlsym(void *library, const char *symbol);
void *gs_real_dlvsym(void *library, const char *symbol, const char *version);
void *gs_real_dlopen(const char *file, int flags);
int gs_real_dlclose(void *library);

/* The library, of whatever namespace, that an address is in. false: none. */
struct gs_library {
    const char *file;
    const void *base;   /* tells copies of one file apart */
    const char *symbol; /* that begins at the address; NULL: none that the library exports */
};
bool gs_library_at(const void *address, struct gs_library *library);

/* Whether another copy of this library comes before us: one that is preloaded everywhere, and one by `gpushare run`.
 * All calls come to the first one, and if we acted too, all would be charged twice. */
bool gs_is_second_copy(void);

/* As pthread_atfork(NULL, NULL, child). */
void gs_real_atfork(void (*child)(void));

#endif
