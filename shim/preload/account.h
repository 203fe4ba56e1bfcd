/* account.h: what this process may use of each GPU, and where that comes from.
 *
 * A GPU's line (credit.h) is either in the page that the daemon gave us, or, when there is no daemon, in one of our
 * own whose credit is the limit. The fast path is in credit.h and does not know the difference; this is the rest.
 */
#ifndef GPUSHARE_PRELOAD_ACCOUNT_H
#define GPUSHARE_PRELOAD_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "credit.h"
#include "lock.h"

#define GS_MAX_GPUS 64

/* One GPU as this process sees it. */
struct gs_gpu {
    struct gs_line *line;  /* NULL until the first attach, the same ever after */
    uint32_t number;       /* of the line in the daemon's page */
    uint32_t attached;     /* the daemon counts our contexts here; always so for a line of our own */
    bool own;              /* the line is ours, not the daemon's */
    uint32_t contexts;     /* that we saw opened */
    struct gs_mutex mutex; /* held while attaching and detaching */
    uint32_t index;        /* CUDA's ordinal in this process */
    uint32_t node_number;  /* the daemon's index of it, plus 1, as its messages name it; 0: not told */
    uint64_t total;        /* as the driver says */
    uint8_t uuid[GS_UUID_BYTES];
};

/* Make the GPU's line: a context is about to open, or memory to be taken without one. false: refused, and said. */
bool gs_account_attach(struct gs_gpu *gpu);

/* The last context on the GPU is closed. */
void gs_account_detach(struct gs_gpu *gpu);

/* Ask for what gs_reserve could not find in the credit, and take it. false: refused, and said. */
bool gs_account_reserve_slow(struct gs_gpu *gpu, uint32_t units);

static inline bool gs_account_reserve(struct gs_gpu *gpu, uint32_t units) {
    return __builtin_expect(gs_reserve(gpu->line, units), 1) || gs_account_reserve_slow(gpu, units);
}

/* The credit was there, but the driver said out-of-memory. true: it is worth another try. */
bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units);

/* That try has failed too: the program gets its out-of-memory error, and the daemon counts a broken guarantee. */
void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units);

/* What a program is told: the total, and what it could get now; bytes. */
uint64_t gs_account_total(const struct gs_gpu *gpu);
uint64_t gs_account_free(const struct gs_gpu *gpu);

/* The total on a GPU of that size for which there is no line yet. */
uint64_t gs_account_total_expected(uint64_t total);

/* Before a refusal: give back what is charged and not in use. `all` also cuts into what is merely kept in reserve.
 * Set by the hooks of the pools. */
enum gs_squeezer { GS_SQUEEZE_GRAPHS, GS_SQUEEZE_POOLS, GS_SQUEEZERS };
extern void (*gs_account_squeeze[GS_SQUEEZERS])(struct gs_gpu *gpu, bool all);

/* What the pools hold and do not use, back to the credit. */
void gs_account_give_back(struct gs_gpu *gpu, bool all);

/* Called when a GPU is attached or credit is asked for by a job that may borrow there: such a process can be asked to
 * give back. Set by process.c. */
extern void (*gs_account_may_borrow)(void);

void gs_account_forget(void);

#endif
