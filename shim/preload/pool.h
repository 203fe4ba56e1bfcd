/* pool.h: what is charged for the pools of stream-ordered memory.
 *
 * A pool keeps memory after it has been freed, and an allocation may cost nothing or grow the pool by much more than
 * its size. So not allocations are charged but pools, by the bytes that they have reserved (a number that the driver
 * tells), and that is put right after each call that could change it:
 *
 *   charged  what is reserved of the credit for the pool
 *   live     what the program holds of it, in allocations that we saw; never more than charged
 *
 * Both are halves of one word, as in credit.h: an allocation that fits into what is charged takes one compare-and-swap,
 * its free another. Before an allocation, credit is reserved for what does not fit; after it, charged becomes what the
 * driver says, but never less than live. Memory goes back when the program synchronises, so after each synchronisation
 * the pools are looked at that are charged more than the program holds; and also at the next allocation from the pool,
 * when the program asks what is free, and before anything is refused.
 *
 * Pools in host memory and pools of other processes cost nothing. Managed memory may all be on a GPU at some time,
 * wherever it would rather be, so its pools count in full.
 */
#ifndef GPUSHARE_PRELOAD_POOL_H
#define GPUSHARE_PRELOAD_POOL_H

#include "device.h"

enum gs_pool_state {
    GS_POOL_UNUSED,
    GS_POOL_ALIVE,
    GS_POOL_DYING,    /* the driver is about to destroy it, and nobody else touches it */
    GS_POOL_DESTROYED /* but memory from it is still held */
};

struct gs_pool {
    uint64_t word; /* live << 32 | charged, in units */
    CUmemoryPool handle;
    struct gs_gpu *gpu; /* NULL: costs nothing here */
    enum gs_pool_state state;
    uint32_t over;         /* charged less than reserved: the credit did not hold what the driver has taken */
    struct gs_mutex mutex; /* held while the driver is asked and charged follows */
};

/* A pool that is alive, or NULL. */
struct gs_pool *gs_pool_find(CUmemoryPool handle);

/* A pool that is charged on this GPU (NULL: it costs nothing). NULL: there are too many; what it takes is left to
 * measuring. */
struct gs_pool *gs_pool_add(CUmemoryPool handle, struct gs_gpu *gpu);

/* The GPU that a pool of this place is charged on; NULL: it costs nothing. */
struct gs_gpu *gs_pool_place(const CUmemLocation *location, CUmemAllocationType type);

/* As gs_pool_find, also for one that we did not see being made: the default pool of some device, or one that costs
 * nothing, since those of other places have been seen when the program asked for them. */
struct gs_pool *gs_pool_of(CUmemoryPool handle);

/* The current pool of a device, and a call that may have chosen another: to be said after the driver's call, because an
 * allocation at the same time may take from either. NULL: the driver does not tell. */
CUmemoryPool gs_pool_current(uint32_t device);
void gs_pool_chosen(void);

/* By the number kept in table entries. */
struct gs_pool *gs_pool_numbered(uint32_t number);
uint32_t gs_pool_number(const struct gs_pool *pool);

/* An allocation is about to be made. false: refused, and said. */
bool gs_pool_enter(struct gs_pool *pool, uint32_t units);

/* An allocation is gone, or was not made. What the pool has reserved for it may go back later, and is looked at then; a
 * pool that nobody can ask any more ends with its last one. */
void gs_pool_leave(struct gs_pool *pool, uint32_t units);

/* Charge what the driver says. Returns the units that could not be, because the credit does not hold them. */
uint32_t gs_pool_settle(struct gs_pool *pool);

/* The same, asking for what is lacking. false: refused. */
bool gs_pool_settle_up(struct gs_pool *pool);

/* An allocation was undone because the pool had grown by more than the credit holds. true: some of that is back. */
bool gs_pool_undo_growth(struct gs_pool *pool);

/* After a synchronisation. */
void gs_pool_settle_all(void);

/* Before the driver destroys it, because its handle may be another's afterwards; and when that was done, or failed. */
void gs_pool_begin_to_destroy(struct gs_pool *pool);
void gs_pool_end_destroying(struct gs_pool *pool, bool gone);

/* The primary context of a GPU has been reset. A pool belongs to the device and stays, as CUDA documents it; if a
 * driver ends its memory too, that is no longer charged. */
void gs_pool_was_reset(const struct gs_gpu *gpu);

#endif
