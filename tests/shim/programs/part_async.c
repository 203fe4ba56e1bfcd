/* part_async.c: the hooks of stream-ordered memory, over a driver and an account of pools that the program plays. */
#include "part_bank.h"

#include "hook_pool.c"
#include "hook_sync.c"
#include "charge.c"
#include "table.c"

/* ---- the account of pools, and streams ------------------------------------------------------------ */

static struct gs_pool one = {.gpu = &gs_gpus[0], .handle = (CUmemoryPool)(uintptr_t)0x70, .state = GS_POOL_ALIVE};
static struct gs_pool foreign = {.handle = (CUmemoryPool)(uintptr_t)0x71, .state = GS_POOL_ALIVE};

static struct {
    uint32_t enters, leaves, corrects, asks, undoes, all, chosen, adds, begins, ends, units;
    bool gone;
    CUmemoryPool handle;
    struct gs_gpu *gpu;
} calls;

static bool enters = true, undoes, attached = true;
static int correct_after; /* so many times the growth is refused; -1: always */
static struct gs_gpu *stream_gpu, *here = &gs_gpus[0];
static CUmemoryPool current = (CUmemoryPool)(uintptr_t)0x70;

uint32_t gs_captures, gs_captures_lost;

struct gs_pool *gs_pool_numbered(uint32_t number) {
    REQUIRE(number == 4);
    return &one;
}

uint32_t gs_pool_number(const struct gs_pool *pool) {
    REQUIRE(pool == &one);
    return 4;
}

struct gs_pool *gs_pool_find(CUmemoryPool handle) {
    return handle == one.handle ? &one : handle == foreign.handle ? &foreign : NULL;
}

struct gs_pool *gs_pool_of(CUmemoryPool handle) {
    return gs_pool_find(handle);
}

struct gs_pool *gs_pool_add(CUmemoryPool handle, struct gs_gpu *gpu) {
    calls.adds++;
    calls.handle = handle;
    calls.gpu = gpu;
    return NULL;
}

struct gs_gpu *gs_pool_place(const CUmemLocation *location, CUmemAllocationType type) {
    REQUIRE(type == CU_MEM_ALLOCATION_TYPE_PINNED);
    return &gs_gpus[location->id];
}

CUmemoryPool gs_pool_current(uint32_t device) {
    REQUIRE(device == (stream_gpu != NULL ? 1u : 0u));
    return current;
}

void gs_pool_chosen(void) {
    calls.chosen++;
}

bool gs_pool_enter(struct gs_pool *pool, uint32_t units) {
    REQUIRE(pool == &one);
    calls.enters++;
    calls.units = units;
    return enters;
}

void gs_pool_leave(struct gs_pool *pool, uint32_t units) {
    REQUIRE(pool == &one && units == calls.units);
    calls.leaves++;
}

uint32_t gs_pool_correct(struct gs_pool *pool) {
    REQUIRE(pool == &one);
    calls.corrects++;
    return 0;
}

bool gs_pool_correct_asking(struct gs_pool *pool) {
    REQUIRE(pool == &one);
    calls.asks++;
    if (correct_after == 0)
        return true;
    correct_after -= correct_after > 0;
    return false;
}

bool gs_pool_undo_growth(struct gs_pool *pool) {
    REQUIRE(pool == &one);
    calls.undoes++;
    return undoes;
}

void gs_pool_correct_all(void) {
    calls.all++;
}

void gs_pool_begin_to_destroy(struct gs_pool *pool) {
    REQUIRE(pool == &one && calls.ends == 0);
    calls.begins++;
}

void gs_pool_end_destroying(struct gs_pool *pool, bool gone) {
    REQUIRE(pool == &one && calls.begins == 1);
    calls.ends++;
    calls.gone = gone;
}

struct gs_gpu *gs_stream_gpu(CUstream stream) {
    (void)stream;
    return stream_gpu;
}

