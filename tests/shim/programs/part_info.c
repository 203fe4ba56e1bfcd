/* part_info.c: what CUDA says about memory, and bindings of multicast objects, over a driver that the program plays. */
#include "part_bank.h"

#include "hook_info.c"
#include "hook_multicast.c"

#define GIB (1ull << 30)

/* ---- info ----------------------------------------------------------------------------------------- */

static CUresult says;
static uint32_t calls, squeezes;
static bool attaches = true;
static struct gs_place here = {&gs_gpus[0], 21};
static uint64_t driver_says = 80 * GIB, expected = 6 * GIB;

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)context;
    *place = here;
    return attaches;
}

bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    return attaches;
}

static CUresult current_context(CUcontext *context) {
    *context = (CUcontext)(uintptr_t)16;
    return CUDA_SUCCESS;
}

struct gs_gpu *gs_gpu_of(CUdevice device) {
    return device < 2 ? &gs_gpus[device] : NULL;
}

uint64_t gs_account_total_expected(uint64_t total) {
    REQUIRE(total == 80 * GIB);
    return expected;
}

static void squeeze(struct gs_gpu *gpu, bool all) {
    REQUIRE(gpu == &gs_gpus[0] && !all);
    squeezes++;
}

static CUresult info_2(size_t *free, size_t *total) {
    calls++;
    if (free != NULL)
        *free = 70 * GIB;
    if (total != NULL)
        *total = driver_says;
    return says;
}

static CUresult info_1(unsigned int *free, unsigned int *total) {
    calls++;
    if (free != NULL)
        *free = UINT32_MAX;
    if (total != NULL)
        *total = UINT32_MAX;
    return says;
}

static CUresult nothing_says = CUDA_ERROR_INVALID_VALUE; /* of an answer without a place */

static CUresult total_2(size_t *bytes, CUdevice device) {
    (void)device;
    calls++;
    if (bytes != NULL)
        *bytes = driver_says;
    return bytes != NULL ? says : nothing_says;
}

static CUresult total_1(unsigned int *bytes, CUdevice device) {
    (void)device;
    calls++;
    if (bytes != NULL)
        *bytes = driver_says < UINT32_MAX ? (unsigned int)driver_says : UINT32_MAX;
    return bytes != NULL ? says : nothing_says;
}

static uint32_t units(uint64_t bytes) {
    return (uint32_t)(bytes / GS_UNIT_BYTES);
}

/* Of a limit of `limit` bytes `used` are in use, and `grantable` more could be had beside `unused` ones. */
static void line(uint64_t limit, uint64_t used, uint64_t unused, uint64_t grantable) {
    memset(&lines[0], 0, sizeof lines[0]);
    lines[0].limit = units(limit);
    lines[0].grantable = units(grantable);
    gs_grant(&lines[0], units(used) + units(unused));
    REQUIRE(gs_reserve(&lines[0], units(used)));
    calls = squeezes = 0;
}

static void free_and_total(void) {
    size_t free = 1, total = 2;
    unsigned int old_free = 1, old_total = 2;
    line(10 * GIB, 2 * GIB, GIB, 3 * GIB);
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && free == 4 * GIB && total == 10 * GIB);
    REQUIRE(calls == 1 && squeezes == 1); /* what has gone back to the pools counts as free */
    REQUIRE(cuMemGetInfo_v2(NULL, &total) == CUDA_SUCCESS && total == 10 * GIB);
    REQUIRE(cuMemGetInfo_v2(&free, NULL) == CUDA_SUCCESS && free == 4 * GIB);
    REQUIRE(cuMemGetInfo_v2(NULL, NULL) == CUDA_SUCCESS);
    REQUIRE(cuMemGetInfo(&old_free, &old_total) == CUDA_SUCCESS && squeezes == 5);
    REQUIRE(old_free == UINT32_MAX && old_total == UINT32_MAX); /* it cannot say more */
    line(3 * GIB, GIB, GIB / 2, GIB / 4);
    REQUIRE(cuMemGetInfo(&old_free, &old_total) == CUDA_SUCCESS);
    REQUIRE(old_free == (GIB / 4) * 3 && old_total == 3 * GIB);
    REQUIRE(cuMemGetInfo(NULL, &old_total) == CUDA_SUCCESS && cuMemGetInfo(&old_free, NULL) == CUDA_SUCCESS);
    line(3 * GIB, 2 * GIB, GIB, 9 * GIB);
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && free == GIB && total == 3 * GIB);
}

