/* thread.c: a thread that the program does not notice.
 *
 * It is one of the C library's, because the driver and Python run on it. But pthread_create and its kin have had
 * several homes and versions (libpthread, and libc since glibc 2.34), so they are looked up by name (loader.h says
 * why).
 *
 * It begins with signals blocked, so that the program's handlers still run on the program's threads. Two kinds are not
 * blocked: the C library's own signals between threads, without which setuid() would hang, and those that a fault
 * raises, which would end the process without calling the program's handlers.
 */
#define _GNU_SOURCE
#include "thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "loader.h"
#include "system.h"

/* The kernel's set, one bit a signal. */
static uint64_t bit(int number) {
    return 1ull << (number - 1);
}

static uint64_t blocked_signals(void) {
    uint64_t set = ~0ull;
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        set &= ~bit(faults[i]);
    for (int internal = 32; internal < SIGRTMIN; internal++)
        set &= ~bit(internal);
    return set;
}

static void *find(const char *name) {
    void *found = gs_real_dlsym(RTLD_DEFAULT, name);
    if (found != NULL)
        return found;
    /* An older glibc, and a program that has threads only through libraries that it has opened. */
    void *library = gs_real_dlopen("libpthread.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL) {
        found = gs_real_dlsym(library, name);
        gs_real_dlclose(library);
    }
    return found;
}

#define FIND(function) __typeof__(&function) function##_ = (__typeof__(&function))find(#function)

bool gs_thread_start(void *(*function)(void *), size_t stack_bytes) {
    FIND(pthread_attr_init);
    FIND(pthread_attr_setdetachstate);
    FIND(pthread_attr_setstacksize);
    FIND(pthread_attr_destroy);
    FIND(pthread_create);
    if (!pthread_attr_init_ || !pthread_attr_setdetachstate_ || !pthread_attr_setstacksize_ || !pthread_attr_destroy_ ||
        !pthread_create_)
        return false;
    int saved = errno;
    uint64_t set = blocked_signals(), before = 0;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init_(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate_(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack_bytes != 0)
        pthread_attr_setstacksize_(&attributes, stack_bytes);
    /* Inherited at birth: blocked any later, one could still come through. */
    GS_CALL(SYS_rt_sigprocmask, SIG_BLOCK, &set, &before, sizeof set);
    int result = pthread_create_(&thread, &attributes, function, NULL);
    GS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    pthread_attr_destroy_(&attributes);
    errno = saved;
    return result == 0;
}
