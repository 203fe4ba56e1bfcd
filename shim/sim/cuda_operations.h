/* cuda_operations.h: what can be done in a stream and be a node of a graph: each family runs its own. */
#ifndef GPUSHARE_SIM_CUDA_OPERATIONS_H
#define GPUSHARE_SIM_CUDA_OPERATIONS_H

#include "cuda_abi.h"

struct semaphore_batch;

/* Without the lock; in a stream that is not being captured. */
CUresult run_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel, CUstream stream);
CUresult run_copy(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS *fill, CUstream stream);
CUresult run_host(const CUDA_HOST_NODE_PARAMS *host, CUstream stream);
CUresult run_record(CUevent event);
CUresult run_wait(CUevent event, CUstream stream);
CUresult run_semaphores(const struct semaphore_batch *batch);

#endif
