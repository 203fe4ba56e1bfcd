/* cuda_profiler.c: the switches of the profiler, which frameworks set around the part of a run that they want seen.
 * There is no profiler here, so they are accepted and nothing follows.
 */
#include "cuda_api.h"

API(cuProfilerStart, (void), CUDA_SUCCESS)
API(cuProfilerStop, (void), CUDA_SUCCESS)

/* mode: pairs of keys and values, or comma-separated. */
CUresult cuProfilerInitialize(const char *config, const char *output, int mode) {
    ENTER(cuProfilerInitialize);
    return config == NULL || output == NULL || mode < 0 || mode > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
