/* core_table.c: the pointer table against a plain array, by one thread and by several. Run under the sanitizers. */
#include "table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define KEYS    4096
#define ROUNDS  200000
#define THREADS 4

static struct gs_table table;

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

struct work {
    uint64_t seed, base;
    uint32_t units[KEYS]; /* 0: not in the table */
};

/* Keys like device pointers: multiples of 512 from a range of its own. */
static uint64_t key_of(const struct work *work, uint64_t i) {
    return work->base + (i + 1) * 512;
}

static void *run(void *data) {
    struct work *work = data;
    struct gs_entry entry, displaced;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t i = next_random(&work->seed) % KEYS, what = next_random(&work->seed) % 8;
        uint32_t units = (uint32_t)next_random(&work->seed) | 1;
        entry = (struct gs_entry){.key = key_of(work, i), .units = units, .context = (uint32_t)(work->base >> 32)};
        if (what < 4) {
            require(gs_table_put(&table, &entry, &displaced), "put");
            require((displaced.key != 0) == (work->units[i] != 0), "displaced");
            require(displaced.key == 0 || displaced.units == work->units[i], "displaced units");
            work->units[i] = units;
        } else if (what < 7) {
            bool found = gs_table_take(&table, key_of(work, i), &entry);
            require(found == (work->units[i] != 0), "take");
            require(!found || entry.units == work->units[i], "taken units");
            work->units[i] = 0;
        } else {
            bool found = gs_table_find(&table, key_of(work, i), &entry);
            require(found == (work->units[i] != 0) && (!found || entry.units == work->units[i]), "find");
        }
    }
    return NULL;
}

static bool of_context(const struct gs_entry *entry, void *context) {
    return entry->context == *(uint32_t *)context;
}

static uint64_t swept, swept_units;

static void count(const struct gs_entry *entry, void *unused) {
    (void)unused;
    swept++;
    swept_units += entry->units;
}

/* Keys of regions of their own, few alive: what is put comes out again, also when it was put twice or another of the
 * same shard came after it. */
static void work_on_fresh_regions(void) {
    uint64_t seed = 7, held[64] = {0};
    struct gs_entry entry, displaced = {0};
    for (uint64_t i = 1; i <= 100000; i++) {
        uint64_t *slot = &held[next_random(&seed) % 64], key = 0x600000000000 + (i << 21);
        require(*slot == 0 || (gs_table_take(&table, *slot, &entry) && entry.key == *slot), "take of a region");
        require(*slot == 0 || !gs_table_find(&table, *slot, &entry), "it is gone");
        entry = (struct gs_entry){.key = key, .units = (uint32_t)i};
        require(gs_table_put(&table, &entry, &displaced) && displaced.key == 0, "put of a region");
        if (i % 3 == 0) {
            entry.units++;
            require(gs_table_put(&table, &entry, &displaced), "the same key again");
            require(displaced.key == key && displaced.units == i, "what was there before");
        }
        require(gs_table_find(&table, key, &entry) && entry.units == i + (i % 3 == 0), "find of a region");
        *slot = key;
    }
    for (int i = 0; i < 64; i++)
        require(held[i] == 0 || gs_table_take(&table, held[i], &entry), "take of the last");
    for (size_t i = 0; i < sizeof table.regions / sizeof *table.regions; i++)
        require(table.regions[i] == 0, "no region has any");
}

int main(void) {
    static struct work works[THREADS];
    pthread_t threads[THREADS];
    struct gs_entry entry;
    for (uint64_t i = 0; i < THREADS; i++) {
        works[i].seed = i + 1;
        works[i].base = (0x7f00 + i) << 32;
        pthread_create(&threads[i], NULL, run, &works[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        uint64_t left = 0, units = 0;
        uint32_t context = (uint32_t)(works[i].base >> 32);
        for (int k = 0; k < KEYS; k++) {
            left += works[i].units[k] != 0;
            units += works[i].units[k];
        }
        swept = swept_units = 0;
        gs_table_sweep(&table, of_context, count, &context);
        require(swept == left && swept_units == units, "sweep");
        require(!gs_table_take(&table, key_of(&works[i], 7), &entry), "nothing is left");
    }
    work_on_fresh_regions();
    require(!gs_table_take(&table, 0, &entry) && !gs_table_find(&table, 0, &entry), "no key is 0");
    puts("good");
    return 0;
}
