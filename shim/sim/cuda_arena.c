/* cuda_arena.c: this process's part of one GPU's memory, as addresses with bytes behind them.
 *
 * One sparse memfd a GPU and process, mapped once: with a descriptor or a mapping for each allocation a program with
 * 50,000 of them would run out of both. A block costs host memory when it is written to and none again when it is
 * given back, because its part of the file is punched out. Addresses are host addresses, so every copy is a memmove
 * and the address space is unified, as it is on a real GPU.
 */
#define _GNU_SOURCE
#include "cuda_arena.h"

#include "common_model.h"
#include "common_pool.h"
#include "cuda_share.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* A mapping aligned to the block size, so that blocks are blocks in the addresses too. */
static void *map_aligned(int fd, uint64_t size) {
    char *room = mmap(NULL, size + MODEL_BLOCK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return MAP_FAILED;
    }
    char *start = (char *)model_round_up((uint64_t)room, MODEL_BLOCK_BYTES);
    char *end = start + size;
    if (start > room) {
        munmap(room, (size_t)(start - room));
    }
    munmap(end, (size_t)(room + MODEL_BLOCK_BYTES - start));
    return mmap(start, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
}

CUresult arena_open(struct arena *arena, uint32_t gpu, uint64_t gpu_bytes) {
    uint64_t size = model_blocks_bytes(gpu_bytes) * MODEL_ADDRESS_FACTOR;
    int fd = gpu == ARENA_OF_HOST ? share_create(SHARE_HOST, 0, size) : share_create(SHARE_ARENA, gpu, size);
    if (fd < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    void *memory = map_aligned(fd, size);
    if (memory == MAP_FAILED) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    /* A core dump or a forked child of the program has no use for a GPU's memory. */
    madvise(memory, size, MADV_DONTDUMP);
    *arena = (struct arena){.gpu = gpu, .fd = fd, .base = (uint64_t)memory, .size = size};
    heap_init(&arena->heap, MODEL_BLOCK_BYTES);
    if (gpu != ARENA_OF_HOST) {
        pool_note_arena(gpu, fd, size);
    }
    return heap_add(&arena->heap, arena->base, size, NULL) == NULL ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

static bool charge(const struct arena *arena, uint64_t bytes) {
    return arena->gpu == ARENA_OF_HOST || pool_charge(arena->gpu, bytes);
}

static void uncharge(const struct arena *arena, uint64_t bytes) {
    if (arena->gpu != ARENA_OF_HOST) {
        pool_uncharge(arena->gpu, bytes);
    }
}

CUresult arena_take(struct arena *arena, uint64_t bytes, struct heap_piece **piece) {
    if (bytes > arena->size || !charge(arena, model_blocks_bytes(bytes))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *piece = heap_take(&arena->heap, bytes);
    if (*piece == NULL) {
        uncharge(arena, model_blocks_bytes(bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void arena_give(struct arena *arena, struct heap_piece *piece) {
    uint64_t size = piece->size;
    fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(piece->base - arena->base), (off_t)size);
    heap_give(piece);
    uncharge(arena, size);
}

uint64_t arena_offset(const struct arena *arena, CUdeviceptr address) {
    return address - arena->base;
}
