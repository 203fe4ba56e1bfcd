/* part_borrower.c: the thread that trims, run by the program itself on a clock of its own. */
#include <unistd.h>

static long (*system_call)(long number, ...);
#include <sys/syscall.h>
#define syscall(...) system_call(__VA_ARGS__)

#include "part.h"

#include <stdarg.h>

static uint64_t clock_ms = 5000;
static uint64_t slept_us;
static uint32_t sleeps;

static uint64_t now_of_test(void) {
    return clock_ms;
}

static void sleep_of_test(uint64_t microseconds) {
    sleeps++;
    slept_us += microseconds;
}

static long wait_of_test(uint32_t *word, uint32_t value, uint64_t milliseconds);
static int at_exits;
static void (*exit_function)(void);
static int atexit_of_test(void (*function)(void)) {
    at_exits++;
    exit_function = function;
    return 0;
}

#define gs_now_ms()                           now_of_test()
#define gs_sleep_us(microseconds)             sleep_of_test(microseconds)
#define gs_futex_wait_shared(word, value, ms) wait_of_test(word, value, ms)
#define atexit(function)                      atexit_of_test(function)

#include "borrower.c"

#undef atexit
#undef syscall

struct gs_driver gs_driver;
static struct gs_page page, *has_page = &page;

struct gs_page *gs_client_page(void) {
    return has_page;
}

/* ---- trims ---------------------------------------------------------------------------------------- */

static struct {
    uint64_t began_until, captures_until, python_until, stop_until;
    uint32_t begins, ends, pools, pythons, stops, told;
    uint32_t begun, done; /* what the page said when it was acted, and when the daemon was told */
} did;

static bool captures_end = true, is_stopped, python_gave;

/* The gate: whether it is closed, and whether the program's calls end in time. */
static bool gate_is_closed, calls_end;
static uint64_t quiet_until;

bool gs_gate_is_closed(void) {
    return gate_is_closed;
}

bool gs_gate_await_quiet(uint64_t until) {
    quiet_until = until;
    return calls_end;
}

static int enough_after; /* so many looks find that more is wanted */

void gs_trim_begin(uint64_t until) {
    did.begins++;
    did.began_until = until;
    REQUIRE(did.begins == did.ends + 1);
}

void gs_trim_end(void) {
    did.ends++;
    REQUIRE(page.trim_done != page.trim_asked); /* it is said after all is done */
}

void gs_trim_pools(void) {
    did.pools++;
    did.begun = page.trim_begun;
}

bool gs_trim_is_enough(void) {
    return enough_after-- <= 0;
}

bool gs_trim_captures_end(uint64_t until) {
    did.captures_until = until;
    return captures_end;
}

bool gs_python_trim(uint64_t until) {
    did.pythons++;
    did.python_until = until;
    return python_gave;
}

void gs_trim_stop(uint64_t until) {
    did.stops++;
    did.stop_until = until;
}

bool gs_trim_is_stopped(void) {
    return is_stopped;
}

void gs_client_tell(struct gs_frame *frame) {
    REQUIRE(frame->type == GS_TRIMMED && did.ends == did.begins);
    did.told++;
    did.done = page.trim_done;
}

/* ---- the thread ----------------------------------------------------------------------------------- */

static uint32_t looks;

GS_AT(look) {
    looks++;
}

static void *(*started)(void *);
static size_t stacks[4];
static uint32_t starts;
static int thread_fails;

bool gs_thread_start(void *(*function)(void *), size_t stack_bytes) {
    REQUIRE(page.trim_ready == 1); /* said before the thread first runs */
    started = function;
    stacks[starts++ % 4] = stack_bytes;
    return thread_fails-- <= 0;
}

static uint32_t relaxed;

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    REQUIRE(*mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    relaxed++;
    return CUDA_SUCCESS;
}

/* What the thread's waits find, one after the other; the last one ends it. */
static struct {
    long result;
    uint32_t asks; /* so many more trims */
} wait_for[8];
static int waits, script;
static uint32_t waited_value;

static long wait_of_test(uint32_t *word, uint32_t value, uint64_t milliseconds) {
    REQUIRE(word == &page.trim_asked && milliseconds == LOOK_MS && waits < script);
    waited_value = value;
    page.trim_asked += wait_for[waits].asks;
    if (waits + 1 == script)
        is_stopped = true;
    return wait_for[waits++].result;
}

static void script_is(int count) {
    waits = 0;
    script = count;
    is_stopped = false;
    looks = sleeps = relaxed = 0;
    slept_us = 0;
    memset(&did, 0, sizeof did);
}

