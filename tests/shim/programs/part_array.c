/* part_array.c: the hooks of arrays over a driver of the test's, which tells the size of an array, or not. */
#include "part_bank.h"

#define at_fork    fork_of_arrays
#define entry_fork entry_fork_of_arrays
#include "hook_array.c"
#undef at_fork
#undef entry_fork
#include "charge.c"
#include "table.c"

#define MIB (1ull << 20)

static CUresult says, free_says, size_says = CUDA_ERROR_NOT_SUPPORTED;
static uint32_t calls, frees, sizes, failed_again;
static uint64_t next_array = 0x100, size_told, freed_array;
static bool has_context = true, attaches = true, again = true;

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[0]);
    (void)units;
    return again;
}

void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[0]);
    (void)units;
    failed_again++;
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

/* ---- the driver ----------------------------------------------------------------------------------- */

static CUresult give(void **array) {
    calls++;
    *array = (void *)(uintptr_t)(says == CUDA_SUCCESS ? next_array : 0xdead);
    next_array += says == CUDA_SUCCESS ? 0x100 : 0;
    return says;
}

static CUresult create_1(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape) {
    (void)shape;
    return give((void **)array);
}

static CUresult create_2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape) {
    (void)shape;
    return give((void **)array);
}

static CUresult create_3d_1(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape) {
    (void)shape;
    return give((void **)array);
}

static CUresult create_3d_2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    (void)shape;
    return give((void **)array);
}

static CUresult create_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    (void)shape, (void)levels;
    return give((void **)array);
}

static CUresult destroy(CUarray array) {
    frees++;
    freed_array = (uint64_t)(uintptr_t)array;
    return free_says;
}

static CUresult destroy_mipmap(CUmipmappedArray array) {
    frees++;
    freed_array = (uint64_t)(uintptr_t)array;
    return free_says;
}

static CUresult tell_size(CUDA_ARRAY_MEMORY_REQUIREMENTS *told, CUarray array, CUdevice device) {
    REQUIRE((uint64_t)(uintptr_t)array == next_array - 0x100 && device == 0 && relaxed % 2 == 1);
    sizes++;
    told->size = size_told;
    return size_says;
}

static CUresult tell_size_of_mipmap(CUDA_ARRAY_MEMORY_REQUIREMENTS *told, CUmipmappedArray array, CUdevice device) {
    return tell_size(told, (CUarray)array, device);
}

/* ---- the ways ------------------------------------------------------------------------------------- */

static CUDA_ARRAY3D_DESCRIPTOR shape;
static unsigned levels = 1;

/* Each way to make an array of this shape, by its number. The first two know no depth and no flags. */
static CUresult make(int way, uint64_t *array) {
    CUarray made = NULL;
    CUmipmappedArray mipmap = NULL;
    CUDA_ARRAY_DESCRIPTOR_v1 old = {(unsigned int)shape.Width, (unsigned int)shape.Height, shape.Format,
                                    shape.NumChannels};
    CUDA_ARRAY_DESCRIPTOR flat = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
    CUDA_ARRAY3D_DESCRIPTOR_v1 old_3d = {(unsigned int)shape.Width, (unsigned int)shape.Height,
                                         (unsigned int)shape.Depth, shape.Format,
                                         shape.NumChannels,         shape.Flags};
    CUresult result;
    switch (way) {
    case 0:
        result = cuArrayCreate(&made, &old);
        break;
    case 1:
        result = cuArrayCreate_v2(&made, &flat);
        break;
    case 2:
        result = cuArray3DCreate(&made, &old_3d);
        break;
    case 3:
        result = cuArray3DCreate_v2(&made, &shape);
        break;
    default:
        result = cuMipmappedArrayCreate(&mipmap, &shape, levels);
        made = (CUarray)mipmap;
    }
    *array = (uint64_t)(uintptr_t)made;
    return result;
}

static CUresult end(int way, uint64_t array) {
    return way == 4 ? cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)array)
                    : cuArrayDestroy((CUarray)(uintptr_t)array);
}

