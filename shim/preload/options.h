/* options.h: what the environment says, read once. */
#ifndef GPUSHARE_PRELOAD_OPTIONS_H
#define GPUSHARE_PRELOAD_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "message.h"
#include "quantity.h"
#include "wire.h"

struct gs_options {
    bool active; /* a budget is set in some way; else the shim is inert */
    struct gs_amount request, limit;
    char limit_source[48]; /* the variable that set the limit, for messages */
    uint64_t job_id;       /* from GPUSHARE_JOB; 0: none */
    int32_t priority;
    uint32_t grace_ms;
    uint32_t steps; /* enum gs_reclaim_steps; 0: not said */
    uint32_t min_run_ms;
    bool visible_request; /* programs see the request as the GPU's total */
    bool software_driver;
    enum gs_level level;
    char name[64];
    char visible_devices[1024]; /* CUDA_VISIBLE_DEVICES as it was; "" if it was not set */
    char sockets[2][108];       /* where a daemon may be, in order; "" for none */
};

/* The options; read from the environment by the first call. */
const struct gs_options *gs_options(void);

/* For tests, and behind gs_options: parse `environment` into `options`; says what is worth a warning if `warn`. */
void gs_options_read(struct gs_options *options, char **environment, bool warn);

/* In bytes on a GPU that has `total`, rounded down to units. An unset amount is all of it. */
uint64_t gs_amount_resolve(struct gs_amount amount, uint64_t total);

#endif
