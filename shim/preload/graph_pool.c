/* graph_pool.c: the account of each GPU's graph pool. */
#include "graph_pool.h"

#include <string.h>

#include "moments.h"

#define MAX_ROUNDS 4

#define STEP (32u << (20 - GS_UNIT_SHIFT)) /* in which NVIDIA's driver grows a pool */

static struct graph_pool {
    struct gs_mutex mutex;
    uint32_t charged, pending;
    uint32_t running; /* uploads and launches in the driver */
    uint32_t seen;    /* reserved, when last asked */
    uint32_t trims;   /* how often memory has gone back */
    uint32_t step;    /* 0: STEP; smaller if the driver has shown that it grows in smaller ones */
    uint64_t needed;
    uint64_t held; /* need of the executable graphs that have run since the last trim */
} pools[GS_MAX_GPUS];

static uint32_t ask(const struct gs_gpu *gpu, CUgraphMem_attribute attribute, uint32_t otherwise) {
    uint64_t bytes;
    CUresult result;
    GS_RELAXED(result = gs_driver.cuDeviceGetGraphMemAttribute((CUdevice)gpu->index, attribute, &bytes));
    return result == CUDA_SUCCESS ? gs_units(bytes) : otherwise;
}

/* Under the mutex: what the driver has reserved for the pool. */
static uint32_t reserved_now(const struct gs_gpu *gpu, struct graph_pool *pool, uint32_t otherwise) {
    uint32_t reserved = ask(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, UINT32_MAX);
    uint32_t multiple = reserved & -reserved;
    if (reserved == UINT32_MAX)
        return otherwise;
    if (reserved < pool->seen) {
        pool->trims++;
        pool->held = 0;
    }
    if (multiple != 0 && multiple < (pool->step != 0 ? pool->step : STEP))
        pool->step = multiple;
    pool->seen = reserved;
    return reserved;
}

uint32_t gs_graph_pool_correct(struct gs_gpu *gpu) {
    struct graph_pool *pool = &pools[gpu->index];
    uint32_t lacking = 0;
    gs_mutex_lock(&pool->mutex);
    uint32_t target = reserved_now(gpu, pool, pool->charged);
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

/* Gives the pool's unused memory back, unless a launch is in the driver: the launch counts on this memory, and would
 * take other memory, for which no credit is reserved. One that still reserves its credit looks again. */
static void trim(struct gs_gpu *gpu) {
    struct graph_pool *pool = &pools[gpu->index];
    gs_mutex_lock(&pool->mutex);
    if (pool->running == 0)
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

/* Under the mutex: whether the launch finds all that it needs, because it is its own graph's. */
static bool has_its_own(const struct gs_graph_launch *launch, const struct graph_pool *pool, uint32_t reserved) {
    return *launch->holds == pool->trims + 1 && pool->held <= reserved;
}

static uint64_t round_up(uint64_t units, const struct graph_pool *pool) {
    uint64_t step = pool->step != 0 ? pool->step : STEP;
    return (units + step - 1) & ~(step - 1);
}

/* Under the mutex. */
static uint64_t lacking(const struct gs_graph_launch *launch, const struct graph_pool *pool, uint32_t reserved,
                        uint32_t used) {
    uint64_t covered = (uint64_t)(reserved > used ? reserved - used : 0) + pool->pending;
    if (launch->frees_first)
        covered += launch->need < used ? launch->need : used;
    uint64_t growth = pool->needed > covered ? round_up(pool->needed - covered, pool) : 0;
    uint64_t most = round_up(launch->need, pool);
    most = (most < UINT32_MAX ? most : UINT32_MAX) - launch->have;
    return growth < most ? growth : most;
}

/* How much more a launch must reserve. Marks it as pending. Of 0 more the launch goes on to the driver. */
static uint32_t growth_beyond(struct gs_graph_launch *launch) {
    struct graph_pool *pool = &pools[launch->gpu->index];
    uint64_t growth = 0;
    gs_mutex_lock(&pool->mutex);
    uint32_t reserved = reserved_now(launch->gpu, pool, 0);
    uint32_t used = ask(launch->gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, reserved);
    if (has_its_own(launch, pool, reserved)) {
        pool->needed -= launch->counted;
        launch->counted = 0;
    } else {
        growth = lacking(launch, pool, reserved, used);
    }
    pool->pending += (uint32_t)growth;
    pool->running += growth == 0;
    gs_mutex_unlock(&pool->mutex);
    return (uint32_t)growth;
}

/* See gs_account_squeeze. */
static void squeeze(struct gs_gpu *gpu, bool all) {
    if (all)
        trim(gpu);
    gs_graph_pool_correct(gpu);
}

/* It looks again after each reservation, because another launch may have used the memory that it counted on. */
bool gs_graph_pool_enter(struct gs_graph_launch *launch) {
    struct gs_gpu *gpu = launch->gpu;
    struct graph_pool *pool = &pools[gpu->index];
    struct gs_place place;
    __atomic_store_n(&gs_account_squeeze[GS_SQUEEZE_GRAPHS], squeeze, __ATOMIC_RELAXED);
    launch->have = 0;
    launch->counted = launch->need;
    if (!gs_place_device(&place, (CUdevice)gpu->index))
        return false;
    gs_mutex_lock(&pool->mutex);
    pool->needed += launch->counted;
    gs_mutex_unlock(&pool->mutex);
    for (uint32_t growth; (growth = growth_beyond(launch)) != 0; launch->have += growth) {
        if (gs_account_reserve(gpu, growth))
            continue;
        gs_mutex_lock(&pool->mutex);
        pool->needed -= launch->counted;
        pool->pending -= launch->have + growth;
        gs_mutex_unlock(&pool->mutex);
        gs_release(gpu->line, launch->have);
        return false;
    }
    return true;
}

void gs_graph_pool_leave(struct gs_graph_launch *launch, bool good) {
    struct graph_pool *pool = &pools[launch->gpu->index];
    gs_mutex_lock(&pool->mutex);
    pool->needed -= launch->counted;
    pool->pending -= launch->have;
    pool->charged += launch->have;
    pool->running--;
    if (good && *launch->holds != pool->trims + 1) {
        *launch->holds = pool->trims + 1;
        pool->held += launch->need;
    }
    gs_mutex_unlock(&pool->mutex);
    correct_asking(launch->gpu);
}

void gs_graph_pool_gone(struct gs_gpu *gpu, uint32_t need, uint32_t *holds) {
    struct graph_pool *pool = &pools[gpu->index];
    gs_mutex_lock(&pool->mutex);
    if (*holds == pool->trims + 1)
        pool->held -= need;
    *holds = 0;
    gs_mutex_unlock(&pool->mutex);
    gs_graph_pool_correct(gpu);
}

GS_AT(fork) {
    memset(pools, 0, sizeof pools);
}
