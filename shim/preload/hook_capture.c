/* hook_capture.c: which streams are being captured.
 *
 * While a program records a graph, much is forbidden to all of its threads, and what its frameworks' allocators think
 * of their memory is in between two states. So nothing is trimmed then, and for that we must know. The driver tells
 * about a stream only, not about the process; so the streams in which captures began are kept in a list until their
 * captures end, whichever way: by the call for it, or with the stream or its context.
 *
 * What is not seen: more captures at once than the list holds.
 */
#include "hooks.h"

#include <string.h>

#define MAX_CAPTURES 64

struct capture {
    CUstream stream; /* NULL: a free place */
    uint32_t thread; /* of the per-thread stream, which is another one in each */
    uint32_t context;
};

static struct capture captures[MAX_CAPTURES];
static uint32_t capture_count;
static struct gs_lock captures_lock;

bool gs_capture_is_underway(void) {
    return __atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) != 0;
}

static struct capture describe(CUstream stream) {
    struct capture capture = {.stream = stream};
    if (stream == CU_STREAM_PER_THREAD)
        capture.thread = (uint32_t)GS_CALL(SYS_gettid);
    return capture;
}

static bool same(const struct capture *a, const struct capture *b) {
    return a->stream == b->stream && a->thread == b->thread;
}

static void add(struct capture capture) {
    gs_lock(&captures_lock);
    for (int i = 0; i < MAX_CAPTURES; i++) {
        if (captures[i].stream != NULL)
            continue;
        captures[i] = capture;
        __atomic_fetch_add(&capture_count, 1, __ATOMIC_RELEASE);
        break;
    }
    gs_unlock(&captures_lock);
}

/* Under the lock. */
static void drop(struct capture *capture) {
    *capture = (struct capture){0};
    __atomic_fetch_sub(&capture_count, 1, __ATOMIC_RELEASE);
}

/* Take it out; what was there, or one without a stream. */
static struct capture take(struct capture wanted) {
    struct capture taken = {0};
    gs_lock(&captures_lock);
    for (int i = 0; i < MAX_CAPTURES && taken.stream == NULL; i++) {
        if (captures[i].stream == NULL || !same(&captures[i], &wanted))
            continue;
        taken = captures[i];
        drop(&captures[i]);
    }
    gs_unlock(&captures_lock);
    return taken;
}

void gs_capture_context_gone(uint32_t context) {
    if (!gs_capture_is_underway())
        return;
    gs_lock(&captures_lock);
    for (int i = 0; i < MAX_CAPTURES; i++)
        if (captures[i].stream != NULL && captures[i].context == context)
            drop(&captures[i]);
    gs_unlock(&captures_lock);
}

/* Noted before the driver is asked: there is no moment at which a stream is captured and not in the list. */
static void will_begin(CUstream stream) {
    struct capture capture = describe(stream);
    struct gs_place place = {0};
    CUcontext context = NULL;
    CUresult asked = CUDA_SUCCESS;
    if (stream == CU_STREAM_PER_THREAD)
        asked = gs_driver.cuCtxGetCurrent(&context);
    else
        GS_RELAXED(asked = gs_driver.cuStreamGetCtx(stream, &context));
    if (asked == CUDA_SUCCESS && gs_context_find(context, &place))
        capture.context = place.context;
    add(capture);
    gs_pool_await_calls();
    gs_graph_await_calls();
}

static CUstream legacy_of(CUstream stream) {
    return stream == NULL ? CU_STREAM_LEGACY : stream;
}

static CUstream per_thread_of(CUstream stream) {
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* A call to end one that fails may have ended it all the same: a capture that was spoilt ends so. */
#define BEGIN(call, stream_)                                                                                           \
    bool on = gs_on();                                                                                                 \
    if (on)                                                                                                            \
        will_begin(stream_);                                                                                           \
    CUresult result = gs_driver.call;                                                                                  \
    if (on && result != CUDA_SUCCESS)                                                                                  \
        take(describe(stream_));                                                                                       \
    return result

#define TWIN(suffix, name_of)                                                                                          \
    CUresult cuStreamBeginCapture##suffix(CUstream stream) {                                                           \
        BEGIN(cuStreamBeginCapture##suffix(stream), name_of(stream));                                                  \
    }                                                                                                                  \
    CUresult cuStreamBeginCapture_v2##suffix(CUstream stream, CUstreamCaptureMode mode) {                              \
        BEGIN(cuStreamBeginCapture_v2##suffix(stream, mode), name_of(stream));                                         \
    }                                                                                                                  \
    CUresult cuStreamBeginCaptureToGraph##suffix(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,      \
                                                 const CUgraphEdgeData *edges, size_t count,                           \
                                                 CUstreamCaptureMode mode) {                                           \
        BEGIN(cuStreamBeginCaptureToGraph##suffix(stream, graph, dependencies, edges, count, mode), name_of(stream));  \
    }                                                                                                                  \
    CUresult cuStreamBeginRecaptureToGraph##suffix(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,           \
                                                   CUgraphRecaptureCallback function, void *data) {                    \
        BEGIN(cuStreamBeginRecaptureToGraph##suffix(stream, mode, graph, function, data), name_of(stream));            \
    }                                                                                                                  \
    CUresult cuStreamEndCapture##suffix(CUstream stream, CUgraph *graph) {                                             \
        bool on = gs_on();                                                                                             \
        CUresult result = gs_driver.cuStreamEndCapture##suffix(stream, graph);                                         \
        if (on && (result == CUDA_SUCCESS || !gs_is_capturing(gs_driver.cuStreamIsCapturing##suffix, stream)))         \
            take(describe(name_of(stream)));                                                                           \
        return result;                                                                                                 \
    }

TWIN(, legacy_of)
TWIN(_ptsz, per_thread_of)

/* Out of the list before the driver destroys it: afterwards its handle may be another's. */
#define DESTROY(call)                                                                                                  \
    struct capture taken = {0};                                                                                        \
    if (gs_on()) {                                                                                                     \
        gs_stream_gone(stream);                                                                                        \
        if (gs_capture_is_underway())                                                                                  \
            taken = take(describe(stream));                                                                            \
    }                                                                                                                  \
    CUresult result = gs_driver.call;                                                                                  \
    if (result != CUDA_SUCCESS && taken.stream != NULL)                                                                \
        add(taken);                                                                                                    \
    return result

CUresult cuStreamDestroy(CUstream stream) {
    DESTROY(cuStreamDestroy(stream));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    DESTROY(cuStreamDestroy_v2(stream));
}

void gs_capture_forget(void) {
    memset(captures, 0, sizeof captures);
    capture_count = 0;
    captures_lock = (struct gs_lock){0};
}
