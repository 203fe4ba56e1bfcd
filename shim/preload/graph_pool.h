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
 * A launch first uses the pool's unused memory. Credit for the rest is reserved before the driver is called; afterwards
 * the driver's number is charged.
 */
#ifndef GPUSHARE_PRELOAD_GRAPH_POOL_H
#define GPUSHARE_PRELOAD_GRAPH_POOL_H

#include "device.h"

/* Call before a launch that may take `need` units. Reserves the credit that it lacks; `have`: how much that is. false:
 * refused, and the user has been told. `frees_first`: the launch first frees what the last one left. */
bool gs_graph_pool_enter(struct gs_gpu *gpu, uint32_t need, bool frees_first, uint32_t *have);

/* Call after the launch, with the same numbers. */
void gs_graph_pool_leave(struct gs_gpu *gpu, uint32_t need, uint32_t have);

/* Charges what the driver says. Returns the units that are not charged because the credit does not suffice. */
uint32_t gs_graph_pool_correct(struct gs_gpu *gpu);

#endif
