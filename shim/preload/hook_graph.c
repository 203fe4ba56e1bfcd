/* hook_graph.c: the memory of graphs.
 *
 * An alloc node takes no memory, and neither does capturing one. A launch or an upload does, from the GPU's graph pool
 * (graph_pool.h says how that is charged).
 *
 * The need of a launch is counted once, when the graph is instantiated: the sum of its alloc nodes. That is too much if
 * the graph frees some memory before it allocates other memory.
 * A refusal is CUDA_ERROR_OUT_OF_MEMORY, from cuGraphUpload, from cuGraphLaunch, or from cuGraphInstantiateWithParams
 * if it is to upload; the driver is not called then. Instantiating alone is never refused.
 *
 * Memory nodes cannot be changed in an executable graph, so updates need no hook. Freeing a graph's memory only returns
 * it to the pool; frees are merely counted, to know whether a graph that frees first will find what it left.
 */
#include "gate.h"
#include "graph_pool.h"
#include "hooks.h"
#include "moments.h"
#include "turn.h"

#include <string.h>

#define GRAIN       ((2ull << 20) - 1) /* the least that the driver maps */
#define CHUNK_EXECS 128
#define MAX_CHUNKS  1024
#define FEW_NODES   128
#define MOST_NESTED 16

/* ---- what executable graphs need ------------------------------------------------------------------ */

struct need {
    uint32_t units[GS_MAX_GPUS];
    uint32_t holds[GS_MAX_GPUS]; /* see gs_graph_launch; those that are stored */
    bool any, frees;             /* has memory nodes; has free nodes */
    bool frees_first;            /* each launch begins with freeing what the last one left */
    bool left;                   /* the last one did leave it, and since then there were as many frees as: */
    uint32_t frees_then;
    uint32_t number;
    uint32_t next_free; /* number + 1 */
};

static struct gs_table execs; /* those with alloc nodes -> detail: the need's number */
static struct need *chunks[MAX_CHUNKS];
static uint32_t need_count, first_free;
static struct gs_lock needs_lock;
static uint32_t exec_count;

static struct need *need_at(uint32_t number) {
    return &chunks[number / CHUNK_EXECS][number % CHUNK_EXECS];
}

/* Under the lock; UINT32_MAX: no memory. */
static uint32_t new_need(void) {
    if (first_free != 0) {
        uint32_t number = first_free - 1;
        first_free = need_at(number)->next_free;
        return number;
    }
    if (need_count == CHUNK_EXECS * MAX_CHUNKS)
        return UINT32_MAX;
    struct need **chunk = &chunks[need_count / CHUNK_EXECS];
    if (*chunk == NULL)
        *chunk = gs_pages_new(CHUNK_EXECS * sizeof(struct need));
    return *chunk == NULL ? UINT32_MAX : need_count++;
}

static void drop_need(uint32_t number) {
    gs_lock(&needs_lock);
    need_at(number)->next_free = first_free;
    first_free = number + 1;
    gs_unlock(&needs_lock);
    __atomic_fetch_sub(&exec_count, 1, __ATOMIC_RELAXED);
}

/* One that cannot be noted is left to measuring. */
static void note(CUgraphExec exec, const struct need *need) {
    struct gs_entry displaced, entry = {.key = (uint64_t)(uintptr_t)exec};
    gs_lock(&needs_lock);
    uint32_t number = new_need();
    if (number != UINT32_MAX)
        *need_at(number) = *need;
    gs_unlock(&needs_lock);
    if (number == UINT32_MAX)
        return;
    entry.detail = number;
    __atomic_fetch_add(&exec_count, 1, __ATOMIC_RELAXED);
    if (!gs_table_put(&execs, &entry, &displaced))
        drop_need(number);
    else if (displaced.key != 0)
        drop_need(displaced.detail);
}

static bool find(CUgraphExec exec, struct need *need) {
    struct gs_entry entry;
    if (__builtin_expect(__atomic_load_n(&exec_count, __ATOMIC_RELAXED) == 0, 1) ||
        !gs_table_find(&execs, (uint64_t)(uintptr_t)exec, &entry))
        return false;
    *need = *need_at(entry.detail);
    need->number = entry.detail;
    return true;
}

static void count_node(CUgraphNode node, struct need *need, int depth);

