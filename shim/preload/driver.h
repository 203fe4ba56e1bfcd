/* driver.h: the table of the real driver functions, and whether our hooks are active.
 *
 * The functions follow from functions.def and nvml.def: a row with the rule HOOK is a field in gs_driver, and what the
 * hooks themselves ask the driver stands below. symbols.c finds them.
 */
#ifndef GPUSHARE_PRELOAD_DRIVER_H
#define GPUSHARE_PRELOAD_DRIVER_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "nvml_abi.h"

/* One macro for each rule, so that a row can be taken or left by its rule. */
#define GS_BY_RULE(base, symbol, since, stream, family, rule) GS_RULE_##rule(base, symbol, since, stream)
#define GS_RULE_PASS_NO_MEMORY(base, symbol, since, stream)
#define GS_RULE_PASS_OVERHEAD(base, symbol, since, stream)
#define GS_RULE_PASS_FOREIGN(base, symbol, since, stream)
#define GS_RULE_PASS_HOST(base, symbol, since, stream)
#define GS_RULE_PASS_RECONCILED(base, symbol, since, stream)
#define GS_RULE_PASS_PRIVATE(base, symbol, since, stream)
#define GS_RULE_PASS_OTHER_PROCESS(base, symbol, since, stream)
/* In the library for nodes on which jobs take turns; in the other one launches are not touched. */
#if defined(GS_TURNS)
#define GS_RULE_TURN(base, symbol, since, stream) GS_RULE_HOOK(base, symbol, since, stream)
#else
#define GS_RULE_TURN(base, symbol, since, stream)
#endif
#define GS_NVML_RULE_PASS(symbol)
#define GS_NVML_BY_RULE(symbol, rule) GS_NVML_RULE_##rule(symbol)

/* What the hooks themselves ask the driver. */
#define GS_DRIVER_HELPERS(HELPER)                                                                                      \
    HELPER(cuDeviceGetGraphMemAttribute)                                                                               \
    HELPER(cuGraphChildGraphNodeGetGraph)                                                                              \
    HELPER(cuGraphGetNodes)                                                                                            \
    HELPER(cuGraphMemAllocNodeGetParams)                                                                               \
    HELPER(cuGraphNodeGetType)                                                                                         \
    HELPER(cuThreadExchangeStreamCaptureMode)                                                                          \
    HELPER(cuCtxFromGreenCtx)                                                                                          \
    HELPER(cuCheckpointProcessGetState)                                                                                \
    HELPER(cuCtxGetCurrent)                                                                                            \
    HELPER(cuCtxGetLimit)                                                                                              \
    HELPER(cuCtxGetDevice)                                                                                             \
    HELPER(cuCtxSetCurrent)                                                                                            \
    HELPER(cuDeviceGetCount)                                                                                           \
    HELPER(cuDeviceGetUuid)                                                                                            \
    HELPER(cuDeviceGetUuid_v2)                                                                                         \
    HELPER(cuDeviceGetDefaultMemPool)                                                                                  \
    HELPER(cuDeviceGetMemPool)                                                                                         \
    HELPER(cuDevicePrimaryCtxGetState)                                                                                 \
    HELPER(cuMemPoolGetAttribute)                                                                                      \
    HELPER(cuStreamGetCtx)                                                                                             \
    HELPER(cuStreamIsCapturing)                                                                                        \
    HELPER(cuStreamIsCapturing_ptsz)                                                                                   \
    HELPER(cuArrayGetMemoryRequirements)                                                                               \
    HELPER(cuMipmappedArrayGetMemoryRequirements)

#define GS_NVML_HELPERS(HELPER) HELPER(nvmlDeviceGetUUID)

#define GS_FIELD(symbol) __typeof__(&symbol) symbol;

/* The real functions. Never NULL: one that the driver lacks answers CUDA_ERROR_NOT_SUPPORTED. */
struct gs_driver {
#define GS_RULE_HOOK(base, symbol, since, stream) GS_FIELD(symbol)
#define GS_FN                                     GS_BY_RULE
#include "functions.def"
#undef GS_RULE_HOOK
    GS_DRIVER_HELPERS(GS_FIELD)
};

struct gs_nvml {
#define GS_NVML_RULE_HOOK(symbol) GS_FIELD(symbol)
#define NVML_FN                   GS_NVML_BY_RULE
#include "nvml.def"
#undef GS_NVML_RULE_HOOK
    GS_NVML_HELPERS(GS_FIELD)
};

extern struct gs_driver gs_driver;
extern struct gs_nvml gs_nvml;

enum gs_mode {
    GS_ASLEEP, /* the driver's functions are not known yet */
    GS_INERT,  /* no budget: everything goes straight through */
    GS_ON,
};
extern enum gs_mode gs_mode, gs_nvml_mode;

/* Find the driver's functions, unless they are known, and decide the mode. `witness` is an address inside the
 * driver that somebody has found, or NULL; without one the driver is opened if `open`. true: GS_ON. */
bool gs_wake(const void *witness, bool open);
bool gs_nvml_wake(const void *witness, bool open);

/* The first line of each hook: shall it do anything but pass the call on? */
static inline bool gs_on(void) {
    enum gs_mode mode = __atomic_load_n(&gs_mode, __ATOMIC_ACQUIRE);
    return __builtin_expect(mode == GS_ON, 1) || (mode == GS_ASLEEP && gs_wake(NULL, true));
}

static inline bool gs_nvml_on(void) {
    enum gs_mode mode = __atomic_load_n(&gs_nvml_mode, __ATOMIC_ACQUIRE);
    return mode == GS_ON || (mode == GS_ASLEEP && gs_nvml_wake(NULL, true));
}

/* Whether the driver has a function of the table: GS_HAS(cuStreamGetCtx). */
CUresult gs_missing(void);
#define GS_HAS(symbol) ((void *)gs_driver.symbol != (void *)gs_missing)

/* Statements that call the driver for ourselves. Some calls are forbidden while any thread captures, and which is not
 * documented in full: one that is fails, and spoils the capture. A thread in the relaxed mode may make them all. */
#define GS_RELAXED(statements)                                                                                         \
    do {                                                                                                               \
        CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;                                                    \
        bool relaxed_ = gs_driver.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;                           \
        statements;                                                                                                    \
        if (relaxed_)                                                                                                  \
            gs_driver.cuThreadExchangeStreamCaptureMode(&mode_);                                                       \
    } while (0)

#endif
