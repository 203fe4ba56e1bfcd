/* hooks.h: what the families of hooks need of each other. */
#ifndef GPUSHARE_PRELOAD_HOOKS_H
#define GPUSHARE_PRELOAD_HOOKS_H

#include "charge.h"

extern struct gs_table gs_arrays;

/* Make a context of the program on this GPU current, the primary one if that is open. false: there is none. No other
 * thread ends it meanwhile: an old handle may be one that the driver trips over. */
bool gs_context_enter(const struct gs_gpu *gpu, bool *primary);

/* A context has ended, and the memory behind its limits with it (hook_limit.c). */
void gs_limit_context_gone(uint32_t context);

/* The primary context of a GPU has been reset. What belongs to the device and not to the context stays, as CUDA
 * documents it; if a driver ends that too, it is no longer charged, as far as the driver can be asked. */
void gs_vmm_was_reset(const struct gs_gpu *gpu);

#endif
