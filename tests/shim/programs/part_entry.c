/* part_entry.c: where each look-up of a program goes, and what it is answered. The loader, the drivers and the hooks
 * are made up. */
#define _GNU_SOURCE /* LM_ID_NEWLM */
#include "part.h"

#include "entry.c"

struct gs_driver gs_driver;
enum gs_mode gs_mode = GS_ASLEEP, gs_nvml_mode = GS_ASLEEP;

#define OURS    ((void *)0x1000) /* a hook */
#define REAL    ((void *)0x2000) /* a function that has one */
#define OTHER   ((void *)0x3000) /* one that has none */
#define AFTER   ((void *)0x4000) /* what comes after us */
#define ANSWER  ((void *)0x5000) /* in place of another copy's */
#define LIBRARY ((void *)0x50)   /* a handle of the program's */

static struct {
    bool cuda_loaded, nvml_loaded, cuda_on, nvml_on, is_copy, opens_here;
    void *found, *after;
} is;
static uint32_t opened, closed, looks, compared, wakes;
static const void *witness_was, *caller_was;
static bool open_was;
static char unknown[64];
static void *asked_in;
static uint32_t asks;

void *gs_loader(enum gs_loader function) {
    return (void *)(uintptr_t)(0x100 + function);
}

void *gs_real_dlopen(const char *file, int flags) {
    bool cuda = strcmp(file, "libcuda.so.1") == 0;
    REQUIRE(flags == (RTLD_LAZY | RTLD_NOLOAD) && (cuda || strcmp(file, "libnvidia-ml.so.1") == 0));
    bool there = cuda ? is.cuda_loaded : is.nvml_loaded;
    opened += there;
    return there ? LIBRARY : NULL;
}

int gs_real_dlclose(void *library) {
    REQUIRE(library == LIBRARY);
    closed++;
    return 0;
}

void *gs_real_dlsym(void *library, const char *symbol) {
    REQUIRE(symbol != NULL);
    asked_in = library;
    asks++;
    return library == RTLD_NEXT ? is.after : is.found;
}

void *gs_real_dlvsym(void *library, const char *symbol, const char *version) {
    REQUIRE(strcmp(version, "V1") == 0);
    return gs_real_dlsym(library, symbol);
}

bool gs_wake(const void *witness, bool open) {
    witness_was = witness;
    open_was = open;
    wakes++;
    return is.cuda_on;
}

bool gs_nvml_wake(const void *witness, bool open) {
    witness_was = witness;
    open_was = open;
    return is.nvml_on;
}

void *gs_hook_for(const void *real) {
    return real == REAL ? OURS : NULL;
}

bool gs_is_hook(const void *address) {
    return address == OURS;
}

bool gs_is_hook_name(const char *symbol) {
    return strcmp(symbol, "cuMemAlloc_v2") == 0 || strcmp(symbol, "nvmlDeviceGetMemoryInfo") == 0;
}

bool gs_is_of_copy(void *handle, const void *found, const void *caller) {
    REQUIRE(handle == LIBRARY && found == OTHER);
    caller_was = caller;
    return is.is_copy;
}

void *gs_instead_of_copy(const void *found, const char *name) {
    REQUIRE(found == OTHER && name != NULL);
    return ANSWER;
}

bool gs_open_copy_here(void *handle, const void *found) {
    REQUIRE(handle == LIBRARY && found == is.found);
    return is.opens_here;
}

void gs_note_unknown(const char *name) {
    snprintf(unknown, sizeof unknown, "%s", name);
}

void gs_look_now_and_then(void) {
    looks++;
}

void gs_compare_look_ups(void) {
    compared++;
}

static void *to_loader(enum gs_loader function) {
    return gs_loader(function);
}

/* Names of the driver and of NVML have an upper letter after the prefix. All others are the loader's to find. */
static void whose_names(void) {
    static const char *const ours[] = {"cuInit", "cuA", "cuZ", "cuMemAlloc_v2", "nvmlInit", "nvmlA", "nvmlZ"};
    static const char *const others[] = {"",       "c",      "cu",    "cu_A",  "cublasCreate", "cu@",   "cu[", "CuInit",
                                         "xuInit", "cvInit", "nvml",  "nvmlx", "nvml@",        "nvml[", "nvm", "n",
                                         "nvMlA",  "nwmlA",  "nvnlA", "nvmkA", "mvmlA",        "malloc"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        REQUIRE(gs_route_dlsym(LIBRARY, ours[i]) == (void *)substitute);
        REQUIRE(gs_route_dlvsym(LIBRARY, ours[i]) == (void *)substitute_version);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        REQUIRE(gs_route_dlsym(LIBRARY, others[i]) == to_loader(GS_DLSYM));
        REQUIRE(gs_route_dlvsym(LIBRARY, others[i]) == to_loader(GS_DLVSYM));
    }
    REQUIRE(gs_route_dlsym(LIBRARY, NULL) == to_loader(GS_DLSYM));
    REQUIRE(gs_route_dlvsym(LIBRARY, NULL) == to_loader(GS_DLVSYM));
}

