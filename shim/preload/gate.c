/* gate.c: how calls wait at the gate.
 *
 * A gate that no daemon has raised for GS_GATE_MS holds back nobody whose memory is on the GPU. The driver says where
 * it is, also meanwhile. Once it is there, this gate counts as open until a daemon raises it.
 */
#include "gate.h"

#include "credit.h"
#include "moments.h"
#include "system.h"

#define PAUSE_US 1000 /* a kernel without such a futex: then by looking now and then */
#define LOOK_US  200  /* between two looks whether somebody is inside */

static uint32_t open_gate;
static uint32_t disbelieved; /* what a gate said that nobody kept. 0: nothing */

uint32_t *gs_gate = &open_gate;
struct gs_inside gs_inside[GS_INSIDE];

enum gs_passed gs_gate_pass(uint32_t *gate, uint32_t *said) {
    *said = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
    enum gs_passed passed = *said != 0 ? GS_PASSED_LATER : GS_PASSED_OPEN;
    while (*said != 0) {
        long result = gs_futex_wait_shared(gate, *said, GS_GATE_MS);
        uint32_t now = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
        if (now == *said && result == -ETIMEDOUT)
            return GS_PASSED_DESERTED;
        if (now == *said && result != -EINTR)
            gs_sleep_us(PAUSE_US);
        *said = now;
    }
    return passed;
}

/* A driver that cannot say it can suspend nobody. */
static bool is_suspended(void) {
    CUprocessState state = CU_PROCESS_STATE_RUNNING;
    return gs_driver.cuCheckpointProcessGetState((int)GS_CALL(SYS_getpid), &state) == CUDA_SUCCESS &&
           state == CU_PROCESS_STATE_CHECKPOINTED;
}

__attribute__((noinline, cold)) void gs_gate_wait_outside(struct gs_inside *inside) {
    uint32_t *gate = __atomic_load_n(&gs_gate, __ATOMIC_RELAXED);
    for (;;) {
        uint32_t said = __atomic_load_n(gate, __ATOMIC_SEQ_CST);
        if (said == 0 || said == __atomic_load_n(&disbelieved, __ATOMIC_RELAXED))
            return;
        __atomic_fetch_sub(&inside->calls, 1, __ATOMIC_RELEASE);
        if (gs_gate_pass(gate, &said) == GS_PASSED_DESERTED && !is_suspended())
            __atomic_store_n(&disbelieved, said, __ATOMIC_RELAXED);
        __atomic_fetch_add(&inside->calls, 1, __ATOMIC_SEQ_CST);
    }
}

void gs_gate_is(uint32_t *gate) {
    __atomic_store_n(&gs_gate, gate, __ATOMIC_RELEASE);
}

bool gs_gate_is_closed(void) {
    return __atomic_load_n(__atomic_load_n(&gs_gate, __ATOMIC_RELAXED), __ATOMIC_SEQ_CST) != 0;
}

static bool is_quiet(void) {
    for (int i = 0; i < GS_INSIDE; i++)
        if (__atomic_load_n(&gs_inside[i].calls, __ATOMIC_SEQ_CST) != 0)
            return false;
    return true;
}

bool gs_gate_await_quiet(uint64_t until) {
    while (!is_quiet()) {
        if (gs_now_ms() >= until || !gs_gate_is_closed())
            return false;
        gs_sleep_us(LOOK_US);
    }
    return gs_gate_is_closed();
}

/* The child has none of the threads that were inside. */
GS_AT(fork) {
    gs_gate = &open_gate;
    disbelieved = 0;
    for (int i = 0; i < GS_INSIDE; i++)
        gs_inside[i].calls = 0;
}