/* The driver's own answer stays where it has failed, and where nothing is known. */
static void the_drivers_answer(void) {
    size_t free, total;
    unsigned int old_free, old_total;
    for (int why = 0; why < 5; why++) {
        line(10 * GIB, 2 * GIB, GIB, 3 * GIB);
        says = why == 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
        gs_mode = why == 1 ? GS_INERT : GS_ON;
        attaches = why != 2;
        here.gpu = why == 3 ? NULL : &gs_gpus[0];
        gs_gpus[0].line = why == 4 ? NULL : &lines[0];
        gs_gpus[0].attached = why != 2 && why != 4;
        REQUIRE(cuMemGetInfo_v2(&free, &total) == says && free == 70 * GIB && total == 80 * GIB);
        REQUIRE(cuMemGetInfo(&old_free, &old_total) == says && old_free == UINT32_MAX && old_total == UINT32_MAX);
        REQUIRE(calls == 2 && squeezes == 0);
    }
    says = CUDA_SUCCESS;
    gs_gpus[0].line = &lines[0];
    gs_gpus[0].attached = 1;
}

static void sizes_of_gpus(void) {
    size_t bytes;
    unsigned int old;
    line(10 * GIB, 0, 0, 0);
    REQUIRE(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS && bytes == 10 * GIB);
    REQUIRE(cuDeviceTotalMem(&old, 0) == CUDA_SUCCESS && old == UINT32_MAX);
    line(3 * GIB, 0, 0, 0);
    REQUIRE(cuDeviceTotalMem(&old, 0) == CUDA_SUCCESS && old == 3 * GIB);
    gs_gpus[1].line = NULL; /* nothing is opened to find out: the environment says it */
    REQUIRE(cuDeviceTotalMem_v2(&bytes, 1) == CUDA_SUCCESS && bytes == 6 * GIB);
    expected = GIB;
    REQUIRE(cuDeviceTotalMem(&old, 1) == CUDA_SUCCESS && old == GIB);
    REQUIRE(cuDeviceTotalMem_v2(&bytes, 2) == CUDA_SUCCESS && bytes == 80 * GIB); /* an unknown one */
    driver_says = 2 * GIB; /* a GPU is not made larger than it is */
    REQUIRE(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS && bytes == 2 * GIB);
    REQUIRE(cuDeviceTotalMem(&old, 0) == CUDA_SUCCESS && old == 2 * GIB);
    driver_says = 80 * GIB;
    REQUIRE(cuDeviceTotalMem_v2(NULL, 0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuDeviceTotalMem(NULL, 0) == CUDA_ERROR_INVALID_VALUE);
    nothing_says = CUDA_SUCCESS; /* whatever the driver makes of it, nothing is written */
    REQUIRE(cuDeviceTotalMem_v2(NULL, 0) == CUDA_SUCCESS && cuDeviceTotalMem(NULL, 0) == CUDA_SUCCESS);
    says = CUDA_ERROR_UNKNOWN;
    REQUIRE(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_ERROR_UNKNOWN && bytes == 80 * GIB);
    REQUIRE(cuDeviceTotalMem(&old, 0) == CUDA_ERROR_UNKNOWN && old == UINT32_MAX);
    says = CUDA_SUCCESS;
    gs_mode = GS_INERT;
    REQUIRE(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS && bytes == 80 * GIB);
    REQUIRE(cuDeviceTotalMem(&old, 0) == CUDA_SUCCESS && old == UINT32_MAX);
    gs_mode = GS_ON;
}

/* ---- bindings ------------------------------------------------------------------------------------- */

#define OBJECT 70
#define MEMORY 71

static struct {
    uint32_t adds, lets, ends, held, object, block;
    int device;
    uint64_t offset, size, address;
} did;

static bool knows_object = true, knows_memory = true;
static CUresult binds;
static uint32_t bind_calls;

bool gs_block_find(uint64_t handle, uint32_t *number, bool hold) {
    REQUIRE(bind_calls == 0 && (handle == OBJECT || handle == MEMORY) && hold == (handle == MEMORY));
    bool known = handle == OBJECT ? knows_object : knows_memory;
    did.held += hold && known;
    *number = handle == OBJECT ? 1 : 2;
    return known;
}

bool gs_mapping_find(uint64_t address, uint32_t *number) {
    REQUIRE(bind_calls == 0);
    did.address = address;
    did.held += knows_memory;
    *number = 2;
    return knows_memory;
}

void gs_binding_add(uint32_t object, uint32_t number, uint64_t offset, uint64_t size) {
    did.adds++;
    did.object = object;
    did.block = number;
    did.offset = offset;
    did.size = size;
}

void gs_block_let_go(uint32_t number) {
    did.lets++;
    did.block = number;
}

void gs_bindings_end(uint32_t object, int device, uint64_t offset, uint64_t size) {
    REQUIRE(bind_calls == 1);
    did.ends++;
    did.object = object;
    did.device = device;
    did.offset = offset;
    did.size = size;
}

static CUresult bind_call(void) {
    bind_calls++;
    return binds;
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t size, unsigned long long flags) {
    REQUIRE(handle == OBJECT && offset == 8 && memory == MEMORY && memory_offset == 16 && size == 32 && flags == 5);
    return bind_call();
}

static CUresult bind_address(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer, size_t size,
                             unsigned long long flags) {
    REQUIRE(handle == OBJECT && offset == 8 && pointer == 0x4000 && size == 32 && flags == 5);
    return bind_call();
}

static CUresult bind_memory_2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                              CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                              unsigned long long flags) {
    REQUIRE(device == 1);
    return bind_memory(handle, offset, memory, memory_offset, size, flags);
}

