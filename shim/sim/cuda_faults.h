/* cuda_faults.h: delays and failures asked for by GPUSHARE_SIM. */
#ifndef GPUSHARE_SIM_CUDA_FAULTS_H
#define GPUSHARE_SIM_CUDA_FAULTS_H

#include "common_settings.h"
#include "cuda_api.h"

/* Looks the functions up; a name or code that does not exist is complained about. */
bool faults_prepare(const struct sim_settings *settings);
bool faults_any(void);
/* Waits if this function is to be slow; returns the code if this call of it is to fail. */
CUresult faults_apply(enum api_function function);

#endif
