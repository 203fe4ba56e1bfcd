/* common_settings.h: what GPUSHARE_SIM asks of the software driver. */
#ifndef GPUSHARE_SIM_SETTINGS_H
#define GPUSHARE_SIM_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MAX_GPUS   16
#define SIM_MAX_FAULTS 32
#define SIM_NAME_BYTES 64
#define SIM_PATH_BYTES 512

/* One entry of latency= or fail=: it names a function, which the CUDA library looks up. */
struct sim_fault {
    char function[64];
    uint64_t latency_ns; /* of latency= */
    uint64_t nth;        /* of fail=: the first call that fails; 0 = none */
    bool onwards;        /* of fail=: every later call too */
    char code[48];       /* of fail=: a number, or a name such as CUDA_ERROR_OUT_OF_MEMORY */
};

/* The settings that the shared pool keeps: all processes on it see the same GPUs. */
struct sim_hardware {
    uint32_t gpus;
    uint32_t driver_version;
    uint64_t memory[SIM_MAX_GPUS];
    uint64_t context_bytes;
    uint64_t reserved_bytes;
    uint64_t teardown_ns;
    char name[SIM_NAME_BYTES];
};

struct sim_settings {
    struct sim_hardware hardware;
    char pool[SIM_PATH_BYTES];
    struct sim_fault faults[SIM_MAX_FAULTS];
    int fault_count;
    uint64_t checkpoint_rate;  /* bytes a second that a checkpoint or a restore moves; 0: as fast as it can */
    uint64_t checkpoint_break; /* the so many-th of them by this process breaks off in the middle; 0: none */
};

/* What the driver does where NVIDIA's may do either: a number from 0 (as usual) for each row of switches.def. Of this
 * process, and all as usual until the settings have been read. */
struct sim_switches {
#define SIM_SWITCH(name, usual, other, third, freedom) uint8_t name;
#include "switches.def"
};

enum sim_switch_value {
/* SIM_pool_drop_free, and so on */
#define SIM_SWITCH(name, usual, other, third, freedom)                                                                 \
    SIM_##name##_##usual = 0, SIM_##name##_##other = 1, SIM_##name##_##third = 2,
#include "switches.def"
};

extern struct sim_switches sim_switches;
#define SIM_IS(name, value) (sim_switches.name == SIM_##name##_##value)

/* The settings of this process, read once. NULL when GPUSHARE_SIM is wrong; the reason went to stderr. */
const struct sim_settings *sim_settings(void);
/* An amount of memory with its unit (16Gi). */
bool sim_size(const char *text, uint64_t *bytes);
/* Also when the settings are wrong: a program that cannot find cuInit would not hear that they are. */
int sim_driver_version(void);

#endif