static uint32_t failed;
static bool worth_another_try;
bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[0] && units == calls.units);
    failed++;
    return worth_another_try;
}

void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units) {
    (void)gpu, (void)units;
    REQUIRE(false);
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)context;
    *place = (struct gs_place){here, 0};
    return attached;
}

static uint32_t attaches;
bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    attaches++;
    return attached;
}

/* ---- the driver ------------------------------------------------------------------------------------ */

static struct {
    uint32_t allocs, frees;
    int variant; /* of the last call: 1 or 2 */
    CUmemoryPool pool;
    size_t size;
    CUstream stream;
    uint64_t pointer;
} driver;

static CUresult says[4], free_says; /* the answers of the next allocations */
static uint64_t address = 0xabc000;

static CUresult give(int variant, CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    driver.variant = variant;
    driver.pool = pool;
    driver.size = size;
    driver.stream = stream;
    CUresult result = says[driver.allocs++ & 3];
    if (pointer != NULL && result == CUDA_SUCCESS)
        *pointer = address;
    return result;
}

static CUresult take(int variant, CUdeviceptr pointer, CUstream stream) {
    driver.variant = variant;
    driver.pointer = pointer;
    driver.stream = stream;
    driver.frees++;
    return free_says;
}

static CUresult alloc_1(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return give(1, pointer, size, NULL, stream);
}

static CUresult alloc_2(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return give(2, pointer, size, NULL, stream);
}

static CUresult from_1(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    return give(1, pointer, size, pool, stream);
}

static CUresult from_2(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    return give(2, pointer, size, pool, stream);
}

static CUresult free_1(CUdeviceptr pointer, CUstream stream) {
    return take(1, pointer, stream);
}

static CUresult free_2(CUdeviceptr pointer, CUstream stream) {
    return take(2, pointer, stream);
}

static bool capturing[2];

static CUresult is_capturing_1(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = capturing[0] ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult is_capturing_2(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = capturing[1] ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *context) {
    *context = here != NULL ? (CUcontext)(uintptr_t)16 : NULL;
    return CUDA_SUCCESS;
}

static CUresult of_pool;
static bool slept; /* the driver was called before it was found */
static CUmemoryPool fresh = (CUmemoryPool)(uintptr_t)0x90;

static CUresult set_pool(CUdevice device, CUmemoryPool pool) {
    REQUIRE(device == 1 && pool == one.handle && calls.chosen == 0);
    return of_pool;
}

static CUresult set_of_place(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    REQUIRE(location->id == 1 && type == CU_MEM_ALLOCATION_TYPE_PINNED && pool == one.handle && calls.chosen == 0);
    return of_pool;
}

static CUresult create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    (void)properties;
    *pool = fresh;
    return of_pool;
}

static CUresult of_place(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    (void)location, (void)type;
    *pool = fresh;
    return of_pool;
}

static CUresult import(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags) {
    REQUIRE(handle == &fresh && flags == 3);
    (void)type;
    *pool = fresh;
    return of_pool;
}

static CUresult destroy(CUmemoryPool pool) {
    slept = slept || gs_mode == GS_ASLEEP;
    REQUIRE(calls.ends == 0 && (pool != one.handle || gs_mode != GS_ON || calls.begins == 1));
    return of_pool;
}

static CUresult trim_to(CUmemoryPool pool, size_t keep) {
    slept = slept || gs_mode == GS_ASLEEP;
    REQUIRE(pool != NULL && keep == 77 && calls.corrects == 0);
    return of_pool;
}

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    slept = slept || gs_mode == GS_ASLEEP;
    REQUIRE(pool != NULL && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value == &fresh && calls.corrects == 0);
    return of_pool;
}

static CUresult waited(void) {
    slept = slept || gs_mode == GS_ASLEEP;
    return of_pool;
}

static CUresult waited_for(CUstream stream) {
    slept = slept || gs_mode == GS_ASLEEP;
    REQUIRE(stream == (CUstream)(uintptr_t)0x55);
    return of_pool;
}

