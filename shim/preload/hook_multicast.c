/* hook_multicast.c: memory bound to multicast objects.
 *
 * An object has no memory of its own (cuMulticastCreate in hook_vmm.c only counts it), but what is bound to it lives as
 * long as the binding, even after its handle was released. A binding ends with cuMulticastUnbind or with the object.
 * Programs bind a handful of buffers once, so the bindings are a plain list.
 */
#include "hooks.h"

#include <string.h>

#define MOST_BINDINGS 4096

static struct binding {
    uint32_t object, block; /* numbers of hook_vmm.c */
    uint64_t offset, size;
    uint32_t used;
} bindings[MOST_BINDINGS];

static uint32_t binding_count; /* how many of them have ever been used */
static struct gs_lock bindings_lock;

/* The block is held for it already. No room: then it stays held, too much rather than too little. */
static void add(uint32_t object, uint32_t block, uint64_t offset, uint64_t size) {
    gs_lock(&bindings_lock);
    for (uint32_t i = 0; i < MOST_BINDINGS; i++) {
        if (bindings[i].used)
            continue;
        bindings[i] = (struct binding){object, block, offset, size, 1};
        if (i >= binding_count)
            binding_count = i + 1;
        break;
    }
    gs_unlock(&bindings_lock);
}

/* Ends the bindings of an object that lie in a range of it, on one device (-1: on all). */
static void end(uint32_t object, int device, uint64_t offset, uint64_t size) {
    for (uint32_t i = 0; i < __atomic_load_n(&binding_count, __ATOMIC_RELAXED); i++) {
        gs_lock(&bindings_lock);
        const struct binding one = bindings[i];
        bool ends = one.used && one.object == object && one.offset >= offset && one.offset - offset <= size &&
                    one.size <= size - (one.offset - offset) &&
                    (device < 0 || gs_block_gpu(one.block)->index == (uint32_t)device);
        if (ends)
            bindings[i].used = 0;
        gs_unlock(&bindings_lock);
        if (ends)
            gs_block_let_go(one.block);
    }
}

void gs_multicast_gone(uint32_t object) {
    end(object, -1, 0, UINT64_MAX);
}

/* Held before the driver binds it, so that a release at the same time does not end it under us. */
#define BIND(known, call)                                                                                              \
    uint32_t object, block;                                                                                            \
    if (!gs_on() || !gs_block_find(handle, &object) || !(known))                                                       \
        return gs_driver.call;                                                                                         \
    gs_block_hold(block);                                                                                              \
    CUresult result = gs_driver.call;                                                                                  \
    if (result == CUDA_SUCCESS)                                                                                        \
        add(object, block, offset, size);                                                                              \
    else                                                                                                               \
        gs_block_let_go(block);                                                                                        \
    return result

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t size, unsigned long long flags) {
    BIND(gs_block_find(memory, &block), cuMulticastBindMem(handle, offset, memory, memory_offset, size, flags));
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer, size_t size,
                             unsigned long long flags) {
    BIND(gs_block_mapped_at(pointer, &block), cuMulticastBindAddr(handle, offset, pointer, size, flags));
}

/* From CUDA 13.1 on with the device that it is bound for, which is the memory's own. */
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags) {
    BIND(gs_block_find(memory, &block),
         cuMulticastBindMem_v2(handle, device, offset, memory, memory_offset, size, flags));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                CUdeviceptr pointer, size_t size, unsigned long long flags) {
    BIND(gs_block_mapped_at(pointer, &block), cuMulticastBindAddr_v2(handle, device, offset, pointer, size, flags));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size) {
    uint32_t object;
    bool known = gs_on() && gs_block_find(handle, &object);
    CUresult result = gs_driver.cuMulticastUnbind(handle, device, offset, size);
    if (known && result == CUDA_SUCCESS)
        end(object, device, offset, size);
    return result;
}

void gs_multicast_forget(void) {
    memset(bindings, 0, sizeof bindings);
    binding_count = 0;
    bindings_lock = (struct gs_lock){0};
}
