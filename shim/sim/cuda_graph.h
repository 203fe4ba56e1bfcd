/* cuda_graph.h: graphs, their nodes, and what a node does. See cuda_graph.c. */
#ifndef GPUSHARE_SIM_CUDA_GRAPH_H
#define GPUSHARE_SIM_CUDA_GRAPH_H

#include "cuda_abi.h"
#include "cuda_graphmem.h"

/* What a node does, as data: it is kept in graphs, compared by updates and run by launches. */
struct operation {
    CUgraphNodeType type;
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_HOST_NODE_PARAMS host;
        CUgraph child;               /* the node's own */
        struct graph_memory *memory; /* of an alloc node */
        CUdeviceptr freed;
    };
};

struct node_set {
    CUgraphNode *nodes;
    size_t count, room;
};

struct CUgraphNode_st {
    CUgraph graph;
    struct operation operation;
    struct node_set dependencies;
    CUgraphNode original; /* of a clone; only compared, never followed */
    size_t place;         /* in its graph's list */
    int mark;             /* of a walk in progress */
};

struct CUgraph_st {
    struct node_set nodes; /* in the order in which they were added */
    CUgraph parent;        /* of a child node's graph */
    CUgraph original;      /* of a clone; only compared */
    CUgraphExec instance;  /* of a graph with memory nodes, which may have only one */
    bool memory;           /* has memory nodes */
};

/* All of these are called under the lock. */

bool node_set_has(const struct node_set *set, CUgraphNode node);
bool node_set_add(struct node_set *set, CUgraphNode node);
bool node_set_copy(struct node_set *set, const struct node_set *from);
void node_set_clear(struct node_set *set);

CUgraph graph_new(void);
void graph_end(CUgraph graph);
/* Adds a node that does this; the operation's memory or child is the node's own from then on. */
CUresult graph_add(CUgraph graph, const struct operation *operation, const CUgraphNode *dependencies, size_t count,
                   CUgraphNode *node);
/* Calls `visit` for all nodes, each after those that it depends on. An invalid structure: CUDA_ERROR_INVALID_VALUE. */
CUresult graph_walk(CUgraph graph, CUresult (*visit)(CUgraphNode node, void *data), void *data);
CUresult graph_clone(CUgraph graph, CUgraph *clone);

#endif
