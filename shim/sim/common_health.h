/* common_health.h: errors of the GPUs, as the file `health` in the pool's directory lists them. See common_health.c. */
#ifndef GPUSHARE_SIM_HEALTH_H
#define GPUSHARE_SIM_HEALTH_H

#include "common_settings.h"

#include <stdbool.h>
#include <stdint.h>

#define HEALTH_EVENTS 64

enum health_event_kind { HEALTH_XID, HEALTH_DOUBLE_BIT_ERROR };

struct health_event {
    enum health_event_kind kind;
    uint32_t xid;
};

/* One GPU. */
struct health {
    bool lost, removed; /* removed is lost too */
    bool rows_pending, rows_failed, pages_pending;
    bool says_recovery;    /* a driver that does not know what must be done, until a line has said so */
    uint32_t recovery;     /* NVML_GPU_RECOVERY_ACTION_* */
    uint64_t uncorrected;  /* ECC errors since the last reset */
    uint64_t memory;       /* 0: as the settings say */
    uint32_t losses, eccs; /* how often it was lost, and had an uncorrected error: contexts from before are broken */
    uint32_t events;       /* how many there were; the last HEALTH_EVENTS are kept */
    struct health_event event[HEALTH_EVENTS];
};

/* As the file says now. */
void health_of(uint32_t gpu, struct health *health);

/* From a look at the file that is a few milliseconds old at most: how much memory a GPU has, if the file says so, and
 * what a context must know at each call. */
uint64_t health_memory(uint32_t gpu, uint64_t otherwise);
struct health_mark {
    uint32_t losses, eccs;
};
struct health_mark health_mark(uint32_t gpu, bool *lost);

#endif
