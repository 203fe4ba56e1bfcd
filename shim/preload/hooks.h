/* hooks.h: what the families of hooks need of each other. */
#ifndef GPUSHARE_PRELOAD_HOOKS_H
#define GPUSHARE_PRELOAD_HOOKS_H

#include "charge.h"

extern struct gs_table gs_arrays;

/* A pooled pointer has been freed, by whichever function. */
void gs_pool_freed(const struct gs_entry *entry);

/* Whether what is put into the stream becomes part of a graph: then nothing is allocated, and little is allowed. */
static inline bool gs_is_capturing(CUresult (*ask)(CUstream, CUstreamCaptureStatus *), CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* An error says that another stream's capture forbids this one's use: the driver shall say so. */
    return ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Statements that call the driver for ourselves. Some calls are forbidden while any thread captures, and which is not
 * documented in full: one that is fails, and spoils the capture. A thread in the relaxed mode may make them all. */
#define GS_RELAXED(statements)                                                                                         \
    do {                                                                                                               \
        CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;                                                    \
        bool relaxed_ = gs_driver.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;                           \
        statements;                                                                                                    \
        if (relaxed_)                                                                                                  \
            gs_driver.cuThreadExchangeStreamCaptureMode(&mode_);                                                       \
    } while (0)

/* The same where it is asked for often. The caller holds a pool's mutex, which a capture waits for before it begins: so
 * none begins between the look and the call. */
#define GS_RELAXED_IN_CAPTURES(statements)                                                                             \
    do {                                                                                                               \
        if (__builtin_expect(gs_capture_is_underway(), 0))                                                             \
            GS_RELAXED(statements);                                                                                    \
        else                                                                                                           \
            statements;                                                                                                \
    } while (0)

/* Memory with a handle, by number (hook_vmm.c): held by each reference, mapping and binding until that has ended. */
bool gs_block_find(uint64_t handle, uint32_t *number);
bool gs_block_mapped_at(uint64_t address, uint32_t *number);
const struct gs_gpu *gs_block_gpu(uint32_t number);
void gs_block_hold(uint32_t number);
void gs_block_let_go(uint32_t number);

/* A pointer that the table does not know is about to be freed: it may be a graph's (hook_graph.c). */
extern uint32_t gs_graph_frees;
static inline void gs_graph_may_free(CUdeviceptr pointer) {
    if (pointer != 0)
        __atomic_fetch_add(&gs_graph_frees, 1, __ATOMIC_RELAXED);
}

/* A multicast object is gone, and with it what was bound to it. */
void gs_multicast_gone(uint32_t object);

/* A capture is about to begin and is known by gs_capture_is_underway: wait for calls that did not know of it yet. */
void gs_pool_await_calls(void);
void gs_graph_await_calls(void);

/* A stream is about to be destroyed; a context has ended, with all of its streams (hook_pool.c). */
void gs_stream_gone(CUstream stream);
void gs_pool_context_gone(void);

/* Whether any stream of the process is being captured (hook_capture.c); and the end of a context, of its captures. */
bool gs_capture_is_underway(void);
void gs_capture_context_gone(uint32_t context);

/* Make a context of the program on this GPU current, the primary one if that is open. false: there is none. No other
 * thread ends it meanwhile: an old handle may be one that the driver trips over. */
bool gs_context_enter(const struct gs_gpu *gpu, bool *primary);

/* A context has ended, and the memory behind its limits with it (hook_limit.c). */
void gs_limit_context_gone(uint32_t context);

/* The primary context of a GPU has been reset. What belongs to the device and not to the context stays, as CUDA
 * documents it; if a driver ends that too, it is no longer charged, as far as the driver can be asked. */
void gs_pool_was_reset(const struct gs_gpu *gpu);
void gs_vmm_was_reset(const struct gs_gpu *gpu);

void gs_context_forget(void);
void gs_pool_forget(void);
void gs_graph_forget(void);
void gs_vmm_forget(void);
void gs_multicast_forget(void);
void gs_array_forget(void);
void gs_capture_forget(void);
void gs_limit_forget(void);

#endif
