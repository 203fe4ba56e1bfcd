/* cuda_stream.c: streams, and the thread that runs programs' functions in them.
 *
 * Work is done when it is put into a stream, so a stream is always empty, with one exception: functions of the
 * program (callbacks) run on a thread of the driver's, in the order in which they came. A program may hold a lock
 * that its callback takes, so running them in the calling thread would deadlock. What is put into a stream after a
 * callback waits for it.
 */
#define _GNU_SOURCE
#include "cuda_stream.h"

#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_device.h"
#include "cuda_green.h"
#include "cuda_handle.h"
#include "cuda_mempool.h"
#include "cuda_operations.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

struct CUstream_st {
    CUcontext context;
    CUgreenCtx green; /* NULL for most */
    unsigned int flags;
    int priority;
    uint64_t id;
    struct branch branch;
    CUstream previous, next;
};

/* A program's function waiting for its turn. */
struct call {
    CUstream stream;
    CUhostFn function;
    CUstreamCallback callback; /* if there is no function */
    void *data;
    bool apart; /* no stream waits for it */
    struct call *next;
};

static CUstream streams;
static uint64_t last_id = 16; /* those below are for the streams that need no creating */

static pthread_mutex_t call_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t call_arrived = PTHREAD_COND_INITIALIZER;
static pthread_cond_t call_done = PTHREAD_COND_INITIALIZER;
static struct call *first_call, **last_call = &first_call;
static _Atomic int calls_pending; /* waiting or running */
static bool caller_running;
static __thread bool is_caller;

