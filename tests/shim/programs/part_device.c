/* part_device.c: the GPUs and contexts of a process against plain lists of them, with handles that collide, and a
 * driver that fails. */
#include "part.h"

#include "device.c"

struct gs_driver gs_driver;
static uint32_t relaxed, prepared, looked, asked;
static bool refuses;

typedef CUresult uuid_question(CUuuid *uuid, CUdevice device);

CUresult gs_missing(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool gs_account_attach(struct gs_gpu *gpu) {
    static struct gs_line line;
    asked++;
    if (refuses)
        return false;
    gpu->line = &line;
    gpu->attached = 1;
    return true;
}

void gs_process_prepare(void) {
    prepared++;
}

void gs_look_for_copies(void) {
    looked++;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    (void)mode;
    relaxed++;
    return CUDA_SUCCESS;
}

static CUresult total_says, uuid_says;

static CUresult total_mem(size_t *bytes, CUdevice device) {
    *bytes = (size_t)(device + 1) << 30;
    return total_says;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device) {
    memset(uuid->bytes, 0x40 + device, sizeof uuid->bytes);
    return uuid_says;
}

static CUresult uuid_of_instance(CUuuid *uuid, CUdevice device) {
    memset(uuid->bytes, 0x20 + device, sizeof uuid->bytes);
    return uuid_says;
}

static CUdevice current_device;
static CUresult device_says;
static CUresult current(CUdevice *device) {
    *device = current_device;
    return device_says;
}

static CUcontext current_handle;
static CUresult context_says;
static CUresult current_context(CUcontext *context) {
    *context = current_handle;
    return context_says;
}

static bool is_uuid_of(const struct gs_gpu *gpu, int byte) {
    for (int i = 0; i < GS_UUID_BYTES; i++)
        if (gpu->uuid[i] != byte)
            return false;
    return true;
}

/* A GPU is known once the driver has told all of it: of a MIG instance, where it can. */
static void gpus(void) {
    gs_driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
    gs_driver.cuDeviceTotalMem_v2 = total_mem;
    gs_driver.cuDeviceGetUuid = uuid_of;
    gs_driver.cuDeviceGetUuid_v2 = (uuid_question *)(void *)gs_missing;
    gs_driver.cuCtxGetDevice = current;
    gs_driver.cuCtxGetCurrent = current_context;
    REQUIRE(gs_gpu_of(-1) == NULL && gs_gpu_of(GS_MAX_GPUS) == NULL);
    total_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(gs_gpu_of(0) == NULL && !gs_gpus[0].known);
    total_says = CUDA_SUCCESS;
    uuid_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(gs_gpu_of(0) == NULL && !gs_gpus[0].known);
    gs_driver.cuDeviceGetUuid_v2 = uuid_of_instance;
    REQUIRE(gs_gpu_of(0) == NULL);
    gs_driver.cuDeviceGetUuid_v2 = (uuid_question *)(void *)gs_missing;
    uuid_says = CUDA_SUCCESS;
    REQUIRE(gs_gpu_of(0) == &gs_gpus[0] && is_uuid_of(&gs_gpus[0], 0x40));
    gs_driver.cuDeviceGetUuid_v2 = uuid_of_instance;
    struct gs_gpu *last = gs_gpu_of(GS_MAX_GPUS - 1);
    REQUIRE(last == &gs_gpus[GS_MAX_GPUS - 1] && is_uuid_of(last, 0x20 + GS_MAX_GPUS - 1));
    REQUIRE(last->index == GS_MAX_GPUS - 1 && last->total == 64ull << 30 && last->line == NULL);
    REQUIRE(relaxed == 10); /* both ways, for each of the five questions */
    total_says = uuid_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(gs_gpu_of(0) == &gs_gpus[0] && relaxed == 10); /* what is known is not asked again */
    total_says = uuid_says = CUDA_SUCCESS;

    uint8_t wanted[GS_UUID_BYTES];
    memset(wanted, 0x40, sizeof wanted);
    REQUIRE(gs_gpu_with_uuid(wanted) == NULL); /* it has no line */
    struct gs_place place;
    REQUIRE(gs_place_device(&place, 0) && place.gpu == &gs_gpus[0] && place.context == 0);
    REQUIRE(asked == 1 && prepared == 1 && looked == 1);
    REQUIRE(gs_place_device(&place, 0) && asked == 1); /* it is attached */
    REQUIRE(gs_gpu_with_uuid(wanted) == &gs_gpus[0]);
    wanted[15]++;
    REQUIRE(gs_gpu_with_uuid(wanted) == NULL);
    refuses = true;
    REQUIRE(!gs_place_device(&place, 1) && place.gpu == &gs_gpus[1] && asked == 2 && looked == 2);
    REQUIRE(gs_place_device(&place, -1) && place.gpu == NULL && asked == 2); /* the driver's to say */
    refuses = false;
    REQUIRE(gs_place_device(&place, 1) && asked == 3);
}

/* ---- contexts against a list ---------------------------------------------------------------------- */

#define HANDLES 300

static struct known {
    bool there;
    uint32_t number, more;
    struct gs_gpu *gpu;
} model[HANDLES];

/* The first 24 have one and the same hash, so not all of them find a place; the others are as they come. */
static CUcontext handle_of(int i) {
    static CUcontext colliding[24];
    if (i >= 24)
        return (CUcontext)(uintptr_t)(0x10000 + (uint64_t)i * 0x350);
    if (colliding[i] == NULL) {
        uintptr_t at = 0x7f0000000000;
        struct gs_known_context *place = slot_at((CUcontext)at, 0);
        for (int found = 0; found <= i; at += 16)
            if (slot_at((CUcontext)at, 0) == place)
                colliding[found++] = (CUcontext)at;
    }
    return colliding[i];
}

static struct gs_known_context *chain_has_room(CUcontext handle) {
    for (unsigned probe = 0; probe < MAX_PROBE; probe++) {
        struct gs_known_context *slot = slot_at(handle, probe);
        bool used = false;
        for (int i = 0; i < HANDLES; i++)
            used = used || (model[i].there && slot->handle == handle_of(i));
        if (!used)
            return slot;
    }
    return NULL;
}

static void same_as_model(void) {
    struct gs_place place;
    for (int i = 0; i < HANDLES; i++) {
        REQUIRE(gs_context_find(handle_of(i), &place) == model[i].there);
        REQUIRE(!model[i].there || (place.gpu == model[i].gpu && place.context == model[i].number));
    }
    for (int gpu = 0; gpu < 3; gpu++) {
        CUcontext on = gs_context_on(&gs_gpus[gpu]);
        bool any_there = false, is_one = false;
        for (int i = 0; i < HANDLES; i++) {
            bool there = model[i].there && model[i].gpu == &gs_gpus[gpu];
            any_there = any_there || there;
            is_one = is_one || (there && handle_of(i) == on);
        }
        REQUIRE(any_there ? is_one : on == NULL);
    }
}

static void contexts(void) {
    uint32_t given = 0;
    int added = 0, full = 0, renewed = 0, named = 0;
    REQUIRE(!gs_context_add(NULL, &gs_gpus[0], true));
    for (int round = 0; round < 6000; round++) {
        int i = any(2) ? (int)any(24) : (int)any(any(2) ? 100 : HANDLES), what = (int)any(8);
        struct gs_gpu *gpu = &gs_gpus[any(2)];
        CUcontext handle = handle_of(i);
        bool room = model[i].there || chain_has_room(handle) != NULL;
        if (what < 3) {
            bool fresh = any(2);
            bool wanted = (!model[i].there || fresh) && room;
            REQUIRE(gs_context_add(handle, gpu, fresh) == wanted);
            renewed += wanted && model[i].there;
            full += !room;
            if (!model[i].there || fresh)
                given++;
            if (wanted) {
                model[i] = (struct known){true, given, 0, gpu};
                added++;
                REQUIRE(gs_last_context->handle == handle && gs_last_context->number == given);
            }
        } else if (what == 3) { /* a second handle of a context that is known */
            int of = (int)any(HANDLES);
            if (model[of].there && room) {
                struct gs_place place = {model[of].gpu, model[of].number};
                gs_context_add_name(handle, &place);
                model[i] = (struct known){true, place.context, 0, place.gpu};
                named++;
            }
        } else if (what == 4) {
            gs_context_remove_name(handle);
            model[i].there = false;
        } else if (what == 5) {
            uint32_t number = model[i].there ? model[i].number : given + 1;
            gs_context_remove(number);
            for (int other = 0; other < HANDLES; other++)
                model[other].there = model[other].there && model[other].number != number;
        } else {
            int change = what == 6 ? 1 : -1;
            bool left = model[i].there && (change > 0 || model[i].more > 0);
            REQUIRE(gs_context_use(handle, change) == left);
            model[i].more += left ? (uint32_t)change : 0;
        }
        if (round % 10 == 0)
            same_as_model();
    }
    same_as_model();
    REQUIRE(added > 1000 && full > 20 && renewed > 20 && named > 50);
}

/* Where a thread's memory is charged. */
static void places(void) {
    struct gs_place place;
    CUcontext one = handle_of(200), two = handle_of(201), unknown = (CUcontext)(uintptr_t)0x5550;
    gs_context_add(one, &gs_gpus[0], true);
    gs_context_add(two, &gs_gpus[1], true);
    uint32_t number = last_number;
    context_says = CUDA_ERROR_UNKNOWN;
    current_handle = two;
    REQUIRE(gs_place_current(&place) && place.gpu == NULL && place.context == 0);
    context_says = CUDA_SUCCESS;
    REQUIRE(gs_place_current(&place) && place.gpu == &gs_gpus[1] && place.context == number);
    current_handle = one;
    REQUIRE(gs_place_current(&place) && place.gpu == &gs_gpus[0] && place.context == number - 1);
    current_handle = NULL;
    REQUIRE(gs_place_current(&place) && place.gpu == NULL);
    uint32_t before = asked;
    for (int i = 0; i < 2; i++) {
        current_handle = i == 0 ? one : two;
        gs_gpus[i].attached = 0;
        refuses = true;
        REQUIRE(!gs_place_current(&place) && place.gpu == &gs_gpus[i]);
        refuses = false;
        REQUIRE(gs_place_current(&place) && gs_gpus[i].attached);
    }
    REQUIRE(asked == before + 4 && looked == asked);
    for (int i = 0; i < 4; i++) { /* neither the last one nor the other asks again */
        current_handle = i % 2 == 0 ? one : two;
        REQUIRE(gs_place_current(&place) && asked == before + 4 && looked == asked);
    }
    current_handle = unknown; /* then the driver says which device it is of */
    current_device = 1;
    REQUIRE(gs_place_current(&place) && place.gpu == &gs_gpus[1] && place.context == 0);
    device_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(gs_place_current(&place) && place.gpu == NULL);
}

/* Each place of the table is looked at. */
static void the_only_one(void) {
    for (int i = 0; i < SLOTS; i++) {
        CUcontext handle = (CUcontext)(uintptr_t)0x1000;
        while (slot_at(handle, 0) != &slots[i])
            handle = (CUcontext)((uintptr_t)handle + 16);
        REQUIRE(gs_context_add(handle, &gs_gpus[2], true) && gs_context_on(&gs_gpus[2]) == handle);
        gs_context_remove(last_number);
        REQUIRE(gs_context_on(&gs_gpus[2]) == NULL);
    }
}

static void fork_forgets(void) {
    struct gs_place place;
    at_fork();
    REQUIRE(!gs_gpus[0].known && gs_last_context == slots && !gs_context_find(handle_of(200), &place));
    for (int i = 0; i < SLOTS; i++)
        REQUIRE(slots[i].handle == NULL);
    REQUIRE(gs_context_on(&gs_gpus[0]) == NULL && gpus_lock.held == 0 && slots_lock.held == 0);
}

int main(void) {
    gpus();
    contexts();
    places();
    gpus_lock.held = slots_lock.held = 1;
    fork_forgets();
    the_only_one();
    return good();
}
