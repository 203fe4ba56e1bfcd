/* cuda_heap.c: hands out pieces of address ranges.
 *
 * Used three times: for the address space of a GPU in blocks, for small allocations inside a block, and for
 * stream-ordered allocations inside a pool's memory. Free pieces are kept in bins by the power of two below their
 * size; a piece that becomes free is joined with its free neighbours, so taking and giving cost a few pointers
 * however many are live. Nothing is stored in the memory handed out: that belongs to the program.
 */
#define _GNU_SOURCE
#include "cuda_heap.h"

#include <stdlib.h>
#include <string.h>

/* How many pieces of the request's own bin are tried before a bigger one is split. */
#define TRIES 16

void heap_init(struct heap *heap, uint64_t granule) {
    memset(heap, 0, sizeof *heap);
    heap->granule = granule;
}

static int bin_of(uint64_t size) {
    return 63 - __builtin_clzll(size);
}

static void bin_insert(struct heap *heap, struct heap_piece *piece) {
    struct heap_piece **bin = &heap->bins[bin_of(piece->size)];
    piece->bin_back = NULL;
    piece->bin_fwd = *bin;
    if (*bin != NULL) {
        (*bin)->bin_back = piece;
    }
    *bin = piece;
}

static void bin_remove(struct heap *heap, struct heap_piece *piece) {
    if (piece->bin_back != NULL) {
        piece->bin_back->bin_fwd = piece->bin_fwd;
    } else {
        heap->bins[bin_of(piece->size)] = piece->bin_fwd;
    }
    if (piece->bin_fwd != NULL) {
        piece->bin_fwd->bin_back = piece->bin_back;
    }
}

struct heap_range *heap_add(struct heap *heap, uint64_t base, uint64_t size, void *origin) {
    struct heap_range *range = calloc(1, sizeof *range);
    struct heap_piece *piece = calloc(1, sizeof *piece);
    if (range == NULL || piece == NULL) {
        free(range);
        free(piece);
        return NULL;
    }
    *range = (struct heap_range){.heap = heap, .next = heap->ranges, .base = base, .size = size, .origin = origin};
    if (heap->ranges != NULL) {
        heap->ranges->previous = range;
    }
    heap->ranges = range;
    *piece = (struct heap_piece){.range = range, .base = base, .size = size};
    bin_insert(heap, piece);
    return range;
}

/* The one free piece of an empty range. */
static struct heap_piece *whole_piece(const struct heap_range *range) {
    struct heap_piece *piece = range->heap->bins[bin_of(range->size)];
    while (piece != NULL && (piece->range != range || piece->size != range->size)) {
        piece = piece->bin_fwd;
    }
    return piece;
}

void heap_remove(struct heap_range *range) {
    struct heap_piece *piece = whole_piece(range);
    bin_remove(range->heap, piece);
    free(piece);
    if (range->previous != NULL) {
        range->previous->next = range->next;
    } else {
        range->heap->ranges = range->next;
    }
    if (range->next != NULL) {
        range->next->previous = range->previous;
    }
    free(range);
}

static struct heap_piece *search_bin(struct heap_piece *piece, uint64_t size, int tries) {
    for (; piece != NULL && tries > 0; piece = piece->bin_fwd, tries--) {
        if (piece->size >= size) {
            return piece;
        }
    }
    return NULL;
}

static struct heap_piece *find_free(struct heap *heap, uint64_t size) {
    int own = bin_of(size);
    struct heap_piece *piece = search_bin(heap->bins[own], size, TRIES);
    for (int bin = own + 1; piece == NULL && bin < HEAP_BINS; bin++) {
        piece = heap->bins[bin];
    }
    return piece != NULL ? piece : search_bin(heap->bins[own], size, INT32_MAX);
}

/* Cuts what exceeds `size` off a piece that is in no bin and puts it into one. */
static bool split(struct heap_piece *piece, uint64_t size) {
    struct heap_piece *rest = calloc(1, sizeof *rest);
    if (rest == NULL) {
        return false;
    }
    *rest = (struct heap_piece){.range = piece->range,
                                .base = piece->base + size,
                                .size = piece->size - size,
                                .below = piece,
                                .above = piece->above};
    if (rest->above != NULL) {
        rest->above->below = rest;
    }
    piece->above = rest;
    piece->size = size;
    bin_insert(piece->range->heap, rest);
    return true;
}

struct heap_piece *heap_take(struct heap *heap, uint64_t size) {
    size = (size + heap->granule - 1) / heap->granule * heap->granule;
    struct heap_piece *piece = size == 0 ? NULL : find_free(heap, size);
    if (piece == NULL) {
        return NULL;
    }
    bin_remove(heap, piece);
    if (piece->size > size && !split(piece, size)) {
        bin_insert(heap, piece);
        return NULL;
    }
    piece->taken = true;
    piece->range->taken += piece->size;
    heap->taken += piece->size;
    return piece;
}

/* Joins the upper of two neighbours to the lower. */
static void join(struct heap_piece *lower, struct heap_piece *upper) {
    lower->size += upper->size;
    lower->above = upper->above;
    if (upper->above != NULL) {
        upper->above->below = lower;
    }
    free(upper);
}

struct heap_range *heap_give(struct heap_piece *piece) {
    struct heap_range *range = piece->range;
    range->taken -= piece->size;
    range->heap->taken -= piece->size;
    piece->taken = false;
    if (piece->above != NULL && !piece->above->taken) {
        bin_remove(range->heap, piece->above);
        join(piece, piece->above);
    }
    if (piece->below != NULL && !piece->below->taken) {
        struct heap_piece *lower = piece->below;
        bin_remove(range->heap, lower);
        join(lower, piece);
        piece = lower;
    }
    bin_insert(range->heap, piece);
    return range;
}
