/* pool.h: what is charged for the pools of stream-ordered memory.
 *
 * A pool keeps memory that the program has freed. So an allocation may cost the GPU nothing, or make the pool grow by
 * much more than its size. For this reason the pool is charged, not the allocation: the charge is the number of bytes
 * that the driver has reserved for the pool. The driver tells this number. A pool has two counts, in one word as in
 * credit.h:
 *
 *   charged  how much credit is used for the pool
 *   live     how much of it the program holds, in allocations that we saw; never more than charged
 *
 * An allocation that fits into `charged` needs one compare-and-swap, and its free needs another. Before any other
 * allocation we reserve credit for what does not fit. After the call we *correct* the pool: `charged` becomes what the
 * driver says, but not less than `live`.
 *
 * The driver takes unused memory from a pool when the program synchronises. So we correct a pool that is charged more
 * than the program holds: after each synchronisation, at the next allocation from it, when the program asks how much
 * memory is free, and before a call is refused.
 *
 * Pools in host memory and pools of other processes use no memory of ours. A pool of managed memory counts in full,
 * because all of it can be on one GPU at some time.
 */
#ifndef GPUSHARE_PRELOAD_POOL_H
#define GPUSHARE_PRELOAD_POOL_H

#include "device.h"

enum gs_pool_state {
    GS_POOL_UNUSED,
    GS_POOL_ALIVE,
    GS_POOL_DYING,    /* the driver is about to destroy it; nobody else uses it */
    GS_POOL_DESTROYED /* the program still holds memory from it */
};

struct gs_pool {
    uint64_t word; /* live << 32 | charged, in units */
    CUmemoryPool handle;
    struct gs_gpu *gpu; /* NULL: it is not charged */
    enum gs_pool_state state;
    bool over;             /* the driver has reserved more than is charged, because the credit did not suffice */
    struct gs_mutex mutex; /* held while the pool is corrected */
};

/* A pool that is alive, or NULL. */
struct gs_pool *gs_pool_find(CUmemoryPool handle);

/* Adds a pool that is charged on this GPU (NULL: it is not charged). NULL if there are too many pools: then only the
 * daemon's measurements show its memory. */
struct gs_pool *gs_pool_add(CUmemoryPool handle, struct gs_gpu *gpu);

/* The GPU on which a pool of this location is charged; NULL: it is not charged. */
struct gs_gpu *gs_pool_place(const CUmemLocation *location, CUmemAllocationType type);

/* As gs_pool_find, but an unknown pool is added: the program did not create it, so it is the default pool of a device,
 * or a pool that is not charged. We know all others since the program asked for them. */
struct gs_pool *gs_pool_of(CUmemoryPool handle);

/* The current pool of a device; NULL: the driver does not tell. Call gs_pool_chosen after each call of the driver that
 * may have chosen another one: an allocation at the same time may use either. */
CUmemoryPool gs_pool_current(uint32_t device);
void gs_pool_chosen(void);

/* The pool of a number, and its number, as entries of the table hold it. */
struct gs_pool *gs_pool_numbered(uint32_t number);
uint32_t gs_pool_number(const struct gs_pool *pool);

/* Call before an allocation. Reserves credit for it. false: refused, and the user has been told. */
bool gs_pool_enter(struct gs_pool *pool, uint32_t units);

/* Call after an allocation was freed, or was not made. The pool may keep the memory, so the charge stays until the
 * pool is corrected. A destroyed pool ends with its last allocation. */
void gs_pool_leave(struct gs_pool *pool, uint32_t units);

/* Charges what the driver says. Returns the units that are not charged because the credit does not suffice. */
uint32_t gs_pool_correct(struct gs_pool *pool);

/* The same, but asks the daemon for missing credit. false: refused. */
bool gs_pool_correct_asking(struct gs_pool *pool);

/* Call after an allocation was undone because the pool had grown by more than the credit. true: the driver has taken
 * some of it back. */
bool gs_pool_undo_growth(struct gs_pool *pool);

/* Call after a synchronisation. */
void gs_pool_correct_all(void);

/* Call before and after the driver destroys a pool: a new pool may get the same handle at once. `gone`: it was
 * destroyed. */
void gs_pool_begin_to_destroy(struct gs_pool *pool);
void gs_pool_end_destroying(struct gs_pool *pool, bool gone);

/* Call after the primary context of a GPU was reset. CUDA documents that a pool belongs to the device and stays. If a
 * driver frees its memory nevertheless, the charge goes too. */
void gs_pool_was_reset(const struct gs_gpu *gpu);

#endif
