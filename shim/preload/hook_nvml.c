/* hook_nvml.c: what NVML says about memory, in the same terms as hook_info.c, and about who uses it.
 *
 * NVML is asked first and its answer rewritten. Its devices are matched to our GPUs by UUID. It must not start CUDA,
 * nor connect to anything: a program that only looks (nvidia-smi) is no job. On a GPU that the process has not opened,
 * the total is what it would be there, and all of it is free; on a GPU that is not among those the process was given
 * by UUID, the answer stays as it is. Of the processes on a GPU it tells of those of the job: the job's view of the
 * node ends at its own.
 */
#include "client.h"
#include "hooks.h"
#include "options.h"
#include "system.h"

#include <string.h>

static int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* GPU-8-4-4-4-12 or MIG-8-4-4-4-12. */
static bool parse_uuid(const char *text, uint8_t uuid[GS_UUID_BYTES]) {
    const char *at = strchr(text, '-');
    unsigned digits = 0;
    memset(uuid, 0, GS_UUID_BYTES);
    for (; at != NULL && *at != '\0' && digits < 2 * GS_UUID_BYTES; at++) {
        int value = hex_value(*at);
        if (value < 0)
            continue;
        uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 2 * GS_UUID_BYTES;
}

/* Whether the process was given this GPU: CUDA_VISIBLE_DEVICES names it, or names no GPU by UUID. */
static bool is_given(const char *uuid) {
    const char *devices = gs_options()->visible_devices;
    return (strstr(devices, "GPU-") == NULL && strstr(devices, "MIG-") == NULL) || strstr(devices, uuid) != NULL;
}

/* false: not ours to change. */
static bool job_view(nvmlDevice_t device, uint64_t real_total, uint64_t *total, uint64_t *free) {
    char text[NVML_DEVICE_UUID_BUFFER_SIZE];
    uint8_t uuid[GS_UUID_BYTES];
    if (gs_nvml.nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, uuid))
        return false;
    struct gs_gpu *gpu = gs_gpu_with_uuid(uuid);
    if (gpu != NULL) {
        *total = gs_account_total(gpu);
        *free = gs_account_free(gpu);
        return true;
    }
    *total = *free = gs_account_total_expected(real_total);
    return is_given(text);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    uint64_t total, free;
    bool on = gs_nvml_on();
    nvmlReturn_t result = gs_nvml.nvmlDeviceGetMemoryInfo(device, memory);
    if (!on || result != NVML_SUCCESS || memory == NULL || !job_view(device, memory->total, &total, &free))
        return result;
    memory->total = total;
    memory->free = free;
    memory->used = total - free;
    return result;
}

/* What the driver keeps for itself is outside a job's budget, so nothing of it shows. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    uint64_t total, free;
    bool on = gs_nvml_on();
    nvmlReturn_t result = gs_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (!on || result != NVML_SUCCESS || memory == NULL || !job_view(device, memory->total, &total, &free))
        return result;
    memory->total = total;
    memory->reserved = 0;
    memory->free = free;
    memory->used = total - free;
    return result;
}

/* ---- the processes on a GPU ----------------------------------------------------------------------- */

/* Whether a process was started with the GPUSHARE_JOB of this one. That stands in its environment as it was at its
 * start, which the kernel shows to us if it is of the same user. Read piece by piece: an environment has no bound. */
static bool has_our_job(unsigned int pid) {
    static const char name[] = "GPUSHARE_JOB=";
    const size_t value = sizeof name - 1, elsewhere = sizeof name;
    struct gs_text path = {0};
    char piece[1024];
    size_t matched = 0; /* bytes of `name`; `value`: all of them; `elsewhere`: it is another variable */
    uint64_t id = 0;
    bool found = false;
    gs_text_add(&path, "/proc/");
    gs_text_number(&path, pid);
    gs_text_add(&path, "/environ");
    path.bytes[path.length] = '\0';
    long fd = GS_CALL(SYS_openat, AT_FDCWD, path.bytes, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    for (long got; !found && (got = GS_CALL(SYS_read, (int)fd, piece, sizeof piece)) > 0;) {
        for (long at = 0; at < got && !found; at++) {
            int digit = hex_value(piece[at]);
            if (piece[at] == '\0') {
                found = matched == value && id == gs_options()->job_id;
                matched = 0;
                id = 0;
            } else if (matched < value) {
                matched = piece[at] == name[matched] ? matched + 1 : elsewhere;
            } else if (digit < 0) {
                matched = elsewhere;
            } else {
                id = id << 4 | (uint64_t)digit;
            }
        }
    }
    GS_CALL(SYS_close, (int)fd);
    return found;
}

/* NVML names processes as the daemon does, from outside of containers: in one, only this process itself is known. */
static bool is_of_the_job(unsigned int pid) {
    const struct gs_page *page = gs_client_page();
    if (pid == (unsigned int)GS_CALL(SYS_getpid) || (page != NULL && pid == page->pid))
        return true;
    return gs_options()->job_id != 0 && has_our_job(pid);
}

/* `pid_at`: where in an entry the pid is. */
static unsigned int keep_ours(void *all, unsigned int count, size_t size, size_t pid_at) {
    unsigned char *infos = all;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++) {
        unsigned int pid;
        memcpy(&pid, infos + i * size + pid_at, sizeof pid);
        if (!is_of_the_job(pid))
            continue;
        memmove(infos + kept * size, infos + i * size, size);
        kept++;
    }
    return kept;
}

