/* cuda_conditional.c: conditional nodes: structure without execution.
 *
 * The condition is a number that kernels set. No kernel runs here, so no body ever does, whatever the default value
 * says: a loop whose kernel would have ended it would not end. Handles, bodies and what may be in them are kept
 * and checked as on a GPU.
 */
#define _GNU_SOURCE
#include "cuda_conditional.h"

#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"

#include <stdlib.h>

struct handle {
    CUgraphConditionalHandle number;
    CUgraph graph;
    CUcontext context;
    bool taken; /* by a node */
    struct handle *next;
};

static struct handle *handles;
static uint64_t last_number;

static CUresult create(CUgraphConditionalHandle *number, CUgraph graph, CUcontext context, unsigned int flags) {
    CUresult result = context == NULL ? context_current(&context) : context_check(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (number == NULL || !handle_is(graph, HANDLE_GRAPH) || (flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct handle *handle = malloc(sizeof *handle);
    if (handle == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (struct handle){++last_number, graph, context, false, handles};
    handles = handle;
    *number = handle->number;
    return CUDA_SUCCESS;
}

API(cuGraphConditionalHandleCreate,
    (CUgraphConditionalHandle * handle, CUgraph graph, CUcontext context, unsigned int value, unsigned int flags),
    ((void)value, LOCKED(create(handle, graph, context, flags))))

void conditional_handles_end(CUgraph graph) {
    for (struct handle **place = &handles, *handle; (handle = *place) != NULL;) {
        if (handle->graph == graph) {
            *place = handle->next;
            free(handle);
        } else {
            place = &handle->next;
        }
    }
}

static bool is_size(CUgraphConditionalNodeType type, unsigned int size) {
    switch (type) {
    case CU_GRAPH_COND_TYPE_IF:
        return size == 1 || size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return size > 0;
    default:
        return false;
    }
}

/* A handle of this graph, or of one that it is in. */
static struct handle *find(CUgraphConditionalHandle number, CUgraph graph) {
    for (struct handle *handle = handles; handle != NULL; handle = handle->next) {
        for (CUgraph at = graph; handle->number == number && at != NULL; at = at->parent) {
            if (handle->graph == at) {
                return handle;
            }
        }
    }
    return NULL;
}

static struct conditional *make(const CUDA_CONDITIONAL_NODE_PARAMS *params, CUgraph graph) {
    struct conditional *conditional = calloc(1, sizeof *conditional);
    CUgraph *bodies = conditional == NULL ? NULL : calloc(params->size, sizeof *bodies);
    if (bodies == NULL) {
        free(conditional);
        return NULL;
    }
    conditional->params = *params;
    conditional->params.phGraph_out = bodies;
    for (unsigned int index = 0; index < params->size; index++) {
        bodies[index] = graph_new();
        if (bodies[index] == NULL) {
            conditional_end(conditional);
            return NULL;
        }
        bodies[index]->parent = graph;
    }
    return conditional;
}

CUresult conditional_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         CUDA_CONDITIONAL_NODE_PARAMS *params) {
    if (node == NULL || !handle_is(graph, HANDLE_GRAPH) || !is_size(params->type, params->size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct handle *handle = find(params->handle, graph);
    if (handle == NULL || handle->taken || (params->ctx != NULL && params->ctx != handle->context)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = make(params, graph)};
    if (operation.conditional == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = graph_add(graph, &operation, dependencies, count, node);
    if (result != CUDA_SUCCESS) {
        conditional_end(operation.conditional);
        return result;
    }
    handle->taken = true;
    params->phGraph_out = operation.conditional->params.phGraph_out;
    return CUDA_SUCCESS;
}

void conditional_end(struct conditional *conditional) {
    for (unsigned int index = 0; index < conditional->params.size; index++) {
        if (conditional->params.phGraph_out[index] != NULL) {
            graph_end(conditional->params.phGraph_out[index]);
        }
    }
    free(conditional->params.phGraph_out);
    free(conditional);
}

static CUresult check_node(CUgraphNode node, void *unused) {
    (void)unused;
    switch (node->operation.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return graph_walk(node->operation.child, check_node, NULL);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return conditional_check(node->operation.conditional);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult conditional_check(const struct conditional *conditional) {
    CUresult result = CUDA_SUCCESS;
    for (unsigned int index = 0; index < conditional->params.size && result == CUDA_SUCCESS; index++) {
        result = graph_walk(conditional->params.phGraph_out[index], check_node, NULL);
    }
    return result;
}
