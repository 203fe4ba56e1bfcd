/* part_linear.c: the hooks of linear memory over a driver of the test's, which has both versions of each function. */
#include "part_bank.h"

#include "hook_linear.c"
#include "charge.c"
#include "table.c"

#define MIB (1ull << 20)

static CUresult says, free_says;
static uint32_t calls, frees;
static uint64_t next_address = 0x10000, wanted, freed_address;
static uint64_t pitch_says;
static bool has_context = true, attaches = true;

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[0] && units != 0);
    return true;
}

void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[0] && units != 0);
}

struct gs_pool *gs_pool_numbered(uint32_t number) {
    (void)number;
    return NULL;
}

void gs_pool_leave(struct gs_pool *pool, uint32_t units) {
    (void)pool, (void)units;
}

static CUresult current_context(CUcontext *context) {
    *context = has_context ? (CUcontext)(uintptr_t)16 : NULL;
    return CUDA_SUCCESS;
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)context;
    *place = (struct gs_place){&gs_gpus[0], 21};
    return attaches;
}

bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    return attaches;
}

static CUresult give(CUdeviceptr *address, uint64_t bytes) {
    calls++;
    wanted = bytes;
    *address = says == CUDA_SUCCESS ? next_address : 0xdead;
    next_address += says == CUDA_SUCCESS ? 0x1000 : 0;
    return says;
}

static uint32_t nowhere; /* calls without a place for the answer */

static CUresult alloc_2(CUdeviceptr *pointer, size_t size) {
    return give(pointer, size);
}

static CUresult alloc_1(CUdeviceptr_v1 *pointer, unsigned int size) {
    CUdeviceptr address;
    if (pointer == NULL)
        return nowhere++, CUDA_ERROR_INVALID_VALUE;
    CUresult result = give(&address, size);
    *pointer = (CUdeviceptr_v1)address;
    return result;
}

static CUresult managed(CUdeviceptr *pointer, size_t size, unsigned int flags) {
    REQUIRE(flags == 1);
    if (pointer == NULL)
        return nowhere++, CUDA_ERROR_INVALID_VALUE;
    return give(pointer, size);
}

static CUresult pitch_2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element) {
    REQUIRE(element == 4);
    if (pointer == NULL || pitch == NULL)
        return nowhere++, CUDA_ERROR_INVALID_VALUE;
    *pitch = pitch_says;
    return give(pointer, width * height);
}

static CUresult pitch_1(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                        unsigned int element) {
    CUdeviceptr address;
    REQUIRE(element == 4);
    if (pointer == NULL || pitch == NULL)
        return nowhere++, CUDA_ERROR_INVALID_VALUE;
    *pitch = (unsigned int)pitch_says;
    CUresult result = give(&address, (uint64_t)width * height);
    *pointer = (CUdeviceptr_v1)address;
    return result;
}

static bool slept; /* the driver was called before it was found */

static CUresult take_back(uint64_t address) {
    slept = slept || gs_mode == GS_ASLEEP;
    frees++;
    freed_address = address;
    return free_says;
}

static CUresult free_2(CUdeviceptr pointer) {
    return take_back(pointer);
}

static CUresult free_1(CUdeviceptr_v1 pointer) {
    return take_back(pointer);
}

/* Each way to allocate, by its number: `bytes` are rows of 1 KiB where it takes rows. */
static CUresult take(int way, CUdeviceptr *address, uint64_t bytes) {
    size_t pitch;
    unsigned int old_pitch;
    CUdeviceptr_v1 old = 0;
    CUresult result;
    switch (way) {
    case 0:
        return cuMemAlloc_v2(address, bytes);
    case 1:
        result = cuMemAlloc(&old, (unsigned int)bytes);
        break;
    case 2:
        return cuMemAllocManaged(address, bytes, 1);
    case 3:
        return cuMemAllocPitch_v2(address, &pitch, 1024, bytes / 1024, 4);
    default:
        result = cuMemAllocPitch(&old, &old_pitch, 1024, (unsigned int)(bytes / 1024), 4);
    }
    *address = old;
    return result;
}

static uint32_t units(uint64_t mib) {
    return (uint32_t)(mib * MIB / GS_UNIT_BYTES);
}

static CUresult end(int version, uint64_t address) {
    return version == 2 ? cuMemFree_v2(address) : cuMemFree((CUdeviceptr_v1)address);
}

