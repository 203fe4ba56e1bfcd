/* credit.h: the credit page, the memory that a process and the node daemon share.
 *
 * Each process has one page. The daemon makes it as a file on tmpfs, so that a restarted daemon finds it again; the
 * process maps it. The page has one line for each GPU on which the process opens a context. Each line has one 64-bit
 * word: `used` in the high half and `credit` in the low half. Both sides change it with single atomic operations:
 *
 *   allocate   the process raises used, if used + n <= credit at that same instant
 *   free       the process lowers used, after the driver has freed
 *   grant      the daemon raises credit
 *   revoke     the daemon lowers credit, by no more than credit - used at that same instant
 *   suspend    the daemon takes all unused credit and closes the gate: calls that need credit wait there, and those
 *              that wait for the GPU. Then it asks for quiet, as a trim of nothing: the process says when it is quiet
 *   turn       the daemon has launches wait while it is another job's turn to compute, in processes that can do so
 *   trim       the daemon asks for borrowed memory back: it says in the lines how much, raises trim_asked and wakes
 *              the thread that waits there; the process frees what its allocators only keep, and says when it is done
 *
 * So used <= credit holds at every instant, without a lock, and a process that dies takes its word with it.
 * Both halves are in units of 512 bytes: 2 TiB a GPU.
 *
 * Every field names its one writer: [process] or [daemon]. The layout is fixed-width and append-only: fields
 * are added in the reserved space, never moved. So programs run on when the daemon is upgraded, and the other way
 * round: each side takes pages of every version from GS_PAGE_OLDEST on, also of versions later than its own. A field
 * that the other side does not know stays zero, so zero must mean what was true before there was the field. Python
 * reads the region between "cdef begin" and "cdef end" through cffi; sizes and offsets are asserted below and again in
 * tests/unit/test_layout.py.
 */
#ifndef GPUSHARE_CREDIT_H
#define GPUSHARE_CREDIT_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */
#define GS_PAGE_MAGIC   0x6572616873757067 /* "gpushare" as little-endian bytes */
#define GS_PAGE_VERSION 1
#define GS_PAGE_OLDEST  1
#define GS_PAGE_BYTES   4096
#define GS_PAGE_LINES   31
#define GS_UNIT_BYTES   512
#define GS_UNIT_SHIFT   9
#define GS_UUID_BYTES   16
#define GS_TRIM_MS      2000 /* how long a trim may take, if the page does not say */

/* A process's part of one GPU. */
struct gs_line {
    uint64_t word;       /* [both] used << 32 | credit, in units; only by the functions below */
    uint32_t peak;       /* [process] highest used so far, units */
    uint32_t refusals;   /* [process] allocations answered with out-of-memory */
    uint32_t contexts;   /* [process] contexts open on this GPU */
    uint32_t managed;    /* [process] allocations that make it unsuspendable, by kind */
    uint32_t ipc;        /* [process] */
    uint32_t vmm_export; /* [process] */
    uint32_t multicast;  /* [process] */
    uint32_t trimmed;    /* [process] units that trimming has given back so far; wraps */
    uint32_t asking;     /* [process] calls that have asked for credit and have not taken it, or given up, yet */
    uint32_t unmet;      /* [process] calls within the request that failed without an answer of the daemon; wraps */
    uint32_t unmet_told; /* [daemon] how many of these it has counted */
    uint32_t releases;   /* [process] changes before `used` is lowered: if neither has changed, nothing was freed */
    uint32_t gate;       /* [daemon] futex: not 0 while the job is suspended. A daemon that lives keeps raising it */
    uint32_t turn;       /* [both] futex: whether launches wait, enum gs_turn; only by atomic changes of single bits */

    uint64_t grantable;  /* [daemon] units that a request for more credit would get now */
    uint64_t limit;      /* [daemon] the job's limit on this GPU, units */
    uint64_t request;    /* [daemon] the job's request on this GPU, units */
    uint64_t overhead;   /* [daemon] what this process is charged beside its allocations, units */
    uint64_t job_usage;  /* [daemon] usage of the whole job on this GPU when last looked at, units */
    uint8_t uuid[16];    /* [daemon] the GPU, or the MIG instance */
    uint32_t attached;   /* [daemon] 1 while the line is in use */
    uint32_t trim_units; /* [daemon] wanted by the present trim: at most the loan, of an idle job all that it uses */
};

/* The bits of gs_line.turn, by which jobs take turns in computing. */
enum gs_turn {
    GS_TURN_CLOSED = 1, /* [daemon] launches wait: it is another job's turn */
    GS_TURN_QUIET = 2,  /* [daemon] sets it, a launch clears it */
    GS_TURN_PROBE = 4,  /* [daemon] asks: is the GPU done with all launches? The process clears it, setting ASKS */
    GS_TURN_WANTED = 8, /* [process] a launch waits; the daemon clears it when it opens */
    GS_TURN_HELD = 16,  /* [process] its launches can be held back */
    GS_TURN_ASKS = 32,  /* [process] it waits for the GPU, to answer PROBE */
    GS_TURN_BEAT = 64,  /* [daemon] the bits from here on are a number, which a daemon that lives keeps raising */
};

