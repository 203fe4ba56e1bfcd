/* nvml_device.h: what the files of the NVML library share. */
#ifndef GPUSHARE_SIM_NVML_DEVICE_H
#define GPUSHARE_SIM_NVML_DEVICE_H

#include "common_settings.h"
#include "nvml_abi.h"

/* Whether nvmlInit was called and not yet undone. */
bool nvml_ready(void);
/* The GPU behind a handle, and what the pool says about GPUs now. */
nvmlReturn_t nvml_gpu(nvmlDevice_t device, uint32_t *gpu, struct sim_hardware *hardware);
/* NVML finds its GPUs when it is initialised: which were gone at that moment. */
void nvml_enumerate(void);
nvmlReturn_t nvml_text(const char *text, char *target, unsigned int length);

#define GPU_OF(device)                                                                                                 \
    uint32_t gpu;                                                                                                      \
    struct sim_hardware hardware;                                                                                      \
    nvmlReturn_t opened_ = nvml_gpu(device, &gpu, &hardware);                                                          \
    if (opened_ != NVML_SUCCESS) {                                                                                     \
        return opened_;                                                                                                \
    }

#define NEED(argument)                                                                                                 \
    do {                                                                                                               \
        if ((argument) == NULL) {                                                                                      \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
        }                                                                                                              \
    } while (0)

#endif
