/* hook_share.c: memory shared with other processes by IPC handles.
 *
 * The exporter is charged when it allocates, the importer is not charged. Handles are only counted, in the line: a
 * process that shares memory cannot be suspended. Closing a handle subtracts nothing: the memory was shared. While a
 * program's memory is in host memory the driver refuses it a handle, so the calls wait at the gate.
 */
#include "gate.h"
#include "hooks.h"

static CUresult count(CUresult result) {
    struct gs_place place;
    if (gs_on() && result == CUDA_SUCCESS && gs_place_current(&place) && place.gpu != NULL)
        __atomic_fetch_add(&place.gpu->line->ipc, 1, __ATOMIC_RELAXED);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, count(gs_driver.cuIpcGetMemHandle(handle, pointer)));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, count(gs_driver.cuIpcOpenMemHandle(pointer, handle, flags)));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, count(gs_driver.cuIpcOpenMemHandle_v2(pointer, handle, flags)));
}
