/* hook_array.c: arrays and mipmapped arrays.
 *
 * What is charged before the call is what such arrays were seen to take (array_layout.h). It is corrected if the driver
 * tells the size afterwards: driver 580 does not. Sparse arrays and those with deferred mapping have no memory of their
 * own: memory that is mapped into them is charged when it is made. Levels and planes are views of an array and are not
 * charged.
 */
#include "array_layout.h"
#include "hooks.h"
#include "moments.h"

struct gs_table gs_arrays;

/* Bytes of one channel. An unknown format counts as the largest. */
static uint64_t channel_bytes(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    default:
        return 4;
    }
}

static uint64_t estimate(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels) {
    if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    uint64_t channels = array->NumChannels != 0 ? array->NumChannels : 1;
    return gs_array_bytes(array, channel_bytes(array->Format) * channels, levels);
}

/* false: it turned out larger than what could be had. */
static bool correct(struct gs_charge *charge, CUresult asked, const CUDA_ARRAY_MEMORY_REQUIREMENTS *exact) {
    return charge->units == 0 || asked != CUDA_SUCCESS || gs_charge_correct(charge, gs_packed(exact->size));
}

static bool note_array(struct gs_charge *charge, CUarray array) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS exact = {0};
    CUresult asked;
    GS_RELAXED(asked = gs_driver.cuArrayGetMemoryRequirements(&exact, array, (CUdevice)charge->place.gpu->index));
    if (!correct(charge, asked, &exact)) {
        gs_charge_undo(charge);
        return false;
    }
    return gs_charge_note(charge, &gs_arrays, (uint64_t)(uintptr_t)array, GS_ARRAY);
}

static CUresult finish(struct gs_charge *charge, CUresult result, CUarray array) {
    if (!gs_charge_taken(charge, result))
        return result;
    if (note_array(charge, array))
        return CUDA_SUCCESS;
    gs_driver.cuArrayDestroy(array);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t estimate_array(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format,
                               unsigned channels, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {width, height, depth, format, channels, flags};
    return gs_packed(estimate(&shape, 1));
}

/* The four ABIs differ in their descriptors only. */
#define CREATE(symbol, depth, flags)                                                                                   \
    struct gs_charge charge;                                                                                           \
    CUresult result;                                                                                                   \
    if (!gs_on() || array == NULL || descriptor == NULL)                                                               \
        return gs_driver.symbol(array, descriptor);                                                                    \
    if (!gs_charge_current(&charge, estimate_array(descriptor->Width, descriptor->Height, depth, descriptor->Format,   \
                                                   descriptor->NumChannels, flags)))                                   \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    do                                                                                                                 \
        result = gs_driver.symbol(array, descriptor);                                                                  \
    while (gs_charge_again(&charge, result));                                                                          \
    return finish(&charge, result, *array)

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
    CREATE(cuArrayCreate, 1, 0);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    CREATE(cuArrayCreate_v2, 1, 0);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
    CREATE(cuArray3DCreate, descriptor->Depth, descriptor->Flags);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    CREATE(cuArray3DCreate_v2, descriptor->Depth, descriptor->Flags);
}

CUresult cuArrayDestroy(CUarray array) {
    struct gs_entry entry;
    if (!gs_on() || !gs_table_take(&gs_arrays, (uint64_t)(uintptr_t)array, &entry))
        return gs_driver.cuArrayDestroy(array);
    return gs_entry_released(&gs_arrays, &entry, gs_driver.cuArrayDestroy(array));
}

static bool note_mipmap(struct gs_charge *charge, CUmipmappedArray array) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS exact = {0};
    CUdevice device = (CUdevice)charge->place.gpu->index;
    CUresult asked;
    GS_RELAXED(asked = gs_driver.cuMipmappedArrayGetMemoryRequirements(&exact, array, device));
    if (!correct(charge, asked, &exact)) {
        gs_charge_undo(charge);
        return false;
    }
    return gs_charge_note(charge, &gs_arrays, (uint64_t)(uintptr_t)array, GS_MIPMAP);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned int levels) {
    struct gs_charge charge;
    CUresult result;
    if (!gs_on() || array == NULL || descriptor == NULL)
        return gs_driver.cuMipmappedArrayCreate(array, descriptor, levels);
    if (!gs_charge_current(&charge, gs_packed(estimate(descriptor, levels))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    do
        result = gs_driver.cuMipmappedArrayCreate(array, descriptor, levels);
    while (gs_charge_again(&charge, result));
    if (!gs_charge_taken(&charge, result))
        return result;
    if (note_mipmap(&charge, *array))
        return CUDA_SUCCESS;
    gs_driver.cuMipmappedArrayDestroy(*array);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct gs_entry entry;
    if (!gs_on() || !gs_table_take(&gs_arrays, (uint64_t)(uintptr_t)array, &entry))
        return gs_driver.cuMipmappedArrayDestroy(array);
    return gs_entry_released(&gs_arrays, &entry, gs_driver.cuMipmappedArrayDestroy(array));
}

GS_AT(fork) {
    gs_table_forget(&gs_arrays);
}
