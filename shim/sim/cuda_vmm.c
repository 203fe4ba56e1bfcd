/* cuda_vmm.c: virtual memory management: reserved addresses, handles of physical memory, mappings of one in the other.
 *
 * A handle's memory lives until its last release and its last unmap, and an exported descriptor keeps the bytes, as it
 * does on a real GPU; the charge is the creator's alone. A handle that may be exported has a file of its own, because
 * the file is what is exported; any other takes blocks of the arena, so that a program with tens of thousands of them
 * does not run out of descriptors.
 */
#define _GNU_SOURCE
#include "cuda_vmm.h"

#include "common_model.h"
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_context.h"
#include "cuda_handle.h"
#include "cuda_share.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct reservation {
    CUdeviceptr address;
    uint64_t size;
    struct reservation *next;
};

static struct reservation *reservations;
static struct vmm_handle *handles; /* all but those of multicast objects */

static bool aligned(uint64_t value) {
    return value % MODEL_BLOCK_BYTES == 0;
}

static bool on_device(const CUmemAllocationProp *properties) {
    return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUresult check_properties(const CUmemAllocationProp *properties) {
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUmemLocation whole = device_whole(&properties->location);
    switch (whole.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_get(whole.id) == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult granularity(size_t *result, const CUmemAllocationProp *properties) {
    CUresult checked = result == NULL ? CUDA_ERROR_INVALID_VALUE : check_properties(properties);
    if (checked == CUDA_SUCCESS) {
        *result = MODEL_BLOCK_BYTES;
    }
    return checked;
}

API(cuMemGetAllocationGranularity,
    (size_t *result, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option),
    ((void)option, granularity(result, properties)))

/* A file of the handle's own; device memory is charged first. */
static CUresult take_file(struct vmm_handle *handle) {
    bool device = on_device(&handle->properties);
    uint32_t gpu = device ? device_get(handle->properties.location.id)->gpu : 0;
    if (device && !pool_charge(gpu, handle->size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->fd = share_create(SHARE_VMM, gpu, handle->size);
    if (handle->fd < 0) {
        if (device) {
            pool_uncharge(gpu, handle->size);
        }
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    handle->charged = device;
    return CUDA_SUCCESS;
}

static CUresult take_physical(struct vmm_handle *handle) {
    struct device *device;
    if (!on_device(&handle->properties) || handle->properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return take_file(handle);
    }
    CUresult result = device_open(handle->properties.location.id, &device);
    if (result == CUDA_SUCCESS) {
        result = arena_take(&device->arena, handle->size, &handle->piece);
    }
    if (result == CUDA_SUCCESS) {
        handle->fd = device->arena.fd;
        handle->offset = arena_offset(&device->arena, handle->piece->base);
    }
    return result;
}

static void unlink_handle(struct vmm_handle *handle) {
    if (handle->previous != NULL) {
        handle->previous->next = handle->next;
    } else if (handles == handle) {
        handles = handle->next;
    }
    if (handle->next != NULL) {
        handle->next->previous = handle->previous;
    }
}

static void end_if_unused(struct vmm_handle *handle) {
    if (handle->references > 0 || handle->mappings > 0) {
        return;
    }
    struct device *device = on_device(&handle->properties) ? device_get(handle->properties.location.id) : NULL;
    unlink_handle(handle);
    if (handle->multicast != NULL) {
        multicast_end(handle->multicast);
    }
    if (handle->piece != NULL) {
        arena_give(&device->arena, handle->piece);
    } else {
        close(handle->fd);
        if (handle->charged) {
            pool_uncharge(device->gpu, handle->size);
        }
        if (handle->foreign) {
            pool_share(device->gpu, -(int64_t)handle->size);
        }
    }
    free(handle);
}

static void link_handle(struct vmm_handle *handle) {
    handle->next = handles;
    if (handles != NULL) {
        handles->previous = handle;
    }
    handles = handle;
}

static CUresult create(CUmemGenericAllocationHandle *result, size_t size, const CUmemAllocationProp *properties) {
    CUresult checked = result == NULL ? CUDA_ERROR_INVALID_VALUE : check_properties(properties);
    if (checked == CUDA_SUCCESS && (size == 0 || !aligned(size))) {
        checked = CUDA_ERROR_INVALID_VALUE;
    }
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    struct vmm_handle *handle = handle_new(HANDLE_VMM, sizeof *handle);
    if (handle == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->properties = *properties;
    handle->properties.location = device_whole(&properties->location);
    handle->size = size;
    handle->references = 1;
    checked = take_physical(handle);
    if (checked != CUDA_SUCCESS) {
        handle_end(handle);
        return checked;
    }
    link_handle(handle);
    *result = (CUmemGenericAllocationHandle)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

struct vmm_handle *vmm_find(CUmemGenericAllocationHandle number) {
    struct vmm_handle *handle = (void *)(uintptr_t)number;
    return handle_is(handle, HANDLE_VMM) ? handle : NULL;
}

void vmm_hold(struct vmm_handle *handle) {
    handle->mappings++;
}

void vmm_let_go(struct vmm_handle *handle) {
    handle->mappings--;
    end_if_unused(handle);
}

static CUresult release(CUmemGenericAllocationHandle number) {
    struct vmm_handle *handle = vmm_find(number);
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (--handle->references == 0) {
        handle_forget(handle);
        end_if_unused(handle);
    }
    return CUDA_SUCCESS;
}

/* A handle that was released while mapped can be had again through its mapping. */
static CUresult retain(CUmemGenericAllocationHandle *result, void *address) {
    struct memory *memory = memory_at((CUdeviceptr)(uintptr_t)address);
    if (result == NULL || memory == NULL || memory->kind != MEMORY_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct vmm_handle *handle = memory->origin;
    if (handle->references == 0 && !handle_adopt(handle, HANDLE_VMM)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->references++;
    *result = (CUmemGenericAllocationHandle)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

static CUresult get_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle number) {
    struct vmm_handle *handle = vmm_find(number);
    if (properties == NULL || handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *properties = handle->properties;
    return CUDA_SUCCESS;
}

API(cuMemCreate,
    (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *properties,
     unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(create(handle, size, properties)))
API(cuMemRelease, (CUmemGenericAllocationHandle handle), LOCKED(release(handle)))
API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),
    LOCKED(retain(handle, address)))
API(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle),
    LOCKED(get_properties(properties, handle)))

/* Addresses that lead nowhere yet. */
static void *empty_addresses(void *wanted, uint64_t size, int fixed) {
    return mmap(wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

/* A range at `wanted` if that is free, else anywhere, aligned. */
static void *reserve_addresses(uint64_t size, uint64_t alignment, CUdeviceptr wanted) {
    if (wanted != 0 && wanted % alignment == 0) {
        void *place = empty_addresses((void *)(uintptr_t)wanted, size, MAP_FIXED_NOREPLACE);
        if (place != MAP_FAILED) {
            return place;
        }
    }
    char *room = empty_addresses(NULL, size + alignment, 0);
    if (room == MAP_FAILED) {
        return MAP_FAILED;
    }
    char *start = (char *)model_round_up((uint64_t)room, alignment);
    if (start > room) {
        munmap(room, (size_t)(start - room));
    }
    munmap(start + size, (size_t)(room + alignment - start));
    return start;
}

static CUresult reserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted) {
    if (alignment < MODEL_BLOCK_BYTES) {
        alignment = MODEL_BLOCK_BYTES;
    }
    if (pointer == NULL || size == 0 || !aligned(size) || (alignment & (alignment - 1)) != 0 || size > 1ull << 46) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct reservation *reservation = malloc(sizeof *reservation);
    void *place = reservation == NULL ? MAP_FAILED : reserve_addresses(size, alignment, wanted);
    if (place == MAP_FAILED) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *reservation = (struct reservation){(CUdeviceptr)(uintptr_t)place, size, reservations};
    reservations = reservation;
    *pointer = reservation->address;
    return CUDA_SUCCESS;
}

static bool reserved(CUdeviceptr address, uint64_t size) {
    for (const struct reservation *one = reservations; one != NULL; one = one->next) {
        if (address >= one->address && address - one->address <= one->size &&
            size <= one->size - (address - one->address)) {
            return true;
        }
    }
    return false;
}

static bool mapped_within(CUdeviceptr address, uint64_t size) {
    const struct memory *above = memory_next(address);
    return memory_at(address) != NULL || (above != NULL && above->address < address + size);
}

static CUresult free_addresses(CUdeviceptr address, size_t size) {
    struct reservation **place = &reservations;
    while (*place != NULL && (*place)->address != address) {
        place = &(*place)->next;
    }
    if (*place == NULL || (*place)->size != size || mapped_within(address, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct reservation *gone = *place;
    *place = gone->next;
    free(gone);
    munmap((void *)(uintptr_t)address, size);
    return CUDA_SUCCESS;
}

API(cuMemAddressReserve,
    (CUdeviceptr * pointer, size_t size, size_t alignment, CUdeviceptr address, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(reserve(pointer, size, alignment, address)))
API(cuMemAddressFree, (CUdeviceptr pointer, size_t size), LOCKED(free_addresses(pointer, size)))

static CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle number) {
    struct vmm_handle *handle = vmm_find(number);
    if (handle == NULL || size == 0 || !aligned(address) || !aligned(size) || !aligned(offset) ||
        offset > handle->size || size > handle->size - offset || !reserved(address, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (mapped_within(address, size)) {
        return CUDA_ERROR_ALREADY_MAPPED;
    }
    void *place = mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, handle->fd,
                       (off_t)(handle->offset + offset));
    if (place == MAP_FAILED) {
        return CUDA_ERROR_MAP_FAILED;
    }
    struct memory *memory = memory_new(MEMORY_MAPPED, address, size);
    if (memory == NULL) {
        empty_addresses(place, size, MAP_FIXED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->accessible = false;
    memory->device = on_device(&handle->properties) ? handle->properties.location.id : -1;
    memory->origin = handle;
    handle->mappings++;
    return CUDA_SUCCESS;
}

/* Whether a range is made of whole mappings without a gap. */
static bool whole_mappings(CUdeviceptr address, uint64_t size) {
    while (size > 0) {
        const struct memory *memory = memory_at(address);
        if (memory == NULL || memory->kind != MEMORY_MAPPED || memory->address != address || memory->size > size) {
            return false;
        }
        address += memory->size;
        size -= memory->size;
    }
    return true;
}

static void end_mapping(struct memory *memory) {
    struct vmm_handle *handle = memory->origin;
    memory_end(memory);
    handle->mappings--;
    end_if_unused(handle);
}

static CUresult unmap(CUdeviceptr address, size_t size) {
    if (size == 0 || !whole_mappings(address, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (empty_addresses((void *)(uintptr_t)address, size, MAP_FIXED) == MAP_FAILED) {
        return CUDA_ERROR_UNMAP_FAILED;
    }
    for (CUdeviceptr at = address; at < address + size;) {
        struct memory *memory = memory_at(at);
        at += memory->size;
        end_mapping(memory);
    }
    return CUDA_SUCCESS;
}

void vmm_reset(CUdevice device) {
    for (struct memory *memory = memory_next(0), *next; memory != NULL; memory = next) {
        next = memory_next(memory->address + memory->size);
        if (memory->kind == MEMORY_MAPPED && memory->device == device) {
            empty_addresses((void *)(uintptr_t)memory->address, memory->size, MAP_FIXED);
            end_mapping(memory);
        }
    }
    for (struct vmm_handle *handle = handles, *next; handle != NULL; handle = next) {
        next = handle->next;
        if (on_device(&handle->properties) && handle->properties.location.id == device && handle->references > 0) {
            handle->references = 0;
            handle_forget(handle);
            end_if_unused(handle);
        }
    }
}

API(cuMemMap,
    (CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(map(pointer, size, offset, handle)))
API(cuMemUnmap, (CUdeviceptr pointer, size_t size), LOCKED(unmap(pointer, size)))

/* One set of page tables serves all devices here, so the last access that was set counts for all. */
static CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptors, size_t count) {
    if (descriptors == NULL || count == 0 || size == 0 || !whole_mappings(address, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < count; index++) {
        const CUmemLocation *location = &descriptors[index].location;
        if (location->type == CU_MEM_LOCATION_TYPE_INVALID ||
            (location->type == CU_MEM_LOCATION_TYPE_DEVICE && device_get(location->id) == NULL)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    CUmemAccess_flags flags = descriptors[count - 1].flags;
    int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                     : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                 : PROT_NONE;
    if (mprotect((void *)(uintptr_t)address, size, protection) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (CUdeviceptr at = address; at < address + size;) {
        struct memory *memory = memory_at(at);
        memory->flags = flags;
        memory->accessible = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        at += memory->size;
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    const struct memory *memory = memory_at(address);
    if (flags == NULL || location == NULL || memory == NULL || memory->kind != MEMORY_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = memory->flags;
    return CUDA_SUCCESS;
}

API(cuMemSetAccess, (CUdeviceptr pointer, size_t size, const CUmemAccessDesc *descriptors, size_t count),
    LOCKED(set_access(pointer, size, descriptors, count)))
API(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer),
    LOCKED(get_access(flags, location, pointer)))

static CUresult export_handle(void *shareable, CUmemGenericAllocationHandle number, CUmemAllocationHandleType type) {
    struct vmm_handle *handle = vmm_find(number);
    if (shareable == NULL || handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (handle->properties.requestedHandleTypes & type) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)shareable = fd;
    pool_mark(POOL_EXPORTED, 1);
    return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *result, int fd, CUmemAllocationHandleType type) {
    struct share_label label;
    if (result == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !share_read(fd, SHARE_VMM, &label)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int device = device_of_uuid(label.uuid);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct vmm_handle *handle = own < 0 ? NULL : handle_new(HANDLE_VMM, sizeof *handle);
    if (handle == NULL) {
        if (own >= 0) {
            close(own);
        }
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = (struct vmm_handle){.properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                 .requestedHandleTypes = type,
                                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
                                  .size = label.size,
                                  .references = 1,
                                  .fd = own,
                                  .foreign = SIM_IS(importers, each) && share_is_foreign(&label)};
    if (handle->foreign) {
        pool_share(device_get(device)->gpu, (int64_t)handle->size);
    }
    link_handle(handle);
    *result = (CUmemGenericAllocationHandle)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

API(cuMemExportToShareableHandle,
    (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags),
    flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(export_handle(shareable, handle, type)))
API(cuMemImportFromShareableHandle,
    (CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type),
    LOCKED(import_handle(handle, (int)(intptr_t)os_handle, type)))
