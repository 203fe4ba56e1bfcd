/* cuda_managed.c: advice about managed memory. Host and device memory are the same here, so nothing moves: advice is
 * checked, kept for each part of an allocation, and returned on request. */
#define _GNU_SOURCE
#include "cuda_managed.h"

#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_stream.h"

#include <stdlib.h>
#include <string.h>

#define CPU_DEVICE     (-1)
#define INVALID_DEVICE (-2)
#define HOST_BIT       31

/* What was said about a part of an allocation, up to the next. The first begins where the allocation does. */
struct advice {
    CUdeviceptr start;
    bool read_mostly;
    CUmemLocation preferred, prefetched; /* type INVALID: none */
    uint32_t accessed_by;                /* devices as bits, and HOST_BIT */
    struct advice *next;
};

void advice_end(struct advice *advice) {
    for (struct advice *next; advice != NULL; advice = next) {
        next = advice->next;
        free(advice);
    }
}

/* Makes an address the start of a part. */
static bool split(struct memory *memory, CUdeviceptr at) {
    if (memory->advice == NULL) {
        memory->advice = calloc(1, sizeof *memory->advice);
        if (memory->advice == NULL) {
            return false;
        }
        memory->advice->start = memory->address;
    }
    struct advice *part = memory->advice;
    while (part->next != NULL && part->next->start <= at) {
        part = part->next;
    }
    if (part->start == at || at == memory->address + memory->size) {
        return true;
    }
    struct advice *upper = malloc(sizeof *upper);
    if (upper == NULL) {
        return false;
    }
    *upper = *part;
    upper->start = at;
    part->next = upper;
    return true;
}

static struct memory *find_managed(CUdeviceptr pointer, size_t count) {
    struct memory *memory = memory_at(pointer);
    return memory == NULL || !memory_is_managed(memory) || count == 0 ||
                   count > memory->size - (pointer - memory->address)
               ? NULL
               : memory;
}

static CUmemLocation location_of(CUdevice device) {
    return device == CPU_DEVICE ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0}
                                : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

static CUresult check_location(CUmemLocation location) {
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_get(location.id) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static void note(struct advice *part, CUmem_advise advice, CUmemLocation location) {
    uint32_t bit = 1u << (location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : HOST_BIT);
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        part->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        part->preferred = location;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        part->preferred = (CUmemLocation){CU_MEM_LOCATION_TYPE_INVALID, 0};
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        part->accessed_by |= bit;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        part->accessed_by &= ~bit;
        break;
    }
}

