/* part_trim.c: what a trim has given back, on a clock that the program sets, over pools that it plays. */
#include "part_bank.h"

static uint64_t clock_ms = 5000;
static uint64_t slept_us;
static uint32_t sleeps, waits, wakes;
static uint32_t *waited_on;
static uint64_t waited_ms;
static void (*meanwhile)(void); /* while it sleeps or waits */

static uint64_t now_of_test(void) {
    return clock_ms;
}

static void sleep_of_test(uint64_t microseconds) {
    sleeps++;
    slept_us += microseconds;
    clock_ms += microseconds / 1000;
    if (meanwhile != NULL)
        meanwhile();
}

static void wait_of_test(uint32_t *word, uint32_t value, uint64_t milliseconds) {
    REQUIRE(*word == value && value != 0);
    waits++;
    waited_on = word;
    waited_ms = milliseconds;
    clock_ms += milliseconds;
    if (meanwhile != NULL)
        meanwhile();
}

static void wake_of_test(uint32_t *word, int waiters) {
    REQUIRE(word == waited_on && waiters == INT_MAX);
    wakes++;
}

#define gs_now_ms()                    now_of_test()
#define gs_sleep_us(microseconds)      sleep_of_test(microseconds)
#define gs_futex_wait(word, value, ms) wait_of_test(word, value, ms)
#define gs_futex_wake(word, waiters)   wake_of_test(word, waiters)

#include "stream.h"

static int captures; /* so many looks find a stream captured; -1: all */

static bool underway_of_test(void) {
    captures -= captures > 0;
    return captures != 0;
}

#define gs_capture_is_underway() underway_of_test()

#include "trim.c"

static bool has_context = true;
static uint32_t entered, left, gives, inside;
static struct gs_gpu *given_of;
static uint32_t at_once; /* units that the pools give back each time */

bool gs_context_enter(const struct gs_gpu *gpu, bool *primary) {
    REQUIRE(gpu == &gs_gpus[0] || gpu == &gs_gpus[1]);
    *primary = false;
    entered += has_context;
    return has_context;
}

static CUresult set_current(CUcontext context) {
    REQUIRE(context == NULL && entered == left + 1);
    left++;
    return CUDA_SUCCESS;
}

static void squeeze(struct gs_gpu *gpu, bool all) {
    REQUIRE(all && trim.acting == 1);
    inside += entered == left + 1;
    gives++;
    given_of = gpu;
    uint32_t used = gs_word_used(gs_word_load(gpu->line));
    gs_release(gpu->line, at_once < used ? at_once : used);
}

static void use(int gpu, uint32_t units) {
    uint32_t used = used_on(gpu);
    if (units > used) {
        gs_grant(&lines[gpu], units);
        REQUIRE(gs_reserve(&lines[gpu], units - used));
    } else
        gs_release(&lines[gpu], used - units);
}

static void begin(uint32_t first, uint32_t second, uint64_t within) {
    lines[0].trim_units = first;
    lines[1].trim_units = second;
    gs_trim_begin(clock_ms + within);
    entered = left = gives = inside = sleeps = waits = wakes = 0;
    slept_us = 0;
}

/* It is enough when each GPU has given what was wanted of it. It does not matter which thread freed it. */
static void how_much(void) {
    use(0, 1000);
    use(1, 500);
    begin(100, 50, 1000);
    REQUIRE(!gs_trim_is_enough());
    use(0, 900);
    REQUIRE(!gs_trim_is_enough());
    use(1, 451);
    REQUIRE(!gs_trim_is_enough());
    use(1, 450);
    REQUIRE(gs_trim_is_enough());
    use(0, 901); /* the program goes on allocating */
    REQUIRE(!gs_trim_is_enough());
    use(0, 1200); /* and may have more than before: then nothing was given */
    REQUIRE(!gs_trim_is_enough());
    lines[0].trimmed = 5;
    lines[1].trimmed = 7;
    gs_trim_end();
    REQUIRE(lines[0].trimmed == 5 && lines[1].trimmed == 7 + 50 && gs_trim_left_ms() == 0);
    begin(0, 10, 1000);
    use(0, 100);
    use(1, 400);
    REQUIRE(gs_trim_is_enough());
    gs_trim_end(); /* of the first nothing was wanted: it is not counted there */
    REQUIRE(lines[0].trimmed == 5 && lines[1].trimmed == 57 + 50);
    begin(0, 0, 1000);
    REQUIRE(gs_trim_is_enough());
    gs_trim_end();
    begin(100, 0, 1000);
    use(0, 60);
    gs_trim_end();
    REQUIRE(lines[0].trimmed == 5 + 40);
}

/* A line that is the process's own, and a GPU without one, are nobody else's. */
static void other_lines(void) {
    use(0, 1000);
    use(1, 1000);
    gs_gpus[1].own = true;
    begin(0, 900, 1000);
    REQUIRE(gs_trim_is_enough());
    gs_trim_end();
    gs_gpus[1].own = false;
    gs_gpus[1].line = NULL;
    begin(0, 900, 1000);
    REQUIRE(gs_trim_is_enough());
    gs_trim_end();
    gs_gpus[1].line = &lines[1];
}

