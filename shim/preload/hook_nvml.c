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
        struct gs_memory memory = gs_account_memory(gpu);
        *total = memory.total;
        *free = memory.free;
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
    long fd = GS_CALL(SYS_openat, AT_FDCWD, path.bytes, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    for (long got; (got = GS_CALL(SYS_read, (int)fd, piece, sizeof piece)) > 0;) {
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

/* NVML has answered a question for all there is: what of it is ours, if the program has room for that. Of an empty list
 * it says `nothing`. */
static nvmlReturn_t hand_over(nvmlReturn_t result, void *all, unsigned int found, size_t size, size_t pid_at,
                              unsigned int *count, void *infos, nvmlReturn_t nothing) {
    unsigned int room = infos == NULL ? 0 : *count;
    if (result != NVML_SUCCESS && result != nothing)
        return result;
    *count = found = result == NVML_SUCCESS ? keep_ours(all, found, size, pid_at) : 0;
    if (found == 0)
        return nothing;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(infos, all, found * size);
    return NVML_SUCCESS;
}

/* The body of a function that lists processes. `most`: more than there ever are; `ask`: for `found` entries at `all`,
 * leaving in `found` how many there are. */
#define OURS(original, understood, count, infos, type, most, nothing, ask)                                             \
    unsigned int found = (most);                                                                                       \
    type *all = gs_nvml_on() && (understood) ? gs_pages_new((most) * sizeof(type)) : NULL;                             \
    if (all == NULL)                                                                                                   \
        return original;                                                                                               \
    nvmlReturn_t asked = ask;                                                                                          \
    nvmlReturn_t result = hand_over(asked, all, found, sizeof(type), offsetof(type, pid), count, infos, nothing);      \
    gs_pages_drop(all, (most) * sizeof(type));                                                                         \
    return result

#define MOST_PROCESSES 4096
#define MOST_SAMPLES   16384 /* several of each process */

#define LIST(function, type)                                                                                           \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *infos) {                                     \
        OURS(gs_nvml.function(device, count, infos), count != NULL, count, infos, type, MOST_PROCESSES, NVML_SUCCESS,  \
             gs_nvml.function(device, &found, all));                                                                   \
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

/* How busy they were. NVML says "not found" when it has no sample newer than asked for. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    OURS(gs_nvml.nvmlDeviceGetProcessUtilization(device, samples, count, since), count != NULL, count, samples,
         nvmlProcessUtilizationSample_t, MOST_SAMPLES, NVML_ERROR_NOT_FOUND,
         gs_nvml.nvmlDeviceGetProcessUtilization(device, all, &found, since));
}

/* The same two as structures, with their number and their place in it. */
#define STRUCTURE(function, structure, number, array, type, most, nothing)                                             \
    nvmlReturn_t function(nvmlDevice_t device, structure *list) {                                                      \
        OURS(gs_nvml.function(device, list), list != NULL && list->version == NVML_VERSION(structure, 1),              \
             &list->number, list->array, type, most, nothing, ({                                                       \
                 structure whole = *list;                                                                              \
                 whole.number = found;                                                                                 \
                 whole.array = all;                                                                                    \
                 nvmlReturn_t answer = gs_nvml.function(device, &whole);                                               \
                 found = whole.number;                                                                                 \
                 answer;                                                                                               \
             }));                                                                                                      \
    }

STRUCTURE(nvmlDeviceGetRunningProcessDetailList, nvmlProcessDetailList_t, numProcArrayEntries, procArray,
          nvmlProcessDetail_v1_t, MOST_PROCESSES, NVML_SUCCESS)
STRUCTURE(nvmlDeviceGetProcessesUtilizationInfo, nvmlProcessesUtilizationInfo_t, processSamplesCount, procUtilArray,
          nvmlProcessUtilizationInfo_v1_t, MOST_SAMPLES, NVML_ERROR_NOT_FOUND)
