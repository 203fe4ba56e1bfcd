/* cuda_graphmem.h: the memory of alloc nodes. See cuda_graphmem.c. */
#ifndef GPUSHARE_SIM_CUDA_GRAPHMEM_H
#define GPUSHARE_SIM_CUDA_GRAPHMEM_H

#include "common_settings.h"
#include "cuda_memory.h"

/* What one alloc node allocates: always the same addresses, with memory behind them only from a launch to the free. */
struct graph_memory {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    struct memory *range;
    CUdevice device;
    uint64_t blocks;
    struct heap_piece **pieces; /* its blocks while it is allocated */
    bool allocated;
    CUgraph freed_in; /* the graph with its free node; only compared */
    int users;        /* the node, executable graphs, and its being allocated */
};

/* Blocks that a launch needs at the same time, per device. */
struct graph_need {
    uint64_t now[SIM_MAX_GPUS], most[SIM_MAX_GPUS];
};

/* All of these are called under the lock. */

CUresult graph_memory_new(const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct graph_memory **memory);
void graph_memory_use(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
struct graph_memory *graph_memory_at(CUdeviceptr pointer);
CUresult graph_memory_allocate(struct graph_memory *memory);
CUresult graph_memory_free(struct graph_memory *memory);
/* Makes sure that the graph pools have the physical memory, and associates it with the executable graph that needs it:
 * `held`, its blocks on each device. */
CUresult graph_memory_prepare(const struct graph_need *need, uint64_t held[SIM_MAX_GPUS]);
/* The executable graph has ended. */
void graph_memory_let_go(uint64_t held[SIM_MAX_GPUS]);

#endif
