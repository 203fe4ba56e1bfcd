/* graph_pool.h: what is charged for the memory of graphs.
 *
 * Each GPU has one graph pool. It takes physical memory when a graph is uploaded or launched, and keeps it until it is
 * trimmed. So the pool is charged, not the graph: the charge is the number of bytes that the driver has reserved for
 * the pool. The driver tells this number. A pool has three counts:
 *
 *   charged  how much credit is used for the pool
 *   pending  what a thread is about to add to charged
 *   needed   what the uploads and launches that are under way may take
 *
 * A launch first uses the pool's unused memory. Credit for the rest is reserved before the driver is called, in steps
 * in which the pool grows; afterwards the driver's number is charged.
 *
 * NVIDIA's driver counts memory with which a graph has run as used as long as the executable graph is there. So a graph
 * that runs again seems to need as much once more. Its memory is still there if nothing was trimmed since, and if the
 * pool has enough for all graphs that have run since: else they share some, and another may have it just now.
 */
#ifndef GPUSHARE_PRELOAD_GRAPH_POOL_H
#define GPUSHARE_PRELOAD_GRAPH_POOL_H

#include "device.h"

/* An upload or a launch on one GPU. */
struct gs_graph_launch {
    struct gs_gpu *gpu;
    uint32_t need;
    bool frees_first; /* it begins with freeing what the last one left */
    uint32_t *holds;  /* of the executable graph, and changed by these functions only; 0: it has not run yet */
    uint32_t have;    /* credit reserved for it */
    uint32_t counted; /* of its need, in the pool's */
};

/* Call before it. Reserves the credit that it lacks. false: refused, and the user has been told. */
bool gs_graph_pool_enter(struct gs_graph_launch *launch);

/* Call after it. `good`: the driver has done it. */
void gs_graph_pool_leave(struct gs_graph_launch *launch, bool good);

/* The executable graph is gone. */
void gs_graph_pool_gone(struct gs_gpu *gpu, uint32_t need, uint32_t *holds);

/* Charges what the driver says. Returns the units that are not charged because the credit does not suffice. */
uint32_t gs_graph_pool_correct(struct gs_gpu *gpu);

#endif
