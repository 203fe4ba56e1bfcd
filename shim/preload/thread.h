/* thread.h: threads of our own. At most one of them lasts (borrower.c), in processes that may be asked for memory. */
#ifndef GPUSHARE_PRELOAD_THREAD_H
#define GPUSHARE_PRELOAD_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/* Start a detached thread that the program's signals do not reach. `stack_bytes` 0: the program's own default. false:
 * it could not be started. */
bool gs_thread_start(void *(*function)(void *), size_t stack_bytes);

#endif
