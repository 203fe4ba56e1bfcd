/* wire.h: the frames between the shim and the node daemon.
 *
 * A SOCK_SEQPACKET Unix socket, `shim.sock`, in the daemon's runtime directory. One packet is one frame of
 * GS_FRAME_BYTES; the process speaks first and each frame of its own gets exactly one answer with the same
 * `seq`, in any order, so that a thread that waits for a claim holds nobody else up.
 *
 *   process -> daemon              daemon -> process
 *   GS_HELLO  who I am, my page    GS_WELCOME  your page (as a file descriptor beside the frame), or why not
 *   GS_ATTACH a context opens      GS_ANSWER   charged for its overhead; your line in the page
 *   GS_ASK    more credit          GS_ANSWER   it is in your word already; or denied, and why
 *   GS_DETACH a context closed     GS_ANSWER
 *   GS_TRIMMED  a trim is done     GS_ANSWER  the page says which (trim_done) and how much (trimmed)
 *
 * The daemon learns from the kernel (SO_PEERCRED, pidfd) which process it speaks with; what a frame says about that is
 * for messages only. A process that has a page presents it again in GS_HELLO, its descriptor beside the frame.
 * The end of the connection is the end of the process, unless the daemon finds it alive.
 *
 * Version and size first; fields are added in reserved space, or behind a body's last, never moved. Each side takes
 * frames of every version from GS_WIRE_OLDEST on, also of versions later than its own. A field that the sender does not
 * know is zero; one that the receiver does not know is ignored. A change that cannot be made in this way raises
 * GS_WIRE_OLDEST: then older frames are refused by their version, and their programs keep what they have. Amounts are
 * in bytes.
 */
#ifndef GPUSHARE_WIRE_H
#define GPUSHARE_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */
#define GS_WIRE_MAGIC   0x77737067 /* "gpsw" as little-endian bytes */
#define GS_WIRE_VERSION 1
#define GS_WIRE_OLDEST  1
#define GS_FRAME_BYTES  512
#define GS_TEXT_BYTES   384

enum gs_frame_type {
    GS_HELLO = 1,
    GS_WELCOME = 2,
    GS_ATTACH = 3,
    GS_ASK = 4,
    GS_DETACH = 5,
    GS_ANSWER = 6,
    GS_TRIMMED = 7, /* no body: it only says that the page is worth looking at now */
};

/* How an amount of memory was written down: resolved by the daemon, which knows the GPU. */
enum gs_amount_kind {
    GS_AMOUNT_UNSET = 0,
    GS_AMOUNT_BYTES = 1,
    GS_AMOUNT_SHARE = 2, /* value / 10^9 of the GPU's total */
    GS_AMOUNT_MAX = 3,   /* all of it */
};

enum gs_status {
    GS_OK = 0,
    GS_OVER_LIMIT = 1,    /* the job's limit: more would never be granted */
    GS_NOT_FREE = 2,      /* above the request, and not to be lent now */
    GS_TIMED_OUT = 3,     /* a claim that could not be met in time: a guarantee violation */
    GS_NOT_ADMITTED = 4,  /* the job has no place on this GPU */
    GS_NOT_ALLOWED = 5,   /* not this user's job */
    GS_UNKNOWN = 6,       /* no such job, GPU or line */
    GS_BAD_FRAME = 7,     /* the daemon did not understand */
    GS_SHUTTING_DOWN = 8, /* try again with back-off */
    GS_ASK_AGAIN = 9,     /* of an ATTACH: the job is suspended, so nothing is decided yet */
};

enum gs_hello_flags {
    GS_HELLO_HAS_PAGE = 1, /* a page's descriptor comes with the frame */
};

enum gs_ask_flags {
    GS_ASK_DRIVER_FAILED = 1, /* the credit was there, but the driver said out-of-memory: look again, ask NVML */
    GS_ASK_FAILED_AGAIN = 2, /* with the flag above: it failed once more. This asks for nothing; the daemon counts it */
};

/* The reclaim steps of GPUSHARE_ON_RECLAIM. The daemon takes them in the order trim, hook, suspend, term, kill; suspend
 * and hook were added later, so their bits are not in this order. */
enum gs_reclaim_steps {
    GS_STEP_TRIM = 1,
    GS_STEP_TERM = 2,
    GS_STEP_KILL = 4,
    GS_STEP_SUSPEND = 8,
    GS_STEP_HOOK = 16,
};

struct gs_amount {
    uint64_t value;
    uint32_t kind; /* enum gs_amount_kind */
    uint32_t reserved;
};

struct gs_hello {
    uint64_t job_id;  /* from GPUSHARE_JOB; 0: the environment alone, a job of its own */
    uint64_t page_id; /* of the page presented, else 0 */
    uint32_t flags;   /* enum gs_hello_flags */
    uint32_t pid;     /* as the process sees itself */
    struct gs_amount request;
    struct gs_amount limit;
    int32_t priority;
    uint32_t grace_ms; /* 0: the daemon's default */
    char name[64];     /* GPUSHARE_NAME, else the program's name */
    uint32_t steps;    /* enum gs_reclaim_steps: how the loan may be asked back; 0: all steps */
    uint32_t min_run_ms;
};

struct gs_welcome {
    uint64_t page_id;
    uint64_t job_id;
    uint32_t status;      /* enum gs_status */
    uint32_t patience_ms; /* within this time the daemon answers every frame, claims too */
    char text[384];       /* when status is not GS_OK: what the user should read */
};

struct gs_attach {
    uint8_t uuid[16];
    uint64_t total;    /* of the GPU, as the driver says */
    uint32_t contexts; /* that it has there already; each is charged */
    uint32_t reserved;
};

struct gs_ask {
    uint64_t bytes; /* more than the credit now holds unused */
    uint32_t line;
    uint32_t flags;      /* enum gs_ask_flags */
    uint64_t allocation; /* what the program asked for in all */
    uint32_t ticket;     /* the same in each ASK for one allocation, so that it keeps its place; 0: none */
    uint32_t reserved;
};

struct gs_detach {
    uint32_t line;
    uint32_t reserved;
};

struct gs_answer {
    uint32_t status; /* enum gs_status */
    uint32_t line;
    uint64_t granted;     /* bytes of credit added, more than asked if it could be */
    char text[384];       /* when status is not GS_OK: what the user should read; lines end with \n */
    uint32_t node_number; /* of an ATTACH: the GPU's index on this node, plus 1; 0: not told */
};

struct gs_frame {
    uint32_t magic;   /* GS_WIRE_MAGIC */
    uint16_t version; /* GS_WIRE_VERSION */
    uint16_t type;    /* enum gs_frame_type */
    uint32_t size;    /* GS_FRAME_BYTES */
    uint32_t seq;
    union {
        struct gs_hello hello;
        struct gs_welcome welcome;
        struct gs_attach attach;
        struct gs_ask ask;
        struct gs_detach detach;
        struct gs_answer answer;
        uint8_t bytes[496];
    } u;
};
/* cdef end */

_Static_assert(sizeof(struct gs_frame) == GS_FRAME_BYTES, "fixed");
_Static_assert(offsetof(struct gs_frame, u) == 16, "header first");
_Static_assert(offsetof(struct gs_hello, steps) == 128, "append-only");
_Static_assert(offsetof(struct gs_answer, text) == 16, "append-only");
_Static_assert(offsetof(struct gs_answer, node_number) == 400, "append-only");

#endif
