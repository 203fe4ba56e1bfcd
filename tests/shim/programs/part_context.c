/* part_context.c: contexts that open and close, over a driver and an account that the program plays.
 *
 * The driver may fail, say so late, end a context with an error of earlier work, and be looked at while it ends one. */
#include "part.h"

#define at_fork    fork_of_device
#define entry_fork entry_of_device
#include "device.c"
#undef at_fork
#undef entry_fork
#include "hook_context.c"

struct gs_driver gs_driver;
enum gs_mode gs_mode = GS_ON;
struct gs_table gs_pointers, gs_arrays;
static struct gs_line lines[2];

CUresult gs_missing(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool gs_wake(const void *witness, bool open) {
    (void)witness, (void)open;
    return false;
}

/* ---- what is told to the other parts -------------------------------------------------------------- */

static struct {
    uint32_t attaches, others, detaches, asks, overhead; /* of the account */
    uint32_t pointers, arrays, streams, limits, chosen;  /* of memory that ended with a context */
    uint32_t vmm_reset, pool_reset, unknown;
    uint32_t context; /* the last that ended */
    const struct gs_gpu *gpu;
} told;

static bool attaches = true, worth_it = true;

static void look(void) {
    memset(&told, 0, sizeof told);
}

bool gs_account_attach(struct gs_gpu *gpu) {
    told.attaches++;
    told.gpu = gpu;
    if (!attaches)
        return false;
    gpu->line = &lines[gpu->index];
    gpu->attached = 1;
    return true;
}

bool gs_account_attach_another(struct gs_gpu *gpu) {
    REQUIRE(gpu->contexts != 0);
    told.others++;
    return attaches;
}

void gs_account_detach(struct gs_gpu *gpu) {
    told.detaches++;
    told.gpu = gpu;
    gpu->attached = 0;
}

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    told.asks++;
    told.gpu = gpu;
    told.overhead = units;
    return worth_it;
}

void gs_process_prepare(void) {}

void gs_look_for_copies(void) {}

void gs_charge_context_gone(struct gs_table *table, uint32_t context) {
    REQUIRE(context != 0 && (table == &gs_pointers || table == &gs_arrays));
    REQUIRE(told.pointers + told.arrays == 0 || context == told.context || told.arrays == told.pointers);
    told.pointers += table == &gs_pointers;
    told.arrays += table == &gs_arrays;
    told.context = context;
}

void gs_streams_context_gone(uint32_t context) {
    REQUIRE(context == told.context);
    told.streams++;
}

void gs_limit_context_gone(uint32_t context) {
    REQUIRE(context == told.context);
    told.limits++;
}

void gs_pool_chosen(void) {
    told.chosen++;
}

void gs_vmm_was_reset(const struct gs_gpu *gpu) {
    told.vmm_reset++;
    told.gpu = gpu;
}

void gs_pool_was_reset(const struct gs_gpu *gpu) {
    REQUIRE(gpu == told.gpu);
    told.pool_reset++;
}

void gs_streams_unknown(void) {
    told.unknown++;
}

/* So many contexts have ended, with all that was in them. */
static bool have_ended(uint32_t count) {
    return told.pointers == count && told.arrays == count && told.streams == count && told.limits == count &&
           told.chosen == count;
}

/* ---- the driver ----------------------------------------------------------------------------------- */

static CUresult says, destroy_says;
static uint32_t calls, destroys, relaxed;
static uintptr_t next_context = 0x10000;
static bool hidden; /* whether the context was not to be found while it was destroyed */
static CUcontext current;
static CUresult current_says;
static int fail_first; /* so many calls fail for want of memory */

