/* hook_info.c: what CUDA says about memory, in the job's terms.
 *
 * The driver is always called first, and its answer is then rewritten. So the driver handles errors and NULL arguments,
 * and no call here fails because of a limit. Total is the limit, free is what the job could get now; hook_nvml.c uses
 * the same functions.
 */
#include "gate.h"
#include "hooks.h"

/* The GPU of the current context if it has a line, else NULL. A context that we did not see being opened is attached
 * here: what it may use is then known. */
static struct gs_gpu *current_gpu(void) {
    struct gs_place place;
    return gs_place_current(&place) && place.gpu != NULL && place.gpu->line != NULL ? place.gpu : NULL;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    bool on = gs_on();
    struct gs_inside *inside = gs_gate_enter();
    CUresult result = gs_gate_leave(inside, gs_driver.cuMemGetInfo_v2(free, total));
    struct gs_gpu *gpu = on && result == CUDA_SUCCESS ? current_gpu() : NULL;
    if (gpu == NULL)
        return result;
    gs_account_give_back(gpu, false); /* what the pools hold and do not use may have gone back since */
    struct gs_memory memory = gs_account_memory(gpu);
    if (free != NULL)
        *free = memory.free;
    if (total != NULL)
        *total = memory.total;
    return result;
}

/* The old ABI can say at most 4 GiB less one byte. */
static unsigned int clamp(uint64_t bytes) {
    return bytes < UINT32_MAX ? (unsigned int)bytes : UINT32_MAX;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    bool on = gs_on();
    struct gs_inside *inside = gs_gate_enter();
    CUresult result = gs_gate_leave(inside, gs_driver.cuMemGetInfo(free, total));
    struct gs_gpu *gpu = on && result == CUDA_SUCCESS ? current_gpu() : NULL;
    if (gpu == NULL)
        return result;
    gs_account_give_back(gpu, false);
    struct gs_memory memory = gs_account_memory(gpu);
    if (free != NULL)
        *free = clamp(memory.free);
    if (total != NULL)
        *total = clamp(memory.total);
    return result;
}

/* Often asked before there is a context, and must not open anything: then it is what the environment says. */
static uint64_t total_of(CUdevice device) {
    struct gs_gpu *gpu = gs_gpu_of(device);
    if (gpu == NULL)
        return UINT64_MAX;
    return __atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE) != NULL ? gs_account_memory(gpu).total
                                                                 : gs_account_total_expected(gpu->total);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    bool on = gs_on();
    CUresult result = gs_driver.cuDeviceTotalMem_v2(bytes, device);
    if (on && result == CUDA_SUCCESS && bytes != NULL && total_of(device) < *bytes)
        *bytes = total_of(device);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    bool on = gs_on();
    CUresult result = gs_driver.cuDeviceTotalMem(bytes, device);
    if (on && result == CUDA_SUCCESS && bytes != NULL && total_of(device) < *bytes)
        *bytes = clamp(total_of(device));
    return result;
}
