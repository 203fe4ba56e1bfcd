/* hook_sync.c: calls that wait for the GPU or ask how far it is, and those that unload code. They take no memory.
 *
 * None may be in the driver while the program's memory is in host memory (gate.h).
 *
 * A pool gives back what it holds above its threshold when the program synchronises. The program may do nothing more
 * for hours after that, and nobody else can look at its pools; so they are looked at here.
 */
#include "gate.h"
#include "pool.h"
#include "stream.h"

/* While a stream is captured the driver is asked nothing; the next synchronisation after it does. */
static CUresult synchronized(CUresult result) {
    if (result == CUDA_SUCCESS && !gs_capture_is_underway())
        gs_pool_correct_all();
    return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, synchronized(gs_driver.cuStreamSynchronize(stream)));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, synchronized(gs_driver.cuStreamSynchronize_ptsz(stream)));
}

CUresult cuEventSynchronize(CUevent event) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, synchronized(gs_driver.cuEventSynchronize(event)));
}

CUresult cuCtxSynchronize(void) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, synchronized(gs_driver.cuCtxSynchronize()));
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, synchronized(gs_driver.cuCtxSynchronize_v2(context)));
}

/* ---- queries -------------------------------------------------------------------------------------- */

CUresult cuStreamQuery(CUstream stream) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuStreamQuery(stream));
}

CUresult cuStreamQuery_ptsz(CUstream stream) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuStreamQuery_ptsz(stream));
}

CUresult cuEventQuery(CUevent event) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuEventQuery(event));
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuEventElapsedTime(milliseconds, start, end));
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuEventElapsedTime_v2(milliseconds, start, end));
}

/* ---- code ----------------------------------------------------------------------------------------- */

CUresult cuModuleUnload(CUmodule module) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuModuleUnload(module));
}

CUresult cuLibraryUnload(CUlibrary library) {
    struct gs_inside *inside = gs_gate_enter();
    return gs_gate_leave(inside, gs_driver.cuLibraryUnload(library));
}