/* Taken and given back, by either version of the free. */
static void a_life(void) {
    for (int way = 0; way < 5; way++) {
        for (int version = 1; version <= 2; version++) {
            CUdeviceptr address = 0, other;
            set_unused(0, units(10));
            bank = (struct bank){0};
            calls = frees = 0;
            pitch_says = 1024;
            REQUIRE(take(way, &address, 4 * MIB) == CUDA_SUCCESS && address == next_address - 0x1000);
            REQUIRE(calls == 1 && wanted == 4 * MIB && used_on(0) == units(4) && lines[0].managed == (way == 2));
            says = CUDA_ERROR_UNKNOWN;
            REQUIRE(take(way, &other, MIB) == CUDA_ERROR_UNKNOWN && calls == 2 && used_on(0) == units(4));
            says = CUDA_ERROR_OUT_OF_MEMORY; /* the daemon is told, and it is tried once more */
            REQUIRE(take(way, &other, MIB) == CUDA_ERROR_OUT_OF_MEMORY && calls == 4 && used_on(0) == units(4));
            says = CUDA_SUCCESS;
            REQUIRE(take(way, &other, 8 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && calls == 4 && bank.units == units(8));
            attaches = false;
            REQUIRE(take(way, &other, MIB) == CUDA_ERROR_OUT_OF_MEMORY && calls == 4 && frees == 0);
            attaches = true;
            free_says = CUDA_ERROR_UNKNOWN;
            REQUIRE(end(version, address) == CUDA_ERROR_UNKNOWN && used_on(0) == units(4));
            free_says = CUDA_SUCCESS;
            REQUIRE(end(version, address) == CUDA_SUCCESS && used_on(0) == 0 && lines[0].managed == 0);
            REQUIRE(frees == 2 && freed_address == address);
        }
    }
}

/* A driver that fails a first time for want of memory, and then has some. */
static CUresult second_try(CUdeviceptr *pointer, size_t size) {
    CUresult result = give(pointer, size);
    says = CUDA_SUCCESS;
    return result;
}

/* So that what nobody has set has a value that cannot be right. */
__attribute__((noinline)) static void spoil_the_stack(void) {
    volatile unsigned char bytes[4096];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = 0xfe;
}

/* An unknown pointer is the driver's own business: it is freed once, and nothing else happens. */
static void unknown_pointers(void) {
    set_unused(0, units(10));
    CUresult codes[] = {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE};
    CUdeviceptr address;
    REQUIRE(cuMemAlloc_v2(&address, MIB) == CUDA_SUCCESS);
    for (int version = 1; version <= 2; version++) {
        for (int code = 0; code < 2; code++) {
            for (uint64_t pointer = 0; pointer <= 0x5000; pointer += 0x5000) {
                uint64_t word = lines[0].word;
                uint32_t releases = lines[0].releases, unknown = gs_unknown_frees;
                frees = 0;
                free_says = codes[code];
                spoil_the_stack();
                REQUIRE(end(version, pointer) == codes[code] && frees == 1 && freed_address == pointer);
                REQUIRE(lines[0].word == word && lines[0].releases == releases);
                REQUIRE(gs_unknown_frees == unknown + (pointer != 0));
            }
        }
    }
    free_says = CUDA_SUCCESS;
    REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS && used_on(0) == 0);
    REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS && used_on(0) == 0 && gs_unknown_frees == 5);
}

