/* hook_multicast.c: memory bound to multicast objects.
 *
 * An object has no memory of its own (cuMulticastCreate in hook_vmm.c only counts it), but what is bound to it lives as
 * long as the binding, even after its handle was released. A binding ends with cuMulticastUnbind or with the object.
 */
#include "block.h"
#include "hooks.h"

struct binding {
    bool known;
    uint32_t object, block;
    uint64_t offset, size;
};

/* The block is held before the driver binds it, so that a release at the same time does not end it under us. */
static struct binding begin(CUmemGenericAllocationHandle object, uint64_t offset, uint64_t size) {
    struct binding binding = {.offset = offset, .size = size};
    binding.known = gs_on() && gs_block_find(object, &binding.object, false);
    return binding;
}

static struct binding begin_handle(CUmemGenericAllocationHandle object, CUmemGenericAllocationHandle memory,
                                   uint64_t offset, uint64_t size) {
    struct binding binding = begin(object, offset, size);
    binding.known = binding.known && gs_block_find(memory, &binding.block, true);
    return binding;
}

static struct binding begin_address(CUmemGenericAllocationHandle object, CUdeviceptr pointer, uint64_t offset,
                                    uint64_t size) {
    struct binding binding = begin(object, offset, size);
    binding.known = binding.known && gs_mapping_find(pointer, &binding.block);
    return binding;
}

static CUresult bound(CUresult result, struct binding binding) {
    if (!binding.known)
        return result;
    if (result == CUDA_SUCCESS)
        gs_binding_add(binding.object, binding.block, binding.offset, binding.size);
    else
        gs_block_let_go(binding.block);
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t size, unsigned long long flags) {
    struct binding binding = begin_handle(handle, memory, offset, size);
    return bound(gs_driver.cuMulticastBindMem(handle, offset, memory, memory_offset, size, flags), binding);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer, size_t size,
                             unsigned long long flags) {
    struct binding binding = begin_address(handle, pointer, offset, size);
    return bound(gs_driver.cuMulticastBindAddr(handle, offset, pointer, size, flags), binding);
}

/* From CUDA 13.1 on with the device that it is bound for, which is the memory's own. */
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags) {
    struct binding binding = begin_handle(handle, memory, offset, size);
    CUresult result = gs_driver.cuMulticastBindMem_v2(handle, device, offset, memory, memory_offset, size, flags);
    return bound(result, binding);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                CUdeviceptr pointer, size_t size, unsigned long long flags) {
    struct binding binding = begin_address(handle, pointer, offset, size);
    return bound(gs_driver.cuMulticastBindAddr_v2(handle, device, offset, pointer, size, flags), binding);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size) {
    uint32_t object;
    bool known = gs_on() && gs_block_find(handle, &object, false);
    CUresult result = gs_driver.cuMulticastUnbind(handle, device, offset, size);
    if (known && result == CUDA_SUCCESS)
        gs_bindings_end(object, device, offset, size);
    return result;
}
