/* part_gate.c: the gate by itself: who waits outside, who is counted inside, and a gate that no daemon keeps. */
#include <pthread.h>

static unsigned long clock_ms = 5000;
static int sleeps;

static unsigned long now_of_test(void) {
    return clock_ms;
}

static void sleep_of_test(unsigned long microseconds);
static long wait_of_test(unsigned *word, unsigned value, unsigned long milliseconds);

#include "part.h"

#include "system.h"

#define gs_now_ms()                           now_of_test()
#define gs_sleep_us(microseconds)             sleep_of_test(microseconds)
#define gs_futex_wait_shared(word, value, ms) wait_of_test(word, value, ms)

#include "gate.c"

struct gs_driver gs_driver;
enum gs_mode gs_mode = GS_ON;

bool gs_wake(const void *witness, bool open) {
    (void)witness, (void)open;
    return false;
}

static uint32_t gate;
static int inside_while_waiting = -1;

static int inside(void) {
    int count = 0;
    for (int i = 0; i < GS_INSIDE; i++)
        count += (int)gs_inside[i].calls;
    return count;
}

/* What the waits at the gate find, one after the other: what it then says, and how the wait ends. */
static struct {
    uint32_t then;
    long result;
} found[8];
static int waits, script;

static long wait_of_test(unsigned *word, unsigned value, unsigned long milliseconds) {
    REQUIRE(word == &gate && value == gate && milliseconds == GS_GATE_MS && waits < script);
    inside_while_waiting = inside();
    gate = found[waits].then;
    return found[waits++].result;
}

static void script_is(int count) {
    waits = sleeps = 0;
    script = count;
}

static void step(int i, uint32_t then, long result) {
    found[i].then = then;
    found[i].result = result;
}

static void passes(void) {
    uint32_t said;
    gate = 0;
    script_is(0);
    REQUIRE(gs_gate_pass(&gate, &said) == GS_PASSED_OPEN);
    gate = 7; /* it is raised twice, then opened; a wait that was interrupted looks again */
    step(0, 8, 0);
    step(1, 8, -EINTR);
    step(2, 9, -EAGAIN);
    step(3, 0, 0);
    script_is(4);
    REQUIRE(gs_gate_pass(&gate, &said) == GS_PASSED_LATER && waits == 4 && said == 0 && sleeps == 0);
    gate = 7;
    step(0, 7, -ENOSYS); /* a kernel without such a futex */
    step(1, 0, 0);
    script_is(2);
    REQUIRE(gs_gate_pass(&gate, &said) == GS_PASSED_LATER && sleeps == 1);
    gate = 7;
    step(0, 8, -ETIMEDOUT); /* raised in the last moment */
    step(1, 8, -ETIMEDOUT);
    script_is(2);
    REQUIRE(gs_gate_pass(&gate, &said) == GS_PASSED_DESERTED && said == 8 && waits == 2);
}

static void who_is_inside_is_counted(void) {
    gate = 0;
    gs_gate_is(&gate);
    script_is(0);
    struct gs_inside *one = gs_gate_enter();
    REQUIRE(one != NULL && inside() == 1);
    struct gs_inside *two = gs_gate_enter();
    REQUIRE(inside() == 2);
    REQUIRE(gs_gate_leave(two, CUDA_ERROR_NOT_READY) == CUDA_ERROR_NOT_READY && inside() == 1);
    REQUIRE(gs_gate_leave(one, CUDA_SUCCESS) == CUDA_SUCCESS && inside() == 0);
    gs_mode = GS_INERT; /* a program without a budget */
    gate = 3;
    REQUIRE(gs_gate_enter() == NULL && inside() == 0 && gs_gate_leave(NULL, CUDA_SUCCESS) == CUDA_SUCCESS);
    gs_mode = GS_ON;
}

static void who_waits_is_outside(void) {
    gate = 3;
    step(0, 4, 0);
    step(1, 0, 0);
    script_is(2);
    struct gs_inside *one = gs_gate_enter();
    REQUIRE(waits == 2 && inside_while_waiting == 0 && inside() == 1);
    gs_gate_leave(one, CUDA_SUCCESS);
}

