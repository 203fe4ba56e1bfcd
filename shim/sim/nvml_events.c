/* nvml_events.c: sets of events, and waiting for one. An event that came before its GPU was registered is not seen. */
#define _GNU_SOURCE
#include "nvml_device.h"

#include "common_health.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_EVERY_MS 10

struct nvmlEventSet_st {
    struct {
        nvmlDevice_t device; /* NULL: not registered */
        unsigned long long types;
        uint32_t seen;
    } gpus[SIM_MAX_GPUS];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all sets */

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    if (!nvml_ready()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NEED(set);
    *set = calloc(1, sizeof **set);
    return *set == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    if (!nvml_ready()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    GPU_OF(device);
    (void)gpu, (void)hardware;
    NEED(types);
    *types = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    struct health health;
    GPU_OF(device);
    (void)hardware;
    NEED(set);
    if ((types & ~(nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError)) != 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    health_of(gpu, &health);
    pthread_mutex_lock(&mutex);
    if (set->gpus[gpu].device == NULL) {
        set->gpus[gpu].seen = health.events;
    }
    set->gpus[gpu].device = device;
    set->gpus[gpu].types |= types;
    pthread_mutex_unlock(&mutex);
    return NVML_SUCCESS;
}

/* The next event that this set has not seen. A set with a GPU that is lost has nothing more to wait for. */
static nvmlReturn_t next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
    nvmlReturn_t result = NVML_ERROR_TIMEOUT;
    for (uint32_t gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        struct health health;
        if (set->gpus[gpu].device == NULL) {
            continue;
        }
        health_of(gpu, &health);
        if (health.events - set->gpus[gpu].seen > HEALTH_EVENTS) {
            set->gpus[gpu].seen = health.events - HEALTH_EVENTS;
        }
        while (set->gpus[gpu].seen != health.events) {
            const struct health_event *event = &health.event[set->gpus[gpu].seen++ % HEALTH_EVENTS];
            bool is_xid = event->kind == HEALTH_XID;
            unsigned long long type = is_xid ? nvmlEventTypeXidCriticalError : nvmlEventTypeDoubleBitEccError;
            if ((set->gpus[gpu].types & type) != 0) {
                *data = (nvmlEventData_t){.device = set->gpus[gpu].device,
                                          .eventType = type,
                                          .eventData = event->xid,
                                          .gpuInstanceId = ~0u,
                                          .computeInstanceId = ~0u};
                return NVML_SUCCESS;
            }
        }
        if (health.lost) {
            result = NVML_ERROR_GPU_IS_LOST;
        }
    }
    return result;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    NEED(set);
    NEED(data);
    for (unsigned int waited = 0;; waited += LOOK_EVERY_MS) {
        if (!nvml_ready()) {
            return NVML_ERROR_UNINITIALIZED;
        }
        pthread_mutex_lock(&mutex);
        nvmlReturn_t result = next_event(set, data);
        pthread_mutex_unlock(&mutex);
        if (result != NVML_ERROR_TIMEOUT || waited >= timeout_ms) {
            return result;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOOK_EVERY_MS * 1000000}, NULL);
    }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
