/* cuda_semaphore.c: semaphores of other APIs, handed over as a file descriptor.
 *
 * There is no other API here that would ever signal one, so a semaphore is a number that signals set and waits read:
 * a wait for a value that has not been signalled is over at once. What is checked is what a program can get wrong.
 */
#define _GNU_SOURCE
#include "cuda_semaphore.h"

#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_operations.h"
#include "cuda_stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUextSemaphore_st {
    int fd;
    bool timeline;
    uint64_t value;
};

static CUresult import(CUexternalSemaphore *result, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *description) {
    CUcontext context;
    CUresult checked = context_current(&context);
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    if (result == NULL || description == NULL || description->flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool timeline = description->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
    if (!timeline && description->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (fcntl(description->handle.fd, F_GETFD) < 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUexternalSemaphore semaphore = handle_new(HANDLE_SEMAPHORE, sizeof *semaphore);
    if (semaphore == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *semaphore = (struct CUextSemaphore_st){.fd = description->handle.fd, .timeline = timeline}; /* now the driver's */
    *result = semaphore;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUexternalSemaphore semaphore) {
    if (!handle_is(semaphore, HANDLE_SEMAPHORE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    close(semaphore->fd);
    handle_end(semaphore);
    return CUDA_SUCCESS;
}

API(cuImportExternalSemaphore,
    (CUexternalSemaphore * semaphore, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *description),
    LOCKED(import(semaphore, description)))
API(cuDestroyExternalSemaphore, (CUexternalSemaphore semaphore), LOCKED(destroy(semaphore)))

/* ---- signals and waits ---------------------------------------------------------------------------- */

static CUresult check(const CUexternalSemaphore *semaphores, const void *params, unsigned int count) {
    if (semaphores == NULL || params == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int index = 0; index < count; index++) {
        if (!handle_is(semaphores[index], HANDLE_SEMAPHORE)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    return CUDA_SUCCESS;
}

static void *copy_of(const void *from, size_t count, size_t size) {
    void *copy = from == NULL ? NULL : calloc(count, size);
    return copy == NULL ? NULL : memcpy(copy, from, count * size);
}

CUresult semaphore_batch_new(const CUexternalSemaphore *semaphores,
                             const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *signals,
                             const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *waits, unsigned int count,
                             struct semaphore_batch **result) {
    CUresult checked = check(semaphores, signals != NULL ? (const void *)signals : waits, count);
    struct semaphore_batch *batch = checked == CUDA_SUCCESS ? calloc(1, sizeof *batch) : NULL;
    if (batch == NULL) {
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *batch = (struct semaphore_batch){.users = 1,
                                      .wait = waits != NULL,
                                      .count = count,
                                      .semaphores = copy_of(semaphores, count, sizeof *semaphores),
                                      .signals = copy_of(signals, count, sizeof *signals),
                                      .waits = copy_of(waits, count, sizeof *waits)};
    if (batch->semaphores == NULL || (batch->signals == NULL && batch->waits == NULL)) {
        semaphore_batch_drop(batch);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *result = batch;
    return CUDA_SUCCESS;
}

void semaphore_batch_use(struct semaphore_batch *batch) {
    batch->users++;
}

void semaphore_batch_drop(struct semaphore_batch *batch) {
    if (--batch->users == 0) {
        free(batch->semaphores);
        free(batch->signals);
        free(batch->waits);
        free(batch);
    }
}

static CUresult apply(const struct semaphore_batch *batch) {
    const void *params = batch->wait ? (const void *)batch->waits : batch->signals;
    CUresult result = check(batch->semaphores, params, batch->count);
    for (unsigned int index = 0; result == CUDA_SUCCESS && !batch->wait && index < batch->count; index++) {
        CUexternalSemaphore semaphore = batch->semaphores[index];
        semaphore->value = semaphore->timeline ? batch->signals[index].params.fence.value : semaphore->value + 1;
    }
    return result;
}

CUresult run_semaphores(const struct semaphore_batch *batch) {
    return LOCKED(apply(batch));
}

static CUresult put(const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *signals,
                    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *waits, unsigned int count, CUstream stream) {
    struct operation operation = {.type = waits != NULL ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT
                                                        : CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL};
    CUresult result = LOCKED(semaphore_batch_new(semaphores, signals, waits, count, &operation.semaphores));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool captured = capture_concerns(stream);
    if (captured) {
        result = capture_add(stream, &operation); /* the node's, if it gets one */
    } else {
        result = stream_enter(stream);
        result = result != CUDA_SUCCESS ? result : run_semaphores(operation.semaphores);
    }
    if (!captured || result != CUDA_SUCCESS) {
        driver_lock();
        semaphore_batch_drop(operation.semaphores);
        driver_unlock();
    }
    return result;
}

API_TWIN(cuSignalExternalSemaphoresAsync, _ptsz,
         (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params,
          unsigned int count, CUstream stream),
         put(semaphores, params, NULL, count, stream))
API_TWIN(cuWaitExternalSemaphoresAsync, _ptsz,
         (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned int count,
          CUstream stream),
         put(semaphores, NULL, params, count, stream))
