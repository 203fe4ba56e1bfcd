/* cuda_checkpoint.c: the state of another process. Nothing here can be locked or checkpointed, so whoever uses a GPU is
 * running; of any other process there is nothing to say. */
#define _GNU_SOURCE
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_device.h"

#define MOST_PROCESSES 1024

static bool uses_a_gpu(int pid) {
    static struct pool_process processes[MOST_PROCESSES];
    for (uint32_t gpu = 0; gpu < device_hardware.gpus; gpu++) {
        size_t count = pool_processes(gpu, processes, MOST_PROCESSES);
        for (size_t index = 0; index < count && index < MOST_PROCESSES; index++) {
            if (processes[index].pid == pid) {
                return true;
            }
        }
    }
    return false;
}

static CUresult state_of(int pid, CUprocessState *state) {
    if (state == NULL || pid <= 0 || !uses_a_gpu(pid)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *state = CU_PROCESS_STATE_RUNNING;
    return CUDA_SUCCESS;
}

API(cuCheckpointProcessGetState, (int pid, CUprocessState *state), LOCKED(state_of(pid, state)))
