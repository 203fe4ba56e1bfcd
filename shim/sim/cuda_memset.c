/* cuda_memset.c: fills memory with a value of one, two or four bytes, in a line or in rows. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_operations.h"
#include "cuda_stream.h"

#include <string.h>

struct fill {
    CUdeviceptr target;
    size_t pitch, width, height; /* width in values */
    unsigned int value;
    unsigned int bytes; /* a value */
};

static CUresult check(const struct fill *fill) {
    CUcontext context;
    size_t width, last;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || fill->width == 0 || fill->height == 0) {
        return result;
    }
    if (__builtin_mul_overflow(fill->width, fill->bytes, &width) ||
        __builtin_mul_overflow(fill->pitch, fill->height - 1, &last) || __builtin_add_overflow(last, width, &last) ||
        fill->target % fill->bytes != 0 || (fill->height > 1 && fill->pitch < width)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return memory_covers(fill->target, last) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void fill_row(char *row, const struct fill *fill) {
    if (fill->bytes == 1) {
        memset(row, (int)fill->value, fill->width);
        return;
    }
    for (size_t index = 0; index < fill->width; index++) {
        memcpy(row + index * fill->bytes, &fill->value, fill->bytes); /* little-endian, as the GPU is */
    }
}

static CUresult capture_fill(const struct fill *fill, CUstream stream) {
    struct operation operation = {
        .type = CU_GRAPH_NODE_TYPE_MEMSET,
        .fill = {fill->target, fill->pitch, fill->value, fill->bytes, fill->width, fill->height}};
    return capture_add(stream, &operation);
}

static CUresult fill_memory(struct fill fill, CUstream stream) {
    if (capture_concerns(stream)) {
        return capture_fill(&fill, stream);
    }
    CUresult result = stream_enter(stream);
    if (result == CUDA_SUCCESS) {
        result = LOCKED(check(&fill));
    }
    for (size_t row = 0; result == CUDA_SUCCESS && row < fill.height; row++) {
        fill_row((char *)(uintptr_t)fill.target + row * fill.pitch, &fill);
    }
    return result;
}

CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS *fill, CUstream stream) {
    return fill_memory((struct fill){fill->dst, fill->pitch, fill->width, fill->height, fill->value, fill->elementSize},
                       stream);
}

#define LINE(bytes_) fill_memory((struct fill){target, 0, count, 1, value, bytes_}, stream)
#define ROWS(bytes_) fill_memory((struct fill){target, pitch, width, height, value, bytes_}, stream)

#define MEMSETS(bits, type)                                                                                            \
    CUresult cuMemsetD##bits(CUdeviceptr_v1 target, type value, unsigned int count) {                                  \
        ENTER(cuMemsetD##bits);                                                                                        \
        CUstream stream = NULL;                                                                                        \
        return LINE(bits / 8);                                                                                         \
    }                                                                                                                  \
    API_TWIN(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr target, type value, size_t count), ({                           \
                 CUstream stream = NULL;                                                                               \
                 LINE(bits / 8);                                                                                       \
             }))                                                                                                       \
    API_TWIN(cuMemsetD##bits##Async, _ptsz, (CUdeviceptr target, type value, size_t count, CUstream stream),           \
             LINE(bits / 8))                                                                                           \
    API_TWIN(cuMemsetD2D##bits##_v2, _ptds,                                                                            \
             (CUdeviceptr target, size_t pitch, type value, size_t width, size_t height), ({                           \
                 CUstream stream = NULL;                                                                               \
                 ROWS(bits / 8);                                                                                       \
             }))                                                                                                       \
    API_TWIN(cuMemsetD2D##bits##Async, _ptsz,                                                                          \
             (CUdeviceptr target, size_t pitch, type value, size_t width, size_t height, CUstream stream),             \
             ROWS(bits / 8))

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned int)
