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

/* Trim something: which may be forbidden while some thread captures, unless this one says that it knows. */
#define GS_RELAXED(call)                                                                                               \
    do {                                                                                                               \
        CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;                                                    \
        bool relaxed_ = gs_driver.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;                           \
        gs_driver.call;                                                                                                \
        if (relaxed_)                                                                                                  \
            gs_driver.cuThreadExchangeStreamCaptureMode(&mode_);                                                       \
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

/* Whether any stream of the process is being captured (hook_capture.c); and the end of a context, of its captures. */
bool gs_capture_is_underway(void);
void gs_capture_context_gone(uint32_t context);

/* Make a context of the program on this GPU current, the primary one if that is open. false: there is none. No other
 * thread ends it meanwhile: an old handle may be one that the driver trips over. */
bool gs_context_enter(const struct gs_gpu *gpu, bool *primary);

void gs_context_forget(void);
void gs_pool_forget(void);
void gs_graph_forget(void);
void gs_vmm_forget(void);
void gs_multicast_forget(void);
void gs_array_forget(void);
void gs_capture_forget(void);

#endif
