/* quantity.h: amounts of GPU memory, as people write them. The counterpart of gpushare/quantity.py. */
#ifndef GPUSHARE_PRELOAD_QUANTITY_H
#define GPUSHARE_PRELOAD_QUANTITY_H

#include <stdbool.h>
#include <stdint.h>

enum gs_dialect { GS_NATIVE, GS_RUNAI, GS_MIB, GS_HAMI };
enum gs_kind { GS_KIND_BYTES, GS_KIND_SHARE, GS_KIND_MAX, GS_KIND_NONE };

#define GS_SHARE_PARTS 1000000000ull

struct gs_quantity {
    enum gs_kind kind;
    uint64_t value; /* bytes, or parts of GS_SHARE_PARTS */
};

/* false: not an amount in this dialect. */
bool gs_quantity_parse(const char *text, enum gs_dialect dialect, struct gs_quantity *quantity);

/* Milliseconds of `5s`, `500ms`, `2m`, `1.5h`, or bare seconds. */
bool gs_duration_parse(const char *text, uint32_t *milliseconds);

#endif
