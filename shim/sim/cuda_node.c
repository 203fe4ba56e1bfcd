/* cuda_node.c: nodes of each kind: adding them, reading and changing what they do. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_conditional.h"
#include "cuda_exec.h"
#include "cuda_graph.h"
#include "cuda_handle.h"
#include "cuda_module.h"

/* A kernel's arguments are not kept: no kernel runs. */
static CUresult from_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct operation *operation) {
    CUfunction function;
    CUfunction handle = params->func != NULL ? params->func : (CUfunction)params->kern;
    CUresult result = function_of(handle, &function);
    operation->type = CU_GRAPH_NODE_TYPE_KERNEL;
    operation->kernel = *params;
    operation->kernel.kernelParams = operation->kernel.extra = NULL;
    return result;
}

static CUresult from_old_kernel(const CUDA_KERNEL_NODE_PARAMS_v1 *params, struct operation *operation) {
    CUDA_KERNEL_NODE_PARAMS wide = {.func = params->func,
                                    .gridDimX = params->gridDimX,
                                    .gridDimY = params->gridDimY,
                                    .gridDimZ = params->gridDimZ,
                                    .blockDimX = params->blockDimX,
                                    .blockDimY = params->blockDimY,
                                    .blockDimZ = params->blockDimZ,
                                    .sharedMemBytes = params->sharedMemBytes};
    return from_kernel(&wide, operation);
}

