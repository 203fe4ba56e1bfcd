/* cuda_managed.h: what the program has said about managed memory. See cuda_managed.c. */
#ifndef GPUSHARE_SIM_CUDA_MANAGED_H
#define GPUSHARE_SIM_CUDA_MANAGED_H

struct advice;

void advice_end(struct advice *advice);

#endif
