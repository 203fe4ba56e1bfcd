/* part_vmm.c: the hooks of physical memory and its mappings, over a driver and blocks (block.c) that the program plays.
 *
 * Each call of a block is noted: what is held before the driver is called is given back if it fails, and once. */
#include "part_bank.h"

#include "hook_vmm.c"

#define MIB (1ull << 20)

static CUresult says, free_says;
static uint32_t calls, frees;
static uint64_t freed;
static unsigned long long next_handle = 7;
static bool attaches = true, knows = true, room = true, again = true, last = true;
static struct gs_place here = {&gs_gpus[0], 21};

/* What the hooks have said of blocks since it was last looked at. */
static struct {
    uint32_t adds, refers, lets, fails, exports, handles, maps, backs, finds, releases, failed_again;
    uint64_t handle, address, size;
    uint32_t number, units;
    bool last, hold;
    const struct gs_gpu *gpu;
} block;

static void look(void) {
    memset(&block, 0, sizeof block);
    calls = frees = 0;
    freed = 0;
    bank = (struct bank){0};
}

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu != NULL && units != 0);
    return again;
}

void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu != NULL && units != 0);
    block.failed_again++;
}

/* As in charge.c, of which nothing else is called. */
bool gs_charge_ask_again(struct gs_place place, uint32_t units, bool retried) {
    if (place.gpu == NULL)
        return false;
    if (!retried)
        return gs_account_driver_failed(place.gpu, units);
    gs_account_driver_failed_again(place.gpu, units);
    return false;
}

bool gs_place_device(struct gs_place *place, CUdevice device) {
    *place = (struct gs_place){device < 2 ? &gs_gpus[device] : NULL, 0};
    return attaches;
}

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

/* ---- blocks --------------------------------------------------------------------------------------- */

bool gs_block_add(uint64_t handle, struct gs_gpu *gpu, uint32_t units) {
    block.adds++;
    block.handle = handle;
    block.gpu = gpu;
    block.units = units;
    return room;
}

bool gs_block_find(uint64_t handle, uint32_t *number, bool hold) {
    REQUIRE(calls == 0 || !hold); /* it is held before the driver is called */
    block.finds++;
    block.handle = handle;
    block.hold = hold;
    *number = 55;
    return knows;
}

bool gs_block_refer(uint64_t handle) {
    block.refers++;
    block.handle = handle;
    return knows;
}

bool gs_block_release(uint64_t handle, uint32_t *number, bool *is_last) {
    REQUIRE(frees == 0);
    block.releases++;
    block.handle = handle;
    *number = 55;
    *is_last = last;
    return knows;
}

void gs_block_release_failed(uint64_t handle, uint32_t number, bool was_last) {
    REQUIRE(frees == 1);
    block.fails++;
    block.handle = handle;
    block.number = number;
    block.last = was_last;
}

void gs_block_add_handle(uint64_t handle, uint32_t number) {
    block.handles++;
    block.handle = handle;
    block.number = number;
}

void gs_block_exported(uint32_t number) {
    block.exports++;
    block.number = number;
}

void gs_block_let_go(uint32_t number) {
    block.lets++;
    block.number = number;
}

bool gs_mapping_add(uint64_t address, uint32_t number, uint64_t size) {
    block.maps++;
    block.address = address;
    block.number = number;
    block.size = size;
    return room;
}

static bool is_mapping = true;

bool gs_mapping_find(uint64_t address, uint32_t *number) {
    block.address = address;
    *number = 56;
    return is_mapping;
}

static struct gs_entry mappings[3] = {
    {.key = 0x1000, .detail = 5}, {.key = 0x2000, .detail = 6}, {.key = 0x3000, .detail = 7}};
static size_t mapping_count, dropped;

struct gs_entry *gs_mappings_at(struct gs_mappings *some, size_t i) {
    REQUIRE(i < some->count);
    return &mappings[i];
}

void gs_mappings_drop(struct gs_mappings *some) {
    REQUIRE(some->count == mapping_count);
    dropped++;
}

