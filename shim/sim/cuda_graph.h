/* cuda_graph.h: graphs, their nodes, and what a node does. See cuda_graph.c. */
#ifndef GPUSHARE_SIM_CUDA_GRAPH_H
#define GPUSHARE_SIM_CUDA_GRAPH_H

#include "cuda_abi.h"
#include "cuda_graphmem.h"
#include "cuda_semaphore.h"
#include "cuda_userobject.h"

/* What a conditional node chooses from. Kernels set the condition, so here no body is ever run. */
struct conditional {
    CUDA_CONDITIONAL_NODE_PARAMS params; /* phGraph_out: `size` graphs that are the node's own */
};

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
        CUevent event;                      /* of event nodes */
        struct semaphore_batch *semaphores; /* of external semaphore nodes */
        struct conditional *conditional;    /* the node's own; an executable graph only knows that it is there */
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
    CUgraph parent;        /* of a child node's graph, and of a conditional node's */
    CUgraph original;      /* of a clone; only compared */
    CUgraphExec instance;  /* of a graph with memory or conditional nodes, which may have only one */
    bool memory;           /* has memory nodes */
    bool conditional;      /* has conditional nodes */
    struct user_references references;
};

/* All of these are called under the lock. */

bool node_set_has(const struct node_set *set, CUgraphNode node);
bool node_set_add(struct node_set *set, CUgraphNode node);
bool node_set_copy(struct node_set *set, const struct node_set *from);
void node_set_clear(struct node_set *set);

/* What an operation refers to and others may share: counted. */
void operation_use(const struct operation *operation);
void operation_drop(const struct operation *operation);

CUgraph graph_new(void);
void graph_end(CUgraph graph);
/* Adds a node that does this; the operation's memory or child is the node's own from then on. */
CUresult graph_add(CUgraph graph, const struct operation *operation, const CUgraphNode *dependencies, size_t count,
                   CUgraphNode *node);
/* Calls `visit` for all nodes, each after those that it depends on. An invalid structure: CUDA_ERROR_INVALID_VALUE. */
CUresult graph_walk(CUgraph graph, CUresult (*visit)(CUgraphNode node, void *data), void *data);
CUresult graph_clone(CUgraph graph, CUgraph *clone);

#endif
