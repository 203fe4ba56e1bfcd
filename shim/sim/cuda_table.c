/* cuda_table.c: the table of all functions: which one a name means for a program of a given CUDA version.
 *
 * The table is functions.def. A function that this driver does not have is simply not there: its reference is weak
 * and stays null, and the name is "not found". The references are protected, so that a library preloaded into the
 * program, which may define the same names, cannot end up in the driver's own table.
 */
#define _GNU_SOURCE
#define CUDA_ABI_TYPES_ONLY
#include "cuda_table.h"

#include "common_settings.h"
#include "cuda_api.h"

#include <string.h>

#define GS_FN(base, symbol, since, stream, family, rule)                                                               \
    extern void symbol(void) __attribute__((weak, visibility("protected")));
#define GS_OTHER(base, symbol, since, stream) extern void symbol(void) __attribute__((weak, visibility("protected")));
#include "functions.def"

struct row {
    void (*function)(void); /* the trampolines below rely on its place, and on the size of a row */
    const char *base;
    int since;
    enum table_stream stream;
};

_Static_assert(sizeof(struct row) == 24, "as the trampolines have it");

extern const struct row sim_rows[] __attribute__((visibility("hidden")));
#define rows sim_rows
const struct row sim_rows[] = {
#define GS_FN(base_, symbol_, since_, stream_, family, rule) {symbol_, #base_, since_, stream_},
#define GS_OTHER(base_, symbol_, since_, stream_)            {symbol_, #base_, since_, stream_},
#include "functions.def"
};

/* For procaddr=other: another address of each function, 16 bytes of code apart, which jumps to it. */
extern const char sim_trampolines[] __attribute__((visibility("hidden")));

static __attribute__((used, noinline)) void trampolines(void) {
    __asm__ volatile(".balign 16\n"
                     "sim_trampolines:\n"
                     ".set sim_row, 0\n"
                     ".rept %c0\n"
                     ".balign 16\n"
#if defined(__x86_64__)
                     "movq sim_rows+24*sim_row(%%rip), %%r11\n"
                     "jmp *%%r11\n"
#elif defined(__aarch64__)
                     "adrp x16, sim_rows+24*sim_row\n"
                     "ldr x16, [x16, :lo12:sim_rows+24*sim_row]\n"
                     "br x16\n"
#endif
                     ".set sim_row, sim_row+1\n"
                     ".endr\n" ::"i"(API_COUNT));
}

static void *address_of(const struct row *row) {
    return SIM_IS(procaddr, other) ? (void *)(sim_trampolines + 16 * (row - rows)) : (void *)row->function;
}

/* The newest variant of a name that is not newer than `version`. Without one, *status says whether the name exists.
 * A name that has a per-thread form is answered with that form alone where it is asked for. */
void *table_resolve(const char *name, int version, enum table_stream stream, CUdriverProcAddressQueryResult *status) {
    const struct row *best = NULL;
    bool known = false, twin = false;
    int driver = sim_driver_version();
    for (const struct row *row = rows; row < rows + API_COUNT; row++) {
        if (strcmp(row->base, name) != 0 || row->function == NULL || row->since > driver) {
            continue;
        }
        known = true;
        if (stream == LEGACY && row->stream == PER_THREAD) {
            continue;
        }
        if (stream == PER_THREAD && row->stream == PER_THREAD && !twin) {
            twin = true;
            best = NULL;
        }
        if (twin && row->stream == LEGACY) {
            continue;
        }
        if (row->since <= version && (best == NULL || row->since > best->since)) {
            best = row;
        }
    }
    *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                           : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best == NULL ? NULL : address_of(best);
}
