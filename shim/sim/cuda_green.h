/* cuda_green.h: green contexts, as streams see them. */
#ifndef GPUSHARE_SIM_CUDA_GREEN_H
#define GPUSHARE_SIM_CUDA_GREEN_H

#include "cuda_abi.h"

/* The handle by which it can be made current; NULL if it is there no more. Under the lock. */
CUcontext green_context(CUgreenCtx green);

#endif