void gs_mappings_take(struct gs_mappings *taken, uint64_t start, uint64_t end) {
    REQUIRE(frees == 0 && taken->count == 0);
    block.address = start;
    block.size = end - start;
    taken->count = mapping_count;
}

void gs_mapping_put_back(const struct gs_entry *mapping) {
    REQUIRE(mapping == &mappings[block.backs]);
    block.backs++;
}

void gs_mappings_on(struct gs_mappings *found, const struct gs_gpu *gpu) {
    REQUIRE(found->count == 0);
    block.gpu = gpu;
    found->count = mapping_count;
}

static uint64_t gone_already;

bool gs_mapping_take(uint64_t address, uint32_t *number) {
    *number = (uint32_t)(address >> 12);
    return address != gone_already;
}

/* ---- the driver ----------------------------------------------------------------------------------- */

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags) {
    (void)size, (void)properties;
    REQUIRE(flags == 3);
    calls++;
    if (handle != NULL)
        *handle = ++next_handle;
    return says;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    frees++;
    freed = handle;
    return free_says;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type) {
    REQUIRE(os_handle == &calls && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    calls++;
    *handle = 99;
    return says;
}

static CUresult export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags) {
    REQUIRE(shareable == &calls && handle == 99 && flags == 4 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    calls++;
    return says;
}

static CUresult multicast(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    (void)properties;
    calls++;
    *handle = 77;
    return says;
}

static CUresult map(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags) {
    REQUIRE(pointer == 0x9000 && size == 4096 && offset == 1 && handle == 99 && flags == 2);
    calls++;
    return says;
}

static CUresult unmap(CUdeviceptr pointer, size_t size) {
    REQUIRE(pointer == 0x9000 && size == 4096);
    frees++;
    return free_says;
}

static uint64_t unmapped; /* addresses from here on */
static CUresult retain_says;

static CUresult retain(CUmemGenericAllocationHandle *handle, void *address) {
    calls++;
    *handle = 1000 + (uintptr_t)address;
    return retain_says != CUDA_SUCCESS               ? retain_says
           : (uint64_t)(uintptr_t)address < unmapped ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_VALUE;
}

/* ---- handles -------------------------------------------------------------------------------------- */

static CUmemAllocationProp on_device(int device) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.location.type = device < 0 ? 2 : CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device < 0 ? 0 : device;
    return properties;
}

static void created(void) {
    CUmemGenericAllocationHandle handle = 0;
    for (int device = 0; device < 2; device++) {
        CUmemAllocationProp properties = on_device(device);
        struct gs_gpu *gpu = &gs_gpus[device];
        uint32_t want = (uint32_t)(4 * MIB / GS_UNIT_BYTES);
        set_unused(device, want + 5);
        look();
        REQUIRE(cuMemCreate(&handle, 4 * MIB, &properties, 3) == CUDA_SUCCESS && handle == next_handle);
        REQUIRE(calls == 1 && block.adds == 1 && block.handle == handle && block.gpu == gpu && block.units == want);
        REQUIRE(used_on(device) == want && frees == 0);
        look();
        REQUIRE(cuMemCreate(&handle, 4 * MIB, &properties, 3) == CUDA_ERROR_OUT_OF_MEMORY);
        REQUIRE(calls == 0 && bank.asks == 1 && bank.units == want && block.adds == 0);
        says = CUDA_ERROR_UNKNOWN;
        REQUIRE(cuMemCreate(&handle, 512, &properties, 3) == CUDA_ERROR_UNKNOWN && calls == 1 && block.adds == 0);
        REQUIRE(used_on(device) == want);
        says = CUDA_ERROR_OUT_OF_MEMORY; /* the daemon is told, and it is tried once more */
        REQUIRE(cuMemCreate(&handle, 512, &properties, 3) == CUDA_ERROR_OUT_OF_MEMORY && calls == 3);
        REQUIRE(block.failed_again == 1 && used_on(device) == want && frees == 0);
        again = false;
        REQUIRE(cuMemCreate(&handle, 512, &properties, 3) == CUDA_ERROR_OUT_OF_MEMORY && calls == 4);
        again = true;
        says = CUDA_SUCCESS;
        room = false; /* it cannot be noted: it goes back */
        look();
        REQUIRE(cuMemCreate(&handle, 512, &properties, 3) == CUDA_ERROR_OUT_OF_MEMORY && frees == 1);
        REQUIRE(freed == handle && used_on(device) == want);
        room = true;
        attaches = false;
        look();
        REQUIRE(cuMemCreate(&handle, 512, &properties, 3) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0);
        attaches = true;
        REQUIRE(cuMemCreate(&handle, UINT64_MAX, &properties, 3) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0);
        REQUIRE(bank.units == UINT32_MAX);
    }
}