static CUresult make(CUcontext *context, CUdevice device) {
    (void)device;
    calls++;
    if (fail_first > 0) {
        fail_first--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (says == CUDA_SUCCESS && context != NULL)
        *context = (CUcontext)(next_context += 0x100);
    return says;
}

static CUresult create_1(CUcontext *context, unsigned int flags, CUdevice device) {
    REQUIRE(flags == 3);
    return make(context, device);
}

static CUresult create_3(CUcontext *context, CUexecAffinityParam *affinity, int count_, unsigned int flags,
                         CUdevice device) {
    REQUIRE(affinity == NULL && count_ == 4 && flags == 3);
    return make(context, device);
}

static CUresult create_4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    REQUIRE(params == NULL && flags == 3);
    return make(context, device);
}

static CUresult create_vdpau(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *door) {
    REQUIRE(flags == 3 && vdpau == 5 && door == &says);
    return make(context, device);
}

static CUresult create_by(int way, CUcontext *context, CUdevice device) {
    switch (way) {
    case 0:
        return cuCtxCreate(context, 3, device);
    case 1:
        return cuCtxCreate_v2(context, 3, device);
    case 2:
        return cuCtxCreate_v3(context, NULL, 4, 3, device);
    case 3:
        return cuCtxCreate_v4(context, NULL, 3, device);
    case 4:
        return cuGLCtxCreate(context, 3, device);
    case 5:
        return cuGLCtxCreate_v2(context, 3, device);
    case 6:
        return cuVDPAUCtxCreate(context, 3, device, 5, &says);
    default:
        return cuVDPAUCtxCreate_v2(context, 3, device, 5, &says);
    }
}

static CUresult destroy(CUcontext context) {
    struct gs_place place;
    destroys++;
    hidden = !gs_context_find(context, &place);
    return destroy_says;
}

static CUresult attach(CUcontext *context, unsigned int flags) {
    REQUIRE(flags == 0);
    *context = current;
    return says;
}

static CUresult detach(CUcontext context) {
    (void)context;
    destroys++;
    return destroy_says;
}

