/* part_bank.h: one GPU whose credit a program of a test hands out, in place of account.c and device.c. */
#include "part.h"

#include "device.h"

#define at_fork    fork_of_gate
#define entry_fork entry_of_gate
#include "gate.c"
#undef at_fork
#undef entry_fork

struct gs_driver gs_driver;
enum gs_mode gs_mode = GS_ON;
struct gs_gpu gs_gpus[GS_MAX_GPUS];
struct gs_known_context *gs_last_context;
void (*gs_account_squeeze[GS_SQUEEZERS])(struct gs_gpu *gpu, bool all);
static struct gs_line lines[2];

static struct bank {
    uint32_t asks, units;    /* how often it was asked, and for how much the last time */
    int grants;              /* so many asks it grants; -1: all */
    void (*meanwhile)(void); /* what happens while it is asked */
} bank;

CUresult gs_missing(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool gs_wake(const void *witness, bool open) {
    (void)witness, (void)open;
    gs_mode = GS_ON;
    return true;
}

bool gs_account_reserve_slow(struct gs_gpu *gpu, uint32_t units) {
    bank.asks++;
    bank.units = units;
    if (bank.meanwhile != NULL)
        bank.meanwhile();
    if (bank.grants == 0)
        return false;
    bank.grants -= bank.grants > 0;
    uint64_t word = gs_word_load(gpu->line);
    uint64_t lacks = (uint64_t)gs_word_used(word) + units;
    if (lacks > gs_word_credit(word))
        gs_grant(gpu->line, (uint32_t)(lacks - gs_word_credit(word)));
    return gs_reserve(gpu->line, units);
}

__attribute__((unused)) static uint32_t used_on(int gpu) {
    return gs_word_used(gs_word_load(&lines[gpu]));
}

/* As much credit as is in use, and `unused` more. */
__attribute__((unused)) static void set_unused(int gpu, uint32_t unused) {
    gs_revoke(&lines[gpu], UINT32_MAX);
    gs_grant(&lines[gpu], unused);
}

static uint32_t relaxed; /* calls into the relaxed mode and back */

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    (void)mode;
    relaxed++;
    return CUDA_SUCCESS;
}

__attribute__((unused)) static void open_bank(void) {
    gs_driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
    for (uint32_t i = 0; i < 2; i++)
        gs_gpus[i] = (struct gs_gpu){.line = &lines[i], .attached = 1, .known = 1, .index = i};
}

/* The system has no memory for tables. */
__attribute__((unused)) static bool no_pages;
#define gs_pages_new(size) (no_pages ? NULL : gs_pages_new(size))
