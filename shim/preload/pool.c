/* pool.c: the list of pools, and the account of each.
 *
 * `live` and growth are changed without a lock. Asking the driver and following what it says is done under the pool's
 * mutex, because the answers must be followed in their order. An allocation at the same time may make the pool grow
 * unseen by the thread that lowers `charged`: so that one asks again after it has lowered it, and before it gives the
 * credit back. Either its second question sees the growth, or the allocation, which asks after the driver's call, sees
 * the lowered `charged`.
 */
#include "pool.h"

#include <string.h>

#include "moments.h"

#define MAX_POOLS  512
#define MAX_ROUNDS 4

static struct gs_pool pools[MAX_POOLS];
static uint32_t pool_count; /* how many of them have ever been used */
static struct gs_mutex adding;

/* ---- the list ------------------------------------------------------------------------------------- */

static uint32_t count(void) {
    return __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
}

static enum gs_pool_state state_of(const struct gs_pool *pool) {
    return __atomic_load_n(&pool->state, __ATOMIC_SEQ_CST);
}

static void become(struct gs_pool *pool, enum gs_pool_state state) {
    __atomic_store_n(&pool->state, state, __ATOMIC_SEQ_CST);
}

struct gs_pool *gs_pool_numbered(uint32_t number) {
    return &pools[number];
}

uint32_t gs_pool_number(const struct gs_pool *pool) {
    return (uint32_t)(pool - pools);
}

struct gs_pool *gs_pool_find(CUmemoryPool handle) {
    uint32_t last = count();
    for (struct gs_pool *pool = pools; pool < pools + last; pool++)
        if (__atomic_load_n(&pool->handle, __ATOMIC_RELAXED) == handle && state_of(pool) == GS_POOL_ALIVE)
            return pool;
    return NULL;
}

static struct gs_pool *find_unused(void) {
    for (struct gs_pool *pool = pools; pool < pools + MAX_POOLS; pool++)
        if (state_of(pool) == GS_POOL_UNUSED)
            return pool;
    return NULL;
}

static void squeeze(struct gs_gpu *gpu, bool all);

struct gs_pool *gs_pool_add(CUmemoryPool handle, struct gs_gpu *gpu) {
    __atomic_store_n(&gs_account_squeeze[GS_SQUEEZE_POOLS], squeeze, __ATOMIC_RELAXED);
    gs_mutex_lock(&adding);
    struct gs_pool *pool = gs_pool_find(handle); /* two threads may have met it at the same time */
    if (pool == NULL && (pool = find_unused()) != NULL) {
        gs_mutex_lock(&pool->mutex);
        __atomic_store_n(&pool->handle, handle, __ATOMIC_RELAXED);
        pool->gpu = gpu;
        become(pool, GS_POOL_ALIVE);
        gs_mutex_unlock(&pool->mutex);
        if (pool == pools + pool_count)
            __atomic_store_n(&pool_count, pool_count + 1, __ATOMIC_RELEASE);
    }
    gs_mutex_unlock(&adding);
    return pool;
}

struct gs_gpu *gs_pool_place(const CUmemLocation *location, CUmemAllocationType type) {
    struct gs_place place = {0};
    if (cuda_device_of(location) >= 0)
        return gs_gpu_of(cuda_device_of(location));
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return NULL;
    return gs_place_current(&place) && place.gpu != NULL ? place.gpu : gs_gpu_of(0);
}

