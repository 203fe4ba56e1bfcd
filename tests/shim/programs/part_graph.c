/* part_graph.c: graphs with memory over a driver and graph pools (graph_pool.c) that the program plays. */
#include "part_bank.h"

static size_t dropped_bytes;
#define gs_pages_drop(pages, size) (dropped_bytes += (size), gs_pages_drop(pages, size))
#include "hook_graph.c"
#include "table.c"

#define MIB (1ull << 20)

uint32_t gs_unknown_frees, gs_captures, gs_captures_lost;

static bool worth_it = true;
static uint32_t failures, failed_units;

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[0] || gpu == &gs_gpus[1]);
    failures++;
    failed_units = units;
    return worth_it;
}

static bool has_first = true, has_second = true;

struct gs_gpu *gs_gpu_of(CUdevice device) {
    return (device == 0 && has_first) || (device == 1 && has_second) ? &gs_gpus[device] : NULL;
}

/* ---- pools ---------------------------------------------------------------------------------------- */

/* Of each GPU: what the last launch entered with, and what it left with. */
static struct {
    uint32_t enters, leaves, corrects, need, held;
    bool frees_first, inside, good;
} pool[2];

static uint32_t gone_held; /* by executable graphs that are gone */

static uint32_t lacks[2] = {5, 5}; /* what a launch lacks in the pool */
static int refuses = -1;           /* that GPU's pool */

static void look(void) {
    memset(pool, 0, sizeof pool);
    failures = 0;
}

bool gs_graph_pool_enter(struct gs_graph_launch *launch) {
    int i = (int)launch->gpu->index;
    REQUIRE(!pool[i].inside && (i == 0 || !pool[1].inside));
    pool[i].enters++;
    pool[i].need = launch->need;
    pool[i].frees_first = launch->frees_first;
    pool[i].held = *launch->holds;
    launch->have = lacks[i];
    if (i == refuses)
        return false;
    pool[i].inside = true;
    return true;
}

void gs_graph_pool_leave(struct gs_graph_launch *launch, bool good) {
    int i = (int)launch->gpu->index;
    REQUIRE(pool[i].inside && launch->need == pool[i].need && launch->have == lacks[i] && (i == 1 || !pool[1].inside));
    pool[i].inside = false;
    pool[i].leaves++;
    pool[i].good = good;
    if (good)
        *launch->holds = 7;
}

void gs_graph_pool_gone(struct gs_gpu *gpu, uint32_t need, uint32_t *holds) {
    REQUIRE(need != 0 && (*holds == 0 || *holds == 7));
    gone_held += *holds;
    *holds = 0;
    gs_graph_pool_correct(gpu);
}

uint32_t gs_graph_pool_correct(struct gs_gpu *gpu) {
    pool[gpu->index].corrects++;
    return 0;
}

static bool entered(int gpu, uint32_t times, uint32_t need) {
    return pool[gpu].enters == times && pool[gpu].need == need && !pool[gpu].inside;
}

/* ---- the driver ----------------------------------------------------------------------------------- */

struct node {
    CUgraphNodeType type;
    uint64_t bytes;
    int device; /* -1: the host's memory */
    int child;
};

#define GRAPHS 8
#define NODES  300
static struct {
    struct node nodes[NODES];
    size_t count;
    size_t fewer;  /* when the nodes themselves are asked for */
    size_t claims; /* so many more are said to be there than were asked for */
} graphs[GRAPHS];

static CUresult nodes_say, type_says, params_say, child_says;

static CUgraph graph_of(int i) {
    return (CUgraph)(uintptr_t)(i + 1);
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    int i = (int)(uintptr_t)graph - 1;
    REQUIRE(i >= 0 && i < GRAPHS && relaxed % 2 == 1);
    if (nodes == NULL) {
        *count = graphs[i].count;
        return nodes_say;
    }
    REQUIRE(*count == graphs[i].count && *count != 0);
    *count = graphs[i].count - graphs[i].fewer;
    for (size_t at = 0; at < *count; at++)
        nodes[at] = (CUgraphNode)&graphs[i].nodes[at];
    *count += graphs[i].claims;
    return CUDA_SUCCESS;
}

