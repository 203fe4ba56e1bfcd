/* cuda_device.h: the GPUs as this process sees them. */
#ifndef GPUSHARE_SIM_CUDA_DEVICE_H
#define GPUSHARE_SIM_CUDA_DEVICE_H

#include "common_settings.h"
#include "cuda_arena.h"

/* One visible GPU. Its ordinal is the place in the process's list, its arena.gpu the number in the shared pool. */
struct device {
    uint32_t gpu;
    unsigned char uuid[16];
    uint64_t total; /* what a program is told: less what the driver reserves */
    bool opened;    /* arena in use */
    struct arena arena;
    int contexts; /* of this process */
    CUcontext primary;
    CUmemoryPool default_pool, current_pool;
};

extern struct sim_hardware device_hardware;
extern int device_count;

/* Reads CUDA_VISIBLE_DEVICES; once, in cuInit. */
void devices_prepare(void);
/* NULL for an ordinal that does not exist. */
struct device *device_get(CUdevice ordinal);
/* The device with its arena opened. */
CUresult device_open(CUdevice ordinal, struct device **device);
/* A place without its part of the device, which makes no difference here. An older driver knows no parts. */
CUmemLocation device_whole(const CUmemLocation *location);
int device_of_uuid(const unsigned char uuid[16]);

#endif
