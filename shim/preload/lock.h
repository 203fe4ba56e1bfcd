/* lock.h: a lock for critical sections of a few instructions.
 *
 * It spins, then sleeps: the sections it guards contain no system call, no driver call and nothing of the host's,
 * so the wait is short unless the holder was scheduled away. Sleeping, not yielding, lets a holder of lower
 * real-time priority run. Unlocking is a plain store: half the price of a futex, and this is on the way of each
 * allocation. Nothing has to be unlocked after a fork: the child forgets all state, locks included.
 */
#ifndef GPUSHARE_PRELOAD_LOCK_H
#define GPUSHARE_PRELOAD_LOCK_H

#include "system.h"

/* On the way of each allocation, where a call and its saved registers would cost as much as the rest. */
#define GS_INLINE static inline __attribute__((always_inline))

struct gs_lock {
    uint32_t held;
};

static inline void gs_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static __attribute__((noinline, cold, unused)) void gs_lock_wait(struct gs_lock *lock) {
    for (unsigned tries = 0; __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE); tries++) {
        while (__atomic_load_n(&lock->held, __ATOMIC_RELAXED)) {
            if (++tries < 200)
                gs_pause();
            else
                gs_sleep_us(20);
        }
    }
}

static inline void gs_lock(struct gs_lock *lock) {
    if (__builtin_expect(__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE), 0))
        gs_lock_wait(lock);
}

static inline void gs_unlock(struct gs_lock *lock) {
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}

/* A lock that may be held across driver calls and daemon round trips: waiters sleep. From inside such a driver call a
 * profiler may call us on the same thread, which then has the lock already. The address of errno tells threads apart
 * without a system call. */
struct gs_mutex {
    uint32_t state; /* 0 free, 1 held, 2 held and somebody waits */
    uint32_t depth; /* how often its owner has it beside the first time */
    void *owner;
};

static inline void gs_mutex_lock(struct gs_mutex *mutex) {
    uint32_t free_ = 0;
    if (__atomic_load_n(&mutex->owner, __ATOMIC_RELAXED) == &errno) {
        mutex->depth++;
        return;
    }
    if (!__atomic_compare_exchange_n(&mutex->state, &free_, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        while (__atomic_exchange_n(&mutex->state, 2, __ATOMIC_ACQUIRE) != 0)
            gs_futex_wait(&mutex->state, 2, 1000);
    __atomic_store_n(&mutex->owner, &errno, __ATOMIC_RELAXED);
}

static inline void gs_mutex_unlock(struct gs_mutex *mutex) {
    if (mutex->depth != 0) {
        mutex->depth--;
        return;
    }
    __atomic_store_n(&mutex->owner, NULL, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&mutex->state, 0, __ATOMIC_RELEASE) == 2)
        gs_futex_wake(&mutex->state, 1);
}

#endif