static CUresult bind_address_2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUdeviceptr pointer,
                               size_t size, unsigned long long flags) {
    REQUIRE(device == 1);
    return bind_address(handle, offset, pointer, size, flags);
}

static CUresult unbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size) {
    REQUIRE(handle == OBJECT && device == 1 && offset == 8 && size == 32);
    return bind_call();
}

static CUresult bind_by(int way) {
    memset(&did, 0, sizeof did);
    bind_calls = 0;
    switch (way) {
    case 0:
        return cuMulticastBindMem(OBJECT, 8, MEMORY, 16, 32, 5);
    case 1:
        return cuMulticastBindAddr(OBJECT, 8, 0x4000, 32, 5);
    case 2:
        return cuMulticastBindMem_v2(OBJECT, 1, 8, MEMORY, 16, 32, 5);
    default:
        return cuMulticastBindAddr_v2(OBJECT, 1, 8, 0x4000, 32, 5);
    }
}

/* Memory is held before it is bound, and let go if it could not be; what is not known on either side is passed on. */
static void bindings(void) {
    for (int way = 0; way < 4; way++) {
        REQUIRE(bind_by(way) == CUDA_SUCCESS && bind_calls == 1 && did.held == 1 && did.adds == 1 && did.lets == 0);
        REQUIRE(did.object == 1 && did.block == 2 && did.offset == 8 && did.size == 32);
        REQUIRE(way % 2 == 0 || did.address == 0x4000);
        binds = CUDA_ERROR_UNKNOWN;
        REQUIRE(bind_by(way) == CUDA_ERROR_UNKNOWN && did.held == 1 && did.adds == 0 && did.lets == 1 &&
                did.block == 2);
        knows_memory = false;
        REQUIRE(bind_by(way) == CUDA_ERROR_UNKNOWN && did.held == 0 && did.adds == 0 && did.lets == 0);
        binds = CUDA_SUCCESS;
        REQUIRE(bind_by(way) == CUDA_SUCCESS && did.held == 0 && did.adds == 0 && did.lets == 0);
        knows_memory = true;
        knows_object = false; /* then the memory is not held either */
        REQUIRE(bind_by(way) == CUDA_SUCCESS && did.held == 0 && did.adds == 0 && did.lets == 0);
        knows_object = true;
        gs_mode = GS_INERT;
        REQUIRE(bind_by(way) == CUDA_SUCCESS && did.held == 0 && did.adds == 0 && did.lets == 0);
        gs_mode = GS_ON;
    }
}

static CUresult unbind_now(void) {
    memset(&did, 0, sizeof did);
    bind_calls = 0;
    return cuMulticastUnbind(OBJECT, 1, 8, 32);
}

static void unbound(void) {
    REQUIRE(unbind_now() == CUDA_SUCCESS && did.ends == 1 && did.object == 1 && did.device == 1);
    REQUIRE(did.offset == 8 && did.size == 32);
    binds = CUDA_ERROR_UNKNOWN;
    REQUIRE(unbind_now() == CUDA_ERROR_UNKNOWN && did.ends == 0);
    binds = CUDA_SUCCESS;
    knows_object = false;
    REQUIRE(unbind_now() == CUDA_SUCCESS && did.ends == 0 && bind_calls == 1);
    knows_object = true;
    gs_mode = GS_INERT;
    REQUIRE(unbind_now() == CUDA_SUCCESS && did.ends == 0);
    gs_mode = GS_ON;
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_gpus[0].total = gs_gpus[1].total = 80 * GIB;
    gs_account_squeeze[GS_SQUEEZE_POOLS] = squeeze;
    gs_driver.cuCtxGetCurrent = current_context;
    gs_driver.cuMemGetInfo_v2 = info_2;
    gs_driver.cuMemGetInfo = info_1;
    gs_driver.cuDeviceTotalMem_v2 = total_2;
    gs_driver.cuDeviceTotalMem = total_1;
    gs_driver.cuMulticastBindMem = bind_memory;
    gs_driver.cuMulticastBindAddr = bind_address;
    gs_driver.cuMulticastBindMem_v2 = bind_memory_2;
    gs_driver.cuMulticastBindAddr_v2 = bind_address_2;
    gs_driver.cuMulticastUnbind = unbind;
    free_and_total();
    the_drivers_answer();
    sizes_of_gpus();
    bindings();
    unbound();
    return good();
}