static void count_graph(CUgraph graph, struct need *need, int depth) {
    CUgraphNode few[FEW_NODES], *nodes = few;
    size_t count;
    if (depth == MOST_NESTED || gs_driver.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t room = count;
    if (room > FEW_NODES && (nodes = gs_pages_new(room * sizeof *nodes)) == NULL)
        return;
    if (gs_driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count && i < room; i++)
            count_node(nodes[i], need, depth);
    if (nodes != few)
        gs_pages_drop(nodes, room * sizeof *nodes);
}

static void count_node(CUgraphNode node, struct need *need, int depth) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUgraphNodeType type;
    CUgraph child;
    if (gs_driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && gs_driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
        count_graph(child, need, depth + 1);
    if (type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        need->any = need->frees = true;
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || gs_driver.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS)
        return;
    CUdevice device = cuda_device_of(&params.poolProps.location);
    if (device < 0 || device >= GS_MAX_GPUS)
        return;
    uint64_t bytes = params.bytesize > UINT64_MAX - GRAIN ? UINT64_MAX : (params.bytesize + GRAIN) & ~GRAIN;
    uint64_t units = (uint64_t)need->units[device] + gs_units(bytes);
    need->units[device] = units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
    need->any = true;
}

/* ---- uploads and launches ------------------------------------------------------------------------- */

/* The driver's functions come in two variants, for the two kinds of default stream. Their addresses are known only when
 * the driver is found, so a variant has the places where the addresses are kept. */
struct variant {
    __typeof__(&cuGraphLaunch) *launch;
    __typeof__(&cuGraphUpload) *upload;
    __typeof__(&cuGraphInstantiateWithParams) *instantiate;
    __typeof__(&cuStreamIsCapturing) *is_capturing;
};

static const struct variant legacy = {&gs_driver.cuGraphLaunch, &gs_driver.cuGraphUpload,
                                      &gs_driver.cuGraphInstantiateWithParams, &gs_driver.cuStreamIsCapturing};
static const struct variant per_thread = {&gs_driver.cuGraphLaunch_ptsz, &gs_driver.cuGraphUpload_ptsz,
                                          &gs_driver.cuGraphInstantiateWithParams_ptsz,
                                          &gs_driver.cuStreamIsCapturing_ptsz};

/* A call of the driver that may take a graph's memory. */
struct run {
    const struct variant *driver;
    CUresult (*call)(const struct run *);
    CUgraphExec exec, *fresh;
    CUgraph graph;
    CUstream stream;
    CUDA_GRAPH_INSTANTIATE_PARAMS *params;
};

static CUresult call_launch(const struct run *run) {
    return (*run->driver->launch)(run->exec, run->stream);
}

static CUresult call_upload(const struct run *run) {
    return (*run->driver->upload)(run->exec, run->stream);
}

static CUresult call_instantiate(const struct run *run) {
    return (*run->driver->instantiate)(run->fresh, run->graph, run->params);
}

/* The GPUs from `from` on: enter, then those behind it, the call in the middle, leave on the way out. */
static CUresult run_on(const struct run *run, const struct need *need, int from) {
    uint32_t fresh = 0;
    while (from < GS_MAX_GPUS && need->units[from] == 0)
        from++;
    if (from == GS_MAX_GPUS)
        return run->call(run);
    struct gs_gpu *gpu = gs_gpu_of(from);
    if (gpu == NULL)
        return run_on(run, need, from + 1);
    struct gs_graph_launch launch = {.gpu = gpu, .need = need->units[from], .frees_first = need->frees_first};
    launch.holds = run->fresh == NULL ? &need_at(need->number)->holds[from] : &fresh;
    if (!gs_graph_pool_enter(&launch))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = run_on(run, need, from + 1);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && launch.have != 0 && gs_account_driver_failed(gpu, launch.have))
        result = run_on(run, need, from + 1);
    gs_graph_pool_leave(&launch, result == CUDA_SUCCESS && run->fresh == NULL);
    return result;
}

/* A launch that first frees what the last one left takes nothing more, if all of that is still there: no pointer that
 * may be a graph's was freed since, not by the last launch itself either. If in doubt the credit is asked for again. */
static CUresult run_launch(const struct run *run, struct need *need) {
    struct need *stored = need_at(need->number);
    uint32_t frees = __atomic_load_n(&gs_unknown_frees, __ATOMIC_RELAXED);
    need->frees_first = need->frees_first && need->left && need->frees_then == frees;
    if (need->frees)
        __atomic_fetch_add(&gs_unknown_frees, 1, __ATOMIC_RELAXED);
    CUresult result = run_on(run, need, 0);
    __atomic_store_n(&stored->frees_then, frees, __ATOMIC_RELAXED);
    __atomic_store_n(&stored->left, result == CUDA_SUCCESS, __ATOMIC_RELAXED);
    return result;
}

/* ---- the hooks ------------------------------------------------------------------------------------ */

