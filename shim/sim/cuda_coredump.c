/* cuda_coredump.c: what should happen after an exception on the GPU. Nothing runs here that could raise one: the
 * settings are kept and returned. With NVIDIA's driver each context has its own, copied from the global ones; here all
 * contexts share one set. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_context.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 1024

/* Global, and of contexts. */
static struct settings {
    bool ready;
    bool on_exception, trigger_host, lightweight, user_trigger;
    unsigned int generation;
    char file[TEXT_BYTES], pipe[TEXT_BYTES];
} settings[2];

static struct settings *settings_of(bool global) {
    struct settings *own = &settings[!global];
    char host[256] = "";
    if (!own->ready) {
        gethostname(host, sizeof host - 1);
        own->trigger_host = own->ready = true;
        snprintf(own->file, sizeof own->file, "core.cuda.%s.%d", host, getpid());
        snprintf(own->pipe, sizeof own->pipe, "corepipe.cuda.%s.%d", host, getpid());
    }
    return own;
}

static void *find(struct settings *own, CUcoredumpSettings attribute, size_t *size) {
    *size = sizeof(bool);
    switch (attribute) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
        return &own->on_exception;
    case CU_COREDUMP_TRIGGER_HOST:
        return &own->trigger_host;
    case CU_COREDUMP_LIGHTWEIGHT:
        return &own->lightweight;
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
        return &own->user_trigger;
    case CU_COREDUMP_GENERATION_FLAGS:
        *size = sizeof own->generation;
        return &own->generation;
    case CU_COREDUMP_FILE:
        *size = sizeof own->file;
        return own->file;
    case CU_COREDUMP_PIPE:
        *size = sizeof own->pipe;
        return own->pipe;
    default:
        return NULL;
    }
}

static CUresult get(bool global, CUcoredumpSettings attribute, void *value, size_t *size) {
    size_t bytes;
    const void *place = size == NULL ? NULL : find(settings_of(global), attribute, &bytes);
    if (place == NULL || (value != NULL && *size < bytes && bytes != TEXT_BYTES)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (value != NULL && bytes == TEXT_BYTES) {
        bytes = strlen(place) + 1;
        if (*size < bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (value != NULL) {
        memcpy(value, place, bytes);
    }
    *size = bytes;
    return CUDA_SUCCESS;
}

static CUresult set(bool global, CUcoredumpSettings attribute, const void *value, const size_t *size) {
    size_t bytes;
    void *place = size == NULL || value == NULL ? NULL : find(settings_of(global), attribute, &bytes);
    if (place == NULL || (bytes == TEXT_BYTES ? *size == 0 || *size > bytes : *size != bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(place, value, *size);
    if (bytes == TEXT_BYTES) {
        ((char *)place)[*size == bytes ? bytes - 1 : *size] = '\0';
    }
    return CUDA_SUCCESS;
}

static CUresult in_context(CUresult (*ask)(CUcoredumpSettings, void *, size_t *), CUcoredumpSettings attribute,
                           void *value, size_t *size) {
    CUcontext context;
    CUresult result = context_current(&context);
    return result != CUDA_SUCCESS ? result : ask(attribute, value, size);
}

static CUresult get_own(CUcoredumpSettings attribute, void *value, size_t *size) {
    return get(false, attribute, value, size);
}

static CUresult set_own(CUcoredumpSettings attribute, void *value, size_t *size) {
    return set(false, attribute, value, size);
}

API(cuCoredumpGetAttribute, (CUcoredumpSettings attribute, void *value, size_t *size),
    LOCKED(in_context(get_own, attribute, value, size)))
API(cuCoredumpSetAttribute, (CUcoredumpSettings attribute, void *value, size_t *size),
    LOCKED(in_context(set_own, attribute, value, size)))
API(cuCoredumpGetAttributeGlobal, (CUcoredumpSettings attribute, void *value, size_t *size),
    LOCKED(get(true, attribute, value, size)))
API(cuCoredumpSetAttributeGlobal, (CUcoredumpSettings attribute, void *value, size_t *size),
    LOCKED(set(true, attribute, value, size)))
