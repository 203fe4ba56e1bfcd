/* cuda_device.c: the GPUs as this process sees them, and their attributes. */
#define _GNU_SOURCE
#include "cuda_device.h"

#include "common_identity.h"
#include "common_pool.h"
#include "cuda_api.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct sim_hardware device_hardware;
int device_count;
static struct device devices[SIM_MAX_GPUS];

static void add_device(uint32_t gpu) {
    struct device *device = &devices[device_count++];
    *device = (struct device){.gpu = gpu, .total = device_hardware.memory[gpu] - device_hardware.reserved_bytes};
    pool_uuid(gpu, device->uuid);
}

/* The GPU that one entry of CUDA_VISIBLE_DEVICES means, or -1: an index, or the beginning of exactly one UUID. */
static int gpu_named(const char *entry) {
    char *end;
    long index = strtol(entry, &end, 10);
    if (end != entry && *end == '\0') {
        return index >= 0 && index < (long)device_hardware.gpus ? (int)index : -1;
    }
    int found = -1;
    for (uint32_t gpu = 0; gpu < device_hardware.gpus; gpu++) {
        unsigned char uuid[16];
        char text[IDENTITY_UUID_TEXT];
        pool_uuid(gpu, uuid);
        identity_uuid_text(uuid, text);
        if (strlen(entry) > 4 && strncasecmp(text, entry, strlen(entry)) == 0) {
            if (found >= 0) {
                return -1; /* ambiguous */
            }
            found = (int)gpu;
        }
    }
    return found;
}

/* The list ends at the first entry that names no GPU, and is empty when one is named twice: so NVIDIA's driver does. */
static void add_listed(char *list) {
    bool used[SIM_MAX_GPUS] = {false};
    for (char *rest = list, *entry; (entry = strsep(&rest, ",")) != NULL;) {
        entry += strspn(entry, " \t");
        entry[strcspn(entry, " \t")] = '\0';
        int gpu = gpu_named(entry);
        if (gpu < 0) {
            return;
        }
        if (used[gpu]) {
            device_count = 0;
            return;
        }
        used[gpu] = true;
        add_device((uint32_t)gpu);
    }
}

void devices_prepare(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    pool_hardware(&device_hardware);
    device_count = 0;
    if (visible == NULL) {
        for (uint32_t gpu = 0; gpu < device_hardware.gpus; gpu++) {
            add_device(gpu);
        }
        return;
    }
    char *list = strdup(visible);
    if (list != NULL) {
        add_listed(list);
        free(list);
    }
}

struct device *device_get(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < device_count ? &devices[ordinal] : NULL;
}

CUresult device_open(CUdevice ordinal, struct device **device) {
    *device = device_get(ordinal);
    if (*device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (!(*device)->opened) {
        CUresult result = arena_open(&(*device)->arena, (*device)->gpu, device_hardware.memory[(*device)->gpu]);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        (*device)->opened = true;
    }
    return CUDA_SUCCESS;
}

int device_of_uuid(const unsigned char uuid[16]) {
    for (int ordinal = 0; ordinal < device_count; ordinal++) {
        if (memcmp(devices[ordinal].uuid, uuid, 16) == 0) {
            return ordinal;
        }
    }
    return -1;
}

CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount);
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(cuDeviceGet);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device_get(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

/* Most queries: an output that must be there and a device that must exist. */
static CUresult check_query(const void *output, CUdevice ordinal) {
    if (output == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return device_get(ordinal) == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

#define CHECK_QUERY(output, ordinal)                                                                                   \
    do {                                                                                                               \
        CUresult checked_ = check_query(output, ordinal);                                                              \
        if (checked_ != CUDA_SUCCESS) {                                                                                \
            return checked_;                                                                                           \
        }                                                                                                              \
    } while (0)

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(cuDeviceGetName);
    CHECK_QUERY(name, device);
    if (length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)length, "%s", device_hardware.name);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device) {
    CHECK_QUERY(uuid, device);
    memcpy(uuid->bytes, device_get(device)->uuid, 16);
    return CUDA_SUCCESS;
}

API(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), get_uuid(uuid, device))
API(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), get_uuid(uuid, device))

/* Exists on Windows only. */
CUresult cuDeviceGetLuid(char *luid, unsigned int *node_mask, CUdevice device) {
    ENTER(cuDeviceGetLuid);
    (void)luid, (void)node_mask, (void)device;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem);
    CHECK_QUERY(bytes, device);
    uint64_t total = device_get(device)->total;
    *bytes = total > UINT_MAX ? UINT_MAX : (unsigned int)total;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2);
    CHECK_QUERY(bytes, device);
    *bytes = device_get(device)->total;
    return CUDA_SUCCESS;
}

/* What a GPU of compute capability 9.0 says. The numbers are CUdevice_attribute; those not listed are 0, which for
 * nearly all of them means "not supported". */
