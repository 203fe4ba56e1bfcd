/* cuda_handle.h: which opaque handles are live, so that a stale or foreign one is refused instead of followed. */
#ifndef GPUSHARE_SIM_CUDA_HANDLE_H
#define GPUSHARE_SIM_CUDA_HANDLE_H

#include <stdbool.h>
#include <stddef.h>

enum handle_type {
    HANDLE_NONE = 0,
    HANDLE_CONTEXT,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_POOL,
    HANDLE_VMM,
    HANDLE_ARRAY,
    HANDLE_MIPMAP,
    HANDLE_MODULE,
    HANDLE_LIBRARY,
    HANDLE_FUNCTION,
    HANDLE_KERNEL,
    HANDLE_LINK,
    HANDLE_GRAPH,
    HANDLE_NODE,
    HANDLE_GRAPH_EXEC,
    HANDLE_EXTERNAL,
    HANDLE_MULTICAST,
    HANDLE_SEMAPHORE,
    HANDLE_USER_OBJECT,
    HANDLE_TEXTURE,
    HANDLE_SURFACE,
    HANDLE_RESOURCES,
    HANDLE_GREEN
};

/* Zeroed memory for an object of this type, known from now on; NULL without memory. */
void *handle_new(enum handle_type type, size_t size);
/* Makes an object known again that was forgotten. */
bool handle_adopt(void *handle, enum handle_type type);
bool handle_is(const void *handle, enum handle_type type);
/* Forgets it, so that the program can no longer use it, and leaves the memory to the caller. */
void handle_forget(void *handle);
/* Forgets and frees it. */
void handle_end(void *handle);

#endif
