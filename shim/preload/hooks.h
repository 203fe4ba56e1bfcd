/* hooks.h: what the families of hooks need of each other. */
#ifndef GPUSHARE_PRELOAD_HOOKS_H
#define GPUSHARE_PRELOAD_HOOKS_H

#include "charge.h"

extern struct gs_table gs_arrays;

/* A pooled pointer has been freed, by whichever function. */
void gs_pool_freed(const struct gs_entry *entry);

void gs_context_forget(void);
void gs_pool_forget(void);
void gs_vmm_forget(void);
void gs_array_forget(void);

#endif