static void step(int i, long result, uint32_t asks) {
    wait_for[i].result = result;
    wait_for[i].asks = asks;
}

/* ---- how many threads there are ------------------------------------------------------------------- */

static unsigned links = 3;
static long stat_result;
static const char *stat_text;
static int opened, closed, stats;
static long stat_file = 77;

static long fake_system(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    long result = -1;
    if (number == SYS_newfstatat) {
        REQUIRE(va_arg(arguments, int) == AT_FDCWD && strcmp(va_arg(arguments, const char *), "/proc/self/task") == 0);
        struct stat *status = va_arg(arguments, struct stat *);
        REQUIRE(va_arg(arguments, int) == 0);
        stats++;
        status->st_nlink = links;
        result = stat_result;
    } else if (number == SYS_openat) {
        REQUIRE(va_arg(arguments, int) == AT_FDCWD && strcmp(va_arg(arguments, const char *), "/proc/self/stat") == 0);
        REQUIRE(va_arg(arguments, int) == (O_RDONLY | O_CLOEXEC));
        opened += stat_text != NULL;
        result = stat_text != NULL ? stat_file : -1;
    } else if (number == SYS_read) {
        REQUIRE(va_arg(arguments, long) == stat_file);
        char *text = va_arg(arguments, char *);
        size_t size = va_arg(arguments, size_t), length = strlen(stat_text);
        result = (long)(length < size ? length : size);
        memcpy(text, stat_text, (size_t)result);
    } else if (number == SYS_close) {
        REQUIRE(va_arg(arguments, long) == stat_file);
        closed++;
        result = 0;
    }
    va_end(arguments);
    errno = ENOENT; /* as the kernel's wrapper says why */
    return result;
}

static bool last(unsigned tasks, const char *text) {
    links = tasks + 2;
    stat_text = text;
    opened = closed = 0;
    bool is = is_last();
    REQUIRE(opened == closed);
    return is;
}

/* It is the last one if one other is there, the main thread, and that has ended. */
static void the_last_thread(void) {
    REQUIRE(last(2, "123 (a name) Z 1 2 3"));
    REQUIRE(!last(2, "123 (a name) S 1 2 3") && !last(1, "123 (a) Z 1") && !last(3, "123 (a) Z 1"));
    REQUIRE(last(2, "123 (odd) Z) name) Z 1 2 3") && !last(2, "123 (odd) Z 1) S 1 2 3"));
    stat_file = 0; /* in a program without a standard input */
    REQUIRE(last(2, "123 (a name) Z 1 2 3"));
    stat_file = 77;
    REQUIRE(!last(2, "abZ") && !last(2, "aZ 1 2") && last(2, ") Z 1") && last(2, ") Z"));
    REQUIRE(!last(2, NULL) && !last(2, "") && !last(2, "ab") && !last(2, "123 Z 1 2"));
    stat_result = -1;
    REQUIRE(!last(2, "123 (a name) Z 1 2 3"));
    stat_result = 0;
    links = 5;
}

/* ---- the whole life ------------------------------------------------------------------------------- */

static void begins(void) {
    has_page = NULL;
    at_borrow();
    REQUIRE(starts == 0 && at_exits == 0 && !begun); /* without a daemon nobody asks */
    has_page = &page;
    exit_function = NULL;
    at_borrow();
    at_borrow();
    REQUIRE(starts == 1 && started == serve && stacks[0] == STACK_BYTES && page.trim_ready == 1 && at_exits == 1);
    at_fork();
    REQUIRE(!begun);
    at_borrow();
    REQUIRE(starts == 2 && at_exits == 1); /* the child inherits what runs at the exit */
    at_fork();
    thread_fails = 1;
    at_borrow();
    REQUIRE(starts == 4 && stacks[2] == STACK_BYTES && stacks[3] == 0 && page.trim_ready == 1);
    at_fork();
    thread_fails = 2;
    at_borrow();
    REQUIRE(starts == 6 && page.trim_ready == 0); /* the daemon sees that this process cannot trim */
    at_borrow();
    REQUIRE(starts == 6); /* and it is not tried again */
    thread_fails = 0;
}