static CUresult total_mem(size_t *bytes, CUdevice device) {
    *bytes = 1ull << 30;
    return device < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device) {
    memset(uuid->bytes, 0x40 + device, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    (void)mode;
    relaxed++;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context) {
    current = context;
    return current_says;
}

/* A primary context has one handle in all of its lives. */
static struct {
    uint32_t references;
    int active;     /* as the driver says */
    bool says_late; /* its last release, or a reset, does not show at once */
} primary[2];

static CUresult retain_says, release_says, state_says;
static uint32_t retains, releases, resets;

static CUcontext handle_of(CUdevice device) {
    return (CUcontext)(uintptr_t)(0x8000 + device * 0x100);
}

static CUresult retain(CUcontext *context, CUdevice device) {
    retains++;
    if (fail_first > 0) {
        fail_first--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (retain_says != CUDA_SUCCESS)
        return retain_says;
    *context = handle_of(device);
    if (device > 1) /* one that only this call knows */
        return CUDA_SUCCESS;
    primary[device].references++;
    primary[device].active = 1;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device) {
    releases++;
    if (primary[device].references != 0 && --primary[device].references == 0 && !primary[device].says_late)
        primary[device].active = 0;
    return release_says;
}

static CUresult reset(CUdevice device) {
    resets++;
    if (device < 2 && release_says == CUDA_SUCCESS && !primary[device].says_late)
        primary[device].active = 0;
    return release_says;
}

static CUresult state(CUdevice device, unsigned int *flags, int *active) {
    REQUIRE(relaxed % 2 == 1);
    *flags = 0;
    *active = primary[device].active;
    return state_says;
}

static CUresult green_says, green_destroy_says, from_green_says;
static uint32_t greens, green_destroys;

static CUresult green_create(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    REQUIRE(resources == NULL && flags == 1);
    greens++;
    if (fail_first > 0) {
        fail_first--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (green_says == CUDA_SUCCESS) {
        *green = (CUgreenCtx)(uintptr_t)0x600;
        primary[device % 2].references++;
        primary[device % 2].active = 1;
    }
    return green_says;
}

static CUresult green_destroy(CUgreenCtx green) {
    green_destroys++;
    if (green == (CUgreenCtx)(uintptr_t)0x600 && green_destroy_says == CUDA_SUCCESS && --primary[0].references == 0)
        primary[0].active = 0;
    return green_destroy_says;
}

static CUresult from_green(CUcontext *context, CUgreenCtx green) {
    *context = (CUcontext)green;
    return from_green_says;
}

static void start(void) {
    static const uint32_t overhead = 11;
    fork_of_device();
    at_fork();
    memset(lines, 0, sizeof lines);
    memset(primary, 0, sizeof primary);
    lines[0].overhead = lines[1].overhead = overhead;
    calls = destroys = retains = releases = resets = greens = green_destroys = 0;
    look();
}

static bool is_known(CUcontext context, int gpu) {
    struct gs_place place;
    return gs_context_find(context, &place) && place.gpu == &gs_gpus[gpu];
}

static bool holds(int gpu, uint32_t contexts) {
    return gs_gpus[gpu].contexts == contexts && lines[gpu].contexts == contexts;
}

/* ---- contexts of the program ---------------------------------------------------------------------- */

static void opened_and_closed(void) {
    for (int way = 0; way < 8; way++) {
        CUcontext first = NULL, second = NULL, none = NULL;
        start();
        REQUIRE(create_by(way, &first, 0) == CUDA_SUCCESS && is_known(first, 0) && holds(0, 1) && calls == 1);
        REQUIRE(told.attaches == 1 && told.others == 0 && told.detaches == 0 && told.asks == 0);
        REQUIRE(create_by(way, &second, 1) == CUDA_SUCCESS && is_known(second, 1) && holds(1, 1) && holds(0, 1));
        says = CUDA_ERROR_UNKNOWN;
        look();
        REQUIRE(create_by(way, &none, 0) == CUDA_ERROR_UNKNOWN && told.detaches == 0 && holds(0, 1));
        calls = 0;
        says = CUDA_ERROR_OUT_OF_MEMORY; /* the daemon is told, and it is tried once more */
        REQUIRE(create_by(way, &none, 0) == CUDA_ERROR_OUT_OF_MEMORY && calls == 2 && told.asks == 1);
        REQUIRE(told.overhead == 11 && told.gpu == &gs_gpus[0]);
        worth_it = false;
        REQUIRE(create_by(way, &none, 0) == CUDA_ERROR_OUT_OF_MEMORY && calls == 3 && told.asks == 2);
        worth_it = true;
        says = CUDA_SUCCESS;
        fail_first = 1;
        REQUIRE(create_by(way, &none, 0) == CUDA_SUCCESS && is_known(none, 0) && holds(0, 2) && calls == 5);
        REQUIRE(told.attaches == 0 && told.others == 4); /* each is charged */
        attaches = false;
        REQUIRE(create_by(way, &second, 0) == CUDA_ERROR_OUT_OF_MEMORY && calls == 5 && holds(0, 2));
        attaches = true;
        look();
        REQUIRE(cuCtxDestroy_v2(none) == CUDA_SUCCESS && hidden && have_ended(1) && holds(0, 1) && told.detaches == 0);
        REQUIRE(!is_known(none, 0) && is_known(first, 0));
        uint32_t ended = told.context;
        look();
        REQUIRE(cuCtxDestroy(first) == CUDA_SUCCESS && hidden && have_ended(1) && told.context != ended);
        REQUIRE(holds(0, 0) && told.detaches == 1 && told.gpu == &gs_gpus[0] && !gs_gpus[0].attached);
        says = CUDA_ERROR_UNKNOWN; /* a GPU on which none could open is left */
        look();
        REQUIRE(create_by(way, &none, 0) == CUDA_ERROR_UNKNOWN && told.attaches == 1 && told.detaches == 1);
        says = CUDA_SUCCESS;
        attaches = false;
        calls = 0;
        REQUIRE(create_by(way, &none, 0) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0);
        attaches = true;
    }
}

/* A handle that the driver gives out again is another context's: the one before has ended unseen. */
static void the_same_handle_again(void) {
    CUcontext context;
    struct gs_place before, after;
    start();
    REQUIRE(cuCtxCreate_v2(&context, 3, 0) == CUDA_SUCCESS && gs_context_find(context, &before));
    next_context -= 0x100;
    REQUIRE(cuCtxCreate_v2(&context, 3, 1) == CUDA_SUCCESS && gs_context_find(context, &after));
    REQUIRE(after.gpu == &gs_gpus[1] && after.context != before.context && holds(1, 1));
}

/* Without a budget, without a place for the answer, on a device that is none: the driver's to say. */
static void passed_on(void) {
    for (int way = 0; way < 8; way++) {
        CUcontext context;
        start();
        REQUIRE(create_by(way, NULL, 0) == CUDA_SUCCESS && create_by(way, &context, 9) == CUDA_SUCCESS);
        says = CUDA_ERROR_OUT_OF_MEMORY;
        REQUIRE(create_by(way, &context, 9) == CUDA_ERROR_OUT_OF_MEMORY && calls == 3);
        says = CUDA_SUCCESS;
        gs_mode = GS_INERT;
        REQUIRE(create_by(way, &context, 0) == CUDA_SUCCESS && calls == 4 && !is_known(context, 0));
        gs_mode = GS_ON;
        REQUIRE(told.attaches == 0 && told.detaches == 0 && told.asks == 0);
    }
    look();
    REQUIRE(cuCtxDestroy((CUcontext)0x70) == CUDA_SUCCESS && cuCtxDestroy_v2((CUcontext)0x70) == CUDA_SUCCESS);
    REQUIRE(destroys == 2 && have_ended(0) && told.detaches == 0);
}

static void a_destroy_that_fails(void) {
    CUcontext context;
    struct gs_place before, after;
    start();
    REQUIRE(cuCtxCreate_v2(&context, 3, 0) == CUDA_SUCCESS && gs_context_find(context, &before));
    destroy_says = CUDA_ERROR_UNKNOWN;
    for (int version = 1; version < 3; version++) {
        REQUIRE((version == 1 ? cuCtxDestroy(context) : cuCtxDestroy_v2(context)) == CUDA_ERROR_UNKNOWN && hidden);
        REQUIRE(gs_context_find(context, &after) && after.gpu == before.gpu && after.context == before.context);
        REQUIRE(holds(0, 1) && have_ended(0) && told.detaches == 0);
    }
    destroy_says = CUDA_SUCCESS;
    gs_mode = GS_INERT;
    REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS && !hidden && is_known(context, 0));
    gs_mode = GS_ON;
}

/* Uses are counted, and the last one to go ends it. */
static void attached(void) {
    CUcontext context;
    start();
    REQUIRE(cuCtxCreate_v2(&current, 3, 0) == CUDA_SUCCESS);
    CUcontext made = current;
    says = CUDA_ERROR_UNKNOWN;
    REQUIRE(cuCtxAttach(&context, 0) == CUDA_ERROR_UNKNOWN && cuCtxAttach(&context, 0) == CUDA_ERROR_UNKNOWN);
    says = CUDA_SUCCESS;
    gs_mode = GS_INERT;
    REQUIRE(cuCtxAttach(&context, 0) == CUDA_SUCCESS);
    gs_mode = GS_ON;
    REQUIRE(cuCtxAttach(&context, 0) == CUDA_SUCCESS && context == made);
    destroy_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(cuCtxDetach(made) == CUDA_ERROR_UNKNOWN && cuCtxDetach(made) == CUDA_ERROR_UNKNOWN);
    destroy_says = CUDA_SUCCESS;
    REQUIRE(cuCtxDetach(made) == CUDA_SUCCESS && is_known(made, 0) && have_ended(0)); /* one use is left */
    gs_mode = GS_INERT;
    REQUIRE(cuCtxDetach(made) == CUDA_SUCCESS && is_known(made, 0));
    gs_mode = GS_ON;
    REQUIRE(cuCtxDetach(made) == CUDA_SUCCESS && !is_known(made, 0) && have_ended(1) && holds(0, 0));
    REQUIRE(cuCtxDetach(made) == CUDA_SUCCESS && have_ended(1)); /* it is unknown now */
}

/* ---- the primary context -------------------------------------------------------------------------- */

static CUresult release_by(int version, CUdevice device) {
    return version == 1 ? cuDevicePrimaryCtxRelease(device) : cuDevicePrimaryCtxRelease_v2(device);
}

static CUresult reset_by(int version, CUdevice device) {
    return version == 1 ? cuDevicePrimaryCtxReset(device) : cuDevicePrimaryCtxReset_v2(device);
}

static void retained_and_released(void) {
    for (int version = 1; version < 3; version++) {
        CUcontext context = NULL;
        start();
        for (int life = 0; life < 2; life++) {
            look();
            for (int i = 0; i < 2; i++) /* it is one context, however often it is retained */
                REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS && context == handle_of(1));
            REQUIRE(is_known(context, 1) && holds(1, 1) && told.attaches == 1 && told.detaches == 0);
            REQUIRE(told.others == 0);
            REQUIRE(release_by(version, 1) == CUDA_SUCCESS && is_known(context, 1) && have_ended(0));
            release_says = CUDA_ERROR_LAUNCH_FAILED; /* an error of earlier work: it has ended all the same */
            REQUIRE(release_by(version, 1) == CUDA_ERROR_LAUNCH_FAILED && !is_known(context, 1) && have_ended(1));
            REQUIRE(holds(1, 0) && told.detaches == 1 && told.vmm_reset == 0 && told.pool_reset == 0);
            release_says = CUDA_SUCCESS;
            REQUIRE(release_by(version, 1) == CUDA_SUCCESS && have_ended(1)); /* nobody has it */
        }
        look();
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
        state_says = CUDA_ERROR_UNKNOWN; /* nobody knows whether it has ended */
        REQUIRE(release_by(version, 1) == CUDA_SUCCESS && is_known(context, 1) && have_ended(0));
        state_says = CUDA_SUCCESS;
        REQUIRE(release_by(version, 1) == CUDA_SUCCESS && have_ended(1));
    }
}

/* It is charged beside other contexts that are there, once. Each GPU has its own. */
static void beside_others(void) {
    CUcontext own, context;
    start();
    REQUIRE(cuCtxCreate_v2(&own, 3, 0) == CUDA_SUCCESS);
    for (int i = 0; i < 2; i++)
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && told.others == 1 && holds(0, 2));
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS && told.others == 1 && holds(1, 1));
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && context == handle_of(0));
    REQUIRE(release_by(2, 1) == CUDA_SUCCESS && !is_known(handle_of(1), 1) && is_known(handle_of(0), 0));
    REQUIRE(holds(0, 2) && holds(1, 0));
    gs_gpus[0].attached = 0; /* a daemon that does not know us, and refuses: nothing more is asked */
    attaches = false;
    look();
    REQUIRE(cuCtxCreate_v2(&own, 3, 0) == CUDA_ERROR_OUT_OF_MEMORY && told.attaches == 1 && told.others == 0);
    attaches = true;
}

