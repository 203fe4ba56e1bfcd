/* guard.h: the daemon's view of pages that other programs can cut short. Only gpushare._layout includes this file:
 * nothing in here goes into a host program.
 *
 * A process must be able to write its page, so it also holds a descriptor with which it can make the file shorter,
 * and then the daemon's next look at the page is a SIGBUS. Seals would forbid that, but only anonymous files have
 * them, and those do not outlive the daemon (docs/restart.md). So the daemon maps all pages into one arena
 * and answers SIGBUS there by putting a page of zeros of its own in the place: the access goes on, the page is marked
 * as broken, and the daemon gives its process up. A SIGBUS anywhere else goes to the handler that was there before.
 *
 * Also here: how to look at a descriptor that a stranger has sent without asking the file system behind it, which may
 * be the stranger's own (FUSE) and never answer.
 */
#ifndef GPUSHARE_GUARD_H
#define GPUSHARE_GUARD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "credit.h"

#define GS_GUARD_SLOTS 65536

static struct {
    char *base; /* NULL until the first page */
    size_t step;
    uint32_t free_count;
    uint32_t free_slots[GS_GUARD_SLOTS];
    uint8_t broken[GS_GUARD_SLOTS];
    uint32_t broken_count; /* since the start */
    struct sigaction before;
    pthread_mutex_t mutex;
} gs_guard = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void gs_guard_pass_on(int number, siginfo_t *info, void *context) {
    struct sigaction *before = &gs_guard.before;
    if (before->sa_flags & SA_SIGINFO) {
        before->sa_sigaction(number, info, context);
    } else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        before->sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the access is tried again, and ends the process as it would have without us */
    }
}

static void gs_guard_on_sigbus(int number, siginfo_t *info, void *context) {
    int saved = errno;
    uintptr_t address = (uintptr_t)info->si_addr, base = (uintptr_t)gs_guard.base;
    if (base == 0 || address < base || address >= base + gs_guard.step * GS_GUARD_SLOTS) {
        gs_guard_pass_on(number, info, context);
        errno = saved;
        return;
    }
    size_t slot = (address - base) / gs_guard.step;
    void *page = gs_guard.base + slot * gs_guard.step;
    void *zeros = mmap(page, gs_guard.step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) {
        gs_guard_pass_on(number, info, context);
    } else {
        __atomic_store_n(&gs_guard.broken[slot], 1, __ATOMIC_RELEASE);
        __atomic_fetch_add(&gs_guard.broken_count, 1, __ATOMIC_RELEASE);
    }
    errno = saved;
}

/* Address space for all slots, nothing behind it. With the mutex. */
static int gs_guard_start(void) {
    long system_page = sysconf(_SC_PAGESIZE);
    size_t step = system_page > GS_PAGE_BYTES ? (size_t)system_page : GS_PAGE_BYTES;
    void *base = mmap(NULL, step * GS_GUARD_SLOTS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return -1;
    for (uint32_t slot = 0; slot < GS_GUARD_SLOTS; slot++)
        gs_guard.free_slots[slot] = GS_GUARD_SLOTS - 1 - slot;
    gs_guard.free_count = GS_GUARD_SLOTS;
    gs_guard.step = step;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = gs_guard_on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    __atomic_store_n(&gs_guard.base, (char *)base, __ATOMIC_RELEASE);
    if (sigaction(SIGBUS, &action, &gs_guard.before) != 0) {
        gs_guard.base = NULL;
        munmap(base, step * GS_GUARD_SLOTS);
        return -1;
    }
    return 0;
}

static void gs_guard_clear(char *page) {
    mmap(page, gs_guard.step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Map a page for the daemon; NULL and errno if that fails. */
static void *gs_page_map(int fd) {
    pthread_mutex_lock(&gs_guard.mutex);
    void *page = NULL;
    if (gs_guard.base == NULL && gs_guard_start() != 0) {
        /* errno says why */
    } else if (gs_guard.free_count == 0) {
        errno = ENOMEM;
    } else {
        uint32_t slot = gs_guard.free_slots[gs_guard.free_count - 1];
        char *place = gs_guard.base + slot * gs_guard.step;
        page = mmap(place, GS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        if (page == MAP_FAILED) {
            int why = errno;
            gs_guard_clear(place); /* a failed MAP_FIXED may have taken away what was there */
            errno = why;
            page = NULL;
        } else {
            gs_guard.free_count--;
            __atomic_store_n(&gs_guard.broken[slot], 0, __ATOMIC_RELEASE);
        }
    }
    int why = errno;
    pthread_mutex_unlock(&gs_guard.mutex);
    errno = why;
    return page;
}

static void gs_page_unmap(void *page) {
    pthread_mutex_lock(&gs_guard.mutex);
    gs_guard_clear(page);
    gs_guard.free_slots[gs_guard.free_count++] = (uint32_t)(((char *)page - gs_guard.base) / gs_guard.step);
    pthread_mutex_unlock(&gs_guard.mutex);
}

/* Whether what we see of this page is no longer what its process sees. */
static int gs_page_broken(const void *page) {
    size_t slot = (size_t)((const char *)page - gs_guard.base) / gs_guard.step;
    return __atomic_load_n(&gs_guard.broken[slot], __ATOMIC_ACQUIRE);
}

/* How many pages have been found broken since the start: to see at once that nothing is new. */
static uint32_t gs_pages_broken(void) {
    return __atomic_load_n(&gs_guard.broken_count, __ATOMIC_ACQUIRE);
}

/* Whether a descriptor from a stranger is a page that a daemon of this user has made: a file of the right kind and
 * size without a name, on the device of the pages. Nobody else can make files of ours there. What the kernel knows by
 * itself is enough (AT_STATX_DONT_SYNC): the file system is not asked. */
static int gs_page_is_ours(int fd, uint64_t device) {
    struct statx found;
    unsigned wanted = STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_UID | STATX_SIZE;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &found) != 0)
        return 0;
    return makedev(found.stx_dev_major, found.stx_dev_minor) == device && (found.stx_mask & wanted) == wanted &&
           found.stx_mode == (S_IFREG | 0600) && found.stx_uid == geteuid() && found.stx_nlink == 0 &&
           found.stx_size == GS_PAGE_BYTES;
}

#endif