static uint32_t units(uint64_t mib) {
    return (uint32_t)(mib * MIB / GS_UNIT_BYTES);
}

static void four_mib(void) {
    shape = (CUDA_ARRAY3D_DESCRIPTOR){1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    levels = 1;
    calls = frees = sizes = failed_again = 0;
    bank = (struct bank){0};
    set_unused(0, units(10));
}

static void a_life(void) {
    for (int way = 0; way < 5; way++) {
        uint64_t array, other;
        four_mib();
        REQUIRE(make(way, &array) == CUDA_SUCCESS && array == next_array - 0x100);
        REQUIRE(calls == 1 && sizes == 1 && used_on(0) == units(4));
        says = CUDA_ERROR_UNKNOWN;
        REQUIRE(make(way, &other) == CUDA_ERROR_UNKNOWN && calls == 2 && used_on(0) == units(4));
        says = CUDA_ERROR_OUT_OF_MEMORY; /* the daemon is told, and it is tried once more */
        REQUIRE(make(way, &other) == CUDA_ERROR_OUT_OF_MEMORY && calls == 4 && used_on(0) == units(4));
        REQUIRE(failed_again == 1);
        again = false;
        REQUIRE(make(way, &other) == CUDA_ERROR_OUT_OF_MEMORY && calls == 5 && failed_again == 1);
        again = true;
        says = CUDA_SUCCESS;
        set_unused(0, units(3));
        REQUIRE(make(way, &other) == CUDA_ERROR_OUT_OF_MEMORY && calls == 5 && bank.units == units(4));
        set_unused(0, units(10));
        attaches = false;
        REQUIRE(make(way, &other) == CUDA_ERROR_OUT_OF_MEMORY && calls == 5 && frees == 0 && sizes == 1);
        attaches = true;
        free_says = CUDA_ERROR_UNKNOWN;
        REQUIRE(end(way, array) == CUDA_ERROR_UNKNOWN && used_on(0) == units(4));
        free_says = CUDA_SUCCESS;
        REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0 && frees == 2 && freed_array == array);
        REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0 && frees == 3); /* the driver's to say */
        free_says = CUDA_ERROR_INVALID_HANDLE;
        REQUIRE(end(way, 0x5000) == CUDA_ERROR_INVALID_HANDLE && frees == 4 && freed_array == 0x5000);
        free_says = CUDA_SUCCESS;
    }
}

/* What the driver tells afterwards is charged, in whole blocks; what there is no room for goes back. */
static void corrected(void) {
    for (int way = 0; way < 5; way++) {
        uint64_t array;
        four_mib();
        size_says = CUDA_SUCCESS;
        size_told = 6 * MIB - 5;
        REQUIRE(make(way, &array) == CUDA_SUCCESS && used_on(0) == units(6));
        REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0);
        size_told = 512;
        REQUIRE(make(way, &array) == CUDA_SUCCESS && used_on(0) == 1);
        REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0 && bank.asks == 0);
        size_told = 12 * MIB;
        REQUIRE(make(way, &array) == CUDA_ERROR_OUT_OF_MEMORY && used_on(0) == 0 && bank.units == units(8));
        REQUIRE(frees == 3 && freed_array == next_array - 0x100);
        bank.grants = 1;
        REQUIRE(make(way, &array) == CUDA_SUCCESS && used_on(0) == units(12));
        REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0);
        size_says = CUDA_ERROR_NOT_SUPPORTED; /* then the estimate stays, whatever is in the answer */
        REQUIRE(make(way, &array) == CUDA_SUCCESS && used_on(0) == units(4));
        REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0);
    }
}

/* ---- how much is foreseen ------------------------------------------------------------------------- */

struct estimate {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    unsigned levels;
    uint64_t bytes;
};

