/* copies.h: drivers beside the one that we bound to.
 *
 * A process may load the driver twice: WSL ships libcuda.so and libcuda.so.1 as two files, a program may have a copy
 * under another name, and dlmopen loads any library once more in a namespace of its own. Each copy has functions and a
 * state of its own, and our limit holds on one of them. So a look-up in a copy is answered from the driver that we
 * bound to: the process then uses one driver, as it would where all names lead to one file. What cannot be answered
 * so, because it was linked or looked up where we do not come by, is said and counted; its memory is found by
 * measuring.
 */
#ifndef GPUSHARE_PRELOAD_COPIES_H
#define GPUSHARE_PRELOAD_COPIES_H

#include <stdbool.h>

/* The program has found `found` for `name` in `handle`; `caller` is where it asked. Whether that is the function of
 * another copy of the driver. Asks the loader, so dlerror is undefined afterwards. */
bool gs_is_of_copy(void *handle, const void *found, const void *caller);

/* What the driver that we bound to has under that name, hooked where we have a hook; NULL if it has none. Says once
 * that the copy is not used. */
void *gs_instead_of_copy(const void *found, const char *name);

/* A look-up in a driver that is loaded in another namespace only: bind to the same file, in ours. false: it is no such
 * look-up, or the file cannot be opened. */
bool gs_open_copy_here(void *handle, const void *found);

/* Look through the process for drivers that we are not bound to; say and count each once. */
void gs_look_for_copies(void);

/* The same, unless that was just done. What is in a namespace may load a driver at any time. */
void gs_look_now_and_then(void);

/* Enter into the daemon's page how many there are. */
void gs_tell_copies(void);

#endif
