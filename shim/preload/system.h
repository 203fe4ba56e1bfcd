/* system.h: the one way from us to the kernel, in raw system calls.
 *
 * Not through libc's wrappers, for three reasons. They are cancellation points: a host thread that is cancelled
 * inside one would leave a lock of ours behind. Other preloaded libraries replace them (connect, poll, write) and
 * would see, or answer, calls that the program never made. And they set errno, which belongs to the program.
 *
 * Each returns the kernel's answer: a value >= 0, or -errno.
 */
#ifndef GPUSHARE_PRELOAD_SYSTEM_H
#define GPUSHARE_PRELOAD_SYSTEM_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GS_CALL(...)                                                                                                   \
    ({                                                                                                                 \
        int saved_ = errno;                                                                                            \
        long result_ = syscall(__VA_ARGS__);                                                                           \
        result_ = result_ < 0 ? -(long)errno : result_;                                                                \
        errno = saved_;                                                                                                \
        result_;                                                                                                       \
    })

#if defined(__SANITIZE_THREAD__)
/* The thread sanitizer must see that pages go, or it takes their next use for a race. */
#define GS_MMAP(...)   ((long)mmap(__VA_ARGS__))
#define GS_MUNMAP(...) munmap(__VA_ARGS__)
#else
#define GS_MMAP(...)   GS_CALL(SYS_mmap, __VA_ARGS__)
#define GS_MUNMAP(...) GS_CALL(SYS_munmap, __VA_ARGS__)
#endif

/* Zeroed private memory, or NULL. Not malloc: the program may be inside its own allocator when it calls us. */
static inline void *gs_pages_new(size_t bytes) {
    long at = GS_MMAP(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

static inline void *gs_pages_of_file(int fd, size_t bytes) {
    long at = GS_MMAP(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

static inline void gs_pages_drop(void *pages, size_t bytes) {
    if (pages != NULL)
        GS_MUNMAP(pages, bytes);
}

static inline uint64_t gs_now_ms(void) {
    struct timespec now;
    int saved = errno;
    clock_gettime(CLOCK_MONOTONIC, &now);
    errno = saved;
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline void gs_sleep_us(uint64_t microseconds) {
    struct timespec time = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000};
    GS_CALL(SYS_nanosleep, &time, NULL);
}

/* Sleep while *word is still `value`, at most so long. May return early: the caller looks again. */
static inline void gs_futex_wait(uint32_t *word, uint32_t value, uint64_t milliseconds) {
    struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    GS_CALL(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, NULL, 0);
}

static inline void gs_futex_wake(uint32_t *word, int waiters) {
    GS_CALL(SYS_futex, word, FUTEX_WAKE_PRIVATE, waiters, NULL, NULL, 0);
}

/* The same between processes: the word is in memory that they share. */
static inline long gs_futex_wait_shared(uint32_t *word, uint32_t value, uint64_t milliseconds) {
    struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    return GS_CALL(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0);
}

/* 1: ready, 0: not in this time (or interrupted: the caller looks at its clock). */
static inline long gs_poll_fd(int fd, short events, uint64_t milliseconds) {
    struct pollfd poll = {.fd = fd, .events = events};
    struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    long ready = GS_CALL(SYS_ppoll, &poll, 1, &time, NULL, 0);
    return ready == -EINTR ? 0 : ready;
}

#endif
