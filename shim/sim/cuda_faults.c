/* cuda_faults.c: delays and failures asked for by GPUSHARE_SIM.
 *
 * A function is named by its base name (cuMemAlloc), which means all its versions counted together, or by the symbol
 * of one version (cuMemAlloc_v2).
 */
#define _GNU_SOURCE
#include "cuda_faults.h"

#include "cuda_errors.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Below this a sleep would take far longer than asked: the kernel rounds it up. */
#define SHORTEST_SLEEP_NS 100000

static const struct {
    const char *base;
    const char *symbol;
} names[API_COUNT] = {
#define GS_FN(base_, symbol_, since, stream, family, rule) [API_##symbol_] = {#base_, #symbol_},
#define GS_OTHER(base_, symbol_, since, stream)            [API_##symbol_] = {#base_, #symbol_},
#include "functions.def"
};

static const struct sim_settings *settings;
static CUresult codes[SIM_MAX_FAULTS];
static _Atomic uint64_t calls[SIM_MAX_FAULTS];
static uint32_t concerned[API_COUNT]; /* per function: which faults name it, as bits */

_Static_assert(SIM_MAX_FAULTS <= 32, "one bit a fault");

static bool mark_functions(int index) {
    const char *wanted = settings->faults[index].function;
    bool found = false;
    for (int function = 0; function < API_COUNT; function++) {
        if (strcmp(wanted, names[function].base) == 0 || strcmp(wanted, names[function].symbol) == 0) {
            concerned[function] |= 1u << index;
            found = true;
        }
    }
    return found;
}

bool faults_prepare(const struct sim_settings *from) {
    settings = from;
    for (int index = 0; index < settings->fault_count; index++) {
        const struct sim_fault *fault = &settings->faults[index];
        if (!mark_functions(index)) {
            fprintf(stderr, "gpushare software driver: GPUSHARE_SIM: no function '%s'\n", fault->function);
            return false;
        }
        if (fault->nth != 0 && !error_by_name(fault->code, &codes[index])) {
            fprintf(stderr, "gpushare software driver: GPUSHARE_SIM: no error code '%s'\n", fault->code);
            return false;
        }
    }
    return true;
}

bool faults_any(void) {
    return settings->fault_count > 0;
}

static void wait_for(uint64_t ns) {
    struct timespec now;
    if (ns >= SHORTEST_SLEEP_NS) {
        struct timespec rest = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR) {
        }
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t end = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + ns;
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec < end);
}

CUresult faults_apply(enum api_function function) {
    CUresult result = CUDA_SUCCESS;
    for (uint32_t rest = concerned[function]; rest != 0; rest &= rest - 1) {
        int index = __builtin_ctz(rest);
        const struct sim_fault *fault = &settings->faults[index];
        if (fault->latency_ns != 0) {
            wait_for(fault->latency_ns);
        }
        if (fault->nth != 0) {
            uint64_t call = atomic_fetch_add(&calls[index], 1) + 1;
            if (call == fault->nth || (fault->onwards && call > fault->nth)) {
                result = codes[index];
            }
        }
    }
    return result;
}
