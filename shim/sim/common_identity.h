/* common_identity.h: the names of the GPUs: UUIDs as text and PCI addresses, the same in CUDA and NVML. */
#ifndef GPUSHARE_SIM_IDENTITY_H
#define GPUSHARE_SIM_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#define IDENTITY_UUID_TEXT      41 /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
#define IDENTITY_PCI_DEVICE_ID  0x233010de
#define IDENTITY_PCI_SUBSYSTEM  0x16c110de
#define IDENTITY_COMPUTE_MAJOR  9
#define IDENTITY_COMPUTE_MINOR  0
#define IDENTITY_DRIVER_VERSION "580.0.0-gpushare"
#define IDENTITY_DRIVER_BRANCH  "r580_00"

void identity_uuid_text(const unsigned char uuid[16], char text[IDENTITY_UUID_TEXT]);
/* Bus number of a GPU; domain, device and function are 0. */
int identity_bus(uint32_t gpu);
/* The GPU of "0000:19:00.0" and its shorter and longer forms, or -1. */
int identity_gpu_at(const char *bus_id, uint32_t gpus);

#endif