static const int attributes[] = {
    [1] = 1024,       [2] = 1024,        [3] = 1024,    [4] = 64,     [5] = 2147483647,  [6] = 65535,
    [7] = 65535,      [8] = 49152,       [9] = 65536,   [10] = 32,    [11] = 2147483647, [12] = 65536,
    [13] = 1980000,   [14] = 512,        [15] = 1,      [16] = 132,   [19] = 1,          [21] = 131072,
    [22] = 131072,    [23] = 65536,      [24] = 16384,  [25] = 16384, [26] = 16384,      [27] = 32768,
    [28] = 32768,     [29] = 2048,       [30] = 512,    [31] = 1,     [32] = 1,          [36] = 2619000,
    [37] = 5120,      [38] = 52428800,   [39] = 2048,   [40] = 3,     [41] = 1,          [42] = 32768,
    [43] = 2048,      [44] = 1,          [45] = 32768,  [46] = 32768, [47] = 8192,       [48] = 8192,
    [49] = 32768,     [51] = 32,         [52] = 32768,  [53] = 32768, [54] = 2046,       [55] = 32768,
    [56] = 131072,    [57] = 65536,      [58] = 16384,  [59] = 16384, [60] = 16384,      [61] = 32768,
    [62] = 2048,      [63] = 32768,      [64] = 32768,  [65] = 2048,  [66] = 32768,      [67] = 32768,
    [68] = 2046,      [69] = 268435456,  [70] = 131072, [71] = 65000, [72] = 2097120,    [73] = 32768,
    [74] = 32768,     [77] = 32768,      [78] = 1,      [79] = 1,     [80] = 1,          [81] = 233472,
    [82] = 65536,     [83] = 1,          [87] = 2,      [89] = 1,     [90] = 1,          [91] = 1,
    [95] = 1,         [97] = 232448,     [99] = 1,      [102] = 1,    [103] = 1,         [106] = 32,
    [108] = 32768000, [109] = 134213632, [111] = 1024,  [115] = 1,    [119] = 1,         [120] = 1,
    [125] = 1,        [134] = -1,        [131] = -1,
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    CHECK_QUERY(value, device);
    if (attribute <= 0 || attribute > 147) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = identity_bus(device_get(device)->gpu);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = IDENTITY_COMPUTE_MAJOR;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = IDENTITY_COMPUTE_MINOR;
        return CUDA_SUCCESS;
    default:
        *value = attribute < (int)(sizeof attributes / sizeof attributes[0]) ? attributes[attribute] : 0;
        return CUDA_SUCCESS;
    }
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device) {
    ENTER(cuDeviceGetProperties);
    CHECK_QUERY(properties, device);
    *properties = (CUdevprop){.maxThreadsPerBlock = attributes[1],
                              .maxThreadsDim = {attributes[2], attributes[3], attributes[4]},
                              .maxGridSize = {attributes[5], attributes[6], attributes[7]},
                              .sharedMemPerBlock = attributes[8],
                              .totalConstantMemory = attributes[9],
                              .SIMDWidth = attributes[10],
                              .memPitch = attributes[11],
                              .regsPerBlock = attributes[12],
                              .clockRate = attributes[13],
                              .textureAlign = attributes[14]};
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    ENTER(cuDeviceComputeCapability);
    CHECK_QUERY(major, device);
    CHECK_QUERY(minor, device);
    *major = IDENTITY_COMPUTE_MAJOR;
    *minor = IDENTITY_COMPUTE_MINOR;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice device) {
    ENTER(cuDeviceGetPCIBusId);
    CHECK_QUERY(bus_id, device);
    if (length < 13) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(bus_id, (size_t)length, "0000:%02X:00.0", (unsigned)identity_bus(device_get(device)->gpu));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *bus_id) {
    ENTER(cuDeviceGetByPCIBusId);
    if (device == NULL || bus_id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int gpu = identity_gpu_at(bus_id, device_hardware.gpus);
    for (int ordinal = 0; gpu >= 0 && ordinal < device_count; ordinal++) {
        if (devices[ordinal].gpu == (uint32_t)gpu) {
            *device = ordinal;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned int channels,
                                            CUdevice device) {
    ENTER(cuDeviceGetTexture1DLinearMaxWidth);
    CHECK_QUERY(width, device);
    (void)format, (void)channels;
    *width = (size_t)attributes[69];
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER(cuDeviceCanAccessPeer);
    CHECK_QUERY(can, device);
    CHECK_QUERY(can, peer);
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) {
    ENTER(cuDeviceGetP2PAttribute);
    CHECK_QUERY(value, source);
    CHECK_QUERY(value, target);
    if (source == target) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

/* As a GPU of compute capability 9.0 divides its multiprocessors. */
#define SM_GROUP 8u

static CUdevResource multiprocessors(unsigned int count) {
    return (CUdevResource){
        .type = count == 0 ? CU_DEV_RESOURCE_TYPE_INVALID : CU_DEV_RESOURCE_TYPE_SM,
        .sm = {.smCount = count, .minSmPartitionSize = SM_GROUP, .smCoscheduledAlignment = SM_GROUP}};
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
    ENTER(cuDeviceGetDevResource);
    CHECK_QUERY(resource, device);
    if (type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    *resource = multiprocessors((unsigned)attributes[16]);
    return CUDA_SUCCESS;
}

/* Groups of at least so many; without a place for them, how many there could be. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count, const CUdevResource *input,
                                     CUdevResource *rest, unsigned int flags, unsigned int least) {
    ENTER(cuDevSmResourceSplitByCount);
    if (count == NULL || input == NULL || flags > 3) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (input->type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    unsigned int total = input->sm.smCount;
    unsigned int size = least <= SM_GROUP ? SM_GROUP : (least - 1) / SM_GROUP * SM_GROUP + SM_GROUP;
    unsigned int most = size > total ? 0 : total / size;
    if (most == 0) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    *count = groups == NULL || *count > most ? most : *count;
    for (unsigned int index = 0; groups != NULL && index < *count; index++) {
        groups[index] = multiprocessors(size);
    }
    if (rest != NULL) {
        *rest = multiprocessors(total - *count * size);
    }
    return CUDA_SUCCESS;
}

CUmemLocation device_whole(const CUmemLocation *location) {
    bool part = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN && sim_driver_version() >= 13050;
    return part ? (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, cuda_device_of(location)} : *location;
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
    ENTER(cuFlushGPUDirectRDMAWrites);
    (void)target, (void)scope;
    return CUDA_ERROR_NOT_SUPPORTED;
}
