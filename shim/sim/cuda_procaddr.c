/* cuda_procaddr.c: cuGetProcAddress and its second version; the export tables that do not exist. */
#define _GNU_SOURCE
#include "cuda_table.h"

static CUresult look_up(const char *symbol, void **function, int version, uint64_t flags,
                        CUdriverProcAddressQueryResult *status, void **found) {
    const uint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbol == NULL || function == NULL || (flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    enum table_stream stream = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 ? PER_THREAD : LEGACY;
    *found = table_resolve(symbol, version < 0 ? INT32_MAX : version, stream, status);
    return CUDA_SUCCESS;
}

/* Version 1 leaves the pointer alone when there is nothing to return, version 2 clears it and calls that success. */
CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    CUresult result = look_up(symbol, function, version, flags, &status, &found);
    if (result != CUDA_SUCCESS || found == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
    }
    *function = found;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUdriverProcAddressQueryResult ignored;
    void *found = NULL;
    CUresult result = look_up(symbol, function, version, flags, status == NULL ? &ignored : status, &found);
    if (result == CUDA_SUCCESS) {
        *function = found;
    }
    return result;
}

/* Private to NVIDIA: through such a table its own runtime library verifies that the driver is genuine. This driver
 * is not, does not answer, and never will. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    (void)table, (void)id;
    return CUDA_ERROR_NOT_FOUND;
}
