/* cuda_arena.h: this process's part of one GPU's memory, as addresses with bytes behind them. See cuda_arena.c. */
#ifndef GPUSHARE_SIM_CUDA_ARENA_H
#define GPUSHARE_SIM_CUDA_ARENA_H

#include "cuda_abi.h"
#include "cuda_heap.h"

#include <stdbool.h>

#define ARENA_OF_HOST UINT32_MAX

struct arena {
    uint32_t gpu; /* number in the shared pool; ARENA_OF_HOST: host memory, which is charged to nobody */
    int fd;       /* the bytes */
    uint64_t base, size;
    struct heap heap; /* in blocks */
};

CUresult arena_open(struct arena *arena, uint32_t gpu, uint64_t gpu_bytes);
/* Takes whole blocks, charged to this process. */
CUresult arena_take(struct arena *arena, uint64_t bytes, struct heap_piece **piece);
/* Gives them back: the bytes are gone first, then the charge. */
void arena_give(struct arena *arena, struct heap_piece *piece);
/* Where in the arena's file an address is. */
uint64_t arena_offset(const struct arena *arena, CUdeviceptr address);

#endif