static CUresult get_type(CUgraphNode node, CUgraphNodeType *type) {
    *type = ((struct node *)node)->type;
    return type_says;
}

static CUresult get_params(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    const struct node *one = (struct node *)node;
    memset(params, 0, sizeof *params);
    params->poolProps.location.type = one->device < 0 ? 2 : CU_MEM_LOCATION_TYPE_DEVICE;
    params->poolProps.location.id = one->device;
    params->bytesize = one->bytes;
    return params_say;
}

static CUresult get_child(CUgraphNode node, CUgraph *graph) {
    *graph = graph_of(((struct node *)node)->child);
    return child_says;
}

static CUresult says, destroy_says;
static int fail_first; /* so many calls fail for want of memory */
static uint32_t calls, destroys, plain, per_thread_calls, asked_capture;
static uintptr_t next_exec = 0x1000;
static CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

static CUresult called(bool is_per_thread) {
    calls++;
    plain += !is_per_thread;
    per_thread_calls += is_per_thread;
    if (fail_first > 0) {
        fail_first--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return says;
}

static CUresult made(CUgraphExec *exec, bool is_per_thread) {
    CUresult result = called(is_per_thread);
    *exec = (CUgraphExec)(result == CUDA_SUCCESS ? next_exec : 0xdead);
    return result;
}

static CUresult instantiate_1(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size) {
    REQUIRE(graph == graph_of(0) && error_node == NULL && log == NULL && log_size == 9);
    return made(exec, false);
}

static CUresult instantiate_flags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    REQUIRE(graph == graph_of(0));
    return made(exec, false);
}

static CUresult instantiate_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    REQUIRE(graph == graph_of(0));
    (void)params;
    return made(exec, false);
}

static CUresult instantiate_params_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    REQUIRE(graph == graph_of(0));
    (void)params;
    return made(exec, true);
}

static CUresult run_plain(CUgraphExec exec, CUstream stream) {
    REQUIRE(exec != NULL && stream == (CUstream)0x5);
    return called(false);
}

static CUresult run_per_thread(CUgraphExec exec, CUstream stream) {
    REQUIRE(exec != NULL && stream == (CUstream)0x5);
    return called(true);
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    REQUIRE(stream == (CUstream)0x5);
    asked_capture++;
    *status = capture;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgraphExec exec) {
    REQUIRE(exec != NULL);
    destroys++;
    return destroy_says;
}

static CUresult trim(CUdevice device) {
    (void)device;
    calls++;
    return says;
}

/* ---- ways ----------------------------------------------------------------------------------------- */

#define CALLED(set) (calls = plain = per_thread_calls = 0, look(), (set))

static CUresult launch_by(bool is_per_thread, CUgraphExec exec) {
    CUstream stream = (CUstream)0x5;
    return is_per_thread ? cuGraphLaunch_ptsz(exec, stream) : cuGraphLaunch(exec, stream);
}

static CUresult upload_by(bool is_per_thread, CUgraphExec exec) {
    CUstream stream = (CUstream)0x5;
    return is_per_thread ? cuGraphUpload_ptsz(exec, stream) : cuGraphUpload(exec, stream);
}

/* Each way to instantiate the first graph, by its number. The first two know no flags. */
static CUresult instantiate_by(int way, CUgraphExec *exec, unsigned long long flags) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params;
    memset(&params, 0, sizeof params);
    params.flags = flags;
    next_exec += 0x100;
    switch (way) {
    case 0:
        return cuGraphInstantiate(exec, graph_of(0), NULL, NULL, 9);
    case 1:
        return cuGraphInstantiate_v2(exec, graph_of(0), NULL, NULL, 9);
    case 2:
        return cuGraphInstantiateWithFlags(exec, graph_of(0), flags);
    case 3:
        return cuGraphInstantiateWithParams(exec, graph_of(0), &params);
    default:
        return cuGraphInstantiateWithParams_ptsz(exec, graph_of(0), &params);
    }
}

