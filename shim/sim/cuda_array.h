/* cuda_array.h: arrays: memory with dimensions and without an address of the program's. See cuda_array.c. */
#ifndef GPUSHARE_SIM_CUDA_ARRAY_H
#define GPUSHARE_SIM_CUDA_ARRAY_H

#include "cuda_context.h"

/* An array's bytes: `depth` layers of `height` rows of `pitch` bytes, without gaps. */
struct array_view {
    char *start;
    size_t pitch, height, depth, bytes;
};

/* Under the lock. An array without memory behind it (sparse, deferred) cannot be looked into. */
CUresult array_view(CUarray array, struct array_view *view);
/* Tells the array of MEMORY_ARRAY that its context has ended and taken the memory along. */
void array_lost(const struct memory *memory);

#endif
