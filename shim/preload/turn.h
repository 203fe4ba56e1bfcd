/* turn.h: launches wait while it is another job's turn to compute on the GPU.
 *
 * Only in the library that is built with GS_TURNS, for nodes on which jobs take turns; elsewhere launches have no
 * hooks. A process that uses several GPUs takes no turns: what its kernels do on one GPU may wait for its kernels on
 * another.
 */
#ifndef GPUSHARE_PRELOAD_TURN_H
#define GPUSHARE_PRELOAD_TURN_H

#include "stream.h"

#if defined(GS_TURNS)

/* GS_TURN_* of the one GPU that this process uses; another word, always 0, while there is none. Never NULL. */
extern uint32_t *gs_turn_word;

typedef CUresult gs_ask_capture(CUstream stream, CUstreamCaptureStatus *status);
void gs_turn_pass_slow(gs_ask_capture *ask, CUstream stream);

/* Whose word that is, or NULL. */
const struct gs_gpu *gs_turn_gpu(void);

/* Before each launch. What is captured becomes part of a graph and waits when that is launched. */
GS_INLINE void gs_turn_pass(gs_ask_capture *ask, CUstream stream) {
    uint32_t *word = __atomic_load_n(&gs_turn_word, __ATOMIC_RELAXED);
    if (__builtin_expect((__atomic_load_n(word, __ATOMIC_RELAXED) & (GS_TURN_CLOSED | GS_TURN_QUIET)) != 0, 0))
        gs_turn_pass_slow(ask, stream);
}

#else

#define gs_turn_pass(ask, stream) ((void)0)

#endif
#endif
