/* cuda_errors.h: names of the error codes. */
#ifndef GPUSHARE_SIM_CUDA_ERRORS_H
#define GPUSHARE_SIM_CUDA_ERRORS_H

#include "cuda_abi.h"

#include <stdbool.h>

/* "2" and "CUDA_ERROR_OUT_OF_MEMORY" alike. */
bool error_by_name(const char *text, CUresult *code);

#endif