/* Memory that is not of a GPU that we know is not charged, and a call without its arguments is the driver's. */
static void not_ours(void) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp host = on_device(-1), unknown = on_device(5), first = on_device(0);
    uint32_t used = used_on(0);
    look();
    REQUIRE(cuMemCreate(&handle, 1ull << 50, &host, 3) == CUDA_SUCCESS && calls == 1);
    REQUIRE(cuMemCreate(&handle, 1ull << 50, NULL, 3) == CUDA_SUCCESS && calls == 2);
    REQUIRE(cuMemCreate(NULL, 1ull << 50, &first, 3) == CUDA_SUCCESS && calls == 3);
    REQUIRE(cuMemCreate(&handle, 1ull << 50, &unknown, 3) == CUDA_SUCCESS && calls == 4);
    says = CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(cuMemCreate(&handle, 1ull << 50, &unknown, 3) == CUDA_ERROR_OUT_OF_MEMORY && calls == 5);
    says = CUDA_SUCCESS;
    gs_mode = GS_INERT;
    REQUIRE(cuMemCreate(&handle, 1ull << 50, &first, 3) == CUDA_SUCCESS && calls == 6);
    gs_mode = GS_ON;
    REQUIRE(block.adds == 0 && bank.asks == 0 && used_on(0) == used && frees == 0);
}

static void released(void) {
    look();
    REQUIRE(cuMemRelease(99) == CUDA_SUCCESS && block.releases == 1 && block.handle == 99);
    REQUIRE(frees == 1 && freed == 99 && block.lets == 1 && block.number == 55);
    last = false;
    look();
    REQUIRE(cuMemRelease(99) == CUDA_SUCCESS && frees == 1 && block.lets == 0 && block.fails == 0);
    free_says = CUDA_ERROR_UNKNOWN;
    for (int is_last = 0; is_last < 2; is_last++) {
        last = is_last;
        look();
        REQUIRE(cuMemRelease(99) == CUDA_ERROR_UNKNOWN && frees == 1 && block.lets == 0 && block.fails == 1);
        REQUIRE(block.handle == 99 && block.number == 55 && block.last == is_last);
    }
    knows = false;
    look();
    REQUIRE(cuMemRelease(98) == CUDA_ERROR_UNKNOWN && frees == 1 && block.lets == 0 && block.fails == 0);
    free_says = CUDA_SUCCESS;
    gs_mode = GS_INERT;
    look();
    REQUIRE(cuMemRelease(98) == CUDA_SUCCESS && frees == 1 && block.releases == 0 && block.lets == 0);
    gs_mode = GS_ON;
    knows = true;
}

