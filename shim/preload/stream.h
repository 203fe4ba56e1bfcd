/* stream.h: what is known of streams: which are being captured, and which GPU one belongs to.
 *
 * While a program captures a graph, many calls are forbidden to all of its threads, and the allocators of its
 * frameworks are between two states. So nothing is trimmed then. The driver tells whether one stream is captured, not
 * whether any is. So the streams in which captures began are kept in a list until their captures end: by the call for
 * it, or with the stream or its context.
 */
#ifndef GPUSHARE_PRELOAD_STREAM_H
#define GPUSHARE_PRELOAD_STREAM_H

#include "device.h"

/* A capture in the list. `stream` NULL: none. */
struct gs_capture {
    CUstream stream;
    uint32_t thread; /* of the per-thread stream, which is another one in each */
    uint32_t context;
};

/* Before the driver is asked to begin one: there is no moment at which a stream is captured and not in the list. */
void gs_capture_add(CUstream stream);

/* Take it out; returns what was there. */
struct gs_capture gs_capture_take(CUstream stream);
void gs_capture_put_back(struct gs_capture capture);

extern uint32_t gs_captures;      /* in the list */
extern uint32_t gs_captures_lost; /* that the list had no room for: since the first, streams are asked one by one */

/* Whether any stream of the process is being captured. */
static inline bool gs_capture_is_underway(void) {
    return __builtin_expect(__atomic_load_n(&gs_captures, __ATOMIC_ACQUIRE) != 0, 0);
}

/* Whether what is put into the stream becomes part of a graph: then nothing is allocated, and little is allowed. A
 * stream may have joined the capture of another; so the driver is asked while there is any. */
static inline bool gs_stream_is_captured(CUresult (*ask)(CUstream, CUstreamCaptureStatus *), CUstream stream) {
    if (__builtin_expect(!gs_capture_is_underway() && !__atomic_load_n(&gs_captures_lost, __ATOMIC_RELAXED), 1))
        return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* An error says that another stream's capture forbids this one's use: the driver shall say so. */
    return ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* NULL: that of the current context. */
struct gs_gpu *gs_stream_gpu(CUstream stream);

/* The stream is about to be destroyed. */
void gs_stream_gone(CUstream stream);

/* A context has ended, with all of its streams and captures. */
void gs_streams_context_gone(uint32_t context);

/* Forget which GPU each stream belongs to. */
void gs_streams_unknown(void);

#endif
