/* cuda_linear.h: what frees memory by its address. */
#ifndef GPUSHARE_SIM_CUDA_LINEAR_H
#define GPUSHARE_SIM_CUDA_LINEAR_H

#include "cuda_abi.h"

/* Frees whatever kind of memory a program may free by its address, in the order of a stream or not. Under the lock. */
CUresult linear_release(CUdeviceptr pointer);

#endif
