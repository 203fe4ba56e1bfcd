/* trim.c: what a trim has given back so far, and what the driver's pools hold unused. */
#include "trim.h"

#include <string.h>

#include "hooks.h"
#include "moments.h"
#include "stream.h"

#define CAPTURE_US 2000
#define ROUNDS     3
#define ROUND_US   1000

static struct {
    uint32_t acting; /* futex: calls in the driver */
    bool leaving;    /* the process ends */
    uint64_t until;  /* of the trim that is under way; 0: none is */
    uint32_t before[GS_MAX_GPUS], wanted[GS_MAX_GPUS];
} trim;

/* ---- how much ------------------------------------------------------------------------------------- */

/* The GPU's line in the daemon's page, or NULL. */
static struct gs_line *line_of(uint32_t number) {
    const struct gs_gpu *gpu = gs_gpu_numbered((uint8_t)number);
    struct gs_line *line = __atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE);
    return gpu->own ? NULL : line;
}

void gs_trim_begin(uint64_t until) {
    for (uint32_t i = 0; i < GS_MAX_GPUS; i++) {
        struct gs_line *line = line_of(i);
        uint32_t before = line != NULL ? gs_word_used(gs_word_load(line)) : 0;
        uint32_t wanted = line != NULL ? __atomic_load_n(&line->trim_units, __ATOMIC_RELAXED) : 0;
        __atomic_store_n(&trim.before[i], before, __ATOMIC_RELAXED);
        __atomic_store_n(&trim.wanted[i], wanted, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&trim.until, until, __ATOMIC_RELEASE);
}

static bool is_wanted(uint32_t number) {
    return __atomic_load_n(&trim.wanted[number], __ATOMIC_RELAXED) != 0;
}

/* How much less the process holds than when the trim began. The program allocates and frees meanwhile: the daemon
 * counts the result of all of it. */
static uint32_t given(uint32_t number) {
    uint32_t used = gs_word_used(gs_word_load(line_of(number)));
    uint32_t before = __atomic_load_n(&trim.before[number], __ATOMIC_RELAXED);
    return before > used ? before - used : 0;
}

/* Units still wanted on this GPU. */
static uint32_t lacking(uint32_t number) {
    uint32_t wanted = __atomic_load_n(&trim.wanted[number], __ATOMIC_RELAXED);
    uint32_t got = wanted != 0 ? given(number) : 0;
    return wanted > got ? wanted - got : 0;
}

bool gs_trim_is_enough(void) {
    for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
        if (lacking(i) != 0)
            return false;
    return true;
}

void gs_trim_end(void) {
    __atomic_store_n(&trim.until, 0, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
        if (is_wanted(i))
            __atomic_fetch_add(&line_of(i)->trimmed, given(i), __ATOMIC_RELAXED);
}

/* ---- acting --------------------------------------------------------------------------------------- */

bool gs_trim_enter(void) {
    __atomic_fetch_add(&trim.acting, 1, __ATOMIC_SEQ_CST);
    return !__atomic_load_n(&trim.leaving, __ATOMIC_SEQ_CST);
}

void gs_trim_leave(void) {
    if (__atomic_sub_fetch(&trim.acting, 1, __ATOMIC_SEQ_CST) == 0 && __atomic_load_n(&trim.leaving, __ATOMIC_SEQ_CST))
        gs_futex_wake(&trim.acting, INT_MAX);
}

static void give_back(uint32_t number) {
    if (lacking(number) == 0)
        return;
    if (gs_trim_enter())
        gs_account_give_back(gs_gpu_numbered((uint8_t)number), true);
    gs_trim_leave();
}

/* Give back with a context of the program as the current one. No call here is documented to need one, but programs
 * nearly always call with one. */
static void give_back_inside(uint32_t number) {
    bool primary;
    bool entered = lacking(number) != 0 && gs_context_enter(gs_gpu_numbered((uint8_t)number), &primary);
    give_back(number);
    if (entered)
        gs_driver.cuCtxSetCurrent(NULL);
}

/* Several times: a pool is left alone while a launch is under way in it. */
void gs_trim_pools(void) {
    for (int round = 0; round < ROUNDS && !gs_trim_is_enough(); round++) {
        if (round != 0)
            gs_sleep_us(ROUND_US);
        for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
            give_back_inside(i);
    }
}

uint64_t gs_trim_left_ms(void) {
    uint64_t until = __atomic_load_n(&trim.until, __ATOMIC_ACQUIRE), now = gs_now_ms();
    return until > now ? until - now : 0;
}

uint64_t gs_trim_wanted(uint32_t gpu) {
    if (gs_trim_left_ms() == 0)
        return 0;
    give_back(gpu);
    return (uint64_t)lacking(gpu) << GS_UNIT_SHIFT;
}

bool gs_trim_captures_end(uint64_t until) {
    while (gs_capture_is_underway()) {
        if (gs_now_ms() >= until)
            return false;
        gs_sleep_us(CAPTURE_US);
    }
    return true;
}

bool gs_trim_await_captures(void) {
    return gs_trim_captures_end(__atomic_load_n(&trim.until, __ATOMIC_ACQUIRE));
}

void gs_trim_stop(uint64_t until) {
    uint64_t now;
    uint32_t acting;
    __atomic_store_n(&trim.leaving, true, __ATOMIC_SEQ_CST);
    while ((acting = __atomic_load_n(&trim.acting, __ATOMIC_SEQ_CST)) != 0 && (now = gs_now_ms()) < until)
        gs_futex_wait(&trim.acting, acting, until - now);
}

bool gs_trim_is_stopped(void) {
    return __atomic_load_n(&trim.leaving, __ATOMIC_RELAXED);
}

GS_AT(fork) {
    memset(&trim, 0, sizeof trim);
}
