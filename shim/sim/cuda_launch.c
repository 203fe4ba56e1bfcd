/* cuda_launch.c: launches, which are checked as a driver checks them and are not executed; and occupancy. */
#define _GNU_SOURCE
#include "common_model.h"
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_capture.h"
#include "cuda_context.h"
#include "cuda_module.h"
#include "cuda_operations.h"
#include "cuda_stream.h"

#define MOST_THREADS      1024
#define MOST_RESIDENT     2048 /* threads of a multiprocessor */
#define MOST_BLOCKS       32
#define MULTIPROCESSORS   132
#define SHARED_PER_BLOCK  232448
#define SHARED_PER_SM     233472
#define SHARED_PER_SYSTEM 1024 /* of each block, for the system */
#define LARGEST_CLUSTER   8

struct shape {
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
};

static CUresult check_shape(const struct shape *shape) {
    if (shape->grid_x == 0 || shape->grid_y == 0 || shape->grid_z == 0 || shape->block_x == 0 || shape->block_y == 0 ||
        shape->block_z == 0 || shape->grid_x > 2147483647u || shape->grid_y > 65535 || shape->grid_z > 65535 ||
        shape->block_x > MOST_THREADS || shape->block_y > MOST_THREADS || shape->block_z > 64 ||
        (uint64_t)shape->block_x * shape->block_y * shape->block_z > MOST_THREADS || shape->shared > SHARED_PER_BLOCK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult check_function(CUfunction handle, unsigned int shared) {
    CUcontext context;
    CUfunction function;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = function_of(handle, &function);
    }
    if (result == CUDA_SUCCESS && (int)shared > function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    return result != CUDA_SUCCESS ? result : context_launch(context);
}

static CUresult capture_launch(CUfunction function, const struct shape *shape, CUstream stream) {
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_KERNEL,
                                  .kernel = {.func = function,
                                             .gridDimX = shape->grid_x,
                                             .gridDimY = shape->grid_y,
                                             .gridDimZ = shape->grid_z,
                                             .blockDimX = shape->block_x,
                                             .blockDimY = shape->block_y,
                                             .blockDimZ = shape->block_z,
                                             .sharedMemBytes = shape->shared}};
    return capture_add(stream, &operation);
}

static uint64_t threads_of(const struct shape *shape) {
    /* The largest grid has 2^63 blocks: enough is enough. */
    uint64_t blocks = (uint64_t)shape->grid_x * shape->grid_y * shape->grid_z;
    uint64_t block = (uint64_t)shape->block_x * shape->block_y * shape->block_z;
    return blocks > UINT32_MAX ? UINT32_MAX : blocks * block;
}

/* The GPU is kept computing for a while, as NVML shows. */
static CUresult compute(const struct shape *shape) {
    CUcontext context;
    struct device *device;
    CUresult result = context_current_device(&context, &device);
    if (result == CUDA_SUCCESS) {
        pool_work(device->gpu, model_kernel_ns(threads_of(shape)));
    }
    return result;
}

static CUresult launch(CUfunction function, struct shape shape, CUstream stream) {
    CUresult result = LOCKED(check_function(function, shape.shared));
    if (result == CUDA_SUCCESS) {
        result = check_shape(&shape);
    }
    if (result == CUDA_SUCCESS && capture_concerns(stream)) {
        return capture_launch(function, &shape, stream);
    }
    if (result == CUDA_SUCCESS) {
        result = stream_enter(stream);
    }
    return result != CUDA_SUCCESS ? result : LOCKED(compute(&shape));
}

CUresult run_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel, CUstream stream) {
    return launch(kernel->func != NULL ? kernel->func : (CUfunction)kernel->kern,
                  (struct shape){kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ, kernel->blockDimX,
                                 kernel->blockDimY, kernel->blockDimZ, kernel->sharedMemBytes},
                  stream);
}

API_TWIN(cuLaunchKernel, _ptsz,
         (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
          unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **params,
          void **extra),
         ((void)params, (void)extra,
          launch(function, (struct shape){grid_x, grid_y, grid_z, block_x, block_y, block_z, shared}, stream)))