static struct gs_gpu *gpu_of_default_pool(CUmemoryPool handle) {
    int devices;
    CUmemoryPool pool;
    if (gs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return NULL;
    for (CUdevice device = 0; device < devices; device++)
        if (gs_driver.cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS && pool == handle)
            return gs_gpu_of(device);
    return NULL;
}

struct gs_pool *gs_pool_of(CUmemoryPool handle) {
    struct gs_pool *pool = gs_pool_find(handle);
    struct gs_gpu *gpu = NULL;
    if (__builtin_expect(pool != NULL, 1))
        return pool;
    GS_RELAXED(gpu = gpu_of_default_pool(handle));
    return gs_pool_add(handle, gpu);
}

/* ---- the current pool of a device ------------------------------------------------------------------- */

static CUmemoryPool current_pools[GS_MAX_GPUS]; /* until the program may have chosen another */
static uint32_t choices;                        /* how often it may have */

CUmemoryPool gs_pool_current(uint32_t device) {
    CUmemoryPool pool = __atomic_load_n(&current_pools[device], __ATOMIC_ACQUIRE);
    uint32_t then = __atomic_load_n(&choices, __ATOMIC_ACQUIRE);
    CUresult result;
    if (__builtin_expect(pool != NULL, 1))
        return pool;
    GS_RELAXED(result = gs_driver.cuDeviceGetMemPool(&pool, (CUdevice)device));
    if (result != CUDA_SUCCESS)
        return NULL;
    gs_mutex_lock(&adding);
    if (choices == then)
        __atomic_store_n(&current_pools[device], pool, __ATOMIC_RELEASE);
    gs_mutex_unlock(&adding);
    return pool;
}

void gs_pool_chosen(void) {
    gs_mutex_lock(&adding);
    __atomic_fetch_add(&choices, 1, __ATOMIC_RELEASE);
    for (int device = 0; device < GS_MAX_GPUS; device++)
        __atomic_store_n(&current_pools[device], NULL, __ATOMIC_RELEASE);
    gs_mutex_unlock(&adding);
}

/* ---- the account of one pool ---------------------------------------------------------------------- */

static uint64_t word_of(const struct gs_pool *pool) {
    return __atomic_load_n(&pool->word, __ATOMIC_SEQ_CST);
}

static uint32_t live_in(uint64_t word) {
    return gs_word_used(word);
}

static uint32_t charged_in(uint64_t word) {
    return gs_word_credit(word);
}

static bool exchange(struct gs_pool *pool, uint64_t *word, uint64_t live, uint64_t charged) {
    return __atomic_compare_exchange_n(&pool->word, word, live << 32 | charged, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* Units that the pool has reserved. false: it cannot be asked. */
static bool ask_reserved(const struct gs_pool *pool, uint32_t *units) {
    uint64_t bytes = 0;
    CUresult result;
    GS_RELAXED(result = gs_driver.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    *units = gs_units(bytes);
    return result == CUDA_SUCCESS;
}

/* Under the mutex. The driver can no longer be asked about a destroyed pool with memory left. */
static bool reserved_of(const struct gs_pool *pool, uint32_t *units) {
    *units = 0;
    if (pool->state == GS_POOL_DESTROYED)
        return live_in(word_of(pool)) == 0;
    return pool->state == GS_POOL_ALIVE && ask_reserved(pool, units);
}

static void trim(struct gs_pool *pool) {
    if (pool->state == GS_POOL_ALIVE)
        GS_RELAXED(gs_driver.cuMemPoolTrimTo(pool->handle, 0));
}

/* Under the mutex: charge no more than this and than what is live. */
static void lower(struct gs_pool *pool, uint32_t reserved) {
    uint64_t word = word_of(pool);
    uint32_t target, again;
    do {
        target = reserved > live_in(word) ? reserved : live_in(word);
        if (charged_in(word) <= target)
            return;
    } while (!exchange(pool, &word, live_in(word), target));
    uint32_t freed = charged_in(word) - target;
    if (reserved_of(pool, &again) && again > target) { /* it has grown since it was asked */
        uint32_t kept = again - target < freed ? again - target : freed;
        __atomic_fetch_add(&pool->word, kept, __ATOMIC_SEQ_CST);
        freed -= kept;
    }
    gs_release(pool->gpu->line, freed);
}

/* Under the mutex. See gs_pool_correct. */
static uint32_t correct(struct gs_pool *pool) {
    uint32_t reserved, charged = charged_in(word_of(pool)), lacking = 0;
    if (!reserved_of(pool, &reserved))
        return 0;
    if (pool->over && reserved > charged) {
        trim(pool);
        if (!reserved_of(pool, &reserved))
            return 0;
    }
    lower(pool, reserved);
    charged = charged_in(word_of(pool));
    if (reserved > charged) {
        if (gs_reserve(pool->gpu->line, reserved - charged))
            __atomic_fetch_add(&pool->word, reserved - charged, __ATOMIC_SEQ_CST);
        else
            lacking = reserved - charged;
    }
    if (lacking == 0)
        __atomic_store_n(&pool->over, false, __ATOMIC_RELAXED);
    if (pool->state == GS_POOL_DESTROYED) {
        __atomic_store_n(&pool->handle, NULL, __ATOMIC_RELAXED);
        become(pool, GS_POOL_UNUSED);
    }
    return lacking;
}

uint32_t gs_pool_correct(struct gs_pool *pool) {
    gs_mutex_lock(&pool->mutex);
    uint32_t lacking = correct(pool);
    gs_mutex_unlock(&pool->mutex);
    return lacking;
}

/* Whether what is charged is already what the driver says. */
static bool is_correct(const struct gs_pool *pool) {
    uint32_t reserved;
    if (__atomic_load_n(&pool->over, __ATOMIC_RELAXED) || !ask_reserved(pool, &reserved))
        return false;
    uint64_t word = word_of(pool);
    return charged_in(word) == (reserved > live_in(word) ? reserved : live_in(word));
}

bool gs_pool_correct_asking(struct gs_pool *pool) {
    if (__builtin_expect(is_correct(pool), 1))
        return true;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        uint32_t lacking = gs_pool_correct(pool);
        if (lacking != 0 && pool->gpu->own) { /* without a daemon only the pools can give credit back */
            gs_account_give_back(pool->gpu, true);
            lacking = gs_pool_correct(pool);
        }
        if (lacking == 0)
            return true;
        /* Taken and given back at once: it is then in our credit, and the correction takes it under the mutex. */
        if (!gs_account_reserve(pool->gpu, lacking))
            return gs_pool_correct(pool) == 0; /* asking has trimmed the pools before it was refused */
        gs_release(pool->gpu->line, lacking);
    }
    return false;
}

bool gs_pool_enter(struct gs_pool *pool, uint32_t units) {
    uint32_t reserved = 0; /* of the credit, for growth, and not in `charged` yet */
    uint64_t word = word_of(pool);
    for (;;) {
        uint64_t live = (uint64_t)live_in(word) + units, charged = charged_in(word);
        uint64_t growth = live > charged ? live - charged : 0;
        if (growth <= reserved) {
            if (!exchange(pool, &word, live, charged + growth))
                continue;
            if (reserved > growth)
                gs_release(pool->gpu->line, reserved - (uint32_t)growth);
            return true;
        }
        if (live > UINT32_MAX || !gs_account_reserve(pool->gpu, (uint32_t)growth - reserved)) {
            if (reserved != 0)
                gs_release(pool->gpu->line, reserved);
            return false;
        }
        reserved = (uint32_t)growth;
    }
}

void gs_pool_leave(struct gs_pool *pool, uint32_t units) {
    uint64_t word = word_of(pool);
    while (!exchange(pool, &word, live_in(word) > units ? live_in(word) - units : 0, charged_in(word)))
        continue;
    if (__builtin_expect(state_of(pool) == GS_POOL_DESTROYED, 0))
        gs_pool_correct(pool);
}

bool gs_pool_undo_growth(struct gs_pool *pool) {
    uint32_t before, after;
    gs_mutex_lock(&pool->mutex);
    reserved_of(pool, &before); /* 0 if it cannot be asked */
    __atomic_store_n(&pool->over, true, __ATOMIC_RELAXED);
    correct(pool);
    bool shrunk = reserved_of(pool, &after) && after < before;
    gs_mutex_unlock(&pool->mutex);
    return shrunk;
}

/* ---- all of them ---------------------------------------------------------------------------------- */

void gs_pool_correct_all(void) {
    uint32_t last = count();
    for (struct gs_pool *pool = pools; pool < pools + last; pool++) {
        uint64_t word = word_of(pool);
        if (charged_in(word) > live_in(word) || __atomic_load_n(&pool->over, __ATOMIC_RELAXED))
            gs_pool_correct(pool);
    }
}

/* See gs_account_squeeze. The caller may know nothing of these pools, and a pool stays alive only under its mutex. */
static void squeeze(struct gs_gpu *gpu, bool all) {
    uint32_t last = count();
    for (struct gs_pool *pool = pools; pool < pools + last; pool++) {
        gs_mutex_lock(&pool->mutex);
        if (pool->gpu == gpu) {
            if (all)
                trim(pool);
            correct(pool);
        }
        gs_mutex_unlock(&pool->mutex);
    }
}

/* Where the driver has ended the allocations of a pool with the context, it has reserved less than the program held. */
void gs_pool_was_reset(const struct gs_gpu *gpu) {
    uint32_t reserved, last = count();
    for (struct gs_pool *pool = pools; pool < pools + last; pool++) {
        gs_mutex_lock(&pool->mutex);
        if (pool->gpu == gpu && reserved_of(pool, &reserved)) {
            uint64_t word = word_of(pool);
            while (live_in(word) > reserved && !exchange(pool, &word, reserved, charged_in(word)))
                continue;
            correct(pool);
        }
        gs_mutex_unlock(&pool->mutex);
    }
}

void gs_pool_begin_to_destroy(struct gs_pool *pool) {
    gs_mutex_lock(&pool->mutex);
    become(pool, GS_POOL_DYING);
    gs_mutex_unlock(&pool->mutex);
}

void gs_pool_end_destroying(struct gs_pool *pool, bool gone) {
    gs_mutex_lock(&pool->mutex);
    become(pool, gone ? GS_POOL_DESTROYED : GS_POOL_ALIVE);
    if (gone)
        correct(pool);
    gs_mutex_unlock(&pool->mutex);
}

GS_AT(fork) {
    memset(pools, 0, sizeof pools);
    memset(current_pools, 0, sizeof current_pools);
    pool_count = 0;
    adding = (struct gs_mutex){0};
}