/* ---- quiet ---------------------------------------------------------------------------------------- */

static struct gs_inside *leaves; /* at the next sleep */
static bool opens;

static void sleep_of_test(unsigned long microseconds) {
    sleeps++;
    clock_ms += microseconds < 1000 ? 1 : microseconds / 1000;
    if (leaves != NULL && sleeps == 3)
        gs_gate_leave(leaves, CUDA_SUCCESS);
    if (opens && sleeps == 3)
        gate = 0;
}

static void quiet(void) {
    script_is(0);
    gate = 0;
    REQUIRE(!gs_gate_is_closed() && !gs_gate_await_quiet(clock_ms + 10)); /* somebody may come in at any time */
    gate = 5;
    REQUIRE(gs_gate_is_closed() && gs_gate_await_quiet(clock_ms + 10) && sleeps == 0);
    gate = 0;
    leaves = gs_gate_enter();
    gate = 5;
    REQUIRE(gs_gate_await_quiet(clock_ms + 10) && sleeps == 3 && inside() == 0);
    leaves = NULL;
    gate = 0;
    struct gs_inside *stays = gs_gate_enter();
    gate = 5;
    uint64_t until = clock_ms + 10;
    REQUIRE(!gs_gate_await_quiet(until) && clock_ms == until);
    opens = true; /* it is not wanted any more */
    sleeps = 0;
    REQUIRE(!gs_gate_await_quiet(clock_ms + 100) && sleeps == 3);
    opens = false;
    gs_gate_leave(stays, CUDA_SUCCESS);
}

/* ---- no daemon ------------------------------------------------------------------------------------ */

static int asked, away_for;

static CUresult state_of(int pid, CUprocessState *state) {
    REQUIRE(pid == (int)GS_CALL(SYS_getpid));
    *state = asked++ < away_for ? CU_PROCESS_STATE_CHECKPOINTED : CU_PROCESS_STATE_RUNNING;
    return CUDA_SUCCESS;
}

static CUresult cannot_say(int pid, CUprocessState *state) {
    (void)pid, (void)state;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void a_gate_that_nobody_keeps(void) {
    gs_driver.cuCheckpointProcessGetState = state_of;
    away_for = 2;
    gate = 11;
    for (int i = 0; i < 3; i++)
        step(i, 11, -ETIMEDOUT);
    script_is(3);
    gs_gate_leave(gs_gate_enter(), CUDA_SUCCESS);
    REQUIRE(waits == 3 && asked == 3 && inside_while_waiting == 0); /* it waits as long as the memory is away */
    gs_gate_leave(gs_gate_enter(), CUDA_SUCCESS);
    REQUIRE(waits == 3); /* what nobody keeps holds nobody back again */
    gate = 12;           /* a daemon lives */
    step(0, 0, 0);
    script_is(1);
    gs_gate_leave(gs_gate_enter(), CUDA_SUCCESS);
    REQUIRE(waits == 1);
    gs_driver.cuCheckpointProcessGetState = cannot_say;
    gate = 13;
    step(0, 13, -ETIMEDOUT);
    script_is(1);
    gs_gate_leave(gs_gate_enter(), CUDA_SUCCESS);
    REQUIRE(waits == 1); /* an old driver has suspended nobody */
}

static void a_child(void) {
    gate = 0;
    gs_gate_enter();
    for (int i = 0; i < GS_INSIDE; i++)
        gs_inside[i].calls = 1;
    gate = 5;
    disbelieved = 5;
    at_fork();
    REQUIRE(inside() == 0 && !gs_gate_is_closed()); /* it has no thread that was inside, and no page */
    for (int i = 0; i < GS_INSIDE; i++)
        REQUIRE(gs_inside[i].calls == 0);
    gs_gate_is(&gate);
    step(0, 0, 0);
    script_is(1);
    gs_gate_leave(gs_gate_enter(), CUDA_SUCCESS);
    REQUIRE(waits == 1); /* it believes its own daemon */
}

int main(void) {
    passes();
    who_is_inside_is_counted();
    who_waits_is_outside();
    quiet();
    a_gate_that_nobody_keeps();
    a_child();
    return good();
}