struct gs_page {
    uint64_t magic;      /* [daemon] GS_PAGE_MAGIC */
    uint32_t version;    /* [daemon] GS_PAGE_VERSION */
    uint32_t size;       /* [daemon] GS_PAGE_BYTES */
    uint64_t page_id;    /* [daemon] never zero, never reused */
    uint64_t job_id;     /* [daemon] */
    uint64_t start_time; /* [daemon] of the process: field 22 of /proc/PID/stat; with pid, its identity */
    uint32_t pid;        /* [daemon] in the daemon's PID namespace */
    uint32_t uid;        /* [daemon] */
    int32_t priority;    /* [daemon] of the job, for a daemon that has lost its own notes */
    uint32_t grace_ms;   /* [daemon] likewise */
    char job_name[48];   /* [daemon] likewise; ends with a zero byte */
    uint32_t trim_asked; /* [daemon] futex: the number of the last trim asked for; the lines say how much */
    uint32_t trim_ready; /* [process] 1: a thread waits for that, or is being started, and will act */
    uint32_t trim_begun; /* [process] the last trim that it has begun, */
    uint32_t trim_done;  /* [process] and ended */
    uint32_t trim_ms; /* [daemon] how long it waits for a trim; 0: GS_TRIM_MS. Not 0 at the start: trims come without a
                         loan, too */
    uint32_t copies;  /* [process] of the driver, beside the one on which it is counted */
    struct gs_line line[31];
};
/* cdef end */

_Static_assert(sizeof(struct gs_line) == 128, "a line is two cache lines: the process's and the daemon's");
_Static_assert(offsetof(struct gs_line, grantable) == 64, "the daemon writes the second cache line");
_Static_assert(offsetof(struct gs_line, uuid) == 104, "append-only");
_Static_assert(offsetof(struct gs_page, line) == 128, "append-only");
_Static_assert(sizeof(struct gs_page) == GS_PAGE_BYTES, "one page");

#define GS_TURN_MS 1000  /* a closed word that the daemon has not raised for so long stops no launch */
#define GS_GATE_MS 10000 /* a gate that the daemon has not raised for so long has no daemon any more */

static inline uint32_t gs_word_used(uint64_t word) {
    return (uint32_t)(word >> 32);
}

static inline uint32_t gs_word_credit(uint64_t word) {
    return (uint32_t)word;
}

static inline uint64_t gs_word_load(const struct gs_line *line) {
    return __atomic_load_n(&line->word, __ATOMIC_ACQUIRE);
}

/* Bytes to units, rounded up. Saturates at 2^32 - 1, which fits into no credit. */
static inline uint32_t gs_units(uint64_t bytes) {
    uint64_t units = (bytes >> GS_UNIT_SHIFT) + ((bytes & (GS_UNIT_BYTES - 1)) != 0);
    return units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

/* [process] Take units out of the credit: 1 if they fit, 0 (and no change) if they do not.
 *
 * A compare-and-swap and not a fetch-add: a fetch-add that must be undone shows other threads, for that
 * moment, a `used` above `credit`, and sends their fitting requests to the daemon. Uncontended both cost the same. */
static inline int gs_reserve(struct gs_line *line, uint32_t units) {
    uint64_t word = __atomic_load_n(&line->word, __ATOMIC_RELAXED);
    for (;;) {
        uint64_t used = (uint64_t)gs_word_used(word) + units;
        if (used > gs_word_credit(word))
            return 0;
        if (__atomic_compare_exchange_n(&line->word, &word, word + ((uint64_t)units << 32), 1, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            if (used > __atomic_load_n(&line->peak, __ATOMIC_RELAXED))
                __atomic_store_n(&line->peak, (uint32_t)used, __ATOMIC_RELAXED);
            return 1;
        }
    }
}

/* [process] Give back units that gs_reserve took: only after the driver has freed them. To
 * release more than is in use would be an error in somebody's account. It leaves 0 in use: a number below 0 would read
 * as so much that nothing is ever granted again.
 *
 * `releases` changes before `used` does: a reader that sees the new `used` sees that, too. It is no atomic addition,
 * which would cost as much as the release itself. Two threads may load the same value; each adds a number of its own
 * (from where its stack is), so that the store of the slower one is a change once more. */
static inline void gs_release(struct gs_line *line, uint32_t units) {
    uint32_t step = (uint32_t)((uintptr_t)__builtin_frame_address(0) >> 12) | 1;
    __atomic_store_n(&line->releases, __atomic_load_n(&line->releases, __ATOMIC_RELAXED) + step, __ATOMIC_RELAXED);
    uint32_t used = gs_word_used(__atomic_fetch_sub(&line->word, (uint64_t)units << 32, __ATOMIC_ACQ_REL));
    if (__builtin_expect(used < units, 0))
        __atomic_fetch_add(&line->word, (uint64_t)(units - used) << 32, __ATOMIC_ACQ_REL);
}

/* [daemon] Raise the credit. The caller keeps credit below 2^32. */
static inline void gs_grant(struct gs_line *line, uint32_t units) {
    __atomic_fetch_add(&line->word, units, __ATOMIC_ACQ_REL);
}

/* [daemon] Lower the credit by at most `units`, never below used. Returns what was taken. */
static inline uint32_t gs_revoke(struct gs_line *line, uint32_t units) {
    uint64_t word = __atomic_load_n(&line->word, __ATOMIC_RELAXED);
    for (;;) {
        uint32_t used = gs_word_used(word), credit = gs_word_credit(word);
        uint32_t unused = credit > used ? credit - used : 0;
        uint32_t taken = unused < units ? unused : units;
        if (taken == 0)
            return 0;
        if (__atomic_compare_exchange_n(&line->word, &word, word - taken, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return taken;
    }
}

#endif
