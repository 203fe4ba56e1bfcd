/* common_model.h: the cost model, what a real GPU would take for what a program asks.
 *
 * Everything that is a guess about NVIDIA's driver and not part of its interface stands here and nowhere else, so that
 * a measurement on a real GPU corrects one line. The values are for a data-centre GPU of compute capability 9.0.
 */
#ifndef GPUSHARE_SIM_MODEL_H
#define GPUSHARE_SIM_MODEL_H

#include "common_settings.h"

/* The unit in which a GPU's memory is handed out; also the VMM granularity. */
#define MODEL_BLOCK_BYTES (2ull << 20)

/* An allocation of up to so much shares a block with others of its context; a larger one has blocks of its own. */
#define MODEL_SMALL_LIMIT (1ull << 20)

/* Addresses of shared blocks are multiples of this, as cuMemAlloc promises; sizes are rounded up to it. */
#define MODEL_SMALL_GRANULE 512ull

/* A row of a pitched allocation. */
#define MODEL_PITCH_ALIGNMENT 512ull

/* A stream-ordered pool takes memory in steps of this, and gives it back in the pieces in which it took it. */
#define MODEL_POOL_STEP (32ull << 20)

/* What the first module of a context adds to it, where modules=lazy. */
#define MODEL_MODULE_BYTES (64ull << 20)

/* A mapping of an array starts at multiples of this (what cuArrayGetMemoryRequirements says). */
#define MODEL_ARRAY_ALIGNMENT (64ull << 10)

/* How much address space there is for each byte of a GPU: room for holes, as in a GPU's 49-bit space. */
#define MODEL_ADDRESS_FACTOR 4ull

/* What a kernel keeps the GPU computing: so long in any case, and so long for each of its threads. Nothing waits for
 * it; NVML shows it. */
#define MODEL_KERNEL_NS 100000ull
#define MODEL_THREAD_NS 10ull

/* Work of one process that waits on the GPU is never more than this: a real launch would block before. */
#define MODEL_QUEUE_NS 1000000000ull

static inline uint64_t model_kernel_ns(uint64_t threads) {
    uint64_t ns =
        threads < MODEL_QUEUE_NS / MODEL_THREAD_NS ? MODEL_KERNEL_NS + threads * MODEL_THREAD_NS : MODEL_QUEUE_NS;
    return ns < MODEL_QUEUE_NS ? ns : MODEL_QUEUE_NS;
}

static inline uint64_t model_round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Physical bytes that an allocation with blocks of its own takes. */
static inline uint64_t model_blocks_bytes(uint64_t size) {
    return model_round_up(size, MODEL_BLOCK_BYTES);
}

/* Bytes that an allocation takes inside a shared block or a pool. */
static inline uint64_t model_small_bytes(uint64_t size) {
    return model_round_up(size, MODEL_SMALL_GRANULE);
}

/* By how much a pool grows when `size` bytes do not fit into it. */
static inline uint64_t model_pool_growth(uint64_t size) {
    uint64_t step = SIM_IS(pool_step, 2Mi)    ? MODEL_BLOCK_BYTES
                    : SIM_IS(pool_step, 64Mi) ? 2 * MODEL_POOL_STEP
                                              : MODEL_POOL_STEP;
    return model_round_up(size, step);
}

/* Blocks by which the graph pool of a device grows when `blocks` more are needed. */
static inline uint64_t model_graph_growth(uint64_t blocks) {
    return SIM_IS(graph_step, 32Mi) ? model_round_up(blocks, 16) : blocks;
}

static inline uint64_t model_pitch(uint64_t width) {
    return model_round_up(width, MODEL_PITCH_ALIGNMENT);
}

#endif
