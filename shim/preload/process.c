/* process.c: fork.
 *
 * A child that goes on without exec has our memory and our descriptors, and nothing of it is its own: the page
 * belongs to the parent, its allocations are the parent's, and any lock may be held by a thread that the child does
 * not have. So each module forgets its state in the child, locks included, and the child is to us a process that has
 * just started. (CUDA itself does not work in it; a driver that does finds us ready.)
 *
 * Registered at the first attach, not by a constructor: most processes with us preloaded never use a GPU.
 */
#include "process.h"

#include <stdint.h>

#include "loader.h"

static void forget(void) {
    GS_RUN(fork);
}

void gs_process_prepare(void) {
    static uint32_t prepared;
    if (__atomic_exchange_n(&prepared, 1, __ATOMIC_ACQ_REL) == 0)
        gs_real_atfork(forget);
}
