/* core_pages.c: the pointer table with pages that end where its arrays end, and that run out.
 *
 * Each array is put before a page that nobody may touch, and becomes one when it is given back: a step beyond it, or
 * a look at an array that has been replaced, ends the program.
 */
#include "system.h"

static void *guarded_new(size_t bytes);
static void guarded_drop(void *pages, size_t bytes);
#define gs_pages_new  guarded_new
#define gs_pages_drop guarded_drop
#include "table.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define KEYS 8192
#define FEW  2048

static struct gs_table table;
static uint32_t units_of[KEYS]; /* 0: not in the table */
static bool exhausted;
static size_t alive; /* bytes of arrays */

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static char *beginning(void *array, size_t bytes) {
    return (char *)array + bytes - (bytes + PAGE - 1) / PAGE * PAGE;
}

static void *guarded_new(size_t bytes) {
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    if (exhausted)
        return NULL;
    char *at = mmap(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(at != MAP_FAILED && mprotect(at, whole, PROT_READ | PROT_WRITE) == 0, "mmap");
    alive += bytes;
    return at + whole - bytes;
}

static void guarded_drop(void *array, size_t bytes) {
    if (array == NULL)
        return;
    alive -= bytes;
    require(mprotect(beginning(array, bytes), bytes, PROT_NONE) == 0, "an array is given back whole");
}

static uint64_t key_of(uint32_t i) {
    return 0x7f0000000000 + (uint64_t)(i + 1) * 512;
}

static bool put(uint32_t i, uint32_t units) {
    struct gs_entry displaced, entry = {.key = key_of(i), .units = units, .context = 1 + i % 2};
    uint32_t before = units_of[i];
    if (!gs_table_put(&table, &entry, &displaced)) {
        require(displaced.key == 0, "what was refused displaced nothing");
        return false;
    }
    require(displaced.key == (before != 0 ? key_of(i) : 0), "displaced");
    require(before == 0 || displaced.units == before, "displaced units");
    units_of[i] = units;
    return true;
}

static void take(uint32_t i) {
    struct gs_entry entry;
    bool found = gs_table_take(&table, key_of(i), &entry);
    require(found == (units_of[i] != 0) && (!found || entry.units == units_of[i]), "take");
    units_of[i] = 0;
}

static void compare(void) {
    struct gs_entry entry;
    for (uint32_t i = 0; i < KEYS; i++) {
        bool found = gs_table_find(&table, key_of(i), &entry);
        require(found == (units_of[i] != 0) && (!found || entry.units == units_of[i]), "find");
    }
}

static uint32_t seen;
static uint64_t seen_units;

static bool is_of(const struct gs_entry *entry, void *context) {
    return entry->context == *(uint32_t *)context;
}

static bool none(const struct gs_entry *entry, void *unused) {
    (void)unused;
    seen++;
    seen_units += entry->units;
    return false;
}

static void taken(const struct gs_entry *entry, void *unused) {
    (void)unused;
    uint32_t i = (uint32_t)((entry->key - key_of(0)) / 512);
    require(i < KEYS && units_of[i] == entry->units, "swept");
    units_of[i] = 0;
}

/* A look at all of them that takes none tells of each as it is, and of nothing else. */
static void look(void) {
    uint32_t count = 0;
    uint64_t units = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        count += units_of[i] != 0;
        units += units_of[i];
    }
    seen = 0;
    seen_units = 0;
    gs_table_sweep(&table, none, taken, NULL);
    require(seen == count && seen_units == units, "a look at all");
}

/* Entries in the arrays beside the newest of each shard. */
static uint32_t in_arrays(uint32_t *places) {
    uint32_t count = 0;
    *places = 0;
    for (int i = 0; i < 1 << GS_SHARD_BITS; i++) {
        count += table.shards[i].count;
        *places += table.shards[i].capacity;
    }
    return count;
}

int main(void) {
    uint32_t refused = 0, places, context = 1;
    exhausted = true; /* one of each shard needs no array */
    for (uint32_t i = 0; i < KEYS; i++)
        refused += !put(i, i + 1);
    require(KEYS - refused == 1 << GS_SHARD_BITS, "without arrays the table holds one of each shard");
    compare();
    exhausted = false;
    for (uint32_t i = 0; i < FEW; i++)
        require(put(i, i + 7), "there are pages again");
    compare();
    look();
    size_t bytes = alive;
    exhausted = true; /* the arrays fill up, but for one place: a search ends there */
    refused = 0;
    for (uint32_t i = FEW; i < KEYS; i++)
        refused += !put(i, i + 9);
    uint32_t held = in_arrays(&places);
    require(refused != 0 && held + (1 << GS_SHARD_BITS) == places, "full but for one place of each");
    require(alive == bytes && bytes == places * sizeof(struct gs_entry), "the arrays are those that there were");
    compare();
    look();
    for (uint32_t i = 0; i < KEYS; i += 3)
        take(i);
    compare();
    gs_table_sweep(&table, is_of, taken, &context);
    for (uint32_t i = 0; i < KEYS; i++)
        require(units_of[i] == 0 || i % 2 == 1, "what was to be swept is gone");
    compare();
    look();
    for (uint32_t i = 0; i < KEYS; i++)
        take(i);
    require(in_arrays(&places) == 0, "empty");
    puts("good");
    return 0;
}