static void instantiated(CUresult result, const CUgraphExec *exec, struct need *need, uint64_t flags) {
    if (result != CUDA_SUCCESS || !need->any)
        return;
    need->frees_first = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    note(*exec, need);
}

/* The three that do not upload. The nodes are counted before the call: the graph's handle may be another's afterwards.
 */
#define INSTANTIATE(call, flags)                                                                                       \
    struct need need = {0};                                                                                            \
    bool on = gs_on();                                                                                                 \
    if (on)                                                                                                            \
        GS_RELAXED(count_graph(graph, &need, 0));                                                                      \
    CUresult result = gs_driver.call;                                                                                  \
    if (on)                                                                                                            \
        instantiated(result, exec, &need, flags);                                                                      \
    return result

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    INSTANTIATE(cuGraphInstantiate(exec, graph, error_node, log, log_size), 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    INSTANTIATE(cuGraphInstantiate_v2(exec, graph, error_node, log, log_size), 0);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATE(cuGraphInstantiateWithFlags(exec, graph, flags), flags);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct gs_entry entry, displaced;
    if (!gs_on() || !gs_table_take(&execs, (uint64_t)(uintptr_t)exec, &entry))
        return gs_driver.cuGraphExecDestroy(exec);
    CUresult result = gs_driver.cuGraphExecDestroy(exec);
    if (result != CUDA_SUCCESS) {
        gs_table_put(&execs, &entry, &displaced);
        return result;
    }
    struct need *need = need_at(entry.detail);
    for (int device = 0; device < GS_MAX_GPUS; device++)
        if (need->units[device] != 0 && gs_gpu_of(device) != NULL && gs_gpu_of(device)->line != NULL)
            gs_graph_pool_gone(gs_gpu_of(device), need->units[device], &need->holds[device]);
    drop_need(entry.detail);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    bool on = gs_on();
    struct gs_inside *inside = gs_gate_enter();
    CUresult result = gs_gate_leave(inside, gs_driver.cuDeviceGraphMemTrim(device));
    struct gs_gpu *gpu = on && result == CUDA_SUCCESS ? gs_gpu_of(device) : NULL;
    if (gpu != NULL && gpu->line != NULL)
        gs_graph_pool_correct(gpu);
    return result;
}

/* A launch into a stream that is being captured becomes a node of another graph, which takes nothing. */
static CUresult launch(const struct variant *driver, CUgraphExec exec, CUstream stream) {
    struct run one = {.driver = driver, .call = call_launch, .exec = exec, .stream = stream};
    struct need need;
    if (!find(exec, &need) || gs_stream_is_captured(*driver->is_capturing, stream))
        return call_launch(&one);
    return run_launch(&one, &need);
}

GS_INLINE CUresult upload(const struct variant *driver, CUgraphExec exec, CUstream stream) {
    struct run one = {.driver = driver, .call = call_upload, .exec = exec, .stream = stream};
    struct need need;
    if (!gs_on() || !find(exec, &need))
        return call_upload(&one);
    need.frees_first = false;
    return run_on(&one, &need, 0);
}

GS_INLINE CUresult instantiate(const struct variant *driver, CUgraphExec *exec, CUgraph graph,
                               CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    struct run one = {.driver = driver, .call = call_instantiate, .fresh = exec, .graph = graph, .params = params};
    struct need need = {0};
    if (!gs_on() || params == NULL)
        return call_instantiate(&one);
    uint64_t flags = params->flags;
    GS_RELAXED(count_graph(graph, &need, 0));
    bool uploads = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 && need.any;
    CUresult result = uploads ? run_on(&one, &need, 0) : call_instantiate(&one);
    instantiated(result, exec, &need, flags);
    return result;
}

/* Whether there may be a graph with memory: most launches end here. */
static inline bool may_take(void) {
    return gs_on() && __builtin_expect(__atomic_load_n(&exec_count, __ATOMIC_RELAXED) != 0, 0);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    gs_turn_pass(gs_driver.cuStreamIsCapturing, stream);
    return may_take() ? launch(&legacy, exec, stream) : gs_driver.cuGraphLaunch(exec, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    gs_turn_pass(gs_driver.cuStreamIsCapturing_ptsz, stream);
    return may_take() ? launch(&per_thread, exec, stream) : gs_driver.cuGraphLaunch_ptsz(exec, stream);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return upload(&legacy, exec, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return upload(&per_thread, exec, stream);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(&legacy, exec, graph, params);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(&per_thread, exec, graph, params);
}

GS_AT(fork) {
    gs_table_forget(&execs);
    memset(chunks, 0, sizeof chunks);
    need_count = first_free = exec_count = 0;
    needs_lock = (struct gs_lock){0};
}
