/* cuda_stream.h: streams, and the thread that runs programs' functions in them. See cuda_stream.c. */
#ifndef GPUSHARE_SIM_CUDA_STREAM_H
#define GPUSHARE_SIM_CUDA_STREAM_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct branch;

#define STREAM_LEAST_PRIORITY    0
#define STREAM_GREATEST_PRIORITY (-5)

/* Refuses a handle that is no stream, and waits for the program's functions that were put into it before. Every
 * operation in a stream starts with it; without the lock held. */
CUresult stream_enter(CUstream stream);
/* A stream of this context, and of a green one if that is not NULL; under the lock. */
CUresult stream_create(CUstream *stream, CUcontext context, CUgreenCtx green, unsigned int flags, int priority);
/* Refuses a handle that is no stream; under the lock, as are the next three. */
CUresult stream_check(CUstream stream);
/* The device that a stream works on. */
CUresult stream_device(CUstream stream, CUdevice *device);
/* Where a created stream stands in a capture; NULL for the others, which cannot be captured. */
struct branch *stream_branch(CUstream stream);
/* A stream being captured that the legacy default stream would have to wait for. */
struct branch *stream_implied(void);
/* Waits for all streams, as a synchronise of the device does, and lets its pools give back what they may. */
CUresult streams_synchronize(CUdevice device);
/* The same for an event: the functions before it in its stream had ended when it was recorded, and no others matter. */
CUresult streams_synchronize_event(CUdevice device);
/* Has a function of the program called on the driver's thread, after no particular work; nothing waits for it. */
bool stream_call_apart(CUhostFn function, void *data);
/* The streams of a context end with it. Called under the lock. */
void streams_end(CUcontext context);

#endif
