/* part_symbols.c: how the library binds to a driver, and what it says where two look-ups disagree. The loader and its
 * libraries are made up. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "part.h"

#include "driver.h"

/* The hooks: functions at addresses of their own. */
#define HOOK_AT(symbol)                           __asm__(".globl " #symbol "\n" #symbol ":\n\tret\n");
#define GS_RULE_HOOK(base, symbol, since, stream) HOOK_AT(symbol)
#define GS_FN                                     GS_BY_RULE
#include "functions.def"
#undef GS_RULE_HOOK
#define GS_NVML_RULE_HOOK(symbol) HOOK_AT(symbol)
#define NVML_FN                   GS_NVML_BY_RULE
#include "nvml.def"
#undef GS_NVML_RULE_HOOK

#include "symbols.c"

static struct gs_options options = {.active = true};
static bool second_copy;
static char said[1024];
static int says;

const struct gs_options *gs_options(void) {
    return &options;
}

bool gs_is_second_copy(void) {
    return second_copy;
}

void gs_text_add(struct gs_text *text, const char *string) {
    size_t length = strlen(string);
    REQUIRE(text->length + length < sizeof text->bytes);
    memcpy(text->bytes + text->length, string, length);
    text->length += length;
}

static enum gs_level level_was;

void gs_say(enum gs_level level, enum gs_message_kind kind, const struct gs_text *text) {
    REQUIRE(kind == GS_SAY_VARIANT);
    says++;
    level_was = level;
    snprintf(said, sizeof said, "%.*s", (int)text->length, text->bytes);
}

/* ---- the loader ----------------------------------------------------------------------------------- */

struct library {
    const char *file, *name; /* name: by which it is opened */
    bool installed, loaded;
    const char *lacks; /* a function that it has not */
    const char *only;  /* the one function that it has; NULL: it has all */
    const char *alias; /* a function for which it gives our hook */
    const char *leans; /* a function of another library, on which it depends */
    int handles, opened;
};

enum { DRIVER, COPY, NVML, LOOKS, LIBRARIES };
static struct library libraries[LIBRARIES], *linked;

#define BASE(library) (((uintptr_t)(library) + 1) << 24)

static char names[2000][64];
static size_t names_known;

