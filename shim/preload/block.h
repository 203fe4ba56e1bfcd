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

/* One reference less, before the driver is called. `last`: the handle is not known any more; the block is still held
 * for it. And the driver did not release it after all. */
bool gs_block_release(uint64_t handle, uint32_t *number, bool *last);
void gs_block_release_failed(uint64_t handle, uint32_t number, bool last);

/* A handle whose references had ended has come back, under this number, for a block that is held for it. */
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

/* Take out those that begin in a range. Where there is no memory to remember one, it stays charged. */
void gs_mappings_take(struct gs_mappings *taken, uint64_t start, uint64_t end);

/* The driver did not end this one after all. */
void gs_mapping_put_back(const struct gs_entry *mapping);

/* All that are of one GPU, as copies; and take one of them out. false: it is gone already. */
void gs_mappings_on(struct gs_mappings *found, const struct gs_gpu *gpu);
bool gs_mapping_take(uint64_t address, uint32_t *number);

/* What is bound to a multicast object, for which the block is held; and the end of all bindings that lie in a range of
 * it, on one device (-1: on all). */
void gs_binding_add(uint32_t object, uint32_t number, uint64_t offset, uint64_t size);
void gs_bindings_end(uint32_t object, int device, uint64_t offset, uint64_t size);

#endif