static void begin(void) {
    at_fork();
    memset(graphs, 0, sizeof graphs);
    look();
    calls = plain = per_thread_calls = destroys = asked_capture = 0;
}

static void add(int graph, CUgraphNodeType type, uint64_t bytes, int device) {
    graphs[graph].nodes[graphs[graph].count++] = (struct node){type, bytes, device, 0};
}

static void add_child(int graph, int child) {
    graphs[graph].nodes[graphs[graph].count++] = (struct node){CU_GRAPH_NODE_TYPE_GRAPH, 0, 0, child};
}

static uint32_t units(uint64_t mib) {
    return (uint32_t)(mib * MIB / GS_UNIT_BYTES);
}

#define ALLOC  CU_GRAPH_NODE_TYPE_MEM_ALLOC
#define FREE   CU_GRAPH_NODE_TYPE_MEM_FREE
#define KERNEL CU_GRAPH_NODE_TYPE_KERNEL

/* What a launch of the first graph needs, as the pools hear it. */
static void needs(uint32_t first, uint32_t second) {
    CUgraphExec exec;
    REQUIRE(instantiate_by(2, &exec, 0) == CUDA_SUCCESS);
    REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && calls == 1);
    REQUIRE(entered(0, first != 0, first) && entered(1, second != 0, second));
    REQUIRE(pool[0].held == 0 && pool[0].good == (first != 0)); /* then it has its memory, until it is gone */
    REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && pool[0].held == (first != 0 ? 7 : 0));
    gone_held = 0;
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS && exec_count == 0 && pool[0].corrects == (first != 0));
    REQUIRE(gone_held == (first != 0 ? 7u : 0) + (second != 0 ? 7u : 0));
}

/* ---- what a graph needs --------------------------------------------------------------------------- */

static void counted(void) {
    begin();
    needs(0, 0);
    add(0, KERNEL, 9 * MIB, 0);
    needs(0, 0);
    add(0, ALLOC, 1, 0); /* in whole blocks */
    needs(units(2), 0);
    add(0, ALLOC, 2 * MIB, 0);
    add(0, ALLOC, 2 * MIB + 1, 1);
    add(0, ALLOC, 64 * MIB, -1); /* the host's */
    needs(units(4), units(4));
    add(0, ALLOC, 64 * MIB, GS_MAX_GPUS); /* more GPUs than anybody has */
    add(0, ALLOC, 64 * MIB, 5);           /* unknown to the driver */
    needs(units(4), units(4));
    add_child(0, 1);
    add(1, ALLOC, 6 * MIB, 0);
    add_child(1, 2);
    add(2, ALLOC, 8 * MIB, 1);
    needs(units(10), units(12));
    child_says = CUDA_ERROR_UNKNOWN;
    needs(units(4), units(4));
    child_says = CUDA_SUCCESS;
    graphs[2].fewer = 1; /* the driver tells fewer of them than it said there were */
    needs(units(10), units(4));
    params_say = CUDA_ERROR_UNKNOWN;
    needs(0, 0);
    params_say = CUDA_SUCCESS;
    type_says = CUDA_ERROR_UNKNOWN;
    needs(0, 0);
    type_says = CUDA_SUCCESS;
    nodes_say = CUDA_ERROR_UNKNOWN;
    needs(0, 0);
    nodes_say = CUDA_SUCCESS;

    begin();
    for (int i = 0; i < NODES; i++)
        add(0, ALLOC, 2 * MIB, i % 2);
    dropped_bytes = 0;
    needs(units(NODES), units(NODES));
    REQUIRE(dropped_bytes == NODES * sizeof(CUgraphNode));
    no_pages = true; /* without memory a large graph is left to measuring */
    struct need need = {0};
    GS_RELAXED(count_graph(graph_of(0), &need, 0));
    REQUIRE(!need.any);
    graphs[0].count = FEW_NODES; /* and a small one needs none */
    graphs[0].claims = 1;        /* what was not asked for is not looked at */
    dropped_bytes = 0;
    GS_RELAXED(count_graph(graph_of(0), &need, 0));
    REQUIRE(need.units[0] == units(FEW_NODES) && need.units[1] == units(FEW_NODES) && dropped_bytes == 0);
    no_pages = false;
    begin();
    add(0, ALLOC, UINT64_MAX, 0); /* more than any number says */
    add(0, ALLOC, 1ull << 40, 1);
    add(0, ALLOC, 1ull << 40, 1);
    needs(UINT32_MAX, UINT32_MAX);
    begin();
    add(0, ALLOC, 2 * MIB, 0); /* a graph within itself, which cannot be: it is left at some depth */
    add_child(0, 0);
    needs(units(2 * MOST_NESTED), 0);
}

