/* cuda_exec.h: executable graphs. See cuda_exec.c. */
#ifndef GPUSHARE_SIM_CUDA_EXEC_H
#define GPUSHARE_SIM_CUDA_EXEC_H

#include "cuda_graph.h"

/* All of these are called under the lock. */

/* The graph that an executable one was made of is gone. */
void exec_orphan(CUgraph graph);
/* Changes what one node does in the executable graph alone. */
CUresult exec_set(CUgraphExec exec, CUgraphNode node, const struct operation *operation);

#endif
