/* nvml_health.c: a GPU's errors as NVML shows them. */
#define _GNU_SOURCE
#include "nvml_device.h"

#include "common_health.h"

#define HEALTH_OF(device)                                                                                              \
    struct health health;                                                                                              \
    GPU_OF(device);                                                                                                    \
    (void)hardware;                                                                                                    \
    health_of(gpu, &health)

/* The software GPU counts one kind: uncorrected errors since the last reset. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                         unsigned long long *count) {
    HEALTH_OF(device);
    NEED(count);
    if (type > NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter > NVML_AGGREGATE_ECC) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? health.uncorrected : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed) {
    HEALTH_OF(device);
    NEED(corrected);
    NEED(uncorrected);
    NEED(pending);
    NEED(failed);
    *corrected = 0;
    *uncorrected = (unsigned int)(health.rows_pending + health.rows_failed);
    *pending = health.rows_pending;
    *failed = health.rows_failed;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending) {
    HEALTH_OF(device);
    NEED(pending);
    *pending = health.pages_pending;
    return NVML_SUCCESS;
}

/* Of the fields only the one that says what must be done about the GPU. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    HEALTH_OF(device);
    NEED(values);
    for (int index = 0; index < count; index++) {
        bool known = values[index].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION && health.says_recovery;
        values[index].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[index].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[index].value.uiVal = health.recovery;
    }
    return NVML_SUCCESS;
}
