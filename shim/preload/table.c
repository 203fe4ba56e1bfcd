/* table.c: open addressing with linear probing, and deletion by shifting back, so that no tombstones pile up. */
#include "table.h"

#include <string.h>

#define FIRST_CAPACITY 64

static uint64_t hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15ull; /* 2^64 / golden ratio: device pointers differ in their middle bits */
    return key ^ key >> 29;
}

/* Shard by the top bits, slot by the low ones, so that the two are independent. */
static struct gs_shard *shard_of(struct gs_table *table, uint64_t hashed) {
    return &table->shards[hashed >> 58];
}

/* Where the key is, or the free slot where it would go. */
static uint32_t probe(const struct gs_shard *shard, uint64_t key, uint64_t hashed) {
    uint32_t mask = shard->capacity - 1, at = (uint32_t)hashed & mask;
    while (shard->entries[at].key != 0 && shard->entries[at].key != key)
        at = (at + 1) & mask;
    return at;
}

static bool grow(struct gs_shard *shard) {
    struct gs_shard bigger = {.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY};
    bigger.entries = gs_pages_new(bigger.capacity * sizeof(struct gs_entry));
    if (bigger.entries == NULL)
        return false;
    for (uint32_t i = 0; i < shard->capacity; i++) {
        const struct gs_entry *entry = &shard->entries[i];
        if (entry->key != 0)
            bigger.entries[probe(&bigger, entry->key, hash(entry->key))] = *entry;
    }
    gs_pages_drop(shard->entries, shard->capacity * sizeof(struct gs_entry));
    shard->entries = bigger.entries;
    shard->capacity = bigger.capacity;
    return true;
}

static void delete_at(struct gs_shard *shard, uint32_t hole) {
    uint32_t mask = shard->capacity - 1;
    for (uint32_t at = (hole + 1) & mask; shard->entries[at].key != 0; at = (at + 1) & mask) {
        uint32_t home = (uint32_t)hash(shard->entries[at].key) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* it may move back as far as the hole */
            shard->entries[hole] = shard->entries[at];
            hole = at;
        }
    }
    shard->entries[hole].key = 0;
    shard->count--;
}

bool gs_table_put(struct gs_table *table, const struct gs_entry *entry, struct gs_entry *displaced) {
    uint64_t hashed = hash(entry->key);
    struct gs_shard *shard = shard_of(table, hashed);
    bool room = true;
    displaced->key = 0;
    gs_lock(&shard->lock);
    if (__builtin_expect(shard->count >= shard->capacity / 4 * 3, 0)) /* full enough for long probes */
        room = grow(shard) || shard->count + 1 < shard->capacity;
    if (room) {
        struct gs_entry *slot = &shard->entries[probe(shard, entry->key, hashed)];
        if (__builtin_expect(slot->key != 0, 0))
            *displaced = *slot;
        else
            shard->count++;
        *slot = *entry;
    }
    gs_unlock(&shard->lock);
    return room;
}

bool gs_table_take(struct gs_table *table, uint64_t key, struct gs_entry *entry) {
    uint64_t hashed = hash(key);
    struct gs_shard *shard = shard_of(table, hashed);
    bool found = false;
    if (key == 0)
        return false;
    gs_lock(&shard->lock);
    if (shard->capacity != 0) {
        uint32_t at = probe(shard, key, hashed);
        found = shard->entries[at].key != 0;
        if (found) {
            *entry = shard->entries[at];
            delete_at(shard, at);
        }
    }
    gs_unlock(&shard->lock);
    return found;
}

bool gs_table_find(struct gs_table *table, uint64_t key, struct gs_entry *entry) {
    uint64_t hashed = hash(key);
    struct gs_shard *shard = shard_of(table, hashed);
    bool found = false;
    if (key == 0)
        return false;
    gs_lock(&shard->lock);
    if (shard->capacity != 0) {
        const struct gs_entry *slot = &shard->entries[probe(shard, key, hashed)];
        found = slot->key != 0;
        if (found)
            *entry = *slot;
    }
    gs_unlock(&shard->lock);
    return found;
}

/* Deleting shifts entries back into the slot just looked at, so that slot is looked at again. An entry that the
 * shift carries around the end of the array may be seen twice, never missed; the lock is kept for the whole shard,
 * because another thread's deletion could carry one from ahead of us to behind us. */
void gs_table_sweep(struct gs_table *table, bool (*wanted)(const struct gs_entry *, void *),
                    void (*taken)(const struct gs_entry *, void *), void *data) {
    for (int i = 0; i < GS_TABLE_SHARDS; i++) {
        struct gs_shard *shard = &table->shards[i];
        gs_lock(&shard->lock);
        for (uint32_t at = 0; at < shard->capacity;) {
            struct gs_entry entry = shard->entries[at];
            if (entry.key == 0 || !wanted(&entry, data)) {
                at++;
                continue;
            }
            delete_at(shard, at);
            taken(&entry, data);
        }
        gs_unlock(&shard->lock);
    }
}

void gs_table_forget(struct gs_table *table) {
    memset(table, 0, sizeof *table);
}
