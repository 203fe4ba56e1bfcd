/* glibc_baseline.h: keeps a library that is built on a new glibc usable on an old one (2.31).
 *
 * glibc 2.34 gave new versions to the functions that it took over from libpthread and libdl. They are the same
 * functions, but a library that is linked there asks for the new versions, which an older system does not have. The
 * build includes this file in front of each source, and the linker then asks for the first version of each function.
 *
 * glibc 2.33 made stat and fstat functions of its own; before, they were inline. The two system calls need no version.
 *
 * libgpushare.so does not use this file: it defines dlsym itself and finds its functions at run time (loader.h).
 */
#ifndef GPUSHARE_GLIBC_BASELINE_H
#define GPUSHARE_GLIBC_BASELINE_H
#ifndef __ASSEMBLER__

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* as the sources do, before the first header of the C library */
#endif
#include <fcntl.h>
#include <features.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__GLIBC__) && defined(__x86_64__)
#define GS_VERSION_FIRST  "GLIBC_2.2.5"
#define GS_VERSION_ROBUST "GLIBC_2.12"
#define GS_VERSION_SPACES "GLIBC_2.3.4"
#elif defined(__GLIBC__) && defined(__aarch64__)
#define GS_VERSION_FIRST  "GLIBC_2.17"
#define GS_VERSION_ROBUST "GLIBC_2.17"
#define GS_VERSION_SPACES "GLIBC_2.17"
#endif

#ifdef GS_VERSION_FIRST
#define GS_USE(function, version) __asm__(".symver " #function "," #function "@" version);
GS_USE(dladdr, GS_VERSION_FIRST)
GS_USE(dlclose, GS_VERSION_FIRST)
GS_USE(dlmopen, GS_VERSION_SPACES)
GS_USE(dlopen, GS_VERSION_FIRST)
GS_USE(dlsym, GS_VERSION_FIRST)
GS_USE(dlvsym, GS_VERSION_FIRST)
GS_USE(pthread_create, GS_VERSION_FIRST)
GS_USE(pthread_mutex_trylock, GS_VERSION_FIRST)
GS_USE(pthread_mutexattr_destroy, GS_VERSION_FIRST)
GS_USE(pthread_mutexattr_init, GS_VERSION_FIRST)
GS_USE(pthread_mutexattr_setpshared, GS_VERSION_FIRST)
GS_USE(pthread_once, GS_VERSION_FIRST)
GS_USE(pthread_sigmask, GS_VERSION_FIRST)
GS_USE(pthread_mutex_consistent, GS_VERSION_ROBUST)
GS_USE(pthread_mutexattr_setrobust, GS_VERSION_ROBUST)
#undef GS_USE
#endif

/* As stat and fstat: 0, or -1 and errno. On 64-bit machines `struct stat` is the kernel's. */
static inline int gs_stat(const char *path, struct stat *status) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

static inline int gs_fstat(int fd, struct stat *status) {
    return (int)syscall(SYS_fstat, fd, status);
}

#endif
#endif
