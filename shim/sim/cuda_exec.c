/* cuda_exec.c: executable graphs: a graph's nodes in an order in which they may run, and running them.
 *
 * Work is done when it is put into a stream, and so is a graph: a launch runs its nodes one after the other, in the
 * calling thread, with the functions that the stream's own operations use. The physical memory for all alloc nodes is
 * there before the first node runs, so a launch that finds none has done nothing.
 */
#define _GNU_SOURCE
#include "cuda_exec.h"

#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_conditional.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_linear.h"
#include "cuda_operations.h"
#include "cuda_stream.h"

#include <stdlib.h>
#include <string.h>

#define KNOWN_FLAGS                                                                                                    \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |                            \
     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

/* One node, or one of a child node's: the graphs below are laid out flat. */
struct step {
    CUgraphNode node; /* only compared */
    struct operation operation;
    bool enabled;
};

struct CUgraphExec_st {
    CUgraph graph; /* that it is the only instance of; else NULL */
    uint64_t flags;
    struct step *steps;
    size_t count, room;
    struct user_references references;
    uint64_t held[SIM_MAX_GPUS]; /* blocks of graph pools */
};

/* ---- making --------------------------------------------------------------------------------------- */

static CUresult add_step(CUgraphNode node, void *data);

static CUresult add_graph(CUgraphExec exec, CUgraph graph) {
    CUresult result = graph_walk(graph, add_step, exec);
    if (result == CUDA_SUCCESS && !user_references_copy(&exec->references, &graph->references)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static CUresult add_step(CUgraphNode node, void *data) {
    CUgraphExec exec = data;
    CUresult result = node->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL
                          ? conditional_check(node->operation.conditional)
                          : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || node->operation.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        return result != CUDA_SUCCESS ? result : add_graph(exec, node->operation.child);
    }
    if (exec->count == exec->room) {
        size_t room = exec->room == 0 ? 16 : exec->room * 2;
        struct step *more = realloc(exec->steps, room * sizeof *more);
        if (more == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        exec->steps = more;
        exec->room = room;
    }
    exec->steps[exec->count++] = (struct step){node, node->operation, true};
    operation_use(&node->operation);
    return CUDA_SUCCESS;
}

static void end_contents(CUgraphExec exec) {
    for (size_t index = 0; index < exec->count; index++) {
        operation_drop(&exec->steps[index].operation);
    }
    graph_memory_let_go(exec->held);
    user_references_end(&exec->references);
    free(exec->steps);
}

void exec_orphan(CUgraph graph) {
    if (graph->instance != NULL) {
        graph->instance->graph = NULL;
    }
}

/* What a kernel could launch. */
static bool fits_device(CUgraphExec exec) {
    for (size_t index = 0; index < exec->count; index++) {
        CUgraphNodeType type = exec->steps[index].operation.type;
        if (type != CU_GRAPH_NODE_TYPE_KERNEL && type != CU_GRAPH_NODE_TYPE_MEMCPY &&
            type != CU_GRAPH_NODE_TYPE_MEMSET && type != CU_GRAPH_NODE_TYPE_EMPTY) {
            return false;
        }
    }
    return true;
}

static CUresult instantiate(CUgraphExec *result, CUgraph graph, uint64_t flags) {
    if (result == NULL || !handle_is(graph, HANDLE_GRAPH) || graph->parent != NULL || (flags & ~KNOWN_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (graph->instance != NULL) {
        return CUDA_ERROR_NOT_SUPPORTED; /* a graph with such nodes is instantiated once at a time */
    }
    CUgraphExec exec = handle_new(HANDLE_GRAPH_EXEC, sizeof *exec);
    if (exec == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->flags = flags;
    CUresult made = add_graph(exec, graph);
    if (made == CUDA_SUCCESS && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 && !fits_device(exec)) {
        made = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (made != CUDA_SUCCESS) {
        end_contents(exec);
        handle_end(exec);
        return made;
    }
    if (graph->memory || graph->conditional) {
        exec->graph = graph;
        graph->instance = exec;
    }
    *result = exec;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgraphExec exec) {
    if (!handle_is(exec, HANDLE_GRAPH_EXEC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (exec->graph != NULL) {
        exec->graph->instance = NULL;
    }
    end_contents(exec);
    handle_end(exec);
    return CUDA_SUCCESS;
}

/* ---- changing ------------------------------------------------------------------------------------- */

static struct step *find_step(CUgraphExec exec, CUgraphNode node) {
    for (size_t index = 0; handle_is(exec, HANDLE_GRAPH_EXEC) && index < exec->count; index++) {
        if (exec->steps[index].node == node) {
            return &exec->steps[index];
        }
    }
    return NULL;
}

CUresult exec_set(CUgraphExec exec, CUgraphNode node, const struct operation *operation) {
    struct step *step = find_step(exec, node);
    if (step == NULL || step->operation.type != operation->type) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation_drop(&step->operation);
    step->operation = *operation;
    return CUDA_SUCCESS;
}

static bool may_switch(CUgraphNodeType type) {
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET;
}

static CUresult set_enabled(CUgraphExec exec, CUgraphNode node, bool enabled) {
    struct step *step = find_step(exec, node);
    if (step == NULL || !may_switch(step->operation.type)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    step->enabled = enabled;
    return CUDA_SUCCESS;
}

static CUresult get_enabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled) {
    struct step *step = find_step(exec, node);
    if (step == NULL || enabled == NULL || !may_switch(step->operation.type)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *enabled = step->enabled;
    return CUDA_SUCCESS;
}

/* Another graph of the same shape may take the place of the first; memory and conditional nodes stay what they are. */
static CUgraphExecUpdateResult compare(const struct CUgraphExec_st *exec, const struct CUgraphExec_st *fresh,
                                       CUgraphNode *at) {
    for (size_t index = 0; index < exec->count && index < fresh->count; index++) {
        const struct operation *before = &exec->steps[index].operation, *after = &fresh->steps[index].operation;
        *at = fresh->steps[index].node;
        if (before->type != after->type) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        }
        if (before->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || before->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            before->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        }
    }
    *at = NULL;
    return exec->count == fresh->count ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    struct CUgraphExec_st fresh = {0};
    if (!handle_is(exec, HANDLE_GRAPH_EXEC) || !handle_is(graph, HANDLE_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult result = add_graph(&fresh, graph);
    if (result == CUDA_SUCCESS) {
        info->result = compare(exec, &fresh, &info->errorNode);
        result = info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t index = 0; result == CUDA_SUCCESS && index < exec->count; index++) {
        struct operation old = exec->steps[index].operation;
        exec->steps[index].operation = fresh.steps[index].operation;
        exec->steps[index].node = fresh.steps[index].node;
        fresh.steps[index].operation = old;
    }
    if (result == CUDA_SUCCESS) {
        struct user_references old = exec->references;
        exec->references = fresh.references;
        fresh.references = old;
    }
    end_contents(&fresh);
    return result;
}

static CUresult update_plain(CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *why) {
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result = update(exec, graph, &info);
    if (node != NULL) {
        *node = info.errorNode;
    }
    if (why != NULL) {
        *why = info.result;
    }
    return result;
}

static CUresult get_flags(CUgraphExec exec, uint64_t *flags) {
    if (!handle_is(exec, HANDLE_GRAPH_EXEC) || flags == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

API(cuGraphExecDestroy, (CUgraphExec exec), LOCKED(destroy(exec)))
API(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned int enabled),
    LOCKED(set_enabled(exec, node, enabled != 0)))
API(cuGraphNodeGetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned int *enabled),
    LOCKED(get_enabled(exec, node, enabled)))
API(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *why),
    LOCKED(update_plain(exec, graph, node, why)))
API(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info),
    info == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(update(exec, graph, info)))
API(cuGraphExecGetFlags, (CUgraphExec exec, uint64_t *flags), LOCKED(get_flags(exec, flags)))

/* ---- running -------------------------------------------------------------------------------------- */

static void free_left_over(CUgraphExec exec) {
    for (size_t index = 0; index < exec->count; index++) {
        const struct operation *operation = &exec->steps[index].operation;
        if (operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && operation->memory->allocated) {
            graph_memory_free(operation->memory);
        }
    }
}

/* What the graph allocates at the same time, in the order in which it will. */
static CUresult count_need(CUgraphExec exec, struct graph_need *need) {
    for (size_t index = 0; index < exec->count; index++) {
        const struct operation *operation = &exec->steps[index].operation;
        const struct graph_memory *memory = operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? operation->memory
                                            : operation->type == CU_GRAPH_NODE_TYPE_MEM_FREE
                                                ? graph_memory_at(operation->freed)
                                                : NULL;
        if (memory == NULL) {
            continue;
        }
        uint64_t *now = &need->now[memory->device], *most = &need->most[memory->device];
        if (operation->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            *now -= *now < memory->blocks ? *now : memory->blocks;
            continue;
        }
        if (memory->allocated) {
            return CUDA_ERROR_INVALID_VALUE; /* still held from the last launch */
        }
        *now += memory->blocks;
        *most = *now > *most ? *now : *most;
    }
    return CUDA_SUCCESS;
}

static CUresult prepare(CUgraphExec exec, bool launch) {
    struct graph_need need = {0};
    if (!handle_is(exec, HANDLE_GRAPH_EXEC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (launch && (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0) {
        free_left_over(exec);
    }
    CUresult result = count_need(exec, &need);
    return result != CUDA_SUCCESS ? (launch ? result : CUDA_SUCCESS) : graph_memory_prepare(&need, exec->held);
}

static CUresult run(const struct operation *operation, CUstream stream) {
    switch (operation->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return run_kernel(&operation->kernel, stream);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return run_copy(&operation->copy, stream);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return run_fill(&operation->fill, stream);
    case CU_GRAPH_NODE_TYPE_HOST:
        return run_host(&operation->host, stream);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return LOCKED(graph_memory_allocate(operation->memory));
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return LOCKED(linear_release(operation->freed));
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return run_record(operation->event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return run_wait(operation->event, stream);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
        return run_semaphores(operation->semaphores);
    default:
        return CUDA_SUCCESS;
    }
}

static CUresult upload(CUgraphExec exec, CUstream stream) {
    CUresult result = stream_enter(stream);
    return result != CUDA_SUCCESS ? result : LOCKED(prepare(exec, false));
}

static CUresult launch(CUgraphExec exec, CUstream stream) {
    CUresult result = stream_enter(stream);
    if (result == CUDA_SUCCESS) {
        result = LOCKED(prepare(exec, true));
    }
    for (size_t index = 0; result == CUDA_SUCCESS && index < exec->count; index++) {
        if (exec->steps[index].enabled) {
            result = run(&exec->steps[index].operation, stream);
        }
    }
    return result;
}

/* In a stream that is being captured a launch becomes a child node, of which there is no graph any more: its nodes are
 * added one after the other. */
static CUresult capture_launch(CUgraphExec exec, CUstream stream) {
    CUresult result = handle_is(exec, HANDLE_GRAPH_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t index = 0; result == CUDA_SUCCESS && index < exec->count; index++) {
        const struct operation *operation = &exec->steps[index].operation;
        CUgraphNodeType type = operation->type;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        operation_use(operation); /* now the captured node's too */
        result = capture_add(stream, operation);
        if (result != CUDA_SUCCESS) {
            operation_drop(operation);
        }
    }
    return result;
}

static CUresult put_launch(CUgraphExec exec, CUstream stream) {
    return capture_concerns(stream) ? capture_launch(exec, stream) : launch(exec, stream);
}

static CUresult instantiate_uploaded(CUgraphExec *exec, CUgraph graph, uint64_t flags, CUstream stream) {
    CUresult result = LOCKED(instantiate(exec, graph, flags));
    if (result == CUDA_SUCCESS && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        result = upload(*exec, stream);
        if (result != CUDA_SUCCESS) {
            LOCKED(destroy(*exec));
        }
    }
    return result;
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = instantiate_uploaded(exec, graph, params->flags, params->hUploadStream);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

static CUresult instantiate_logged(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size) {
    if (node != NULL) {
        *node = NULL;
    }
    if (log != NULL && size > 0) {
        *log = '\0';
    }
    return LOCKED(instantiate(exec, graph, 0));
}

API(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t size),
    instantiate_logged(exec, graph, node, log, size))
API(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t size),
    instantiate_logged(exec, graph, node, log, size))
API(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
    (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 ? CUDA_ERROR_INVALID_VALUE
                                                      : LOCKED(instantiate(exec, graph, flags)))
API_TWIN(cuGraphInstantiateWithParams, _ptsz,
         (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
         instantiate_with(exec, graph, params))
API_TWIN(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), upload(exec, stream))
API_TWIN(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), put_launch(exec, stream))
