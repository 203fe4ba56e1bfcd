/* symbols.h: finding the driver's real functions, and which of our hooks stands in for which.
 *
 * Both follow from functions.def and nvml.def: a row with the rule HOOK is a field in gs_driver and a row of the
 * table in symbols.c, and its name is the hook itself. A row without a hook does not link; a hook without a row
 * has no place to call.
 */
#ifndef GPUSHARE_PRELOAD_SYMBOLS_H
#define GPUSHARE_PRELOAD_SYMBOLS_H

#include "driver.h"

/* Whether this process has a budget and we are the ones to enforce it. */
bool gs_may_wake(void);

/* The driver that we are bound to, for dlsym; NULL before gs_wake. */
void *gs_driver_handle(void);

/* Whether the driver's cuGetProcAddress gives the addresses that dlsym gave us: asked once, when the program first uses
 * it. Where it gives others of the driver's own, these have our hooks, too; where it does not, that is said. */
void gs_compare_look_ups(void);

/* Whether what is found in `handle` under a driver's names is at home in the library at `base`, not in one that it
 * depends on. */
bool gs_defines_a_driver(void *handle, const void *base);

/* The hook for an address that is the driver's real function, else NULL. */
void *gs_hook_for(const void *real);

bool gs_is_hook(const void *address);
bool gs_is_hook_name(const char *symbol);

/* A function of a hooked family whose address is none of ours: said once a name, then left to reconciliation. */
void gs_note_unknown(const char *name);

#endif
