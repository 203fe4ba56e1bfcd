/* cuda_mempool.h: stream-ordered memory pools. See cuda_mempool.c. */
#ifndef GPUSHARE_SIM_CUDA_MEMPOOL_H
#define GPUSHARE_SIM_CUDA_MEMPOOL_H

#include "cuda_memory.h"

/* Gives back what the pools of a device hold above their release thresholds: what a synchronise does. Locks. */
void mempools_trim_to_thresholds(CUdevice device);
/* Frees one stream-ordered allocation. Under the lock. */
void mempool_give(struct memory *memory);
/* Frees all stream-ordered allocations on a device, where a reset does that. Under the lock. */
void mempools_reset(CUdevice device);

#endif
