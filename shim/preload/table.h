/* table.h: the allocations of this process, by pointer or handle.
 *
 * No other process reads the table, so a crash leaves nothing locked. It has 64 shards. Each shard has a lock and an
 * array with open addressing, which lies in pages of its own: threads rarely wait for each other, and malloc is never
 * called.
 *
 * Most memory is freed soon after it was allocated. So a shard keeps its newest entry beside its lock, in the same
 * cache line, and moves it to the array when the next entry comes. An allocation that is freed before that never
 * touches the array, where each look-up is likely to miss the cache when there are many allocations.
 *
 * A new entry may go beside the lock only if the array has no entry of the same key. To know this without a look-up
 * the table counts the entries in the arrays by region of the address space. A region that has none needs no look-up.
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
    uint32_t units;   /* that it is charged */
    uint32_t context; /* the end of this context frees it; 0: none does */
    uint32_t detail;  /* by kind: the number of a pool or of a block */
    uint8_t gpu;      /* that is charged */
    uint8_t kind;     /* gs_kind_of_memory */
    uint16_t flags;
};

struct gs_shard {
    struct gs_lock lock;
    uint32_t count;    /* entries in the array */
    uint32_t capacity; /* of the array: a power of two, or 0 */
    uint32_t shift;    /* a hashed key, shifted right by this, is its slot */
    struct gs_entry *entries;
    struct gs_entry newest; /* not in the array; key 0: none */
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct gs_shard) == 64, "nearly all calls read one cache line only");

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

/* The functions below call these when the newest entry is not enough. The caller holds the shard's lock. */
bool gs_table_put_slow(struct gs_table *table, struct gs_shard *shard, const struct gs_entry *entry,
                       struct gs_entry *displaced);
struct gs_entry *gs_table_find_in_array(struct gs_table *table, struct gs_shard *shard, uint64_t key); /* NULL: none */
void gs_table_delete_from_array(struct gs_table *table, struct gs_shard *shard, struct gs_entry *entry);

/* Puts an entry. An older entry of the same key goes to `displaced` (key 0: there was none): its memory was freed in a
 * way that we did not see. false: no memory for the array. */
GS_INLINE bool gs_table_put(struct gs_table *table, const struct gs_entry *entry, struct gs_entry *displaced) {
    struct gs_shard *shard = gs_table_shard(table, entry->key);
    displaced->key = 0;
    gs_lock(&shard->lock);
    /* All entries of this key are put under this lock, so a count of 0 is not out of date for this key. */
    if (__builtin_expect(shard->newest.key == 0, 1) &&
        __builtin_expect(__atomic_load_n(gs_table_region(table, entry->key), __ATOMIC_RELAXED) == 0, 1)) {
        shard->newest = *entry;
        gs_unlock(&shard->lock);
        return true;
    }
    struct gs_entry copy = *entry, old; /* the caller's may then stay in registers */
    bool good = gs_table_put_slow(table, shard, &copy, &old);
    gs_unlock(&shard->lock);
    *displaced = old;
    return good;
}

/* Calls `keep` with an entry, under the shard's lock. `keep` may change the entry and must not call the table; if it
 * returns false, the entry is deleted. false: no such entry. */
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
    struct gs_entry *entry = gs_table_find_in_array(table, shard, key);
    if (entry != NULL && !keep(entry, data))
        gs_table_delete_from_array(table, shard, entry);
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

/* Deletes an entry, which is copied first. false: no such entry. */
GS_INLINE bool gs_table_take(struct gs_table *table, uint64_t key, struct gs_entry *entry) {
    return gs_table_visit(table, key, gs_table_copy_and_drop, entry);
}

/* Copies an entry, which stays. false: no such entry. */
GS_INLINE bool gs_table_find(struct gs_table *table, uint64_t key, struct gs_entry *entry) {
    return gs_table_visit(table, key, gs_table_copy_and_keep, entry);
}

/* Deletes each entry for which `wanted` is true, and calls `taken` with it. Both run under a shard's lock: they must
 * not call the table. */
void gs_table_sweep(struct gs_table *table, bool (*wanted)(const struct gs_entry *, void *),
                    void (*taken)(const struct gs_entry *, void *), void *data);

/* Call in the child of a fork: it has none of its parent's allocations. The pages of the arrays stay mapped. */
void gs_table_forget(struct gs_table *table);

#endif
