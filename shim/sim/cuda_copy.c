/* cuda_copy.c: copies of all kinds, with real bytes.
 *
 * Every copy is turned into one of boxes: rows of bytes, with a pitch and a layer stride on either side. The device
 * sides are checked under the lock against what is allocated; the bytes move without it.
 */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_array.h"
#include "cuda_capture.h"
#include "cuda_memory.h"
#include "cuda_operations.h"
#include "cuda_stream.h"

#include <string.h>

/* One side of a copy. `start` is the first byte that the copy touches. */
struct side {
    char *start;
    size_t pitch, layer;
};

struct box {
    struct side target, source;
    size_t width, height, depth;
};

enum place { PLACE_HOST, PLACE_DEVICE, PLACE_ANY };

/* Bytes from the first to the last that a side touches. */
static bool extent(const struct box *box, const struct side *side, size_t *bytes) {
    size_t rows, layers;
    return !__builtin_mul_overflow(side->pitch, box->height - 1, &rows) &&
           !__builtin_mul_overflow(side->layer, box->depth - 1, &layers) &&
           !__builtin_add_overflow(rows, layers, bytes) && !__builtin_add_overflow(*bytes, box->width, bytes);
}

/* A device address must be allocated; one that may be either is host memory if the driver does not know it. */
static bool check_side(const struct box *box, const struct side *side, enum place place) {
    size_t bytes;
    if (!extent(box, side, &bytes)) {
        return false;
    }
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)side->start;
    if (place == PLACE_HOST || (place == PLACE_ANY && memory_at(address) == NULL)) {
        return side->start != NULL;
    }
    return memory_covers(address, bytes);
}

static bool empty(const struct box *box) {
    return box->width == 0 || box->height == 0 || box->depth == 0;
}

static void move(const struct box *box) {
    for (size_t z = 0; z < box->depth; z++) {
        for (size_t y = 0; y < box->height; y++) {
            memmove(box->target.start + z * box->target.layer + y * box->target.pitch,
                    box->source.start + z * box->source.layer + y * box->source.pitch, box->width);
        }
    }
}

static CUresult check_box(const struct box *box, enum place target, enum place source) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || empty(box)) {
        return result;
    }
    return check_side(box, &box->target, target) && check_side(box, &box->source, source) ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_INVALID_VALUE;
}

/* A copy as a node: a box whose arrays and offsets have become addresses. */
static CUresult capture_box(const struct box *box, enum place target, enum place source, CUstream stream) {
    static const CUmemorytype types[] = {
        [PLACE_HOST] = CU_MEMORYTYPE_HOST, [PLACE_DEVICE] = CU_MEMORYTYPE_DEVICE, [PLACE_ANY] = CU_MEMORYTYPE_UNIFIED};
    const struct side *to = &box->target, *from = &box->source;
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                                  .copy = {.srcMemoryType = types[source],
                                           .srcHost = from->start,
                                           .srcDevice = (CUdeviceptr)(uintptr_t)from->start,
                                           .srcPitch = from->pitch,
                                           .srcHeight = from->pitch == 0 ? 0 : from->layer / from->pitch,
                                           .dstMemoryType = types[target],
                                           .dstHost = to->start,
                                           .dstDevice = (CUdeviceptr)(uintptr_t)to->start,
                                           .dstPitch = to->pitch,
                                           .dstHeight = to->pitch == 0 ? 0 : to->layer / to->pitch,
                                           .WidthInBytes = box->width,
                                           .Height = box->height,
                                           .Depth = box->depth}};
    return capture_add(stream, &operation);
}

static CUresult copy_box(const struct box *box, enum place target, enum place source, CUstream stream) {
    if (capture_concerns(stream)) {
        return capture_box(box, target, source, stream);
    }
    CUresult result = stream_enter(stream);
    if (result == CUDA_SUCCESS) {
        result = LOCKED(check_box(box, target, source));
    }
    if (result == CUDA_SUCCESS && !empty(box)) {
        move(box);
    }
    return result;
}

