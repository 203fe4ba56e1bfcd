/* turn_probe.c: the daemon hears whether the GPU has done what the process has launched (turn.c). */
#include "turn.h"

#if defined(GS_TURNS)

#include "gate.h"
#include "hooks.h"
#include "moments.h"
#include "trim.h"

/* The thread may sit here as long as a kernel runs; the daemon waits for it no longer than it likes. While the job is
 * suspended it asks for nothing: it is this thread that would say when nobody is in the driver. */
static void wait_for_gpu(const struct gs_gpu *gpu) {
    bool primary;
    if (!gs_context_enter(gpu, &primary))
        return;
    if (gs_trim_enter() && !gs_gate_is_closed())
        gs_driver.cuCtxSynchronize();
    gs_trim_leave();
    gs_driver.cuCtxSetCurrent(NULL);
}

/* In the library's thread. While a stream is captured nothing may be waited for: the daemon asks again. */
GS_AT(look) {
    uint32_t *word = __atomic_load_n(&gs_turn_word, __ATOMIC_ACQUIRE);
    const struct gs_gpu *gpu = gs_turn_gpu();
    while (gpu != NULL && (__atomic_load_n(word, __ATOMIC_ACQUIRE) & GS_TURN_PROBE) != 0 && !gs_capture_is_underway()) {
        __atomic_fetch_or(word, GS_TURN_ASKS, __ATOMIC_ACQ_REL);
        __atomic_fetch_and(word, ~(uint32_t)GS_TURN_PROBE, __ATOMIC_ACQ_REL);
        wait_for_gpu(gpu);
        __atomic_fetch_and(word, ~(uint32_t)GS_TURN_ASKS, __ATOMIC_ACQ_REL);
    }
}

#endif
