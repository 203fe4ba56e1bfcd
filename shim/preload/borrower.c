/* borrower.c: the thread that trims when the daemon asks for memory back. It is the library's only lasting thread.
 *
 * Borrowed memory that a program only keeps, in pools and caches, can be given back without harm. But the program may
 * compute for hours without a call to us, so a thread must act. It sleeps on a word of the page (trim_asked) until the
 * daemon raises it. It exists only in processes whose job may borrow, has to give back when it is idle, or takes
 * turns in computing (turn.c), from the first context on.
 *
 * A trim has two parts, as long as the daemon wants more: first it empties the driver's pools and graph memory, then,
 * if there is a Python interpreter, the caches of its frameworks (python.h). Nothing is done while a stream is
 * captured: this is checked before each part and before each cache. If a capture, Python's lock or a slow driver is in
 * the way, the daemon waits no longer than it said, and takes its next step.
 *
 * The thread holds at most one of our locks: that of the pool that the driver is trimming. The end of the program does
 * not wait for the thread, except shortly for a call in the driver, which must not be unloaded under it.
 */
#include <stdlib.h>

#include "client.h"
#include "driver.h"
#include "gate.h"
#include "moments.h"
#include "python.h"
#include "system.h"
#include "thread.h"
#include "trim.h"

#define STACK_BYTES (512u << 10) /* for the driver's calls, and the thread-local memory of all that was there first */
#define LOOK_MS     2000         /* between two looks of the thread whether it is the last */
#define LEAVE_MS    200

static bool begun; /* the thread is there, or none can be started */

static void act(uint64_t until) {
    gs_trim_pools();
    if (!gs_trim_is_enough() && gs_python_trim(until))
        gs_trim_pools();
}

/* With the gate closed nothing is asked for but quiet. If that does not come in time, nothing is said, and the memory
 * does not leave. */
static bool comply(uint64_t began, uint32_t span) {
    if (gs_gate_is_closed())
        return gs_gate_await_quiet(began + span);
    gs_trim_begin(began + span);
    if (gs_trim_captures_end(began + span / 2))
        act(began + span);
    gs_trim_end();
    return true;
}

static void answer(struct gs_page *page, uint32_t asked) {
    struct gs_frame frame = {.type = GS_TRIMMED};
    uint32_t said = __atomic_load_n(&page->trim_ms, __ATOMIC_RELAXED), span = said != 0 ? said : GS_TRIM_MS;
    uint64_t began = gs_now_ms();
    __atomic_store_n(&page->trim_begun, asked, __ATOMIC_RELEASE);
    if (comply(began, span))
        __atomic_store_n(&page->trim_done, asked, __ATOMIC_RELEASE);
    gs_client_tell(&frame);
}

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
    uint32_t seen = __atomic_load_n(&page->trim_done, __ATOMIC_RELAXED); /* what was asked since it was ready counts */
    while (!gs_trim_is_stopped()) {
        long result = gs_futex_wait_shared(&page->trim_asked, seen, LOOK_MS);
        uint32_t asked = __atomic_load_n(&page->trim_asked, __ATOMIC_ACQUIRE);
        GS_RUN(look); /* the daemon also wakes us without a trim */
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
    if (!__atomic_load_n(&begun, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&page->trim_ready, 0, __ATOMIC_RELEASE);
    gs_trim_stop(gs_now_ms() + LEAVE_MS);
}

/* This process may borrow. Cheap when that was seen before. */
GS_AT(borrow) {
    static bool registered;
    if (__builtin_expect(__atomic_load_n(&begun, __ATOMIC_RELAXED), 1) || gs_client_page() == NULL ||
        __atomic_exchange_n(&begun, true, __ATOMIC_ACQ_REL))
        return;
    if (!__atomic_exchange_n(&registered, true, __ATOMIC_RELAXED))
        atexit(at_exit);
    /* Said before the thread first runs, which may take long on a busy machine. Otherwise the daemon would stop a
     * program that can trim. */
    struct gs_page *page = gs_client_page();
    __atomic_store_n(&page->trim_ready, 1, __ATOMIC_RELEASE);
    if (!gs_thread_start(serve, STACK_BYTES) && !gs_thread_start(serve, 0))
        __atomic_store_n(&page->trim_ready, 0, __ATOMIC_RELEASE); /* the daemon sees that this process cannot trim */
}

GS_AT(fork) {
    begun = false;
}
