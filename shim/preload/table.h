/* table.h: what this process has allocated, by pointer or handle.
 *
 * Private to the process: nobody else ever reads it, so a crash leaves nothing locked. 64 shards, each with its own
 * lock and its own open-addressed array in pages of its own, so that threads do not meet and nothing calls malloc.
 * Finding an entry costs the same with ten live allocations and with a million.
 */
#ifndef GPUSHARE_PRELOAD_TABLE_H
#define GPUSHARE_PRELOAD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lock.h"

#define GS_TABLE_SHARDS 64

struct gs_entry {
    uint64_t key;     /* never 0 */
    uint32_t units;   /* charged for it */
    uint32_t context; /* that it dies with; 0: none */
    uint32_t detail;  /* what the kind says: a pool's or a handle's number */
    uint8_t gpu;      /* whose line is charged */
    uint8_t kind;     /* of the hooks that made it */
    uint16_t flags;
};

struct gs_shard {
    struct gs_lock lock;
    uint32_t count;
    uint32_t capacity; /* a power of two, or 0 */
    struct gs_entry *entries;
} __attribute__((aligned(64)));

struct gs_table {
    struct gs_shard shards[GS_TABLE_SHARDS];
};

/* Put an entry; one of the same key that was there goes to `displaced` (its key is 0 if there was none): its memory
 * has been freed by some way that we did not see. false: no memory for it. */
bool gs_table_put(struct gs_table *table, const struct gs_entry *entry, struct gs_entry *displaced);

/* Take an entry out; false: unknown. */
bool gs_table_take(struct gs_table *table, uint64_t key, struct gs_entry *entry);

/* A copy of an entry that stays. */
bool gs_table_find(struct gs_table *table, uint64_t key, struct gs_entry *entry);

/* Take out every entry that `wanted` says yes to, and hand it to `taken`. Both run under a lock of the table: they
 * must not use it. */
void gs_table_sweep(struct gs_table *table, bool (*wanted)(const struct gs_entry *, void *),
                    void (*taken)(const struct gs_entry *, void *), void *data);

/* In the child of a fork: the parent's allocations are not ours. The pages are left behind. */
void gs_table_forget(struct gs_table *table);

#endif
