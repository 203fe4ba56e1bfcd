/* common_pool.h: the physical memory of the GPUs, shared by all processes. See common_pool.c. */
#ifndef GPUSHARE_SIM_POOL_H
#define GPUSHARE_SIM_POOL_H

#include "common_settings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pool_process {
    pid_t pid;
    uint64_t used;
};

/* Opens or makes the pool; the reason of a failure goes to stderr. */
bool pool_open(const struct sim_settings *settings);
/* Takes a slot for this process, so that it can charge. Only a process that holds one keeps the settings in place. */
bool pool_attach(const struct sim_settings *settings);

/* What the pool was made with: may change between two calls as long as this process holds no slot. */
void pool_hardware(struct sim_hardware *hardware);
void pool_uuid(uint32_t gpu, unsigned char uuid[16]);

/* Charges this process for bytes of a GPU, or refuses because the GPU is full. */
bool pool_charge(uint32_t gpu, uint64_t bytes);
void pool_uncharge(uint32_t gpu, uint64_t bytes);
/* Memory that another process is charged for is shown as this one's, too (bytes > 0), or no longer. */
void pool_share(uint32_t gpu, int64_t bytes);

/* What all processes use of a GPU now, without what the driver reserves. */
uint64_t pool_used(uint32_t gpu);
/* The processes that use a GPU; returns how many there are, of which at most `room` are written. */
size_t pool_processes(uint32_t gpu, struct pool_process *processes, size_t room);

#endif