static void pools(void) {
    use(0, 1000);
    use(1, 1000);
    begin(100, 0, 1000);
    at_once = 100;
    gs_trim_pools(); /* once is enough, and only where it is wanted */
    REQUIRE(gives == 1 && given_of == &gs_gpus[0] && used_on(0) == 900 && used_on(1) == 1000);
    REQUIRE(entered == 1 && left == 1 && inside == 1 && sleeps == 0 && trim.acting == 0);
    gs_trim_pools();
    REQUIRE(gives == 1 && entered == 1); /* no more is wanted */
    gs_trim_end();
    begin(100, 250, 1000);
    gs_trim_pools(); /* up to three rounds, with a pause before the second and the third */
    REQUIRE(gives == 4 && inside == 4 && used_on(0) == 800 && used_on(1) == 700 && sleeps == 2 &&
            slept_us == 2 * ROUND_US);
    gs_trim_end();
    begin(1000, 0, 1000);
    at_once = 1;
    has_context = false; /* without a context it is tried all the same */
    gs_trim_pools();
    REQUIRE(gives == 3 && used_on(0) == 797 && entered == 0 && left == 0 && sleeps == 2);
    gs_trim_end();
    has_context = true;
}

/* What Python's caches are asked for: what is wanted still, after the pools have given what they have by now. */
static void wanted(void) {
    use(0, 1000);
    use(1, 1000);
    begin(100, 0, 50);
    at_once = 30;
    REQUIRE(gs_trim_left_ms() == 50 && gs_trim_wanted(0) == 70ull * GS_UNIT_BYTES && gives == 1 && inside == 0);
    REQUIRE(gs_trim_wanted(1) == 0 && gives == 1);
    clock_ms += 49;
    REQUIRE(gs_trim_left_ms() == 1 && gs_trim_wanted(0) == 40ull * GS_UNIT_BYTES);
    clock_ms += 1;
    REQUIRE(gs_trim_left_ms() == 0 && gs_trim_wanted(0) == 0 && gives == 2); /* it is over */
    clock_ms += 1;
    REQUIRE(gs_trim_left_ms() == 0);
    gs_trim_end();
    REQUIRE(gs_trim_left_ms() == 0 && gs_trim_wanted(0) == 0);
}

/* A trim waits for a stream that is captured: it pauses between two looks, and gives up in the end. */
static void captured(void) {
    begin(100, 0, 100);
    captures = 0;
    REQUIRE(gs_trim_captures_end(clock_ms) && sleeps == 0);
    captures = 6;
    REQUIRE(gs_trim_captures_end(clock_ms + 50) && sleeps == 5 && slept_us == 5 * CAPTURE_US);
    captures = -1;
    uint64_t began = clock_ms;
    REQUIRE(!gs_trim_captures_end(clock_ms + 50) && clock_ms - began == 50);
    sleeps = 0;
    REQUIRE(!gs_trim_captures_end(clock_ms) && sleeps == 0);
    began = clock_ms;
    trim.until = clock_ms + 20;
    REQUIRE(!gs_trim_await_captures() && clock_ms - began == 20);
    captures = 0;
    REQUIRE(gs_trim_await_captures());
    gs_trim_end();
}

static void the_call_ends(void) {
    if (waits == 2)
        trim.acting = 0;
    clock_ms -= waited_ms; /* it is woken early */
    clock_ms += 10;
}

/* The end of the program waits for a call in the driver, for a short time, and no other begins. */
static void the_end(void) {
    REQUIRE(!gs_trim_is_stopped() && gs_trim_enter() && gs_trim_enter() && trim.acting == 2);
    gs_trim_leave();
    gs_trim_leave();
    REQUIRE(trim.acting == 0 && wakes == 0);
    use(0, 1000);
    begin(100, 0, 100);
    at_once = 10;
    uint64_t began = clock_ms;
    REQUIRE(gs_trim_enter());
    gs_trim_stop(clock_ms + 200);
    REQUIRE(waits == 1 && waited_on == &trim.acting && waited_ms == 200 && clock_ms - began == 200);
    REQUIRE(gs_trim_is_stopped());
    gs_trim_leave();
    REQUIRE(wakes == 1 && trim.acting == 0);
    gs_trim_pools();
    REQUIRE(gives == 0 && trim.acting == 0 && used_on(0) == 1000); /* the driver may be gone */
    REQUIRE(!gs_trim_enter() && trim.acting == 1 && !gs_trim_enter());
    wakes = 0;
    gs_trim_leave();
    REQUIRE(wakes == 0);
    gs_trim_leave();
    REQUIRE(wakes == 1);
    began = clock_ms;
    gs_trim_stop(clock_ms + 200);
    REQUIRE(clock_ms == began && waits == 1); /* nobody is in the driver */
    trim.acting = 1;
    waits = 0;
    meanwhile = the_call_ends;
    gs_trim_stop(clock_ms + 200);
    REQUIRE(waits == 2 && waited_ms == 190);
    trim.acting = 1;
    waits = 0;
    gs_trim_stop(clock_ms);
    REQUIRE(waits == 0);
    meanwhile = NULL;
    at_fork();
    REQUIRE(!gs_trim_is_stopped() && trim.acting == 0 && trim.until == 0 && trim.wanted[0] == 0 && trim.before[0] == 0);
}

int main(void) {
    open_bank();
    gs_driver.cuCtxSetCurrent = set_current;
    gs_account_squeeze[GS_SQUEEZE_POOLS] = squeeze;
    how_much();
    other_lines();
    pools();
    wanted();
    captured();
    the_end();
    return good();
}
