/* symbols.h: finds the driver's functions, and the hook of each.
 *
 * Both come from functions.def and nvml.def: a row with the rule HOOK makes a field of gs_driver and a row of the table
 * in symbols.c, and its name is the name of the hook. A row without a hook does not link. A hook without a row cannot
 * call the driver.
 */
#ifndef GPUSHARE_PRELOAD_SYMBOLS_H
#define GPUSHARE_PRELOAD_SYMBOLS_H

#include "driver.h"

/* Whether this process has a budget, and this library enforces it. */
bool gs_may_wake(void);

/* The driver that we are bound to, for dlsym; NULL before gs_wake. */
void *gs_driver_handle(void);

/* Compares the driver's cuGetProcAddress with dlsym, once, when the program first uses it. Where it gives another
 * address of the driver, that address gets our hook too. Where it gives something else, the user is told. */
void gs_compare_look_ups(void);

/* Whether the library at `base` itself defines the driver's functions that are found in `handle`, not a library that it
 * depends on. */
bool gs_defines_a_driver(void *handle, const void *base);

/* The hook for an address that is the driver's real function, else NULL. */
void *gs_hook_for(const void *real);

bool gs_is_hook(const void *address);
bool gs_is_hook_name(const char *symbol);

/* Tells the user, once for each name, that a function of a hooked family has no hook. Only the daemon's measurements
 * show what it allocates. */
void gs_note_unknown(const char *name);

#endif