static CUresult from_copy(const CUDA_MEMCPY3D *params, struct operation *operation) {
    operation->type = CU_GRAPH_NODE_TYPE_MEMCPY;
    operation->copy = *params;
    return params->srcLOD != 0 || params->dstLOD != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult from_fill(const CUDA_MEMSET_NODE_PARAMS *params, struct operation *operation) {
    operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
    operation->fill = *params;
    bool good = params->elementSize == 1 || params->elementSize == 2 || params->elementSize == 4;
    return good && params->width > 0 && params->height > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult from_host(const CUDA_HOST_NODE_PARAMS *params, struct operation *operation) {
    operation->type = CU_GRAPH_NODE_TYPE_HOST;
    operation->host = *params;
    return params->fn != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult from_event(CUgraphNodeType type, CUevent event, struct operation *operation) {
    operation->type = type;
    operation->event = event;
    return handle_is(event, HANDLE_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult from_record(const CUDA_EVENT_RECORD_NODE_PARAMS *params, struct operation *operation) {
    return from_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, params->event, operation);
}

static CUresult from_wait(const CUDA_EVENT_WAIT_NODE_PARAMS *params, struct operation *operation) {
    return from_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, params->event, operation);
}

static CUresult from_signals(const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params, struct operation *operation) {
    operation->type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL;
    return semaphore_batch_new(params->extSemArray, params->paramsArray, NULL, params->numExtSems,
                               &operation->semaphores);
}

static CUresult from_waits(const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params, struct operation *operation) {
    operation->type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT;
    return semaphore_batch_new(params->extSemArray, NULL, params->paramsArray, params->numExtSems,
                               &operation->semaphores);
}

static CUresult from_wide_fill(const CUDA_MEMSET_NODE_PARAMS_v2 *params, struct operation *operation) {
    const CUDA_MEMSET_NODE_PARAMS fill = {params->dst,         params->pitch, params->value,
                                          params->elementSize, params->width, params->height};
    return from_fill(&fill, operation);
}

/* Of those kinds that have parameters to set. */
static CUresult from_any(const CUgraphNodeParams *any, struct operation *operation) {
    switch (any->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return from_kernel(&any->kernel, operation);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return from_copy(&any->memcpy.copyParams, operation);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return from_wide_fill(&any->memset, operation);
    case CU_GRAPH_NODE_TYPE_HOST:
        return from_host(&any->host, operation);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return from_record(&any->eventRecord, operation);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return from_wait(&any->eventWait, operation);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
        return from_signals(&any->extSemSignal, operation);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
        return from_waits(&any->extSemWait, operation);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* The operation is the node's from then on, or dropped. */
static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    const struct operation *operation) {
    CUresult result = node == NULL || !handle_is(graph, HANDLE_GRAPH)
                          ? CUDA_ERROR_INVALID_VALUE
                          : graph_add(graph, operation, dependencies, count, node);
    if (result != CUDA_SUCCESS) {
        operation_drop(operation);
    }
    return result;
}

/* Adds what `make` makes of the parameters. */
#define ADD(make)                                                                                                      \
    ({                                                                                                                 \
        struct operation operation_ = {0};                                                                             \
        CUresult made_ = params == NULL ? CUDA_ERROR_INVALID_VALUE : make(params, &operation_);                        \
        made_ != CUDA_SUCCESS ? made_ : add(node, graph, dependencies, count, &operation_);                            \
    })

static CUresult add_child(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                          CUgraph child, CUgraphChildGraphNodeOwnership ownership) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = child};
    bool move = ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    if (node == NULL || !handle_is(graph, HANDLE_GRAPH) || !handle_is(child, HANDLE_GRAPH) || child == graph ||
        (!move && (child->memory || child->conditional)) || (move && child->parent != NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = move ? CUDA_SUCCESS : graph_clone(child, &operation.child);
    if (result == CUDA_SUCCESS) {
        result = graph_add(graph, &operation, dependencies, count, node);
        if (result == CUDA_SUCCESS) {
            operation.child->parent = graph;
        } else if (!move) {
            graph_end(operation.child);
        }
    }
    return result;
}

static CUresult add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                          CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUresult result = params == NULL || node == NULL || !handle_is(graph, HANDLE_GRAPH)
                          ? CUDA_ERROR_INVALID_VALUE
                          : graph_memory_new(params, &operation.memory);
    if (result == CUDA_SUCCESS) {
        result = graph_add(graph, &operation, dependencies, count, node);
        if (result != CUDA_SUCCESS) {
            graph_memory_drop(operation.memory);
            return result;
        }
        params->dptr = operation.memory->params.dptr;
    }
    return result;
}

/* An allocation has one free node, in its own graph or in another. */
static CUresult add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         CUdeviceptr pointer) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = pointer};
    struct graph_memory *memory = graph_memory_at(pointer);
    if (memory == NULL || memory->freed_in == graph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = add(node, graph, dependencies, count, &operation);
    if (result == CUDA_SUCCESS) {
        memory->freed_in = graph;
    }
    return result;
}

/* One function for nodes of all kinds, which says what it made in the parameters. */
static CUresult add_generic(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            CUgraphNodeParams *any) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    if (any == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (any->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return add(node, graph, dependencies, count, &operation);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return conditional_add(node, graph, dependencies, count, &any->conditional);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return add_child(node, graph, dependencies, count, any->graph.graph, any->graph.ownership);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return add_alloc(node, graph, dependencies, count, &any->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return add_free(node, graph, dependencies, count, any->free.dptr);
    default:
        break;
    }
    CUresult result = from_any(any, &operation);
    return result != CUDA_SUCCESS ? result : add(node, graph, dependencies, count, &operation);
}

static CUresult add_empty(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(node, graph, dependencies, count, &operation);
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                          CUgraphNodeType type, CUevent event) {
    struct operation operation = {0};
    CUresult result = from_event(type, event, &operation);
    return result != CUDA_SUCCESS ? result : add(node, graph, dependencies, count, &operation);
}

#define WHERE CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count
API(cuGraphAddKernelNode, (WHERE, const CUDA_KERNEL_NODE_PARAMS_v1 *params), LOCKED(ADD(from_old_kernel)))
API(cuGraphAddKernelNode_v2, (WHERE, const CUDA_KERNEL_NODE_PARAMS *params), LOCKED(ADD(from_kernel)))
API(cuGraphAddMemcpyNode, (WHERE, const CUDA_MEMCPY3D *params, CUcontext context),
    ((void)context, LOCKED(ADD(from_copy))))
API(cuGraphAddMemsetNode, (WHERE, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
    ((void)context, LOCKED(ADD(from_fill))))
API(cuGraphAddHostNode, (WHERE, const CUDA_HOST_NODE_PARAMS *params), LOCKED(ADD(from_host)))
API(cuGraphAddEventRecordNode, (WHERE, CUevent event),
    LOCKED(add_event(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)))
API(cuGraphAddEventWaitNode, (WHERE, CUevent event),
    LOCKED(add_event(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event)))
API(cuGraphAddExternalSemaphoresSignalNode, (WHERE, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params),
    LOCKED(ADD(from_signals)))
API(cuGraphAddExternalSemaphoresWaitNode, (WHERE, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params), LOCKED(ADD(from_waits)))
API(cuGraphAddEmptyNode, (WHERE), LOCKED(add_empty(node, graph, dependencies, count)))
API(cuGraphAddChildGraphNode, (WHERE, CUgraph child),
    LOCKED(add_child(node, graph, dependencies, count, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)))
API(cuGraphAddMemAllocNode, (WHERE, CUDA_MEM_ALLOC_NODE_PARAMS *params),
    LOCKED(add_alloc(node, graph, dependencies, count, params)))
API(cuGraphAddMemFreeNode, (WHERE, CUdeviceptr pointer), LOCKED(add_free(node, graph, dependencies, count, pointer)))
API(cuGraphAddNode, (WHERE, CUgraphNodeParams *params), LOCKED(add_generic(node, graph, dependencies, count, params)))
API(cuGraphAddNode_v2,
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
     CUgraphNodeParams *params),
    ((void)edges, LOCKED(add_generic(node, graph, dependencies, count, params))))

/* ---- what a node does ----------------------------------------------------------------------------- */

static struct operation *operation_of(CUgraphNode node, CUgraphNodeType type) {
    return handle_is(node, HANDLE_NODE) && node->operation.type == type ? &node->operation : NULL;
}

#define GET(type, value)                                                                                               \
    ({                                                                                                                 \
        const struct operation *operation_ = params == NULL ? NULL : operation_of(node, type);                         \
        if (operation_ != NULL) {                                                                                      \
            *params = operation_->value;                                                                               \
        }                                                                                                              \
        operation_ == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;                                                  \
    })

static CUresult get_old_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    const struct operation *operation = params == NULL ? NULL : operation_of(node, CU_GRAPH_NODE_TYPE_KERNEL);
    if (operation == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_KERNEL_NODE_PARAMS *kernel = &operation->kernel;
    *params = (CUDA_KERNEL_NODE_PARAMS_v1){.func = kernel->func,
                                           .gridDimX = kernel->gridDimX,
                                           .gridDimY = kernel->gridDimY,
                                           .gridDimZ = kernel->gridDimZ,
                                           .blockDimX = kernel->blockDimX,
                                           .blockDimY = kernel->blockDimY,
                                           .blockDimZ = kernel->blockDimZ,
                                           .sharedMemBytes = kernel->sharedMemBytes};
    return CUDA_SUCCESS;
}

API(cuGraphKernelNodeGetParams, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params),
    LOCKED(get_old_kernel(node, params)))
API(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_KERNEL, kernel)))
API(cuGraphMemcpyNodeGetParams, (CUgraphNode node, CUDA_MEMCPY3D *params), LOCKED(GET(CU_GRAPH_NODE_TYPE_MEMCPY, copy)))
API(cuGraphMemsetNodeGetParams, (CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_MEMSET, fill)))
API(cuGraphHostNodeGetParams, (CUgraphNode node, CUDA_HOST_NODE_PARAMS *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_HOST, host)))
API(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_MEM_ALLOC, memory->params)))
API(cuGraphMemFreeNodeGetParams, (CUgraphNode node, CUdeviceptr *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_MEM_FREE, freed)))
API(cuGraphEventRecordNodeGetEvent, (CUgraphNode node, CUevent *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)))
API(cuGraphEventWaitNodeGetEvent, (CUgraphNode node, CUevent *params),
    LOCKED(GET(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event)))
