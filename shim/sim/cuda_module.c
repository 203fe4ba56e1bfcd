/* cuda_module.c: modules, libraries, and the functions in them.
 *
 * A module is code loaded into one context; a library is code for all of them, which becomes a module of a context when
 * it is first used there. Their variables are device memory of the context.
 */
#define _GNU_SOURCE
#include "cuda_module.h"

#include "common_settings.h"
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct variable {
    const char *name;
    struct memory *memory;
    struct variable *next;
};

struct CUmod_st {
    CUcontext context;
    CUlibrary library; /* NULL: loaded by itself */
    struct code *code;
    CUfunction functions;
    struct variable *variables;
    CUmodule next;
};

struct CUlib_st {
    struct code *code;
    CUkernel kernels;
};

static CUmodule modules;

void function_defaults(int attributes[CU_FUNC_ATTRIBUTE_MAX]) {
    memset(attributes, 0, sizeof(int) * CU_FUNC_ATTRIBUTE_MAX);
    attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90;
    attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152;
    attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
}

/* Takes over the caller's use of the code, also when it fails. */
static CUresult new_module(CUmodule *module, CUcontext context, CUlibrary library, struct code *code) {
    CUmodule fresh = context_module(context) == CUDA_SUCCESS ? handle_new(HANDLE_MODULE, sizeof *fresh) : NULL;
    if (fresh == NULL) {
        code_drop(code);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->context = context;
    fresh->library = library;
    fresh->code = code;
    fresh->next = modules;
    modules = fresh;
    *module = fresh;
    return CUDA_SUCCESS;
}

static void end_module(CUmodule module) {
    CUmodule *place = &modules;
    while (*place != module) {
        place = &(*place)->next;
    }
    *place = module->next;
    while (module->functions != NULL) {
        CUfunction function = module->functions;
        module->functions = function->next;
        handle_end(function);
    }
    while (module->variables != NULL) {
        struct variable *variable = module->variables;
        module->variables = variable->next;
        context_give(variable->memory);
        free(variable);
    }
    code_drop(module->code);
    handle_end(module);
}

void modules_end(CUcontext context) {
    for (CUmodule module = modules, next; module != NULL; module = next) {
        next = module->next;
        if (module->context == context) {
            end_module(module);
        }
    }
}

static CUresult load(CUmodule *module, CUresult (*reader)(const void *, struct code **), const void *from) {
    CUcontext context;
    struct code *code;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = module == NULL ? CUDA_ERROR_INVALID_VALUE : reader(from, &code);
    }
    return result != CUDA_SUCCESS ? result : new_module(module, context, NULL, code);
}

static CUresult read_path(const void *path, struct code **code) {
    return code_load_file(path, code);
}