/* RTLD_NEXT and RTLD_DEFAULT are answered by the caller's address: the loader must be jumped to. */
static void pseudo_handles(void) {
    static const char *const of[] = {"cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"};
    for (int nvml = 0; nvml < 2; nvml++) {
        REQUIRE(gs_route_dlsym(RTLD_NEXT, of[nvml]) == to_loader(GS_DLSYM));
        REQUIRE(gs_route_dlvsym(RTLD_NEXT, of[nvml]) == to_loader(GS_DLVSYM));
        REQUIRE(gs_route_dlvsym(RTLD_DEFAULT, of[nvml]) == to_loader(GS_DLVSYM));
        for (int loaded = 0; loaded < 4; loaded++) {
            is.cuda_loaded = loaded & 1;
            is.nvml_loaded = loaded >> 1;
            bool there = nvml ? is.nvml_loaded : is.cuda_loaded;
            opened = closed = 0;
            void *way = gs_route_dlsym(RTLD_DEFAULT, of[nvml]);
            REQUIRE(way == (there ? to_loader(GS_DLSYM) : (void *)find_nothing) && opened == there && closed == opened);
            REQUIRE(gs_route_dlsym(RTLD_DEFAULT, nvml ? "nvmlInit" : "cuInit") == to_loader(GS_DLSYM));
        }
        memset(&is, 0, sizeof is);
        *(nvml ? &gs_nvml_mode : &gs_mode) = GS_INERT; /* bound: it is there */
        REQUIRE(gs_route_dlsym(RTLD_DEFAULT, of[nvml]) == to_loader(GS_DLSYM) && opened == closed);
        REQUIRE(gs_route_dlsym(RTLD_DEFAULT, of[!nvml]) == (void *)find_nothing);
        gs_nvml_mode = gs_mode = GS_ASLEEP;
    }
    is.after = AFTER;
    REQUIRE(find_nothing(RTLD_DEFAULT, "cuMemAlloc_v2") == AFTER && asked_in == RTLD_NEXT);
    memset(&is, 0, sizeof is);
}

/* From the first namespace on, each look-up of something else is a chance to see what was loaded there. */
static void other_namespaces(void) {
    REQUIRE(gs_route_dlmopen(LM_ID_BASE, "x.so") == to_loader(GS_DLMOPEN) && !namespaces);
    REQUIRE(gs_route_dlmopen(LM_ID_NEWLM, NULL) == to_loader(GS_DLMOPEN) && !namespaces);
    gs_route_dlsym(LIBRARY, "malloc");
    REQUIRE(looks == 0);
    REQUIRE(gs_route_dlmopen(LM_ID_NEWLM, "x.so") == to_loader(GS_DLMOPEN) && namespaces);
    gs_route_dlsym(LIBRARY, "cuInit");
    gs_route_dlvsym(LIBRARY, "malloc");
    REQUIRE(looks == 0);
    gs_route_dlsym(LIBRARY, "malloc");
    gs_route_dlsym(RTLD_NEXT, NULL);
    REQUIRE(looks == 2);
    namespaces = false;
}

/* The loader has found our own function: it is the answer where we act; else what comes after us, if anything does. */
static void our_own_is_found(void) {
    static const char *const of[] = {"cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"};
    for (int nvml = 0; nvml < 2; nvml++)
        for (int bits = 0; bits < 8; bits++) {
            bool on = bits & 1, loaded = bits & 2, after = bits & 4;
            memset(&is, 0, sizeof is);
            *(nvml ? &is.nvml_on : &is.cuda_on) = on;
            *(nvml ? &is.nvml_loaded : &is.cuda_loaded) = loaded;
            is.found = OURS;
            is.after = after ? AFTER : NULL;
            witness_was = LIBRARY;
            open_was = true;
            void *answer = substitute(LIBRARY, of[nvml]);
            REQUIRE(answer == (on ? OURS : after ? AFTER : loaded ? OURS : NULL));
            REQUIRE(witness_was == NULL && !open_was); /* a look-up opens no driver */
            REQUIRE(on || asked_in == RTLD_NEXT);
        }
    memset(&is, 0, sizeof is);
}

/* Whether an address is in the function that looks up, which returns to `above`. */
static bool is_here(const void *caller, const void *above) {
    return caller != NULL && caller != above;
}

