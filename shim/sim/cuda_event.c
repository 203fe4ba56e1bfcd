/* cuda_event.c: events: points in a stream that can be waited for and timed, in other processes too.
 *
 * Since streams are empty when a call returns, an event has happened once it is recorded: what is left of it is the
 * time. An interprocess event keeps that in a file of memory, which the other process opens as it does memory.
 */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_operations.h"
#include "cuda_share.h"
#include "cuda_stream.h"
#include "glibc_baseline.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EVENT_MAGIC 0x65766e6570697067ull
#define EVENT_BYTES 4096

struct CUevent_st {
    CUcontext context;
    unsigned int flags;
    struct branch branch;        /* where it was recorded, if that was in a capture */
    int fd;                      /* of an interprocess event, else -1 */
    _Atomic uint64_t *recorded;  /* CLOCK_MONOTONIC ns, 0 = never */
    _Atomic uint64_t own_record; /* what `recorded` points to in a private event */
};

struct event_handle {
    uint64_t magic;
    uint32_t pid;
    int fd;
    uint64_t inode;
};

_Static_assert(sizeof(struct event_handle) <= sizeof(CUipcEventHandle), "fits into CUDA's handle");

static CUresult new_event(CUevent *event, CUcontext context, unsigned int flags, int fd) {
    CUevent fresh = handle_new(HANDLE_EVENT, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->context = context;
    fresh->flags = flags;
    fresh->fd = fd;
    fresh->recorded = &fresh->own_record;
    if (fd >= 0) {
        void *page = mmap(NULL, EVENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED) {
            handle_end(fresh);
            return CUDA_ERROR_MAP_FAILED;
        }
        fresh->recorded = page;
    }
    *event = fresh;
    return CUDA_SUCCESS;
}

static CUresult create(CUevent *event, unsigned int flags) {
    const unsigned int known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    CUcontext context;
    struct device *device;
    CUresult result = context_current_device(&context, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (event == NULL || (flags & ~known) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = -1;
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (fd = share_create(SHARE_EVENT, device->gpu, EVENT_BYTES)) < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    result = new_event(event, context, flags, fd);
    if (result != CUDA_SUCCESS && fd >= 0) {
        close(fd);
    }
    return result;
}

static CUresult destroy(CUevent event) {
    if (!handle_is(event, HANDLE_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->fd >= 0) {
        munmap(event->recorded, EVENT_BYTES);
        close(event->fd);
    }
    node_set_clear(&event->branch.tail);
    handle_end(event);
    return CUDA_SUCCESS;
}

API(cuEventCreate, (CUevent * event, unsigned int flags), LOCKED(create(event, flags)))
API(cuEventDestroy, (CUevent event), LOCKED(destroy(event)))
API(cuEventDestroy_v2, (CUevent event), LOCKED(destroy(event)))

static CUresult mark(CUevent event) {
    struct timespec now;
    if (!handle_is(event, HANDLE_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event->branch.capture = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(event->recorded, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
    return CUDA_SUCCESS;
}

static CUresult check(CUevent event) {
    return handle_is(event, HANDLE_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record(CUevent event, CUstream stream, unsigned int flags) {
    if (flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = LOCKED(check(event));
    if (result == CUDA_SUCCESS && capture_concerns(stream)) {
        struct operation operation = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event};
        return flags == CU_EVENT_RECORD_EXTERNAL ? capture_add(stream, &operation)
                                                 : LOCKED(capture_record(stream, &event->branch));
    }
    if (result == CUDA_SUCCESS) {
        result = stream_enter(stream);
    }
    return result != CUDA_SUCCESS ? result : LOCKED(mark(event));
}

static CUresult wait(CUstream stream, CUevent event, unsigned int flags) {
    if (flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = LOCKED(check(event));
    if (result == CUDA_SUCCESS && flags == CU_EVENT_WAIT_EXTERNAL && capture_concerns(stream)) {
        struct operation operation = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event};
        return capture_add(stream, &operation);
    }
    if (result == CUDA_SUCCESS && atomic_load(&capture_count) != 0 &&
        (capture_concerns(stream) || capture_has(&event->branch))) {
        return LOCKED(capture_wait(stream, &event->branch));
    }
    return result != CUDA_SUCCESS ? result : stream_enter(stream);
}

/* As nodes of a graph. What was put into the stream before a node has been done. */
CUresult run_record(CUevent event) {
    return LOCKED(mark(event));
}

CUresult run_wait(CUevent event, CUstream stream) {
    (void)stream;
    return LOCKED(check(event));
}

/* An event of a capture that is still going on has nothing to be asked. */
static CUresult check_past(CUevent event) {
    CUresult result = check(event);
    return result == CUDA_SUCCESS && capture_has(&event->branch) ? CUDA_ERROR_CAPTURED_EVENT : result;
}

API_TWIN(cuEventRecord, _ptsz, (CUevent event, CUstream stream), record(event, stream, 0))
API_TWIN(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned int flags),
         record(event, stream, flags))
API_TWIN(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned int flags), wait(stream, event, flags))
API(cuCtxRecordEvent, (CUcontext context, CUevent event), ((void)context, record(event, NULL, 0)))
API(cuCtxWaitEvent, (CUcontext context, CUevent event), ((void)context, wait(NULL, event, 0)))
API(cuEventQuery, (CUevent event), UNSAFE(LOCKED(check_past(event))))

static CUresult check_device(CUevent event, CUdevice *device) {
    CUresult result = check_past(event);
    if (result == CUDA_SUCCESS) {
        *device = event->context->device;
    }
    return result;
}

CUresult cuEventSynchronize(CUevent event) {
    ENTER(cuEventSynchronize);
    CUdevice device;
    CUresult result = LOCKED(check_device(event, &device));
    return result != CUDA_SUCCESS ? result : streams_synchronize_event(device);
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    if (milliseconds == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (check(start) != CUDA_SUCCESS || check(end) != CUDA_SUCCESS ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || *start->recorded == 0 || *end->recorded == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *milliseconds = (float)((double)(int64_t)(*end->recorded - *start->recorded) / 1e6);
    return CUDA_SUCCESS;
}

API(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), LOCKED(elapsed(milliseconds, start, end)))
API(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end), LOCKED(elapsed(milliseconds, start, end)))

static CUresult export_event(CUipcEventHandle *handle, CUevent event) {
    struct stat status;
    if (handle == NULL || check(event) != CUDA_SUCCESS || event->fd < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (gs_fstat(event->fd, &status) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    struct event_handle own = {EVENT_MAGIC, (uint32_t)getpid(), event->fd, status.st_ino};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &own, sizeof own);
    return CUDA_SUCCESS;
}

static CUresult import_event(CUevent *event, const CUipcEventHandle *handle) {
    struct event_handle other;
    struct share_label label;
    struct stat status;
    char path[64];
    CUcontext context;
    CUresult result = context_current(&context);
    memcpy(&other, handle, sizeof other);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (event == NULL || other.magic != EVENT_MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(path, sizeof path, "/proc/%u/fd/%d", other.pid, other.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || gs_fstat(fd, &status) != 0 || status.st_ino != other.inode || !share_read(fd, SHARE_EVENT, &label)) {
        if (fd >= 0) {
            close(fd);
        }
        return CUDA_ERROR_INVALID_HANDLE;
    }
    result = new_event(event, context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, fd);
    if (result != CUDA_SUCCESS) {
        close(fd);
    }
    return result;
}

API(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), LOCKED(export_event(handle, event)))
API(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), LOCKED(import_event(event, &handle)))
