/* cuda_memory.h: every range of addresses that the driver has given out, of whatever kind. See cuda_memory.c. */
#ifndef GPUSHARE_SIM_CUDA_MEMORY_H
#define GPUSHARE_SIM_CUDA_MEMORY_H

#include "cuda_abi.h"
#include "cuda_heap.h"

#include <stdbool.h>

enum memory_kind {
    MEMORY_LINEAR,    /* cuMemAlloc, cuMemAllocPitch */
    MEMORY_MANAGED,   /* cuMemAllocManaged */
    MEMORY_GLOBAL,    /* a module's variable: not the program's to free */
    MEMORY_ARRAY,     /* behind an array: no address of the program's */
    MEMORY_POOLED,    /* from a stream-ordered pool */
    MEMORY_MAPPED,    /* a mapping of a VMM handle */
    MEMORY_IPC,       /* another process's memory */
    MEMORY_GRAPH,     /* of an alloc node */
    MEMORY_EXTERNAL,  /* of another API */
    MEMORY_HOST,      /* cuMemHostAlloc */
    MEMORY_REGISTERED /* cuMemHostRegister */
};

struct advice;

struct memory {
    CUdeviceptr address;
    uint64_t size; /* as asked for */
    enum memory_kind kind;
    int device;
    unsigned int flags;
    uint64_t id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID: never used twice */
    CUcontext context;
    CUmemoryPool pool;
    struct heap_piece *piece;     /* where it is, for kinds that take device memory of this process */
    void *origin;                 /* what else its kind needs to know */
    bool host, managed;           /* of a pool of host or managed memory */
    struct advice *advice;        /* about managed memory */
    uint64_t shared;              /* bytes that NVML counts for this process although another has paid for them */
    bool accessible;              /* may be read and written: a VMM mapping not before cuMemSetAccess */
    struct memory *older, *newer; /* the others of the same context */
    struct memory *left, *right;  /* search tree by address */
    uint32_t priority;
};

static inline bool memory_is_host(const struct memory *memory) {
    return memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED || memory->host;
}

static inline bool memory_is_managed(const struct memory *memory) {
    return memory->kind == MEMORY_MANAGED || memory->managed;
}

/* Makes a range known. NULL without memory for it. */
struct memory *memory_new(enum memory_kind kind, CUdeviceptr address, uint64_t size);
void memory_end(struct memory *memory);
/* The range that an address lies in, or NULL. */
struct memory *memory_at(CUdeviceptr address);
/* Whether all of a range of device memory is there and accessible. */
bool memory_covers(CUdeviceptr address, uint64_t size);
/* Of the ranges that lie wholly above or at an address, the lowest. */
struct memory *memory_next(CUdeviceptr address);

#endif
