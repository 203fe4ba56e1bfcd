/* hook_vmm.c: physical memory with handles, and its mappings (block.h keeps both).
 *
 * It is charged to the device named in its properties, not to the current one, and only if that is a device. The
 * importer of a handle pays nothing: handles that we do not know are the driver's own business.
 */
#include "block.h"
#include "gate.h"
#include "hooks.h"

/* ---- handles -------------------------------------------------------------------------------------- */

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    struct gs_charge charge;
    CUresult result;
    CUdevice device = properties != NULL ? cuda_device_of(&properties->location) : -1;
    if (!gs_on() || handle == NULL || device < 0)
        return gs_driver.cuMemCreate(handle, size, properties, flags);
    if (!gs_place_device(&charge.place, device) || !gs_charge_here(&charge, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemCreate(handle, size, properties, flags);
    while (gs_charge_again(&charge, result));
    if (result != CUDA_SUCCESS || charge.place.gpu == NULL) {
        gs_charge_undo(&charge);
        return result;
    }
    if (__builtin_expect(gs_block_add(*handle, charge.place.gpu, charge.units), 1))
        return CUDA_SUCCESS;
    gs_driver.cuMemRelease(*handle);
    gs_charge_undo(&charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release_block(CUmemGenericAllocationHandle handle) {
    uint32_t number;
    bool last;
    if (!gs_on() || !gs_block_release(handle, &number, &last))
        return gs_driver.cuMemRelease(handle);
    CUresult result = gs_driver.cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        gs_block_release_failed(handle, number, last);
    else if (last)
        gs_block_let_go(number);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, release_block(handle));
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    uint32_t number;
    bool on = gs_on();
    CUresult result = gs_driver.cuMemRetainAllocationHandle(handle, address);
    if (!on || result != CUDA_SUCCESS || gs_block_refer(*handle))
        return result;
    /* The handle was released before, and the mapping has brought it back under a number of its own. */
    if (gs_mapping_find((uint64_t)(uintptr_t)address, &number))
        gs_block_add_handle(*handle, number);
    return result;
}

/* The importer pays nothing. But a handle of our own that comes back under its own number is one more reference. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
    bool on = gs_on();
    CUresult result = gs_driver.cuMemImportFromShareableHandle(handle, os_handle, type);
    if (on && result == CUDA_SUCCESS)
        gs_block_refer(*handle);
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    uint32_t number;
    bool on = gs_on();
    CUresult result = gs_driver.cuMemExportToShareableHandle(shareable, handle, type, flags);
    if (on && result == CUDA_SUCCESS && gs_block_find(handle, &number, false))
        gs_block_exported(number);
    return result;
}

/* Binds memory of other handles, has none of its own. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    struct gs_place place;
    bool on = gs_on();
    CUresult result = gs_driver.cuMulticastCreate(handle, properties);
    if (!on || result != CUDA_SUCCESS || !gs_place_current(&place) || place.gpu == NULL)
        return result;
    if (gs_block_add(*handle, place.gpu, 0))
        __atomic_fetch_add(&place.gpu->line->multicast, 1, __ATOMIC_RELAXED);
    return result;
}

/* ---- mappings ------------------------------------------------------------------------------------- */

static CUresult map_block(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    uint32_t number;
    if (!gs_on() || !gs_block_find(handle, &number, true))
        return gs_driver.cuMemMap(pointer, size, offset, handle, flags);
    CUresult result = gs_driver.cuMemMap(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && gs_mapping_add(pointer, number, size))
        return result;
    if (result == CUDA_SUCCESS) {
        gs_driver.cuMemUnmap(pointer, size);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    gs_block_let_go(number);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, map_block(pointer, size, offset, handle, flags));
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuMemSetAccess(pointer, size, access, count));
}

static CUresult unmap_blocks(CUdeviceptr pointer, size_t size) {
    struct gs_mappings taken = {.count = 0};
    if (!gs_on())
        return gs_driver.cuMemUnmap(pointer, size);
    gs_mappings_take(&taken, pointer, pointer + size);
    CUresult result = gs_driver.cuMemUnmap(pointer, size);
    for (size_t i = 0; i < taken.count; i++) {
        const struct gs_entry *mapping = gs_mappings_at(&taken, i);
        if (result == CUDA_SUCCESS)
            gs_block_let_go(mapping->detail);
        else
            gs_mapping_put_back(mapping);
    }
    gs_mappings_drop(&taken);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, unmap_blocks(pointer, size));
}

static bool is_mapped(CUdeviceptr address) {
    CUmemGenericAllocationHandle handle;
    CUresult result;
    GS_RELAXED(result = gs_driver.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address));
    if (result == CUDA_SUCCESS)
        GS_RELAXED(gs_driver.cuMemRelease(handle));
    return result != CUDA_ERROR_INVALID_VALUE;
}

/* Mappings can be asked for by address, handles cannot be asked for: one that is gone may not be used. */
void gs_vmm_was_reset(const struct gs_gpu *gpu) {
    struct gs_mappings found = {.count = 0};
    uint32_t number;
    gs_mappings_on(&found, gpu);
    for (size_t i = 0; i < found.count; i++) {
        CUdeviceptr address = gs_mappings_at(&found, i)->key;
        if (!is_mapped(address) && gs_mapping_take(address, &number))
            gs_block_let_go(number);
    }
    gs_mappings_drop(&found);
}
