/* hook_limit.c: the memory behind a context's limits.
 *
 * cuCtxSetLimit sets the memory for malloc in kernels and for printf. The driver does not tell when it takes this
 * memory: at once, or at the first kernel that needs it. So it is charged from the call on. The size with which the
 * context began is in the measured overhead.
 */
#include "hooks.h"
#include "moments.h"

#include <string.h>

#define MOST_HEAPS 128

static struct heap {
    uint32_t context; /* 0: a free place */
    CUlimit limit;
    size_t began_with; /* the value before the first change */
    uint32_t units;
    struct gs_gpu *gpu;
} heaps[MOST_HEAPS];

static struct gs_lock heaps_lock;

/* Under the lock; NULL: there are too many, and what it takes is found by measuring. */
static struct heap *find(uint32_t context, CUlimit limit) {
    for (struct heap *heap = heaps; heap < heaps + MOST_HEAPS; heap++)
        if (heap->context == context && (context == 0 || heap->limit == limit))
            return heap;
    return NULL;
}

static bool value_of(CUlimit limit, size_t *value) {
    CUresult result;
    GS_RELAXED(result = gs_driver.cuCtxGetLimit(value, limit));
    return result == CUDA_SUCCESS;
}

/* What is known of the limit, or what will be: nothing is charged for it yet. */
static bool look_up(const struct gs_place *place, CUlimit limit, struct heap *heap) {
    gs_lock(&heaps_lock);
    const struct heap *known = find(place->context, limit);
    if (known != NULL)
        *heap = *known;
    gs_unlock(&heaps_lock);
    if (known != NULL)
        return true;
    *heap = (struct heap){.context = place->context, .limit = limit, .gpu = place->gpu};
    return value_of(limit, &heap->began_with);
}

/* `growth` has been reserved beside what is noted. Another thread may have changed the same limit meanwhile: what both
 * have reserved is there, and what the last one needs of it stays. */
static void store(struct heap *heap, uint32_t growth) {
    gs_lock(&heaps_lock);
    struct heap *known = find(heap->context, heap->limit);
    uint32_t held = (known != NULL ? known->units : 0) + growth;
    struct heap *place = known != NULL ? known : find(0, heap->limit);
    uint32_t wanted = place != NULL ? heap->units : 0;
    heap->units = wanted < held ? wanted : held;
    if (place != NULL)
        *place = *heap; /* also without units: what it began with is still needed */
    gs_unlock(&heaps_lock);
    gs_release(heap->gpu->line, held - heap->units);
}

static uint32_t units_for(const struct heap *heap, size_t value) {
    return value > heap->began_with ? gs_units(gs_whole_blocks(value - heap->began_with)) : 0;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    struct gs_place place;
    struct heap heap;
    size_t told;
    bool taken = limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
    if (!gs_on() || !taken || !gs_place_current(&place) || place.context == 0 || !look_up(&place, limit, &heap))
        return gs_driver.cuCtxSetLimit(limit, value);
    uint32_t wanted = units_for(&heap, value), growth = wanted > heap.units ? wanted - heap.units : 0;
    if (!gs_account_reserve(heap.gpu, growth))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = gs_driver.cuCtxSetLimit(limit, value);
    if (result == CUDA_SUCCESS) /* the driver may have made something else of it */
        heap.units = value_of(limit, &told) ? units_for(&heap, told) : wanted;
    store(&heap, growth);
    return result;
}

void gs_limit_context_gone(uint32_t context) {
    struct heap gone[2] = {0};
    gs_lock(&heaps_lock);
    for (int i = 0; i < 2; i++) {
        struct heap *heap = find(context, i == 0 ? CU_LIMIT_PRINTF_FIFO_SIZE : CU_LIMIT_MALLOC_HEAP_SIZE);
        if (heap != NULL) {
            gone[i] = *heap;
            *heap = (struct heap){0};
        }
    }
    gs_unlock(&heaps_lock);
    for (int i = 0; i < 2; i++)
        if (gone[i].units != 0)
            gs_release(gone[i].gpu->line, gone[i].units);
}

GS_AT(fork) {
    memset(heaps, 0, sizeof heaps);
    heaps_lock = (struct gs_lock){0};
}
