/* cuda_capture.c: capturing what is put into streams as a graph.
 *
 * A capture begins in one stream and spreads to others through events. Each stream that takes part remembers the nodes
 * that its next node depends on (its tail). While a capture goes on, calls that may wait for the captured work are
 * prohibited, in the thread that began the capture or in all threads, as the mode says. Such a call fails and
 * invalidates the capture; cuStreamEndCapture reports that.
 */
#define _GNU_SOURCE
#include "cuda_capture.h"

#include "cuda_api.h"
#include "cuda_handle.h"
#include "cuda_stream.h"

#include <stdlib.h>

struct capture {
    uint64_t number;
    CUgraph graph;
    bool given; /* the graph is the program's, see cuStreamBeginCaptureToGraph */
    CUstreamCaptureMode mode;
    pthread_t thread;
    CUstream stream; /* where it began */
    bool spoiled;
    size_t first;  /* nodes that were there before */
    CUgraph again; /* the program's, which has the same nodes and gets their new parameters; NULL for most */
    struct capture *next;
};

static struct capture *captures;
static uint64_t last_number;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

_Atomic int capture_count;

static struct capture *find(const struct branch *branch) {
    struct capture *capture = branch == NULL || branch->capture == 0 ? NULL : captures;
    while (capture != NULL && capture->number != branch->capture) {
        capture = capture->next;
    }
    return capture;
}

bool capture_has(const struct branch *branch) {
    return find(branch) != NULL;
}

/* The capture that an operation in this stream would be part of, or get in the way of (*implied). */
static struct capture *concerned(CUstream stream, bool *implied) {
    struct branch *branch = stream_branch(stream);
    *implied = branch == NULL && stream != CU_STREAM_PER_THREAD;
    return find(*implied ? stream_implied() : branch);
}

bool capture_concerns_slowly(CUstream stream) {
    bool implied;
    driver_lock();
    bool answer = concerned(stream, &implied) != NULL;
    driver_unlock();
    return answer;
}

static CUresult spoil(struct capture *capture, CUresult why) {
    capture->spoiled = true;
    return why;
}