/* One more reference to what is known; what was released comes back by its mapping. */
static void retained(void) {
    CUmemGenericAllocationHandle handle;
    unmapped = UINT64_MAX;
    look();
    REQUIRE(cuMemRetainAllocationHandle(&handle, (void *)0x1234) == CUDA_SUCCESS && handle == 1000 + 0x1234);
    REQUIRE(block.refers == 1 && block.handle == handle && block.handles == 0);
    knows = false;
    look();
    REQUIRE(cuMemRetainAllocationHandle(&handle, (void *)0x1234) == CUDA_SUCCESS && block.address == 0x1234);
    REQUIRE(block.handles == 1 && block.handle == handle && block.number == 56);
    is_mapping = false;
    look();
    REQUIRE(cuMemRetainAllocationHandle(&handle, (void *)0x1234) == CUDA_SUCCESS && block.handles == 0);
    is_mapping = true;
    retain_says = CUDA_ERROR_UNKNOWN;
    look();
    REQUIRE(cuMemRetainAllocationHandle(&handle, (void *)0x1234) == CUDA_ERROR_UNKNOWN);
    REQUIRE(block.refers == 0 && block.handles == 0);
    retain_says = CUDA_SUCCESS;
    gs_mode = GS_INERT;
    REQUIRE(cuMemRetainAllocationHandle(&handle, (void *)0x1234) == CUDA_SUCCESS && block.refers == 0);
    gs_mode = GS_ON;
    knows = true;
}

static void shared(void) {
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    for (int on = 0; on < 2; on++) {
        for (int good = 0; good < 2; good++) {
            CUresult result = good ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
            uint32_t noted = on && good;
            gs_mode = on ? GS_ON : GS_INERT;
            says = result;
            look();
            REQUIRE(cuMemImportFromShareableHandle(&handle, &calls, type) == result && calls == 1);
            REQUIRE(block.refers == noted && (!noted || block.handle == 99) && bank.asks == 0);
            look();
            REQUIRE(cuMemExportToShareableHandle(&calls, 99, type, 4) == result && calls == 1);
            REQUIRE(block.exports == noted && (!noted || (block.number == 55 && !block.hold && block.handle == 99)));
        }
    }
    knows = false;
    look();
    REQUIRE(cuMemExportToShareableHandle(&calls, 99, type, 4) == CUDA_SUCCESS && block.exports == 0);
    knows = true;
}

/* A multicast object has no memory of its own; that there is one keeps the process on its GPU. */
static void multicasts(void) {
    CUmemGenericAllocationHandle handle;
    uint32_t used = used_on(0);
    look();
    REQUIRE(cuMulticastCreate(&handle, NULL) == CUDA_SUCCESS && calls == 1 && block.adds == 1 && block.handle == 77);
    REQUIRE(block.units == 0 && block.gpu == &gs_gpus[0] && lines[0].multicast == 1 && used_on(0) == used);
    room = false;
    REQUIRE(cuMulticastCreate(&handle, NULL) == CUDA_SUCCESS && lines[0].multicast == 1 && block.adds == 2);
    room = true;
    says = CUDA_ERROR_UNKNOWN;
    REQUIRE(cuMulticastCreate(&handle, NULL) == CUDA_ERROR_UNKNOWN && block.adds == 2);
    says = CUDA_SUCCESS;
    attaches = false;
    REQUIRE(cuMulticastCreate(&handle, NULL) == CUDA_SUCCESS && block.adds == 2);
    attaches = true;
    here.gpu = NULL;
    REQUIRE(cuMulticastCreate(&handle, NULL) == CUDA_SUCCESS && block.adds == 2);
    here.gpu = &gs_gpus[0];
    gs_mode = GS_INERT;
    REQUIRE(cuMulticastCreate(&handle, NULL) == CUDA_SUCCESS && block.adds == 2 && lines[0].multicast == 1);
    gs_mode = GS_ON;
}

/* ---- mappings ------------------------------------------------------------------------------------- */