/* The loader has found something else, in a library of the program's. */
__attribute__((noinline)) static void another_is_found(void) {
    const void *above = __builtin_return_address(0);
    is.found = NULL;
    uint32_t before = wakes;
    REQUIRE(substitute(LIBRARY, "cuMemAlloc_v2") == NULL && asked_in == LIBRARY && wakes == before);
    is.found = REAL;
    is.cuda_on = true;
    REQUIRE(substitute(LIBRARY, "cuMemAlloc_v2") == OURS && witness_was == REAL && !open_was);
    REQUIRE(substitute_version(LIBRARY, "cuMemAlloc_v2", "V1") == OURS && unknown[0] == '\0');
    is.found = OTHER; /* another function of the driver, or another library's */
    asks = 0;
    REQUIRE(substitute(LIBRARY, "cuMemAlloc_v9") == OTHER && strcmp(unknown, "cuMemAlloc_v9") == 0);
    REQUIRE(asks == 2 && asked_in == LIBRARY && is_here(caller_was, above)); /* the last one for dlerror */
    caller_was = NULL;
    REQUIRE(substitute_version(LIBRARY, "cuMemAlloc_v9", "V1") == OTHER && is_here(caller_was, above));
    unknown[0] = '\0';
    is.is_copy = true;
    REQUIRE(substitute(LIBRARY, "cuMemAlloc_v2") == ANSWER && unknown[0] == '\0');
    is.cuda_on = is.is_copy = false; /* we do not act: the program's own */
    is.found = REAL;
    REQUIRE(substitute(LIBRARY, "cuMemAlloc_v2") == REAL && asked_in == LIBRARY && unknown[0] == '\0');
    is.opens_here = true; /* a driver that was in a namespace is here now */
    REQUIRE(substitute(LIBRARY, "cuMemAlloc_v2") == OURS);
    memset(&is, 0, sizeof is);
    is.found = REAL;
    REQUIRE(substitute(LIBRARY, "nvmlDeviceGetMemoryInfo") == REAL);
    is.nvml_on = true;
    before = wakes;
    REQUIRE(substitute(LIBRARY, "nvmlDeviceGetMemoryInfo") == OURS && witness_was == REAL && !open_was);
    is.found = OTHER;
    REQUIRE(substitute(LIBRARY, "nvmlDeviceGetName") == OTHER && wakes == before && unknown[0] == '\0');
    memset(&is, 0, sizeof is);
}

static CUresult says;
static void *gives;
static int version_was;
static uint64_t flags_were;

static CUresult get(const char *symbol, void **function, int version, uint64_t flags) {
    REQUIRE(strcmp(symbol, "cuMemAlloc") == 0);
    version_was = version;
    flags_were = flags;
    if (function != NULL)
        *function = gives;
    return says;
}

static CUresult get_2(const char *symbol, void **function, int version, uint64_t flags,
                      CUdriverProcAddressQueryResult *status) {
    *status = 7;
    return get(symbol, function, version, flags);
}

/* Both versions of the call, whatever the driver says and gives. */
static void by_the_driver(void) {
    void *all[] = {NULL, REAL, OTHER, OURS};
    gs_driver.cuGetProcAddress = get;
    gs_driver.cuGetProcAddress_v2 = get_2;
    for (int second = 0; second < 2; second++)
        for (int bits = 0; bits < 4; bits++)
            for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
                bool on = bits & 1, good = bits & 2, acts = on && good;
                CUdriverProcAddressQueryResult status = 0;
                void *function = (void *)1;
                gs_mode = on ? GS_ON : GS_INERT;
                says = good ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
                gives = all[i];
                unknown[0] = '\0';
                compared = 0;
                CUresult result = second ? cuGetProcAddress_v2("cuMemAlloc", &function, 12030, 2, &status)
                                         : cuGetProcAddress("cuMemAlloc", &function, 12030, 2);
                REQUIRE(result == says && version_was == 12030 && flags_were == 2 && compared == acts);
                REQUIRE(function == (acts && gives == REAL ? OURS : gives) && (int)status == (second ? 7 : 0));
                REQUIRE((strcmp(unknown, "cuMemAlloc") == 0) == (acts && gives == OTHER));
                REQUIRE(!acts || cuGetProcAddress("cuMemAlloc", NULL, 12030, 2) == CUDA_SUCCESS);
            }
    gs_mode = GS_ASLEEP; /* the first call of a program that is linked with the driver: it may be opened */
    is.cuda_on = true;
    says = CUDA_SUCCESS;
    gives = REAL;
    void *function = NULL;
    REQUIRE(cuGetProcAddress("cuMemAlloc", &function, 1, 0) == CUDA_SUCCESS && function == OURS && open_was);
}

int main(void) {
    whose_names();
    pseudo_handles();
    other_namespaces();
    our_own_is_found();
    another_is_found();
    by_the_driver();
    return good();
}
