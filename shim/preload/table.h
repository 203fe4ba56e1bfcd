/* table.h: what this process has allocated, by pointer or handle.
 *
 * Private to the process: no other process reads it, so a crash leaves nothing locked. 64 shards, each with its own
 * lock and its own open-addressed array in pages of its own, so that threads do not meet and nothing calls malloc.
 *
 * Most memory is freed soon after it was allocated. So a shard keeps the entry that was put last beside its lock, in
 * the same cache line, and moves it into the array only when the next one is put. An allocation that is freed before
 * that never touches the array, which has a cold cache line for each look-up when many allocations live. An entry may
 * be put beside the lock without a look into the array only if the array has no entry of the same key. So the table
 * counts the entries in the arrays by region of the address space: in a region without entries no look is needed.
 */
#ifndef GPUSHARE_PRELOAD_TABLE_H
#define GPUSHARE_PRELOAD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lock.h"

#define GS_SHARD_BITS   6
#define GS_REGION_BITS  15
#define GS_REGION_SHIFT 21 /* the driver maps memory in blocks of 2 MiB */

enum gs_kind_of_memory { GS_LINEAR, GS_MANAGED, GS_POOLED, GS_ARRAY, GS_MIPMAP, GS_HANDLE, GS_MAPPING };

struct gs_entry {
    uint64_t key;     /* never 0 */
    uint32_t units;   /* charged for it */
    uint32_t context; /* that it dies with; 0: none */
    uint32_t detail;  /* what the kind says: a pool's or a block's number */
    uint8_t gpu;      /* whose line is charged */
    uint8_t kind;     /* of the hooks that made it */
    uint16_t flags;
};

struct gs_shard {
    struct gs_lock lock;
    uint32_t count;    /* entries in the array */
    uint32_t capacity; /* of the array: a power of two, or 0 */
    uint32_t shift;    /* that makes a slot of a hashed key */
    struct gs_entry *entries;
    struct gs_entry newest; /* not in the array; key 0: none */
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct gs_shard) == 64, "what nearly all calls touch is in one cache line");

struct gs_table {
    struct gs_shard shards[1 << GS_SHARD_BITS];
    uint32_t regions[1 << GS_REGION_BITS]; /* entries in the arrays, by region */
};

static inline uint64_t gs_table_hash(uint64_t key) {
    return key * 0x9e3779b97f4a7c15ull; /* 2^64 / golden ratio: the upper bits depend on all of the key */
}

static inline struct gs_shard *gs_table_shard(struct gs_table *table, uint64_t key) {
    return &table->shards[gs_table_hash(key) >> (64 - GS_SHARD_BITS)];
}

static inline uint32_t *gs_table_region(struct gs_table *table, uint64_t key) {
    uint64_t hashed = gs_table_hash(key >> GS_REGION_SHIFT);
    return &table->regions[gs_table_hash(hashed ^ hashed >> 32) >> (64 - GS_REGION_BITS)];
}

/* The rest of the functions below, where the newest entry alone does not decide. Under the shard's lock. */
bool gs_table_put_settled(struct gs_table *table, struct gs_shard *shard, const struct gs_entry *entry,
                          struct gs_entry *displaced);
struct gs_entry *gs_table_find_settled(struct gs_table *table, struct gs_shard *shard, uint64_t key); /* NULL: none */
void gs_table_delete_settled(struct gs_table *table, struct gs_shard *shard, struct gs_entry *entry);

/* Put an entry; one of the same key that was there goes to `displaced` (its key is 0 if there was none): its memory
 * has been freed by some way that we did not see. false: no memory for it. */
GS_INLINE bool gs_table_put(struct gs_table *table, const struct gs_entry *entry, struct gs_entry *displaced) {
    struct gs_shard *shard = gs_table_shard(table, entry->key);
    displaced->key = 0;
    gs_lock(&shard->lock);
    /* Entries of this key have always been put under this lock, so a 0 is not one from before such an entry. */
    if (__builtin_expect(shard->newest.key == 0, 1) &&
        __builtin_expect(__atomic_load_n(gs_table_region(table, entry->key), __ATOMIC_RELAXED) == 0, 1)) {
        shard->newest = *entry;
        gs_unlock(&shard->lock);
        return true;
    }
    struct gs_entry copy = *entry, old; /* so that those of the caller may stay in registers */
    bool good = gs_table_put_settled(table, shard, &copy, &old);
    gs_unlock(&shard->lock);
    *displaced = old;
    return good;
}

/* Show an entry to `keep` under the lock, which it may change and must not leave by calling us; false from it takes the
 * entry out. false: unknown. */
GS_INLINE bool gs_table_visit(struct gs_table *table, uint64_t key, bool (*keep)(struct gs_entry *, void *),
                              void *data) {
    struct gs_shard *shard = gs_table_shard(table, key);
    if (__builtin_expect(key == 0, 0))
        return false;
    gs_lock(&shard->lock);
    if (__builtin_expect(shard->newest.key == key, 1)) {
        if (!keep(&shard->newest, data))
            shard->newest.key = 0;
        gs_unlock(&shard->lock);
        return true;
    }
    struct gs_entry *entry = gs_table_find_settled(table, shard, key);
    if (entry != NULL && !keep(entry, data))
        gs_table_delete_settled(table, shard, entry);
    gs_unlock(&shard->lock);
    return entry != NULL;
}

GS_INLINE bool gs_table_copy_and_keep(struct gs_entry *entry, void *copy) {
    *(struct gs_entry *)copy = *entry;
    return true;
}

GS_INLINE bool gs_table_copy_and_drop(struct gs_entry *entry, void *copy) {
    *(struct gs_entry *)copy = *entry;
    return false;
}

/* Take an entry out; false: unknown. */
GS_INLINE bool gs_table_take(struct gs_table *table, uint64_t key, struct gs_entry *entry) {
    return gs_table_visit(table, key, gs_table_copy_and_drop, entry);
}

/* A copy of an entry that stays. */
GS_INLINE bool gs_table_find(struct gs_table *table, uint64_t key, struct gs_entry *entry) {
    return gs_table_visit(table, key, gs_table_copy_and_keep, entry);
}

/* Take out every entry that `wanted` says yes to, and hand it to `taken`. Both run under a lock of the table: they
 * must not use it. */
void gs_table_sweep(struct gs_table *table, bool (*wanted)(const struct gs_entry *, void *),
                    void (*taken)(const struct gs_entry *, void *), void *data);

/* In the child of a fork: the parent's allocations are not ours. The pages are left behind. */
void gs_table_forget(struct gs_table *table);

#endif