static CUresult copy(uint64_t target, enum place target_place, uint64_t source, enum place source_place, size_t size,
                     CUstream stream) {
    struct box box = {{(char *)(uintptr_t)target, 0, 0}, {(char *)(uintptr_t)source, 0, 0}, size, 1, 1};
    return copy_box(&box, target_place, source_place, stream);
}

#define HOST(pointer)   (uint64_t)(uintptr_t)(pointer), PLACE_HOST
#define DEVICE(pointer) (uint64_t)(pointer), PLACE_DEVICE
#define ANY(pointer)    (uint64_t)(pointer), PLACE_ANY

API_TWIN(cuMemcpy, _ptds, (CUdeviceptr target, CUdeviceptr source, size_t size),
         copy(ANY(target), ANY(source), size, NULL))
API_TWIN(cuMemcpyAsync, _ptsz, (CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream),
         copy(ANY(target), ANY(source), size, stream))
API_TWIN(cuMemcpyPeer, _ptds,
         (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context, size_t size),
         ((void)target_context, (void)source_context, copy(DEVICE(target), DEVICE(source), size, NULL)))
API_TWIN(cuMemcpyPeerAsync, _ptsz,
         (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context, size_t size,
          CUstream stream),
         ((void)target_context, (void)source_context, copy(DEVICE(target), DEVICE(source), size, stream)))
API(cuMemcpyHtoD, (CUdeviceptr_v1 target, const void *source, unsigned int size),
    copy(DEVICE(target), HOST(source), size, NULL))
API_TWIN(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr target, const void *source, size_t size),
         copy(DEVICE(target), HOST(source), size, NULL))
API(cuMemcpyHtoDAsync, (CUdeviceptr_v1 target, const void *source, unsigned int size, CUstream stream),
    copy(DEVICE(target), HOST(source), size, stream))
API_TWIN(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr target, const void *source, size_t size, CUstream stream),
         copy(DEVICE(target), HOST(source), size, stream))
API(cuMemcpyDtoH, (void *target, CUdeviceptr_v1 source, unsigned int size),
    copy(HOST(target), DEVICE(source), size, NULL))
API_TWIN(cuMemcpyDtoH_v2, _ptds, (void *target, CUdeviceptr source, size_t size),
         copy(HOST(target), DEVICE(source), size, NULL))
API(cuMemcpyDtoHAsync, (void *target, CUdeviceptr_v1 source, unsigned int size, CUstream stream),
    copy(HOST(target), DEVICE(source), size, stream))
API_TWIN(cuMemcpyDtoHAsync_v2, _ptsz, (void *target, CUdeviceptr source, size_t size, CUstream stream),
         copy(HOST(target), DEVICE(source), size, stream))
API(cuMemcpyDtoD, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned int size),
    copy(DEVICE(target), DEVICE(source), size, NULL))
API_TWIN(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr target, CUdeviceptr source, size_t size),
         copy(DEVICE(target), DEVICE(source), size, NULL))
API(cuMemcpyDtoDAsync, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned int size, CUstream stream),
    copy(DEVICE(target), DEVICE(source), size, stream))
API_TWIN(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream),
         copy(DEVICE(target), DEVICE(source), size, stream))

/* Copies to and from an array count bytes from its first row. The array's bytes are checked here, so that what is
 * left to copy() is a plain address. */
static CUresult array_bytes(CUarray array, size_t offset, size_t size, uint64_t *address) {
    struct array_view view;
    CUresult result = array_view(array, &view);
    if (result == CUDA_SUCCESS && (offset > view.bytes || size > view.bytes - offset)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *address = (uint64_t)(uintptr_t)view.start + offset;
    }
    return result;
}