#define FLOAT CU_AD_FORMAT_FLOAT
static const struct estimate estimates[] = {
    {{512, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1, 4096},
    {{512, 0, 0, CU_AD_FORMAT_SIGNED_INT8, 1, 0}, 1, 4096},
    {{512, 0, 0, CU_AD_FORMAT_UNSIGNED_INT16, 1, 0}, 1, 8192},
    {{512, 0, 0, CU_AD_FORMAT_SIGNED_INT16, 1, 0}, 1, 8192},
    {{512, 0, 0, CU_AD_FORMAT_HALF, 1, 0}, 1, 8192},
    {{512, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0}, 1, 16384},
    {{512, 0, 0, (CUarray_format)0x7fff, 1, 0}, 1, 16384}, /* an unknown one counts as the largest */
    {{512, 0, 0, FLOAT, 0, 0}, 1, 16384},
    {{512, 0, 0, FLOAT, 4, 0}, 1, 65536},
    {{0, 0, 0, FLOAT, 1, 0}, 1, 512},
    {{512, 3, 0, FLOAT, 1, 0}, 1, 16384},  /* rows are counted by eights */
    {{512, 3, 5, FLOAT, 1, 0}, 1, 131072}, /* a depth of 5 by 8 */
    {{512, 9, 5, FLOAT, 1, 0}, 1, 262144},
    {{512, 129, 1, FLOAT, 1, 0}, 1, 524288},    /* rows by 128 where there is no depth */
    {{512, 129, 17, FLOAT, 1, 0}, 1, 10 * MIB}, /* 136 rows, 32 deep: 8.5 MiB in whole blocks */
    {{512, 3, 5, FLOAT, 1, CUDA_ARRAY3D_SPARSE}, 1, 0},
    {{512, 3, 5, FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING}, 1, 0},
    {{512, 3, 6, FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 1, 98304},
    /* levels: each half as wide, high and deep as the one before; the number of layers and faces stays */
    {{512, 256, 128, FLOAT, 1, 0}, 1, 64 * MIB},
    {{512, 256, 128, FLOAT, 1, 0}, 2, 72 * MIB},
    {{512, 256, 128, FLOAT, 1, 0}, 3, 74 * MIB}, /* 73 and a whole block */
    {{512, 256, 128, FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 2, 80 * MIB},
    {{512, 256, 128, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}, 2, 80 * MIB},
    {{16, 1, 1, FLOAT, 32, 0}, 5, 31744},      /* eight rows each of 16 + 8 + 4 + 2 + 1 elements of 128 bytes */
    {{1, 1, 1, FLOAT, 128, 0}, 40, 32 * 4096}, /* no array has more levels than that */
    {{512, 0, 0, FLOAT, 1, 0}, 0, 0},
    {{1ull << 40, 1ull << 30, 1, FLOAT, 1, 0}, 1, UINT64_MAX}, /* more than any number says */
    {{UINT64_MAX / 4, 1, 1, FLOAT, 1, 0}, 2, UINT64_MAX},
};

static void foreseen(void) {
    for (size_t i = 0; i < sizeof estimates / sizeof *estimates; i++) {
        const struct estimate *one = &estimates[i];
        for (int way = 0; way < 5; way++) {
            uint64_t array, bytes = one->bytes;
            bool knows_all = way >= 3 || one->shape.Width <= UINT32_MAX;
            if (!knows_all || (way < 2 && (one->shape.Depth > 1 || one->shape.Flags)) || (way < 4 && one->levels != 1))
                continue;
            four_mib();
            shape = one->shape;
            levels = one->levels;
            set_unused(0, 0);
            uint32_t wanted = bytes == UINT64_MAX ? UINT32_MAX : (uint32_t)((bytes + 511) / 512);
            bank.grants = bytes == UINT64_MAX ? 0 : -1;
            CUresult result = make(way, &array);
            REQUIRE(bank.units == wanted && bank.asks == (bytes != 0));
            REQUIRE(result == (bytes == UINT64_MAX ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS));
            if (result != CUDA_SUCCESS)
                continue;
            REQUIRE(used_on(0) == wanted);
            size_says = CUDA_SUCCESS; /* what has no memory of its own is not corrected */
            size_told = 2 * MIB;
            REQUIRE(end(way, array) == CUDA_SUCCESS && used_on(0) == 0);
            if (bytes == 0) {
                REQUIRE(make(way, &array) == CUDA_SUCCESS && used_on(0) == 0);
                REQUIRE(end(way, array) == CUDA_SUCCESS);
            }
            size_says = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
}

/* ---- the driver's to say -------------------------------------------------------------------------- */

static void passed_on(void) {
    uint64_t array;
    four_mib();
    set_unused(0, 0);
    for (int off = 0; off < 2; off++) {
        gs_mode = off ? GS_INERT : GS_ON;
        has_context = off;
        for (int way = 0; way < 5; way++) {
            REQUIRE(make(way, &array) == CUDA_SUCCESS && used_on(0) == 0 && bank.asks == 0);
            REQUIRE(end(way, array) == CUDA_SUCCESS && freed_array == array);
        }
    }
    REQUIRE(calls == 10 && frees == 10 && sizes == 0);
    gs_mode = GS_ON;
    has_context = true;
    REQUIRE(make(3, &array) == CUDA_ERROR_OUT_OF_MEMORY);
    set_unused(0, units(4));
    REQUIRE(make(3, &array) == CUDA_SUCCESS);
    gs_mode = GS_INERT; /* it does not become so; but then nothing is looked up */
    REQUIRE(end(3, array) == CUDA_SUCCESS && used_on(0) == units(4));
    gs_mode = GS_ON;
    REQUIRE(end(3, array) == CUDA_SUCCESS && used_on(0) == 0);
}

static uint32_t without;

static CUresult none_2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    REQUIRE(array == NULL || descriptor == NULL);
    without++;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult no_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int number) {
    REQUIRE((array == NULL || descriptor == NULL) && number == 7);
    without++;
    return CUDA_ERROR_INVALID_VALUE;
}

static void without_a_place_or_a_shape(void) {
    CUarray array;
    CUmipmappedArray mipmap;
    CUDA_ARRAY_DESCRIPTOR flat = {1, 1, FLOAT, 1};
    bank = (struct bank){0};
    gs_driver.cuArrayCreate_v2 = none_2;
    gs_driver.cuMipmappedArrayCreate = no_mipmap;
    REQUIRE(cuArrayCreate_v2(NULL, &flat) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuArrayCreate_v2(&array, NULL) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMipmappedArrayCreate(NULL, &shape, 7) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMipmappedArrayCreate(&mipmap, NULL, 7) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(without == 4 && bank.asks == 0);
}

/* With its context, or after a fork, an array is gone without a call. */
static void gone(void) {
    uint64_t array, mipmap;
    four_mib();
    REQUIRE(make(3, &array) == CUDA_SUCCESS && make(4, &mipmap) == CUDA_SUCCESS && used_on(0) == units(8));
    gs_charge_context_gone(&gs_arrays, 20);
    REQUIRE(used_on(0) == units(8));
    gs_charge_context_gone(&gs_arrays, 21);
    REQUIRE(used_on(0) == 0 && frees == 0);
    REQUIRE(make(3, &array) == CUDA_SUCCESS);
    gs_table_forget(&gs_pointers);
    fork_of_arrays();
    REQUIRE(end(3, array) == CUDA_SUCCESS && used_on(0) == units(4));
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_driver.cuCtxGetCurrent = current_context;
    gs_driver.cuArrayCreate = create_1;
    gs_driver.cuArrayCreate_v2 = create_2;
    gs_driver.cuArray3DCreate = create_3d_1;
    gs_driver.cuArray3DCreate_v2 = create_3d_2;
    gs_driver.cuMipmappedArrayCreate = create_mipmap;
    gs_driver.cuArrayDestroy = destroy;
    gs_driver.cuMipmappedArrayDestroy = destroy_mipmap;
    gs_driver.cuArrayGetMemoryRequirements = tell_size;
    gs_driver.cuMipmappedArrayGetMemoryRequirements = tell_size_of_mipmap;
    a_life();
    corrected();
    foreseen();
    passed_on();
    gone();
    without_a_place_or_a_shape();
    return good();
}
