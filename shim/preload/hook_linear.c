/* hook_linear.c: linear, pitched and managed memory, and the free that frees all kinds of pointers.
 *
 * Sizes are what the program asked for, in whole blocks of the driver above half a block. What smaller allocations
 * leave of the blocks that they share shows in the measured overhead. Managed memory is charged in full, as if all of
 * it were on the GPU at once.
 */
#include "hooks.h"

/* Note what the driver has given, or give everything back. */
GS_INLINE CUresult finish(struct gs_charge *charge, CUresult result, CUdeviceptr pointer, enum gs_kind_of_memory kind) {
    if (!gs_charge_taken(charge, result))
        return result;
    if (__builtin_expect(gs_charge_note(charge, &gs_pointers, pointer, kind), 1))
        return CUDA_SUCCESS;
    gs_driver.cuMemFree_v2(pointer);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    struct gs_charge charge;
    CUresult result;
    if (!gs_on() || pointer == NULL)
        return gs_driver.cuMemAlloc_v2(pointer, size);
    if (!gs_charge_current(&charge, gs_packed(size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemAlloc_v2(pointer, size);
    while (gs_charge_again(&charge, result));
    return finish(&charge, result, *pointer, GS_LINEAR);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size) {
    struct gs_charge charge;
    CUresult result;
    if (!gs_on() || pointer == NULL)
        return gs_driver.cuMemAlloc(pointer, size);
    if (!gs_charge_current(&charge, gs_packed(size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemAlloc(pointer, size);
    while (gs_charge_again(&charge, result));
    return finish(&charge, result, *pointer, GS_LINEAR);
}

/* Rows are padded to what the GPU likes; how much, the driver says afterwards. */
static uint64_t pitched(uint64_t width, uint64_t height) {
    uint64_t bytes;
    return __builtin_mul_overflow((width + 511) & ~511ull, height, &bytes) ? UINT64_MAX : bytes;
}

static CUresult finish_pitched(struct gs_charge *charge, CUresult result, CUdeviceptr pointer, uint64_t bytes) {
    if (result == CUDA_SUCCESS && !gs_charge_correct(charge, gs_packed(bytes))) {
        gs_driver.cuMemFree_v2(pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish(charge, result, pointer, GS_LINEAR);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element) {
    struct gs_charge charge;
    CUresult result;
    if (!gs_on() || pointer == NULL || pitch == NULL)
        return gs_driver.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    if (!gs_charge_current(&charge, gs_packed(pitched(width, height))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    while (gs_charge_again(&charge, result));
    return finish_pitched(&charge, result, *pointer, (uint64_t)*pitch * height);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
    struct gs_charge charge;
    CUresult result;
    if (!gs_on() || pointer == NULL || pitch == NULL)
        return gs_driver.cuMemAllocPitch(pointer, pitch, width, height, element);
    if (!gs_charge_current(&charge, gs_packed(pitched(width, height))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemAllocPitch(pointer, pitch, width, height, element);
    while (gs_charge_again(&charge, result));
    return finish_pitched(&charge, result, *pointer, (uint64_t)*pitch * height);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags) {
    struct gs_charge charge;
    CUresult result;
    if (!gs_on() || pointer == NULL)
        return gs_driver.cuMemAllocManaged(pointer, size, flags);
    if (!gs_charge_current(&charge, gs_packed(size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMemAllocManaged(pointer, size, flags);
    while (gs_charge_again(&charge, result));
    return finish(&charge, result, *pointer, GS_MANAGED);
}

/* An unknown pointer (imported, mapped from elsewhere, 0) is the driver's own business. */
CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct gs_entry entry;
    if (!gs_on() || !gs_table_take(&gs_pointers, pointer, &entry)) {
        gs_unknown_freed(pointer);
        return gs_driver.cuMemFree_v2(pointer);
    }
    return gs_entry_released(&gs_pointers, &entry, gs_driver.cuMemFree_v2(pointer));
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    struct gs_entry entry;
    if (!gs_on() || !gs_table_take(&gs_pointers, pointer, &entry)) {
        gs_unknown_freed(pointer);
        return gs_driver.cuMemFree(pointer);
    }
    return gs_entry_released(&gs_pointers, &entry, gs_driver.cuMemFree(pointer));
}