/* More than are ever on one GPU; NVML is asked for all before the program's own room counts. */
#define MOST_PROCESSES 4096

static nvmlReturn_t hand_over(unsigned int *count, void *infos, const void *ours, unsigned int found, size_t size) {
    unsigned int room = infos == NULL ? 0 : *count;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (found > 0)
        memcpy(infos, ours, found * size);
    return NVML_SUCCESS;
}

#define LIST(function, type)                                                                                           \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *infos) {                                     \
        const size_t bytes = MOST_PROCESSES * sizeof(type);                                                            \
        unsigned int found = MOST_PROCESSES;                                                                           \
        type *all = gs_nvml_on() && count != NULL ? gs_pages_new(bytes) : NULL;                                        \
        if (all == NULL)                                                                                               \
            return gs_nvml.function(device, count, infos);                                                             \
        nvmlReturn_t result = gs_nvml.function(device, &found, all);                                                   \
        if (result == NVML_SUCCESS) {                                                                                  \
            found = keep_ours(all, found, sizeof(type), offsetof(type, pid));                                          \
            result = hand_over(count, infos, all, found, sizeof(type));                                                \
        }                                                                                                              \
        gs_pages_drop(all, bytes);                                                                                     \
        return result;                                                                                                 \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* The same list as a structure, with the kind of process in it. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    const size_t bytes = MOST_PROCESSES * sizeof(nvmlProcessDetail_v1_t);
    bool ours = gs_nvml_on() && list != NULL && list->version == NVML_VERSION(nvmlProcessDetailList_t, 1);
    nvmlProcessDetail_v1_t *all = ours ? gs_pages_new(bytes) : NULL;
    if (all == NULL)
        return gs_nvml.nvmlDeviceGetRunningProcessDetailList(device, list);
    nvmlProcessDetailList_t asked = *list;
    asked.numProcArrayEntries = MOST_PROCESSES;
    asked.procArray = all;
    nvmlReturn_t result = gs_nvml.nvmlDeviceGetRunningProcessDetailList(device, &asked);
    if (result == NVML_SUCCESS) {
        unsigned int found =
            keep_ours(all, asked.numProcArrayEntries, sizeof *all, offsetof(nvmlProcessDetail_v1_t, pid));
        result = hand_over(&list->numProcArrayEntries, list->procArray, all, found, sizeof *all);
    }
    gs_pages_drop(all, bytes);
    return result;
}

/* ---- how busy they were --------------------------------------------------------------------------- */

/* Several samples of each process. */
#define MOST_SAMPLES 16384

/* NVML says "not found" when it has no sample newer than asked for. */
static nvmlReturn_t hand_over_samples(unsigned int *count, void *samples, const void *ours, unsigned int found,
                                      size_t size) {
    nvmlReturn_t result = hand_over(count, samples, ours, found, size);
    return found == 0 ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    const size_t bytes = MOST_SAMPLES * sizeof *samples;
    unsigned int found = MOST_SAMPLES;
    nvmlProcessUtilizationSample_t *all = gs_nvml_on() && count != NULL ? gs_pages_new(bytes) : NULL;
    if (all == NULL)
        return gs_nvml.nvmlDeviceGetProcessUtilization(device, samples, count, since);
    nvmlReturn_t result = gs_nvml.nvmlDeviceGetProcessUtilization(device, all, &found, since);
    if (result == NVML_SUCCESS) {
        found = keep_ours(all, found, sizeof *all, offsetof(nvmlProcessUtilizationSample_t, pid));
        result = hand_over_samples(count, samples, all, found, sizeof *all);
    } else if (result == NVML_ERROR_NOT_FOUND) {
        *count = 0;
    }
    gs_pages_drop(all, bytes);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    const size_t bytes = MOST_SAMPLES * sizeof(nvmlProcessUtilizationInfo_v1_t);
    bool ours = gs_nvml_on() && info != NULL && info->version == NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1);
    nvmlProcessUtilizationInfo_v1_t *all = ours ? gs_pages_new(bytes) : NULL;
    if (all == NULL)
        return gs_nvml.nvmlDeviceGetProcessesUtilizationInfo(device, info);
    nvmlProcessesUtilizationInfo_t asked = *info;
    asked.processSamplesCount = MOST_SAMPLES;
    asked.procUtilArray = all;
    nvmlReturn_t result = gs_nvml.nvmlDeviceGetProcessesUtilizationInfo(device, &asked);
    if (result == NVML_SUCCESS) {
        unsigned int found =
            keep_ours(all, asked.processSamplesCount, sizeof *all, offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
        result = hand_over_samples(&info->processSamplesCount, info->procUtilArray, all, found, sizeof *all);
    } else if (result == NVML_ERROR_NOT_FOUND) {
        info->processSamplesCount = 0;
    }
    gs_pages_drop(all, bytes);
    return result;
}
