/* process.c: fork.
 *
 * A child that goes on without exec has our memory and our descriptors, and nothing of it is its own: the page
 * belongs to the parent, its allocations are the parent's, and any lock may be held by a thread that the child does
 * not have. So the child forgets everything, locks included, and is to us a process that has just started. (CUDA
 * itself does not work in it; a driver that does finds us ready.)
 *
 * Registered at the first attach, not by a constructor: most processes with us preloaded never use a GPU.
 */
#include "process.h"

#include <stdint.h>

#include "account.h"
#include "block.h"
#include "charge.h"
#include "client.h"
#include "copies.h"
#include "device.h"
#include "hooks.h"
#include "loader.h"
#include "message.h"
#include "pool.h"
#include "python.h"
#include "stream.h"
#include "trim.h"

static void forget(void) {
    gs_client_forget();
    gs_account_forget();
    gs_device_forget();
    gs_charge_forget();
    gs_context_forget();
    gs_pool_forget();
    gs_graph_forget();
    gs_block_forget();
    gs_array_forget();
    gs_stream_forget();
    gs_limit_forget();
    gs_trim_forget();
    gs_python_forget();
    gs_copies_forget();
    gs_message_forget();
}

void gs_process_prepare(void) {
    static uint32_t prepared;
    if (__atomic_exchange_n(&prepared, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    gs_account_may_borrow = gs_trim_start;
    gs_real_atfork(forget);
}