static CUresult advise(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUmemLocation location) {
    struct memory *memory = find_managed(pointer, count);
    if (memory == NULL || advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool needs_place = advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
                       advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    CUresult result = needs_place ? check_location(location) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!split(memory, pointer) || !split(memory, pointer + count)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (struct advice *part = memory->advice; part != NULL && part->start < pointer + count; part = part->next) {
        if (part->start >= pointer) {
            note(part, advice, location);
        }
    }
    return CUDA_SUCCESS;
}

API(cuMemAdvise, (CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device),
    LOCKED(advise(pointer, count, advice, location_of(device))))
API(cuMemAdvise_v2, (CUdeviceptr pointer, size_t count, CUmem_advise advice, CUmemLocation location),
    LOCKED(advise(pointer, count, advice, location)))

static CUresult note_prefetch(CUdeviceptr pointer, size_t count, CUmemLocation location) {
    struct memory *memory = find_managed(pointer, count);
    CUresult result = memory == NULL ? CUDA_ERROR_INVALID_VALUE : check_location(location);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!split(memory, pointer) || !split(memory, pointer + count)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (struct advice *part = memory->advice; part != NULL && part->start < pointer + count; part = part->next) {
        if (part->start >= pointer) {
            part->prefetched = location;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult prefetch(CUdeviceptr pointer, size_t count, CUmemLocation location, CUstream stream) {
    CUresult result = LOCKED(note_prefetch(pointer, count, location));
    return result != CUDA_SUCCESS ? result : stream_enter(stream);
}

API_TWIN(cuMemPrefetchAsync, _ptsz, (CUdeviceptr pointer, size_t count, CUdevice device, CUstream stream),
         prefetch(pointer, count, location_of(device), stream))
API_TWIN(cuMemPrefetchAsync_v2, _ptsz,
         (CUdeviceptr pointer, size_t count, CUmemLocation location, unsigned int flags, CUstream stream),
         flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, count, location, stream))

static CUresult attach(CUstream stream, CUdeviceptr pointer, unsigned int flags) {
    const struct memory *memory = memory_at(pointer);
    (void)stream;
    if (memory == NULL || !memory_is_managed(memory) || memory->address != pointer ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API_TWIN(cuStreamAttachMemAsync, _ptsz, (CUstream stream, CUdeviceptr pointer, size_t length, unsigned int flags),
         ((void)length, LOCKED(attach(stream, pointer, flags))))

/* ---- many ranges at once -------------------------------------------------------------------------- */

/* Each location is for the ranges from its index to the next one's. */
static CUresult check_batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count, unsigned long long flags) {
    if (pointers == NULL || sizes == NULL || count == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < count; index++) {
        if (find_managed(pointers[index], sizes[index]) == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult note_batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count,
                           const CUmemLocation *locations, const size_t *starts, size_t location_count,
                           unsigned long long flags) {
    CUresult result = check_batch(pointers, sizes, count, flags);
    if (result == CUDA_SUCCESS &&
        (locations == NULL || starts == NULL || location_count == 0 || location_count > count || starts[0] != 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 1; result == CUDA_SUCCESS && index < location_count; index++) {
        result = starts[index] <= starts[index - 1] || starts[index] >= count ? CUDA_ERROR_INVALID_VALUE : result;
    }
    for (size_t index = 0, at = 0; result == CUDA_SUCCESS && index < count; index++) {
        at += at + 1 < location_count && index >= starts[at + 1];
        result = note_prefetch(pointers[index], sizes[index], locations[at]);
    }
    return result;
}

static CUresult prefetch_batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count,
                               const CUmemLocation *locations, const size_t *starts, size_t location_count,
                               unsigned long long flags, CUstream stream) {
    CUresult result = LOCKED(note_batch(pointers, sizes, count, locations, starts, location_count, flags));
    return result != CUDA_SUCCESS ? result : stream_enter(stream);
}

/* What is discarded has no defined content afterwards; here it keeps the old one. */
static CUresult discard_batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count, unsigned long long flags,
                              CUstream stream) {
    CUresult result = LOCKED(check_batch(pointers, sizes, count, flags));
    return result != CUDA_SUCCESS ? result : stream_enter(stream);
}

API_TWIN(cuMemPrefetchBatchAsync, _ptsz,
         (CUdeviceptr * pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *starts,
          size_t location_count, unsigned long long flags, CUstream stream),
         prefetch_batch(pointers, sizes, count, locations, starts, location_count, flags, stream))
API_TWIN(cuMemDiscardBatchAsync, _ptsz,
         (CUdeviceptr * pointers, size_t *sizes, size_t count, unsigned long long flags, CUstream stream),
         discard_batch(pointers, sizes, count, flags, stream))
API_TWIN(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
         (CUdeviceptr * pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *starts,
          size_t location_count, unsigned long long flags, CUstream stream),
         prefetch_batch(pointers, sizes, count, locations, starts, location_count, flags, stream))

/* ---- asking --------------------------------------------------------------------------------------- */

static bool same(CUmemLocation one, CUmemLocation other) {
    return one.type == other.type && (one.type == CU_MEM_LOCATION_TYPE_INVALID || one.id == other.id);
}

/* What holds for all of a range: differing locations are none. */
static struct advice common(const struct memory *memory, CUdeviceptr pointer, size_t count) {
    const CUmemLocation none = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    struct advice answer = {0};
    bool first = true;
    for (const struct advice *part = memory->advice; part != NULL && part->start < pointer + count; part = part->next) {
        if (part->next != NULL && part->next->start <= pointer) {
            continue;
        }
        if (first) {
            answer = *part;
            first = false;
        }
        answer.read_mostly &= part->read_mostly;
        answer.accessed_by &= part->accessed_by;
        answer.preferred = same(answer.preferred, part->preferred) ? answer.preferred : none;
        answer.prefetched = same(answer.prefetched, part->prefetched) ? answer.prefetched : none;
    }
    return answer;
}

/* In the numbers of the time when a place was a device or the CPU. */
static int device_of(CUmemLocation location) {
    return location.type == CU_MEM_LOCATION_TYPE_INVALID  ? INVALID_DEVICE
           : location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id
                                                          : CPU_DEVICE;
}

static void list_accessors(uint32_t accessed_by, int *list, size_t room) {
    size_t count = 0;
    if ((accessed_by & 1u << HOST_BIT) != 0 && count < room) {
        list[count++] = CPU_DEVICE;
    }
    for (int device = 0; device < HOST_BIT && count < room; device++) {
        if ((accessed_by & 1u << device) != 0) {
            list[count++] = device;
        }
    }
    while (count < room) {
        list[count++] = INVALID_DEVICE;
    }
}

static CUresult range_attribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer,
                                size_t count) {
    const struct memory *memory = find_managed(pointer, count);
    if (memory == NULL || data == NULL || size == 0 || size % sizeof(int) != 0 ||
        (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size != sizeof(int))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct advice advice = common(memory, pointer, count);
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *(int *)data = advice.read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *(int *)data = device_of(advice.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_accessors(advice.accessed_by, data, size / sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *(int *)data = device_of(advice.prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *(int *)data = (int)advice.preferred.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        *(int *)data = advice.preferred.type == CU_MEM_LOCATION_TYPE_INVALID ? INVALID_DEVICE : advice.preferred.id;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *(int *)data = (int)advice.prefetched.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *(int *)data = advice.prefetched.type == CU_MEM_LOCATION_TYPE_INVALID ? INVALID_DEVICE : advice.prefetched.id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult range_attributes(void **data, const size_t *sizes, const CUmem_range_attribute *attributes,
                                 size_t attribute_count, CUdeviceptr pointer, size_t count) {
    if (data == NULL || sizes == NULL || attributes == NULL || attribute_count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < attribute_count; index++) {
        CUresult result = range_attribute(data[index], sizes[index], attributes[index], pointer, count);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API(cuMemRangeGetAttribute,
    (void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer, size_t count),
    LOCKED(range_attribute(data, size, attribute, pointer, count)))
API(cuMemRangeGetAttributes,
    (void **data, size_t *sizes, CUmem_range_attribute *attributes, size_t attribute_count, CUdeviceptr pointer,
     size_t count),
    LOCKED(range_attributes(data, sizes, attributes, attribute_count, pointer, count)))