/* The arrays are the node's own, until it is changed or destroyed. */
#define BATCH(type, ...)                                                                                               \
    ({                                                                                                                 \
        const struct operation *operation_ = params == NULL ? NULL : operation_of(node, type);                         \
        if (operation_ != NULL) {                                                                                      \
            struct semaphore_batch *batch = operation_->semaphores;                                                    \
            *params = (__typeof__(*params)){batch->semaphores, __VA_ARGS__, batch->count};                             \
        }                                                                                                              \
        operation_ == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;                                                  \
    })
API(cuGraphExternalSemaphoresSignalNodeGetParams, (CUgraphNode node, CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params),
    LOCKED(BATCH(CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, batch->signals)))
API(cuGraphExternalSemaphoresWaitNodeGetParams, (CUgraphNode node, CUDA_EXT_SEM_WAIT_NODE_PARAMS *params),
    LOCKED(BATCH(CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, batch->waits)))
API(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *params), LOCKED(GET(CU_GRAPH_NODE_TYPE_GRAPH, child)))

/* Sets what a node does, or what it does in an executable graph alone. The kind stays. The operation is the node's
 * from then on, or dropped. */
static CUresult set(CUgraphExec exec, CUgraphNode node, const struct operation *operation) {
    struct operation *place = operation_of(node, operation->type);
    CUresult result = place == NULL  ? CUDA_ERROR_INVALID_VALUE
                      : exec != NULL ? exec_set(exec, node, operation)
                                     : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        operation_drop(operation);
    } else if (exec == NULL) {
        operation_drop(place);
        *place = *operation;
    }
    return result;
}

