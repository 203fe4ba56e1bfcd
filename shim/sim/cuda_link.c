/* cuda_link.c: the just-in-time linker: its product is the texts that went in, one after the other. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What cuLinkComplete returns begins like PTX, so that loading it finds the names of the PTX in it. A binary among
 * the inputs makes it opaque. */
#define TEXT_HEADER   "// linked by the gpushare software driver\n"
#define BINARY_HEADER "\177gpushare linked image\n"

#define INPUT_PTX 1 /* CU_JIT_INPUT_PTX */

struct CUlinkState_st {
    char *text;
    size_t length;
    bool binary;
    char *image;
};

static CUresult create(CUlinkState *state) {
    if (state == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *state = handle_new(HANDLE_LINK, sizeof **state);
    return *state == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, CUjitInputType type, const char *data, size_t size) {
    if (!handle_is(state, HANDLE_LINK)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (data == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type != INPUT_PTX) {
        state->binary = true;
        return CUDA_SUCCESS;
    }
    size = strnlen(data, size);
    char *longer = realloc(state->text, state->length + size + 2);
    if (longer == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(longer + state->length, data, size);
    memcpy(longer + state->length + size, "\n", 2);
    state->text = longer;
    state->length += size + 1;
    return CUDA_SUCCESS;
}

static CUresult add_file(CUlinkState state, CUjitInputType type, const char *path) {
    char *text = NULL;
    size_t room = 0;
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    if (file == NULL) {
        return path == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    ssize_t length = getdelim(&text, &room, '\0', file);
    fclose(file);
    CUresult result = length <= 0 ? CUDA_ERROR_INVALID_IMAGE : add(state, type, text, (size_t)length);
    free(text);
    return result;
}

static CUresult complete(CUlinkState state, void **image, size_t *size) {
    if (!handle_is(state, HANDLE_LINK)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (image == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(state->image);
    int length = asprintf(&state->image, "%s%s", state->binary ? BINARY_HEADER : TEXT_HEADER,
                          state->text == NULL ? "" : state->text);
    if (length < 0) {
        state->image = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *image = state->image;
    if (size != NULL) {
        *size = (size_t)length + 1;
    }
    return CUDA_SUCCESS;
}

static CUresult destroy(CUlinkState state) {
    if (!handle_is(state, HANDLE_LINK)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    free(state->text);
    free(state->image);
    handle_end(state);
    return CUDA_SUCCESS;
}

#define IGNORE_OPTIONS (void)count, (void)options, (void)values

API(cuLinkCreate, (unsigned int count, CUjit_option *options, void **values, CUlinkState *state),
    (IGNORE_OPTIONS, LOCKED(create(state))))
API(cuLinkCreate_v2, (unsigned int count, CUjit_option *options, void **values, CUlinkState *state),
    (IGNORE_OPTIONS, LOCKED(create(state))))
API(cuLinkAddData,
    (CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count,
     CUjit_option *options, void **values),
    (IGNORE_OPTIONS, (void)name, LOCKED(add(state, type, data, size))))
API(cuLinkAddData_v2,
    (CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count,
     CUjit_option *options, void **values),
    (IGNORE_OPTIONS, (void)name, LOCKED(add(state, type, data, size))))
API(cuLinkAddFile,
    (CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options,
     void **values),
    (IGNORE_OPTIONS, LOCKED(add_file(state, type, path))))
API(cuLinkAddFile_v2,
    (CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options,
     void **values),
    (IGNORE_OPTIONS, LOCKED(add_file(state, type, path))))
API(cuLinkComplete, (CUlinkState state, void **image, size_t *size), LOCKED(complete(state, image, size)))
API(cuLinkDestroy, (CUlinkState state), LOCKED(destroy(state)))
