/* device.c: which GPU a call is about.
 *
 * The daemon knows GPUs by UUID (of the MIG instance, if there is one): ordinals differ between processes and
 * environment variables. The driver is asked for the current context at each allocation, because it changes in more
 * ways than we can follow. Only the GPU of each context that we saw being opened is remembered.
 */
#include "device.h"

#include <string.h>

#include "moments.h"
#include "copies.h"
#include "process.h"

#define SLOTS     256 /* contexts known at the same time; a power of two */
#define MAX_PROBE 16

struct gs_gpu gs_gpus[GS_MAX_GPUS];
static struct gs_lock gpus_lock;

static struct gs_known_context slots[SLOTS];
struct gs_known_context *gs_last_context = slots;
static struct gs_lock slots_lock;
static uint32_t last_number;

#define TOMB ((CUcontext)1)

/* ---- GPUs ----------------------------------------------------------------------------------------- */

static bool ask_driver(CUdevice device, CUuuid *uuid, size_t *total) {
    if (gs_driver.cuDeviceTotalMem_v2(total, device) != CUDA_SUCCESS)
        return false;
    if (GS_HAS(cuDeviceGetUuid_v2)) /* of the MIG instance; the older one tells that of the whole GPU */
        return gs_driver.cuDeviceGetUuid_v2(uuid, device) == CUDA_SUCCESS;
    return gs_driver.cuDeviceGetUuid(uuid, device) == CUDA_SUCCESS;
}

struct gs_gpu *gs_gpu_of(CUdevice device) {
    CUuuid uuid;
    size_t total;
    if (device < 0 || device >= GS_MAX_GPUS)
        return NULL;
    struct gs_gpu *gpu = &gs_gpus[device];
    if (__builtin_expect(__atomic_load_n(&gpu->known, __ATOMIC_ACQUIRE), 1))
        return gpu;
    bool found;
    GS_RELAXED(found = ask_driver(device, &uuid, &total));
    if (!found)
        return NULL;
    gs_lock(&gpus_lock);
    if (!gpu->known) {
        memcpy(gpu->uuid, uuid.bytes, sizeof gpu->uuid);
        gpu->index = (uint32_t)device;
        gpu->total = total;
        __atomic_store_n(&gpu->known, true, __ATOMIC_RELEASE);
    }
    gs_unlock(&gpus_lock);
    return gpu;
}

struct gs_gpu *gs_gpu_with_uuid(const uint8_t uuid[GS_UUID_BYTES]) {
    for (struct gs_gpu *gpu = gs_gpus; gpu < gs_gpus + GS_MAX_GPUS; gpu++)
        if (__atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE) != NULL && memcmp(gpu->uuid, uuid, GS_UUID_BYTES) == 0)
            return gpu;
    return NULL;
}

/* ---- contexts ------------------------------------------------------------------------------------- */

static struct gs_known_context *slot_at(CUcontext context, unsigned probe) {
    uint64_t hash = (uint64_t)(uintptr_t)context * 0x9e3779b97f4a7c15ull >> 40;
    return &slots[(hash + probe) & (SLOTS - 1)];
}

static struct gs_known_context *find_slot(CUcontext context) {
    for (unsigned probe = 0; probe < MAX_PROBE; probe++)
        if (slot_at(context, probe)->handle == context)
            return slot_at(context, probe);
    return NULL;
}

static struct gs_known_context *find_free_slot(CUcontext context) {
    for (unsigned probe = 0; probe < MAX_PROBE; probe++) {
        struct gs_known_context *slot = slot_at(context, probe);
        if (slot->handle == NULL || slot->handle == TOMB)
            return slot;
    }
    return NULL;
}

/* Under the lock. false: no slot is left; then its memory is not credited in bulk, but charged all the same. */
static bool fill_slot(struct gs_known_context *slot, CUcontext context, struct gs_gpu *gpu, uint32_t number) {
    if (slot == NULL)
        slot = find_free_slot(context);
    if (slot == NULL)
        return false;
    slot->more_uses = 0;
    __atomic_store_n(&slot->number, number, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->gpu, gpu, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->handle, context, __ATOMIC_RELEASE);
    __atomic_store_n(&gs_last_context, slot, __ATOMIC_RELEASE);
    return true;
}

