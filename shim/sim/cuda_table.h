/* cuda_table.h: the table of all functions. See cuda_table.c. */
#ifndef GPUSHARE_SIM_CUDA_TABLE_H
#define GPUSHARE_SIM_CUDA_TABLE_H

#include "cuda_abi.h"

/* As functions.def calls them. */
enum table_stream { LEGACY, PER_THREAD };

void *table_resolve(const char *name, int version, enum table_stream stream, CUdriverProcAddressQueryResult *status);

#endif
