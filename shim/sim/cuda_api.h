/* cuda_api.h: what every entry point of the CUDA library begins with.
 *
 * ENTER(symbol) refuses when the driver is not initialised in this very process (a forked child is not), and lets
 * GPUSHARE_SIM delay the call or fail it. Until the function returns the call counts as one in the driver: another
 * process that checkpoints this one waits for it. One mutex, driver_lock(), guards all state of the process; it is
 * never held while a program's own function runs or while bytes are copied.
 */
#ifndef GPUSHARE_SIM_CUDA_API_H
#define GPUSHARE_SIM_CUDA_API_H

#include "common_pool.h"
#include "cuda_abi.h"

#include <pthread.h>
#include <stdbool.h>

enum api_function {
#define GS_FN(base, symbol, since, stream, family, rule) API_##symbol,
#define GS_OTHER(base, symbol, since, stream)            API_##symbol,
#include "functions.def"
    API_COUNT
};

/* The state of the gate; it stands on a page that the kernel clears in a forked child. */
enum { GATE_SHUT = 0, GATE_OPEN = 1, GATE_FAULTS = 2 };
extern unsigned char *api_gate;

/* For all cases but the common one. */
CUresult api_enter_slowly(enum api_function function);

/* The calls that wait for the GPU or ask how far it is: they read what it has written. */
extern const bool api_looks[API_COUNT];

/* A call of the program. While another process has locked this one, it waits before it does anything. */
struct api_call {
    CUresult result;
    bool counted;
};

static inline struct api_call api_enter(enum api_function function) {
    unsigned char *gate = __atomic_load_n(&api_gate, __ATOMIC_ACQUIRE);
    if (gate == NULL || *gate == GATE_SHUT) {
        return (struct api_call){CUDA_ERROR_NOT_INITIALIZED, false};
    }
    if (!pool_call_begins(api_looks[function])) {
        return (struct api_call){CUDA_ERROR_UNKNOWN, true};
    }
    CUresult result = __builtin_expect(*gate == GATE_OPEN, 1) ? CUDA_SUCCESS : api_enter_slowly(function);
    return (struct api_call){result, true};
}

static inline void api_leave(const struct api_call *call) {
    if (call->counted && *api_gate != GATE_SHUT) { /* shut in a child that was forked in the middle */
        pool_call_ends();
    }
}

#define ENTER(symbol)                                                                                                  \
    __attribute__((cleanup(api_leave))) const struct api_call call_ = api_enter(API_##symbol);                         \
    if (__builtin_expect(call_.result != CUDA_SUCCESS, 0)) {                                                           \
        return call_.result;                                                                                           \
    }

extern pthread_mutex_t driver_mutex;

static inline void driver_lock(void) {
    pthread_mutex_lock(&driver_mutex);
}

static inline void driver_unlock(void) {
    pthread_mutex_unlock(&driver_mutex);
}

/* The value of an expression, computed under the lock. */
#define LOCKED(expression)                                                                                             \
    ({                                                                                                                 \
        driver_lock();                                                                                                 \
        CUresult locked_ = (expression);                                                                               \
        driver_unlock();                                                                                               \
        locked_;                                                                                                       \
    })

/* An entry point whose body is one expression, and one that comes with a twin for the per-thread default stream. */
#define API(symbol, parameters, ...)                                                                                   \
    CUresult symbol parameters {                                                                                       \
        ENTER(symbol);                                                                                                 \
        return __VA_ARGS__;                                                                                            \
    }
#define API_TWIN(symbol, suffix, parameters, ...)                                                                      \
    API(symbol, parameters, __VA_ARGS__)                                                                               \
    API(symbol##suffix, parameters, __VA_ARGS__)

#endif
