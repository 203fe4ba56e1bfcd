/* hook_capture.c: captures begin and end (stream.h keeps the list). */
#include "hooks.h"
#include "stream.h"

/* The handle of the default stream means another stream in each variant. */
static CUstream legacy_of(CUstream stream) {
    return stream == NULL ? CU_STREAM_LEGACY : stream;
}

static CUstream per_thread_of(CUstream stream) {
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

static bool begins(CUstream stream) {
    bool on = gs_on();
    if (on)
        gs_capture_add(stream);
    return on;
}

/* A capture was to begin. */
static CUresult begun(CUresult result, bool on, CUstream stream) {
    if (on && result != CUDA_SUCCESS)
        gs_capture_take(stream);
    return result;
}

/* A call to end one that fails may have ended it all the same: a capture that was spoilt ends so. */
static CUresult ended(CUresult result, __typeof__(&cuStreamIsCapturing) ask, CUstream asked, CUstream stream) {
    if (gs_on() && (result == CUDA_SUCCESS || !gs_stream_is_captured(ask, asked)))
        gs_capture_take(stream);
    return result;
}

#define BEGIN(call, stream)                                                                                            \
    bool on = begins(stream);                                                                                          \
    return begun(gs_driver.call, on, stream)

CUresult cuStreamBeginCapture(CUstream stream) {
    BEGIN(cuStreamBeginCapture(stream), legacy_of(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    BEGIN(cuStreamBeginCapture_ptsz(stream), per_thread_of(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(cuStreamBeginCapture_v2(stream, mode), legacy_of(stream));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(cuStreamBeginCapture_v2_ptsz(stream, mode), per_thread_of(stream));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    BEGIN(cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode), legacy_of(stream));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    BEGIN(cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, edges, count, mode), per_thread_of(stream));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                       CUgraphRecaptureCallback function, void *data) {
    BEGIN(cuStreamBeginRecaptureToGraph(stream, mode, graph, function, data), legacy_of(stream));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                            CUgraphRecaptureCallback function, void *data) {
    BEGIN(cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, function, data), per_thread_of(stream));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    gs_on();
    CUresult result = gs_driver.cuStreamEndCapture(stream, graph);
    return ended(result, gs_driver.cuStreamIsCapturing, stream, legacy_of(stream));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    gs_on();
    CUresult result = gs_driver.cuStreamEndCapture_ptsz(stream, graph);
    return ended(result, gs_driver.cuStreamIsCapturing_ptsz, stream, per_thread_of(stream));
}

/* Out of the list before the driver destroys it: afterwards its handle may be another's. */
static struct gs_capture destroying(CUstream stream) {
    if (!gs_on())
        return (struct gs_capture){0};
    gs_stream_gone(stream);
    return gs_capture_is_underway() ? gs_capture_take(stream) : (struct gs_capture){0};
}

static CUresult destroyed(CUresult result, struct gs_capture taken) {
    if (result != CUDA_SUCCESS && taken.stream != NULL)
        gs_capture_put_back(taken);
    return result;
}

CUresult cuStreamDestroy(CUstream stream) {
    struct gs_capture taken = destroying(stream);
    return destroyed(gs_driver.cuStreamDestroy(stream), taken);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    struct gs_capture taken = destroying(stream);
    return destroyed(gs_driver.cuStreamDestroy_v2(stream), taken);
}
