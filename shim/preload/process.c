/* process.c: fork.
 *
 * A child without exec has copies of our memory and descriptors, but the page and the allocations are the parent's, and
 * a lock may be held by a thread that the child does not have. So each module forgets its state in the child, locks
 * included: the child starts like a new process. (CUDA does not work in it today.)
 *
 * Registered at the first attach, not by a constructor: most processes with us preloaded never use a GPU.
 */
#include "process.h"

#include <stdbool.h>

#include "loader.h"

static void forget(void) {
    GS_RUN(fork);
}

void gs_process_prepare(void) {
    static bool prepared;
    if (!__atomic_exchange_n(&prepared, true, __ATOMIC_ACQ_REL))
        gs_real_atfork(forget);
}
