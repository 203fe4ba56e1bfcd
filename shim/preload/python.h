/* python.h: the program's Python interpreter, if it has one, and what its frameworks keep (trim_hook.py). */
#ifndef GPUSHARE_PRELOAD_PYTHON_H
#define GPUSHARE_PRELOAD_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

/* Let the frameworks give back what gs_trim_wanted says. Returns when they have, or at `until` (of gs_now_ms) while
 * they are still about it. false: at once, since there is no interpreter. */
bool gs_python_trim(uint64_t until);

#endif