static void mapped(void) {
    look();
    REQUIRE(cuMemMap(0x9000, 4096, 1, 99, 2) == CUDA_SUCCESS && calls == 1 && block.hold && block.handle == 99);
    REQUIRE(block.maps == 1 && block.address == 0x9000 && block.number == 55 && block.size == 4096 && block.lets == 0);
    room = false; /* it cannot be noted: it is undone */
    look();
    REQUIRE(cuMemMap(0x9000, 4096, 1, 99, 2) == CUDA_ERROR_OUT_OF_MEMORY && frees == 1 && block.lets == 1);
    room = true;
    says = CUDA_ERROR_UNKNOWN;
    look();
    REQUIRE(cuMemMap(0x9000, 4096, 1, 99, 2) == CUDA_ERROR_UNKNOWN && frees == 0 && block.lets == 1);
    REQUIRE(block.number == 55 && block.maps == 0);
    knows = false;
    look();
    REQUIRE(cuMemMap(0x9000, 4096, 1, 99, 2) == CUDA_ERROR_UNKNOWN && calls == 1 && block.lets == 0);
    says = CUDA_SUCCESS;
    REQUIRE((calls = 0, cuMemMap(0x9000, 4096, 1, 99, 2)) == CUDA_SUCCESS && block.maps == 0);
    knows = true;
    gs_mode = GS_INERT;
    look();
    REQUIRE(cuMemMap(0x9000, 4096, 1, 99, 2) == CUDA_SUCCESS && calls == 1 && block.finds == 0 && block.maps == 0);
    gs_mode = GS_ON;
}

static void unmapped_again(void) {
    mapping_count = 3;
    look();
    dropped = 0;
    REQUIRE(cuMemUnmap(0x9000, 4096) == CUDA_SUCCESS && frees == 1 && block.address == 0x9000 && block.size == 4096);
    REQUIRE(block.lets == 3 && block.number == 7 && block.backs == 0 && dropped == 1);
    free_says = CUDA_ERROR_UNKNOWN;
    look();
    REQUIRE(cuMemUnmap(0x9000, 4096) == CUDA_ERROR_UNKNOWN && block.lets == 0 && block.backs == 3 && dropped == 2);
    free_says = CUDA_SUCCESS;
    mapping_count = 0;
    look();
    REQUIRE(cuMemUnmap(0x9000, 4096) == CUDA_SUCCESS && frees == 1 && block.lets == 0 && dropped == 3);
    gs_mode = GS_INERT;
    look();
    REQUIRE(cuMemUnmap(0x9000, 4096) == CUDA_SUCCESS && frees == 1 && block.size == 0 && dropped == 3);
    gs_mode = GS_ON;
}

/* After a reset the driver is asked what is still mapped. */
static void reset(void) {
    mapping_count = 3;
    unmapped = 0x2000; /* the second and the third */
    look();
    dropped = 0;
    relaxed = 0;
    gs_vmm_was_reset(&gs_gpus[1]);
    REQUIRE(block.gpu == &gs_gpus[1] && calls == 3 && dropped == 1 && block.lets == 2 && block.number == 3);
    REQUIRE(frees == 1 && freed == 1000 + 0x1000); /* what was retained to find out goes back */
    REQUIRE(relaxed == 8);
    gone_already = 0x3000;
    look();
    gs_vmm_was_reset(&gs_gpus[1]);
    REQUIRE(block.lets == 1 && block.number == 2);
    retain_says = CUDA_ERROR_UNKNOWN; /* nobody knows: it stays charged */
    look();
    gs_vmm_was_reset(&gs_gpus[1]);
    REQUIRE(calls == 3 && block.lets == 0 && frees == 0);
    retain_says = CUDA_SUCCESS;
    unmapped = 0;
    gone_already = 0;
    look();
    gs_vmm_was_reset(&gs_gpus[0]);
    REQUIRE(block.lets == 3 && frees == 0);
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_driver.cuCtxGetCurrent = current_context;
    gs_driver.cuMemCreate = create;
    gs_driver.cuMemRelease = release;
    gs_driver.cuMemImportFromShareableHandle = import;
    gs_driver.cuMemExportToShareableHandle = export;
    gs_driver.cuMulticastCreate = multicast;
    gs_driver.cuMemMap = map;
    gs_driver.cuMemUnmap = unmap;
    gs_driver.cuMemRetainAllocationHandle = retain;
    created();
    not_ours();
    released();
    retained();
    shared();
    multicasts();
    mapped();
    unmapped_again();
    reset();
    return good();
}
