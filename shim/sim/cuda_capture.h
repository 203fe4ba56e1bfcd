/* cuda_capture.h: capturing what is put into streams as a graph. See cuda_capture.c. */
#ifndef GPUSHARE_SIM_CUDA_CAPTURE_H
#define GPUSHARE_SIM_CUDA_CAPTURE_H

#include "cuda_api.h"
#include "cuda_graph.h"

#include <stdatomic.h>

/* Where a stream, or an event recorded in one, stands in a capture. */
struct branch {
    uint64_t capture;     /* its number; 0, or one that is over: none */
    struct node_set tail; /* what the next node comes after */
};

extern _Atomic int capture_count;

bool capture_concerns_slowly(CUstream stream);
CUresult capture_permits_slowly(void);
/* The same at a call of this function, where captures=strict: it is forbidden unless CUDA documents that it is not. */
CUresult capture_permits_strictly(enum api_function function);

/* Whether an operation in this stream is not to be done: it is for capture_add. Without the lock. */
static inline bool capture_concerns(CUstream stream) {
    return __builtin_expect(atomic_load(&capture_count) != 0, 0) && capture_concerns_slowly(stream);
}

/* Adds the operation to the capture of the stream, or says why it may not be there. Without the lock. */
CUresult capture_add(CUstream stream, const struct operation *operation);
/* The same for an operation that cannot be captured. */
CUresult capture_refuse(CUstream stream);

/* For functions that a capture in progress forbids. Without the lock. */
static inline CUresult capture_permits(void) {
    return __builtin_expect(atomic_load(&capture_count) != 0, 0) ? capture_permits_slowly() : CUDA_SUCCESS;
}
#define UNSAFE(expression)                                                                                             \
    ({                                                                                                                 \
        CUresult permitted_ = capture_permits();                                                                       \
        permitted_ != CUDA_SUCCESS ? permitted_ : (expression);                                                        \
    })

/* An event is recorded in a stream, or a stream waits for one. Under the lock; for a stream that is concerned, or an
 * event that is captured. */
bool capture_has(const struct branch *branch);
CUresult capture_record(CUstream stream, struct branch *event);
CUresult capture_wait(CUstream stream, const struct branch *event);
/* The stream is destroyed. Under the lock. */
void capture_stream_gone(CUstream stream);

#endif