static CUresult waited_for_event(CUevent event) {
    slept = slept || gs_mode == GS_ASLEEP;
    REQUIRE(event == (CUevent)(uintptr_t)0x55);
    return of_pool;
}

static CUresult waited_for_context(CUcontext context) {
    slept = slept || gs_mode == GS_ASLEEP;
    REQUIRE(context == (CUcontext)(uintptr_t)0x55);
    return of_pool;
}

/* ---- the stories ------------------------------------------------------------------------------------ */

static void begin(void) {
    memset(&calls, 0, sizeof calls);
    memset(&driver, 0, sizeof driver);
    memset(says, 0, sizeof says);
    free_says = of_pool = CUDA_SUCCESS;
    failed = attaches = 0;
    enters = attached = true;
    undoes = worth_another_try = false;
    correct_after = 0;
    gs_captures = 0;
    gs_unknown_frees = 0;
    gs_mode = GS_ON;
    stream_gpu = NULL;
    here = &gs_gpus[0];
    current = one.handle;
}

#define STREAM ((CUstream)(uintptr_t)0x33)

static CUresult allocate_by(int way, CUdeviceptr *pointer, size_t size, CUmemoryPool pool) {
    switch (way) {
    case 0:
        return cuMemAllocAsync(pointer, size, STREAM);
    case 1:
        return cuMemAllocAsync_ptsz(pointer, size, STREAM);
    case 2:
        return cuMemAllocFromPoolAsync(pointer, size, pool, STREAM);
    default:
        return cuMemAllocFromPoolAsync_ptsz(pointer, size, pool, STREAM);
    }
}

static CUresult free_by(int way, CUdeviceptr pointer) {
    return way % 2 == 0 ? cuMemFreeAsync(pointer, STREAM) : cuMemFreeAsync_ptsz(pointer, STREAM);
}

static bool is_noted(void) {
    struct gs_entry entry;
    if (!gs_table_take(&gs_pointers, 0xabc000, &entry))
        return false;
    REQUIRE(entry.kind == GS_POOLED && entry.detail == 4 && entry.units == calls.units && entry.gpu == 0);
    return true;
}

static void asked_as(int way, size_t size) {
    REQUIRE(driver.variant == way % 2 + 1 && driver.size == size && driver.stream == STREAM);
    REQUIRE(driver.pool == (way >= 2 ? one.handle : NULL));
}

static void allocations(int way) {
    CUdeviceptr pointer = 0;
    begin(); /* a good one, and its end */
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS && pointer == 0xabc000);
    asked_as(way, 1000);
    REQUIRE(driver.allocs == 1 && calls.enters == 1 && calls.units == 2 && calls.asks == 1 && calls.leaves == 0);
    free_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(free_by(way, pointer) == CUDA_ERROR_UNKNOWN && calls.leaves == 0 && driver.variant == way % 2 + 1);
    free_says = CUDA_SUCCESS;
    REQUIRE(free_by(way, pointer) == CUDA_SUCCESS && calls.leaves == 1 && driver.pointer == pointer);
    REQUIRE(!is_noted() && gs_unknown_frees == 0);
    REQUIRE(free_by(way, pointer) == CUDA_SUCCESS && driver.frees == 3 && calls.leaves == 1 && gs_unknown_frees == 1);
    REQUIRE(free_by(way, 0) == CUDA_SUCCESS && gs_unknown_frees == 1);

    begin(); /* refused */
    enters = false;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_ERROR_OUT_OF_MEMORY && driver.allocs == 0);
    REQUIRE(calls.leaves == 0 && calls.undoes == 0);

    begin(); /* the driver fails */
    says[0] = CUDA_ERROR_UNKNOWN;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_ERROR_UNKNOWN && driver.allocs == 1 && failed == 0);
    REQUIRE(calls.leaves == 1 && calls.corrects == 1 && calls.undoes == 0 && !is_noted());

    begin(); /* it has no memory: tried once more, if that is worth it */
    says[0] = CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_ERROR_OUT_OF_MEMORY && driver.allocs == 1);
    REQUIRE(failed == 1 && calls.leaves == 1);
    begin();
    says[0] = CUDA_ERROR_OUT_OF_MEMORY;
    worth_another_try = true;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS && driver.allocs == 2 && calls.leaves == 0);
    REQUIRE(is_noted());

    begin(); /* the pool has grown beyond the credit: undone, and tried again if something came back */
    correct_after = -1;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_ERROR_OUT_OF_MEMORY && driver.allocs == 1);
    REQUIRE(driver.frees == 1 && driver.pointer == 0xabc000 && calls.leaves == 1 && calls.undoes == 1 && !is_noted());
    begin();
    correct_after = 1;
    undoes = true;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS && driver.allocs == 2 && driver.frees == 1);
    REQUIRE(calls.undoes == 1 && calls.leaves == 1 && is_noted());
    begin();
    correct_after = -1;
    undoes = true;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_ERROR_OUT_OF_MEMORY && driver.allocs == 2);
    REQUIRE(driver.frees == 2 && calls.undoes == 2 && calls.leaves == 2 && !is_noted());
}

