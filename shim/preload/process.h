/* process.h: this process, and its forks. */
#ifndef GPUSHARE_PRELOAD_PROCESS_H
#define GPUSHARE_PRELOAD_PROCESS_H

#include "moments.h"

/* Before the process gets state that a child must not inherit. */
void gs_process_prepare(void);

#endif