bool gs_context_add(CUcontext context, struct gs_gpu *gpu, bool fresh) {
    if (context == NULL)
        return false;
    gs_lock(&slots_lock);
    struct gs_known_context *slot = find_slot(context);
    bool added = (slot == NULL || fresh) && fill_slot(slot, context, gpu, ++last_number);
    gs_unlock(&slots_lock);
    return added;
}

void gs_context_add_name(CUcontext name, const struct gs_place *place) {
    gs_lock(&slots_lock);
    fill_slot(find_slot(name), name, place->gpu, place->context);
    gs_unlock(&slots_lock);
}

static void empty_slot(struct gs_known_context *slot) {
    __atomic_store_n(&slot->handle, TOMB, __ATOMIC_RELEASE);
}

void gs_context_remove_name(CUcontext name) {
    gs_lock(&slots_lock);
    struct gs_known_context *slot = find_slot(name);
    if (slot != NULL)
        empty_slot(slot);
    gs_unlock(&slots_lock);
}

void gs_context_remove(uint32_t number) {
    gs_lock(&slots_lock);
    for (struct gs_known_context *slot = slots; slot < slots + SLOTS; slot++)
        if (slot->number == number)
            empty_slot(slot);
    gs_unlock(&slots_lock);
}

bool gs_context_use(CUcontext context, int change) {
    gs_lock(&slots_lock);
    struct gs_known_context *slot = find_slot(context);
    bool left = slot != NULL && (change > 0 || slot->more_uses != 0);
    if (left)
        slot->more_uses += (uint32_t)change;
    gs_unlock(&slots_lock);
    return left;
}

bool gs_context_find(CUcontext context, struct gs_place *place) {
    for (unsigned probe = 0; probe < MAX_PROBE; probe++) {
        struct gs_known_context *slot = slot_at(context, probe);
        CUcontext there = __atomic_load_n(&slot->handle, __ATOMIC_ACQUIRE);
        if (there == NULL)
            return false;
        if (there != context)
            continue;
        place->gpu = __atomic_load_n(&slot->gpu, __ATOMIC_RELAXED);
        place->context = __atomic_load_n(&slot->number, __ATOMIC_RELAXED);
        return true;
    }
    return false;
}

CUcontext gs_context_on(const struct gs_gpu *gpu) {
    CUcontext found = NULL;
    gs_lock(&slots_lock);
    for (int i = 0; i < SLOTS && found == NULL; i++)
        if (slots[i].gpu == gpu && slots[i].handle != TOMB)
            found = slots[i].handle;
    gs_unlock(&slots_lock);
    return found;
}

/* ---- places --------------------------------------------------------------------------------------- */

bool gs_place_attach(struct gs_gpu *gpu) {
    gs_process_prepare();
    bool attached = gs_account_attach(gpu);
    gs_look_for_copies();
    return attached;
}

bool gs_place_device(struct gs_place *place, CUdevice device) {
    *place = (struct gs_place){.gpu = gs_gpu_of(device)};
    return place->gpu == NULL || __builtin_expect(gs_gpu_is_attached(place->gpu), 1) || gs_place_attach(place->gpu);
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    CUdevice device;
    if (gs_context_find(context, place))
        return gs_gpu_is_attached(place->gpu) || gs_place_attach(place->gpu);
    /* Opened in a way that we do not see. */
    CUresult result;
    GS_RELAXED(result = gs_driver.cuCtxGetDevice(&device));
    return gs_place_device(place, result == CUDA_SUCCESS ? device : -1);
}

GS_AT(fork) {
    memset(gs_gpus, 0, sizeof gs_gpus);
    memset(slots, 0, sizeof slots);
    gs_last_context = slots;
    gpus_lock = slots_lock = (struct gs_lock){0};
}