static CUresult copy_to_array(CUarray array, size_t offset, uint64_t source, enum place place, size_t size,
                              CUstream stream) {
    uint64_t address;
    CUresult result = LOCKED(array_bytes(array, offset, size, &address));
    return result != CUDA_SUCCESS ? result : copy(address, PLACE_HOST, source, place, size, stream);
}

static CUresult copy_from_array(uint64_t target, enum place place, CUarray array, size_t offset, size_t size,
                                CUstream stream) {
    uint64_t address;
    CUresult result = LOCKED(array_bytes(array, offset, size, &address));
    return result != CUDA_SUCCESS ? result : copy(target, place, address, PLACE_HOST, size, stream);
}

static CUresult copy_arrays(CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t size) {
    uint64_t address;
    CUresult result = LOCKED(array_bytes(source, source_offset, size, &address));
    return result != CUDA_SUCCESS ? result : copy_to_array(target, target_offset, address, PLACE_HOST, size, NULL);
}

API_TWIN(cuMemcpyDtoA_v2, _ptds, (CUarray target, size_t offset, CUdeviceptr source, size_t size),
         copy_to_array(target, offset, DEVICE(source), size, NULL))
API_TWIN(cuMemcpyAtoD_v2, _ptds, (CUdeviceptr target, CUarray source, size_t offset, size_t size),
         copy_from_array(DEVICE(target), source, offset, size, NULL))
API_TWIN(cuMemcpyHtoA_v2, _ptds, (CUarray target, size_t offset, const void *source, size_t size),
         copy_to_array(target, offset, HOST(source), size, NULL))
API_TWIN(cuMemcpyHtoAAsync_v2, _ptsz, (CUarray target, size_t offset, const void *source, size_t size, CUstream stream),
         copy_to_array(target, offset, HOST(source), size, stream))
API_TWIN(cuMemcpyAtoH_v2, _ptds, (void *target, CUarray source, size_t offset, size_t size),
         copy_from_array(HOST(target), source, offset, size, NULL))
API_TWIN(cuMemcpyAtoHAsync_v2, _ptsz, (void *target, CUarray source, size_t offset, size_t size, CUstream stream),
         copy_from_array(HOST(target), source, offset, size, stream))
API_TWIN(cuMemcpyAtoA_v2, _ptds,
         (CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t size),
         copy_arrays(target, target_offset, source, source_offset, size))