static bool is_default(CUstream stream) {
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static CUresult check(CUstream stream, CUcontext *context) {
    if (is_default(stream)) {
        return context_current(context);
    }
    if (!handle_is(stream, HANDLE_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *context = stream->context;
    return CUDA_SUCCESS;
}

CUresult stream_check(CUstream stream) {
    CUcontext context;
    return check(stream, &context);
}

struct branch *stream_branch(CUstream stream) {
    return is_default(stream) || !handle_is(stream, HANDLE_STREAM) ? NULL : &stream->branch;
}

struct branch *stream_implied(void) {
    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        if ((stream->flags & CU_STREAM_NON_BLOCKING) == 0 && capture_has(&stream->branch)) {
            return &stream->branch;
        }
    }
    return NULL;
}

/* Whether a callback of this stream, or of any for a default stream, is still to end. */
static bool busy(CUstream stream) {
    for (const struct call *call = first_call; call != NULL; call = call->next) {
        if (!call->apart && (is_default(stream) || call->stream == stream)) {
            return true;
        }
    }
    return false;
}

static void *run_calls(void *unused) {
    (void)unused;
    is_caller = true;
    pthread_mutex_lock(&call_mutex);
    for (;;) {
        struct call *call = first_call;
        if (call == NULL) {
            pthread_cond_wait(&call_arrived, &call_mutex);
            continue;
        }
        pthread_mutex_unlock(&call_mutex);
        if (call->function != NULL) {
            call->function(call->data);
        } else {
            call->callback(call->stream, CUDA_SUCCESS, call->data);
        }
        pthread_mutex_lock(&call_mutex);
        first_call = call->next;
        if (first_call == NULL) {
            last_call = &first_call;
        }
        free(call);
        atomic_fetch_sub(&calls_pending, 1);
        pthread_cond_broadcast(&call_done);
    }
    return NULL;
}

/* The thread takes no signals: those are for the program's own threads. */
static bool start_caller(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, run_calls, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

static CUresult put(struct call content) {
    struct call *call = malloc(sizeof *call);
    if (call == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *call = content;
    pthread_mutex_lock(&call_mutex);
    if (!caller_running && !(caller_running = start_caller())) {
        pthread_mutex_unlock(&call_mutex);
        free(call);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *last_call = call;
    last_call = &call->next;
    atomic_fetch_add(&calls_pending, 1);
    pthread_cond_signal(&call_arrived);
    pthread_mutex_unlock(&call_mutex);
    return CUDA_SUCCESS;
}

static CUresult put_call(CUstream stream, CUhostFn function, CUstreamCallback callback, void *data) {
    CUcontext context;
    if (function == NULL && callback == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = LOCKED(check(stream, &context));
    return result != CUDA_SUCCESS
               ? result
               : put((struct call){.stream = stream, .function = function, .callback = callback, .data = data});
}

bool stream_call_apart(CUhostFn function, void *data) {
    return put((struct call){.function = function, .data = data, .apart = true}) == CUDA_SUCCESS;
}

/* Waits for the callbacks of a stream; one of them must not, since it would wait for itself. */
static CUresult wait_for_calls(CUstream stream) {
    if (atomic_load(&calls_pending) == 0) {
        return CUDA_SUCCESS;
    }
    if (is_caller) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    pthread_mutex_lock(&call_mutex);
    while (busy(stream)) {
        pthread_cond_wait(&call_done, &call_mutex);
    }
    pthread_mutex_unlock(&call_mutex);
    return CUDA_SUCCESS;
}

CUresult stream_enter(CUstream stream) {
    CUcontext context;
    CUresult result = LOCKED(check(stream, &context));
    return result != CUDA_SUCCESS ? result : wait_for_calls(stream);
}

/* Of all streams: the clock of a GPU knows none. */
static void wait_for_work(CUdevice ordinal) {
    struct device *device = device_get(ordinal);
    if (device != NULL) {
        pool_work_done(device->gpu);
    }
}

static CUresult finish(CUdevice device) {
    wait_for_work(device);
    mempools_trim_to_thresholds(device);
    return CUDA_SUCCESS;
}

CUresult streams_synchronize(CUdevice device) {
    CUresult result = UNSAFE(wait_for_calls(NULL));
    return result != CUDA_SUCCESS ? result : finish(device);
}

CUresult streams_synchronize_event(CUdevice device) {
    CUresult result = UNSAFE(is_caller ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS);
    return result != CUDA_SUCCESS ? result : finish(device);
}

static void end_stream(CUstream stream) {
    capture_stream_gone(stream);
    if (stream->previous != NULL) {
        stream->previous->next = stream->next;
    } else {
        streams = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->previous = stream->previous;
    }
    handle_end(stream);
}

void streams_end(CUcontext context) {
    for (CUstream stream = streams, next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->context == context) {
            end_stream(stream);
        }
    }
}

CUresult stream_create(CUstream *stream, CUcontext context, CUgreenCtx green, unsigned int flags, int priority) {
    if (stream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstream fresh = handle_new(HANDLE_STREAM, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->context = context;
    fresh->green = green;
    fresh->flags = flags;
    fresh->priority = priority < STREAM_GREATEST_PRIORITY ? STREAM_GREATEST_PRIORITY
                      : priority > STREAM_LEAST_PRIORITY  ? STREAM_LEAST_PRIORITY
                                                          : priority;
    fresh->id = ++last_id;
    fresh->next = streams;
    if (streams != NULL) {
        streams->previous = fresh;
    }
    streams = fresh;
    *stream = fresh;
    return CUDA_SUCCESS;
}

static CUresult create(CUstream *stream, unsigned int flags, int priority) {
    CUcontext context;
    CUresult result = context_current(&context);
    return result != CUDA_SUCCESS ? result : stream_create(stream, context, NULL, flags, priority);
}

static CUresult destroy(CUstream stream) {
    if (is_default(stream) || !handle_is(stream, HANDLE_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    end_stream(stream);
    return CUDA_SUCCESS;
}

API(cuStreamCreate, (CUstream * stream, unsigned int flags), LOCKED(create(stream, flags, STREAM_LEAST_PRIORITY)))
API(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority),
    LOCKED(create(stream, flags, priority)))
API(cuStreamDestroy, (CUstream stream), LOCKED(destroy(stream)))
API(cuStreamDestroy_v2, (CUstream stream), LOCKED(destroy(stream)))

static CUresult query(CUstream stream) {
    CUcontext context;
    CUresult result = capture_concerns(stream) ? capture_refuse(stream) : UNSAFE(LOCKED(check(stream, &context)));
    if (result == CUDA_SUCCESS && atomic_load(&calls_pending) != 0) {
        pthread_mutex_lock(&call_mutex);
        result = busy(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
        pthread_mutex_unlock(&call_mutex);
    }
    return result;
}

static CUresult synchronize(CUstream stream) {
    CUcontext context = NULL;
    CUresult result = capture_concerns(stream) ? capture_refuse(stream) : UNSAFE(LOCKED(check(stream, &context)));
    if (result == CUDA_SUCCESS) {
        result = wait_for_calls(stream);
    }
    return result != CUDA_SUCCESS ? result : finish(context->device);
}

CUresult run_host(const CUDA_HOST_NODE_PARAMS *host, CUstream stream) {
    return put_call(stream, host->fn, NULL, host->userData);
}

static CUresult launch_host(CUstream stream, CUhostFn function, void *data) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {function, data}};
    if (!capture_concerns(stream)) {
        return put_call(stream, function, NULL, data);
    }
    return function == NULL ? CUDA_ERROR_INVALID_VALUE : capture_add(stream, &operation);
}

static CUresult add_callback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return capture_concerns(stream) ? capture_refuse(stream) : put_call(stream, NULL, callback, data);
}

API_TWIN(cuStreamQuery, _ptsz, (CUstream stream), query(stream))
API_TWIN(cuStreamSynchronize, _ptsz, (CUstream stream), synchronize(stream))
API_TWIN(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void *data), launch_host(stream, function, data))
API_TWIN(cuStreamAddCallback, _ptsz, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags),
         add_callback(stream, callback, data, flags))

/* What one asks of a stream. */
struct description {
    CUcontext context;
    CUgreenCtx green;
    CUdevice device;
    unsigned int flags;
    int priority;
    uint64_t id;
};

static CUresult describe(CUstream stream, struct description *description) {
    CUresult result = check(stream, &description->context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool standing = is_default(stream);
    CUcontext green = standing ? NULL : green_context(stream->green);
    description->green = green == NULL ? NULL : stream->green;
    description->context = green == NULL ? description->context : green;
    description->device = description->context->device;
    description->flags = standing ? CU_STREAM_DEFAULT : stream->flags;
    description->priority = standing ? STREAM_LEAST_PRIORITY : stream->priority;
    description->id = !standing ? stream->id : stream == CU_STREAM_PER_THREAD ? 2 : 1;
    return CUDA_SUCCESS;
}

CUresult stream_device(CUstream stream, CUdevice *device) {
    struct description description;
    CUresult result = describe(stream, &description);
    if (result == CUDA_SUCCESS) {
        *device = description.device;
    }
    return result;
}

#define ASK(stream, output, field)                                                                                     \
    ({                                                                                                                 \
        struct description description_;                                                                               \
        CUresult asked_ = (output) == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(describe(stream, &description_));       \
        if (asked_ == CUDA_SUCCESS) {                                                                                  \
            *(output) = description_.field;                                                                            \
        }                                                                                                              \
        asked_;                                                                                                        \
    })

API_TWIN(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), ASK(stream, priority, priority))
API_TWIN(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned int *flags), ASK(stream, flags, flags))
API_TWIN(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long *id), ASK(stream, id, id))
API_TWIN(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice *device), ASK(stream, device, device))
API_TWIN(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext *context), ASK(stream, context, context))

static CUresult get_contexts(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    CUresult result = ASK(stream, context, context);
    return result != CUDA_SUCCESS || green == NULL ? result : ASK(stream, green, green);
}

API(cuStreamGetGreenCtx, (CUstream stream, CUgreenCtx *green), ASK(stream, green, green))

API_TWIN(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext *context, CUgreenCtx *green),
         get_contexts(stream, context, green))