static CUresult add(CUstream stream, const struct operation *operation) {
    bool implied;
    struct capture *capture = concerned(stream, &implied);
    CUgraphNode node;
    if (capture == NULL) {
        return CUDA_ERROR_ILLEGAL_STATE; /* it has ended just now */
    }
    if (implied) {
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if (capture->spoiled) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct node_set *tail = &stream_branch(stream)->tail;
    CUresult result = graph_add(capture->graph, operation, tail->nodes, tail->count, &node);
    if (result == CUDA_SUCCESS) {
        tail->count = 0;
        result = node_set_add(tail, node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult capture_add(CUstream stream, const struct operation *operation) {
    return LOCKED(add(stream, operation));
}

static CUresult refuse(CUstream stream) {
    bool implied;
    struct capture *capture = concerned(stream, &implied);
    return capture == NULL
               ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
               : spoil(capture, implied ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult capture_refuse(CUstream stream) {
    return LOCKED(refuse(stream));
}

/* The rules of cuThreadExchangeStreamCaptureMode. */
static bool forbids(const struct capture *capture) {
    bool own = pthread_equal(capture->thread, pthread_self());
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    return own || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_permits_slowly(void) {
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (forbids(capture)) {
            result = spoil(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    driver_unlock();
    return result;
}

/* What a program may call at any time in the usual driver, and what the strictest reading of "potentially unsafe" has
 * among the forbidden: all that asks or changes something beside the streams. */
static const bool strict[API_COUNT] = {
#define STRICT(symbol) [API_##symbol] = true,
    STRICT(cuArray3DCreate) STRICT(cuArray3DCreate_v2) STRICT(cuArrayCreate) STRICT(cuArrayCreate_v2)
        STRICT(cuArrayDestroy) STRICT(cuArrayGetMemoryRequirements) STRICT(cuCtxCreate) STRICT(cuCtxCreate_v2) STRICT(
            cuCtxDestroy) STRICT(cuCtxDestroy_v2) STRICT(cuCtxFromGreenCtx) STRICT(cuCtxGetDevice) STRICT(cuCtxGetLimit)
            STRICT(cuCtxSetLimit) STRICT(cuDeviceGetCount) STRICT(cuDeviceGetDefaultMemPool) STRICT(
                cuDeviceGetGraphMemAttribute) STRICT(cuDeviceGetMemPool) STRICT(cuDeviceGetUuid)
                STRICT(cuDeviceGetUuid_v2) STRICT(cuDeviceGraphMemTrim) STRICT(cuDevicePrimaryCtxGetState) STRICT(
                    cuDevicePrimaryCtxRelease_v2) STRICT(cuDevicePrimaryCtxReset_v2) STRICT(cuDevicePrimaryCtxRetain)
                    STRICT(cuDeviceTotalMem_v2) STRICT(cuGraphChildGraphNodeGetGraph) STRICT(cuGraphGetNodes)
                        STRICT(cuGraphMemAllocNodeGetParams) STRICT(cuGraphNodeGetType) STRICT(cuMemCreate)
                            STRICT(cuMemGetAllocationPropertiesFromHandle) STRICT(cuMemGetInfo_v2) STRICT(cuMemMap)
                                STRICT(cuMemPoolCreate) STRICT(cuMemPoolDestroy) STRICT(cuMemPoolGetAttribute)
                                    STRICT(cuMemPoolSetAttribute) STRICT(cuMemPoolTrimTo) STRICT(cuMemRelease)
                                        STRICT(cuMemRetainAllocationHandle) STRICT(cuMemSetAccess) STRICT(cuMemUnmap)
                                            STRICT(cuMipmappedArrayGetMemoryRequirements) STRICT(cuPointerGetAttribute)
                                                STRICT(cuStreamGetCtx) STRICT(cuStreamGetDevice)
#undef STRICT
};

CUresult capture_permits_strictly(enum api_function function) {
    return strict[function] ? capture_permits() : CUDA_SUCCESS;
}

/* ---- events --------------------------------------------------------------------------------------- */

CUresult capture_record(CUstream stream, struct branch *event) {
    bool implied;
    struct capture *capture = concerned(stream, &implied);
    if (capture == NULL) {
        return CUDA_SUCCESS;
    }
    if (implied) {
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    event->capture = capture->number;
    return node_set_copy(&event->tail, &stream_branch(stream)->tail) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_wait(CUstream stream, const struct branch *event) {
    bool implied;
    struct capture *there = find(event), *here = concerned(stream, &implied);
    struct branch *branch = stream_branch(stream);
    if (there == NULL || implied) {
        struct capture *spoiled = there != NULL ? there : here;
        return spoiled == NULL
                   ? CUDA_SUCCESS
                   : spoil(spoiled, implied ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (branch == NULL) {
        return spoil(there, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (here != NULL && here != there) {
        spoil(here, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        return spoil(there, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (here == NULL) {
        node_set_clear(&branch->tail);
        branch->capture = there->number;
    }
    for (size_t index = 0; index < event->tail.count; index++) {
        if (!node_set_add(&branch->tail, event->tail.nodes[index])) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return CUDA_SUCCESS;
}

/* ---- beginning and ending ------------------------------------------------------------------------- */

static CUresult begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, const CUgraphNode *dependencies,
                      size_t count) {
    struct branch *branch = stream_branch(stream);
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (dependencies == NULL && count > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (branch == NULL) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* a stream that needs no creating */
    }
    if (capture_has(branch)) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    struct capture *capture = calloc(1, sizeof *capture);
    CUgraph into = capture == NULL || graph != NULL ? graph : graph_new();
    if (into == NULL) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct capture){.number = ++last_number,
                                .graph = into,
                                .given = graph != NULL,
                                .mode = mode,
                                .thread = pthread_self(),
                                .stream = stream,
                                .first = into->nodes.count,
                                .next = captures};
    captures = capture;
    atomic_fetch_add(&capture_count, 1);
    node_set_clear(&branch->tail);
    branch->capture = capture->number;
    for (size_t index = 0; index < count; index++) {
        node_set_add(&branch->tail, dependencies[index]);
    }
    return CUDA_SUCCESS;
}

static CUresult begin_in(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         CUstreamCaptureMode mode) {
    return handle_is(graph, HANDLE_GRAPH) ? begin(stream, mode, graph, dependencies, count) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult begin_again(CUstream stream, CUstreamCaptureMode mode, CUgraph graph) {
    CUresult result = handle_is(graph, HANDLE_GRAPH) ? begin(stream, mode, NULL, NULL, 0) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        captures->again = graph;
    }
    return result;
}

static bool same_place(CUgraphNode one, CUgraphNode other) {
    if (one->operation.type != other->operation.type || one->dependencies.count != other->dependencies.count) {
        return false;
    }
    for (size_t index = 0; index < one->dependencies.count; index++) {
        if (one->dependencies.nodes[index]->place != other->dependencies.nodes[index]->place) {
            return false;
        }
    }
    return true;
}

/* What the nodes do goes over to those of the older graph, which had the same in the same order; the graph that was
 * captured ends. Nodes that own something are not exchanged here. */
static CUresult hand_over(CUgraph fresh, CUgraph older) {
    bool same = handle_is(older, HANDLE_GRAPH) && fresh->nodes.count == older->nodes.count && !fresh->memory &&
                !fresh->conditional;
    for (size_t index = 0; same && index < fresh->nodes.count; index++) {
        CUgraphNode node = fresh->nodes.nodes[index];
        same = same_place(node, older->nodes.nodes[index]) && node->operation.type != CU_GRAPH_NODE_TYPE_GRAPH;
    }
    for (size_t index = 0; same && index < fresh->nodes.count; index++) {
        struct operation *one = &fresh->nodes.nodes[index]->operation, *other = &older->nodes.nodes[index]->operation;
        struct operation swapped = *one;
        *one = *other;
        *other = swapped;
    }
    graph_end(fresh);
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static void end(struct capture *capture) {
    struct capture **place = &captures;
    while (*place != capture) {
        place = &(*place)->next;
    }
    *place = capture->next;
    atomic_fetch_sub(&capture_count, 1);
    free(capture);
}

/* Everything captured must come before the end of the stream where it began: each node is either in its tail or has
 * one after it. */
static bool joined(const struct capture *capture, const struct node_set *tail) {
    const struct node_set *nodes = &capture->graph->nodes;
    for (size_t index = 0; index < nodes->count; index++) {
        nodes->nodes[index]->mark = 0;
    }
    for (size_t index = capture->first; index < nodes->count; index++) {
        const struct node_set *before = &nodes->nodes[index]->dependencies;
        for (size_t at = 0; at < before->count; at++) {
            before->nodes[at]->mark = 1;
        }
    }
    for (size_t index = capture->first; index < nodes->count; index++) {
        if (!nodes->nodes[index]->mark && !node_set_has(tail, nodes->nodes[index])) {
            return false;
        }
    }
    return true;
}

static CUresult end_in(CUstream stream, CUgraph *graph) {
    struct branch *branch = stream_branch(stream);
    struct capture *capture = find(branch);
    if (graph == NULL || capture == NULL) {
        return graph == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_STATE;
    }
    *graph = NULL;
    if (capture->stream != stream) {
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    CUresult result = capture->spoiled                  ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : !joined(capture, &branch->tail) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                        : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && capture->again != NULL) {
        result = hand_over(capture->graph, capture->again);
        *graph = result == CUDA_SUCCESS ? capture->again : NULL;
    } else if (result == CUDA_SUCCESS) {
        *graph = capture->graph;
    } else if (!capture->given) {
        graph_end(capture->graph);
    }
    end(capture);
    node_set_clear(&branch->tail);
    branch->capture = 0;
    return result;
}

void capture_stream_gone(CUstream stream) {
    struct branch *branch = stream_branch(stream);
    struct capture *capture = find(branch);
    /* One that only took part may go: what it left unjoined is found when the capture ends. */
    if (capture != NULL && capture->stream == stream) {
        if (!capture->given) {
            graph_end(capture->graph);
        }
        end(capture);
    }
    node_set_clear(&branch->tail);
}

API_TWIN(cuStreamBeginCapture, _ptsz, (CUstream stream),
         LOCKED(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0)))
API_TWIN(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode),
         LOCKED(begin(stream, mode, NULL, NULL, 0)))
API_TWIN(cuStreamBeginCaptureToGraph, _ptsz,
         (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
          CUstreamCaptureMode mode),
         ((void)edges, LOCKED(begin_in(stream, graph, dependencies, count, mode))))
/* The program's function is not asked about what has changed: all may. */
API_TWIN(cuStreamBeginRecaptureToGraph, _ptsz,
         (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback function, void *data),
         ((void)function, (void)data, LOCKED(begin_again(stream, mode, graph))))
API_TWIN(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), LOCKED(end_in(stream, graph)))

/* ---- asking --------------------------------------------------------------------------------------- */

static CUresult status_of(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                          const CUgraphNode **dependencies, size_t *count) {
    bool implied;
    CUresult result = status == NULL ? CUDA_ERROR_INVALID_VALUE : stream_check(stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct capture *capture = concerned(stream, &implied);
    if (capture != NULL && implied) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *status = capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture == NULL || capture->spoiled) {
        return CUDA_SUCCESS;
    }
    const struct node_set *tail = &stream_branch(stream)->tail;
    if (id != NULL) {
        *id = capture->number;
    }
    if (graph != NULL) {
        *graph = capture->graph;
    }
    if (dependencies != NULL) {
        *dependencies = tail->nodes;
    }
    if (count != NULL) {
        *count = tail->count;
    }
    return CUDA_SUCCESS;
}

API_TWIN(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus *status),
         LOCKED(status_of(stream, status, NULL, NULL, NULL, NULL)))
API_TWIN(cuStreamGetCaptureInfo, _ptsz, (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id),
         LOCKED(status_of(stream, status, id, NULL, NULL, NULL)))
API_TWIN(cuStreamGetCaptureInfo_v2, _ptsz,
         (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, size_t *count),
         LOCKED(status_of(stream, status, id, graph, dependencies, count)))

/* Data of `count` plain edges. A program may still be reading what an earlier call returned, so that stays; each array
 * is at least twice as long as the last. */
static const CUgraphEdgeData *plain_edges(size_t count) {
    static CUgraphEdgeData first[64];
    static CUgraphEdgeData *edges = first;
    static size_t room = sizeof first / sizeof *first;
    if (count > room) {
        CUgraphEdgeData *more = calloc(count * 2, sizeof *more);
        if (more == NULL) {
            return NULL;
        }
        edges = more;
        room = count * 2;
    }
    return edges;
}

static CUresult status_with_edges(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                  const CUgraphNode **dependencies, const void **edges, size_t *count) {
    size_t tail = 0;
    CUresult result = status_of(stream, status, id, graph, dependencies, &tail);
    if (count != NULL && result == CUDA_SUCCESS && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *count = tail;
    }
    if (edges != NULL) {
        *edges = result == CUDA_SUCCESS ? plain_edges(tail) : NULL;
    }
    return result;
}

API_TWIN(cuStreamGetCaptureInfo_v3, _ptsz,
         (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, const void **edges, size_t *count),
         LOCKED(status_with_edges(stream, status, id, graph, dependencies, edges, count)))

static CUresult change_tail(CUstream stream, CUgraphNode *dependencies, size_t count, unsigned int flags) {
    struct branch *branch = stream_branch(stream);
    if (!capture_has(branch)) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (dependencies == NULL && count > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        branch->tail.count = 0;
    }
    for (size_t index = 0; index < count; index++) {
        if (!handle_is(dependencies[index], HANDLE_NODE) || !node_set_add(&branch->tail, dependencies[index])) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

API_TWIN(cuStreamUpdateCaptureDependencies, _ptsz,
         (CUstream stream, CUgraphNode *dependencies, size_t count, unsigned int flags),
         LOCKED(change_tail(stream, dependencies, count, flags)))
API_TWIN(cuStreamUpdateCaptureDependencies_v2, _ptsz,
         (CUstream stream, CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count, unsigned int flags),
         ((void)edges, LOCKED(change_tail(stream, dependencies, count, flags))))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode);
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