static CUresult unload(CUmodule module) {
    if (!handle_is(module, HANDLE_MODULE) || module->library != NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    end_module(module);
    return CUDA_SUCCESS;
}

API(cuModuleLoad, (CUmodule * module, const char *path), LOCKED(load(module, read_path, path)))
API(cuModuleLoadData, (CUmodule * module, const void *image), LOCKED(load(module, code_load, image)))
API(cuModuleLoadDataEx,
    (CUmodule * module, const void *image, unsigned int count, CUjit_option *options, void **values),
    ((void)count, (void)options, (void)values, LOCKED(load(module, code_load, image))))
API(cuModuleLoadFatBinary, (CUmodule * module, const void *image), LOCKED(load(module, code_load, image)))
API(cuModuleUnload, (CUmodule module), LOCKED(unload(module)))

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    ENTER(cuModuleGetLoadingMode);
    if (mode == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = SIM_IS(modules, lazy) ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

/* The same name gives the same handle. */
static CUresult get_function(CUfunction *function, CUmodule module, const char *name) {
    if (function == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!handle_is(module, HANDLE_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const struct code_name *found = code_find(module->code, name, CODE_FUNCTION);
    if (found == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    for (*function = module->functions; *function != NULL; *function = (*function)->next) {
        if ((*function)->name == found->name) {
            return CUDA_SUCCESS;
        }
    }
    CUfunction fresh = handle_new(HANDLE_FUNCTION, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->name = found->name;
    fresh->module = module;
    fresh->next = module->functions;
    function_defaults(fresh->attributes);
    module->functions = fresh;
    *function = fresh;
    return CUDA_SUCCESS;
}

static CUresult count_functions(unsigned int *count, CUmodule module) {
    if (!handle_is(module, HANDLE_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return count == NULL ? CUDA_ERROR_INVALID_VALUE : code_count(module->code, count);
}

static CUresult list_functions(CUfunction *functions, unsigned int count, CUmodule module) {
    unsigned int all, written = 0;
    CUresult result = functions == NULL ? CUDA_ERROR_INVALID_VALUE : count_functions(&all, module);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (const struct code_name *name = module->code->names; name != NULL && written < count; name = name->next) {
        if (name->kind == CODE_FUNCTION && result == CUDA_SUCCESS) {
            result = get_function(&functions[written++], module, name->name);
        }
    }
    return result;
}

API(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
    LOCKED(get_function(function, module, name)))
API(cuModuleGetFunctionCount, (unsigned int *count, CUmodule module), LOCKED(count_functions(count, module)))
API(cuModuleEnumerateFunctions, (CUfunction * functions, unsigned int count, CUmodule module),
    LOCKED(list_functions(functions, count, module)))

static CUresult add_variable(CUmodule module, const struct code_name *name, struct variable **result) {
    struct variable *variable = malloc(sizeof *variable);
    if (variable == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult taken = context_take(module->context, MEMORY_GLOBAL, name->size, &variable->memory);
    if (taken != CUDA_SUCCESS) {
        free(variable);
        return taken;
    }
    memset((void *)(uintptr_t)variable->memory->address, 0, name->size);
    variable->name = name->name;
    variable->next = module->variables;
    module->variables = variable;
    *result = variable;
    return CUDA_SUCCESS;
}

static CUresult get_global(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name) {
    if (name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!handle_is(module, HANDLE_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const struct code_name *found = code_find(module->code, name, CODE_VARIABLE);
    if (found == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    struct variable *variable = module->variables;
    while (variable != NULL && variable->name != found->name) {
        variable = variable->next;
    }
    CUresult result = variable != NULL ? CUDA_SUCCESS : add_variable(module, found, &variable);
    if (result == CUDA_SUCCESS && pointer != NULL) {
        *pointer = variable->memory->address;
    }
    if (result == CUDA_SUCCESS && size != NULL) {
        *size = variable->memory->size;
    }
    return result;
}

API(cuModuleGetGlobal_v2, (CUdeviceptr * pointer, size_t *size, CUmodule module, const char *name),
    LOCKED(get_global(pointer, size, module, name)))

/* No variable has an address of 32 bits. */
CUresult cuModuleGetGlobal(CUdeviceptr_v1 *pointer, unsigned int *size, CUmodule module, const char *name) {
    ENTER(cuModuleGetGlobal);
    CUdeviceptr wide = 0;
    size_t wide_size = 0;
    CUresult result = LOCKED(get_global(&wide, &wide_size, module, name));
    if (result == CUDA_SUCCESS && pointer != NULL && wide > UINT_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && size != NULL) {
        *size = (unsigned int)wide_size;
    }
    return result;
}

/* Libraries. */

static CUresult load_library(CUlibrary *library, CUresult (*reader)(const void *, struct code **), const void *from) {
    struct code *code;
    CUresult result = library == NULL ? CUDA_ERROR_INVALID_VALUE : reader(from, &code);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUlibrary fresh = handle_new(HANDLE_LIBRARY, sizeof *fresh);
    if (fresh == NULL) {
        code_drop(code);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->code = code;
    *library = fresh;
    return CUDA_SUCCESS;
}

static CUresult unload_library(CUlibrary library) {
    if (!handle_is(library, HANDLE_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (CUmodule module = modules, next; module != NULL; module = next) {
        next = module->next;
        if (module->library == library) {
            end_module(module);
        }
    }
    while (library->kernels != NULL) {
        CUkernel kernel = library->kernels;
        library->kernels = kernel->next;
        handle_end(kernel);
    }
    code_drop(library->code);
    handle_end(library);
    return CUDA_SUCCESS;
}

API(cuLibraryLoadData,
    (CUlibrary * library, const void *code, CUjit_option *options, void **values, unsigned int count,
     CUlibraryOption *library_options, void **library_values, unsigned int library_count),
    ((void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count,
     LOCKED(load_library(library, code_load, code))))
API(cuLibraryLoadFromFile,
    (CUlibrary * library, const char *path, CUjit_option *options, void **values, unsigned int count,
     CUlibraryOption *library_options, void **library_values, unsigned int library_count),
    ((void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count,
     LOCKED(load_library(library, read_path, path))))
API(cuLibraryUnload, (CUlibrary library), LOCKED(unload_library(library)))

/* The library's module in the current context. */
static CUresult module_of(CUlibrary library, CUmodule *module) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (module == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!handle_is(library, HANDLE_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (*module = modules; *module != NULL; *module = (*module)->next) {
        if ((*module)->library == library && (*module)->context == context) {
            return CUDA_SUCCESS;
        }
    }
    code_use(library->code);
    return new_module(module, context, library, library->code);
}

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
    if (kernel == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!handle_is(library, HANDLE_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const struct code_name *found = code_find(library->code, name, CODE_FUNCTION);
    if (found == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    for (*kernel = library->kernels; *kernel != NULL; *kernel = (*kernel)->next) {
        if ((*kernel)->name == found->name) {
            return CUDA_SUCCESS;
        }
    }
    CUkernel fresh = handle_new(HANDLE_KERNEL, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->name = found->name;
    fresh->library = library;
    fresh->next = library->kernels;
    function_defaults(fresh->attributes);
    library->kernels = fresh;
    *kernel = fresh;
    return CUDA_SUCCESS;
}

static CUresult count_kernels(unsigned int *count, CUlibrary library) {
    if (!handle_is(library, HANDLE_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return count == NULL ? CUDA_ERROR_INVALID_VALUE : code_count(library->code, count);
}

static CUresult list_kernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    unsigned int all, written = 0;
    CUresult result = kernels == NULL ? CUDA_ERROR_INVALID_VALUE : count_kernels(&all, library);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (const struct code_name *name = library->code->names; name != NULL && written < count; name = name->next) {
        if (name->kind == CODE_FUNCTION && result == CUDA_SUCCESS) {
            result = get_kernel(&kernels[written++], library, name->name);
        }
    }
    return result;
}

static CUresult get_library_global(CUdeviceptr *pointer, size_t *size, CUlibrary library, const char *name) {
    CUmodule module;
    CUresult result = module_of(library, &module);
    return result != CUDA_SUCCESS ? result : get_global(pointer, size, module, name);
}

static CUresult get_kernel_function(CUfunction *function, CUkernel kernel) {
    CUmodule module;
    if (!handle_is(kernel, HANDLE_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = module_of(kernel->library, &module);
    return result != CUDA_SUCCESS ? result : get_function(function, module, kernel->name);
}

API(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name),
    LOCKED(get_kernel(kernel, library, name)))
API(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary library), LOCKED(count_kernels(count, library)))
API(cuLibraryEnumerateKernels, (CUkernel * kernels, unsigned int count, CUlibrary library),
    LOCKED(list_kernels(kernels, count, library)))
API(cuLibraryGetModule, (CUmodule * module, CUlibrary library), LOCKED(module_of(library, module)))
API(cuLibraryGetGlobal, (CUdeviceptr * pointer, size_t *size, CUlibrary library, const char *name),
    LOCKED(get_library_global(pointer, size, library, name)))
API(cuLibraryGetManaged, (CUdeviceptr * pointer, size_t *size, CUlibrary library, const char *name),
    ((void)pointer, (void)size, (void)library, (void)name, CUDA_ERROR_NOT_FOUND))
API(cuLibraryGetUnifiedFunction, (void **function, CUlibrary library, const char *symbol),
    ((void)function, (void)library, (void)symbol, CUDA_ERROR_NOT_FOUND))
API(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), LOCKED(get_kernel_function(function, kernel)))

static CUresult get_library(CUlibrary *library, CUkernel kernel) {
    if (!handle_is(kernel, HANDLE_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (library == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *library = kernel->library;
    return CUDA_SUCCESS;
}

API(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel), LOCKED(get_library(library, kernel)))

CUresult function_of(CUfunction handle, CUfunction *function) {
    if (handle_is(handle, HANDLE_KERNEL)) {
        return get_kernel_function(function, (CUkernel)(void *)handle);
    }
    if (!handle_is(handle, HANDLE_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *function = handle;
    return CUDA_SUCCESS;
}
