/* cuda_heap.h: hands out pieces of address ranges. See cuda_heap.c. */
#ifndef GPUSHARE_SIM_CUDA_HEAP_H
#define GPUSHARE_SIM_CUDA_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct heap;

/* A range of addresses given to a heap, with what its giver wants to remember about it. */
struct heap_range {
    struct heap *heap;
    struct heap_range *previous, *next;
    uint64_t base, size;
    uint64_t taken; /* bytes in pieces that are taken */
    void *origin;
};

/* A piece of a range, free or taken. Pieces next to each other are linked, so that free ones can be joined. */
struct heap_piece {
    struct heap_range *range;
    uint64_t base, size;
    bool taken;
    struct heap_piece *below, *above;      /* neighbours by address */
    struct heap_piece *bin_back, *bin_fwd; /* free pieces of about the same size */
};

#define HEAP_BINS 64

struct heap {
    uint64_t granule;
    uint64_t taken; /* the sum over its ranges */
    struct heap_range *ranges;
    struct heap_piece *bins[HEAP_BINS]; /* by the power of two below the size */
};

void heap_init(struct heap *heap, uint64_t granule);
struct heap_range *heap_add(struct heap *heap, uint64_t base, uint64_t size, void *origin);
/* Takes away a range of which nothing is taken. */
void heap_remove(struct heap_range *range);
/* NULL when no range has room. `size` is rounded up to the granule. */
struct heap_piece *heap_take(struct heap *heap, uint64_t size);
/* Returns the piece's range, of which perhaps nothing is taken any more. */
struct heap_range *heap_give(struct heap_piece *piece);

#endif