/* A context for which the list has no room is there all the same. */
static void more_than_can_be_noted(void) {
    CUcontext context;
    start();
    for (uintptr_t i = 1; i < 10000; i++)
        gs_context_add((CUcontext)(i * 16), &gs_gpus[1], true);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && told.attaches == 1 && told.detaches == 0);
    REQUIRE(!is_known(context, 0) && gs_gpus[0].attached);
}

static void a_primary_context_that_does_not_open(void) {
    CUcontext context = NULL;
    start();
    fail_first = 1;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && retains == 2 && told.asks == 1 && holds(0, 1));
    REQUIRE(told.overhead == 11);
    retain_says = CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_OUT_OF_MEMORY && retains == 4 && told.detaches == 0);
    context = (CUcontext)0x7777; /* what nobody has set */
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_ERROR_OUT_OF_MEMORY && told.detaches == 1);
    REQUIRE(told.gpu == &gs_gpus[1] && retains == 6 && !is_known(context, 1) && holds(1, 0));
    attaches = false;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_ERROR_OUT_OF_MEMORY && retains == 6);
    attaches = true;
    retain_says = CUDA_ERROR_INVALID_DEVICE;
    look();
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 5) == CUDA_ERROR_INVALID_DEVICE); /* unknown to the driver */
    REQUIRE(cuDevicePrimaryCtxRetain(&context, -1) == CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, GS_MAX_GPUS) == CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(cuDevicePrimaryCtxRetain(NULL, 1) == CUDA_ERROR_INVALID_DEVICE && retains == 10);
    REQUIRE(told.attaches == 0 && told.detaches == 0);
    retain_says = CUDA_SUCCESS;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 5) == CUDA_SUCCESS && told.attaches == 0 && !is_known(context, 0));
    gs_mode = GS_INERT;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS && !is_known(context, 1));
    gs_mode = GS_ON;
}

