/* account.h: how much this process may use of each GPU.
 *
 * A GPU's line (credit.h) is in the daemon's page or, without a daemon, in a page of our own whose credit is the limit.
 * The fast path is in credit.h and is the same for both; this is the rest.
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
    bool attached;         /* the daemon counts our contexts here; always so for a line of our own */
    bool own;              /* the line is ours, not the daemon's */
    bool shows_request;    /* programs see the request as the GPU's total */
    uint32_t contexts;     /* that we saw opened */
    struct gs_mutex mutex; /* held while attaching and detaching */
    bool known;            /* the driver has said what follows */
    uint32_t index;        /* CUDA's ordinal in this process */
    uint32_t node_number;  /* the daemon's index of it, plus 1, as its messages name it; 0: not told */
    uint64_t total;        /* as the driver says */
    uint8_t uuid[GS_UUID_BYTES];
};

/* Make the GPU's line, before a context opens or memory is taken without one. false: refused, and the user has been
 * told. */
bool gs_account_attach(struct gs_gpu *gpu);

/* Charge another context on a GPU that is attached, before it opens: each takes as much. false: refused, and the user
 * has been told. */
bool gs_account_attach_another(struct gs_gpu *gpu);

/* The last context on the GPU is closed. */
void gs_account_detach(struct gs_gpu *gpu);

/* Ask the daemon for the credit that gs_reserve lacked, and take it. false: refused, and the user has been told. */
bool gs_account_reserve_slow(struct gs_gpu *gpu, uint32_t units);

static inline bool gs_account_reserve(struct gs_gpu *gpu, uint32_t units) {
    return __builtin_expect(gs_reserve(gpu->line, units), 1) || gs_account_reserve_slow(gpu, units);
}

/* The credit was there, but the driver said out-of-memory. true: it is worth another try. */
bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units);

/* That try has failed too: the program gets its out-of-memory error, and the daemon counts a broken guarantee. */
void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units);

/* What a program is told: the total, and what it could get now; bytes. */
struct gs_memory {
    uint64_t total, free;
};

static inline struct gs_memory gs_account_memory(const struct gs_gpu *gpu) {
    const struct gs_line *line = gpu->line;
    uint64_t word = gs_word_load(line), used = gs_word_used(word), credit = gs_word_credit(word);
    uint64_t limit = __atomic_load_n(&line->limit, __ATOMIC_RELAXED);
    uint64_t request = __atomic_load_n(&line->request, __ATOMIC_RELAXED);
    uint64_t shown = (gpu->shows_request && request != 0 ? request : limit) << GS_UNIT_SHIFT;
    uint64_t total = shown < gpu->total ? shown : gpu->total;
    uint64_t unused = credit > used ? credit - used : 0;
    uint64_t free = (unused + __atomic_load_n(&line->grantable, __ATOMIC_RELAXED)) << GS_UNIT_SHIFT;
    uint64_t in_use = used << GS_UNIT_SHIFT;
    uint64_t room = in_use < total ? total - in_use : 0; /* with the request as total it may be less */
    return (struct gs_memory){total, free < room ? free : room};
}

/* The total on a GPU of that size for which there is no line yet. */
uint64_t gs_account_total_expected(uint64_t total);

/* Before a refusal: give back what is charged and not in use. `all` also cuts into what is merely kept in reserve.
 * Set by the hooks of the pools. */
enum gs_squeezer { GS_SQUEEZE_GRAPHS, GS_SQUEEZE_POOLS, GS_SQUEEZERS };
extern void (*gs_account_squeeze[GS_SQUEEZERS])(struct gs_gpu *gpu, bool all);

/* Have the pools give back to the credit what they do not use. */
static inline void gs_account_give_back(struct gs_gpu *gpu, bool all) {
    for (int i = 0; i < GS_SQUEEZERS; i++) {
        void (*squeeze)(struct gs_gpu *, bool) = __atomic_load_n(&gs_account_squeeze[i], __ATOMIC_RELAXED);
        if (__builtin_expect(squeeze != NULL, 0))
            squeeze(gpu, all);
    }
}

#endif
