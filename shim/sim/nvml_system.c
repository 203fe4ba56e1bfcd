/* nvml_system.c: NVML's start and end, the driver's versions, errors and names of processes. */
#define _GNU_SOURCE
#include "nvml_device.h"

#include "common_identity.h"
#include "common_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users; /* nvmlInit less nvmlShutdown */
static bool opened;

static nvmlReturn_t start(void) {
    const struct sim_settings *settings = sim_settings();
    if (settings == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!opened && !pool_open(settings)) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    opened = true;
    if (users == 0) {
        nvml_enumerate();
    }
    users++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = start();
    pthread_mutex_unlock(&mutex);
    return result;
}

nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

/* The pool stays open: see common_pool.c about closing. */
nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    users -= users > 0;
    pthread_mutex_unlock(&mutex);
    return result;
}

bool nvml_ready(void) {
    pthread_mutex_lock(&mutex);
    bool ready = users > 0;
    pthread_mutex_unlock(&mutex);
    return ready;
}

nvmlReturn_t nvml_text(const char *text, char *target, unsigned int length) {
    NEED(target);
    if (strlen(text) >= length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    strcpy(target, text);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        [NVML_SUCCESS] = "Success",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires restart",
        [NVML_ERROR_OPERATING_SYSTEM] = "Operating System Error",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument Version Mismatch",
    };
    unsigned int index = (unsigned int)result;
    return index < sizeof texts / sizeof texts[0] && texts[index] != NULL ? texts[index] : "Unknown Error";
}

#define NEED_READY                                                                                                     \
    do {                                                                                                               \
        if (!nvml_ready()) {                                                                                           \
            return NVML_ERROR_UNINITIALIZED;                                                                           \
        }                                                                                                              \
    } while (0)

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    NEED_READY;
    return nvml_text(IDENTITY_DRIVER_VERSION, version, length);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length) {
    NEED_READY;
    NEED(info);
    if (info->version != NVML_VERSION(nvmlSystemDriverBranchInfo_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return nvml_text(IDENTITY_DRIVER_BRANCH, info->branch, length < sizeof info->branch ? length : sizeof info->branch);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    NEED_READY;
    return nvml_text("13." IDENTITY_DRIVER_VERSION, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    struct sim_hardware hardware;
    NEED_READY;
    NEED(version);
    pool_hardware(&hardware);
    *version = (int)hardware.driver_version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[32], command[1024] = "";
    NEED_READY;
    NEED(name);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, command, sizeof command - 1);
    if (fd >= 0) {
        close(fd);
    }
    if (got < 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    if (length == 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    snprintf(name, length, "%s", command); /* up to the first argument's end */
    return NVML_SUCCESS;
}
