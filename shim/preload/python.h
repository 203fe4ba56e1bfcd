/* python.h: the program's Python interpreter, if it has one, and what its frameworks keep (trim_hook.py). */
#ifndef GPUSHARE_PRELOAD_PYTHON_H
#define GPUSHARE_PRELOAD_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

/* Have the frameworks give back what gs_trim_wanted says. Returns when they are done, at the latest at `until` (by
 * gs_now_ms). false: there is no interpreter; it returns at once. */
bool gs_python_trim(uint64_t until);

#endif
