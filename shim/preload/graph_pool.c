/* graph_pool.c: the account of each GPU's graph pool. */
#include "graph_pool.h"

#include <string.h>

#include "moments.h"

#define MAX_ROUNDS 4

static struct graph_pool {
    struct gs_mutex mutex;
    uint32_t charged, pending;
    uint64_t needed;
} pools[GS_MAX_GPUS];

static uint32_t ask(const struct gs_gpu *gpu, CUgraphMem_attribute attribute, uint32_t otherwise) {
    uint64_t bytes = 0;
    CUresult result = CUDA_SUCCESS;
    GS_RELAXED(result = gs_driver.cuDeviceGetGraphMemAttribute((CUdevice)gpu->index, attribute, &bytes));
    return result == CUDA_SUCCESS ? gs_units(bytes) : otherwise;
}

uint32_t gs_graph_pool_correct(struct gs_gpu *gpu) {
    struct graph_pool *pool = &pools[gpu->index];
    uint32_t lacking = 0;
    gs_mutex_lock(&pool->mutex);
    uint32_t target = ask(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, pool->charged);
    uint64_t covered = (uint64_t)pool->charged + pool->pending; /* some of it may be what another thread takes now */
    if (target < pool->charged) {
        gs_release(gpu->line, pool->charged - target);
        pool->charged = target;
    } else if (target > covered) {
        uint32_t rest = (uint32_t)(target - covered);
        if (gs_reserve(gpu->line, rest))
            pool->charged += rest;
        else
            lacking = rest;
    }
    gs_mutex_unlock(&pool->mutex);
    return lacking;
}

/* Gives the pool's unused memory back, unless a launch is under way: the launch counts on this memory, and would take
 * other memory from the driver, for which no credit is reserved. */
static void trim(struct gs_gpu *gpu) {
    struct graph_pool *pool = &pools[gpu->index];
    gs_mutex_lock(&pool->mutex);
    if (pool->needed == 0)
        GS_RELAXED(gs_driver.cuDeviceGraphMemTrim((CUdevice)gpu->index));
    gs_mutex_unlock(&pool->mutex);
}

/* As gs_graph_pool_correct, but asks the daemon for missing credit: the pool has taken more than was foreseen. */
static void correct_asking(struct gs_gpu *gpu) {
    for (int round = 0; round < MAX_ROUNDS; round++) {
        uint32_t lacking = gs_graph_pool_correct(gpu);
        if (lacking == 0)
            return;
        if (!gs_account_reserve(gpu, lacking))
            break;
        gs_release(gpu->line, lacking);
    }
    trim(gpu); /* refused: what is unused of it goes back to the driver */
    gs_graph_pool_correct(gpu);
}

/* How much more than `have` a launch must reserve. Marks it as pending. */
static uint32_t growth_beyond(struct gs_gpu *gpu, uint32_t need, bool frees_first, uint32_t have) {
    struct graph_pool *pool = &pools[gpu->index];
    gs_mutex_lock(&pool->mutex);
    uint32_t reserved = ask(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 0);
    uint32_t used = ask(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, reserved);
    uint32_t spare = reserved > used ? reserved - used : 0;
    if (frees_first)
        spare += need < used ? need : used;
    uint64_t covered = (uint64_t)spare + pool->pending, wanted = pool->needed;
    uint64_t growth = wanted > covered ? wanted - covered : 0;
    growth = growth > need - have ? need - have : growth;
    pool->pending += (uint32_t)growth;
    gs_mutex_unlock(&pool->mutex);
    return (uint32_t)growth;
}

static void change(struct gs_gpu *gpu, int64_t needed, uint32_t not_pending, uint32_t charged) {
    struct graph_pool *pool = &pools[gpu->index];
    gs_mutex_lock(&pool->mutex);
    pool->needed += (uint64_t)needed;
    pool->pending -= not_pending;
    pool->charged += charged;
    gs_mutex_unlock(&pool->mutex);
}

/* See gs_account_squeeze. */
static void squeeze(struct gs_gpu *gpu, bool all) {
    if (all)
        trim(gpu);
    gs_graph_pool_correct(gpu);
}

/* It looks again after each reservation, because another launch may have used the memory that it counted on. */
bool gs_graph_pool_enter(struct gs_gpu *gpu, uint32_t need, bool frees_first, uint32_t *have) {
    struct gs_place place;
    __atomic_store_n(&gs_account_squeeze[GS_SQUEEZE_GRAPHS], squeeze, __ATOMIC_RELAXED);
    *have = 0;
    if (!gs_place_device(&place, (CUdevice)gpu->index))
        return false;
    change(gpu, need, 0, 0);
    for (uint32_t growth; (growth = growth_beyond(gpu, need, frees_first, *have)) != 0; *have += growth) {
        if (gs_account_reserve(gpu, growth))
            continue;
        change(gpu, -(int64_t)need, *have + growth, 0);
        gs_release(gpu->line, *have);
        return false;
    }
    return true;
}

void gs_graph_pool_leave(struct gs_gpu *gpu, uint32_t need, uint32_t have) {
    change(gpu, -(int64_t)need, have, have);
    correct_asking(gpu);
}

GS_AT(fork) {
    memset(pools, 0, sizeof pools);
}
