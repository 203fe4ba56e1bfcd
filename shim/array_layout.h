/* array_layout.h: what an array takes of a GPU.
 *
 * No driver tells: it answers for arrays with deferred mapping alone. So this is what one was seen to do; the 123
 * shapes of tests/vectors/arrays.json come out to the byte. Elements do not lie row by row, but in blocks of which the
 * smallest has 64 bytes x 8 rows. Up to 16 of these are one block: as deep as the array is (at most 16, in powers of
 * two), and then as high as it is. Each dimension is rounded up to whole blocks. A layer of a layered array, a face of
 * a cube map and a level of a mipmapped array are arrays by themselves, side by side.
 */
#ifndef GPUSHARE_ARRAY_LAYOUT_H
#define GPUSHARE_ARRAY_LAYOUT_H

#include <stdint.h>

#include "cuda_abi.h"

enum { GS_ARRAY_ROW = 64, GS_ARRAY_ROWS = 8, GS_ARRAY_BLOCK = 16, GS_ARRAY_LEVELS = 32 };

static inline uint64_t gs_array_times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t gs_array_up(uint64_t n, uint64_t step) {
    return n > UINT64_MAX - step ? UINT64_MAX : (n + step - 1) / step * step;
}

/* The smallest power of two that is not below n, at most `most`, which is one. */
static inline uint64_t gs_array_extent(uint64_t n, uint64_t most) {
    uint64_t extent = 1;
    while (extent < n && extent < most)
        extent *= 2;
    return extent;
}

static inline uint64_t gs_array_dimension(uint64_t whole, unsigned level) {
    return whole >> level != 0 ? whole >> level : 1;
}

static inline uint64_t gs_array_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, uint64_t element, unsigned level) {
    int layered = (array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t width = gs_array_dimension(array->Width, level), height = gs_array_dimension(array->Height, level);
    uint64_t depth = layered ? 1 : gs_array_dimension(array->Depth, level);
    uint64_t layers = layered ? gs_array_dimension(array->Depth, 0) : 1;
    uint64_t deep = gs_array_extent(depth, GS_ARRAY_BLOCK);
    uint64_t high = gs_array_extent(gs_array_up(height, GS_ARRAY_ROWS) / GS_ARRAY_ROWS, GS_ARRAY_BLOCK / deep);
    uint64_t row = gs_array_up(gs_array_times(width, element), GS_ARRAY_ROW);
    uint64_t slice = gs_array_times(row, gs_array_up(height, GS_ARRAY_ROWS * high));
    return gs_array_times(gs_array_times(slice, gs_array_up(depth, deep)), layers);
}

/* Bytes of an array with memory of its own, before the driver rounds to its blocks; UINT64_MAX: too many to count.
 * `element` is the bytes of all channels of one place; an array that is not mipmapped has one level. */
static inline uint64_t gs_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, uint64_t element, unsigned levels) {
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels && level < GS_ARRAY_LEVELS; level++)
        if (__builtin_add_overflow(bytes, gs_array_level_bytes(array, element, level), &bytes))
            return UINT64_MAX;
    return bytes;
}

#endif
