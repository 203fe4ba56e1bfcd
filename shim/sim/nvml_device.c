/* nvml_device.c: the GPUs as NVML shows them: all of them, in the pool's order, whatever CUDA_VISIBLE_DEVICES says. */
#define _GNU_SOURCE
#include "nvml_device.h"

#include "common_health.h"
#include "common_identity.h"
#include "common_pool.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define MOST_PROCESSES 4096
#define OUTSIDE_PIDS                                                                                                   \
    (1 << 23) /* above the most that Linux numbers processes by: none of this namespace has one of these */

/* Handles are addresses in here, so a foreign one is told from ours. */
static char handles[SIM_MAX_GPUS];

static nvmlDevice_t handle_of(uint32_t gpu) {
    return (nvmlDevice_t)(void *)&handles[gpu];
}

/* GPUs that were not in the machine when NVML was initialised, as bits. */
static _Atomic uint32_t gone;

_Static_assert(SIM_MAX_GPUS <= 32, "one bit a GPU");

void nvml_enumerate(void) {
    uint32_t bits = 0;
    for (uint32_t gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        struct health health;
        health_of(gpu, &health);
        bits |= (uint32_t)health.removed << gpu;
    }
    gone = bits;
}

static bool is_gone(uint32_t gpu) {
    return (gone >> gpu & 1) != 0;
}

