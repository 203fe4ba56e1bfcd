/* cuda_init.c: cuInit, what each call does first, and the driver's version. */
#define _GNU_SOURCE
#include "cuda_api.h"

#include "common_pool.h"
#include "cuda_capture.h"
#include "cuda_device.h"
#include "cuda_faults.h"

#include <sys/mman.h>
#include <unistd.h>

unsigned char *api_gate;
pthread_mutex_t driver_mutex = PTHREAD_MUTEX_INITIALIZER;

static void shut_gate(void) {
    *api_gate = GATE_SHUT;
}

/* The kernel hands a forked child this page empty, so the child finds the gate shut however it was forked. */
static CUresult make_gate(unsigned char **gate) {
    long page = sysconf(_SC_PAGESIZE);
    void *memory = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (madvise(memory, (size_t)page, MADV_WIPEONFORK) != 0 && pthread_atfork(NULL, NULL, shut_gate) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *gate = memory;
    return CUDA_SUCCESS;
}

static CUresult initialise(void) {
    const struct sim_settings *settings = sim_settings();
    unsigned char *gate;
    if (settings == NULL || !faults_prepare(settings)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = faults_apply(API_cuInit);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!pool_open(settings) || !pool_attach(settings)) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    devices_prepare();
    if (device_count == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    result = make_gate(&gate);
    if (result == CUDA_SUCCESS) {
        *gate = faults_any() || SIM_IS(captures, strict) ? GATE_FAULTS : GATE_OPEN;
        __atomic_store_n(&api_gate, gate, __ATOMIC_RELEASE);
    }
    return result;
}

CUresult cuInit(unsigned int flags) {
    static CUresult failed = CUDA_SUCCESS;
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Not under the lock: a child must not hang on a lock that another thread of its parent held while forking. */
    if (__atomic_load_n(&api_gate, __ATOMIC_ACQUIRE) != NULL) {
        ENTER(cuInit);
        return CUDA_SUCCESS;
    }
    driver_lock();
    CUresult result = api_gate != NULL ? CUDA_SUCCESS : failed != CUDA_SUCCESS ? failed : initialise();
    if (result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_INVALID_VALUE) {
        failed = result; /* neither the environment nor the pool slot changes any more */
    }
    driver_unlock();
    return result;
}

#define IS_SYNC(family) (__builtin_strcmp(#family, "SYNC") == 0)

const bool api_looks[API_COUNT] = {
#define GS_FN(base, symbol, since, stream, family, rule) [API_##symbol] = IS_SYNC(family),
#include "functions.def"
};

CUresult api_enter_slowly(enum api_function function) {
    CUresult result = SIM_IS(captures, strict) ? capture_permits_strictly(function) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result : faults_apply(function);
}

/* Works before cuInit. */
CUresult cuDriverGetVersion(int *version) {
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = sim_driver_version();
    return CUDA_SUCCESS;
}