API_TWIN(cuLaunchCooperativeKernel, _ptsz,
         (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
          unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **params),
         ((void)params,
          launch(function, (struct shape){grid_x, grid_y, grid_z, block_x, block_y, block_z, shared}, stream)))

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function) {
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct shape shape = {config->gridDimX,  config->gridDimY,  config->gridDimZ,      config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes};
    return launch(function, shape, config->hStream);
}

API_TWIN(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
         ((void)params, (void)extra, launch_config(config, function)))

/* Occupancy by threads, blocks and shared memory; registers never limit it. */
static int blocks_resident(int block_size, size_t shared) {
    int blocks = MOST_RESIDENT / ((block_size + 31) / 32 * 32);
    int by_shared = (int)(SHARED_PER_SM / (shared + SHARED_PER_SYSTEM));
    blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
    return blocks < by_shared ? blocks : by_shared;
}

static CUresult active_blocks(int *blocks, CUfunction function, int block_size, size_t shared) {
    CUresult result = LOCKED(check_function(function, 0));
    if (result == CUDA_SUCCESS && (blocks == NULL || block_size <= 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *blocks = block_size > MOST_THREADS || shared > SHARED_PER_BLOCK ? 0 : blocks_resident(block_size, shared);
    }
    return result;
}

static CUresult potential_block(int *min_grid, int *block_size, CUfunction function, CUoccupancyB2DSize block_to_shared,
                                size_t shared, int limit) {
    CUresult result = LOCKED(check_function(function, 0));
    if (result == CUDA_SUCCESS && (min_grid == NULL || block_size == NULL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int best = 0;
    for (int size = limit > 0 && limit < MOST_THREADS ? limit : MOST_THREADS; size > 0; size -= 32) {
        int resident = blocks_resident(size, block_to_shared != NULL ? block_to_shared(size) : shared);
        if (resident * size > best) {
            best = resident * size;
            *block_size = size;
            *min_grid = resident * MULTIPROCESSORS;
        }
    }
    return best == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction function, int block_size, size_t shared),
    active_blocks(blocks, function, block_size, shared))
API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *blocks, CUfunction function, int block_size, size_t shared, unsigned int flags),
    flags > 1 ? CUDA_ERROR_INVALID_VALUE : active_blocks(blocks, function, block_size, shared))
API(cuOccupancyMaxPotentialBlockSize,
    (int *min_grid, int *block_size, CUfunction function, CUoccupancyB2DSize block_to_shared, size_t shared, int limit),
    potential_block(min_grid, block_size, function, block_to_shared, shared, limit))
API(cuOccupancyMaxPotentialBlockSizeWithFlags,
    (int *min_grid, int *block_size, CUfunction function, CUoccupancyB2DSize block_to_shared, size_t shared, int limit,
     unsigned int flags),
    flags > 1 ? CUDA_ERROR_INVALID_VALUE
              : potential_block(min_grid, block_size, function, block_to_shared, shared, limit))

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *shared, CUfunction function, int blocks, int block_size) {
    ENTER(cuOccupancyAvailableDynamicSMemPerBlock);
    CUresult result = LOCKED(check_function(function, 0));
    if (result == CUDA_SUCCESS && (shared == NULL || blocks <= 0 || blocks > MOST_BLOCKS || block_size <= 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *shared = (size_t)(SHARED_PER_SM / blocks - SHARED_PER_SYSTEM);
    }
    return result;
}

static CUresult clusters(int *answer, CUfunction function, const CUlaunchConfig *config, int value) {
    CUresult result = LOCKED(check_function(function, 0));
    if (result == CUDA_SUCCESS && (answer == NULL || config == NULL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *answer = value;
    }
    return result;
}

API(cuOccupancyMaxPotentialClusterSize, (int *size, CUfunction function, const CUlaunchConfig *config),
    clusters(size, function, config, LARGEST_CLUSTER))
API(cuOccupancyMaxActiveClusters, (int *count, CUfunction function, const CUlaunchConfig *config),
    clusters(count, function, config, MULTIPROCESSORS / LARGEST_CLUSTER))
