/* block.h: physical memory with handles, and what holds it.
 *
 * The memory behind a handle lives until the last reference to the handle is released, the last mapping of it is gone
 * and nothing of it is bound to a multicast object, in whichever order. So a block is held once by its handle, as long
 * as that has references, and once by each mapping and binding; with the last hold it is no longer charged.
 *
 * An entry is taken out of these tables before the driver frees it, because the driver may give the handle's number or
 * the address out again at once. The hold ends when the driver has succeeded.
 */
#ifndef GPUSHARE_PRELOAD_BLOCK_H
#define GPUSHARE_PRELOAD_BLOCK_H

#include "device.h"
#include "table.h"

/* Note a fresh handle, whose memory has been charged. One without units is a multicast object. false: no memory. */
bool gs_block_add(uint64_t handle, struct gs_gpu *gpu, uint32_t units);

const struct gs_gpu *gs_block_gpu(uint32_t number);

/* Whether the handle is of a block that we know; `hold`: from here on it is held once more. */
bool gs_block_find(uint64_t handle, uint32_t *number, bool hold);

/* One more reference to a known handle. false: it is not known. */
bool gs_block_refer(uint64_t handle);

/* Take one reference, before the driver is called. `last`: the handle is no longer known, and the block is still held
 * for it. false: the handle is not known. */
bool gs_block_release(uint64_t handle, uint32_t *number, bool *last);

/* The driver did not release it: give the reference back. */
void gs_block_release_failed(uint64_t handle, uint32_t number, bool last);

/* Note a handle again whose references had ended. The block of this number is held for it already. */
void gs_block_add_handle(uint64_t handle, uint32_t number);

/* It has been exported to other processes. */
void gs_block_exported(uint32_t number);

/* The driver has ended a handle, mapping or binding that held the block. */
void gs_block_let_go(uint32_t number);

/* A mapping, for which the block is held. false: no memory to note it. */
bool gs_mapping_add(uint64_t address, uint32_t number, uint64_t size);

/* The block mapped at an address, which may lie anywhere in the mapping; it is held once more. */
bool gs_mapping_find(uint64_t address, uint32_t *number);

/* Mappings that have been taken out of the table, or copies of them. */
struct gs_mappings {
    struct gs_entry few[16], *more;
    size_t count, room;
};

struct gs_entry *gs_mappings_at(struct gs_mappings *mappings, size_t i);
void gs_mappings_drop(struct gs_mappings *mappings);

/* Take the mappings that begin in a range out of the table. A mapping that there is no memory to remember stays
 * charged.
 */
void gs_mappings_take(struct gs_mappings *taken, uint64_t start, uint64_t end);

/* Put a mapping back: the driver did not end it. */
void gs_mapping_put_back(const struct gs_entry *mapping);

/* Copies of all mappings of memory of one GPU. */
void gs_mappings_on(struct gs_mappings *found, const struct gs_gpu *gpu);

/* Take one mapping out of the table. false: it is gone already. */
bool gs_mapping_take(uint64_t address, uint32_t *number);

/* Note that a block is bound to a multicast object. The block is held for the binding. */
void gs_binding_add(uint32_t object, uint32_t number, uint64_t offset, uint64_t size);

/* End all bindings in a range of a multicast object, on one device (-1: on all). */
void gs_bindings_end(uint32_t object, int device, uint64_t offset, uint64_t size);

#endif