static nvmlReturn_t answers(uint32_t gpu) {
    struct health health;
    health_of(gpu, &health);
    return health.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* A GPU's place among those that are there, and back. */
static uint32_t index_of(uint32_t gpu) {
    uint32_t index = 0;
    for (uint32_t other = 0; other < gpu; other++) {
        index += !is_gone(other);
    }
    return index;
}

static uint32_t gpu_at(uint32_t index) {
    uint32_t gpu = 0;
    while (is_gone(gpu) || index_of(gpu) < index) {
        gpu++;
    }
    return gpu;
}

nvmlReturn_t nvml_gpu(nvmlDevice_t device, uint32_t *gpu, struct sim_hardware *hardware) {
    if (!nvml_ready()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    pool_hardware(hardware);
    uintptr_t index = (uintptr_t)device - (uintptr_t)handles;
    if (index >= hardware->gpus || is_gone((uint32_t)index)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *gpu = (uint32_t)index;
    return answers(*gpu);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    struct sim_hardware hardware;
    if (!nvml_ready()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NEED(count);
    pool_hardware(&hardware);
    *count = 0;
    for (uint32_t gpu = 0; gpu < hardware.gpus; gpu++) {
        *count += !is_gone(gpu);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int count;
    NEED(device);
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (index >= count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = handle_of(gpu_at(index));
    return answers(gpu_at(index));
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static void uuid_of(uint32_t gpu, char text[IDENTITY_UUID_TEXT]) {
    unsigned char uuid[16];
    pool_uuid(gpu, uuid);
    identity_uuid_text(uuid, text);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    unsigned int count;
    NEED(uuid);
    NEED(device);
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    for (uint32_t index = 0; result == NVML_SUCCESS && index < count; index++) {
        char text[IDENTITY_UUID_TEXT];
        uuid_of(gpu_at(index), text);
        if (strcasecmp(text, uuid) == 0) {
            *device = handle_of(gpu_at(index));
            return answers(gpu_at(index));
        }
    }
    return result != NVML_SUCCESS ? result : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    unsigned int count;
    NEED(bus_id);
    NEED(device);
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct sim_hardware hardware;
    pool_hardware(&hardware);
    int gpu = identity_gpu_at(bus_id, hardware.gpus);
    if (gpu < 0 || is_gone((uint32_t)gpu)) {
        return NVML_ERROR_NOT_FOUND;
    }
    *device = handle_of((uint32_t)gpu);
    return answers((uint32_t)gpu);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    char text[IDENTITY_UUID_TEXT];
    GPU_OF(device);
    uuid_of(gpu, text);
    return nvml_text(text, uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    GPU_OF(device);
    return nvml_text(hardware.name, name, length);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    GPU_OF(device);
    NEED(index);
    *index = index_of(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    GPU_OF(device);
    NEED(minor);
    *minor = gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    GPU_OF(device);
    NEED(info);
    memset(info, 0, sizeof *info);
    info->bus = (unsigned int)identity_bus(gpu);
    info->pciDeviceId = IDENTITY_PCI_DEVICE_ID;
    info->pciSubSystemId = IDENTITY_PCI_SUBSYSTEM;
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", info->bus);
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    GPU_OF(device);
    NEED(major);
    NEED(minor);
    *major = IDENTITY_COMPUTE_MAJOR;
    *minor = IDENTITY_COMPUTE_MINOR;
    return NVML_SUCCESS;
}

/* `used` counts what the driver reserves, in version 1; version 2 tells it apart. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    GPU_OF(device);
    NEED(memory);
    memory->total = hardware.memory[gpu];
    memory->used = pool_used(gpu) + hardware.reserved_bytes;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    GPU_OF(device);
    NEED(memory);
    if (memory->version != NVML_VERSION(nvmlMemory_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    memory->total = hardware.memory[gpu];
    memory->reserved = hardware.reserved_bytes;
    memory->used = pool_used(gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* As NVML names them: by the numbers of another PID namespace where pids=outside, and not at all where pids=none. */
static size_t list_processes(uint32_t gpu, struct pool_process processes[MOST_PROCESSES]) {
    size_t found = SIM_IS(pids, none) ? 0 : pool_processes(gpu, processes, MOST_PROCESSES);
    for (size_t index = 0; SIM_IS(pids, outside) && index < found && index < MOST_PROCESSES; index++) {
        processes[index].pid += OUTSIDE_PIDS;
    }
    return found;
}

/* Asked with too little room it says how much is needed, with none at all too. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    static __thread struct pool_process processes[MOST_PROCESSES];
    GPU_OF(device);
    NEED(count);
    size_t found = list_processes(gpu, processes);
    unsigned int room = infos == NULL ? 0 : *count;
    *count = (unsigned int)found;
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (size_t index = 0; index < found; index++) {
        infos[index] = (nvmlProcessInfo_t){.pid = (unsigned int)processes[index].pid,
                                           .usedGpuMemory = processes[index].used,
                                           .gpuInstanceId = ~0u,
                                           .computeInstanceId = ~0u};
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
    static __thread nvmlProcessInfo_t newer[MOST_PROCESSES];
    NEED(count);
    unsigned int room = infos == NULL ? 0 : *count < MOST_PROCESSES ? *count : MOST_PROCESSES;
    *count = room;
    nvmlReturn_t result = nvmlDeviceGetComputeRunningProcesses_v3(device, count, newer);
    for (unsigned int index = 0; result == NVML_SUCCESS && index < *count; index++) {
        infos[index] = (nvmlProcessInfo_v1_t){newer[index].pid, newer[index].usedGpuMemory};
    }
    return result;
}

/* Nobody draws and nobody runs MPS on a software GPU. */
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count) {
    GPU_OF(device);
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_v1_t *infos) {
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos) {
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos) {
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos) {
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *infos) {
    (void)infos;
    return no_processes(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *infos) {
    (void)infos;
    return no_processes(device, count);
}

/* How much of the time a process kept the GPU computing, in per cent. */
struct measured {
    pid_t pid;
    unsigned int percent;
};

#define LOOK_NS 100000000ull /* shorter times say little: the last figure stays */

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Of the time between two looks. Several programs on a GPU take turns: together they have all of it at most. */
static size_t measure(uint32_t gpu, struct measured *measured) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        pid_t pid;
        uint64_t busy;
        unsigned int percent;
    } before[SIM_MAX_GPUS][MOST_PROCESSES];
    static uint64_t looked[SIM_MAX_GPUS];
    static size_t known[SIM_MAX_GPUS];
    static struct pool_process processes[MOST_PROCESSES];
    pthread_mutex_lock(&mutex);
    uint64_t now = monotonic_ns(), passed = looked[gpu] != 0 ? now - looked[gpu] : 10 * LOOK_NS;
    bool fresh = passed >= LOOK_NS;
    size_t found = list_processes(gpu, processes), kept = found < MOST_PROCESSES ? found : MOST_PROCESSES;
    uint64_t sum = 0;
    for (size_t index = 0; index < kept; index++) {
        uint64_t busy = 0;
        measured[index] = (struct measured){.pid = processes[index].pid};
        for (size_t old = 0; old < known[gpu]; old++) {
            if (before[gpu][old].pid == processes[index].pid) {
                busy = before[gpu][old].busy;
                measured[index].percent = before[gpu][old].percent;
            }
        }
        if (fresh) {
            uint64_t done = processes[index].busy > busy ? processes[index].busy - busy : 0;
            measured[index].percent = (unsigned int)((done < passed ? done : passed) * 100 / passed);
        }
        sum += measured[index].percent;
    }
    for (size_t index = 0; index < kept && sum > 100; index++) {
        measured[index].percent = (unsigned int)(measured[index].percent * 100 / sum);
    }
    for (size_t index = 0; index < kept && fresh; index++) {
        before[gpu][index].pid = processes[index].pid;
        before[gpu][index].busy = processes[index].busy;
        before[gpu][index].percent = measured[index].percent;
    }
    known[gpu] = fresh ? kept : known[gpu];
    looked[gpu] = fresh ? now : looked[gpu];
    pthread_mutex_unlock(&mutex);
    return found;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    static __thread struct measured measured[MOST_PROCESSES];
    GPU_OF(device);
    NEED(utilization);
    size_t found = measure(gpu, measured);
    utilization->gpu = 0;
    for (size_t index = 0; index < found && index < MOST_PROCESSES; index++) {
        utilization->gpu += measured[index].percent;
    }
    utilization->memory = 0;
    return NVML_SUCCESS;
}

/* Nobody draws and nobody runs MPS on a software GPU. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    static __thread struct pool_process processes[MOST_PROCESSES];
    GPU_OF(device);
    NEED(list);
    if (list->version != NVML_VERSION(nvmlProcessDetailList_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (list->mode > NVML_PROCESS_MODE_MPS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    size_t found = list->mode == NVML_PROCESS_MODE_COMPUTE ? list_processes(gpu, processes) : 0;
    unsigned int room = list->procArray == NULL ? 0 : list->numProcArrayEntries;
    list->numProcArrayEntries = (unsigned int)found;
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (size_t index = 0; index < found; index++) {
        list->procArray[index] = (nvmlProcessDetail_v1_t){.pid = (unsigned int)processes[index].pid,
                                                          .usedGpuMemory = processes[index].used,
                                                          .gpuInstanceId = ~0u,
                                                          .computeInstanceId = ~0u};
    }
    return NVML_SUCCESS;
}

static unsigned long long microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* Each process that uses the GPU has one sample, taken now: of the time since the last look of this process that was
 * long enough ago. */
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    static __thread struct measured measured[MOST_PROCESSES];
    GPU_OF(device);
    NEED(info);
    if (info->version != NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    unsigned long long now = microseconds();
    size_t found = info->lastSeenTimeStamp < now ? measure(gpu, measured) : 0;
    unsigned int room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    info->processSamplesCount = (unsigned int)found;
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (size_t index = 0; index < found; index++) {
        info->procUtilArray[index] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = now, .pid = (unsigned int)measured[index].pid, .smUtil = measured[index].percent};
    }
    return found == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    static __thread nvmlProcessUtilizationInfo_v1_t newer[MOST_PROCESSES];
    NEED(count);
    unsigned int room = samples == NULL ? 0 : *count < MOST_PROCESSES ? *count : MOST_PROCESSES;
    nvmlProcessesUtilizationInfo_t info = {.version = NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1),
                                           .processSamplesCount = room,
                                           .lastSeenTimeStamp = since,
                                           .procUtilArray = newer};
    nvmlReturn_t result = nvmlDeviceGetProcessesUtilizationInfo(device, &info);
    *count = info.processSamplesCount;
    for (unsigned int index = 0; result == NVML_SUCCESS && index < *count; index++) {
        samples[index] = (nvmlProcessUtilizationSample_t){
            .pid = newer[index].pid, .timeStamp = newer[index].timeStamp, .smUtil = newer[index].smUtil};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    GPU_OF(device);
    (void)current, (void)pending;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* A software GPU has neither heat nor power to tell of. */
static nvmlReturn_t unsupported(nvmlDevice_t device) {
    GPU_OF(device);
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *temperature) {
    (void)sensor, (void)temperature;
    return unsupported(device);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    (void)milliwatts;
    return unsupported(device);
}