/* What is the driver's alone. */
static void passed_on(int way) {
    CUdeviceptr pointer = 0;
    for (int how = 0; how < 7; how++) {
        begin();
        size_t size = how == 0 ? 0 : 1000;
        if (how == 1)
            gs_mode = GS_INERT;
        if (how == 2) {
            gs_captures = 1;
            capturing[way % 2] = true;
        }
        if (how == 3 && way < 2)
            current = NULL;
        if (how == 4 && way < 2)
            current = foreign.handle;
        if (how == 5 && way < 2)
            here = NULL;
        if (how == 6 && way < 2)
            attached = false;
        CUmemoryPool pool = how == 3   ? NULL
                            : how == 4 ? foreign.handle
                            : how >= 5 ? (CUmemoryPool)(uintptr_t)5
                                       : one.handle;
        REQUIRE(allocate_by(way, how == 0 && way == 1 ? NULL : &pointer, size, pool) == CUDA_SUCCESS);
        REQUIRE(driver.allocs == 1 && driver.variant == way % 2 + 1 && driver.stream == STREAM && driver.size == size);
        REQUIRE(driver.pool == (way >= 2 ? pool : NULL) && calls.enters == 0 && !is_noted());
        if (how == 1 || how == 2) {
            REQUIRE(free_by(way, 0xabc000) == CUDA_SUCCESS && driver.frees == 1 && calls.leaves == 0);
            REQUIRE(driver.variant == way % 2 + 1);
        }
        capturing[0] = capturing[1] = false;
    }
    begin(); /* without a place for the address it is an error, and the driver's to say */
    REQUIRE(allocate_by(way, NULL, 1000, one.handle) == CUDA_SUCCESS && driver.allocs == 1 && calls.enters == 0);
    begin(); /* a free that is captured frees nothing yet */
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS);
    gs_captures = 1;
    capturing[way % 2] = true;
    REQUIRE(free_by(way, 0xabc000) == CUDA_SUCCESS && driver.frees == 1 && calls.leaves == 0 && is_noted());
    capturing[way % 2] = false;
    begin(); /* other streams are captured, this one is not */
    gs_captures = 1;
    capturing[1 - way % 2] = true;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS && calls.enters == 1 && is_noted());
    capturing[0] = capturing[1] = false;
    begin(); /* a GPU that has no line yet is attached first */
    gs_gpus[0].attached = 0;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS && attaches == 1 && is_noted());
    attached = false;
    if (way >= 2)
        REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_ERROR_OUT_OF_MEMORY && driver.allocs == 1);
    gs_gpus[0].attached = 1;
    begin(); /* the pool is that of the stream's device */
    stream_gpu = &gs_gpus[1];
    here = NULL;
    REQUIRE(allocate_by(way, &pointer, 1000, one.handle) == CUDA_SUCCESS && calls.enters == 1 && is_noted());
}