static void resets_of_a_gpu(void) {
    for (int version = 1; version < 3; version++) {
        CUcontext context = NULL;
        start();
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
        look();
        release_says = CUDA_ERROR_UNKNOWN;
        REQUIRE(reset_by(version, 1) == CUDA_ERROR_UNKNOWN && is_known(context, 1) && have_ended(0));
        REQUIRE(told.vmm_reset == 0 && told.pool_reset == 0);
        release_says = CUDA_SUCCESS;
        primary[1].says_late = true; /* the call has ended it, whatever is said of it now */
        REQUIRE(reset_by(version, 1) == CUDA_SUCCESS && !is_known(context, 1) && have_ended(1) && holds(1, 0));
        REQUIRE(told.vmm_reset == 1 && told.pool_reset == 1 && told.gpu == &gs_gpus[1] && told.detaches == 1);
        REQUIRE(reset_by(version, 1) == CUDA_SUCCESS && have_ended(1) && told.vmm_reset == 2); /* without a context */
        REQUIRE(reset_by(version, 0) == CUDA_SUCCESS && told.vmm_reset == 2); /* nothing of ours was ever there */
        REQUIRE(reset_by(version, 5) == CUDA_SUCCESS && told.vmm_reset == 2); /* unknown to us */
        REQUIRE(resets == 5);
        gs_mode = GS_INERT;
        REQUIRE(reset_by(version, 1) == CUDA_SUCCESS && told.vmm_reset == 2 && release_by(version, 1) == CUDA_SUCCESS);
        gs_mode = GS_ON;
    }
}

