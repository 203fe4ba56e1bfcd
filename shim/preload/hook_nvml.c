/* hook_nvml.c: what NVML says about memory, in the same terms as hook_info.c.
 *
 * NVML is asked first and its answer rewritten. Its devices are matched to our GPUs by UUID. It must not start CUDA,
 * nor connect to anything: a program that only looks (nvidia-smi) is no job. On a GPU that the process has not opened,
 * the total is what it would be there, and all of it is free; on a GPU that is not among those the process was given
 * by UUID, the answer stays as it is.
 */
#include "hooks.h"
#include "options.h"

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
