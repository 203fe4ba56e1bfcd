/* table.c: open addressing with linear probing, and deletion by shifting back, so that no tombstones pile up. */
#include "table.h"

#include <string.h>

#define FIRST_BITS 6

/* The shard is chosen by the top bits of the hashed key, the slot by those below. */
static uint32_t home_of(const struct gs_shard *shard, uint64_t key) {
    return (uint32_t)(gs_table_hash(key) << GS_SHARD_BITS >> shard->shift);
}

/* Where the key is, or the free slot where it would go. */
static uint32_t probe(const struct gs_shard *shard, uint64_t key) {
    uint32_t mask = shard->capacity - 1, at = home_of(shard, key);
    while (shard->entries[at].key != 0 && shard->entries[at].key != key)
        at = (at + 1) & mask;
    return at;
}

static bool grow(struct gs_shard *shard) {
    struct gs_shard bigger = {.capacity = shard->capacity ? shard->capacity * 2 : 1u << FIRST_BITS,
                              .shift = shard->capacity ? shard->shift - 1 : 64 - FIRST_BITS};
    bigger.entries = gs_pages_new(bigger.capacity * sizeof(struct gs_entry));
    if (bigger.entries == NULL)
        return false;
    for (uint32_t i = 0; i < shard->capacity; i++) {
        const struct gs_entry *entry = &shard->entries[i];
        if (entry->key != 0)
            bigger.entries[probe(&bigger, entry->key)] = *entry;
    }
    gs_pages_drop(shard->entries, shard->capacity * sizeof(struct gs_entry));
    shard->entries = bigger.entries;
    shard->capacity = bigger.capacity;
    shard->shift = bigger.shift;
    return true;
}

static void delete_at(struct gs_table *table, struct gs_shard *shard, uint32_t hole) {
    uint32_t mask = shard->capacity - 1;
    __atomic_fetch_sub(gs_table_region(table, shard->entries[hole].key), 1, __ATOMIC_RELAXED);
    for (uint32_t at = (hole + 1) & mask; shard->entries[at].key != 0; at = (at + 1) & mask) {
        uint32_t home = home_of(shard, shard->entries[at].key);
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* it may move back as far as the hole */
            shard->entries[hole] = shard->entries[at];
            hole = at;
        }
    }
    shard->entries[hole].key = 0;
    shard->count--;
}

/* The array has no other entry of this key. false: no memory. */
static bool move_newest_to_array(struct gs_table *table, struct gs_shard *shard) {
    if (shard->newest.key == 0)
        return true;
    if (shard->count >= shard->capacity / 4 * 3 && !grow(shard) && shard->count + 1 >= shard->capacity)
        return false; /* it is full, not only full enough for long probes */
    shard->entries[probe(shard, shard->newest.key)] = shard->newest;
    shard->count++;
    __atomic_fetch_add(gs_table_region(table, shard->newest.key), 1, __ATOMIC_RELAXED);
    shard->newest.key = 0;
    return true;
}

bool gs_table_put_slow(struct gs_table *table, struct gs_shard *shard, const struct gs_entry *entry,
                       struct gs_entry *displaced) {
    displaced->key = 0;
    if (shard->newest.key == entry->key) {
        *displaced = shard->newest;
    } else {
        if (!move_newest_to_array(table, shard))
            return false;
        struct gs_entry *old = gs_table_find_in_array(table, shard, entry->key);
        if (old != NULL) {
            *displaced = *old;
            gs_table_delete_from_array(table, shard, old);
        }
    }
    shard->newest = *entry;
    return true;
}

struct gs_entry *gs_table_find_in_array(struct gs_table *table, struct gs_shard *shard, uint64_t key) {
    if (shard->capacity == 0 || __atomic_load_n(gs_table_region(table, key), __ATOMIC_RELAXED) == 0)
        return NULL;
    struct gs_entry *entry = &shard->entries[probe(shard, key)];
    return entry->key != 0 ? entry : NULL;
}

void gs_table_delete_from_array(struct gs_table *table, struct gs_shard *shard, struct gs_entry *entry) {
    delete_at(table, shard, (uint32_t)(entry - shard->entries));
}

/* Deleting shifts entries back into the slot just looked at, so that slot is looked at again. An entry that the
 * shift carries around the end of the array may be seen twice, never missed; the lock is kept for the whole shard,
 * because another thread's deletion could carry one from ahead of us to behind us. */
void gs_table_sweep(struct gs_table *table, bool (*wanted)(const struct gs_entry *, void *),
                    void (*taken)(const struct gs_entry *, void *), void *data) {
    for (int i = 0; i < 1 << GS_SHARD_BITS; i++) {
        struct gs_shard *shard = &table->shards[i];
        gs_lock(&shard->lock);
        struct gs_entry newest = shard->newest;
        if (newest.key != 0 && wanted(&newest, data)) {
            shard->newest.key = 0;
            taken(&newest, data);
        }
        for (uint32_t at = 0; at < shard->capacity;) {
            struct gs_entry entry = shard->entries[at];
            if (entry.key == 0 || !wanted(&entry, data)) {
                at++;
                continue;
            }
            delete_at(table, shard, at);
            taken(&entry, data);
        }
        gs_unlock(&shard->lock);
    }
}

void gs_table_forget(struct gs_table *table) {
    memset(table, 0, sizeof *table);
}
