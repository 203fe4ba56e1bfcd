/* cuda_function.c: attributes, names and modules of functions and kernels. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_handle.h"
#include "cuda_module.h"

/* The attributes that describe the code cannot be set; the others are kept as set. */
static bool may_set(CUfunction_attribute attribute) {
    return attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && attribute < CU_FUNC_ATTRIBUTE_MAX;
}

static CUresult find_attributes(const void *handle, int **attributes) {
    if (handle_is(handle, HANDLE_FUNCTION)) {
        *attributes = ((CUfunction)(uintptr_t)handle)->attributes;
        return CUDA_SUCCESS;
    }
    if (handle_is(handle, HANDLE_KERNEL)) {
        *attributes = ((CUkernel)(uintptr_t)handle)->attributes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *handle) {
    int *attributes;
    CUresult result = find_attributes(handle, &attributes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = attributes[attribute];
    return CUDA_SUCCESS;
}

static CUresult set_attribute(const void *handle, CUfunction_attribute attribute, int value) {
    int *attributes;
    CUresult result = find_attributes(handle, &attributes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!may_set(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    attributes[attribute] = value;
    return CUDA_SUCCESS;
}

static CUresult check(const void *handle) {
    int *ignored;
    return find_attributes(handle, &ignored);
}

API(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
    LOCKED(get_attribute(value, attribute, function)))
API(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
    LOCKED(set_attribute(function, attribute, value)))
API(cuKernelGetAttribute, (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device),
    device_get(device) == NULL ? CUDA_ERROR_INVALID_DEVICE : LOCKED(get_attribute(value, attribute, kernel)))
API(cuKernelSetAttribute, (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device),
    device_get(device) == NULL ? CUDA_ERROR_INVALID_DEVICE : LOCKED(set_attribute(kernel, attribute, value)))
API(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), ((void)config, LOCKED(check(function))))
API(cuFuncSetSharedMemConfig, (CUfunction function, CUsharedconfig config), ((void)config, LOCKED(check(function))))
API(cuKernelSetCacheConfig, (CUkernel kernel, CUfunc_cache config, CUdevice device),
    ((void)config, (void)device, LOCKED(check(kernel))))
static CUresult get_module(CUmodule *module, CUfunction handle) {
    CUfunction function;
    CUresult result = module == NULL ? CUDA_ERROR_INVALID_VALUE : function_of(handle, &function);
    if (result == CUDA_SUCCESS) {
        *module = function->module;
    }
    return result;
}

static CUresult get_name(const char **name, const void *handle) {
    CUresult result = name == NULL || handle == NULL ? CUDA_ERROR_INVALID_VALUE : check(handle);
    if (result == CUDA_SUCCESS) {
        *name = handle_is(handle, HANDLE_FUNCTION) ? ((CUfunction)(uintptr_t)handle)->name
                                                   : ((CUkernel)(uintptr_t)handle)->name;
    }
    return result;
}

API(cuFuncGetModule, (CUmodule * module, CUfunction function), LOCKED(get_module(module, function)))
API(cuFuncGetName, (const char **name, CUfunction function), LOCKED(get_name(name, function)))
API(cuKernelGetName, (const char **name, CUkernel kernel), LOCKED(get_name(name, kernel)))
