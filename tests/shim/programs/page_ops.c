/* page_ops.c: the daemon's atomic operations on a word, for the fake daemon in Python. */
#include "credit.h"

void grant(struct gs_line *line, uint32_t units) {
    gs_grant(line, units);
}

uint32_t revoke(struct gs_line *line, uint32_t units) {
    return gs_revoke(line, units);
}