/* ---- launches and uploads ------------------------------------------------------------------------- */

static CUgraphExec on_two_gpus(int way, unsigned long long flags) {
    CUgraphExec exec;
    begin();
    add(0, ALLOC, 2 * MIB, 0);
    add(0, ALLOC, 4 * MIB, 1);
    REQUIRE(instantiate_by(way, &exec, flags) == CUDA_SUCCESS && calls == 1 && pool[0].enters == 0);
    return exec;
}

static void launched(void) {
    for (int way = 0; way < 5; way++) {
        CUgraphExec exec = on_two_gpus(way, 0), other = (CUgraphExec)(uintptr_t)0x99;
        for (int kind = 0; kind < 4; kind++) {
            bool each = kind % 2, uploads = kind >= 2;
#define RUN(which) CALLED(uploads ? upload_by(each, which) : launch_by(each, which))
            REQUIRE(RUN(exec) == CUDA_SUCCESS && calls == 1 && per_thread_calls == each);
            REQUIRE(entered(0, 1, units(2)) && entered(1, 1, units(4)) && pool[0].leaves == 1 && pool[1].leaves == 1);
            REQUIRE(RUN(other) == CUDA_SUCCESS && calls == 1 && pool[0].enters == 0); /* it has no memory */
            refuses = 0;
            REQUIRE(RUN(exec) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0 && pool[0].leaves == 0 && pool[1].enters == 0);
            refuses = 1;
            REQUIRE(RUN(exec) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0 && pool[1].leaves == 0);
            REQUIRE(pool[0].leaves == 1 && !pool[0].inside);
            refuses = -1;
            worth_it = false;
            fail_first = 1; /* the daemon is told, for each GPU */
            REQUIRE(RUN(exec) == CUDA_ERROR_OUT_OF_MEMORY && calls == 1 && failures == 2 && failed_units == 5);
            worth_it = true;
            fail_first = 1;
            REQUIRE(RUN(exec) == CUDA_SUCCESS && calls == 2 && failures == 1 && pool[1].enters == 1);
            lacks[0] = lacks[1] = 0; /* no credit was taken for it: then that is not the matter */
            fail_first = 1;
            REQUIRE(RUN(exec) == CUDA_ERROR_OUT_OF_MEMORY && calls == 1 && failures == 0);
            lacks[0] = lacks[1] = 5;
            says = CUDA_ERROR_UNKNOWN;
            REQUIRE(RUN(exec) == CUDA_ERROR_UNKNOWN && calls == 1 && failures == 0 && pool[0].leaves == 1);
            REQUIRE(!pool[0].good && !pool[1].good);
            says = CUDA_SUCCESS;
            has_second = false;
            REQUIRE(RUN(exec) == CUDA_SUCCESS && calls == 1 && entered(0, 1, units(2)) && pool[1].enters == 0);
            has_second = true;
            has_first = false;
            REQUIRE(RUN(exec) == CUDA_SUCCESS && calls == 1 && pool[0].enters == 0 && entered(1, 1, units(4)));
            has_first = true;
            gs_mode = GS_INERT;
            REQUIRE(RUN(exec) == CUDA_SUCCESS && calls == 1 && pool[0].enters == 0);
            gs_mode = GS_ON;
        }
        gs_captures = 1; /* a launch that is captured takes nothing */
        capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        for (int each = 0; each < 2; each++)
            REQUIRE(CALLED(launch_by(each, exec)) == CUDA_SUCCESS && calls == 1 && pool[0].enters == 0);
        capture = CU_STREAM_CAPTURE_STATUS_NONE;
        for (int each = 0; each < 2; each++)
            REQUIRE(CALLED(launch_by(each, exec)) == CUDA_SUCCESS && calls == 1 && pool[0].enters == 1);
        REQUIRE(asked_capture == 4);
        gs_captures = 0;
    }
}