static void one_trim(void) {
    page.trim_ready = 1;
    page.trim_done = page.trim_asked = 4;
    page.trim_ms = 0;
    step(0, 0, 1);
    step(1, 0, 0);
    script_is(2);
    enough_after = 0;
    REQUIRE(serve(NULL) == NULL && page.trim_ready == 0 && relaxed == 1 && looks == 2 && sleeps == 0);
    REQUIRE(did.begins == 1 && did.ends == 1 && did.told == 1 && did.done == 5 && did.begun == 5 && did.pools == 1);
    REQUIRE(did.began_until == clock_ms + GS_TRIM_MS && did.captures_until == clock_ms + GS_TRIM_MS / 2);
    REQUIRE(did.pythons == 0 && page.trim_begun == 5 && page.trim_done == 5 && waited_value == 5);
}

/* Python's caches come after the pools, and what they have freed is in the pools again. */
static void with_python(void) {
    for (int gave = 0; gave < 2; gave++) {
        python_gave = gave;
        page.trim_ms = 700;
        step(0, 0, 1);
        script_is(1);
        enough_after = 1;
        serve(NULL);
        REQUIRE(did.pythons == 1 && did.python_until == clock_ms + 700 && did.pools == 1u + (unsigned)gave);
        REQUIRE(did.captures_until == clock_ms + 350);
    }
    captures_end = false; /* while a stream is captured nothing is done; the daemon is told all the same */
    step(0, 0, 1);
    script_is(1);
    enough_after = 1;
    serve(NULL);
    REQUIRE(did.pools == 0 && did.pythons == 0 && did.begins == 1 && did.ends == 1 && did.told == 1);
    captures_end = true;
}

/* What was asked before the thread first ran counts; several asks that came meanwhile are one. */
static void what_was_asked_before(void) {
    page.trim_asked += 2;
    step(0, -EAGAIN, 0);
    step(1, 0, 3);
    script_is(2);
    serve(NULL);
    REQUIRE(did.begins == 2 && did.told == 2 && page.trim_done == page.trim_asked && sleeps == 0);
    script_is(0);
    is_stopped = true; /* the process ends already */
    serve(NULL);
    REQUIRE(did.begins == 0 && waits == 0 && page.trim_ready == 0);
}

static void waits_that_end_without_an_ask(void) {
    step(0, -ETIMEDOUT, 0);
    step(1, -EINTR, 0);
    step(2, -EAGAIN, 0);
    step(3, 0, 0);
    script_is(4);
    stats = 0;
    serve(NULL);
    REQUIRE(waits == 4 && sleeps == 0 && stats == 1 && looks == 4);
    step(4, -ENOSYS, 0); /* a kernel without such a futex: it looks now and then */
    script_is(5);
    serve(NULL);
    REQUIRE(waits == 5 && sleeps == 1 && slept_us == LOOK_MS * 1000 && looks == 5);
    links = 4;
    stat_text = "1 (a) Z 0";
    script_is(5);
    serve(NULL);
    REQUIRE(waits == 1 && page.trim_ready == 0); /* nobody else is left */
    step(0, -ETIMEDOUT, 1);                      /* but what is asked comes first */
    script_is(2);
    serve(NULL);
    REQUIRE(did.told == 1 && waits == 2);
    links = 5;
}

static void ends(void) {
    page.trim_ready = 1;
    begun = 1;
    memset(&did, 0, sizeof did);
    exit_function = at_exit;
    exit_function();
    REQUIRE(page.trim_ready == 0 && did.stops == 1 && did.stop_until == clock_ms + LEAVE_MS);
    at_fork();
    exit_function(); /* a child that has no thread */
    REQUIRE(did.stops == 1);
}

/* With the gate closed it is asked for quiet and nothing else, and says nothing in the page if that does not come. */
static void quiet(void) {
    for (int in_time = 0; in_time < 2; in_time++) {
        script_is(2);
        step(0, 0, 1);
        step(1, -EAGAIN, 0);
        gate_is_closed = true;
        calls_end = in_time;
        page.trim_ms = 700;
        page.trim_done = page.trim_asked;
        serve(NULL);
        REQUIRE(did.begins == 0 && did.pools == 0 && did.told == 1 && quiet_until == clock_ms + 700);
        REQUIRE(page.trim_begun == page.trim_asked && (page.trim_done == page.trim_asked) == in_time);
    }
    gate_is_closed = false;
    page.trim_done = page.trim_asked;
    page.trim_ms = 0;
}

int main(void) {
    system_call = fake_system;
    gs_driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
    the_last_thread();
    begins();
    one_trim();
    with_python();
    what_was_asked_before();
    waits_that_end_without_an_ask();
    quiet();
    ends();
    return good();
}
