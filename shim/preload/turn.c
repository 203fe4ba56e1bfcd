/* turn.c: how launches wait, and how the daemon hears whether the GPU is done with what they have launched.
 *
 * While the daemon keeps the word closed, launches wait on it, in the threads of the program that make them.
 *
 * When it sets GS_TURN_QUIET, the next launch clears the bit: so the daemon knows who computes, and each launch in
 * between costs a load and nothing else.
 *
 * When it sets GS_TURN_PROBE, the library's thread (borrower.c) sets GS_TURN_ASKS in its place until the GPU is done.
 *
 * No wait is without end: a word that the daemon has not confirmed for GS_TURN_MS holds nobody back, and then no later
 * launch either, until a daemon counts on. So neither a daemon that dies nor one that hangs stops a program.
 */
#include "turn.h"

#if defined(GS_TURNS)

#include "moments.h"

#define PAUSE_US 1000

static uint32_t no_turn;
uint32_t *gs_turn_word = &no_turn;

static struct gs_gpu *only_gpu; /* whose word it is; NULL: nobody's */
static uint32_t disbelieved; /* the number in a closed word that no daemon raised in time: it stops nobody. 0: none */
static struct gs_lock attach_lock;

static uint32_t beat_of(uint32_t word) {
    return (word & ~(uint32_t)(GS_TURN_BEAT - 1)) | 1;
}

/* Whether the daemon has confirmed, while we slept, that it is not our turn. */
static bool sleep_on(uint32_t *word, uint32_t seen) {
    long result = gs_futex_wait_shared(word, seen, GS_TURN_MS);
    uint32_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (result == -ETIMEDOUT && beat_of(now) == beat_of(seen)) {
        __atomic_store_n(&disbelieved, beat_of(seen), __ATOMIC_RELAXED);
        return false;
    }
    if (now == seen && result != 0 && result != -EINTR && result != -ETIMEDOUT)
        gs_sleep_us(PAUSE_US); /* a kernel without such a futex */
    return true;
}

static void await_turn(uint32_t *word) {
    for (;;) {
        uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((seen & GS_TURN_CLOSED) == 0 || beat_of(seen) == __atomic_load_n(&disbelieved, __ATOMIC_RELAXED))
            return;
        if ((seen & GS_TURN_WANTED) == 0 &&
            !__atomic_compare_exchange_n(word, &seen, seen | GS_TURN_WANTED, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        if (!sleep_on(word, seen | GS_TURN_WANTED))
            return;
    }
}

__attribute__((noinline, cold)) void gs_turn_pass_slow(gs_ask_capture *ask, CUstream stream) {
    uint32_t *word = __atomic_load_n(&gs_turn_word, __ATOMIC_RELAXED);
    if (gs_stream_is_captured(ask, stream))
        return;
    await_turn(word);
    if (__atomic_load_n(word, __ATOMIC_RELAXED) & GS_TURN_QUIET)
        __atomic_fetch_and(word, ~(uint32_t)GS_TURN_QUIET, __ATOMIC_RELAXED);
}

/* ---- the one GPU ---------------------------------------------------------------------------------- */

/* A GPU has been attached. The process takes turns on its first GPU, until it attaches a second one. */
GS_AT(attached) {
    struct gs_gpu *first = NULL;
    uint32_t count = 0;
    gs_lock(&attach_lock);
    for (uint32_t i = 0; i < GS_MAX_GPUS; i++) {
        struct gs_gpu *gpu = gs_gpu_numbered((uint8_t)i);
        if (__atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE) == NULL)
            continue;
        count++;
        first = gpu;
    }
    if (only_gpu != NULL && count > 1) {
        __atomic_fetch_and(&only_gpu->line->turn, ~(uint32_t)GS_TURN_HELD, __ATOMIC_ACQ_REL);
        __atomic_store_n(&gs_turn_word, &no_turn, __ATOMIC_RELAXED);
        only_gpu = NULL;
    }
    bool taken = count == 1 && only_gpu == NULL && !first->own;
    if (taken) {
        only_gpu = first;
        __atomic_fetch_or(&first->line->turn, GS_TURN_HELD, __ATOMIC_ACQ_REL);
        __atomic_store_n(&gs_turn_word, &first->line->turn, __ATOMIC_RELEASE);
    }
    gs_unlock(&attach_lock);
    if (taken)
        GS_RUN(borrow); /* its thread answers probes, too */
}

const struct gs_gpu *gs_turn_gpu(void) {
    return only_gpu;
}

GS_AT(fork) {
    gs_turn_word = &no_turn;
    only_gpu = NULL;
    disbelieved = 0;
    attach_lock = (struct gs_lock){0};
}

#endif
