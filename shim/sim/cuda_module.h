/* cuda_module.h: modules, libraries, and the functions in them. See cuda_module.c. */
#ifndef GPUSHARE_SIM_CUDA_MODULE_H
#define GPUSHARE_SIM_CUDA_MODULE_H

#include "cuda_code.h"
#include "cuda_context.h"

struct CUfunc_st {
    const char *name; /* the code's */
    CUmodule module;
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    CUfunction next;
};

struct CUkern_st {
    const char *name;
    CUlibrary library;
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    CUkernel next;
};

/* The modules of a context end with it. Under the lock. */
void modules_end(CUcontext context);
/* The function behind a handle, which may be a kernel's too; in the current context. Under the lock. */
CUresult function_of(CUfunction handle, CUfunction *function);
void function_defaults(int attributes[CU_FUNC_ATTRIBUTE_MAX]);

#endif
