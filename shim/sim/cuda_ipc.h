/* cuda_ipc.h: memory of other processes in this one. See cuda_ipc.c. */
#ifndef GPUSHARE_SIM_CUDA_IPC_H
#define GPUSHARE_SIM_CUDA_IPC_H

#include "cuda_memory.h"

/* Maps part of a file at an address of our choice and makes `size` bytes at `offset` known as MEMORY_IPC. */
CUresult ipc_map(int fd, uint64_t offset, uint64_t size, CUdevice device, struct memory **memory);
void ipc_unmap(struct memory *memory);

#endif