static CUresult any_device(CUdevice device) {
    REQUIRE(device == -1 || device == GS_MAX_GPUS);
    releases++;
    return CUDA_ERROR_INVALID_DEVICE;
}

static void devices_that_are_none(void) {
    gs_driver.cuDevicePrimaryCtxRelease = gs_driver.cuDevicePrimaryCtxRelease_v2 = any_device;
    gs_driver.cuDevicePrimaryCtxReset = gs_driver.cuDevicePrimaryCtxReset_v2 = any_device;
    releases = 0;
    for (int version = 1; version < 3; version++) {
        REQUIRE(release_by(version, -1) == CUDA_ERROR_INVALID_DEVICE);
        REQUIRE(release_by(version, GS_MAX_GPUS) == CUDA_ERROR_INVALID_DEVICE);
        REQUIRE(reset_by(version, -1) == CUDA_ERROR_INVALID_DEVICE);
        REQUIRE(reset_by(version, GS_MAX_GPUS) == CUDA_ERROR_INVALID_DEVICE);
    }
    REQUIRE(releases == 8);
}

/* ---- looks from elsewhere ------------------------------------------------------------------------- */

static void entered(void) {
    bool is_primary = true;
    CUcontext own, context;
    start();
    REQUIRE(gs_gpu_of(0) == &gs_gpus[0] && gs_gpu_of(1) == &gs_gpus[1]);
    current = NULL;
    REQUIRE(!gs_context_enter(&gs_gpus[0], &is_primary) && !is_primary && current == NULL);
    REQUIRE(cuCtxCreate_v2(&own, 3, 0) == CUDA_SUCCESS);
    REQUIRE(gs_context_enter(&gs_gpus[0], &is_primary) && !is_primary && current == own);
    REQUIRE(!gs_context_enter(&gs_gpus[1], &is_primary));
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(gs_context_enter(&gs_gpus[0], &is_primary) && is_primary && current == handle_of(0));
    primary[0].active = 0; /* another thread is ending it */
    REQUIRE(gs_context_enter(&gs_gpus[0], &is_primary) && !is_primary);
    current_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(!gs_context_enter(&gs_gpus[0], &is_primary));
    current_says = CUDA_SUCCESS;
}