#define AUTO CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH

/* A launch that first frees what the last one left takes nothing more, if all of that is still there. */
static void frees_first(void) {
    for (int way = 2; way < 5; way++) {
        CUgraphExec exec = on_two_gpus(way, AUTO);
        bool expected[] = {false, true, true};
        for (int i = 0; i < 3; i++)
            REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && pool[0].frees_first == expected[i]);
        REQUIRE(pool[1].frees_first);
        REQUIRE(CALLED(upload_by(false, exec)) == CUDA_SUCCESS && !pool[0].frees_first);
        gs_unknown_frees++; /* perhaps of what it left */
        REQUIRE(CALLED(launch_by(true, exec)) == CUDA_SUCCESS && !pool[0].frees_first);
        REQUIRE(CALLED(launch_by(true, exec)) == CUDA_SUCCESS && pool[0].frees_first);
        says = CUDA_ERROR_UNKNOWN; /* who knows what a failed one has left */
        REQUIRE(CALLED(launch_by(false, exec)) == CUDA_ERROR_UNKNOWN && pool[0].frees_first);
        says = CUDA_SUCCESS;
        REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && !pool[0].frees_first);
        exec = on_two_gpus(way, 0);
        for (int i = 0; i < 3; i++)
            REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && !pool[0].frees_first);
        begin();
        add(0, ALLOC, 2 * MIB, 0);
        add(0, FREE, 0, 0); /* it frees by itself: then nobody knows what is left */
        REQUIRE(instantiate_by(way, &exec, AUTO) == CUDA_SUCCESS);
        uint32_t before = gs_unknown_frees;
        for (int i = 0; i < 3; i++)
            REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && !pool[0].frees_first);
        REQUIRE(gs_unknown_frees == before + 3);
    }
    for (int way = 0; way < 2; way++) { /* these know no such flag */
        CUgraphExec plainly = on_two_gpus(way, 0);
        for (int i = 0; i < 3; i++)
            REQUIRE(CALLED(launch_by(false, plainly)) == CUDA_SUCCESS && !pool[0].frees_first);
    }
    CUgraphExec exec;
    begin();
    add(0, FREE, 0, 0); /* a graph that only frees is noted, too */
    REQUIRE(instantiate_by(0, &exec, 0) == CUDA_SUCCESS && exec_count == 1);
    uint32_t before = gs_unknown_frees;
    REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && pool[0].enters == 0 && gs_unknown_frees == before + 1);
}

/* ---- instantiating -------------------------------------------------------------------------------- */

#define UPLOAD CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD

static void instantiated_and_uploaded(void) {
    for (int way = 3; way < 5; way++) {
        CUgraphExec exec;
        begin();
        REQUIRE(CALLED(instantiate_by(way, &exec, UPLOAD)) == CUDA_SUCCESS && pool[0].enters == 0 && exec_count == 0);
        add(0, ALLOC, 2 * MIB, 0);
        REQUIRE(CALLED(instantiate_by(way, &exec, UPLOAD)) == CUDA_SUCCESS && entered(0, 1, units(2)));
        REQUIRE(!pool[0].frees_first && calls == 1 && per_thread_calls == (way == 4) && exec_count == 1);
        REQUIRE(pool[0].held == 0 && !pool[0].good); /* it has run nothing yet */
        REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && entered(0, 1, units(2)));
        refuses = 0;
        REQUIRE(CALLED(instantiate_by(way, &exec, UPLOAD)) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0);
        REQUIRE(CALLED(instantiate_by(way, &exec, 0)) == CUDA_SUCCESS && calls == 1); /* alone it is never refused */
        refuses = -1;
        uint32_t before = exec_count;
        says = CUDA_ERROR_UNKNOWN;
        REQUIRE(CALLED(instantiate_by(way, &exec, UPLOAD)) == CUDA_ERROR_UNKNOWN && exec_count == before);
        says = CUDA_SUCCESS;
    }
    CUgraphExec exec;
    begin();
    add(0, ALLOC, 2 * MIB, 0);
    REQUIRE(cuGraphInstantiateWithParams(&exec, graph_of(0), NULL) == CUDA_SUCCESS && exec_count == 0);
    gs_mode = GS_INERT;
    for (int way = 0; way < 5; way++)
        REQUIRE(instantiate_by(way, &exec, UPLOAD) == CUDA_SUCCESS && exec_count == 0 && pool[0].enters == 0);
    gs_mode = GS_ON;
    for (int way = 0; way < 5; way++) {
        says = CUDA_ERROR_UNKNOWN;
        REQUIRE(instantiate_by(way, &exec, 0) == CUDA_ERROR_UNKNOWN && exec_count == 0);
        says = CUDA_SUCCESS;
        REQUIRE(instantiate_by(way, &exec, 0) == CUDA_SUCCESS && exec_count == 1);
        REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS && exec_count == 0);
    }
}

static void destroyed(void) {
    CUgraphExec exec = on_two_gpus(1, 0);
    destroy_says = CUDA_ERROR_UNKNOWN;
    look();
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_ERROR_UNKNOWN && pool[0].corrects == 0 && exec_count == 1);
    destroy_says = CUDA_SUCCESS;
    REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && pool[0].enters == 1); /* it is there still */
    gs_gpus[1].line = NULL;
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS && pool[0].corrects == 1 && pool[1].corrects == 0);
    gs_gpus[1].line = &lines[1];
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS && pool[0].corrects == 1 && destroys == 3);
    exec = on_two_gpus(1, 0);
    gs_mode = GS_INERT;
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS && pool[1].corrects == 0 && exec_count == 1);
    gs_mode = GS_ON;
    has_second = false;
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS && pool[0].corrects == 1 && pool[1].corrects == 0);
    has_second = true;

    begin(); /* the numbers of those that are gone are used again */
    add(0, ALLOC, 2 * MIB, 0);
    CUgraphExec many[300];
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 300; i++) { /* each with a need of its own */
            graphs[0].nodes[0].bytes = (i + 1) * 2 * MIB;
            REQUIRE(instantiate_by(1, &many[i], 0) == CUDA_SUCCESS);
        }
        REQUIRE(need_count == 300 && exec_count == 300);
        for (uint32_t i = 0; i < 300; i++)
            REQUIRE(CALLED(launch_by(false, many[i])) == CUDA_SUCCESS && entered(0, 1, units((i + 1) * 2)) &&
                    pool[0].held == 0);
        for (int i = 0; i < 300; i++)
            REQUIRE(cuGraphExecDestroy(many[i]) == CUDA_SUCCESS);
        REQUIRE(exec_count == 0 && need_count == 300);
    }
    REQUIRE(instantiate_by(1, &exec, 0) == CUDA_SUCCESS);
    next_exec -= 0x100; /* a handle that comes again is another one's */
    graphs[0].nodes[0].bytes = 6 * MIB;
    REQUIRE(instantiate_by(1, &exec, 0) == CUDA_SUCCESS && exec_count == 1 && need_count == 300);
    REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && entered(0, 1, units(6)));
}

