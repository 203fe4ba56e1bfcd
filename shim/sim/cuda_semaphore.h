/* cuda_semaphore.h: semaphores of other APIs. See cuda_semaphore.c. */
#ifndef GPUSHARE_SIM_CUDA_SEMAPHORE_H
#define GPUSHARE_SIM_CUDA_SEMAPHORE_H

#include "cuda_abi.h"

#include <stdbool.h>

/* Signals of, or waits for, some semaphores: what a node of a graph does. Shared by the node and executable graphs. */
struct semaphore_batch {
    int users;
    bool wait;
    unsigned int count;
    CUexternalSemaphore *semaphores;
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *signals; /* of a wait NULL */
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *waits;     /* of a signal NULL */
};

/* Under the lock. */
CUresult semaphore_batch_new(const CUexternalSemaphore *semaphores,
                             const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *signals,
                             const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *waits, unsigned int count,
                             struct semaphore_batch **batch);
void semaphore_batch_use(struct semaphore_batch *batch);
void semaphore_batch_drop(struct semaphore_batch *batch);

#endif
