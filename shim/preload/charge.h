/* charge.h: the shape of every hook that takes or gives back memory.
 *
 *   take: reserve the credit -> driver -> note it in the table; a failure anywhere gives the credit back
 *   free: out of the table -> driver -> give the credit back; if the driver fails, back into the table
 *
 * Never in another order: the driver may give an address out again as soon as it has freed it, and credit that is given
 * back too early could be granted to another program before the memory is free.
 */
#ifndef GPUSHARE_PRELOAD_CHARGE_H
#define GPUSHARE_PRELOAD_CHARGE_H

#include "device.h"
#include "pool.h"
#include "table.h"

/* A reservation between the decision and the driver's answer. */
struct gs_charge {
    struct gs_place place; /* place.gpu NULL: nothing is charged */
    uint32_t units;
    bool retried;
};

extern struct gs_table gs_pointers; /* linear, managed and pooled memory */

#define GS_BLOCK_BYTES (2ull << 20) /* a GPU's memory is mapped in blocks of so much */

/* The bytes of an allocation in blocks of its own. Does not overflow. */
static inline uint64_t gs_whole_blocks(uint64_t bytes) {
    return bytes > UINT64_MAX - GS_BLOCK_BYTES ? bytes : (bytes + GS_BLOCK_BYTES - 1) & ~(GS_BLOCK_BYTES - 1);
}

/* What cuMemAlloc and its like take for so many bytes. Up to half a block counts as a part of a shared block; more
 * counts as blocks of its own. A driver that packs more closely takes less. */
static inline uint64_t gs_packed(uint64_t bytes) {
    return bytes <= GS_BLOCK_BYTES / 2 ? bytes : gs_whole_blocks(bytes);
}

/* Reserve for the place that is set already. false: refused, and the user has been told. */
GS_INLINE bool gs_charge_here(struct gs_charge *charge, uint64_t bytes) {
    charge->units = gs_units(bytes);
    charge->retried = false;
    return charge->place.gpu == NULL || gs_account_reserve(charge->place.gpu, charge->units);
}

/* Reserve where the current context of this thread is. */
GS_INLINE bool gs_charge_current(struct gs_charge *charge, uint64_t bytes) {
    return gs_place_current(&charge->place) && gs_charge_here(charge, bytes);
}

bool gs_charge_ask_again(struct gs_place place, uint32_t units, bool retried);

/* After the driver's answer: whether to call it once more. */
static inline bool gs_charge_again(struct gs_charge *charge, CUresult result) {
    if (__builtin_expect(result != CUDA_ERROR_OUT_OF_MEMORY, 1))
        return false;
    bool again = gs_charge_ask_again(charge->place, charge->units, charge->retried);
    charge->retried = true;
    return again;
}

/* Give the reservation back. */
static inline void gs_charge_undo(struct gs_charge *charge) {
    if (charge->place.gpu != NULL)
        gs_release(charge->place.gpu->line, charge->units);
}

/* Call after the driver's last answer. true: there is memory to note. false: nothing is charged, or the driver has
 * failed and the reservation is given back. */
GS_INLINE bool gs_charge_taken(struct gs_charge *charge, CUresult result) {
    if (charge->place.gpu == NULL)
        return false;
    if (result == CUDA_SUCCESS)
        return true;
    gs_charge_undo(charge);
    return false;
}

void gs_charge_noted(const struct gs_entry *entry, const struct gs_entry *displaced);

/* The driver has succeeded: note the memory under its key. false: there is no room to note it; the reservation is
 * given back, and the caller must free the memory. */
GS_INLINE bool gs_charge_note(struct gs_charge *charge, struct gs_table *table, uint64_t key,
                              enum gs_kind_of_memory kind) {
    struct gs_entry displaced, entry = {.key = key,
                                        .units = charge->units,
                                        .context = charge->place.context,
                                        .gpu = gs_gpu_number(charge->place.gpu),
                                        .kind = (uint8_t)kind};
    if (__builtin_expect(key == 0, 0)) /* no driver gives that out; but if one did, it could not be noted */
        return true;
    if (__builtin_expect(!gs_table_put(table, &entry, &displaced), 0)) {
        gs_charge_undo(charge);
        return false;
    }
    if (__builtin_expect(kind == GS_MANAGED || displaced.key != 0, 0))
        gs_charge_noted((struct gs_entry[]){entry}, (struct gs_entry[]){displaced});
    return true;
}

/* The driver now says how large it really is. false: it is larger, and the rest was refused. */
bool gs_charge_correct(struct gs_charge *charge, uint64_t bytes);

/* The memory of an entry that has been taken out of its table is gone. */
void gs_entry_freed_slow(const struct gs_entry *entry);
static inline void gs_entry_freed(const struct gs_entry *entry) {
    if (__builtin_expect(entry->kind == GS_POOLED, 0))
        gs_pool_leave(gs_pool_numbered(entry->detail), entry->units);
    else if (__builtin_expect(entry->kind == GS_LINEAR, 1))
        gs_release(gs_gpu_numbered(entry->gpu)->line, entry->units);
    else
        gs_entry_freed_slow((struct gs_entry[]){*entry});
}

/* A pointer that is not in the table is about to be freed: it may be a graph's (hook_graph.c). Counted. */
extern uint32_t gs_unknown_frees;
static inline void gs_unknown_freed(CUdeviceptr pointer) {
    if (pointer != 0)
        __atomic_fetch_add(&gs_unknown_frees, 1, __ATOMIC_RELAXED);
}

/* Put an entry back: the driver did not free its memory. */
void gs_entry_put_back(struct gs_table *table, const struct gs_entry *entry);

/* After the driver's answer to a free. Returns that answer. */
GS_INLINE CUresult gs_entry_released(struct gs_table *table, const struct gs_entry *entry, CUresult result) {
    if (__builtin_expect(result == CUDA_SUCCESS, 1))
        gs_entry_freed(entry);
    else
        gs_entry_put_back(table, (struct gs_entry[]){*entry});
    return result;
}

/* A context is gone, and with it all memory of this table that it held. */
void gs_charge_context_gone(struct gs_table *table, uint32_t context);

#endif
