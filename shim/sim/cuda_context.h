/* cuda_context.h: contexts, the stack of them that each thread has, and the memory that belongs to one. */
#ifndef GPUSHARE_SIM_CUDA_CONTEXT_H
#define GPUSHARE_SIM_CUDA_CONTEXT_H

#include "common_health.h"
#include "cuda_abi.h"
#include "cuda_device.h"
#include "cuda_memory.h"

struct CUctx_st {
    CUdevice device;
    bool primary;
    bool live;      /* holds its overhead and may be used; a destroyed one stays known, to be told apart */
    int references; /* of a primary context: retains less releases; of another: its making and attaches less detaches */
    CUcontext primary_one; /* of a green context: the one whose part it is. NULL for all others */
    unsigned int flags, api_version;
    uint64_t id;
    struct health_mark mark; /* of the GPU when it began */
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    uint32_t peers;          /* contexts' devices to which access is enabled, as bits */
    struct memory *memories; /* newest first */
    struct heap small;       /* allocations that share a block */
    uint64_t heap_bytes;     /* taken for its limits, */
    uint64_t code_bytes;     /* and for its modules: see switches.def */
};

/* The calling thread's context, if it is there, live, and not broken by what has befallen its GPU. Where that is a
 * green one, the primary context that it is part of. */
CUresult context_current(CUcontext *context);
/* The same, and its device. */
CUresult context_current_device(CUcontext *context, struct device **device);
/* A handle that a program handed over; NULL means the current one where `optional` is set. */
CUresult context_check(CUcontext context);

/* The primary context of a device, held and let go; and a green one's handle, which stands for the primary context. */
CUresult context_retain(CUcontext *context, CUdevice device);
CUresult context_release(CUdevice device);
CUresult context_green(CUcontext *context, CUcontext primary);
void context_green_end(CUcontext context);

/* A module is loaded into it, a kernel launched: which may make it larger. */
CUresult context_module(CUcontext context);
CUresult context_launch(CUcontext context);

/* Device memory of a context: from a shared block when small, else in blocks of its own. */
CUresult context_take(CUcontext context, enum memory_kind kind, uint64_t size, struct memory **memory);
void context_give(struct memory *memory);

#endif
