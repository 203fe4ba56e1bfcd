/* cuda_conditional.h: conditional nodes and their handles. See cuda_conditional.c. */
#ifndef GPUSHARE_SIM_CUDA_CONDITIONAL_H
#define GPUSHARE_SIM_CUDA_CONDITIONAL_H

#include "cuda_graph.h"

/* All of these are called under the lock. */

/* Adds a node with empty bodies, which are returned in the parameters. */
CUresult conditional_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         CUDA_CONDITIONAL_NODE_PARAMS *params);
/* Whether the bodies hold only what a body may. */
CUresult conditional_check(const struct conditional *conditional);
void conditional_end(struct conditional *conditional);
/* The handles of a graph end with it. */
void conditional_handles_end(CUgraph graph);

#endif