static size_t number_of(const char *name) {
    for (size_t i = 0; i < names_known; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    REQUIRE(names_known < sizeof names / sizeof *names);
    snprintf(names[names_known], sizeof *names, "%s", name);
    return names_known++;
}

/* Where a library has a function. */
static void *at(int library, const char *name) {
    return (void *)(BASE(library) + 16 * (number_of(name) + 1));
}

/* An address of the library that has no name. */
static void *inside(int library, const char *name) {
    return (char *)at(library, name) + 4;
}

static bool is(const char *name, const char *wanted) {
    return name != NULL && strcmp(name, wanted) == 0;
}

void *gs_real_dlsym(void *handle, const char *symbol) {
    struct library *library = handle;
    if (handle == RTLD_NEXT && (library = linked) == NULL)
        return NULL;
    if (is(library->lacks, symbol) || (library->only != NULL && !is(library->only, symbol)))
        return NULL;
    if (is(library->alias, symbol))
        return (void *)cuMemFree_v2;
    if (is(library->leans, symbol))
        return at(LOOKS, symbol);
    return at((int)(library - libraries), symbol);
}

void *gs_real_dlopen(const char *file, int flags) {
    REQUIRE(flags == (RTLD_LAZY | RTLD_NOLOAD) || flags == (RTLD_LAZY | RTLD_LOCAL));
    for (struct library *library = libraries; library < libraries + LIBRARIES; library++) {
        if (!is(library->file, file) && !is(library->name, file))
            continue;
        if (!library->loaded && (flags & RTLD_NOLOAD || !library->installed))
            return NULL;
        library->opened += !library->loaded;
        library->loaded = true;
        library->handles++;
        return library;
    }
    return NULL;
}

int gs_real_dlclose(void *handle) {
    REQUIRE(((struct library *)handle)->handles-- > 0);
    return 0;
}

bool gs_library_at(const void *address, struct gs_library *library) {
    REQUIRE(address != NULL);
    uintptr_t number = ((uintptr_t)address >> 24) - 1, offset = (uintptr_t)address & 0xffffff;
    if (number >= LIBRARIES)
        return false;
    const char *name = offset % 16 == 0 && offset / 16 - 1 < names_known ? names[offset / 16 - 1] : NULL;
    *library = (struct gs_library){libraries[number].file, (void *)BASE(number), name};
    return true;
}

/* A new process, in which nothing is loaded. */
static void begin(void) {
    memset(libraries, 0, sizeof libraries);
    libraries[DRIVER] = (struct library){.file = "/usr/lib/libcuda.so.1", .name = "libcuda.so.1"};
    libraries[COPY] = (struct library){.file = "/opt/driver.so", .loaded = true};
    libraries[NVML] = (struct library){.file = "/usr/lib/nvml", .name = "libnvidia-ml.so.1"};
    libraries[LOOKS] = (struct library){.file = "/opt/looks.so", .loaded = true};
    linked = NULL;
    gs_mode = gs_nvml_mode = GS_ASLEEP;
    driver_handle = NULL;
    options.active = true;
    second_copy = false;
    says = 0;
    said[0] = '\0';
}

static int handles(void) {
    int sum = 0;
    for (int i = 0; i < LIBRARIES; i++)
        sum += libraries[i].handles;
    return sum;
}

/* ---- binding --------------------------------------------------------------------------------------- */

static void before_there_is_a_driver(void) {
    begin();
    for (size_t i = 0; i < COUNT(rows); i++)
        REQUIRE(*rows[i].real == (void *)not_initialized);
    for (size_t i = 0; i < COUNT(nvml_rows); i++)
        REQUIRE(*nvml_rows[i].real == (void *)nvml_not_found);
    REQUIRE(gs_driver.cuCtxGetCurrent(NULL) == CUDA_ERROR_NOT_INITIALIZED);
    REQUIRE(gs_nvml.nvmlDeviceGetUUID(NULL, NULL, 0) == NVML_ERROR_LIBRARY_NOT_FOUND);
    for (int open = 0; open < 2; open++) {
        REQUIRE(!gs_wake(NULL, open) && !gs_nvml_wake(NULL, open) && gs_driver_handle() == NULL);
        REQUIRE(gs_mode == GS_ASLEEP && gs_nvml_mode == GS_ASLEEP && handles() == 0);
    }
    REQUIRE(gs_driver.cuCtxGetCurrent(NULL) == CUDA_ERROR_NOT_INITIALIZED);
}

/* Only a program's call opens the driver; a look-up finds it where it is loaded. */
static void by_its_name(void) {
    for (int loaded = 0; loaded < 2; loaded++)
        for (int open = 0; open < 2; open++) {
            begin();
            libraries[DRIVER].installed = libraries[NVML].installed = true;
            libraries[DRIVER].loaded = libraries[NVML].loaded = loaded;
            bool bound = loaded || open;
            REQUIRE(gs_wake(NULL, open) == bound && gs_nvml_wake(NULL, open) == bound);
            REQUIRE(handles() == (bound ? 2 : 0) && libraries[DRIVER].opened == (bound && !loaded));
            REQUIRE(gs_mode == (bound ? GS_ON : GS_ASLEEP) && gs_nvml_mode == gs_mode);
            REQUIRE(gs_driver_handle() == (bound ? &libraries[DRIVER] : NULL));
            if (!bound)
                continue;
            REQUIRE(gs_wake(NULL, true) && gs_nvml_wake(NULL, true) && handles() == 2); /* once */
        }
}

static void each_function(void) {
    begin();
    libraries[DRIVER].loaded = libraries[NVML].loaded = true;
    libraries[DRIVER].lacks = "cuMemAllocPitch_v2";
    libraries[DRIVER].alias = "cuMemFree_v2"; /* a library that depends on us */
    REQUIRE(gs_wake(NULL, false) && gs_nvml_wake(NULL, false));
    for (size_t i = 0; i < COUNT(rows); i++) {
        bool none = is("cuMemAllocPitch_v2", rows[i].symbol) || is("cuMemFree_v2", rows[i].symbol);
        REQUIRE(*rows[i].real == (none ? (void *)gs_missing : at(DRIVER, rows[i].symbol)));
        REQUIRE(gs_hook_for(at(DRIVER, rows[i].symbol)) == (none ? NULL : rows[i].hook));
        REQUIRE(gs_is_hook(rows[i].hook) && gs_is_hook_name(rows[i].symbol));
    }
    for (size_t i = 0; i < COUNT(nvml_rows); i++) {
        REQUIRE(*nvml_rows[i].real == at(NVML, nvml_rows[i].symbol));
        REQUIRE(gs_hook_for(at(NVML, nvml_rows[i].symbol)) == nvml_rows[i].hook);
        REQUIRE(gs_is_hook(nvml_rows[i].hook) && gs_is_hook_name(nvml_rows[i].symbol));
    }
    REQUIRE((void *)gs_driver.cuCtxGetCurrent == at(DRIVER, "cuCtxGetCurrent"));
    REQUIRE((void *)gs_nvml.nvmlDeviceGetUUID == at(NVML, "nvmlDeviceGetUUID"));
    REQUIRE(gs_driver.cuMemAllocPitch_v2(NULL, NULL, 0, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(gs_hook_for(NULL) == NULL && gs_hook_for((void *)gs_missing) == NULL && gs_hook_for(at(COPY, "x")) == NULL);
    REQUIRE(gs_hook_for((void *)nvml_missing) == NULL);
    REQUIRE(!gs_is_hook(at(DRIVER, "cuMemAlloc_v2")) && !gs_is_hook(NULL) && !gs_is_hook_name("cuInit"));
    begin();
    libraries[NVML].loaded = true;
    libraries[NVML].lacks = "nvmlDeviceGetMemoryInfo_v2";
    REQUIRE(gs_nvml_wake(NULL, false));
    REQUIRE(gs_nvml.nvmlDeviceGetMemoryInfo_v2(NULL, NULL) == NVML_ERROR_FUNCTION_NOT_FOUND);
    REQUIRE(gs_hook_for((void *)nvml_missing) == NULL);
}

/* Without a budget, or behind another copy of ourselves, all calls go straight through. */
static void inert(void) {
    for (int bits = 0; bits < 4; bits++) {
        begin();
        libraries[DRIVER].loaded = libraries[NVML].loaded = true;
        options.active = bits & 1;
        second_copy = bits & 2;
        bool acts = options.active && !second_copy;
        REQUIRE(gs_may_wake() == acts && gs_wake(NULL, false) == acts && gs_nvml_wake(NULL, false) == acts);
        REQUIRE(gs_mode == (acts ? GS_ON : GS_INERT) && gs_nvml_mode == gs_mode);
        REQUIRE((void *)gs_driver.cuMemFree_v2 == at(DRIVER, "cuMemFree_v2"));
        REQUIRE(gs_wake(NULL, true) == acts && gs_nvml_wake(NULL, true) == acts && handles() == 2);
    }
}

/* A program that has found a function of a driver by itself: that driver is ours. */
static void by_a_witness(void) {
    static const struct {
        int witness; /* in which library; -1: in none */
        const char *lacks, *alias;
        int bound;
    } of[] = {
        {DRIVER, NULL, NULL, DRIVER},          {COPY, NULL, NULL, COPY},
        {LOOKS, NULL, NULL, DRIVER},                                                  /* it has no cuMemAlloc_v2 */
        {COPY, "cuMemAlloc_v2", NULL, DRIVER}, {COPY, NULL, "cuMemAlloc_v2", DRIVER}, /* what it has is ours */
        {COPY, "cuInit", NULL, COPY},          {-1, NULL, NULL, DRIVER},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        begin();
        libraries[DRIVER].loaded = true;
        libraries[COPY].lacks = of[i].lacks;
        libraries[COPY].alias = of[i].alias;
        libraries[LOOKS].only = "cuMemFree_v2";
        linked = &libraries[COPY]; /* it is not asked for */
        REQUIRE(gs_wake(of[i].witness < 0 ? (void *)16 : at(of[i].witness, "cuMemFree_v2"), false));
        REQUIRE(gs_driver_handle() == &libraries[of[i].bound] && handles() == 1 && libraries[of[i].bound].handles == 1);
    }
    begin();
    libraries[DRIVER].loaded = true;
    libraries[COPY].loaded = false; /* the file of the witness is not found again */
    REQUIRE(gs_wake(at(COPY, "cuMemFree_v2"), false) && gs_driver_handle() == &libraries[DRIVER] && handles() == 1);
    for (int there = 0; there < 2; there++) {
        begin();
        libraries[COPY].lacks = there ? NULL : "nvmlDeviceGetMemoryInfo";
        REQUIRE(gs_nvml_wake(at(COPY, "nvmlInit"), false) == there && libraries[COPY].handles == there);
    }
}

/* The driver that the program is linked with, whatever its name. It must have all that makes a driver itself. */
static void by_the_linker(void) {
    static const char *const needed[] = {"cuInit", "cuDriverGetVersion", "cuMemAlloc_v2", "cuLaunchKernel"};
    begin();
    linked = &libraries[COPY];
    libraries[DRIVER].loaded = true;
    REQUIRE(gs_wake(NULL, false) && gs_driver_handle() == linked && handles() == 1 && linked->handles == 1);
    REQUIRE(gs_defines_a_driver(linked, (void *)BASE(COPY)) && !gs_defines_a_driver(linked, (void *)BASE(DRIVER)));
    for (int i = 0; i < 4; i++)
        for (int leans = 0; leans < 2; leans++) {
            begin();
            linked = &libraries[COPY];
            libraries[DRIVER].loaded = true;
            *(leans ? &linked->leans : &linked->lacks) = needed[i];
            libraries[LOOKS].only = "cuMemAlloc_v2";
            REQUIRE(!gs_defines_a_driver(linked, (void *)BASE(COPY)));
            REQUIRE(gs_wake(NULL, false) && gs_driver_handle() == &libraries[DRIVER]);
            REQUIRE(handles() == 1 && libraries[DRIVER].handles == 1);
        }
}

/* ---- two look-ups ---------------------------------------------------------------------------------- */

static struct {
    CUresult result;
    const char *base; /* of which it gives something else */
    void *gives;
    int asks, version;
} by;

static CUresult get(const char *base, void **function, int version, uint64_t flags) {
    by.asks++;
    if (is(by.base, base)) {
        by.version = version;
        *function = by.gives;
        return by.result;
    }
    *function = NULL;
    for (size_t i = 0; i < COUNT(rows); i++)
        if (is(rows[i].base, base) && rows[i].since == version && rows[i].flags == flags)
            *function = *rows[i].real;
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult get_2(const char *base, void **function, int version, uint64_t flags,
                      CUdriverProcAddressQueryResult *status) {
    *status = 0;
    return get(base, function, version, flags);
}

static struct row *row_of(const char *symbol) {
    return find_row(has_symbol, symbol);
}

static void bind_all(void) {
    begin();
    libraries[DRIVER].loaded = true;
    REQUIRE(gs_wake(NULL, false));
    for (size_t i = 0; i < COUNT(rows); i++)
        rows[i].by_name = NULL, rows[i].noted = false;
    gs_driver.cuGetProcAddress = get;
    gs_driver.cuGetProcAddress_v2 = get_2;
    memset(&by, 0, sizeof by);
}

/* One function: what cuGetProcAddress gives, whether that goes past our hook, and whether it has the hook from then on.
 */
static void disagreements(void) {
    const struct {
        void *gives;
        CUresult result;
        bool past, hooked;
    } of[] = {
        {at(DRIVER, "cuMemAlloc_v2"), CUDA_SUCCESS, false, false}, /* the same */
        {inside(DRIVER, "cuMemAlloc_v2"), CUDA_SUCCESS, false, true},
        {at(DRIVER, "cuMemFree_v2"), CUDA_SUCCESS, false, false}, /* it has a hook */
        {at(DRIVER, "cuMemAlloc_v9"), CUDA_SUCCESS, true, false}, /* another function, with arguments of its own */
        {at(COPY, "cuMemAlloc_v2"), CUDA_SUCCESS, true, false},
        {inside(COPY, "cuMemAlloc_v2"), CUDA_SUCCESS, true, false},
        {(void *)16, CUDA_SUCCESS, true, false}, /* nowhere */
        {NULL, CUDA_SUCCESS, false, false},
        {inside(COPY, "cuMemAlloc_v2"), CUDA_ERROR_NOT_FOUND, false, false},
    };
    struct row *row = row_of("cuMemAlloc_v2");
    for (int second = 0; second < 2; second++)
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            bind_all();
            if (!second)
                gs_driver.cuGetProcAddress_v2 = (__typeof__(gs_driver.cuGetProcAddress_v2))(void (*)(void))gs_missing;
            by.base = "cuMemAlloc";
            by.gives = of[i].gives;
            by.result = of[i].result;
            REQUIRE(compare_row(row) == of[i].past && by.asks == 1 && by.version == row->since);
            REQUIRE(row->by_name == (of[i].hooked ? of[i].gives : NULL));
            REQUIRE(!of[i].hooked || gs_hook_for(of[i].gives) == row->hook);
            REQUIRE(gs_hook_for(at(DRIVER, "cuMemAlloc_v2")) == row->hook);
        }
    bind_all();
    by.base = "cuMemAlloc";
    by.gives = at(DRIVER, "cuMemAlloc_v2"); /* known under its name, but bound to another address of the driver */
    *row->real = inside(DRIVER, "other");
    REQUIRE(!compare_row(row) && row->by_name == by.gives);
    bind_all();
    *row->real = (void *)gs_missing; /* the driver has none: nothing is asked */
    REQUIRE(!compare_row(row) && by.asks == 0);
}

/* All are compared once. What goes past us is said. */
static void compared(void) {
    bind_all();
    by.base = "cuMemAlloc";
    by.gives = at(DRIVER, "cuMemAlloc_v9");
    gs_compare_look_ups();
    int asks = by.asks;
    REQUIRE(asks >= (int)COUNT(rows) && says == 2 && level_was == GS_WARNING); /* two versions of cuMemAlloc */
    REQUIRE(strcmp(said, "the driver's cuGetProcAddress has another cuMemAlloc than its library: what a program "
                         "allocates by that is past the limit, and found only by measuring\nhint: please report this "
                         "with the version of the driver") == 0);
    gs_compare_look_ups();
    REQUIRE(by.asks == asks && says == 2);
}

static void new_versions(void) {
    static const struct {
        const char *name;
        size_t length;
    } of[] = {{"cuMemAlloc", 10},
              {"cuMemAlloc_v2", 10},
              {"cuMemAlloc_v12", 10},
              {"cuMemAllocAsync_ptsz", 15},
              {"cuX_v2_ptds", 3},
              {"cuX_v2_ptsx", 11},
              {"cuX_v", 5},
              {"cuX2", 4},
              {"cuXv2", 5},
              {"cuX_2", 5},
              {"cuX_v0", 3},
              {"cuX_v9", 3},
              {"cuX_v/", 6},
              {"cuX_v:", 6},
              {"_v2", 3},
              {"x_v2", 1},
              {"_ptsz", 5},
              {"a_ptsz", 1},
              {"", 0},
              {"22", 2},
              {"cuX_w2", 6}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        REQUIRE(base_length(of[i].name) == of[i].length);
    bind_all();
    static const char *const others[] = {"cuInit_v9", "cuMemAllo", "cuMemAllocX", "cuMemAllocX_v2"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        gs_note_unknown(others[i]);
    REQUIRE(says == 0);
    gs_note_unknown("cuMemAlloc_v9");
    REQUIRE(says == 1 && level_was == GS_INFO);
    REQUIRE(strcmp(said,
                   "cuMemAlloc_v9 is a version of this function that gpushare does not know: what it allocates is "
                   "found by measuring") == 0);
    gs_note_unknown("cuMemAlloc_v9");
    gs_note_unknown("cuMemAlloc_v10");
    REQUIRE(says == 1);
    gs_note_unknown("cuMemFree_v9");
    REQUIRE(says == 2);
    gs_note_unknown("cuGetProcAddress_v9"); /* the first row */
    REQUIRE(says == 3);
}

int main(void) {
    before_there_is_a_driver();
    by_its_name();
    each_function();
    inert();
    by_a_witness();
    by_the_linker();
    disagreements();
    compared();
    new_versions();
    return good();
}