/* ---- green contexts ------------------------------------------------------------------------------- */

static void green(void) {
    CUgreenCtx made = NULL;
    CUcontext context = NULL, name = (CUcontext)(uintptr_t)0x600;
    start();
    REQUIRE(cuGreenCtxCreate(&made, NULL, 0, 1) == CUDA_SUCCESS && greens == 1);
    REQUIRE(retains == 1 && releases == 1 && primary[0].references == 1);   /* it was only asked for */
    REQUIRE(is_known(handle_of(0), 0) && is_known(name, 0) && holds(0, 1)); /* they are one context */
    look();
    green_destroy_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(cuGreenCtxDestroy(made) == CUDA_ERROR_UNKNOWN && is_known(name, 0) && told.unknown == 0);
    green_destroy_says = CUDA_SUCCESS;
    REQUIRE(cuGreenCtxDestroy(made) == CUDA_SUCCESS && !is_known(name, 0) && !is_known(handle_of(0), 0));
    REQUIRE(told.unknown == 1 && have_ended(1) && holds(0, 0) && told.detaches == 1);

    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS); /* the program has the primary one, too */
    retains = releases = 0;
    look();
    REQUIRE(cuGreenCtxCreate(&made, NULL, 0, 1) == CUDA_SUCCESS && retains == 0 && releases == 0 && holds(0, 1));
    REQUIRE(cuGreenCtxDestroy(made) == CUDA_SUCCESS && is_known(handle_of(0), 0) && have_ended(0) && told.unknown == 1);
    REQUIRE(!is_known(name, 0));
    REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS && have_ended(1));
}

