/* ask_trim.h: the daemon's half of a trim (credit.h): raise the number, and wake the thread that waits for it.
 *
 * Not in credit.h, which has no system calls in it. The futex is not a private one: the waiter is another process.
 */
#ifndef GPUSHARE_ASK_TRIM_H
#define GPUSHARE_ASK_TRIM_H

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "credit.h"

/* The number of the new request. */
static inline uint32_t gs_ask_trim(struct gs_page *page) {
    uint32_t number = __atomic_add_fetch(&page->trim_asked, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &page->trim_asked, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return number;
}

/* Close the gate of a line, or say that it still is: it counts on. 0 opens it. */
static inline void gs_turn_gate(struct gs_line *line, int closed) {
    uint32_t next = closed ? __atomic_load_n(&line->gate, __ATOMIC_RELAXED) + 1 : 0;
    __atomic_store_n(&line->gate, closed && next == 0 ? 1 : next, __ATOMIC_RELEASE);
    syscall(SYS_futex, &line->gate, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Clear and set the daemon's bits of a line's turn, and count on: who waits there sees that a daemon lives. Returns
 * what the word was. */
static inline uint32_t gs_say_turn(struct gs_line *line, uint32_t clear, uint32_t set) {
    uint32_t word = __atomic_load_n(&line->turn, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&line->turn, &word, ((word & ~clear) | set) + GS_TURN_BEAT, 1, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
        ;
    if (word & clear & GS_TURN_CLOSED)
        syscall(SYS_futex, &line->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return word;
}

/* Have the thread of the process that waits for trims look around: there is a GS_TURN_PROBE. */
static inline void gs_wake_trimmer(struct gs_page *page) {
    syscall(SYS_futex, &page->trim_asked, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