static CUresult set_event(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUevent event) {
    struct operation operation = {0};
    CUresult result = from_event(type, event, &operation);
    return result != CUDA_SUCCESS ? result : set(exec, node, &operation);
}

#define SET(exec, make)                                                                                                \
    ({                                                                                                                 \
        struct operation operation_ = {0};                                                                             \
        CUresult made_ = params == NULL ? CUDA_ERROR_INVALID_VALUE : make(params, &operation_);                        \
        made_ != CUDA_SUCCESS ? made_ : set(exec, node, &operation_);                                                  \
    })

API(cuGraphKernelNodeSetParams, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params),
    LOCKED(SET(NULL, from_old_kernel)))
API(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params),
    LOCKED(SET(NULL, from_kernel)))
API(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const CUDA_MEMCPY3D *params), LOCKED(SET(NULL, from_copy)))
API(cuGraphMemsetNodeSetParams, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params), LOCKED(SET(NULL, from_fill)))
API(cuGraphHostNodeSetParams, (CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params), LOCKED(SET(NULL, from_host)))

API(cuGraphEventRecordNodeSetEvent, (CUgraphNode node, CUevent event),
    LOCKED(set_event(NULL, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)))
API(cuGraphEventWaitNodeSetEvent, (CUgraphNode node, CUevent event),
    LOCKED(set_event(NULL, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event)))
API(cuGraphExternalSemaphoresSignalNodeSetParams, (CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params),
    LOCKED(SET(NULL, from_signals)))
API(cuGraphExternalSemaphoresWaitNodeSetParams, (CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params),
    LOCKED(SET(NULL, from_waits)))
API(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *params), LOCKED(SET(NULL, from_any)))

#define IN(exec, ...) (exec) == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(__VA_ARGS__)
API(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params),
    IN(exec, SET(exec, from_old_kernel)))
API(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params),
    IN(exec, SET(exec, from_kernel)))
API(cuGraphExecMemcpyNodeSetParams,
    (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context),
    ((void)context, IN(exec, SET(exec, from_copy))))
API(cuGraphExecMemsetNodeSetParams,
    (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
    ((void)context, IN(exec, SET(exec, from_fill))))
API(cuGraphExecHostNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params),
    IN(exec, SET(exec, from_host)))
API(cuGraphExecEventRecordNodeSetEvent, (CUgraphExec exec, CUgraphNode node, CUevent event),
    IN(exec, set_event(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)))
API(cuGraphExecEventWaitNodeSetEvent, (CUgraphExec exec, CUgraphNode node, CUevent event),
    IN(exec, set_event(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event)))
API(cuGraphExecExternalSemaphoresSignalNodeSetParams,
    (CUgraphExec exec, CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params),
    IN(exec, SET(exec, from_signals)))
API(cuGraphExecExternalSemaphoresWaitNodeSetParams,
    (CUgraphExec exec, CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params), IN(exec, SET(exec, from_waits)))
API(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params),
    IN(exec, SET(exec, from_any)))
