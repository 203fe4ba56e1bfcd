/* charge.c: the rare cases of reservations and entries. */
#include "charge.h"

#include "moments.h"

struct gs_table gs_pointers;
uint32_t gs_unknown_frees;

bool gs_charge_ask_again(struct gs_place place, uint32_t units, bool retried) {
    if (place.gpu == NULL)
        return false;
    if (!retried)
        return gs_account_driver_failed(place.gpu, units);
    gs_account_driver_failed_again(place.gpu, units);
    return false;
}

/* The line's counts of what makes a process unsuspendable. */
static void count_managed(const struct gs_entry *entry, int change) {
    if (entry->kind == GS_MANAGED)
        __atomic_fetch_add(&gs_gpu_numbered(entry->gpu)->line->managed, (uint32_t)change, __ATOMIC_RELAXED);
}

void gs_charge_noted(const struct gs_entry *entry, const struct gs_entry *displaced) {
    count_managed(entry, 1);
    if (displaced->key != 0)
        gs_entry_freed(displaced);
}

bool gs_charge_correct(struct gs_charge *charge, uint64_t bytes) {
    uint32_t units = gs_units(bytes);
    if (charge->place.gpu == NULL || units == charge->units)
        return true;
    if (units < charge->units)
        gs_release(charge->place.gpu->line, charge->units - units);
    else if (!gs_account_reserve(charge->place.gpu, units - charge->units))
        return false;
    charge->units = units;
    return true;
}

void gs_entry_freed_slow(const struct gs_entry *entry) {
    count_managed(entry, -1);
    gs_release(gs_gpu_numbered(entry->gpu)->line, entry->units);
}

void gs_entry_put_back(struct gs_table *table, const struct gs_entry *entry) {
    struct gs_entry newer, ours;
    if (!gs_table_put(table, entry, &newer) || newer.key == 0)
        return;
    /* The address has been given out again: another thread has freed what this one could not. */
    gs_table_put(table, &newer, &ours);
    gs_entry_freed(entry);
}

static bool dies_with(const struct gs_entry *entry, void *context) {
    return entry->context == *(uint32_t *)context;
}

static void freed(const struct gs_entry *entry, void *unused) {
    (void)unused;
    gs_entry_freed(entry);
}

void gs_charge_context_gone(struct gs_table *table, uint32_t context) {
    gs_table_sweep(table, dies_with, freed, &context);
}

GS_AT(fork) {
    gs_table_forget(&gs_pointers);
    gs_unknown_frees = 0;
}
