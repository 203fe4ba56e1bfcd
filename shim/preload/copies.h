/* copies.h: drivers beside the one that we bound to.
 *
 * A process may load the driver twice: WSL has libcuda.so and libcuda.so.1 as two files, a program may have a copy
 * under another name, and dlmopen loads a library once more, in a namespace of its own. Each copy has its own functions
 * and its own state, but our limit holds in one of them only. So we answer a look-up in a copy with the function of the
 * driver that we bound to. The process then uses one driver, as if all names led to one file.
 *
 * We cannot answer every look-up: a program may be linked to the copy, or look up from a namespace in which we are not
 * loaded. Such a copy is counted and the user is told; only the daemon's measurements show its memory.
 */
#ifndef GPUSHARE_PRELOAD_COPIES_H
#define GPUSHARE_PRELOAD_COPIES_H

#include <stdbool.h>

/* Whether `found` is a function of another copy of the driver. The program looked it up in `handle`, from the address
 * `caller`. Asks the loader, so dlerror is undefined afterwards. */
bool gs_is_of_copy(void *handle, const void *found, const void *caller);

/* The function of that name in the driver that we bound to, or our hook for it; NULL if there is none. Tells the user
 * once that the copy is not used. */
void *gs_instead_of_copy(const void *found, const char *name);

/* If `found` is in a driver that is loaded in another namespace only, binds to the same file in our namespace. false:
 * it is not, or the file cannot be opened. */
bool gs_open_copy_here(void *handle, const void *found);

/* Looks for drivers in this process that we are not bound to. Counts each once and tells the user. */
void gs_look_for_copies(void);

/* The same, unless it was done a moment ago. A library in another namespace may load a driver at any time. */
void gs_look_now_and_then(void);

/* Writes the number of copies into the page. */
void gs_tell_copies(void);

#endif