/* Without memory to note it a graph is not counted either. */
static void not_noted(void) {
    CUgraphExec exec, many[300];
    uint32_t noted = 0;
    begin();
    add(0, ALLOC, 2 * MIB, 0);
    REQUIRE(instantiate_by(1, &exec, 0) == CUDA_SUCCESS && exec_count == 1);
    no_pages = true;
    for (int i = 0; i < 300; i++)
        REQUIRE(instantiate_by(1, &many[i], 0) == CUDA_SUCCESS);
    no_pages = false;
    for (int i = 0; i < 300; i++) {
        REQUIRE(CALLED(launch_by(false, many[i])) == CUDA_SUCCESS && calls == 1);
        noted += pool[0].enters;
    }
    REQUIRE(noted < 200 && exec_count == noted + 1);
}

static void trimmed(void) {
    begin();
    REQUIRE(cuDeviceGraphMemTrim(1) == CUDA_SUCCESS && pool[1].corrects == 1 && pool[0].corrects == 0 && calls == 1);
    says = CUDA_ERROR_UNKNOWN;
    REQUIRE(cuDeviceGraphMemTrim(1) == CUDA_ERROR_UNKNOWN && pool[1].corrects == 1);
    says = CUDA_SUCCESS;
    REQUIRE(cuDeviceGraphMemTrim(7) == CUDA_SUCCESS);
    gs_gpus[1].line = NULL;
    REQUIRE(cuDeviceGraphMemTrim(1) == CUDA_SUCCESS && pool[1].corrects == 1);
    gs_gpus[1].line = &lines[1];
    gs_mode = GS_INERT;
    REQUIRE(cuDeviceGraphMemTrim(1) == CUDA_SUCCESS && pool[1].corrects == 1 && calls == 5);
    gs_mode = GS_ON;
}

static void fork_forgets(void) {
    CUgraphExec exec = on_two_gpus(1, 0);
    needs_lock.held = 1;
    at_fork();
    struct gs_entry entry;
    REQUIRE(!gs_table_find(&execs, (uint64_t)(uintptr_t)exec, &entry));
    REQUIRE(exec_count == 0 && need_count == 0 && first_free == 0 && chunks[0] == NULL && needs_lock.held == 0);
    REQUIRE(CALLED(launch_by(false, exec)) == CUDA_SUCCESS && pool[0].enters == 0);
}

int main(void) {
    open_bank();
    gs_driver.cuGraphGetNodes = get_nodes;
    gs_driver.cuGraphNodeGetType = get_type;
    gs_driver.cuGraphMemAllocNodeGetParams = get_params;
    gs_driver.cuGraphChildGraphNodeGetGraph = get_child;
    gs_driver.cuGraphInstantiate = gs_driver.cuGraphInstantiate_v2 = instantiate_1;
    gs_driver.cuGraphInstantiateWithFlags = instantiate_flags;
    gs_driver.cuGraphInstantiateWithParams = instantiate_params;
    gs_driver.cuGraphInstantiateWithParams_ptsz = instantiate_params_ptsz;
    gs_driver.cuGraphLaunch = gs_driver.cuGraphUpload = run_plain;
    gs_driver.cuGraphLaunch_ptsz = gs_driver.cuGraphUpload_ptsz = run_per_thread;
    gs_driver.cuStreamIsCapturing = gs_driver.cuStreamIsCapturing_ptsz = is_capturing;
    gs_driver.cuGraphExecDestroy = destroy;
    gs_driver.cuDeviceGraphMemTrim = trim;
    counted();
    launched();
    frees_first();
    instantiated_and_uploaded();
    destroyed();
    not_noted();
    trimmed();
    fork_forgets();
    return good();
}
