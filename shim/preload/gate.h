/* gate.h: what a program's calls do while its job is suspended (credit.h: suspend).
 *
 * Its memory is in host memory then, and the driver holds most calls until it is back. Some it does not hold: the calls
 * that wait for the GPU or ask how far it is read what the GPU has written, without a lock. NVIDIA's driver 580 ends a
 * program that makes one of these meanwhile with SIGSEGV, also one that unloads code; it refuses cuMemGetInfo and
 * handles of shared memory. These calls pass the gate, and those that give memory back at once or map it: what it does
 * with them while the memory is on its way, nobody has seen.
 *
 *   the daemon closes the gate, and asks for quiet (as a trim of nothing)
 *   who comes now waits at the gate, outside; who is inside goes on until the GPU has done what it waits for
 *   the library's thread says when nobody is inside, and only then the memory leaves
 *
 * Calls that need credit wait at the same gate (account.c), but are not counted: the driver holds them.
 */
#ifndef GPUSHARE_PRELOAD_GATE_H
#define GPUSHARE_PRELOAD_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "lock.h"

enum gs_passed {
    GS_PASSED_OPEN,
    GS_PASSED_LATER,    /* it was closed for a while */
    GS_PASSED_DESERTED, /* it is closed, and no daemon keeps it any more */
};

/* Wait as long as this gate is closed. `said`: what it said at last. */
enum gs_passed gs_gate_pass(uint32_t *gate, uint32_t *said);

/* From now on this is the gate of the process. The daemon closes the gates of all GPUs of a process together, so one of
 * them is enough. */
void gs_gate_is(uint32_t *gate);

/* The calls that are inside. Threads that call at the same time mostly count in different places. */
struct gs_inside {
    _Alignas(64) uint32_t calls;
};
enum { GS_INSIDE = 16 };
extern struct gs_inside gs_inside[GS_INSIDE];

extern uint32_t *gs_gate; /* never NULL */

void gs_gate_wait_outside(struct gs_inside *inside);

/* Before and after a call that must not be in the driver while the memory is away. The count comes before the look at
 * the gate: the one who has closed the gate and then finds nobody inside can rely on it. */
GS_INLINE struct gs_inside *gs_gate_enter(void) {
    if (__builtin_expect(!gs_on(), 0))
        return NULL;
    struct gs_inside *inside = &gs_inside[((uintptr_t)__builtin_frame_address(0) >> 12) % GS_INSIDE];
    __atomic_fetch_add(&inside->calls, 1, __ATOMIC_SEQ_CST);
    if (__builtin_expect(__atomic_load_n(__atomic_load_n(&gs_gate, __ATOMIC_RELAXED), __ATOMIC_SEQ_CST) != 0, 0))
        gs_gate_wait_outside(inside);
    return inside;
}

GS_INLINE CUresult gs_gate_leave(struct gs_inside *inside, CUresult result) {
    if (__builtin_expect(inside != NULL, 1))
        __atomic_fetch_sub(&inside->calls, 1, __ATOMIC_RELEASE);
    return result;
}

bool gs_gate_is_closed(void);

/* Wait until nobody is inside, at most until `until` (by gs_now_ms). true: so it is, as long as the gate is closed. */
bool gs_gate_await_quiet(uint64_t until);

#endif
