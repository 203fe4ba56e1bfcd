/* symbols.c: binding to the driver, by address.
 *
 * No lock is held while asking the loader: a thread may come here out of a constructor, with the loader's own lock
 * held, and wait for ours while we wait for the loader's. Threads that bind at the same time find the same
 * addresses and store them twice.
 */
#define _GNU_SOURCE
#include "symbols.h"

#include <dlfcn.h>
#include <string.h>

#include "loader.h"
#include "message.h"
#include "options.h"

#define CUDA_LIBRARY "libcuda.so.1"
#define NVML_LIBRARY "libnvidia-ml.so.1"

enum gs_mode gs_mode = GS_ASLEEP, gs_nvml_mode = GS_ASLEEP;

/* Before there is a driver. */
static CUresult not_initialized(void) {
    return CUDA_ERROR_NOT_INITIALIZED;
}

static nvmlReturn_t nvml_not_found(void) {
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

CUresult gs_missing(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define GS_UNBOUND(symbol) .symbol = (__typeof__(&symbol))(void (*)(void))not_initialized,
struct gs_driver gs_driver = {
#define GS_RULE_HOOK(base, symbol, since, stream) GS_UNBOUND(symbol)
#define GS_FN                                     GS_BY_RULE
#include "functions.def"
#undef GS_RULE_HOOK
    GS_DRIVER_HELPERS(GS_UNBOUND)};
#undef GS_UNBOUND

#define GS_UNBOUND(symbol) .symbol = (__typeof__(&symbol))(void (*)(void))nvml_not_found,
struct gs_nvml gs_nvml = {
#define GS_NVML_RULE_HOOK(symbol) GS_UNBOUND(symbol)
#define NVML_FN                   GS_NVML_BY_RULE
#include "nvml.def"
#undef GS_NVML_RULE_HOOK
    GS_NVML_HELPERS(GS_UNBOUND)};
#undef GS_UNBOUND

/* One row a hook. */
struct row {
    const char *base, *symbol;
    void *hook;
    void **real;   /* its field in gs_driver or gs_nvml */
    void *by_name; /* what cuGetProcAddress gives where that is another address; NULL: the same */
    int since;     /* as in functions.def */
    uint64_t flags;
    bool noted;
};

#define GS_FLAGS_LEGACY     CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define GS_FLAGS_PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

static struct row rows[] = {
#define GS_RULE_HOOK(base_, symbol_, since_, stream_)                                                                  \
    {.base = #base_,                                                                                                   \
     .symbol = #symbol_,                                                                                               \
     .hook = (void *)symbol_,                                                                                          \
     .real = (void **)&gs_driver.symbol_,                                                                              \
     .since = since_,                                                                                                  \
     .flags = GS_FLAGS_##stream_},
#define GS_FN GS_BY_RULE
#include "functions.def"
#undef GS_RULE_HOOK
};

static struct row nvml_rows[] = {
#define GS_NVML_RULE_HOOK(symbol_)                                                                                     \
    {.base = #symbol_, .symbol = #symbol_, .hook = (void *)symbol_, .real = (void **)&gs_nvml.symbol_},
#define NVML_FN GS_NVML_BY_RULE
#include "nvml.def"
#undef GS_NVML_RULE_HOOK
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void *look_up(void *library, const char *symbol, void *otherwise) {
    void *found = gs_real_dlsym(library, symbol);
    return found != NULL ? found : otherwise;
}

static void store(void **place, void *address) {
    __atomic_store_n(place, address, __ATOMIC_RELAXED);
}

/* The library that an address belongs to, which must have `proof`: a program may have opened the driver by a path
 * of its own, and other libraries have functions whose names look like the driver's. */
static void *library_of(const void *witness, const char *proof) {
    struct gs_library where;
    if (witness == NULL || !gs_library_at(witness, &where))
        return NULL;
    void *library = gs_real_dlopen(where.file, RTLD_LAZY | RTLD_NOLOAD);
    void *found = library != NULL ? gs_real_dlsym(library, proof) : NULL;
    if (library != NULL && (found == NULL || gs_is_hook(found))) { /* the program itself would find us */
        gs_real_dlclose(library);
        library = NULL;
    }
    return library;
}

bool gs_defines_a_driver(void *handle, const void *base) {
    static const char *const names[] = {"cuInit", "cuDriverGetVersion", "cuMemAlloc_v2", "cuLaunchKernel"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct gs_library where;
        const void *found = gs_real_dlsym(handle, names[i]);
        if (found == NULL || !gs_library_at(found, &where) || where.base != base)
            return false;
    }
    return true;
}

/* The driver that the program was linked with, under whatever name: it comes after us in the order of the loader.
 * Through a volatile, so that the loader sees that we ask. */
static void *linked_driver(void) {
    void *volatile next = gs_real_dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    struct gs_library where;
    void *library = next != NULL && gs_library_at(next, &where) ? library_of(next, "cuMemAlloc_v2") : NULL;
    if (library != NULL && !gs_defines_a_driver(library, where.base)) {
        gs_real_dlclose(library);
        library = NULL;
    }
    return library;
}

/* The driver that is loaded, or that shall be. The handle is kept: the real functions must not be unloaded. */
static void *open_library(const char *name, const char *proof, const void *witness, bool open) {
    void *library = library_of(witness, proof);
    if (library == NULL)
        library = gs_real_dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL && open)
        library = gs_real_dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    return library;
}

static void bind_rows(struct row *first, size_t count, void *library, void *otherwise) {
    for (struct row *row = first; row < first + count; row++) {
        void *found = look_up(library, row->symbol, otherwise);
        /* A library that depends on us, as an alias of the driver would, could hand us our own hook back. */
        store(row->real, found == row->hook ? otherwise : found);
    }
}

bool gs_may_wake(void) {
    return gs_options()->active && !gs_is_second_copy();
}

static enum gs_mode mode_now(void) {
    return gs_may_wake() ? GS_ON : GS_INERT;
}

static void *driver_handle;

void *gs_driver_handle(void) {
    return __atomic_load_n(&driver_handle, __ATOMIC_RELAXED);
}

bool gs_wake(const void *witness, bool open) {
    enum gs_mode mode = __atomic_load_n(&gs_mode, __ATOMIC_ACQUIRE);
    if (mode != GS_ASLEEP)
        return mode == GS_ON;
    void *library = witness == NULL ? linked_driver() : NULL;
    if (library == NULL)
        library = open_library(CUDA_LIBRARY, "cuMemAlloc_v2", witness, open);
    if (library == NULL)
        return false;
    store(&driver_handle, library);
    bind_rows(rows, COUNT(rows), library, (void *)gs_missing);
#define GS_BIND(symbol) store((void **)&gs_driver.symbol, look_up(library, #symbol, (void *)gs_missing));
    GS_DRIVER_HELPERS(GS_BIND)
#undef GS_BIND
    mode = mode_now();
    __atomic_store_n(&gs_mode, mode, __ATOMIC_RELEASE);
    return mode == GS_ON;
}

static nvmlReturn_t nvml_missing(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

bool gs_nvml_wake(const void *witness, bool open) {
    enum gs_mode mode = __atomic_load_n(&gs_nvml_mode, __ATOMIC_ACQUIRE);
    if (mode != GS_ASLEEP)
        return mode == GS_ON;
    void *library = open_library(NVML_LIBRARY, "nvmlDeviceGetMemoryInfo", witness, open);
    if (library == NULL)
        return false;
    bind_rows(nvml_rows, COUNT(nvml_rows), library, (void *)nvml_missing);
#define GS_BIND(symbol) store((void **)&gs_nvml.symbol, look_up(library, #symbol, (void *)nvml_missing));
    GS_NVML_HELPERS(GS_BIND)
#undef GS_BIND
    mode = mode_now();
    __atomic_store_n(&gs_nvml_mode, mode, __ATOMIC_RELEASE);
    return mode == GS_ON;
}

static struct row *find_row(bool (*matches)(const struct row *, const void *), const void *what) {
    for (size_t i = 0; i < COUNT(rows); i++)
        if (matches(&rows[i], what))
            return &rows[i];
    for (size_t i = 0; i < COUNT(nvml_rows); i++)
        if (matches(&nvml_rows[i], what))
            return &nvml_rows[i];
    return NULL;
}

static bool has_real(const struct row *row, const void *real) {
    return __atomic_load_n(row->real, __ATOMIC_RELAXED) == real ||
           __atomic_load_n(&row->by_name, __ATOMIC_RELAXED) == real;
}

static bool has_hook(const struct row *row, const void *hook) {
    return row->hook == hook;
}

static bool has_symbol(const struct row *row, const void *symbol) {
    return strcmp(row->symbol, symbol) == 0;
}

void *gs_hook_for(const void *real) {
    if (real == NULL || real == (void *)gs_missing || real == (void *)nvml_missing)
        return NULL;
    struct row *row = find_row(has_real, real);
    return row != NULL ? row->hook : NULL;
}

bool gs_is_hook(const void *address) {
    return find_row(has_hook, address) != NULL;
}

bool gs_is_hook_name(const char *symbol) {
    return find_row(has_symbol, symbol) != NULL;
}

/* ---- two look-ups that should agree ---------------------------------------------------------------- */

static void *by_name(const struct row *row) {
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    CUresult result = GS_HAS(cuGetProcAddress_v2)
                          ? gs_driver.cuGetProcAddress_v2(row->base, &found, row->since, row->flags, &status)
                          : gs_driver.cuGetProcAddress(row->base, &found, row->since, row->flags);
    return result == CUDA_SUCCESS ? found : NULL;
}

/* Whether it can only be the same function at another address: the driver's own, and not one that it exports under
 * another name, which would be another version with other arguments. */
static bool is_same_function(const struct row *row, const void *found) {
    struct gs_library there, driver;
    return gs_library_at(found, &there) && gs_library_at((const void *)*row->real, &driver) &&
           there.base == driver.base && (there.symbol == NULL || strcmp(there.symbol, row->symbol) == 0);
}

/* true: a look-up by cuGetProcAddress goes past the hook. */
static bool compare_row(struct row *row) {
    void *real = __atomic_load_n(row->real, __ATOMIC_RELAXED);
    void *found = real == (void *)gs_missing ? NULL : by_name(row);
    if (found == NULL || gs_hook_for(found) != NULL)
        return false;
    if (!is_same_function(row, found))
        return true;
    store(&row->by_name, found);
    return false;
}

static void say_apart(const struct row *row) {
    struct gs_text text = {0};
    gs_text_add(&text, "the driver's cuGetProcAddress has another ");
    gs_text_add(&text, row->base);
    gs_text_add(&text, " than its library: what a program allocates by that is past the limit, and found only by "
                       "measuring\nhint: please report this with the version of the driver");
    gs_say(GS_WARNING, GS_SAY_VARIANT, &text);
}

void gs_compare_look_ups(void) {
    static bool compared;
    if (__atomic_load_n(&compared, __ATOMIC_ACQUIRE))
        return;
    for (struct row *row = rows; row < rows + COUNT(rows); row++)
        if (compare_row(row))
            say_apart(row);
    __atomic_store_n(&compared, true, __ATOMIC_RELEASE);
}

/* The name as cuGetProcAddress takes it: without _v2, _ptsz and the like. */
static size_t base_length(const char *name) {
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0))
        length -= 5;
    size_t at = length;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    return at < length && at > 2 && name[at - 1] == 'v' && name[at - 2] == '_' ? at - 2 : length;
}

void gs_note_unknown(const char *name) {
    size_t length = base_length(name);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct row *row = &rows[i];
        if (strncmp(row->base, name, length) != 0 || row->base[length] != '\0')
            continue;
        if (__atomic_exchange_n(&row->noted, true, __ATOMIC_RELAXED))
            return;
        struct gs_text text = {0};
        gs_text_add(&text, name);
        gs_text_add(&text, " is a version of this function that gpushare does not know: what it allocates is found "
                           "by measuring");
        gs_say(GS_INFO, GS_SAY_VARIANT, &text);
        return;
    }
}