static void green_ones_that_do_not_open(void) {
    CUgreenCtx made = NULL;
    start();
    fail_first = 1;
    REQUIRE(cuGreenCtxCreate(&made, NULL, 0, 1) == CUDA_SUCCESS && greens == 2 && told.asks == 1 && holds(0, 1));
    green_says = CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(cuGreenCtxCreate(&made, NULL, 0, 1) == CUDA_ERROR_OUT_OF_MEMORY && greens == 4 && told.detaches == 0);
    REQUIRE(cuGreenCtxCreate(&made, NULL, 1, 1) == CUDA_ERROR_OUT_OF_MEMORY && told.detaches == 1);
    attaches = false;
    greens = 0;
    REQUIRE(cuGreenCtxCreate(&made, NULL, 1, 1) == CUDA_ERROR_OUT_OF_MEMORY && greens == 0);
    attaches = true;
    green_says = CUDA_ERROR_INVALID_DEVICE;
    look();
    REQUIRE(cuGreenCtxCreate(&made, NULL, 5, 1) == CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(cuGreenCtxCreate(&made, NULL, -1, 1) == CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(cuGreenCtxCreate(NULL, NULL, 1, 1) == CUDA_ERROR_INVALID_DEVICE);
    gs_mode = GS_INERT;
    REQUIRE(cuGreenCtxCreate(&made, NULL, 1, 1) == CUDA_ERROR_INVALID_DEVICE && greens == 4);
    green_destroys = 0;
    REQUIRE(cuGreenCtxDestroy(made) == CUDA_SUCCESS && green_destroys == 1 && told.unknown == 0);
    gs_mode = GS_ON;
    REQUIRE(told.attaches == 0 && told.detaches == 0);
    green_says = CUDA_SUCCESS;
    REQUIRE(cuGreenCtxCreate(&made, NULL, 5, 1) == CUDA_SUCCESS && told.attaches == 0);
    from_green_says = CUDA_ERROR_UNKNOWN; /* its handle is not told: it goes past us */
    start();
    REQUIRE(cuGreenCtxCreate(&made, NULL, 0, 1) == CUDA_SUCCESS && !is_known((CUcontext)made, 0) && holds(0, 1));
    REQUIRE(cuGreenCtxDestroy(made) == CUDA_SUCCESS && told.unknown == 0 && have_ended(0));
    from_green_says = CUDA_SUCCESS;
    REQUIRE(cuGreenCtxDestroy((CUgreenCtx)(uintptr_t)0x999) == CUDA_SUCCESS && told.unknown == 0);
}

static void fork_forgets(void) {
    CUcontext context;
    start();
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && primaries[0].context == context);
    primaries[0].mutex.state = 1;
    at_fork();
    REQUIRE(primaries[0].context == NULL && primaries[0].mutex.state == 0);
}

int main(void) {
    gs_driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
    gs_driver.cuDeviceTotalMem_v2 = total_mem;
    gs_driver.cuDeviceGetUuid_v2 = uuid_of;
    gs_driver.cuCtxCreate = gs_driver.cuCtxCreate_v2 = create_1;
    gs_driver.cuCtxCreate_v3 = create_3;
    gs_driver.cuCtxCreate_v4 = create_4;
    gs_driver.cuGLCtxCreate = gs_driver.cuGLCtxCreate_v2 = create_1;
    gs_driver.cuVDPAUCtxCreate = gs_driver.cuVDPAUCtxCreate_v2 = create_vdpau;
    gs_driver.cuCtxDestroy = gs_driver.cuCtxDestroy_v2 = destroy;
    gs_driver.cuCtxAttach = attach;
    gs_driver.cuCtxDetach = detach;
    gs_driver.cuCtxSetCurrent = set_current;
    gs_driver.cuDevicePrimaryCtxRetain = retain;
    gs_driver.cuDevicePrimaryCtxRelease = gs_driver.cuDevicePrimaryCtxRelease_v2 = release;
    gs_driver.cuDevicePrimaryCtxReset = gs_driver.cuDevicePrimaryCtxReset_v2 = reset;
    gs_driver.cuDevicePrimaryCtxGetState = state;
    gs_driver.cuGreenCtxCreate = green_create;
    gs_driver.cuGreenCtxDestroy = green_destroy;
    gs_driver.cuCtxFromGreenCtx = from_green;
    opened_and_closed();
    the_same_handle_again();
    passed_on();
    a_destroy_that_fails();
    attached();
    retained_and_released();
    beside_others();
    more_than_can_be_noted();
    a_primary_context_that_does_not_open();
    resets_of_a_gpu();
    entered();
    green();
    green_ones_that_do_not_open();
    fork_forgets();
    devices_that_are_none();
    return good();
}
