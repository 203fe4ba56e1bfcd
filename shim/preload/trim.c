/* trim.c: the one thread of ours that lasts, and what it does when memory is asked back.
 *
 * Borrowed memory that a program merely keeps, in pools and caches, can be had back without harming it. But the program
 * may compute for hours without a call to us, so somebody else must act: a thread that sleeps on a word of the page
 * (trim_asked) until the daemon raises it. It exists only in processes whose job may borrow, from the first context on;
 * most programs never see it.
 *
 * A trim, from the gentlest on, as long as the daemon wants more: what the driver's pools and graphs hold unused; then,
 * if there is a Python interpreter, what its frameworks keep (python.h). Nothing is done while a stream is captured:
 * that is looked at before each of these, and again before each cache.
 * Whatever stands in the way (a capture, Python's lock, a slow driver), the daemon waits no longer than it said, and
 * goes on to its next means.
 *
 * Of our locks the thread holds at most that of the pool that the driver is just trimming. The program's end does not
 * wait for it, except shortly for a call in the driver, which must not be torn down beneath it.
 */
#include "trim.h"

#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "hooks.h"
#include "python.h"
#include "stream.h"
#include "system.h"
#include "thread.h"

#define STACK_BYTES (512u << 10) /* for the driver's calls, and the thread-local memory of all that was there first */
#define TRIM_MS     2000         /* if the page does not say */
#define LOOK_MS     2000         /* so often the thread looks whether it is the last */
#define CAPTURE_US  2000
#define ROUNDS      3
#define ROUND_US    1000
#define LEAVE_MS    200

enum { NONE, THERE, FAILED };

static struct {
    uint32_t state;
    uint32_t acting;  /* futex: calls in the driver */
    uint32_t leaving; /* the process ends */
    uint64_t until;   /* of the trim that is under way; 0: none is */
    uint32_t before[GS_MAX_GPUS], wanted[GS_MAX_GPUS];
} trim;

/* ---- how much ------------------------------------------------------------------------------------- */

/* The GPU's line in the daemon's page, or NULL. */
static struct gs_line *line_of(uint32_t number) {
    const struct gs_gpu *gpu = gs_gpu_numbered((uint8_t)number);
    struct gs_line *line = __atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE);
    return line != NULL && !gpu->own ? line : NULL;
}

static void begin_count(uint64_t until) {
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

/* What the process holds less than when the trim began. The program goes on taking and giving back meanwhile; the
 * daemon looks at the result, not at who brought it about. */
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

static bool is_enough(void) {
    for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
        if (lacking(i) != 0)
            return false;
    return true;
}

static void end_count(void) {
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

/* With a context of the program's as the current one. No call here is documented to need one; all have one as a rule.
 */
static void give_back_inside(uint32_t number) {
    bool primary;
    bool entered = lacking(number) != 0 && gs_context_enter(gs_gpu_numbered((uint8_t)number), &primary);
    give_back(number);
    if (entered)
        gs_driver.cuCtxSetCurrent(NULL);
}

/* Several times: a pool is left alone while a launch is under way in it. */
static void give_back_pools(void) {
    for (int round = 0; round < ROUNDS && !is_enough(); round++) {
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

/* false: one is still under way. */
static bool captures_end(uint64_t until) {
    while (gs_capture_is_underway()) {
        if (gs_now_ms() >= until)
            return false;
        gs_sleep_us(CAPTURE_US);
    }
    return true;
}

bool gs_trim_await_captures(void) {
    return captures_end(__atomic_load_n(&trim.until, __ATOMIC_ACQUIRE));
}

static void act(uint64_t until) {
    give_back_pools();
    if (!is_enough() && gs_python_trim(until))
        give_back_pools();
}

static void answer(struct gs_page *page, uint32_t asked) {
    struct gs_frame frame = {.type = GS_TRIMMED};
    uint32_t said = __atomic_load_n(&page->trim_ms, __ATOMIC_RELAXED), span = said != 0 ? said : TRIM_MS;
    uint64_t began = gs_now_ms();
    __atomic_store_n(&page->trim_begun, asked, __ATOMIC_RELEASE);
    begin_count(began + span);
    if (captures_end(began + span / 2))
        act(began + span);
    end_count();
    __atomic_store_n(&page->trim_done, asked, __ATOMIC_RELEASE);
    gs_client_tell(&frame);
}

/* ---- the thread ----------------------------------------------------------------------------------- */

/* A main thread that has ended with pthread_exit waits for all others, and we are no reason to wait. */
static bool is_last(void) {
    struct stat status;
    char text[256];
    if (GS_CALL(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &status, 0) != 0 || status.st_nlink != 2 + 2)
        return false;
    long fd = GS_CALL(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    long length = GS_CALL(SYS_read, fd, text, sizeof text);
    GS_CALL(SYS_close, fd);
    while (length > 2 && text[length - 3] != ')') /* "pid (name) state ...": the name may have anything in it */
        length--;
    return length > 2 && text[length - 1] == 'Z';
}

static void *serve(void *unused) {
    (void)unused;
    struct gs_page *page = gs_client_page();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gs_driver.cuThreadExchangeStreamCaptureMode(&mode); /* so that no call of ours spoils a capture that begins */
    uint32_t seen = __atomic_load_n(&page->trim_asked, __ATOMIC_ACQUIRE);
    __atomic_store_n(&page->trim_ready, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&trim.leaving, __ATOMIC_RELAXED)) {
        long result = gs_futex_wait_shared(&page->trim_asked, seen, LOOK_MS);
        uint32_t asked = __atomic_load_n(&page->trim_asked, __ATOMIC_ACQUIRE);
        if (asked != seen)
            answer(page, asked);
        else if (result == -ETIMEDOUT && is_last())
            break;
        else if (result != 0 && result != -ETIMEDOUT && result != -EINTR && result != -EAGAIN)
            gs_sleep_us(LOOK_MS * 1000); /* a kernel without such a futex: then by looking now and then */
        seen = asked;
    }
    __atomic_store_n(&page->trim_ready, 0, __ATOMIC_RELEASE);
    return NULL;
}

/* The driver is about to be torn down: it was loaded before this was registered, so its own end comes after. */
static void at_exit(void) {
    struct gs_page *page = gs_client_page();
    uint64_t now, until = gs_now_ms() + LEAVE_MS;
    uint32_t acting;
    if (__atomic_load_n(&trim.state, __ATOMIC_RELAXED) != THERE)
        return;
    __atomic_store_n(&page->trim_ready, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&trim.leaving, 1, __ATOMIC_SEQ_CST);
    while ((acting = __atomic_load_n(&trim.acting, __ATOMIC_SEQ_CST)) != 0 && (now = gs_now_ms()) < until)
        gs_futex_wait(&trim.acting, acting, until - now);
}

void gs_trim_start(void) {
    static uint32_t registered;
    uint32_t none = NONE;
    if (__builtin_expect(__atomic_load_n(&trim.state, __ATOMIC_RELAXED) != NONE, 1) || gs_client_page() == NULL ||
        !__atomic_compare_exchange_n(&trim.state, &none, THERE, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    if (!__atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED))
        atexit(at_exit);
    if (!gs_thread_start(serve, STACK_BYTES) && !gs_thread_start(serve, 0))
        __atomic_store_n(&trim.state, FAILED, __ATOMIC_RELAXED); /* the daemon sees that nobody is ready */
}

void gs_trim_forget(void) {
    memset(&trim, 0, sizeof trim);
}
