/* hook_launch.c: launches of kernels, where jobs take turns in computing (turn.h). They take no memory: the hook waits,
 * if it has to, and calls the driver. */
#include "turn.h"

#if defined(GS_TURNS)

/* An old driver has no variant for the per-thread stream; then there is no launch of that variant either. */
#define PASS(ask, stream)                                                                                              \
    if (gs_on())                                                                                                       \
    gs_turn_pass(gs_driver.ask, stream)

#define LAUNCH_KERNEL(name, ask)                                                                                       \
    CUresult name(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                  \
                  unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,               \
                  CUstream stream, void **params, void **extra) {                                                      \
        PASS(ask, stream);                                                                                             \
        return gs_driver.name(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params,     \
                              extra);                                                                                  \
    }

#define LAUNCH_COOPERATIVE(name, ask)                                                                                  \
    CUresult name(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                  \
                  unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,               \
                  CUstream stream, void **params) {                                                                    \
        PASS(ask, stream);                                                                                             \
        return gs_driver.name(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params);    \
    }

#define LAUNCH_CONFIG(name, ask)                                                                                       \
    CUresult name(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {                    \
        PASS(ask, config != NULL ? config->hStream : NULL);                                                            \
        return gs_driver.name(config, function, params, extra);                                                        \
    }

LAUNCH_KERNEL(cuLaunchKernel, cuStreamIsCapturing)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, cuStreamIsCapturing_ptsz)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, cuStreamIsCapturing)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, cuStreamIsCapturing_ptsz)
LAUNCH_CONFIG(cuLaunchKernelEx, cuStreamIsCapturing)
LAUNCH_CONFIG(cuLaunchKernelEx_ptsz, cuStreamIsCapturing_ptsz)

#endif