/* Calls about pools: what becomes known, and what may have been chosen. */
static void pools(void) {
    CUmemLocation second = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = second};
    CUmemoryPool made;
    for (int mode = 0; mode < 2; mode++) {
        for (int good = 0; good < 2; good++) {
            CUresult result = good ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
            bool on = mode == 1;
#define CASE                                                                                                           \
    begin();                                                                                                           \
    gs_mode = on ? GS_ON : GS_INERT;                                                                                   \
    of_pool = result
            CASE;
            REQUIRE(cuDeviceSetMemPool(1, one.handle) == result && calls.chosen == on);
            CASE;
            REQUIRE(cuMemSetMemPool(&second, CU_MEM_ALLOCATION_TYPE_PINNED, one.handle) == result &&
                    calls.chosen == on);
            CASE;
            REQUIRE(cuMemPoolCreate(&made, &properties) == result && calls.adds == (on && good));
            REQUIRE(calls.adds == 0 || (calls.handle == fresh && calls.gpu == &gs_gpus[1]));
            CASE;
            REQUIRE(cuMemGetDefaultMemPool(&made, &second, CU_MEM_ALLOCATION_TYPE_PINNED) == result);
            REQUIRE(calls.adds == (on && good) && (calls.adds == 0 || calls.gpu == &gs_gpus[1]));
            CASE;
            REQUIRE(cuMemGetMemPool(&made, &second, CU_MEM_ALLOCATION_TYPE_PINNED) == result);
            REQUIRE(calls.adds == (on && good) && (calls.adds == 0 || calls.gpu == &gs_gpus[1]));
            CASE;
            REQUIRE(cuMemPoolImportFromShareableHandle(&made, &fresh, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 3) ==
                    result);
            REQUIRE(calls.adds == (on && good) && (calls.adds == 0 || (calls.gpu == NULL && calls.handle == fresh)));
            CASE;
            REQUIRE(cuMemPoolDestroy(one.handle) == result && calls.begins == on && calls.ends == on &&
                    calls.chosen == 1);
            REQUIRE(!on || calls.gone == good);
            CASE;
            REQUIRE(cuMemPoolDestroy(fresh) == result && calls.begins == 0 && calls.chosen == 1);
            CASE;
            REQUIRE(cuMemPoolTrimTo(one.handle, 77) == result && calls.corrects == on);
            CASE;
            REQUIRE(cuMemPoolTrimTo(foreign.handle, 77) == result && calls.corrects == 0);
            CASE;
            REQUIRE(cuMemPoolTrimTo(fresh, 77) == result && calls.corrects == 0);
            CASE;
            REQUIRE(cuMemPoolSetAttribute(one.handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &fresh) == result);
            REQUIRE(calls.corrects == on);
            CASE;
            gs_gpus[0].line = NULL;
            REQUIRE(cuMemPoolTrimTo(one.handle, 77) == result && calls.corrects == 0);
            gs_gpus[0].line = &lines[0];
        }
    }
    begin(); /* one that is known is not met again */
    fresh = one.handle;
    REQUIRE(cuMemGetMemPool(&made, &second, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_SUCCESS && calls.adds == 0);
}

/* What cannot be noted cannot be charged: the driver takes it back, and nothing else is lost. */
static void a_full_table(void) {
    uint64_t made[4096];
    uint32_t count = 0;
    CUdeviceptr pointer;
    begin();
    no_pages = true;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && count < 4096) {
        address = 0x1000000 + 0x200000ull * count;
        result = cuMemAllocAsync(&pointer, 1 << 20, STREAM);
        made[count++] = address;
    }
    REQUIRE(result == CUDA_ERROR_OUT_OF_MEMORY && count > 1 && count < 4096);
    REQUIRE(driver.frees == 1 && driver.pointer == made[count - 1] && driver.stream == STREAM);
    REQUIRE(calls.enters == count && calls.leaves == 1 && calls.asks == count - 1 && calls.undoes == 1);
    no_pages = false;
    for (uint32_t i = 0; i + 1 < count; i++)
        REQUIRE(cuMemFreeAsync(made[i], STREAM) == CUDA_SUCCESS);
    REQUIRE(calls.leaves == count && gs_unknown_frees == 0);
    address = 0xabc000;
}

