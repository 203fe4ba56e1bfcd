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
    uint64_t busy; /* ns for which it has kept the GPU computing */
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

/* ---- checkpoints: a process's calls are stopped, and its memory is taken from the GPU, by another process ---- */

/* What of a process cannot be taken from a GPU and put back. Counted in its slot. */
enum pool_mark { POOL_MANAGED, POOL_IMPORTED, POOL_EXPORTED, POOL_MULTICAST, POOL_MARKS };

enum pool_state {
    POOL_RUNNING,
    POOL_LOCKED,
    POOL_CHECKPOINTED,
    POOL_FAILED,
    POOL_LOCKING,
    POOL_LEAVING,
    POOL_RETURNING
};

/* Before and after each call of a program: waits while the process is not running. False: it never will again. One
 * that looks at what the GPU has written ends the process while its memory is away (suspended=ends). */
bool pool_call_begins(bool looks);
/* Whether the process's memory is in host memory, or on the way there or back. */
bool pool_is_away(void);
/* Then some calls fail with CUDA_ERROR_OPERATING_SYSTEM and do not wait (suspended=ends). */
bool pool_refuses(void);
void pool_call_ends(void);

void pool_mark(enum pool_mark mark, int change);
/* The file with the process's memory of a GPU. */
void pool_note_arena(uint32_t gpu, int fd, uint64_t size);

/* The slot of a living process; -1: it has none, or is this process. */
int pool_find(pid_t pid);
/* One process at a time acts on a slot. The lock ends with its holder. */
int pool_hold(int slot);
void pool_let_go(int held);
enum pool_state pool_state_of(int slot);
void pool_set_state(int slot, enum pool_state state);
uint32_t pool_calls(int slot);
bool pool_is_marked(int slot);
pid_t pool_pid_of(int slot);
/* Of a slot's arena: its descriptor there, or -1. */
int pool_arena(int slot, uint32_t gpu, uint64_t *size);
/* What the process has of all GPUs. */
uint64_t pool_held(int slot);
/* Takes that out of their accounts. Once more does no harm. */
void pool_park(int slot);
/* Puts it back on all GPUs or, if one has no room, on none. */
bool pool_unpark(int slot);

/* This process gives the GPU work of so many ns. */
void pool_work(uint32_t gpu, uint64_t ns);
/* With kernels=clocked: waits until the GPU has done the work that this process has given it. */
void pool_work_done(uint32_t gpu);

/* What all processes use of a GPU now, without what the driver reserves. */
uint64_t pool_used(uint32_t gpu);
/* The processes that use a GPU; returns how many there are, of which at most `room` are written. */
size_t pool_processes(uint32_t gpu, struct pool_process *processes, size_t room);

#endif
