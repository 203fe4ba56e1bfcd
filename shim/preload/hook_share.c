/* hook_share.c: memory shared with other processes by IPC handles.
 *
 * The exporter is charged when it allocates, the importer is not charged. Handles are only counted, in the line: a
 * process that shares memory cannot be suspended. Closing a handle subtracts nothing: the memory was shared.
 */
#include "hooks.h"

static void count(CUresult result) {
    struct gs_place place;
    if (result == CUDA_SUCCESS && gs_place_current(&place) && place.gpu != NULL)
        __atomic_fetch_add(&place.gpu->line->ipc, 1, __ATOMIC_RELAXED);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    bool on = gs_on();
    CUresult result = gs_driver.cuIpcGetMemHandle(handle, pointer);
    if (on)
        count(result);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    bool on = gs_on();
    CUresult result = gs_driver.cuIpcOpenMemHandle(pointer, handle, flags);
    if (on)
        count(result);
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    bool on = gs_on();
    CUresult result = gs_driver.cuIpcOpenMemHandle_v2(pointer, handle, flags);
    if (on)
        count(result);
    return result;
}