/* After each way to wait the pools are looked at, unless it failed or a stream is captured. */
static void synchronised(void) {
    for (int how = 0; how < 4; how++) {
        for (int way = 0; way < 5; way++) {
            begin();
            of_pool = how == 1 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
            gs_captures = how == 2;
            void *it = (void *)(uintptr_t)0x55;
            CUresult result = way == 0   ? cuStreamSynchronize(it)
                              : way == 1 ? cuStreamSynchronize_ptsz(it)
                              : way == 2 ? cuEventSynchronize(it)
                              : way == 3 ? cuCtxSynchronize()
                                         : cuCtxSynchronize_v2(it);
            REQUIRE(result == of_pool && calls.all == (how == 0 || how == 3));
        }
    }
}

/* The first call of a program finds the driver, before it is called. */
static void asleep(void) {
    void *it = (void *)(uintptr_t)0x55;
    fresh = (CUmemoryPool)(uintptr_t)0x90;
    for (int call = 0; call < 8; call++) {
        begin();
        gs_mode = GS_ASLEEP;
        if (call == 0)
            cuMemPoolTrimTo(fresh, 77);
        else if (call == 1)
            cuMemPoolSetAttribute(fresh, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &fresh);
        else if (call == 2)
            cuStreamSynchronize(it);
        else if (call == 3)
            cuStreamSynchronize_ptsz(it);
        else if (call == 4)
            cuEventSynchronize(it);
        else if (call == 5)
            cuCtxSynchronize();
        else if (call == 6)
            cuCtxSynchronize_v2(it);
        else
            cuMemPoolDestroy(fresh);
        REQUIRE(gs_mode == GS_ON && !slept);
    }
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_driver.cuCtxGetCurrent = current_context;
    gs_driver.cuMemAllocAsync = alloc_1;
    gs_driver.cuMemAllocAsync_ptsz = alloc_2;
    gs_driver.cuMemAllocFromPoolAsync = from_1;
    gs_driver.cuMemAllocFromPoolAsync_ptsz = from_2;
    gs_driver.cuMemFreeAsync = free_1;
    gs_driver.cuMemFreeAsync_ptsz = free_2;
    gs_driver.cuStreamIsCapturing = is_capturing_1;
    gs_driver.cuStreamIsCapturing_ptsz = is_capturing_2;
    gs_driver.cuDeviceSetMemPool = set_pool;
    gs_driver.cuMemSetMemPool = set_of_place;
    gs_driver.cuMemPoolCreate = create;
    gs_driver.cuMemGetDefaultMemPool = of_place;
    gs_driver.cuMemGetMemPool = of_place;
    gs_driver.cuMemPoolImportFromShareableHandle = import;
    gs_driver.cuMemPoolDestroy = destroy;
    gs_driver.cuMemPoolTrimTo = trim_to;
    gs_driver.cuMemPoolSetAttribute = set_attribute;
    gs_driver.cuStreamSynchronize = waited_for;
    gs_driver.cuStreamSynchronize_ptsz = waited_for;
    gs_driver.cuEventSynchronize = waited_for_event;
    gs_driver.cuCtxSynchronize = waited;
    gs_driver.cuCtxSynchronize_v2 = waited_for_context;
    for (int way = 0; way < 4; way++) {
        allocations(way);
        passed_on(way);
    }
    pools();
    a_full_table();
    synchronised();
    asleep();
    return good();
}