/* Rows are as long as the driver makes them. */
static void rows(void) {
    size_t pitch;
    unsigned int old_pitch;
    CUdeviceptr_v1 old;
    CUdeviceptr address;
    set_unused(0, units(10));
    pitch_says = 4096;
    REQUIRE(cuMemAllocPitch_v2(&address, &pitch, 1000, 1024, 4) == CUDA_SUCCESS && pitch == 4096);
    REQUIRE(used_on(0) == units(4) && cuMemFree_v2(address) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocPitch(&old, &old_pitch, 1000, 1024, 4) == CUDA_SUCCESS && old_pitch == 4096);
    REQUIRE(used_on(0) == units(4) && cuMemFree(old) == CUDA_SUCCESS && used_on(0) == 0);
    pitch_says = 512; /* less than was foreseen, for rows of 100 bytes: 512 each */
    REQUIRE(cuMemAllocPitch_v2(&address, &pitch, 100, 1000, 4) == CUDA_SUCCESS && used_on(0) == 1000);
    REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
    set_unused(0, units(1) - 1);
    pitch_says = 1024;
    frees = 0; /* more than there is: it goes back */
    bank = (struct bank){0};
    REQUIRE(cuMemAllocPitch_v2(&address, &pitch, 512, 2048, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(bank.asks == 1 && frees == 0 && calls != 0);
    set_unused(0, units(3));
    pitch_says = 2048;
    REQUIRE(cuMemAllocPitch_v2(&address, &pitch, 512, 2048, 4) == CUDA_ERROR_OUT_OF_MEMORY && frees == 1);
    REQUIRE(used_on(0) == 0 && bank.units == units(3));
    REQUIRE(cuMemAllocPitch(&old, &old_pitch, 512, 2048, 4) == CUDA_ERROR_OUT_OF_MEMORY && frees == 2);
    REQUIRE(used_on(0) == 0);
    says = CUDA_ERROR_UNKNOWN; /* what the driver says beside an error is not followed */
    pitch_says = 1u << 20;
    REQUIRE(cuMemAllocPitch_v2(&address, &pitch, 512, 2048, 4) == CUDA_ERROR_UNKNOWN && frees == 2);
    REQUIRE(cuMemAllocPitch(&old, &old_pitch, 512, 2048, 4) == CUDA_ERROR_UNKNOWN && frees == 2);
    says = CUDA_SUCCESS;
    uint32_t before = calls; /* more than any number says is refused */
    REQUIRE(cuMemAllocPitch_v2(&address, &pitch, 1ull << 40, 1ull << 40, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(calls == before && bank.units == UINT32_MAX);
}

/* Without a place for the answer, without a budget, without a context: the driver's to say. */
static void passed_on(void) {
    CUdeviceptr address;
    set_unused(0, 0);
    pitch_says = 1024;
    gs_mode = GS_INERT;
    bank = (struct bank){0};
    calls = frees = 0;
    for (int way = 0; way < 5; way++)
        REQUIRE(take(way, &address, MIB) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS && cuMemFree((CUdeviceptr_v1)address) == CUDA_SUCCESS);
    REQUIRE(calls == 5 && frees == 2);
    for (int version = 1; version <= 2; version++) {
        gs_mode = GS_ASLEEP; /* the program's first call */
        REQUIRE(end(version, 0x5000) == CUDA_SUCCESS && gs_mode == GS_ON && !slept);
    }
    has_context = false;
    for (int way = 0; way < 5; way++)
        REQUIRE(take(way, &address, MIB) == CUDA_SUCCESS);
    REQUIRE(calls == 10 && bank.asks == 0 && used_on(0) == 0);
    has_context = true;
    size_t pitch;
    unsigned int old_pitch;
    CUdeviceptr_v1 old;
    REQUIRE(cuMemAlloc(NULL, 5) == CUDA_ERROR_INVALID_VALUE &&
            cuMemAllocManaged(NULL, 5, 1) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemAllocPitch_v2(NULL, &pitch, 5, 5, 4) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemAllocPitch_v2(&address, NULL, 5, 5, 4) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemAllocPitch(NULL, &old_pitch, 5, 5, 4) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemAllocPitch(&old, NULL, 5, 5, 4) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(nowhere == 6 && bank.asks == 0);
}

static CUresult none_2(CUdeviceptr *pointer, size_t size) {
    REQUIRE(pointer == NULL && size == 5);
    return CUDA_ERROR_INVALID_VALUE;
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_driver.cuCtxGetCurrent = current_context;
    gs_driver.cuMemAlloc_v2 = alloc_2;
    gs_driver.cuMemAlloc = alloc_1;
    gs_driver.cuMemAllocManaged = managed;
    gs_driver.cuMemAllocPitch_v2 = pitch_2;
    gs_driver.cuMemAllocPitch = pitch_1;
    gs_driver.cuMemFree_v2 = free_2;
    gs_driver.cuMemFree = free_1;
    a_life();
    unknown_pointers();
    rows();
    passed_on();
    CUdeviceptr address;
    gs_driver.cuMemAlloc_v2 = second_try;
    says = CUDA_ERROR_OUT_OF_MEMORY;
    set_unused(0, units(10));
    calls = 0;
    REQUIRE(cuMemAlloc_v2(&address, 2 * MIB) == CUDA_SUCCESS && calls == 2 && used_on(0) == units(2));
    gs_driver.cuMemAlloc_v2 = none_2;
    REQUIRE(cuMemAlloc_v2(NULL, 5) == CUDA_ERROR_INVALID_VALUE);
    return good();
}
