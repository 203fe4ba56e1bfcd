/* cuda_vmm.h: handles of physical memory, as others than cuda_vmm.c need them. */
#ifndef GPUSHARE_SIM_CUDA_VMM_H
#define GPUSHARE_SIM_CUDA_VMM_H

#include "cuda_abi.h"
#include "cuda_heap.h"

struct multicast;

struct vmm_handle {
    CUmemAllocationProp properties;
    uint64_t size;
    int references, mappings; /* a binding to a multicast object counts as a mapping */
    int fd;                   /* the file that the bytes are in */
    uint64_t offset;          /* where in it */
    struct heap_piece *piece; /* of the arena, unless the file is the handle's own */
    bool charged;             /* by this process: not if imported, and not host memory */
    bool foreign;             /* imported, and NVML counts it here too */
    struct multicast *multicast;
    struct vmm_handle *previous, *next;
};

/* All under the lock. */
struct vmm_handle *vmm_find(CUmemGenericAllocationHandle number);
void vmm_hold(struct vmm_handle *handle);
void vmm_let_go(struct vmm_handle *handle);
/* Ends all mappings and handles of a device's memory, where a reset does that. */
void vmm_reset(CUdevice device);
/* The handle of a multicast object has ended. */
void multicast_end(struct multicast *multicast);

#endif