/* One side of a 2D or 3D copy as the program describes it. */
struct operand {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

/* The side, its place, and whether the region lies inside an array. */
static CUresult open_operand(const struct operand *operand, const struct box *box, struct side *side,
                             enum place *place) {
    struct array_view view;
    size_t pitch = operand->pitch != 0 ? operand->pitch : operand->x + box->width;
    size_t height = operand->height != 0 ? operand->height : operand->y + box->height;
    char *base;
    CUresult result;
    switch (operand->type) {
    case CU_MEMORYTYPE_HOST:
        base = (char *)(uintptr_t)operand->host;
        *place = PLACE_HOST;
        break;
    case CU_MEMORYTYPE_DEVICE:
        base = (char *)(uintptr_t)operand->device;
        *place = PLACE_DEVICE;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        base = (char *)(uintptr_t)operand->device;
        *place = PLACE_ANY;
        break;
    case CU_MEMORYTYPE_ARRAY:
        result = array_view(operand->array, &view);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (operand->x + box->width > view.pitch || operand->y + box->height > view.height ||
            operand->z + box->depth > view.depth) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        base = view.start;
        pitch = view.pitch;
        height = view.height;
        *place = PLACE_HOST; /* checked just now */
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pitch < operand->x + box->width || base == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *side = (struct side){.start = base + operand->z * pitch * height + operand->y * pitch + operand->x,
                          .pitch = pitch,
                          .layer = pitch * height};
    return CUDA_SUCCESS;
}

static CUresult open_operands(const struct operand *target, const struct operand *source, struct box *box,
                              enum place *target_place, enum place *source_place) {
    CUresult result = open_operand(target, box, &box->target, target_place);
    return result != CUDA_SUCCESS ? result : open_operand(source, box, &box->source, source_place);
}

static CUresult copy_operands(const struct operand *target, const struct operand *source, size_t width, size_t height,
                              size_t depth, CUstream stream) {
    struct box box = {.width = width, .height = height, .depth = depth};
    enum place target_place, source_place;
    if (empty(&box)) {
        return stream_enter(stream);
    }
    CUresult result = LOCKED(open_operands(target, source, &box, &target_place, &source_place));
    return result != CUDA_SUCCESS ? result : copy_box(&box, target_place, source_place, stream);
}

#define OPERAND(copy, side)                                                                                            \
    .type = (copy)->side##MemoryType, .host = (copy)->side##Host, .device = (copy)->side##Device,                      \
    .array = (copy)->side##Array, .x = (copy)->side##XInBytes, .y = (copy)->side##Y, .pitch = (copy)->side##Pitch
#define OPERAND_2D(copy, side) {OPERAND(copy, side)}
#define OPERAND_3D(copy, side) {OPERAND(copy, side), .z = (copy)->side##Z, .height = (copy)->side##Height}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream) {
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operand target = OPERAND_2D(copy, dst), source = OPERAND_2D(copy, src);
    return copy_operands(&target, &source, copy->WidthInBytes, copy->Height, 1, stream);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *copy, CUstream stream) {
    if (copy == NULL || copy->srcLOD != 0 || copy->dstLOD != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operand target = OPERAND_3D(copy, dst), source = OPERAND_3D(copy, src);
    return copy_operands(&target, &source, copy->WidthInBytes, copy->Height, copy->Depth, stream);
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) {
    if (copy == NULL || copy->srcLOD != 0 || copy->dstLOD != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operand target = OPERAND_3D(copy, dst), source = OPERAND_3D(copy, src);
    return copy_operands(&target, &source, copy->WidthInBytes, copy->Height, copy->Depth, stream);
}

CUresult run_copy(const CUDA_MEMCPY3D *copy, CUstream stream) {
    return copy_3d(copy, stream);
}

API_TWIN(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *description), copy_2d(description, NULL))
API_TWIN(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *description), copy_2d(description, NULL))
API_TWIN(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *description, CUstream stream), copy_2d(description, stream))
API_TWIN(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D *description), copy_3d(description, NULL))
API_TWIN(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D *description, CUstream stream), copy_3d(description, stream))
API_TWIN(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER *description), copy_3d_peer(description, NULL))
API_TWIN(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER *description, CUstream stream),
         copy_3d_peer(description, stream))

/* A batch stops at the first copy that is wrong; the older form says which. */
static CUresult copy_batch(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count,
                           const CUmemcpyAttributes *attributes, const size_t *indices, size_t attribute_count,
                           size_t *failed, CUstream stream) {
    if (targets == NULL || sources == NULL || sizes == NULL || count == 0 || attributes == NULL || indices == NULL ||
        attribute_count == 0 || attribute_count > count || stream == NULL || stream == CU_STREAM_LEGACY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < count; index++) {
        CUresult result = copy(ANY(targets[index]), ANY(sources[index]), sizes[index], stream);
        if (result != CUDA_SUCCESS) {
            if (failed != NULL) {
                *failed = index;
            }
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API_TWIN(cuMemcpyBatchAsync, _ptsz,
         (CUdeviceptr * targets, CUdeviceptr *sources, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
          size_t *indices, size_t attribute_count, size_t *failed, CUstream stream),
         copy_batch(targets, sources, sizes, count, attributes, indices, attribute_count, failed, stream))
API_TWIN(cuMemcpyBatchAsync_v2, _ptsz,
         (CUdeviceptr * targets, CUdeviceptr *sources, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
          size_t *indices, size_t attribute_count, CUstream stream),
         copy_batch(targets, sources, sizes, count, attributes, indices, attribute_count, NULL, stream))
